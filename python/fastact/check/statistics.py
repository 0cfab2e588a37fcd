"""The accuracy of means, variances and deviations, of all elements and of those that are not NaN.

The data are drawn as for the sums and moments; where NaN is skipped, a fifth of them is NaN, and so
are whole rows and the beginnings of others. NumPy's errors stand beside.
"""

from __future__ import annotations

import importlib
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..ops.bounds import StatisticBounds
from ..terminal import Progress
from .common import Check, Options, Report, add_rows
from .moments import Make
from .reductions import LAYOUTS, around_1e4, dtypes, mixed

_SIZE = 100_000  # elements of an array
_MANY = 16  # times as many

_DATA: dict[str, Make] = {"mixed": mixed, "around 1e4": around_1e4}


def with_gaps(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows with NaN: here and there, at the beginning of some, and alone in the first."""
    rows = rows.copy()
    rows[np.random.default_rng(1).random(rows.shape) < 0.2] = np.nan
    rows[1::3, : rows.shape[1] // 2] = np.nan
    if len(rows) > 2:
        rows[0] = np.nan
    return rows


def error(
    op: Any,
    y: Any,
    x: NDArray[Any],
    axes: tuple[int, ...],
    correction: float = 0,
    weights: Any = 1,
    where: Any = True,
) -> float:
    """The largest one in units of the bound; infinite where it is NaN alone."""
    oracle = importlib.import_module("fastact.check.reference")
    found = oracle.Statistics.of(x, axes, op.skips, weights, where)
    exact = found.statistic(op.of, correction)
    with np.errstate(all="ignore"):
        std = np.sqrt(found.m2 / found.count)
        magnitude = np.nan_to_num(found.magnitude)
        left = op.bounds.of_left(found.count, correction) if np.ndim(weights) else 0.0
        allowed = op.bounds.allowed(
            np.nan_to_num(exact), found.mean, std, found.count, magnitude, x.dtype, left
        )
    y = np.asarray(y).astype(np.float64).reshape(exact.shape)
    with np.errstate(over="ignore"):  # what the dtype has no number for is infinite
        is_number = np.isfinite(exact.astype(x.dtype).astype(np.float64))
    if not np.array_equal(np.isfinite(y), is_number):
        return np.inf
    off = np.where(is_number, np.abs(y - np.where(is_number, exact, 0)), 0)
    return float(np.max(off / np.where(off == 0, 1, allowed), initial=0.0))


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    size = max(_SIZE * (_MANY if options.exhaustive else 1) // options.stride, 1 << 13)
    report.say(f"  arrays of {size} elements")
    numpys = getattr(np, op.name)
    with Progress(op.name, len(kinds) * len(LAYOUTS)) as progress:
        for (dtype, _), (layout, arrange) in product(kinds, LAYOUTS.items()):
            found: dict[str, dict[str, float]] = {}  # by whom, then by data
            for data, make in _DATA.items():
                for x, axes in arrange(partial(_draw, op, make, dtype), size):
                    for isa in options.isas:
                        _cpu.select_isa(isa)
                        with np.errstate(all="ignore"), _quiet():
                            _enter(found, isa, data, error(op, op(x, axes), x, axes))
                    with np.errstate(all="ignore"), _quiet():
                        _enter(found, "numpy", data, error(op, numpys(x, axes), x, axes))
            add_rows(report, [op.name, dtype.name, layout], found, list(_DATA), options.isas)
            progress.advance(1)


def _quiet() -> Any:
    """Rows of NaN alone are warned of."""
    warnings = importlib.import_module("warnings")
    return warnings.catch_warnings(action="ignore", category=RuntimeWarning)


def _enter(found: dict[str, dict[str, float]], by: str, data: str, value: float) -> None:
    of = found.setdefault(by, {})
    of[data] = max(of.get(data, 0.0), value)


def _draw(op: Any, make: Make, dtype: np.dtype[Any], outputs: int, terms: int) -> NDArray[Any]:
    rows = make(np.random.default_rng(0), outputs, terms)
    if op.of == "sum":  # float16 holds no larger sum
        rows = rows / 16
    return (with_gaps(rows) if op.skips else rows).astype(dtype)


_LEGEND = """\
The worst error of a statistic in units of the stated bound, half a unit in the last place included:
1 is allowed. mixed: both signs over four orders of magnitude; around 1e4: of spread 1. Where NaN is
skipped, a fifth of the data are NaN, and so are all of the first row."""

CHECK = Check(_check, ["op", "dtype", "layout", "by", *_DATA], 4, _LEGEND, of=StatisticBounds)
