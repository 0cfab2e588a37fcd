"""Cases of sums over axes, and what holds for every sum."""

import math
from typing import Any

import numpy as np
import pytest

import fastact as fa
from fastact.measure.sum_axes import is_sum, reduces

SUMS = [op for op in fa.ops.values() if is_sum(op) and reduces(op)]

# Each way of walking: shape and axes. Long and short rows, one and many blocks of 2048 terms, rows
# of whole blocks that tasks share, wide, narrow and tall columns, terms in pieces, few terms of
# many outputs.
CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((70_001,), (0,)), ((40, 5003), (1,)), ((300, 1000), (1,)), ((70, 4096), (1,)),
    ((3000, 37), (1,)), ((2100, 520), (0,)), ((6, 20_000), (0,)), ((20_001, 3), (0,)),
    ((20_001, 3), (1,)), ((9001, 12), (1,)), ((3, 20_001), (1,)), ((3, 2500, 65), (1,)),
    ((400, 7, 3), (1,)), ((9, 6, 24, 24), (0, 2, 3)), ((9, 6, 23, 25), (0, 2, 3)),
    ((9, 24, 24, 6), (0, 1, 2)), ((45, 24, 7, 7), (0, 2, 3)), ((30, 20, 10, 9), (0, 2)),
    ((30, 20, 10, 9), (1, 3)),
]  # fmt: skip
case = pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)

#: Cases of devices alone: more rows than a block takes, of few elements, of a vector, of some that
#: end within one, and of as many as a lane has of each dtype; columns of few rows, of whole
#: vectors and not, between others and not; rows of a lane, of a warp, of two, and of more than one
#: chunk in few chunks and in many; results that repeat along vectors, along whole rows and within
#: a vector.
DEVICE_CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((515, 2), (1,)), ((515, 3), (1,)), ((1030, 4), (1,)), ((515, 1, 8), (2,)), ((300, 16), (1,)),
    ((260, 31), (1,)), ((3, 2049), (0,)), ((8, 2048), (0,)), ((32, 100), (0,)), ((4, 5, 24), (1,)),
    ((3, 4097), (1,)), ((2, 9001), (1,)), ((1, 70_000), (1,)), ((1, 540_000), (1,)),
    ((9, 64), (1,)), ((7, 37), (1,)), ((301, 3), (1,)), ((67, 1, 2), (2,)), ((9, 64), (0,)),
    ((301, 3), (0,)), ((3, 301), (0,)), ((5, 6, 7), (1,)), ((5, 6, 24), (0, 2)),
    ((5, 6, 7), (0, 2)), ((4, 3, 5, 2), (0, 2)), ((1003,), (0,)), ((2100, 3), (1,)),
    ((3, 1032), (0,)), ((2, 8, 24), (1,)), ((5, 1028), (1,)), ((2, 8192), (1,)),
    ((3, 4, 512), (2,)), ((3, 1), (0,)), ((5, 2), (1,)), ((2, 40_000, 3), (1,)),
    ((2500, 129), (0,)), ((1001, 5), (0,)), ((2, 33, 7), (1,)),
]  # fmt: skip


def sum_error(row: np.ndarray, y: float) -> float:
    """|y - the sum of the row|, the exact one, rounded once."""
    return abs(math.fsum((*row, -y)))


def sum_errors(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """|value - the sum of its row| for each.

    Where long double is wider than double, its own error (2^-60 of the sum of |x|) is nothing
    beside a bound of 2^-46, and it is 20 times as fast as exact sums.
    """
    if np.finfo(np.longdouble).nmant < 60:
        errors = [sum_error(r, float(v)) for r, v in zip(rows, values, strict=True)]
        return np.array(errors)
    exact = np.ascontiguousarray(rows).sum(1, dtype=np.longdouble)
    return np.abs(exact - values.astype(np.float64)).astype(np.float64)


def assert_sums(bounds: Any, y: np.ndarray, rows: np.ndarray, more: Any = 0.0) -> None:
    """Each y is the sum of its row within a sum's bounds; more: the error of the rows."""
    allowed = bounds.allowed(y.astype(np.float64), np.abs(rows).sum(1), y.dtype, more)
    assert (sum_errors(rows, y) <= allowed).all()


def drawn(op: Any, dtype: Any, shape: tuple[int, ...], centre: float = 10) -> np.ndarray:
    """Data; for what skips NaN with some: all of an output, its first terms, here and there."""
    x = np.random.default_rng(0).normal(centre, 3, shape).astype(dtype)
    if not getattr(op, "skips", False) or x.size < 2:
        return x
    x[np.random.default_rng(1).random(shape) < 0.2] = np.nan
    if len(shape) > 1:
        x[..., 0][: shape[0] // 3] = np.nan
        x[0] = np.nan
        x[..., -1] = np.nan
    else:
        x[: shape[0] // 2] = np.nan
    return x


def exact_moments(
    x: np.ndarray, axes: tuple[int, ...], keepdims: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The mean, and the sum of the squared distances from it, in extended precision."""
    wide = x.astype(np.longdouble)
    mean = wide.mean(axes, keepdims=True)
    d = wide - mean
    m2 = (d * d).sum(axes, keepdims=keepdims)
    return mean if keepdims else np.squeeze(mean, axes), m2
