"""Gated activations, by the formula and the bounds that `python -m fastact check` holds them to."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastact as fa
from fastact.check.gated import Case

from ..cases import FLOAT64, Draw, Request, computed_in, number
from ..judge import Expected, ulp
from ..oracle import reference, wide
from .base import Adapter, added_to, full, is_made

_VALUES = ("wide", "wide", "plain", "specials")
#: Activations that the oracle has in long double without digit by digit.
_NAMES = [name for name in reference.FORWARD if name not in reference.BY_DIGITS]


class Gated(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        r, entry = draw.r, draw.r.choice(("call", "forward", "backward", "backward"))
        shape = draw.shape(1)
        axis = r.randrange(-len(shape), len(shape))
        packed = (*shape[:axis], 2 * shape[axis], *shape[axis % len(shape) + 1 :])
        arrays = ["x"] if op.packed else ["a", "b"]
        made = {
            arrays[0]: draw.leader(arrays[0], packed if op.packed else shape, r.choice(_VALUES))
        }
        if not op.packed:
            made["b"] = draw.array("b", shape, r.choice(_VALUES), number=True)
        if entry == "backward":
            made["dy"] = draw.array("dy", shape, r.choice(("plain", "wide")), number=True)
        of_bias = draw.dtype
        if draw.chance(0.4):
            wider = r.random() < 0.2 and draw.dtype != FLOAT64 and draw.framework != "plain"
            of_bias = FLOAT64 if wider else draw.dtype
            made["bias"] = draw.array("bias", (2 * shape[axis],), "wide", of_bias)
        named: dict[str, Any] = {}
        takes = op.entry_points["call"].defaults
        if "activation" in takes and draw.chance(0.8):
            name = r.choice(("identity", "silu", r.choice(_NAMES)))
            named["activation"] = name if name == "identity" else r.choice((name, fa.ops[name]))
        if "alpha" in takes and draw.chance(0.5):
            named["alpha"] = number(r, 1, 1.702, 0.5)
        if op.packed:
            named |= {"gate": "first"} if draw.chance(0.3) else {}
            named |= {"interleaved": True} if draw.chance(0.3) else {}
        if draw.chance(0.3):
            named["limit"] = number(r, 7, 0.5)
        if draw.chance(0.3):
            named["offset"] = number(r, 1, -0.25)
        if axis != -1 or draw.chance(0.3):
            named["axis"] = axis
        operands = tuple(made[k] for k in (*arrays, "dy") if k in made)
        if entry == "backward":
            args: tuple[Any, ...] = (made["dy"], *(made[k] for k in arrays), made.get("bias"))
            outputs = [(f"d{k}", packed if op.packed else shape, draw.dtype) for k in arrays]
            if "bias" in made:
                outputs.append(("dbias", (2 * shape[axis],), of_bias))
            places = {0: operands[:1]} if op.packed else {0: operands, 1: operands}
            outs = draw.outs(outputs, places, skips=True, accumulates=True)
        else:
            args = tuple(made[k] for k in arrays)
            named |= {"bias": made["bias"]} if "bias" in made else {}
            free = entry == "call" and not op.packed
            outs = draw.outs(
                [("y", shape, draw.dtype)],
                {0: operands} if free else {},
                forbidden=() if free else operands,
            )
        return Request(
            op.name, entry, draw.framework, draw.dtype, args, named,
            notes={"axis": axis, "made": made}, **outs,
        )  # fmt: skip

    def layout_free(self, request: Request) -> bool:
        return request.entry != "backward" or "bias" not in request.notes["made"]

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        op, dtype, made = fa.ops[request.op], request.dtype, request.notes["made"]
        axis, device = request.notes["axis"], request.framework == "emulated"
        options = {
            k: getattr(v, "value", v) for k, v in request.named.items() if k not in ("bias", "axis")
        }
        given = {k: full(array, values) for k, array in made.items()}
        shaped = Case(op, *[np.zeros(1)] * 3, {**options, "axis": axis})
        if op.packed:
            a, b = shaped.parts(given["x"], axis)
        else:
            a = given["a"]
            b = np.broadcast_to(given["b"], a.shape).astype(dtype)
        bias = shaped.parts(given["bias"], 0) if "bias" in given else None
        dy = np.broadcast_to(given.get("dy", np.ones((), dtype)), a.shape).astype(dtype)
        case = Case(op, a, b, dy, {**options, "axis": axis}, bias, device)
        activation = op.activation_of(options)[0]
        by_digits = activation is not None and activation.name in reference.BY_DIGITS
        if dtype == FLOAT64 and by_digits and a.size > 200:  # it would take minutes
            saved, gradients = len(op.saves), (1 if op.packed else 2) + (bias is not None)
            return [None] * {"call": 1, "forward": 1 + saved}.get(request.entry, gradients)
        with np.errstate(all="ignore"):
            judged = case.judged
            oracle = case.oracle
        # What overflows on the way, and where the oracle has no limits of other parameters.
        usual = np.isfinite(oracle.a) & np.isfinite(oracle.b)
        if request.entry != "backward":
            y, error = judged["y"]
            usual = usual & np.isfinite(y)
            found = Expected(y, error, False, usual, np.isnan(oracle.a) | np.isnan(oracle.b))
            return [found] if request.entry == "call" else [found, *[None] * len(op.saves)]
        results: list[Expected | None] = []
        # Products on the way that are too large, or that are subnormal numbers.
        info = np.finfo(computed_in(dtype))
        with np.errstate(all="ignore"):
            g, slope = wide(dy, dtype) * oracle.c, oracle.slope(oracle.z)
            tiny = float(info.smallest_subnormal) * (1 + np.abs(slope))
        usual = usual & (np.abs(g) < info.max) & np.isfinite(slope)
        parts = [(exact, error + tiny) for exact, error in (judged["da"], judged["db"])]
        of = [usual & (np.abs(exact) < info.max) for exact, _ in parts]
        summed = of[0] & of[1]
        if op.packed:
            pair = [case.packed(p, q, axis) for p, q in zip(*parts, strict=True)]
            parts, of = [tuple(pair)], [case.packed(*of, axis)]  # type: ignore[list-item]
        others = tuple(i for i in range(a.ndim) if i != axis % a.ndim)
        for i, ((exact, error), where) in enumerate(zip(parts, of, strict=True)):
            results.append(self._sum(request, values, i, exact, error, where, dtype))
        if bias is not None:
            total = tiny.sum(axis=others)  # a sum has those of all its terms, whatever its dtype
            pair = [
                case.packed(p, q, 0)
                for p, q in zip(judged["dbias_a"], judged["dbias_b"], strict=True)
            ]
            pair[1] = pair[1] + case.packed(total, total, 0)
            kept = summed.all(others)
            where = case.packed(kept, kept, 0) & (np.abs(pair[0]) < 1e300)
            results.append(self._sum(request, values, len(parts), *pair, where, made["bias"].dtype))
        return results

    def _sum(
        self,
        request: Request,
        values: dict[str, Any],
        index: int,
        exact: Any,
        error: Any,
        where: Any,
        dtype: np.dtype[Any],
    ) -> Expected | None:
        """A gradient, or what it is added to with it."""
        if not is_made(request, index):
            return None
        if request.accumulate:
            with np.errstate(all="ignore"):
                exact = exact + wide(added_to(request, values, index), dtype)
                error = error + ulp(exact, computed_in(dtype)) + ulp(exact, dtype) / 2
        return Expected(exact, error, False, where)

    def holds(self, request: Request, name: str, value: float) -> bool:
        if name == "limit" or name == "alpha":
            return value > 0
        return True
