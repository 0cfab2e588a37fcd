"""The accuracy of sums, moments and statistics, in units of the bounds that the ops state.

The data are those on which the formulas of one pass and narrow accumulators fail; NumPy's and
torch's errors on them stand beside: they show what it takes to hold the bounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import dropwhile, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure.cases import Case
from ..measure.peers import SUMS, as_tensor, open_torch
from ..measure.sum_axes import is_sum, is_to_shape, reduces
from ..ops.bounds import MomentBounds, SumBounds, largest
from ..ops.engine.op import arrays_of
from ..ops.moments import Moments
from ..runtime.threads import get_num_threads
from ..terminal import Progress
from .common import (
    Check,
    Float64s,
    Options,
    Report,
    add_rows,
    dtypes,
    mixed,
    near_1e30,
    uniform_at_1e4,
)
from .expected import expected
from .expected.reductions import term_of

Make = Callable[[np.random.Generator, int, int], Float64s]
Draw = Callable[[int, int], NDArray[Any]]
Summed = tuple[NDArray[Any], tuple[int, ...]]  # an array, and the axes to sum over

_TERMS = 1 << 17  # of an array: many blocks of whatever is added up at once
_MANY_TERMS = 1 << 22
_FEWEST_TERMS = 1 << 13
_ODD = 37  # outputs that fill no vector
_PIECES = 7  # that merge


# --- data: `outputs` rows of `terms` each ---------------------------------------------------------


def _around_1e4(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Far from 0 for their spread, as raw measurements are."""
    return rng.normal(1e4, 1.0, (outputs, terms))


def _constant(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Repeat one number: the variance is 0 to the last bit."""
    return np.full((outputs, terms), 0.1)


def _cancelling(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Pairs of opposites, and what remains of them all: 1."""
    half = 1e3 * mixed(rng, outputs, terms // 2)
    rest = np.zeros((outputs, terms - 2 * half.shape[1]))
    values = np.concatenate([half, -half, rest], axis=1)
    values[:, -1] += 1.0
    return rng.permuted(values, axis=1)


def _ones(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Give ones, which a 16-bit accumulator soon stops counting."""
    return np.ones((outputs, terms))


_ANY: dict[str, Make] = {"mixed": mixed, "around 1e4": _around_1e4}
_OF_SUMS: dict[str, Make] = {"cancelling": _cancelling, "ones": _ones}
_OF_MOMENTS: dict[str, Make] = {
    "1e4 + rand": uniform_at_1e4, "near 1e30": near_1e30, "constant": _constant,
}  # fmt: skip
_ONE = "one element"  # an array of one element can only be a row or a column
_COLUMNS = [*_ANY, *_OF_SUMS, *_OF_MOMENTS, _ONE]


def _data(op: Any, dtype: np.dtype[Any]) -> dict[str, Make]:
    more: dict[str, Make] = {}
    if is_sum(op):
        has_both_signs = float(term_of(op)(np.float64(-1.0))) < 0
        more = {"cancelling": _cancelling} if has_both_signs else {}
        more |= {"ones": _ones} if dtype.itemsize == 2 else {}
    elif len(op.results) > 1:
        more = {k: m for k, m in _OF_MOMENTS.items() if k != "near 1e30" or dtype != np.float16}
    return {**_ANY, **more}


def _scaled(rows: Float64s, term: Callable[[Any], Any], dtype: np.dtype[Any]) -> Float64s:
    """Return the rows, by a power of two so small that no sum of their terms leaves the dtype."""
    while np.abs(term(rows)).sum(axis=1).max(initial=0.0) > largest(dtype) / 4:
        rows = rows / 2
    return rows


def with_gaps(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows with NaN: here and there, at the beginning of some, and alone in the first."""
    rows = rows.copy()
    rows[np.random.default_rng(1).random(rows.shape) < 0.2] = np.nan
    rows[1::3, : rows.shape[1] // 2] = np.nan
    if len(rows) > 2:
        rows[0] = np.nan
    return rows


def _draw(op: Any, make: Make, dtype: np.dtype[Any], outputs: int, terms: int) -> NDArray[Any]:
    rows = make(np.random.default_rng(0), outputs, terms)
    if is_sum(op) or getattr(op, "of", "") == "sum":
        rows = _scaled(rows, term_of(op) if is_sum(op) else np.abs, dtype)
    return (with_gaps(rows) if getattr(op, "skips", False) else rows).astype(dtype)


# --- layouts --------------------------------------------------------------------------------------


def _strided(rows: NDArray[Any]) -> NDArray[Any]:
    """Lay the numbers out backwards, in every second place of their memory."""
    view = np.zeros((rows.shape[0], 2 * rows.shape[1]), rows.dtype)[::-1, ::2]
    view[...] = rows
    return view


#: Layouts that ops walk in different ways: arrays of about n elements, and the axes to sum over.
_LAYOUTS: dict[str, Callable[[Draw, int], list[Summed]]] = {
    "rows": lambda draw, n: [(draw(_ODD, n // _ODD), (1,))],
    "columns": lambda draw, n: [(draw(129, n // 129).T.copy(), (0,))],
    "whole": lambda draw, n: [(draw(1, n // 64 * 64).reshape(-1, 64), (0, 1))],
    "narrow": lambda draw, n: [
        (draw(3, n // 3).T.copy(), (0,)),
        (draw(min(n // 3, 4099), 3), (1,)),
    ],
    "strided": lambda draw, n: [(_strided(draw(_ODD, n // _ODD)), (1,))],
}


# --- ours and the peers' --------------------------------------------------------------------------


def _options_of(op: Any, x: NDArray[Any], axes: tuple[int, ...]) -> dict[str, Any] | None:
    """Return the options of a call that sums over these axes; None where an op has none."""
    if reduces(op):
        return {"axis": axes}
    if len(axes) == x.ndim:
        return None
    if is_to_shape(op):
        kept = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        return {"shape": tuple(dropwhile(lambda n: n == 1, kept))}
    return {"axis": 1 - axes[0]}


def _by_peers(
    op: Any, x: NDArray[Any], axes: tuple[int, ...], options: Options
) -> Iterator[tuple[str, Any]]:
    """By whom, and the same by their own functions, in x's dtype, where they have one."""
    function = SUMS.get("sum" if op.family == "bias" else op.name)
    if function is None:
        return
    yield "numpy", function(x, axes, np)
    if "torch" in options.peers:
        torch = open_torch(get_num_threads())
        tensor = as_tensor(torch, np.ascontiguousarray(x))  # it has no negative strides
        try:
            found = arrays_of(function(tensor, axes, torch))
        except AttributeError:
            return  # it has no such function
        yield "torch", tuple(part.double().numpy().astype(x.dtype) for part in found)


def _errors(
    op: Any, summed: Summed, is_equal: bool, options: Options
) -> Iterator[tuple[str, float]]:
    """By whom, and the worst error; is_equal: all terms are, whose variance is exactly 0."""
    x, axes = summed
    named = _options_of(op, x, axes)
    if named is None:
        return
    case = Case(op, "call", x.shape, x.dtype, {op.entry_points["call"].arrays[0]: x, **named})

    def worst(made: Any, case: Case = case) -> float:
        exact = expected(case)
        if is_equal:  # the oracle, too, rounds the mean of equal values
            second = exact[op.results[1]]
            exact[op.results[1]] = replace(
                second, exact=0 * second.exact, allowed=0.0, rounds=False
            )
        parts = zip(op.results, arrays_of(made), strict=True)
        shaped = ((exact[name], np.asarray(part)) for name, part in parts)
        return max(one.error(part.reshape(np.shape(one.exact))) for one, part in shaped)

    for isa in options.isas:
        _cpu.select_isa(isa)
        yield isa, worst(op(x, **named))
    if "m2" in op.results:  # nobody else's moments merge
        parts = np.array_split(x, min(_PIECES, x.shape[axes[0]]), axes[0])
        merged = Moments.merge_many([op(part, **named) for part in parts])
        yield "merged", worst(merged, case.at("merge"))
        return
    for by, made in _by_peers(op, x, axes, options):
        yield by, worst(made)


def _check(op: Any, options: Options, report: Report) -> None:
    size = max((_MANY_TERMS if options.exhaustive else _TERMS) // options.stride, _FEWEST_TERMS)
    report.say(f"  arrays of {size} elements")
    kinds = dtypes(report)
    quiet = warnings.catch_warnings(action="ignore", category=RuntimeWarning)  # rows of NaN alone
    with Progress(op.name, len(kinds) * len(_LAYOUTS)) as progress, quiet:
        for dtype, (layout, arrange) in product(kinds, _LAYOUTS.items()):
            found: dict[str, dict[str, float]] = {}  # by whom, then by data
            for data, arrays in _arrays(op, dtype, layout, arrange, size):
                for summed in arrays:
                    for by, error in _errors(op, summed, data in ("constant", _ONE), options):
                        of = found.setdefault(by, {})
                        of[data] = max(of.get(data, 0.0), error)
            add_rows(report, [op.name, dtype.name, layout], found, _COLUMNS, options.isas, "merged")
            progress.advance(1)


def _arrays(
    op: Any,
    dtype: np.dtype[Any],
    layout: str,
    arrange: Callable[[Draw, int], list[Summed]],
    size: int,
) -> Iterator[tuple[str, list[Summed]]]:
    """Return the kinds of data, each with its arrays."""
    for data, make in _data(op, dtype).items():
        yield data, arrange(partial(_draw, op, make, dtype), size)
    if len(op.results) > 1 and layout in ("rows", "columns"):
        x = _draw(op, mixed, dtype, 1, 1000)
        yield _ONE, [(x.T, (1,)) if layout == "rows" else (x, (0,))]


_LEGEND = """\
The worst error of a sum, of a statistic, or of a mean and a variance (of `moments`: of m2) in units
of the stated bound, half a unit in the last place included: 1 is allowed. merged: Moments of
pieces, in units of theirs. mixed: both signs over four orders of magnitude; around 1e4: of spread
1; 1e4 + rand: uniform; near 1e30: where squares, and the variance, overflow float32; constant, one
element: the variance is exactly 0; cancelling: pairs of opposites and a 1; ones: for 16-bit types,
all terms are 1. Sums are scaled by a power of two where they would overflow. Where NaN is skipped,
a fifth of the data are NaN, and so are all of the first row."""

CHECK = Check(
    _check,
    ["op", "dtype", "layout", "by", *_COLUMNS],
    4,
    _LEGEND,
    of=(SumBounds, MomentBounds),
)
