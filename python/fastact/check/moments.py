"""The accuracy of mean, variance and moments that merge, in units of the bounds that the ops state.

The data are those that the formulas of one pass fail on; NumPy's and torch's errors stand beside.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure.peers import as_tensor, open_torch
from ..ops.bounds import MomentBounds
from ..ops.moments import Moments
from ..runtime.threads import get_num_threads
from ..terminal import Progress
from .common import Check, Options, Report, add_rows
from .reductions import LAYOUTS, around_1e4, dtypes, mixed

Float64s = NDArray[np.float64]
Make = Callable[[np.random.Generator, int, int], Float64s]

_SIZE = 200_000  # elements of an array
_MANY = 16  # times as many
_PIECES = 7  # that merge


def _uniform_at_1e4(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Normalised by one pass in float32, 100 of these have a mean of -87."""
    return rng.random((outputs, terms)) + 1e4


def _near_1e30(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Whose squares overflow float32."""
    return 1e30 * rng.normal(size=(outputs, terms))


def _constant(rng: np.random.Generator, outputs: int, terms: int) -> Float64s:
    """Whose variance is 0 to the last bit."""
    return np.full((outputs, terms), 0.1)


_DATA: dict[str, Make] = {
    "mixed": mixed,
    "around 1e4": around_1e4,
    "1e4 + rand": _uniform_at_1e4,
    "near 1e30": _near_1e30,
    "constant": _constant,
}
_ONE = "one element"  # an array of one element can only be a row or a column

Results = tuple[NDArray[Any], NDArray[Any]]  # mean, and variance or m2


def _by(
    op: Any, x: NDArray[Any], axes: tuple[int, ...], options: Options
) -> Iterator[tuple[str, Results]]:
    """By whom, and what they give."""
    for isa in options.isas:
        _cpu.select_isa(isa)
        found = op(x, axes)
        yield isa, (found.mean, found.m2) if isinstance(found, Moments) else found
    if _merges(op):  # nobody else's do
        return
    with np.errstate(all="ignore"):
        yield "numpy", (np.mean(x, axes), np.var(x, axes))
    if "torch" in options.peers:
        torch = open_torch(get_num_threads())
        tensor = as_tensor(torch, np.ascontiguousarray(x))  # it has no negative strides
        var, mean = torch.var_mean(tensor, axes, correction=0)
        yield "torch", (mean.double().numpy().astype(x.dtype), var.double().numpy().astype(x.dtype))


def _merges(op: Any) -> bool:
    """Whether an op gives `Moments`."""
    return "m2" in op.results


def _merged(op: Any, x: NDArray[Any], axes: tuple[int, ...]) -> Results:
    """Of pieces along the first axis that is reduced."""
    parts = np.array_split(x, min(_PIECES, x.shape[axes[0]]), axes[0])
    m = Moments.merge_many([op(part, axes) for part in parts])
    return m.mean, m.m2


def _errors(
    found: Results, x: NDArray[Any], axes: tuple[int, ...], scale: float, bounds: Any
) -> float:
    """Of both results, the worst; scale: m2 over the second one, 0: that is known to be 0."""
    oracle = importlib.import_module("fastact.check.reference")
    wide = x.astype(np.longdouble)
    mean, m2 = oracle.moments(wide, axes)
    count = x.size // max(mean.size, 1)
    if scale == 0:  # the oracle, too, rounds the mean of equal values
        m2, scale = 0 * m2, 1.0
    to = np.asarray(found[0]).dtype
    of_mean = bounds.allowed_mean(mean, np.abs(wide).mean(axes), to)
    second, std = m2 / scale, np.sqrt(m2 / count)
    of_second = bounds.allowed_second(second, mean, std, x.dtype, to)
    pairs = ((found[0], mean, of_mean), (found[1], second, of_second))
    return max(
        float(oracle.excess(y, exact, (1 + oracle.BUDGET) * allowed)) for y, exact, allowed in pairs
    )


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    size = max(_SIZE * (_MANY if options.exhaustive else 1) // options.stride, 1 << 13)
    report.say(f"  arrays of {size} elements")
    with Progress(op.name, len(kinds) * len(LAYOUTS)) as progress:
        for (dtype, _), (layout, arrange) in product(kinds, LAYOUTS.items()):
            found: dict[str, dict[str, float]] = {}  # by whom, then by data
            for data, make in _DATA.items():
                if data == "near 1e30" and dtype == np.float16:
                    continue
                arrays = arrange(partial(_draw, make, dtype), size)
                _judge(op, arrays, data, options, found)
            if layout in ("rows", "columns"):
                x = _draw(mixed, dtype, 1, 1000)
                one = (x.T, (1,)) if layout == "rows" else (x, (0,))
                _judge(op, [one], _ONE, options, found)
            add_rows(
                report, [op.name, dtype.name, layout], found, [*_DATA, _ONE], options.isas, "merged"
            )
            progress.advance(1)


def _draw(make: Make, dtype: np.dtype[Any], outputs: int, terms: int) -> NDArray[Any]:
    return make(np.random.default_rng(0), outputs, terms).astype(dtype)


def _judge(
    op: Any,
    arrays: list[tuple[NDArray[Any], tuple[int, ...]]],
    data: str,
    options: Options,
    found: dict[str, dict[str, float]],
) -> None:
    """Enter the largest errors over some arrays of one kind of data."""
    for x, axes in arrays:
        for by, error in _all_errors(op, x, axes, data in (_ONE, "constant"), options):
            of = found.setdefault(by, {})
            of[data] = max(of.get(data, 0.0), error)


def _all_errors(
    op: Any, x: NDArray[Any], axes: tuple[int, ...], equal: bool, options: Options
) -> Iterator[tuple[str, float]]:
    """By whom, and the error; equal: the values whose variance is asked for are."""
    count = float(np.prod([x.shape[axis] for axis in axes]))
    bounds: MomentBounds = op.bounds
    judged: dict[bytes, float] = {}
    for by, results in _by(op, x, axes, options):
        bits = b"".join(np.asarray(part).tobytes() for part in results)
        if bits not in judged:
            scale = 0.0 if equal else 1.0 if _merges(op) else count
            judged[bits] = _errors(results, x, axes, scale, bounds)
        yield by, judged[bits]
    if _merges(op):
        merged, scale = _merged(op, x, axes), 0.0 if equal else 1.0
        yield "merged", _errors(merged, x, axes, scale, bounds.of_merged)


_LEGEND = """\
The worst error of the mean and of the variance (of `moments`: of m2) in units of the stated bound,
half a unit in the last place included: 1 is allowed. merged: Moments of pieces, in units of theirs.
mixed: both signs over four orders of magnitude; around 1e4: of spread 1; 1e4 + rand: uniform; near
1e30: where squares, and the variance, overflow float32; constant, one element: the variance is
exactly 0."""

CHECK = Check(
    _check,
    ["op", "dtype", "layout", "by", *_DATA, _ONE],
    4,
    _LEGEND,
    of=MomentBounds,
)
