"""bias_act, and the sums that are gradients of broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastact as fa
from fastact.check.sum_axes import is_sum

from ..cases import FLOAT64, Draw, Request, computed_in
from ..judge import Expected, ulp
from ..oracle import evaluate, reference, wide
from . import activations, reductions
from .base import Adapter, added_to, full, is_made

_VALUES = ("wide", "wide", "plain", "specials", "huge")


def allowed(
    op: Any, entry: str, z: Any, exact: Any, dtype: np.dtype[Any], device: bool,
    parameters: dict[str, Any],
) -> Any:  # fmt: skip
    """The activation's own bound; z itself has the bits of its sums."""
    if op is None:
        return np.zeros(np.shape(exact))
    return activations.allowed(op, entry, z, exact, dtype, device, parameters)


class Bias(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        if is_sum(op):
            return reductions.sample_sum(op, draw)
        r, entry = draw.r, draw.r.choice(("call", "forward", "backward", "backward"))
        shape = draw.shape(1)
        axis = r.randrange(-len(shape), len(shape))
        name = r.choice(("identity", "mish", "relu", r.choice(list(reference.FORWARD))))
        activation = None if name == "identity" else fa.ops[name]
        back = entry == "backward"
        free = back and activation is None
        leader = "dy" if free else "x"
        made = {leader: draw.leader(leader, shape, r.choice(_VALUES))}
        if back and not free:
            made["dy"] = draw.array("dy", shape, r.choice(("plain", "wide")), number=True)
        wider = r.random() < 0.2 and draw.dtype != FLOAT64
        of_bias = FLOAT64 if wider and draw.framework != "plain" else draw.dtype
        made["bias"] = draw.array("bias", (shape[axis],), "wide", of_bias)
        if not free and draw.chance(0.3):
            made["residual"] = draw.array("residual", shape, "wide", number=True)
        named: dict[str, Any] = activations.parameters(activation, draw) if activation else {}
        if axis != -1 or draw.chance(0.3):
            named["axis"] = axis
        chosen = r.choice((name, activation or name))
        x, bias, dy = (made.get(k) for k in ("x", "bias", "dy"))
        if back:
            args: tuple[Any, ...] = (dy, x, bias, made.get("residual"), chosen)
            outputs = [("dx", shape, draw.dtype), ("dbias", (shape[axis],), of_bias)]
            operands = [a for a in (dy, x, made.get("residual")) if a is not None]
        else:
            args = (x, bias, chosen)
            named["residual"] = made.get("residual")
            outputs = [("y", shape, draw.dtype)]
            operands = [a for a in (x, made.get("residual")) if a is not None]
        keeps = entry == "forward" and activation is not None
        outs = draw.outs(
            outputs,
            {} if keeps else {0: tuple(operands)},
            forbidden=tuple(operands) if keeps else (),
            skips=back,
            accumulates=back,
        )
        return Request(
            op.name, entry, draw.framework, draw.dtype, args, named,
            notes={"axis": axis, "activation": name, "made": made}, **outs,
        )  # fmt: skip

    def layout_free(self, request: Request) -> bool:
        if is_sum(fa.ops[request.op]):
            return reductions.one_run(request)
        shape = next(iter(request.notes["made"].values())).shape
        return request.entry != "backward" or len(shape) <= 2

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        if is_sum(fa.ops[request.op]):
            return reductions.exact_sum(request, values)
        notes, dtype = request.notes, request.dtype
        made, name = notes["made"], notes["activation"]
        axis, compute = notes["axis"], computed_in(request.dtype)
        device = request.framework == "emulated"
        op = None if name == "identity" else fa.ops[name]
        given = activations.given_numbers(op, request.named, dtype) if op else {}
        with np.errstate(all="ignore"):
            of = {k: full(a, values).astype(compute) for k, a in made.items()}
            if "x" in of:
                z = reference.biased(of["x"], of["bias"], axis, of.get("residual"))
            else:
                z = of["dy"]
            z = wide(z, dtype)
            judged = np.isfinite(z) if given else None
            nan = np.isnan(z)
            if request.entry != "backward":
                y = z if op is None else evaluate("forward", name, z, dtype, given)
                error = allowed(op, "forward", z, y, dtype, device, given)
                found = Expected(y, error, dtype.itemsize == 2, judged, nan)
                return [found] + ([None] * 3 if request.entry == "forward" else [])
            dy = np.broadcast_to(wide(of["dy"], dtype), z.shape)
            slope = 1.0 + 0 * z
            if op is not None:
                slope = evaluate("derivative", name, z, dtype, given)
            dx = dy * (slope if op is not None else 1.0)
            error = np.abs(dy) * allowed(op, "backward", z, slope, dtype, device, given)
            of_term = error + (0 if op is None else ulp(dx, compute) / 2)
            of_dx = error if dtype.itemsize > 2 and not request.accumulate else of_term
            usual = np.isfinite(dx) & (np.abs(slope) <= np.finfo(compute).max)
            judged = usual if judged is None else usual & judged
            others = tuple(i for i in range(dx.ndim) if i != axis % dx.ndim)
            total, size = dx.sum(others), np.abs(dx).sum(others)
            total = total + wide(added_to(request, values, 1), FLOAT64)
            of_sum = of_term.sum(others) + fa.ops[request.op].bounds.dbias.absolute * size
            more = wide(added_to(request, values, 0), dtype)
            if dtype.itemsize == 2 and request.accumulate:
                of_dx = of_dx + ulp(dx + more, compute) / 2
        kept = judged.all(others) & (size < 1e300)
        return [
            Expected(dx + more, of_dx, True, judged, nan)
            if is_made(request, 0) else None,
            Expected(total, of_sum, True, kept) if is_made(request, 1) else None,
        ]  # fmt: skip

    def holds(self, request: Request, name: str, value: float) -> bool:
        activation = fa.ops.get(request.notes.get("activation", ""))
        if activation is None:
            return True
        return activations.Activations.holds(
            self,
            _as(request, activation.name),
            name,
            value,  # type: ignore[arg-type]
        )


def _as(request: Request, op: str) -> Request:
    from dataclasses import replace

    return replace(request, op=op)
