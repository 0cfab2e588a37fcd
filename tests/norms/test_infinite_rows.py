"""Rows that hold infinities and NaN: the mean that NumPy has, on the CPU and on a device.

A mean of a row with one kind of infinity is that infinity, with both or with a NaN it is NaN, and
the spread about either is NaN, as (inf - inf)^2 is. rms_norm has no mean: its rstd is 0 there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from devices import FRAMEWORKS, KERNELS, Framework
from normed import OF_ROWS, told

import fastact as fa
from fastact.check import reference
from fastact.measure.norm_rows import traits

INF = float("inf")
# What one row has more than numbers: at its start, at its end and amid it, next to each other and
# in different chunks; alone, and all over.
SPECIALS: dict[str, dict[float, float]] = {
    "none": {},
    "-inf first": {0.0: -INF},
    "inf last": {1.0: INF},
    "-inf amid": {0.6: -INF},
    "two -inf": {0.0: -INF, 1.0: -INF},
    "inf and -inf": {0.1: INF, 0.9: -INF},
    "NaN": {0.5: np.nan},
    "NaN and inf": {0.0: INF, 0.7: np.nan},
}
# Shorter than a pack; a warp's; a block's; one that a block keeps in part; and rows that several
# blocks share (over 16 384 packs of 16 bytes in any dtype: 131 072 elements of 16 bits).
LENGTHS = [1, 3, 37, 2500, 20_000, 140_000]
HERE = [FRAMEWORKS[0], *KERNELS]


def rows_of(dtype: Any, n: int) -> np.ndarray:
    """A row for each of SPECIALS, and one of all infinite numbers."""
    rng = np.random.default_rng(n)
    x = np.tile(rng.normal(3, 2, n), (len(SPECIALS) + 1, 1))
    for row, specials in zip(x, SPECIALS.values(), strict=False):
        for at, value in specials.items():
            row[int(at * (n - 1))] = value
    x[-1] = -INF
    return x.astype(dtype)


def oracle(x: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """NumPy's mean and variance in double."""
    wide = x.astype(float)
    with np.errstate(all="ignore"):
        return wide.mean(axis, keepdims=True), wide.var(axis, keepdims=True)


def check(found: Any, expected: np.ndarray, dtype: Any) -> None:
    """Infinities and NaN as they are, and finite ones as close as any test has them."""
    # float32 keeps 24 bits; statistics of 16-bit data come in float32; their own results have 11
    # and 8. Sums are exact to far less.
    bits = {"float64": 1e-13, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}
    np.testing.assert_allclose(
        np.asarray(found).astype(float), expected, rtol=bits[np.dtype(dtype).name], atol=1e-12
    )


def check_norm(
    here: Framework, op: Any, x: np.ndarray, axes: Any, positional: Sequence[Any], named: Any
) -> None:
    eps = 1e-5
    given = here.of(x)
    beside = {"residual": np.zeros_like, "gate": np.ones_like}  # which change nothing
    inputs = [given, *([here.of(beside[traits(op).second](x))] if traits(op).second else [])]
    named = {**named, **told(op, p=0), "eps": eps, "activation": "identity"}
    y, saved = op.forward(*inputs, *positional, **named)
    mean, var = oracle(x, axes)
    wide = x.astype(float)
    if not traits(op).centred:
        with np.errstate(all="ignore"):
            square = np.square(wide).mean(axes, keepdims=True)
            rstd = reference.row_formulas(op).rstd(square, wide.size // mean.size, eps)
            expected = wide * rstd
    else:
        rstd = 1 / np.sqrt(var + eps)
        with np.errstate(all="ignore"):
            expected = (wide - mean) * rstd
        check(here.numpy(saved[1]).reshape(mean.shape), mean, saved_dtype(x))
    check(here.numpy(saved[op.saves.index("rstd")]).reshape(mean.shape), rstd, np.float32)
    first = here.numpy(y[0] if isinstance(y, tuple) else y).astype(float)
    where = ~np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(first), np.isnan(expected))
    np.testing.assert_array_equal(first[where], expected[where])
    # z is stated to within some 6 u |xhat weight|, and then rounded: 8 bits of bfloat16
    np.testing.assert_allclose(first[~where], expected[~where], rtol=1e-2, atol=1e-2)


def saved_dtype(x: np.ndarray) -> Any:
    return np.float64 if x.dtype == np.float64 else np.float32


@pytest.mark.parametrize(
    ("name", "n"),
    [(op.name, n) for op in OF_ROWS for n in (LENGTHS if not traits(op).adds else (3, 2500))],
)
@pytest.mark.parametrize("here", HERE, ids=lambda f: f.name)
def test_rows(here: Framework, dtype: Any, name: str, n: int) -> None:
    check_norm(here, fa.ops[name], rows_of(dtype, n), -1, (), {})


# Pixels of a channel: few; many; so many that they are cut.
@pytest.mark.parametrize("n", [3, 400, 20_000])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("here", HERE, ids=lambda f: f.name)
def test_channels(here: Framework, dtype: Any, n: int, last: bool) -> None:
    """group_norm, instance_norm and batch_norm, with channels first and last."""
    rows = rows_of(dtype, n)
    x = np.stack([rows, rows[::-1]])  # (N, C, pixels)
    given = np.ascontiguousarray(np.moveaxis(x, 1, 2)) if last else x
    axis = 2 if last else 1
    groups, training = len(rows) // 3, {"training": True}
    for op, args, named, parted, over in (
        (fa.instance_norm, (), {}, x, 2),
        (fa.group_norm, (groups,), {}, x.reshape(2, groups, -1), 2),
        (fa.batch_norm, (None, None), training, x, (0, 2)),
    ):
        y, saved = op.forward(here.of(given), *args, **named, channel_axis=axis)
        mean, var = oracle(parted, over)
        rstd = 1 / np.sqrt(var + 1e-5)
        check(here.numpy(saved[1]).reshape(mean.shape), mean, saved_dtype(x))
        check(here.numpy(saved[2]).reshape(mean.shape), rstd, np.float32)
    found = np.moveaxis(here.numpy(y), 2, 1) if last else here.numpy(y)
    with np.errstate(all="ignore"):
        expected = (x.astype(float) - mean) * rstd
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize(
    ("n", "axis"), [*((n, 1) for n in LENGTHS), (3, 0), (2500, 0), (40_000, 0)]
)
@pytest.mark.parametrize("here", HERE, ids=lambda f: f.name)
def test_moments(here: Framework, dtype: Any, n: int, axis: int) -> None:
    """Along rows and along columns, whole arrays among them."""
    rows = rows_of(dtype, n)
    x = rows if axis == 1 else np.ascontiguousarray(rows.T)
    mean, var = (np.squeeze(a, axis) for a in oracle(x, axis))
    found = fa.moments(here.of(x), axis)
    check(here.numpy(found.mean), mean, np.float64)
    check(here.numpy(found.m2), var * n, np.float32)
    mean_found, var_found = fa.mean_var(here.of(x), axis)
    check(here.numpy(mean_found), mean, dtype)
    check(here.numpy(var_found), var, dtype)
    for row, expected in zip(rows[:, :2500], oracle(rows[:, :2500], 1)[0][:, 0], strict=True):
        check(here.numpy(fa.moments(here.of(row)).mean), expected, np.float64)


@pytest.mark.parametrize("n", [5, 40_000])
@pytest.mark.parametrize("here", HERE, ids=lambda f: f.name)
def test_sums_beyond_the_dtype(here: Framework, dtype: Any, n: int) -> None:
    """The largest numbers: their sum is none of the dtype, and their mean is."""
    top = {"float16": 65504.0, "bfloat16": 3.0e38, "float32": 3.0e38, "float64": 1.7e308}
    value = np.full(2, top[np.dtype(dtype).name]).astype(dtype)[0]
    x = np.full((3, n), value)
    y, saved = fa.layer_norm.forward(here.of(x))
    wide = np.asarray(value, saved_dtype(x))
    # no more than a rounding or two of what was added up
    np.testing.assert_allclose(here.numpy(saved[1])[:, 0], np.full(3, wide), rtol=4e-16)
    # and y is 0 but for what that rounding is, against an rstd of 1 / sqrt(eps)
    assert np.isfinite(here.numpy(y).astype(float)).all() or dtype == np.float64
    found = fa.moments(here.of(x), 1)
    np.testing.assert_allclose(here.numpy(found.mean), np.full(3, float(value)), rtol=4e-16)


@pytest.mark.parametrize("here", HERE, ids=lambda f: f.name)
def test_a_sum_with_the_residual_that_overflows(here: Framework) -> None:
    """float16: what is normalised is the sum as it is stored, here infinite."""
    x = np.ones((2, 70), np.float16)
    x[0, 4] = 60000
    (_, total), saved = fa.add_layer_norm.forward(here.of(x), here.of(x))
    assert np.isinf(here.numpy(total)[0, 4])
    np.testing.assert_array_equal(here.numpy(saved[1])[:, 0], [INF, 2])
    assert np.isnan(here.numpy(saved[2])[0, 0])
