"""Recurrent gates."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastact as fa
from fastact.check.gates import Exact, Step, exact, repeated

from ..cases import FLOAT64, Array, Draw, Request, computed_in, draw
from ..judge import Expected, ulp
from ..oracle import reference
from .base import Adapter, added_to, is_made


def allowed(op: Any, entry: str, value: Any, true: Exact, dtype: np.dtype[Any], to: Any) -> Any:
    """How far off a result may be: of a state ("forward"), a gradient, or ("bias") a bias's one."""
    if not np.size(value):
        return np.zeros(np.shape(value)[-1:] if entry == "bias" else np.shape(value))
    sums, before, returned, reset = (
        repeated(part, value) for part in (true.sums, true.before, true.returned, true.reset)
    )
    if entry == "forward":
        found = op.bounds.allowed_state(value, sums, before, dtype, reset)
    elif entry == "backward":
        found = op.bounds.allowed_gradient(value, sums, before, returned, dtype, reset)
    else:
        width = value.shape[-1]
        parts = (p.reshape(-1, width) for p in (value, sums, before, returned))
        found = op.bounds.allowed_dbias(*parts, dtype, to, reset.reshape(-1, width))
    return (1 + reference.BUDGET) * found


class Gates(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        r = draw.r
        entry = r.choice(("call", "forward", "backward", "backward"))
        shape = draw.shape(1, 4, nonzero=draw.chance(0.9))
        packed = (*shape[:-1], op.count * shape[-1])
        by_position = op.entry_points["call"].arrays
        state, recompute = op.state, draw.chance(0.3)
        narrow = draw.chance(0.15) and draw.framework != "plain"
        values = r.choice(("plain", "plain", "wide", "specials" if entry == "call" else "plain"))
        made: dict[str, Array] = {}
        made["gates"] = draw.array("gates", packed, values, leads=True)
        of_bias = FLOAT64 if narrow else draw.dtype
        if op.takes_recurrent or draw.chance(0.5):
            made["recurrent"] = draw.array("recurrent", packed, "plain")
        for bias in ("bias", "recurrent_bias"):
            if draw.chance(0.5):
                made[bias] = draw.array(bias, (packed[-1],), "plain", of_bias)
        made[state] = draw.array(state, shape, "plain", number=entry != "backward")
        named: dict[str, Any] = {}
        notes: dict[str, Any] = {"made": made, "state": state, "shape": shape}
        order = ""
        if "order" in op.entry_points["call"].defaults and draw.chance(0.4):
            order = "".join(r.sample(op.letters, op.count))
            named["order"] = order
        notes["order"] = order
        notes["recompute"] = recompute = recompute and entry != "call"
        if recompute:
            named["recompute"] = True
        if entry == "backward":
            return self._back(op, draw, notes, named)
        named |= {k: array for k, array in made.items() if k not in by_position}
        first = tuple(made[k] for k in by_position)
        outputs: list[Any] = [(k, shape, draw.dtype) for k in op.results]
        if entry == "forward":
            kept = (*shape[:-1], len(op.kept) * shape[-1])
            outputs.append(None if recompute else ("kept", kept, draw.dtype))
        places: dict[int, tuple[Array, ...]] = {0: (made[state],)} if entry == "call" else {}
        outs = draw.outs(outputs, places, forbidden=(made[state],) if entry == "forward" else ())
        if outs and len(outs["outs"]) > 1:
            outs["as_tuple"] = True
        return Request(
            op.name, entry, draw.framework, draw.dtype, first, named, notes=notes, **outs
        )

    def _back(self, op: Any, draw: Draw, notes: dict[str, Any], named: dict[str, Any]) -> Request:
        made, shape, state = notes["made"], notes["shape"], notes["state"]
        two_products, recompute = op.takes_recurrent, notes["recompute"]
        packed = made["gates"].shape
        notes["before"] = dict(made)  # what the activated gates are made of
        if not recompute:
            kept = (*shape[:-1], len(op.kept) * shape[-1])
            made["gates"] = draw.array("gates", kept, leads=True)
            made.pop("recurrent", None)
        if "c" in op.saves and not recompute:
            made["c"] = draw.array("c", shape)
        made["dh"] = draw.array("dh", shape, number=True)
        gradients: list[Any] = [made["dh"]]
        if "c" in op.results:
            if draw.chance(0.6):
                made["dc"] = draw.array("dc", shape, number=True)
            gradients.append(made.get("dc"))
        saved = [made.get(key) for key in op.saves]
        dtype = draw.dtype
        outputs: list[Any] = [("dgates", packed, dtype)]
        if two_products:
            outputs.append(("drecurrent", packed, dtype))
        outputs.append(("dstate", shape, dtype))
        of = made.get("bias") or (None if two_products else made.get("recurrent_bias"))
        outputs.append(("dbias", of.shape, of.dtype) if of else None)
        if two_products:
            of = made.get("recurrent_bias")
            outputs.append(("drecurrent_bias", of.shape, of.dtype) if of else None)
        # The gradient of the state before may be written over that state, or over dh.
        places: dict[int, tuple[Array, ...]] = {2 if two_products else 1: (made[state], made["dh"])}
        if recompute:
            places[0] = (made["gates"],)
        outs = draw.outs(outputs, places, accumulates=True, skips=True)
        return Request(
            op.name,
            "backward",
            draw.framework,
            dtype,
            (*gradients, *saved),
            named,
            notes=notes,
            **outs,
        )

    def fill(self, request: Request, rng: np.random.Generator) -> dict[str, Any]:
        """What backward is given as saved is what forward saves, rounded."""
        values = super().fill(request, rng)
        notes = request.notes
        if request.entry != "backward":
            return values
        before = {
            k: values[k] if k in values and k != "gates" else draw(rng, a.drawn, a.dtype, a.values)
            for k, a in notes["before"].items()
        }
        if notes["recompute"]:
            before["gates"] = values["gates"]
        values["before"] = before
        if not notes["recompute"]:
            step = self._step(request, values)
            made, true = notes["made"], exact(step)
            kept = {"gates": true.kept, "c": true.results[-1]}
            for name, value in kept.items():
                if name in made:
                    a = made[name]
                    at = tuple(slice(0, 1) if i in a.repeats else slice(None)
                               for i in range(len(a.shape)))  # fmt: skip
                    values[name] = np.broadcast_to(value, a.shape)[at].astype(a.dtype)
        return values

    def layout_free(self, request: Request) -> bool:
        return request.entry != "backward" or len(request.notes["shape"]) <= 2

    def _step(self, request: Request, values: dict[str, Any]) -> Step:
        notes = request.notes
        before = notes.get("before", notes["made"])
        drawn = values.get("before", values)
        shape = notes["shape"]

        def of(name: str) -> Any:
            if name not in before:
                return None
            array = before[name]
            return np.broadcast_to(drawn[name], array.shape if array.form != "number" else shape)

        def gradient(name: str) -> Any:
            array = notes["made"].get(name)
            if array is None:
                return None
            return np.broadcast_to(values[name], array.shape if array.form != "number" else shape)

        state = of(notes["state"])
        dh = gradient("dh")
        return Step(
            fa.ops[request.op],
            of("gates"),
            state,
            np.zeros(shape) if dh is None else dh,
            of("recurrent"),
            of("bias"),
            of("recurrent_bias"),
            gradient("dc"),
            notes["order"],
        )

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        op, dtype, notes = fa.ops[request.op], request.dtype, request.notes
        step, self._values = self._step(request, values), values
        with np.errstate(all="ignore"):
            if request.entry != "backward":
                return self._forward(request, op, step, dtype)
            saved: tuple[Any, ...] = ()
            if not notes["recompute"]:
                made = notes["made"]
                c = np.broadcast_to(values["c"], made["c"].shape) if "c" in made else None
                gates = np.broadcast_to(values["gates"], made["gates"].shape)
                saved = tuple({"gates": gates, "c": c}.get(name) for name in op.saves)
            return self._backward(request, op, exact(step, saved))

    def _backward(self, request: Request, op: Any, true: Exact) -> list[Expected | None]:
        notes, dtype, two_products = request.notes, request.dtype, op.takes_recurrent
        packed = [true.dgates] + ([true.drecurrent] if two_products else [])
        values = [*packed, true.dstate]
        # The gradient of which bias.
        biases = ("bias", "recurrent_bias")
        of_biases = [("bias",), ("recurrent_bias",)] if two_products else [biases]
        found: list[Expected | None] = []
        for i, value in enumerate([*values, *packed]):
            is_bias = i >= len(values)
            there, to = is_made(request, i), dtype
            if is_bias:
                given = [k for k in of_biases[i - len(values)] if k in notes["made"]]
                there = there and bool(given)
                to = notes["made"][given[0]].dtype if given else dtype
            if not there:
                found.append(None)
                continue
            error = allowed(op, "bias" if is_bias else "backward", value, true, dtype, to)
            if is_bias:
                value = value.sum(tuple(range(value.ndim - 1)))
            base = added_to(request, self._values, i)
            total = value + base
            if request.accumulate:  # a sum in the type that is computed in
                size = np.abs(value) + np.abs(base)
                error = error + ulp(size, computed_in(to)) + ulp(total, to) / 2
            judged = np.isfinite(total) & np.isfinite(error)
            found.append(Expected(total, error, False, judged))
        return found

    def _forward(
        self, request: Request, op: Any, step: Step, dtype: np.dtype[Any]
    ) -> list[Expected | None]:
        true = exact(step)

        def of(value: Any) -> Expected:
            error = allowed(op, "forward", value, true, dtype, dtype)
            return Expected(value, error, False, np.isfinite(value) & np.isfinite(error))

        found: list[Expected | None] = [of(np.asarray(y)) for y in true.results]
        if request.entry == "forward":
            saved: list[Expected | None] = [None] * len(op.saves)
            if not request.notes["recompute"]:
                saved[0] = of(np.asarray(true.kept))
            found += saved
        return found
