"""The accuracy of the norms: outputs and gradients in units of their stated bounds.

Every op is called in the ways that its signature has (`_ways`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..measure import shapes
from ..ops.bounds import NormBounds
from .common import ErrorRow, Options, Report, check_by_cases
from .norm_rows import NormOracle, Rows, default, rows_of, traits
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
    """Arrays of a case: data of one shape, weight and bias, or weight alone, and their rows."""

    x: NDArray[Any]
    dy: NDArray[Any]
    residual: NDArray[Any]
    weights: list[NDArray[Any]]
    rows: Rows


class Found(NamedTuple):
    """What an op gave: y, dx and the parameters' gradients; and for what x and which statistics.

    of_y : where these do not depend on x, what they were before they were rounded to be saved;
    None where they do.
    """

    y: NDArray[Any]
    gradients: tuple[Any, ...]
    x: NDArray[Any]
    statistics: tuple[Any, ...]
    of_y: tuple[Any, ...] | None = None


def _whole(op: Any, given: Given, name: str) -> Found:
    kind = traits(op)
    inputs = (given.x, given.residual) if kind.adds else (given.x,)
    groups = (_GROUPS,) if kind.groups else ()
    y, saved = op.forward(*inputs, *groups, *given.weights, activation=name)
    gradients = op.backward(given.dy, *saved, activation=name)
    y = y[0] if kind.adds else y
    return Found(y, gradients, saved[0], saved[1 : 1 + len(kind.statistics)])


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
    """Mean and variance of a channel that are not quite x's: of its first half."""
    half = x[: (len(x) + 1) // 2].astype(np.float64)
    axes = shapes.others(x.shape, 1)
    return half.mean(axes), 1.0 + half.var(axes)


def _evaluation(op: Any, given: Given, name: str) -> Found:
    mean, var = _running(given.x)
    y, saved = op.forward(given.x, mean, var, *given.weights, activation=name)
    gradients = op.backward(given.dy, *saved, activation=name)
    return Found(y, gradients, saved[0], saved[1:3], (mean, 1 / np.sqrt(var + default(op, "eps"))))


def _applied(op: Any, given: Given, name: str) -> Found:
    mean, var = _running(given.x)
    options: dict[str, Any] = {traits(op).channels: 1, "activation": name}
    wide = np.promote_types(given.x.dtype, np.float32)
    statistics = (mean.astype(wide), (1 / np.sqrt(var)).astype(wide))
    y, saved = op.forward(given.x, *statistics, *given.weights, **options)
    gradients = op.backward(given.dy, *saved, **options)
    return Found(y, gradients, saved[0], saved[1:3], statistics)


def _ways(op: Any) -> dict[str, Callable[..., Found]]:
    """How an op is called, by the label of that where there are several."""
    kind = traits(op)
    if kind.given:
        return {"": _applied}
    if not kind.moves:
        return {"": _whole}
    ways = {"training": _training, "halves": _halves, "running": _evaluation}
    if "backward_reduce" not in op.entry_points:
        ways.pop("halves")
    return ways


def _cases(op: Any, dtype: np.dtype[Any], options: Options) -> Iterator[Given]:
    """Arrays of an op's cases, and how they are cut into rows."""
    rng = np.random.default_rng(0)
    kind = traits(op)
    named = ({kind.channels: 1} if kind.channels else {}) | {"num_groups": _GROUPS}
    for (data, make), shape in product(_DATA.items(), _IMAGES if kind.channels else _ROWS):
        if data == "near 1e30" and dtype == np.float16:
            continue
        count = shape[0] * (8 if options.exhaustive else 1)
        of_dy = make if make in (_one_huge, _biased) else mixed
        x, dy, residual = (
            draw(rng, count, *shape[1:]).astype(dtype) for draw in (make, of_dy, mixed)
        )
        rows = rows_of(op, x.shape, named)
        yield Given(
            x,
            dy,
            residual,
            [(1 + 0.1 * rng.normal(size=rows.parameter)).astype(dtype) for _ in kind.weights],
            rows,
        )


# --- errors ---------------------------------------------------------------------------------------


def _errors(op: Any, name: str, call: Callable[..., Found], given: Given) -> list[float]:
    """Of y, and of each gradient, in units of the bounds."""
    oracle = importlib.import_module("fastact.check.reference")
    found, rows = call(op, given, name), given.rows
    dtype, depends = found.y.dtype, found.of_y is None
    norm = NormOracle(op, rows, dtype, name, {"weight": found.gradients[1].dtype})
    weights = dict(zip(traits(op).weights, given.weights, strict=True))
    arrays = {"x": found.x, "dy": given.dy, **weights}
    saved: tuple[Any, Any] = (0.0, *found.statistics)[-2:]
    true: Any = found.of_y
    if depends:
        wide = found.x.astype(oracle.wide(dtype)).reshape(rows.split)
        true = oracle.statistics(wide, rows.axes, default(op, "eps"), rows.centred)
    of_y, back = (norm.of(arrays, s, depends=depends) for s in (true, saved))
    errors = [_of(found.y.reshape(rows.split), *norm.y(of_y))]
    judged = norm.gradients(back)
    for result, (exact, allowed) in zip(found.gradients, judged.values(), strict=False):
        errors.append(_of(result.reshape(exact.shape), exact, allowed))
    return errors


def _of(result: NDArray[Any], exact: Any, allowed: Any) -> float:
    excess: float = importlib.import_module("fastact.check.reference").excess(
        result, exact, allowed
    )
    return excess


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    activations = (_IDENTITY, "mish")
    for (label, call), name, (dtype, _) in product(_ways(op).items(), activations, dtypes(report)):
        yield ErrorRow(
            (label, name, dtype.name),
            partial(_cases, op, dtype, options),
            partial(_errors, op, name, call),
        )


_LEGEND = """\
y, dx, dweight, dbias: the worst error in units of the stated bound and the oracle's own, over data
of both signs and four orders of magnitude, 1e4 + rand, near 1e30 (where the dtype has that),
constant, nearly constant, with one huge element, and such whose roundings add up; rows of one
element among them. The gradients are those for the statistics that forward saved. Half a unit in
the last place is a part of the bound: 16-bit results use all of it."""

CHECK = check_by_cases(
    _rows,
    ["call", "activation", "dtype"],
    {"y": 1, "dx": 1, "dweight": 1, "dbias": 1},
    _LEGEND,
    of=NormBounds,
)
