"""The accuracy of the norms: outputs and gradients in units of their stated bounds.

Every op is one of `_SUBJECTS` at a time: a way to be called, and what it normalises over.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _cpu, _shapes
from ._channel_norm import ChannelNorm
from ._check_common import Check, Options, Report
from ._check_reductions import dtypes, mixed
from ._norm_op import NormOp
from ._op import NormBounds
from ._terminal import Progress

_IDENTITY = "identity"
_ROWS = ((301, 77), (9, 2500), (5, 1))
_IMAGES = ((9, 12, 23, 5), (3, 6, 40, 41), (4, 6, 1, 1))
_GROUPS = 3

Float64s = NDArray[np.float64]
Make = Callable[..., Float64s]


# --- data -----------------------------------------------------------------------------------------


def _uniform_at_1e4(rng: np.random.Generator, *shape: int) -> Float64s:
    """Normalised by one pass in float32, 100 of these have a mean of -87."""
    return rng.random(shape) + 1e4


def _near_1e30(rng: np.random.Generator, *shape: int) -> Float64s:
    """Whose squares overflow float32."""
    return 1e30 * rng.normal(size=shape)


def _constant(rng: np.random.Generator, *shape: int) -> Float64s:
    """Of which nothing but the bias is left."""
    return np.full(shape, -7.7)


_DATA: dict[str, Make] = {
    "mixed": mixed,
    "1e4 + rand": _uniform_at_1e4,
    "near 1e30": _near_1e30,
    "constant": _constant,
}


# --- what is exact --------------------------------------------------------------------------------


class Bounded(NamedTuple):
    """Exact values, and how far from each a result may be before it is rounded."""

    y: tuple[Any, Any]
    dx: tuple[Any, Any]
    dweight_terms: tuple[Any, Any]
    dbias_terms: tuple[Any, Any]


def bounded(
    name: str,
    dtype: np.dtype[Any],
    arrays: tuple[Float64s, Float64s, Any, Any],
    statistics: tuple[Any, Any],
    axes: tuple[int, ...] | None,
    centred: bool,
    scaled: float = 6,
) -> Bounded:
    """What an op should give for dy, x, weight and bias in float64, and for these statistics.

    dtype : of the data. The parameters broadcast against x; axes are those of the statistics, None
    where these do not depend on x. scaled : of the op's `NormBounds`. An activation's slope, and
    its derivative's, are taken for at most 1.1 and 1.
    """
    oracle = importlib.import_module("fastact._reference")
    (dy, x, w, b), (mean, rstd) = arrays, statistics
    wide = dtype == np.float64
    u = 3 * 2.0**-53 if wide else 2.0**-24  # the oracle is float64 itself: its error counts too
    xhat = (x - mean) * rstd
    # The mean of float64 is off by the spread's roundings too, that of float32 by far less than u.
    of_mean = 2 + abs(mean * rstd) if wide else 2.0**-24 * abs(mean * rstd)
    y = oracle.norm(name, x, mean, rstd, w, b)
    of_y = 1.1 * u * (scaled * abs(xhat * w) + abs(xhat * w + b) + of_mean * abs(w))
    plain = name == _IDENTITY
    of_y = of_y if plain else of_y + 6 * u * abs(y)
    dx, dw, db = oracle.norm_gradients(name, dy, x, mean, rstd, w, b, axes=axes, centred=centred)
    # p = dy f'(z) has the derivative's error, and z's by way of its slope.
    of_p = u * (0 if plain else 1) * abs(dy) * (8 + 8 * abs(xhat * w))
    # Roundings of each product, and of sums of 8 terms in the type that is computed in.
    of_g = 16 * u * abs(db * w) + of_p * abs(w)
    of_dx = of_g
    if axes is not None:
        average = oracle.average
        of_scale = average(of_g * abs(xhat), axes) + 8 * u * average(abs(db * w * xhat), axes)
        of_dx = of_g + average(of_g + 0 * x, axes) + abs(xhat) * of_scale
    of_dx = abs(rstd) * of_dx
    return Bounded(
        (y, of_y),
        (dx, of_dx),
        (dw, 16 * u * abs(dw) + of_p * abs(xhat)),
        (db, 16 * u * abs(db) + of_p),
    )


# --- ways to call an op ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """Arrays of a case: data of one shape, and weight and bias, or weight alone.

    axes : of the statistics, of data that have been reshaped to `split`; None: they are given.
    along : the shape in which a parameter broadcasts against those.
    """

    x: NDArray[Any]
    dy: NDArray[Any]
    residual: NDArray[Any]
    weights: list[NDArray[Any]]
    split: tuple[int, ...]
    along: tuple[int, ...]
    axes: tuple[int, ...] | None


class Found(NamedTuple):
    """What an op gave: y, dx and the parameters' gradients; and for what x and which statistics.

    of_y : where these do not depend on x, what they were before they were rounded to be saved.
    """

    y: NDArray[Any]
    gradients: tuple[Any, ...]
    x: NDArray[Any]
    statistics: tuple[Any, ...]
    of_y: tuple[Any, ...] = ()


def _whole(op: NormOp, given: Given, name: str) -> Found:
    inputs = (given.x, given.residual)[: len(op._inputs)]
    groups = (_GROUPS,) if op.name == "group_norm" else ()
    y, saved = op.forward(*inputs, *groups, *given.weights, activation=name)
    gradients = op.backward(given.dy, *saved, activation=name)
    y = y[0] if isinstance(y, tuple) else y
    return Found(y, gradients, saved[0], saved[1 : 1 + len(op._statistics)])


def _training(op: Any, given: Given, name: str) -> Found:
    y, saved = op.forward(given.x, None, None, *given.weights, training=True, activation=name)
    gradients = op.backward(given.dy, *saved, training=True, activation=name)
    return Found(y, gradients, saved[0], saved[1:3])


def _halves(op: Any, given: Given, name: str) -> Found:
    y, saved = op.forward(given.x, None, None, *given.weights, training=True, activation=name)
    x, mean, rstd, w, b = saved
    sums = op.backward_reduce(given.dy, *saved, activation=name)
    count = x.size // x.shape[1]
    dx = op.backward_apply(given.dy, x, mean, rstd, w, *sums, count, b, activation=name)
    dbias, dweight = (total.reshape(-1) for total in sums)
    return Found(y, (dx, dweight, dbias), x, (mean, rstd))


def _running(x: NDArray[Any]) -> tuple[Float64s, Float64s]:
    """Mean and variance of a channel that are not quite those of x: of its first half."""
    half = x[: (len(x) + 1) // 2].astype(np.float64)
    axes = _shapes.others(x.shape, 1)
    return half.mean(axes), 1.0 + half.var(axes)


def _evaluation(op: Any, given: Given, name: str) -> Found:
    mean, var = _running(given.x)
    y, saved = op.forward(given.x, mean, var, *given.weights, activation=name)
    gradients = op.backward(given.dy, *saved, activation=name)
    return Found(y, gradients, saved[0], saved[1:3], (mean, 1 / np.sqrt(var + 1e-5)))


def _applied(op: Any, given: Given, name: str) -> Found:
    mean, var = _running(given.x)
    told: dict[str, Any] = {"axis": 1, "activation": name}
    wide = np.promote_types(given.x.dtype, np.float32)
    statistics = (mean.astype(wide), (1 / np.sqrt(var)).astype(wide))
    y, saved = op.forward(given.x, *statistics, *given.weights, **told)
    return Found(y, op.backward(given.dy, *saved, **told), saved[0], saved[1:3])


#: By label: the op, how it is called, whether the statistics are those of x.
_SUBJECTS: dict[str, tuple[str, Callable[..., Found], bool]] = {
    "batch_norm": ("batch_norm", _training, True),
    "batch_norm, halves": ("batch_norm", _halves, True),
    "batch_norm, running": ("batch_norm", _evaluation, False),
    "norm_apply": ("norm_apply", _applied, False),
}


def _subjects(op: Any) -> dict[str, tuple[Callable[..., Found], bool]]:
    if isinstance(op, NormOp):
        return {op.name: (_whole, True)}
    return {label: rest for label, (name, *rest) in _SUBJECTS.items() if name == op.name}  # type: ignore[misc]


def _cases(op: Any, dtype: np.dtype[Any], depends: bool, options: Options) -> Iterator[Given]:
    """Arrays of an op's cases, and how they are cut into units."""
    rng = np.random.default_rng(0)
    grouped, by_channel = op.name == "group_norm", isinstance(op, ChannelNorm)
    images = by_channel or "channel_axis" in op._own
    weights = 2 if by_channel else len(op._weights)
    for (data, make), shape in product(_DATA.items(), _IMAGES if images else _ROWS):
        if data == "near 1e30" and dtype == np.float16:
            continue
        count = shape[0] * (8 if options.exhaustive else 1)
        x, dy, residual = (
            draw(rng, count, *shape[1:]).astype(dtype) for draw in (make, mixed, mixed)
        )
        length = shape[1] if images else shape[-1]
        split = (count, _GROUPS, -1, *shape[2:]) if grouped else (count, *shape[1:])
        along = (1, _GROUPS, -1, *[1] * (len(shape) - 2)) if grouped else (1, length, 1, 1)
        within = tuple(range(2, len(split))) if images else (1,)
        axes = (0, *within) if by_channel else within
        yield Given(
            x,
            dy,
            residual,
            [(1 + 0.1 * rng.normal(size=length)).astype(dtype) for _ in range(weights)],
            split,
            along if images else (1, length),
            axes if depends else None,
        )


# --- errors ---------------------------------------------------------------------------------------


def _worst(actual: NDArray[Any], exact: Float64s, allowed: Float64s, info: Any) -> float:
    """The largest error in units of what is allowed and of the last rounding."""
    rounding = float(info.eps) / 2 * np.abs(exact) + float(info.smallest_subnormal)
    error = np.abs(actual.astype(np.float64).reshape(exact.shape) - exact)
    return float(np.max(error / (allowed + rounding)))


def _errors(op: Any, name: str, info: Any, given: Given, call: Callable[..., Found]) -> list[float]:
    """Of y, and of each gradient, in units of the bounds."""
    oracle = importlib.import_module("fastact._reference")
    found = call(op, given, name)
    axes, bounds = given.axes, op.bounds
    x, dy = (a.astype(np.float64).reshape(given.split) for a in (found.x, given.dy))
    w, b = (*(v.astype(np.float64).reshape(given.along) for v in given.weights), 0.0)[:2]
    centred = len(found.statistics) == 2
    over = _shapes.others(x.shape, 1) if axes is None else axes
    kept = tuple(1 if axis in over else n for axis, n in enumerate(x.shape))
    by = [s.astype(np.float64).reshape(kept) for s in found.statistics]
    statistics: tuple[Any, Any] = (by[0] if centred else 0.0, by[-1])
    true: Any = tuple(s.reshape(kept) for s in found.of_y) or statistics
    if axes is not None:
        true = oracle.statistics(x, axes, 1e-5 if centred else 1e-6, centred)
    dtype = found.y.dtype
    arrays = (dy, x, w, b)
    exact = bounded(name, dtype, arrays, true, axes, centred, bounds.scaled)
    back = bounded(name, dtype, arrays, statistics, axes, centred, bounds.scaled)
    errors = [_worst(found.y, *exact.y, info), _worst(found.gradients[0], *back.dx, info)]
    summed = tuple(a for a, n in enumerate(given.along) if n == 1)
    for gradient, terms in zip(found.gradients[1:], back[2:], strict=False):
        exact_sum, allowed = ((t + 0 * x).sum(summed).reshape(-1) for t in terms)
        errors.append(_worst(gradient, exact_sum, allowed, info))
    return errors


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    rounds = list(product(_subjects(op).items(), (_IDENTITY, "mish"), kinds))
    with Progress(op.name, len(rounds)) as progress:
        for (label, (call, depends)), name, (dtype, info) in rounds:
            cases = list(_cases(op, dtype, depends, options))
            alike: dict[tuple[float, ...], list[str]] = {}
            for isa in options.isas:
                _cpu.select_isa(isa)
                errors = [_errors(op, name, info, given, call) for given in cases]
                worst = tuple(max(column) for column in zip(*errors, strict=True))
                alike.setdefault(worst, []).append(isa)
            for worst, isas in alike.items():
                case = [label, name, dtype.name, " ".join(isas)]
                cells = [f"{error:.3g}" for error in worst]
                report.rows.append([*case, *cells, *[""] * (4 - len(cells))])
                if not max(worst) <= 1.0:
                    report.fail(f"{' '.join(case)}: {max(worst):.4g} times the bound")
            progress.advance(1)


_LEGEND = """\
y, dx, dweight, dbias: the worst error in units of the stated bound and of one rounding to the
dtype, over data of both signs and four orders of magnitude, 1e4 + rand, near 1e30 (where the dtype
has that) and constant, units of one element among them. The gradients are those for the statistics
that forward saved."""

CHECK = Check(
    _check,
    ["op", "activation", "dtype", "by", "y", "dx", "dweight", "dbias"],
    4,
    _LEGEND,
    knows=lambda op: isinstance(getattr(op, "bounds", None), NormBounds),
)
