"""Sums, and moments that merge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import fastact as fa
from fastact.check.sum_axes import axes_of as summed
from fastact.check.sum_axes import is_over_any, is_sum, is_to_shape, slope_of, term_of

from ..cases import FLOAT64, Draw, Number, Request, Shape, computed_in, number
from ..judge import Expected, ulp
from ..oracle import reference, wide
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


def one_run(request: Request) -> bool:
    """Whether the order of a sum does not depend on strides: it is over one axis at the most."""
    axes, shape = request.notes["axes"], request.notes["shape"]
    return sum(shape[a] > 1 for a in axes) <= 1


# --- sums -----------------------------------------------------------------------------------------


def sample_sum(op: Any, draw: Draw) -> Request:
    """Of any sum over axes."""
    r = draw.r
    entries = ["call", "call", "forward", "backward"]
    entry = r.choice([*entries, *(name for name in op.entry_points if name not in entries)])
    of_all = "axis" not in op.entry_points[entry].defaults  # whatever axes the call has
    to_shape, over_any = is_to_shape(op), is_over_any(op)
    shape = draw.shape(0 if to_shape or over_any else 1)
    ndim, named, args = len(shape), {}, ()  # type: ignore[var-annotated]
    default = op.entry_points["call"].defaults.get("axis")
    if to_shape:
        dropped = r.randrange(ndim + 1)
        options: dict[str, Any] = {
            "shape": tuple(n if r.random() < 0.5 else 1 for n in shape[dropped:])
        }
        args = (options["shape"],) if entry != "backward" else ()
    elif over_any:
        axis, keepdims = axes_of(draw, ndim), draw.chance(0.3)
        options = {} if of_all else {"axis": axis, "keepdims": keepdims}
        if not of_all:
            named = {"axis": axis} if axis != default or draw.chance(0.2) else {}
            named |= {"keepdims": keepdims} if keepdims or draw.chance(0.2) else {}
    else:
        options = {"axis": r.randrange(-ndim, ndim)}
        named = options if options["axis"] != default or draw.chance(0.3) else {}
    axes, result = summed(op, shape, options)
    values = r.choice(_VALUES)
    notes = {"axes": axes, "shape": shape, "result": result}
    needs_x = "x" in op.saves
    if entry == "backward":
        if needs_x:
            x = draw.leader("x", shape, r.choice(("wide", "plain")), FLOAT64)
            dy = draw.array("dy", result, "wide", number=True)
            args, places = (dy, x), {0: (x,)}
        else:
            dy = draw.leader("dy", result, "wide", FLOAT64)
            args, places = (dy, shape), {}
        forbidden = () if needs_x else (dy,)
        outputs = [("dx", shape, draw.dtype)]
    else:
        x = draw.leader(op.entry_points["call"].arrays[0], shape, values, FLOAT64)
        args, places, forbidden = (x, *args), {}, (x,)
        outputs = [("y", result, draw.dtype)]
        if op.entry_points[entry].outputs > 1:  # and the gradient
            outputs = [("y", result, draw.dtype), ("grad", shape, draw.dtype)]
            places, forbidden = {1: (x,)}, ()
    adds = "accumulate" in op.entry_points[entry].defaults
    outs = draw.outs(outputs, places, forbidden=forbidden, accumulates=adds)
    return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)


def exact_sum(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
    axes, result = notes["axes"], notes["result"]
    needs_x = "x" in op.saves
    with np.errstate(all="ignore"):
        if request.entry == "backward":
            dy = wide(full(request.args[0], values), FLOAT64)
            if request.args[0].form != "number":
                dy = dy.reshape(_as_kept(notes))
            dx = np.broadcast_to(dy, notes["shape"])
            error: Any = 0.0
            if needs_x:
                dx = dx * slope_of(op)(wide(full(request.args[1], values), FLOAT64))
                if dtype.itemsize == 2 or request.accumulate:
                    error = ulp(dx, computed_in(dtype)) / 2
            total = dx + wide(added_to(request, values, 0), FLOAT64)
            if dtype.itemsize == 2 and request.accumulate:
                error = error + ulp(total, computed_in(dtype)) / 2
            return [Expected(total, error, True, np.isfinite(dx))]
        x = wide(full(request.args[0], values), FLOAT64)
        terms = term_of(op)(x)
        y = terms.sum(axes).reshape(result)
        size = np.abs(terms).sum(axes).reshape(result)
        count = math.prod(notes["shape"][a] for a in axes)
        base = wide(added_to(request, values, 0), FLOAT64)
        error = allowed(op, y, dtype, size=size + np.abs(base)) + count * _TINY
        limit = np.finfo(np.float64).max / 4
        judged = ~(np.isfinite(size) & (size > limit)) if dtype == FLOAT64 else None
        found: list[Expected | None] = [Expected(y + base, error, True, judged)]
        if request.entry == "forward":
            saved = 1 if needs_x else len(notes["shape"])
            found += [None] * (saved + len(op.saves) - 1)  # and a mask
        elif op.entry_points[request.entry].outputs > 1:
            found.append(Expected(slope_of(op)(x), 0.0, True))
        return found


def _as_kept(notes: dict[str, Any]) -> Shape:
    """The shape of the sum with its axes where they were."""
    kept = [1 if a in notes["axes"] else n for a, n in enumerate(notes["shape"])]
    return tuple(kept)


# --- moments --------------------------------------------------------------------------------------


class Reductions(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        if is_sum(op):
            return sample_sum(op, draw)
        r, is_moments = draw.r, "m2" in op.results
        slices = is_moments and draw.framework in ("numpy", "torch")
        entry = r.choice(("call", "call", "forward", "backward", *(["merge"] * slices)))
        shape = draw.shape(1 if entry == "merge" else 0)
        axis, keepdims = axes_of(draw, len(shape)), draw.chance(0.3)
        axis = 0 if entry == "merge" else axis
        axes, result = summed(op, shape, {"axis": axis, "keepdims": keepdims})
        named: dict[str, Any] = {"axis": axis} if axis is not None or draw.chance(0.2) else {}
        named |= {"keepdims": keepdims} if keepdims or draw.chance(0.2) else {}
        if "correction" in op.entry_points["call"].defaults and draw.chance(0.5):
            named["correction"] = number(r, 0, 1, 1.5)
        values = r.choice(_VALUES if entry != "backward" else ("wide", "far"))
        x = draw.leader("x", shape, values, FLOAT64)
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
                outputs = [(part, result, dtype) for part in op.results]
                outs = draw.outs(outputs, {}, forbidden=(x,))
            else:
                notes["parts"] = r.choice((1, 2, 3, 7))
        return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)

    def function(self, request: Request) -> Callable[..., Any]:
        if request.entry != "merge":
            return super().function(request)
        op, parts = fa.ops[request.op], request.notes["parts"]

        def merge(x: Any, **named: Any) -> Any:
            if not hasattr(x, "__getitem__") or isinstance(x, list):
                x = np.asarray(x)
            size = -(-len(x) // parts) or 1
            pieces = [x[i : i + size] for i in range(0, len(x), size)] or [x]
            return fa.Moments.merge_many([op(piece, **named) for piece in pieces])

        return merge

    def layout_free(self, request: Request) -> bool:
        return one_run(request)

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
        if is_sum(op):
            return exact_sum(request, values)
        axes, is_moments = notes["axes"], "m2" in op.results
        at = 1 if request.entry == "backward" else 0
        x = wide(full(request.args[at], values), FLOAT64)
        count = math.prod(notes["shape"][a] for a in axes)
        correction = request.named.get("correction", Number(0)).value
        divisor = 1.0 if is_moments else max(count - correction, 0.0)
        with np.errstate(all="ignore"):
            if x.size:
                mean, m2 = reference.moments(x, axes, keepdims=True)
            else:
                m2 = x.sum(axes, keepdims=True)
                mean = m2 * np.nan
            d = x - mean
            if request.entry == "backward":
                return [self._gradient(request, values, x, mean, d, count, divisor)]
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
        return [*found, *(None for _ in op.saves)] if request.entry == "forward" else found

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
