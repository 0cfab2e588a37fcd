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

from .. import _cpu
from ..bench import shapes
from ..ops.bounds import Activation, NormBounds
from ..ops.channel_norm import ChannelNorm
from ..ops.norm import Norm
from ..ops.op import ops
from ..terminal import Progress
from .common import Check, Options, Report
from .reductions import dtypes, mixed

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


def _nearly_constant(rng: np.random.Generator, *shape: int) -> Float64s:
    """One element off by a unit in the last place of bfloat16."""
    x = np.full(shape, 128.0)
    x[..., -1] = 129.0
    return x


def _one_huge(rng: np.random.Generator, *shape: int) -> Float64s:
    """Beside which the sums of the others are rounded."""
    x = rng.normal(size=shape)
    x[..., 0] = 3e4
    return x


def _biased(rng: np.random.Generator, *shape: int) -> Float64s:
    """Whose sums round one way, as all terms are one number."""
    x = np.full(shape, rng.random() + 0.5)
    x[..., ::2] *= -1
    return x


_DATA: dict[str, Make] = {
    "nearly constant": _nearly_constant,
    "one huge": _one_huge,
    "biased": _biased,
    "mixed": mixed,
    "1e4 + rand": _uniform_at_1e4,
    "near 1e30": _near_1e30,
    "constant": _constant,
}


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


def _whole(op: Norm[..., Any], given: Given, name: str) -> Found:
    inputs = (given.x, given.residual)[: len(op.results)]
    groups = (_GROUPS,) if op.name == "group_norm" else ()
    y, saved = op.forward(*inputs, *groups, *given.weights, activation=name)
    gradients = op.backward(given.dy, *saved, activation=name)
    y = y[0] if isinstance(y, tuple) else y
    return Found(y, gradients, saved[0], saved[1 : 1 + len(op.statistics)])


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
    axes = shapes.others(x.shape, 1)
    return half.mean(axes), 1.0 + half.var(axes)


def _evaluation(op: Any, given: Given, name: str) -> Found:
    mean, var = _running(given.x)
    y, saved = op.forward(given.x, mean, var, *given.weights, activation=name)
    gradients = op.backward(given.dy, *saved, activation=name)
    return Found(y, gradients, saved[0], saved[1:3], (mean, 1 / np.sqrt(var + 1e-5)))


def _applied(op: Any, given: Given, name: str) -> Found:
    mean, var = _running(given.x)
    options: dict[str, Any] = {"axis": 1, "activation": name}
    wide = np.promote_types(given.x.dtype, np.float32)
    statistics = (mean.astype(wide), (1 / np.sqrt(var)).astype(wide))
    y, saved = op.forward(given.x, *statistics, *given.weights, **options)
    return Found(y, op.backward(given.dy, *saved, **options), saved[0], saved[1:3])


#: By label: the op, how it is called, whether the statistics are those of x.
_SUBJECTS: dict[str, tuple[str, Callable[..., Found], bool]] = {
    "batch_norm": ("batch_norm", _training, True),
    "batch_norm, halves": ("batch_norm", _halves, True),
    "batch_norm, running": ("batch_norm", _evaluation, False),
    "norm_apply": ("norm_apply", _applied, False),
}


def _subjects(op: Any) -> dict[str, tuple[Callable[..., Found], bool]]:
    if isinstance(op, Norm):
        return {op.name: (_whole, True)}
    return {label: rest for label, (name, *rest) in _SUBJECTS.items() if name == op.name}  # type: ignore[misc]


def _cases(op: Any, dtype: np.dtype[Any], depends: bool, options: Options) -> Iterator[Given]:
    """Arrays of an op's cases, and how they are cut into rows."""
    rng = np.random.default_rng(0)
    grouped, by_channel = op.name == "group_norm", isinstance(op, ChannelNorm)
    images = by_channel or "channel_axis" in op.entry_points["call"].defaults
    weights = 2 if by_channel else len(op.weights)
    for (data, make), shape in product(_DATA.items(), _IMAGES if images else _ROWS):
        if data == "near 1e30" and dtype == np.float16:
            continue
        count = shape[0] * (8 if options.exhaustive else 1)
        of_dy = make if make in (_one_huge, _biased) else mixed
        x, dy, residual = (
            draw(rng, count, *shape[1:]).astype(dtype) for draw in (make, of_dy, mixed)
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


def _errors(op: Any, name: str, given: Given, call: Callable[..., Found]) -> list[float]:
    """Of y, and of each gradient, in units of the bounds."""
    oracle = importlib.import_module("fastact.check.reference")
    found = call(op, given, name)
    axes, dtype = given.axes, found.y.dtype
    wide = oracle.wide(dtype)
    x, dy = (a.astype(wide).reshape(given.split) for a in (found.x, given.dy))
    w, b = (*(v.reshape(given.along) for v in given.weights), np.zeros(()))[:2]
    centred = len(found.statistics) == 2
    over = shapes.others(x.shape, 1) if axes is None else axes
    kept = tuple(1 if axis in over else n for axis, n in enumerate(x.shape))
    by = [s.astype(wide).reshape(kept) for s in found.statistics]
    saved: tuple[Any, Any] = (by[0] if centred else 0.0, by[-1])
    true: Any = tuple(s.reshape(kept) for s in found.of_y) or saved
    if axes is not None:
        true = oracle.statistics(x, axes, 1e-5 if centred else 1e-6, centred)
    how = {"axes": axes, "centred": centred}
    of_y, back = (oracle.norm_of(name, dtype, dy, x, s, w, b, **how) for s in (true, saved))
    own = None if name == _IDENTITY else ops[name].bounds
    act = Activation(own, of_y.value, of_y.slope)
    errors = [_of(found.y.reshape(x.shape), *oracle.judged_y(of_y, op.bounds, act, dtype))]
    summed = tuple(a for a, n in enumerate(given.along) if n == 1)

    def total(terms: Any) -> Any:
        return (terms + 0 * x).sum(summed).reshape(-1)

    to = found.gradients[1].dtype
    judged = oracle.judged_gradients(back, op.bounds, act, dtype, to, total)
    for result, (exact, allowed) in zip(found.gradients, judged.values(), strict=False):
        errors.append(_of(result.reshape(exact.shape), exact, allowed))
    return errors


def _of(result: NDArray[Any], exact: Any, allowed: Any) -> float:
    excess: float = importlib.import_module("fastact.check.reference").excess(
        result, exact, allowed
    )
    return excess


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    rounds = list(product(_subjects(op).items(), (_IDENTITY, "mish"), kinds))
    with Progress(op.name, len(rounds)) as progress:
        for (label, (call, depends)), name, (dtype, _) in rounds:
            cases = list(_cases(op, dtype, depends, options))
            alike: dict[tuple[float, ...], list[str]] = {}
            for isa in options.isas:
                _cpu.select_isa(isa)
                errors = [_errors(op, name, given, call) for given in cases]
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
y, dx, dweight, dbias: the worst error in units of the stated bound and the oracle's own, over data
of both signs and four orders of magnitude, 1e4 + rand, near 1e30 (where the dtype has that),
constant, nearly constant, with one huge element, and such whose roundings add up; rows of one
element among them. The gradients are those for the statistics that forward saved. Half a unit in
the last place is a part of the bound: 16-bit results use all of it."""

CHECK = Check(
    _check,
    ["op", "activation", "dtype", "by", "y", "dx", "dweight", "dbias"],
    4,
    _LEGEND,
    knows=lambda op: isinstance(getattr(op, "bounds", None), NormBounds),
)
