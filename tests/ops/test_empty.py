"""Arrays without elements: results that have some all the same are the formulas' values.

They are NumPy's: means NaN, running statistics as they are. That all of them are written, and that
gradients are 0, tests/invariants holds for every op.
"""

from typing import Any

import numpy as np
import pytest
from every import Call
from normed import NORMS

import fastact as fa

MATRICES = [(0, 3), (3, 0), (0, 0)]


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(backend: Any, dtype: Any, shape: tuple[int, ...], training: bool) -> None:
    """Also of statistics whose strides are negative."""
    channels = shape[1]
    mean, var = np.linspace(-2, 3, channels)[::-1], np.linspace(0.5, 4, channels)[::-1]
    running = [backend.of(a.astype(dtype)) for a in (mean, var)]
    x = backend.of(np.zeros(shape, dtype))
    _, saved = fa.batch_norm.forward(x, *running, None, None, training, eps=0.25)
    wide = np.float64 if dtype == np.float64 else np.float32
    rstd = (1 / np.sqrt(var.astype(dtype).astype(float) + 0.25)).astype(wide)
    kept = mean.astype(dtype), var.astype(dtype)
    for found, right in zip(map(backend.numpy, saved[1:3]), (kept[0], rstd), strict=True):
        assert found.dtype == wide
        right = np.full(channels, np.nan) if training else right
        np.testing.assert_array_equal(found.reshape(-1), right.astype(wide))
    for array, before in zip(running, kept, strict=True):
        np.testing.assert_array_equal(backend.numpy(array).astype(float), before.astype(float))
    if training:
        assert not any(backend.numpy(a).any() for a in fa.batch_norm.backward_reduce(x, *saved[:3]))


def test_more_channels_than_the_native_code_takes_at_a_time() -> None:
    mean, var = np.linspace(-2, 3, 6002)[::-2], np.linspace(1, 9, 6002)[::-2]
    _, saved = fa.batch_norm.forward(np.zeros((0, 3001, 2)), mean, var, eps=0)
    np.testing.assert_array_equal(saved[1].reshape(-1), mean)
    np.testing.assert_array_equal(saved[2].reshape(-1), 1 / np.sqrt(var))


@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
@pytest.mark.parametrize("shape", [(2, 4, 0), (0, 4, 6)], ids=str)
def test_statistics_of_norms(op: Any, shape: tuple[int, ...]) -> None:
    """Those of rows without elements are NaN, as means of none are."""
    saved = dict(zip(op.saves, Call(op, {}, shape, np.float32).saved, strict=True))
    for name in saved.keys() & {"mean", "rstd"}:
        assert np.isnan(saved[name]).all()


@pytest.mark.parametrize("correction", [0, 1, -1, -2, 2.5])
def test_variance_of_nothing_and_a_correction(backend: Any, correction: float) -> None:
    """A sum of no squares over what is left of the count, as np.var has it."""
    _, var = fa.mean_var(backend.of(np.zeros((0, 3))), 0, correction=correction)
    np.testing.assert_array_equal(backend.numpy(var), np.full(3, 0 if correction < 0 else np.nan))


@pytest.mark.parametrize("op", [fa.sum, fa.sum_squares, fa.moments, fa.mean_var], ids=str)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, None, (0, 1)], ids=str)
@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
def test_reductions(op: Any, shape: tuple[int, ...], axis: Any) -> None:
    found, like = op(np.zeros(shape), axis), np.sum(np.zeros(shape), axis)
    expected = {"y": [0], "mean": [np.nan, 0 if op is fa.moments else np.nan]}[op.results[0]]
    parts = (found.mean, found.m2) if op is fa.moments else found
    for part, value in zip(parts if len(expected) > 1 else (parts,), expected, strict=True):
        np.testing.assert_array_equal(part, np.full_like(like, value))
