"""Gradients keep their digits: beside a common offset, and of one element far above the others."""

from typing import Any

import numpy as np
import pytest
from devices import DEVICES, DTYPES, Framework

import fastact as fa
from fastact.check import reference
from fastact.ops.bounds import rounding, unit_roundoff

LOSSES: dict[str, dict[str, Any]] = {
    "classes": {},
    "a weight": {"weighted": True},
    "smoothing": {"label_smoothing": 0.1},
    "a z loss": {"z_loss": 1e-4},
    "probabilities": {"probable": True},
}
# An offset of 1e30 is one that leaves nothing of what a row has beside it.
OFFSETS = {"float16": [1e3, -1e3, 6e4], "bfloat16": [1e3, -1e4]}
WIDE_OFFSETS = [0.0, 1e3, -1e3, 1e4, -1e4, 6e4, 1e30]
# Rows of one block, and of two that have a maximum each; few columns lie side by side.
SHAPES = [((3, 1100), 1), ((40, 3), 0)]


def rough(framework: Framework, dtype: np.dtype[Any], logs: Any) -> Any:
    """In u, what a GPU's exponentials and their sum add for 16-bit data (bounds.py)."""
    is_rough = framework in DEVICES and dtype.itemsize == 2
    return 80 + np.abs(np.maximum(logs, -1e3)) if is_rough else 0.0


def of_loss(logs: Any, tw: Any, target: Any, axis: int, of: dict[str, Any], lse: Any) -> Any:
    slope = 2 * of.get("z_loss", 0.0) * lse
    smoothing = of.get("label_smoothing", 0.0)
    return reference.loss_gradient(logs, tw, target, axis, smoothing, slope)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=["rows", "columns"])
def test_an_offset_of_the_logits(
    shape: Any, axis: int, loss: str, dtype: str, framework: Framework
) -> None:
    """dlogits beside any offset is as exact as without: 8 u as stated and 4 u of lse + rest."""
    rng, given = np.random.default_rng(3), dict(LOSSES[loss])
    wide, n = np.longdouble, shape[axis]
    for offset in OFFSETS.get(dtype, WIDE_OFFSETS):
        of, x = dict(given), (3 * rng.standard_normal(shape) + offset).astype(DTYPES[dtype])
        w, kept = None, shape[1 - axis]
        if of.pop("weighted", False):
            w = rng.uniform(0.5, 2, n).astype(np.promote_types(x.dtype, np.float32))
        target: Any = rng.integers(0, n, kept)
        if is_probable := of.pop("probable", False):
            target = np.exp(rng.standard_normal(shape))
            target = (target / target.sum(axis, keepdims=True)).astype(x.dtype)
        options = {**of, "axis": axis, "reduction": "sum"}
        _, saved = fa.cross_entropy.forward(
            *map(framework.of, (x, target)),
            weight=None if w is None else framework.of(w),
            **options,
        )
        found = framework.numpy(fa.cross_entropy.backward(1.0, *saved, **options))
        logs = reference.softmax_row("log_softmax", x.astype(wide), (axis,))
        smoothing = of.get("label_smoothing", 0.0)
        tw = reference.cross_entropy(x.astype(wide), target, w, axis, -100, smoothing)[3]
        lse = reference.softmax_row("logsumexp", x.astype(wide), (axis,))
        exact, size = of_loss(logs, tw, None if is_probable else target, axis, of, lse)
        each = n / 32 if x.dtype == np.float64 else 0.0
        error = (12 + 2 * each + rough(framework, x.dtype, logs)) * unit_roundoff(x.dtype) * size
        assert reference.shares(found, exact, error + rounding(exact, x.dtype, error)).max() <= 1


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=["rows", "columns"])
def test_an_offset_of_logsumexp(shape: Any, axis: int, dtype: str, framework: Framework) -> None:
    """The same bound: 8 u as stated and 4 u of lse + rest."""
    rng = np.random.default_rng(4)
    for offset in OFFSETS.get(dtype, WIDE_OFFSETS):
        x = (3 * rng.standard_normal(shape) + offset).astype(DTYPES[dtype])
        _, saved = fa.logsumexp.forward(framework.of(x), axis=axis)
        dy = np.ones(shape[1 - axis], x.dtype)
        found = framework.numpy(fa.logsumexp.backward(framework.of(dy), *saved, axis=axis))
        logs = reference.softmax_row("log_softmax", x.astype(np.longdouble), (axis,))
        exact = np.exp(logs)
        each = shape[axis] / 32 if x.dtype == np.float64 else 0.0
        error = (12 + each + rough(framework, x.dtype, logs)) * unit_roundoff(x.dtype) * exact
        assert reference.shares(found, exact, error + rounding(exact, x.dtype, error)).max() <= 1


def dominated(dtype: str, gap: float) -> np.ndarray:
    """Rows of seven: one element is so far above the others, which differ."""
    x = np.linspace(-1, 0, 7) * np.ones((7, 1))
    x[np.arange(7), np.arange(7)] = gap
    return (x + 0.25).astype(DTYPES[dtype])


def gradients() -> dict[str, np.ndarray]:
    eye, rng = np.eye(7), np.random.default_rng(5)
    return {
        "its own": eye,
        "another's": np.roll(eye, 1, 1),
        "all but alike": 1 + 2.0**-6 * rng.integers(0, 3, (7, 7)),
        "small ones of the others": eye + 2.0**-12 * np.roll(eye, 2, 1),
    }


GAPS = [1.0, 1.5, 3.0, 8.0, 20.0, 40.0, 80.0]


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("given", list(gradients()))
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_an_element_far_above_the_others(
    by: str, given: str, dtype: str, framework: Framework
) -> None:
    """Every dx of log_softmax has the digits of the terms that it is made of: 8 u as stated.

    A y errs by 4 ULP, which are up to 8 u, and its exponential by y times as much.
    """
    dy, turn = gradients()[given].astype(DTYPES[dtype]), by == "columns"
    wide, u = np.longdouble, unit_roundoff(DTYPES[dtype])
    own = 2 * 2.0**-9 if dtype == "bfloat16" else 2 * 2.0**-12 if dtype == "float16" else 0.0
    for gap in GAPS[: 4 if dtype == "float16" else None]:  # float16 has nothing below exp(-17)
        x = dominated(dtype, gap)
        logs = reference.softmax_row("log_softmax", x.astype(wide), (1,))
        a, b = (framework.of(v.T.copy() if turn else v) for v in (x, dy))
        _, saved = fa.log_softmax.forward(a, axis=0 if turn else 1)
        found = framework.numpy(fa.log_softmax.backward(b, *saved, axis=0 if turn else 1))
        p, q, d = np.exp(logs), -np.expm1(logs), dy.astype(wide)
        others = d.sum(1, keepdims=True) - d
        exact = q * d - p * others
        size = q * np.abs(d) + p * (np.abs(d).sum(1, keepdims=True) - np.abs(d))
        error = (16 + rough(framework, x.dtype, logs)) * u * size
        error = error + (8 * u + own) * np.abs(logs) * p * np.abs(d).sum(1, keepdims=True)
        error = error + rounding(exact, x.dtype, error)
        assert reference.shares(found.T if turn else found, exact, error).max() <= 1, gap


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_target_far_above_the_others(axis: int, dtype: str, framework: Framework) -> None:
    """p - 1 has the digits of what p leaves, at any offset: 8 u as stated and 4 u of lse + rest."""
    wide, target = np.longdouble, np.arange(7)
    for gap, offset in ((g, o) for g in GAPS for o in (0.0, 1024.0, -1024.0)):
        x = dominated(dtype, gap) + DTYPES[dtype].type(offset)
        a = framework.of(x.T.copy() if axis == 0 else x)
        options = {"axis": axis, "reduction": "sum"}
        _, saved = fa.cross_entropy.forward(a, framework.of(target), **options)
        dx = framework.numpy(fa.cross_entropy.backward(1.0, *saved, **options))
        logs = reference.softmax_row("log_softmax", x.astype(wide), (1,))
        exact, size = of_loss(logs, np.eye(7), target, 1, {}, 0.0)
        error = 12 * unit_roundoff(x.dtype) * size
        assert reference.shares(dx.T if axis == 0 else dx, exact, error).max() <= 1
