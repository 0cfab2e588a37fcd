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

from . import _cpu
from ._check_common import Check, Options, Report, add_rows
from ._check_reductions import LAYOUTS, around_1e4, dtypes, mixed, ulp
from ._moments import Moments
from ._op import MomentBounds, ops
from ._terminal import Progress
from ._threads import get_num_threads
from ._workloads import as_tensor, open_torch

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
_ONE = "one element"  # of which nothing is made but rows and columns

Results = tuple[NDArray[Any], NDArray[Any]]  # mean, and variance or m2


def _by(
    op: Any, x: NDArray[Any], axes: tuple[int, ...], options: Options
) -> Iterator[tuple[str, Results]]:
    """By whom, and what they give."""
    for isa in options.isas:
        _cpu.select_isa(isa)
        found = op(x, axes)
        yield isa, (found.mean, found.m2) if isinstance(found, Moments) else found
    if op.name == "moments":  # nobody else's merge
        return
    with np.errstate(all="ignore"):
        yield "numpy", (np.mean(x, axes), np.var(x, axes))
    if "torch" in options.peers:
        torch = open_torch(get_num_threads())
        tensor = as_tensor(torch, np.ascontiguousarray(x))  # it has no negative strides
        var, mean = torch.var_mean(tensor, axes, correction=0)
        yield "torch", (mean.double().numpy().astype(x.dtype), var.double().numpy().astype(x.dtype))


def _merged(x: NDArray[Any], axes: tuple[int, ...]) -> Results:
    """Of pieces along the first axis that is reduced."""
    parts = np.array_split(x, min(_PIECES, x.shape[axes[0]]), axes[0])
    m = Moments.merge_many([ops["moments"](part, axes) for part in parts])
    return m.mean, m.m2


def _worst(y: NDArray[Any], exact: Float64s, allowed: Float64s, info: Any) -> float:
    """The largest error in units of what is allowed and of the last rounding."""
    y = np.asarray(y)
    wide = y.astype(np.float64)
    largest = float(info.max) if y.dtype.itemsize < 8 else np.finfo(np.float64).max
    over = np.abs(exact) > largest
    if not np.array_equal(np.isinf(wide), over):
        return np.inf
    exact, wide = (np.where(over, 0, value) for value in (exact, wide))
    unit = ulp(exact, info) if y.dtype.itemsize < 8 else np.spacing(np.abs(exact))
    least = np.finfo(np.float64).smallest_subnormal
    return float(np.max(np.abs(wide - exact) / (allowed + unit / 2 + least), initial=0.0))


def _errors(
    found: Results, x: NDArray[Any], axes: tuple[int, ...], scale: float, bounds: Any, info: Any
) -> float:
    """Of both results, the worst; scale: m2 over the second one, 0: that is known to be 0."""
    oracle = importlib.import_module("fastact._reference")
    wide = x.astype(np.float64)
    mean, m2 = (np.asarray(part, np.float64) for part in oracle.moments(wide, axes))
    count = x.size // max(mean.size, 1)
    if scale == 0:  # the oracle, too, rounds the mean of equal values
        m2, scale = 0 * m2, 1.0
    with np.errstate(all="ignore"):
        far = np.nan_to_num(bounds.far * np.abs(mean) / np.sqrt(m2 / count), nan=0.0, posinf=0.0)
    share = (bounds.m2_double if x.dtype == np.float64 else bounds.m2) + far
    of_mean = bounds.mean * np.abs(wide).mean(axes)
    second = m2 / scale
    return max(
        _worst(found[0], mean, of_mean, info), _worst(found[1], second, share * second, info)
    )


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    size = max(_SIZE * (_MANY if options.exhaustive else 1) // options.stride, 1 << 13)
    report.say(f"  arrays of {size} elements")
    with Progress(op.name, len(kinds) * len(LAYOUTS)) as progress:
        for (dtype, info), (layout, arrange) in product(kinds, LAYOUTS.items()):
            found: dict[str, dict[str, float]] = {}  # by whom, then by data
            for data, make in _DATA.items():
                if data == "near 1e30" and dtype == np.float16:
                    continue
                arrays = arrange(partial(_draw, make, dtype), size)
                _judge(op, arrays, data, info, options, found)
            if layout in ("rows", "columns"):
                x = _draw(mixed, dtype, 1, 1000)
                one = (x.T, (1,)) if layout == "rows" else (x, (0,))
                _judge(op, [one], _ONE, info, options, found)
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
    info: Any,
    options: Options,
    found: dict[str, dict[str, float]],
) -> None:
    """Enter the largest errors over some arrays of one kind of data."""
    for x, axes in arrays:
        for by, error in _all_errors(op, x, axes, data in (_ONE, "constant"), info, options):
            of = found.setdefault(by, {})
            of[data] = max(of.get(data, 0.0), error)


def _all_errors(
    op: Any, x: NDArray[Any], axes: tuple[int, ...], equal: bool, info: Any, options: Options
) -> Iterator[tuple[str, float]]:
    """By whom, and the error; equal: the values whose variance is asked for are."""
    count = float(np.prod([x.shape[axis] for axis in axes]))
    bounds: MomentBounds = op.bounds
    judged: dict[bytes, float] = {}
    for by, results in _by(op, x, axes, options):
        bits = b"".join(np.asarray(part).tobytes() for part in results)
        if bits not in judged:
            scale = 0.0 if equal else 1.0 if op.name == "moments" else count
            judged[bits] = _errors(results, x, axes, scale, bounds, info)
        yield by, judged[bits]
    if op.name == "moments":
        error = _errors(_merged(x, axes), x, axes, 0.0 if equal else 1.0, bounds, info)
        yield "merged", error / bounds.merged


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
    knows=lambda op: isinstance(getattr(op, "bounds", None), MomentBounds),
)
