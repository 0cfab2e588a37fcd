"""Cases of sums over axes, and what holds for every sum."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastact as fa
from fastact.check import reference
from fastact.check.expected import expected
from fastact.check.expected.reductions import term_of
from fastact.measure.cases import Case
from fastact.measure.sum_axes import is_over_any, is_sum

SUMS = [op for op in fa.ops.values() if is_sum(op) and is_over_any(op)]

# Each way of walking: shape and axes. Long and short rows, one and many blocks of 2048 terms, rows
# of whole blocks that tasks share, wide, narrow and tall columns, terms in pieces, few terms of
# many outputs.
CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((70_001,), (0,)),
    ((40, 5003), (1,)),
    ((300, 1000), (1,)),
    ((70, 4096), (1,)),
    ((3000, 37), (1,)),
    ((2100, 520), (0,)),
    ((6, 20_000), (0,)),
    ((20_001, 3), (0,)),
    ((20_001, 3), (1,)),
    ((9001, 12), (1,)),
    ((3, 20_001), (1,)),
    ((3, 2500, 65), (1,)),
    ((400, 7, 3), (1,)),
    ((9, 6, 24, 24), (0, 2, 3)),
    ((9, 6, 23, 25), (0, 2, 3)),
    ((9, 24, 24, 6), (0, 1, 2)),
    ((45, 24, 7, 7), (0, 2, 3)),
    ((30, 20, 10, 9), (0, 2)),
    ((30, 20, 10, 9), (1, 3)),
]
case = pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)


def sum_errors(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """|value - the sum of its row| for each.

    Where long double is wider than double, its own error (2^-60 of the sum of |x|) is nothing
    beside a bound of 2^-46, and it is 20 times as fast as exact sums.
    """
    if np.finfo(np.longdouble).nmant < 60:
        errors = [reference.sum_error(r, float(v)) for r, v in zip(rows, values, strict=True)]
        return np.array(errors)
    exact = np.ascontiguousarray(rows).sum(1, dtype=np.longdouble)
    return np.abs(exact - values.astype(np.float64)).astype(np.float64)


def assert_sums(bounds: Any, y: np.ndarray, rows: np.ndarray, more: Any = 0.0) -> None:
    """Each y is the sum of its row within a sum's bounds; more: the error of the rows."""
    allowed = bounds.allowed(y.astype(np.float64), np.abs(rows).sum(1), y.dtype, more)
    assert (sum_errors(rows, y) <= allowed).all()


def assert_within_bounds(op: Any, y: Any, x: np.ndarray, axes: tuple[int, ...]) -> None:
    y = np.asarray(y).reshape(-1)
    rows = term_of(op)(reference.terms(x.astype(np.float64), axes))
    largest = float(ml_dtypes.finfo(y.dtype).max)
    over = np.isinf(y.astype(float))
    assert (np.abs(rows[over].sum(1)) > largest).all()
    assert_sums(op.bounds, y[~over], rows[~over])


def statistic_error(op: Any, y: Any, x: np.ndarray, axes: tuple[int, ...], **named: Any) -> float:
    """The largest error in units of the bound; infinite where y or the statistic is NaN alone."""
    case = Case(op, "call", x.shape, x.dtype, {"x": x, "axis": axes, **named})
    one = expected(case)[op.results[0]]
    y = np.reshape(y, np.shape(one.exact))
    with np.errstate(over="ignore"):  # what the dtype has no number for is infinite
        is_number = np.isfinite(np.asarray(one.exact).astype(x.dtype).astype(float))
    same = np.array_equal(np.isfinite(y.astype(float)), is_number)
    return one.error(y) if same else np.inf
