"""The accuracy of sums: against exact ones, in units of the bound that the op states.

NumPy's and torch's errors on the same data stand beside: they show what it takes to hold it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure import shapes
from ..measure.peers import as_tensor, open_torch
from ..measure.sum_axes import is_over_any, is_to_shape
from ..ops.bounds import SumBounds
from ..runtime.threads import get_num_threads
from ..terminal import Progress
from .common import Check, Options, Report, add_rows
from .expected.reductions import term_of

Float64s = NDArray[np.float64]
Make = Callable[[np.random.Generator, int, int], Float64s]
Draw = Callable[[int, int], NDArray[Any]]

_TERMS = 1 << 17  # of an array: many blocks of whatever is added up at once
_MANY_TERMS = 1 << 22
_FEWEST_TERMS = 1 << 13
_ODD = 37  # outputs that fill no vector


# --- data: `outputs` rows of `terms` each ---------------------------------------------------------


def mixed(rng: np.random.Generator, *shape: int) -> Float64s:
    """Both signs, four orders of magnitude."""
    values: Float64s = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1, shape)
    return values


def around_1e4(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Far from 0 for their spread, as raw measurements are."""
    return rng.normal(1e4, 1.0, (outputs, terms))


def _cancelling(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Pairs of opposites, and what remains of them all: 1."""
    half = 1e3 * mixed(rng, outputs, terms // 2)
    rest = np.zeros((outputs, terms - 2 * half.shape[1]))
    values = np.concatenate([half, -half, rest], axis=1)
    values[:, -1] += 1.0
    return rng.permuted(values, axis=1)


def _ones(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """What a 16-bit accumulator stops counting soon."""
    return np.ones((outputs, terms))


_DATA: dict[str, Make] = {
    "mixed": mixed,
    "around 1e4": around_1e4,
    "cancelling": _cancelling,
    "ones": _ones,
}


# --- layouts --------------------------------------------------------------------------------------


def _strided(rows: NDArray[Any]) -> NDArray[Any]:
    """The same numbers, backwards and every second of their memory."""
    view = np.zeros((rows.shape[0], 2 * rows.shape[1]), rows.dtype)[::-1, ::2]
    view[...] = rows
    return view


#: What an op walks in different ways: arrays of about n elements, and the axes to sum over.
LAYOUTS: dict[str, Callable[[Draw, int], list[tuple[NDArray[Any], tuple[int, ...]]]]] = {
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


def _ours(op: Any, x: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any] | None:
    """The op's sums; None where it has none over these axes."""
    if is_over_any(op):
        return np.asarray(op(x, axes))
    if len(axes) == x.ndim:
        return None
    if is_to_shape(op):
        return np.asarray(op(x, shapes.broadcast_from(x.shape, axes)))
    return np.asarray(op(x, axis=1 - axes[0]))


def _results(
    op: Any, x: NDArray[Any], axes: tuple[int, ...], options: Options
) -> Iterator[tuple[str, NDArray[Any]]]:
    """By whom, and the sums in C order."""
    for isa in options.isas:
        _cpu.select_isa(isa)
        sums = _ours(op, x, axes)
        if sums is None:
            return
        yield isa, sums.reshape(-1)
    term = term_of(op)
    with np.errstate(all="ignore"):
        yield "numpy", np.asarray(np.sum(term(x), axis=axes)).reshape(-1)
    if "torch" in options.peers:
        torch = open_torch(get_num_threads())
        tensor = as_tensor(torch, np.ascontiguousarray(x))  # it has no negative strides
        total = torch.sum(term(tensor), dim=axes)
        wide = total.reshape(-1).double().numpy()
        yield "torch", wide.astype(x.dtype)


# --- errors ---------------------------------------------------------------------------------------


def worst(y: NDArray[Any], terms: Float64s, bounds: SumBounds) -> float:
    """The largest error in units of the bound; infinite where y is not finite."""
    oracle = importlib.import_module("fastact.check.reference")
    sums = y.astype(np.float64)
    if not np.isfinite(sums).all():
        return np.inf
    pairs = zip(terms.tolist(), sums.tolist(), strict=True)
    errors = np.array([oracle.sum_error(row, value) for row, value in pairs])
    allowed = bounds.allowed(sums, np.abs(terms).sum(axis=1), y.dtype)
    return float(np.max(errors / allowed, initial=0.0))


def _scaled(rows: Float64s, term: Callable[[Float64s], Float64s], info: Any) -> Float64s:
    """The rows, by a power of two so small that no sum of their terms leaves the dtype."""
    largest = np.abs(term(rows)).sum(axis=1).max(initial=0.0)
    while largest > float(info.max) / 4:
        rows = rows / 2
        largest = np.abs(term(rows)).sum(axis=1).max()
    return rows


def dtypes(report: Report) -> list[tuple[np.dtype[Any], Any]]:
    """The dtypes with their properties."""
    known: list[tuple[Any, Any]] = [(d, np.finfo(d)) for d in (np.float64, np.float32, np.float16)]
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
        known.append((ml_dtypes.bfloat16, ml_dtypes.finfo(ml_dtypes.bfloat16)))
    except ImportError:
        report.say("  bfloat16: left out, ml_dtypes is not installed")
    return [(np.dtype(dtype), info) for dtype, info in known]


def _largest_by(
    op: Any, arrays: Sequence[tuple[NDArray[Any], tuple[int, ...]]], options: Options
) -> dict[str, float]:
    """The largest error over some arrays, by whom; results of the same bits are judged once."""
    oracle, term = importlib.import_module("fastact.check.reference"), term_of(op)
    largest: dict[str, float] = {}
    for x, axes in arrays:
        # A float64 square is rounded here, too: by a hundredth of the bound.
        terms = term(oracle.terms(x.astype(np.float64), axes))
        judged: dict[bytes, float] = {}
        for by, y in _results(op, x, axes, options):
            bits = y.tobytes()
            if bits not in judged:
                judged[bits] = worst(y, terms, op.bounds)
            largest[by] = max(largest.get(by, 0.0), judged[bits])
    return largest


def _draw(
    make: Make,
    term: Callable[[Float64s], Float64s],
    dtype: np.dtype[Any],
    info: Any,
    outputs: int,
    terms: int,
) -> NDArray[Any]:
    return _scaled(make(np.random.default_rng(0), outputs, terms), term, info).astype(dtype)


def _check(op: Any, options: Options, report: Report) -> None:
    term = term_of(op)
    one_sign = float(term(np.float64(-1.0))) > 0
    size = max((_MANY_TERMS if options.exhaustive else _TERMS) // options.stride, _FEWEST_TERMS)
    kinds = dtypes(report)
    report.say(
        f"  arrays of {size} elements; bound: {op.bounds.ulp:g} ULP of the sum and "
        f"{op.bounds.absolute:.3g} of the sum of magnitudes, 16 bits: "
        f"{op.bounds.share(np.float16):.3g}"
    )
    with Progress(op.name, len(kinds) * len(LAYOUTS)) as progress:
        for (dtype, info), (layout, arrange) in product(kinds, LAYOUTS.items()):
            found: dict[str, dict[str, float]] = {}  # by whom, then by data
            for name, make in _DATA.items():
                if name == "cancelling" and one_sign:
                    continue
                if name == "ones" and dtype.itemsize > 2:
                    continue
                arrays = arrange(partial(_draw, make, term, dtype, info), size)
                for by, error in _largest_by(op, arrays, options).items():
                    found.setdefault(by, {})[name] = error
            add_rows(report, [op.name, dtype.name, layout], found, list(_DATA), options.isas)
            progress.advance(1)


_LEGEND = """\
The worst error of a sum in units of the stated bound: 1 is allowed. It is half a unit in the last
place of the result, and a share of the sum of the magnitudes that were added: where they cancel,
that much is lost. mixed: both signs over four orders of magnitude; around 1e4: of spread 1;
cancelling: pairs of opposites and a 1; ones: for 16-bit types, all terms are 1. All of them are
scaled by a power of two where a sum would overflow. math.fsum gives the exact sums."""

CHECK = Check(
    _check,
    ["op", "dtype", "layout", "by", *_DATA],
    4,
    _LEGEND,
    of=SumBounds,
)
