"""The accuracy of the norms: outputs and gradients in units of their stated bounds.

Every op is called in the ways that its signature has (`_ways`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..measure.cases import RESULTS
from ..measure.norm_rows import rows_of, traits
from ..ops.bounds import NormBounds, NormRotaryBounds
from ..ops.engine.axes import others
from ..ops.engine.fused import IDENTITY
from .common import (
    ErrorRow,
    Float64s,
    Options,
    Report,
    check_by_cases,
    dtypes,
    mixed,
    near_1e30,
    uniform_at_1e4,
)
from .expected import errors

_ROWS = ((301, 77), (9, 2500), (5, 1))
_IMAGES = ((9, 12, 23, 5), (3, 6, 40, 41), (4, 6, 1, 1))
_GROUPS = 3

Make = Callable[..., Float64s]


# --- data -----------------------------------------------------------------------------------------


def _constant(rng: np.random.Generator, *shape: int) -> Float64s:
    """Repeat one number: after the norm only the bias is left."""
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
    """Repeat one magnitude, so that sums round one way."""
    x = np.full(shape, rng.random() + 0.5)
    x[..., ::2] *= -1
    return x


_DATA: dict[str, Make] = {
    "nearly constant": _nearly_constant,
    "one huge": _one_huge,
    "biased": _biased,
    "mixed": mixed,
    "1e4 + rand": uniform_at_1e4,
    "near 1e30": near_1e30,
    "constant": _constant,
}


# --- ways to call an op ---------------------------------------------------------------------------


def _ways(op: Any) -> dict[str, dict[str, Any]]:
    """The options of the ways to call an op, by the label of each where there are several."""
    kind = traits(op)
    usual: dict[str, Any] = ({kind.channels: 1} if kind.channels else {}) | (
        {"num_groups": _GROUPS} if kind.groups else {}
    )
    if kind.drops:
        return {"": {**usual, "p": 0.25, "seed": 3}}
    if kind.gated:
        return {"": usual, "gate first": {**usual, "gate_first": True}}
    if not kind.moves:
        return {"": usual}
    nobody: dict[str, Any] = {**usual, "running_mean": None, "running_var": None, "training": True}
    ways = {"training": nobody, "halves": nobody, "running": usual}
    if "backward_reduce" not in op.entry_points:
        ways.pop("halves")
    return ways


def _running(x: NDArray[Any]) -> tuple[Float64s, Float64s]:
    """Mean and variance of a channel that are not quite x's: of its first half."""
    half = x[: (len(x) + 1) // 2].astype(np.float64)
    axes = others((1,), x.ndim)
    return half.mean(axes), 1.0 + half.var(axes)


def _given(op: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The statistics that a call is given."""
    kind = traits(op)
    if not kind.by_channel or "training" in named:
        return {}
    mean, var = _running(named["x"])
    if kind.moves:
        return {"running_mean": mean, "running_var": var}
    wide = np.promote_types(named["x"].dtype, np.float32)
    return {"mean": mean.astype(wide), "rstd": (1 / np.sqrt(var)).astype(wide)}


def _cases(
    op: Any, way: dict[str, Any], name: str, dtype: np.dtype[Any], options: Options
) -> Iterator[tuple[dict[str, Any], NDArray[Any]]]:
    """The arguments of a call, and y's gradient."""
    rng = np.random.default_rng(0)
    kind = traits(op)
    for (data, make), shape in product(_DATA.items(), _IMAGES if kind.channels else _ROWS):
        if data == "near 1e30" and dtype == np.float16:
            continue
        count = shape[0] * (8 if options.exhaustive else 1)
        of_dy = make if make in (_one_huge, _biased) else mixed
        x, dy, second = (
            draw(rng, count, *shape[1:]).astype(dtype) for draw in (make, of_dy, mixed)
        )
        parameter = rows_of(op, x.shape, way).parameter
        weights = [(1 + 0.1 * rng.normal(size=parameter)).astype(dtype) for _ in kind.weights]
        named = {"x": x, "activation": name, **way, **dict(zip(kind.weights, weights, strict=True))}
        beside = {kind.second: second} if kind.second else {}
        yield {**named, **beside, **_given(op, named)}, dy


# --- errors ---------------------------------------------------------------------------------------


def _errors(op: Any, label: str, given: tuple[dict[str, Any], NDArray[Any]]) -> list[float]:
    """Give the errors of y and of each gradient, in units of the bounds."""
    named, dy = given
    of = partial(errors, op, named["x"].shape, named, {"dy": dy})
    if label != "halves":
        found = of()
        found["dx"] = max(found["dx"], found.pop("dresidual", 0.0))
        # A norm with a gate has no bias.
        names = ("y", *sorted(op.gradients, key="dgate".__eq__))
        return [found[name] for name in names if name in found]
    found = of(_by_halves) | of(entry="backward_reduce")
    return [found[name] for name in ("y", "dx", "sum_dy_xhat", "sum_dy")]


def _by_halves(op: Any, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """dx by way of the sums."""
    x = given["x"]
    sums = dict(zip(RESULTS["backward_reduce"], op.bound("backward_reduce", given)(), strict=True))
    count = x.size // x.shape[1]
    return (op.bound("backward_apply", {**given, **sums, "count": count})(),)


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    activations = (IDENTITY, "mish")
    for (label, way), name, dtype in product(_ways(op).items(), activations, dtypes(report)):
        yield ErrorRow(
            (label, name, dtype.name),
            partial(_cases, op, way, name, dtype, options),
            partial(_errors, op, label),
        )


_LEGEND = """\
y, dx (dresidual, too), dweight, and dbias or dgate: the worst error in units of the stated
bound and the oracle's own, over data of both signs and four orders of magnitude, 1e4 + rand,
near 1e30 (where the dtype has that), constant, nearly constant, with one huge element, and such
whose roundings add up; rows of one element among them. The gradients are those for the
statistics that forward saved. Half a unit in the last place is a part of the bound: 16-bit
results use all of it."""

CHECK = check_by_cases(
    _rows,
    ["call", "activation", "dtype"],
    {"y": 1, "dx": 1, "dweight": 1, "dbias, dgate": 1},
    _LEGEND,
    of=NormBounds,
    but=(NormRotaryBounds,),  # which wants angles
)
