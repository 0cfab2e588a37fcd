"""Sums, and moments that merge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import fastact as fa

from ..cases import FLOAT64, Draw, Number, Request, Shape, computed_in, number
from ..judge import Expected, ulp
from ..oracle import wide
from .base import Adapter, added_to, full

_VALUES = ("wide", "wide", "plain", "far", "constant", "huge", "specials", "exponents")
_LONG = np.longdouble
_TINY = 2.0**-1074


def allowed(op: Any, exact: Any, dtype: np.dtype[Any], **of: Any) -> Any:
    """How far off a sum of magnitude `size`, a mean of `spread` or an m2 of `far` may be."""
    bounds = op.bounds
    if "size" in of:
        return (bounds.ulp - 0.5) * ulp(exact, dtype) + bounds.absolute * of["size"]
    if "spread" in of:
        return bounds.mean * of["spread"]
    share = (bounds.m2_double if of["data"] == FLOAT64 else bounds.m2) + of["far"]
    return share * np.abs(exact)


def axes_of(draw: Draw, ndim: int) -> Any:
    """An axis argument: None, an integer, or a tuple."""
    r, kind = draw.r, draw.r.random()
    if kind < 0.25 or ndim == 0:
        return r.choice((None, ())) if kind < 0.05 else None
    if kind < 0.7:
        return r.randrange(-ndim, ndim)
    chosen = r.sample(range(ndim), r.randrange(0, ndim + 1))
    return tuple(axis - ndim * r.randrange(2) for axis in chosen)


def named_axes(axis: Any, ndim: int) -> Shape:
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(a % ndim for a in given))


def one_run(request: Request) -> bool:
    """Whether the order of a sum does not depend on strides: it is over one axis at the most."""
    axes, shape = request.notes["axes"], request.notes["shape"]
    return sum(shape[a] > 1 for a in axes) <= 1


def _shape_after(shape: Shape, axes: Shape, keepdims: bool) -> Shape:
    return tuple(1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes)


# --- sums -----------------------------------------------------------------------------------------


def sample_sum(op: Any, draw: Draw) -> Request:
    """Of `sum`, `sum_squares`, `bias_grad` and `unbroadcast`."""
    r, name = draw.r, op.name
    entries = ["call", "call", "forward", "backward"]
    entries += ["value_and_grad"] if name == "sum_squares" else []
    entry = r.choice(entries)
    shape = draw.shape(1 if name == "bias_grad" else 0)
    ndim, named, args = len(shape), {}, ()  # type: ignore[var-annotated]
    if name == "bias_grad":
        axis = r.randrange(-ndim, ndim)
        axes = tuple(a for a in range(ndim) if a != axis % ndim)
        result: Shape = (shape[axis],)
        named = {"axis": axis} if axis != -1 or draw.chance(0.3) else {}
    elif name == "unbroadcast":
        dropped = r.randrange(ndim + 1)
        kept = [n if r.random() < 0.5 else 1 for n in shape[dropped:]]
        result = tuple(kept)
        axes = (*range(dropped), *(dropped + i for i, n in enumerate(kept)
                                   if n == 1 and shape[dropped + i] != 1))  # fmt: skip
        args = (result,) if entry != "backward" else ()
    else:
        axis, keepdims = axes_of(draw, ndim), draw.chance(0.3)
        if entry == "value_and_grad":
            axis, keepdims = None, False
        axes = named_axes(axis, ndim)
        result = _shape_after(shape, axes, keepdims)
        if entry != "value_and_grad":
            named = {"axis": axis} if axis is not None or draw.chance(0.2) else {}
            named |= {"keepdims": keepdims} if keepdims or draw.chance(0.2) else {}
    values = r.choice(_VALUES)
    notes = {"axes": axes, "shape": shape, "result": result}
    squares = name == "sum_squares"
    if entry == "backward":
        if squares:
            x = draw.leader("x", shape, r.choice(("wide", "plain")))
            dy = draw.array("dy", result, "wide", number=True)
            args, places = (dy, x), {0: (x,)}
        else:
            dy = draw.leader("dy", result, "wide")
            args, places = (dy, shape), {}
        forbidden = () if squares else (dy,)
        outputs = [("dx", shape, draw.dtype)]
    else:
        x = draw.leader("dy" if op.family == "bias" else "x", shape, values)
        args, places, forbidden = (x, *args), {}, (x,)
        outputs = [("y", result, draw.dtype)]
        if entry == "value_and_grad":
            outputs = [("y", (), draw.dtype), ("grad", shape, draw.dtype)]
            places, forbidden = {1: (x,)}, ()
    adds = entry == "backward" or (op.family == "bias" and entry in ("call", "forward"))
    outs = draw.outs(outputs, places, forbidden=forbidden, accumulates=adds)
    return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)


def exact_sum(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
    axes, result = notes["axes"], notes["result"]
    squares = request.op == "sum_squares"
    with np.errstate(all="ignore"):
        if request.entry == "backward":
            dy = wide(full(request.args[0], values), FLOAT64)
            if request.args[0].form != "number":
                dy = dy.reshape(_as_kept(notes))
            dx = np.broadcast_to(dy, notes["shape"])
            error: Any = 0.0
            if squares:
                dx = 2 * dx * wide(full(request.args[1], values), FLOAT64)
                if dtype.itemsize == 2 or request.accumulate:
                    error = ulp(dx, computed_in(dtype)) / 2
            total = dx + wide(added_to(request, values, 0), FLOAT64)
            if dtype.itemsize == 2 and request.accumulate:
                error = error + ulp(total, computed_in(dtype)) / 2
            return [Expected(total, error, True, np.isfinite(dx))]
        x = wide(full(request.args[0], values), FLOAT64)
        terms = x * x if squares else x
        y = terms.sum(axes).reshape(result)
        size = np.abs(terms).sum(axes).reshape(result)
        count = math.prod(notes["shape"][a] for a in axes)
        base = wide(added_to(request, values, 0), FLOAT64)
        error = allowed(op, y, dtype, size=size + np.abs(base)) + count * _TINY
        limit = np.finfo(np.float64).max / 4
        judged = ~(np.isfinite(size) & (size > limit)) if dtype == FLOAT64 else None
        found: list[Expected | None] = [Expected(y + base, error, True, judged)]
        if request.entry == "forward":
            found += [None] * (1 if squares else len(notes["shape"]))
        if request.entry == "value_and_grad":
            found.append(Expected(2 * x, 0.0, True))
        return found


def _as_kept(notes: dict[str, Any]) -> Shape:
    """The shape of the sum with its axes where they were."""
    kept = [1 if a in notes["axes"] else n for a, n in enumerate(notes["shape"])]
    return tuple(kept)


# --- moments --------------------------------------------------------------------------------------


class Reductions(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        if op.name in ("sum", "sum_squares"):
            return sample_sum(op, draw)
        r, is_moments = draw.r, op.name == "moments"
        slices = is_moments and draw.framework in ("numpy", "torch")
        entry = r.choice(("call", "call", "forward", "backward", *(["merge"] * slices)))
        shape = draw.shape(1 if entry == "merge" else 0)
        axis, keepdims = axes_of(draw, len(shape)), draw.chance(0.3)
        axis = 0 if entry == "merge" else axis
        axes = named_axes(axis, len(shape))
        result = _shape_after(shape, axes, keepdims)
        named: dict[str, Any] = {"axis": axis} if axis is not None or draw.chance(0.2) else {}
        named |= {"keepdims": keepdims} if keepdims or draw.chance(0.2) else {}
        if not is_moments and draw.chance(0.5):
            named["correction"] = number(r, 0, 1, 1.5)
        x = draw.leader("x", shape, r.choice(_VALUES if entry != "backward" else ("wide", "far")))
        notes = {"axes": axes, "shape": shape, "result": result}
        if entry == "backward":
            gradients = tuple(
                draw.array(f"d{i}", result, "wide", number=True) if draw.chance(0.8) else None
                for i in range(2)
            )
            outs = draw.outs(
                [("dx", shape, draw.dtype)],
                {0: (x,)},
                forbidden=tuple(g for g in gradients if g is not None),
                accumulates=True,
            )
            args: tuple[Any, ...] = (gradients, x)
        else:
            dtype = FLOAT64 if is_moments else draw.dtype
            args, outs = (x,), {}
            if entry != "merge":
                outputs = [("mean", result, dtype), ("second", result, dtype)]
                outs = draw.outs(outputs, {}, forbidden=(x,))
            else:
                notes["parts"] = r.choice((1, 2, 3, 7))
        return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)

    def function(self, request: Request) -> Callable[..., Any]:
        if request.entry != "merge":
            return super().function(request)
        parts = request.notes["parts"]

        def merge(x: Any, **named: Any) -> Any:
            if not hasattr(x, "__getitem__") or isinstance(x, list):
                x = np.asarray(x)
            size = -(-len(x) // parts) or 1
            pieces = [x[i : i + size] for i in range(0, len(x), size)] or [x]
            return fa.Moments.merge_many([fa.moments(piece, **named) for piece in pieces])

        return merge

    def layout_free(self, request: Request) -> bool:
        return one_run(request)

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        if request.op in ("sum", "sum_squares"):
            return exact_sum(request, values)
        op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
        axes, is_moments = notes["axes"], request.op == "moments"
        at = 1 if request.entry == "backward" else 0
        x = wide(full(request.args[at], values), FLOAT64)
        count = math.prod(notes["shape"][a] for a in axes)
        correction = request.named.get("correction", Number(0)).value
        divisor = 1.0 if is_moments else max(count - correction, 0.0)
        with np.errstate(all="ignore"):
            mean = x.mean(axes, keepdims=True) if x.size else x.sum(axes, keepdims=True) * np.nan
            d = x - mean
            if request.entry == "backward":
                return [self._gradient(request, values, x, mean, d, count, divisor)]
            m2 = (d * d).sum(axes, keepdims=True)
            spread = op.bounds.magnitude(x, axes, dtype) if x.size else np.zeros(mean.shape)
            far = op.bounds.far * np.abs(mean) / np.sqrt(m2 / max(count, 1))
            far = np.nan_to_num(far, nan=0.0, posinf=0.0)
            second = m2 / divisor if x.size or is_moments else m2 * np.nan
            if not divisor and not is_moments:
                second = m2 * np.inf
            times = op.bounds.merged if request.entry == "merge" else 1
            of_mean = times * allowed(op, mean, dtype, spread=spread)
            of_second = times * allowed(op, second, dtype, far=far, data=dtype) + count * _TINY
        back = lambda a: np.broadcast_to(a, mean.shape).reshape(notes["result"])  # noqa: E731
        # An empty sum of nothing is 0, also of no outputs; equal values have no variance at all,
        # of which long doubles do not know.
        same = back(x.max(axes, keepdims=True) == x.min(axes, keepdims=True)) if x.size else False
        # Sums of float64 that are too large for it are infinite, as the docstring says.
        limit = np.finfo(np.float64).max / 4
        fits = back(np.maximum(np.abs(x).sum(axes, keepdims=True), m2)) < limit
        judged_mean = fits | ~np.isfinite(back(spread)) if dtype == FLOAT64 else None
        judged = judged_mean
        if not divisor:
            judged = np.isfinite(back(second)) & ~np.asarray(same)
        found: list[Expected | None] = [
            Expected(back(mean), back(of_mean), True, judged_mean),
            Expected(back(second), back(of_second), True, judged),
        ]
        if is_moments:
            found.insert(0, None)
        return [*found, None] if request.entry == "forward" else found

    def _gradient(
        self, request: Request, values: dict[str, Any], x: Any, mean: Any, d: Any,
        count: int, divisor: float,
    ) -> Expected | None:  # fmt: skip
        """dmean / n + 2 dvar (x - mean) / divisor, each product of which is rounded."""
        if not x.size or not divisor:
            return Expected(x, 0.0, True, False)
        u = 2.0**-53 if request.dtype == FLOAT64 else 2.0**-24
        parts = []
        for part in request.args[0]:
            g: Any = 0.0
            if part is not None:
                g = wide(full(part, values), FLOAT64)
                if part.form != "number":
                    g = g.reshape(_as_kept(request.notes))
            parts.append(g)
        one, slope = parts[0] / count, 2 * parts[1] / divisor
        bounds = fa.ops[request.op].bounds
        spread = bounds.magnitude(x, request.notes["axes"], request.dtype)
        error = (
            bounds.gradient * u * (abs(one) + abs(slope * d)) + abs(slope) * bounds.mean * spread
        )
        base = added_to(request, values, 0)
        if request.accumulate:
            size = abs(one) + abs(slope * d) + abs(base)
            error = error + ulp(size, computed_in(request.dtype))
        dx = one + slope * d + base
        return Expected(dx, np.broadcast_to(error, dx.shape), True, np.isfinite(dx))
