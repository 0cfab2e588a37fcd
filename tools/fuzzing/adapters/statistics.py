"""Sums, means, variances and deviations, of all elements or of what is not NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fastact as fa
from fastact.check.reference import Statistics as Oracle
from fastact.check.sum_axes import axes_of as summed

from ..cases import FLOAT64, Draw, Request, number
from ..judge import Expected, ulp
from ..oracle import wide
from .base import Adapter, added_to, full
from .reductions import axes_of, one_run

_VALUES = ("wide", "wide", "plain", "far", "constant", "specials")
_TINY = 2.0**-1074


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
        x = draw.leader("x", shape, r.choice(_VALUES if entry != "backward" else ("wide", "far")))
        if x.stored is not None:  # integers, which np.mean has as float64
            draw.dtype, x = FLOAT64, replace(x, dtype=FLOAT64)
        notes = {"axes": axes, "shape": shape, "result": result}
        if entry != "backward":
            outs = draw.outs([("y", result, draw.dtype)], {}, forbidden=(x,))
            return Request(
                op.name, entry, draw.framework, draw.dtype, (x,), named, notes=notes, **outs
            )
        dy = draw.array("dy", result, "wide", number=True)
        outs = draw.outs([("dx", shape, draw.dtype)], {0: (x,)}, forbidden=(dy,), accumulates=True)
        return Request(
            op.name, entry, draw.framework, draw.dtype, (dy, x), named, notes=notes, **outs
        )

    def layout_free(self, request: Request) -> bool:
        return one_run(request)

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
        at = 1 if request.entry == "backward" else 0
        x = wide(full(request.args[at], values), FLOAT64)
        correction = request.named["correction"].value if "correction" in request.named else 0
        with np.errstate(all="ignore"):
            found = Oracle.of(x, notes["axes"], op.skips)
            if at:
                return [self._gradient(request, values, found, correction)]
            exact, std = found.statistic(op.of, correction), np.sqrt(found.m2 / found.count)
            # Infinities, too few elements and equal values, of which long doubles do not know, have
            # cases of their own in tests/statistics.
            judged = np.isfinite(exact) & (found.count > correction)
            safe = np.where(judged, exact, 0)
            if op.of in ("var", "std"):
                judged &= found.m2 > 2.0**-50 * found.count * found.mean**2
            allowed = op.bounds.allowed(safe, found.mean, std, found.count, found.magnitude, dtype)
            allowed = np.nan_to_num(allowed) - ulp(safe, dtype) / 2 + found.count * _TINY
            if dtype == FLOAT64:
                judged &= np.maximum(found.magnitude * found.count, found.m2) < 1e307
        back = lambda a: np.broadcast_to(a, found.count.shape).reshape(notes["result"])  # noqa: E731
        y = Expected(back(safe), back(allowed), True, back(judged))
        return [y, None] if request.entry == "forward" else [y]

    def _gradient(
        self, request: Request, values: dict[str, Any], found: Oracle, correction: float
    ) -> Expected:
        op, dtype = fa.ops[request.op], request.dtype
        dy = wide(full(request.args[0], values), FLOAT64)
        if request.args[0].form != "number":
            dy = dy.reshape(found.count.shape)
        dx = found.gradient(op.of, dy, correction)
        slope = dy * found.slope(op.of, correction) * np.ones(dx.shape)
        magnitude = found.magnitude + found.largest
        error = op.bounds.allowed_gradient(dx, slope, magnitude, dtype)
        base = wide(added_to(request, values, 0), FLOAT64)
        error = error + ulp(np.abs(dx) + np.abs(base), dtype)
        few = (found.count > correction) & (found.m2 > 2.0**-40 * found.count * found.mean**2)
        judged = np.isfinite(dx) & (few if op.of in ("var", "std") else True)
        return Expected(dx + base, np.broadcast_to(error, dx.shape), True, judged)
