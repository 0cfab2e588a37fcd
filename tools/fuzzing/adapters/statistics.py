"""Sums, means, variances and deviations, of all elements or of those that count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fastact as fa
from fastact.check.reference import Statistics as Oracle
from fastact.check.sum_axes import axes_of as summed

from ..cases import DTYPES, FLOAT64, Array, Draw, Request, Shape, number
from ..judge import Expected, ulp
from ..oracle import wide
from .base import Adapter, added_to, full, is_made
from .reductions import axes_of, one_run

_VALUES = ("wide", "wide", "plain", "far", "constant", "specials")
_TINY = 2.0**-1074


_BOOL = np.dtype(bool)


def drawn_weights(op: Any, draw: Draw, shape: Shape) -> dict[str, Array]:
    """Weights and a mask, of what the op takes, each half of the time."""
    r, takes, made = draw.r, op.entry_points["call"].defaults, {}
    some = tuple(n if r.random() < 0.7 else 1 for n in shape)
    if "weights" in takes and draw.chance(0.5):
        dtype = draw.dtype if draw.chance(0.6) else r.choice(list(DTYPES.values()))
        if draw.framework == "plain":
            dtype = draw.dtype
        values = r.choice(("positive", "small integers"))
        made["weights"] = draw.array("weights", some if draw.chance(0.5) else shape, values, dtype)
    if "where" in takes and draw.chance(0.3):
        made["where"] = draw.array("where", some[r.randrange(len(some) + 1) :], "bits", _BOOL)
    # A scalar of NumPy's may be Python's float: a number.
    return {name: replace(array, form="array") for name, array in made.items()}


def _repeats_once(request: Request) -> bool:
    """Whether the gradient of weights, where they repeat, is a sum over one axis alone."""
    of_weights = request.entry == "backward" and "dweights" in fa.ops[request.op].gradients
    if not of_weights or request.args[2] is None:
        return True
    pairs = zip(request.args[2].shape, request.notes["shape"], strict=True)
    return sum(n != m for n, m in pairs) <= 1


def _of_left(request: Request, found: Oracle, correction: float) -> Any:
    """The error of what a correction leaves of the weights; 0 without any."""
    if all(array.name != "weights" for array in request.arrays):
        return 0.0
    return fa.ops[request.op].bounds.of_left(found.count, correction)


class Statistics(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        r = draw.r
        entry = r.choice(("call", "call", "forward", "backward"))
        shape = draw.shape(0)
        axis, keepdims = axes_of(draw, len(shape)), draw.chance(0.3)
        axes, result = summed(op, shape, {"axis": axis, "keepdims": keepdims})
        named: dict[str, Any] = {"axis": axis} if axis is not None or draw.chance(0.2) else {}
        named |= {"keepdims": keepdims} if keepdims or draw.chance(0.2) else {}
        if "correction" in op.entry_points["call"].defaults and draw.chance(0.5):
            named["correction"] = number(r, 0, 1, 1.5)
        values = r.choice(_VALUES if entry != "backward" else ("wide", "far"))
        x = draw.leader("x", shape, values, FLOAT64)
        more = drawn_weights(op, draw, shape) if x.form == "array" else {}
        notes = {"axes": axes, "shape": shape, "result": result}
        if entry != "backward":
            forbidden = (x, *more.values())
            outs = draw.outs([("y", result, draw.dtype)], {}, forbidden=forbidden)
            named |= more
            return Request(
                op.name, entry, draw.framework, draw.dtype, (x,), named, notes=notes, **outs
            )
        dy = draw.array("dy", result, "wide", number=True)
        args = (dy, x, *(more.get(name) for name in op.saves[1:]))
        forbidden = (dy, *more.values())
        outputs: list[Any] = [("dx", shape, draw.dtype)]
        if len(op.gradients) == 1:
            outs = draw.outs(outputs, {0: (x,)}, forbidden=forbidden, accumulates=True)
        else:
            w = more.get("weights")
            outputs.append(w and ("dweights", w.shape, w.dtype))
            outs = draw.outs(outputs, {}, forbidden=(x, *forbidden), skips=True, accumulates=True)
        return Request(op.name, entry, draw.framework, draw.dtype, args, named, notes=notes, **outs)

    def layout_free(self, request: Request) -> bool:
        return one_run(request) and _repeats_once(request)

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
        at = 1 if request.entry == "backward" else 0
        x = wide(full(request.args[at], values), FLOAT64)
        correction = request.named["correction"].value if "correction" in request.named else 0
        more = {a.name: full(a, values) for a in request.arrays if a.name in ("weights", "where")}
        with np.errstate(all="ignore"):
            found = Oracle.of(x, notes["axes"], op.skips, **more)
            if at:
                dx = self._gradient(request, values, found, correction)
                if len(op.gradients) == 1:
                    return [dx]
                both = (dx, self._weight_gradient(request, values, found, more))
                return [g if is_made(request, i) else None for i, g in enumerate(both)]
            exact, std = found.statistic(op.of, correction), np.sqrt(found.m2 / found.count)
            # Infinities, too few elements and equal values, of which long doubles do not know, have
            # cases of their own in tests/statistics.
            judged = np.isfinite(exact) & (found.count > correction)
            safe = np.where(judged, exact, 0)
            if op.of in ("var", "std"):
                judged &= found.m2 > 2.0**-50 * found.count * found.mean**2
            left = _of_left(request, found, correction)
            allowed = op.bounds.allowed(
                safe, found.mean, std, found.count, found.magnitude, dtype, left
            )
            allowed = np.nan_to_num(allowed) - ulp(safe, dtype) / 2 + found.count * _TINY
            if dtype == FLOAT64:
                judged &= np.maximum(found.magnitude * found.count, found.m2) < 1e307
        back = lambda a: np.broadcast_to(a, found.count.shape).reshape(notes["result"])  # noqa: E731
        y = Expected(back(safe), back(allowed), True, back(judged))
        saved: list[Expected | None] = [None] * len(op.saves)
        return [y, *saved] if request.entry == "forward" else [y]

    def _weight_gradient(
        self, request: Request, values: dict[str, Any], found: Oracle, more: dict[str, Any]
    ) -> Expected | None:
        """Of each element that no mask hides, added up over those that share a weight."""
        weights = request.args[2]
        if weights is None:
            return None
        dy, dtype = wide(full(request.args[0], values), FLOAT64), weights.dtype
        if request.args[0].form != "number":
            dy = dy.reshape(found.count.shape)
        with np.errstate(all="ignore"):
            each = np.where(more.get("where", True), found.weight_gradient(dy), 0.0)
            each = each * np.ones(found.x.shape)
            spread = (found.magnitude + found.largest) * np.abs(dy) / found.count
            error = 2.0**-46 * spread * np.ones(each.shape) + ulp(each, dtype)
        repeats = tuple(
            i for i, (n, m) in enumerate(zip(weights.shape, each.shape, strict=True)) if n != m
        )
        base = wide(added_to(request, values, 1), FLOAT64)
        with np.errstate(all="ignore"):
            dw = each.sum(repeats, keepdims=True) + base
            error = error.sum(repeats, keepdims=True) + ulp(np.abs(dw) + np.abs(base), dtype)
        return Expected(dw, error, True, np.isfinite(dw) & np.isfinite(error))

    def _gradient(
        self, request: Request, values: dict[str, Any], found: Oracle, correction: float
    ) -> Expected:
        op, dtype = fa.ops[request.op], request.dtype
        dy = wide(full(request.args[0], values), FLOAT64)
        if request.args[0].form != "number":
            dy = dy.reshape(found.count.shape)
        dx = found.gradient(op.of, dy, correction)
        slope = dy * found.slope(op.of, correction) * found.weights
        magnitude = found.magnitude + found.largest
        left = _of_left(request, found, correction)
        error = op.bounds.allowed_gradient(dx, slope, magnitude, dtype, left)
        base = wide(added_to(request, values, 0), FLOAT64)
        error = error + ulp(np.abs(dx) + np.abs(base), dtype)
        few = (found.count > correction) & (found.m2 > 2.0**-40 * found.count * found.mean**2)
        judged = np.isfinite(dx) & (few if op.of in ("var", "std") else True)
        return Expected(dx + base, np.broadcast_to(error, dx.shape), True, judged)
