"""Recurrent gates: a step as whole arrays, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...derivatives import gates as formulas
from ...derivatives.operations import Operations
from ...measure.cases import Case
from .. import reference
from .common import Expected

Array = NDArray[Any]
_BIASES = ("bias", "recurrent_bias")


@dataclass
class Step:
    """The arrays of a call of an op, in one dtype, packed in `order`."""

    op: Any
    gates: Array
    state: Array
    dh: Array
    recurrent: Array | None = None
    bias: Array | None = None
    recurrent_bias: Array | None = None
    dc: Array | None = None
    order: str = ""
    recompute: bool = False

    @property
    def letters(self) -> str:
        """The gates in the order in which they are packed."""
        letters: str = self.op.letters
        return self.order.replace("c", "g") or letters

    @property
    def kept(self) -> str:
        """The letters of the gates that forward keeps, in its order."""
        more: str = self.op.kept[self.op.count :]
        return self.letters + more


class _Wide(Operations):
    """NumPy's arithmetic, and the oracle's activations."""

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        return reference.forward(op.name, x, **parameters)


_WIDE = _Wide(np)


@dataclass
class Exact:
    """The results and gradients of a `Step`, by name, and the scales of their errors' bounds."""

    values: dict[str, Array]
    sums: Array
    before: Array
    returned: Array
    reset: Array


def exact(step: Step, saved: tuple[Array, ...] = ()) -> Exact:
    """Compute a step in the oracle's type. saved: what backward is given, where it is rounded."""
    op, made_in = step.op, reference.wide(step.gates.dtype)
    arrays = {"gates": step.gates, "recurrent": step.recurrent, op.state: step.state}
    arrays |= {"bias": step.bias, "recurrent_bias": step.recurrent_bias}
    named: dict[str, Any] = {n: a.astype(made_in) for n, a in arrays.items() if a is not None}
    named["order"], like = step.kept, step.state.shape
    each = formulas.activated(op, named, _WIDE).values()
    values = dict(zip(op.results, formulas.results(op, named, _WIDE), strict=True))
    values["gates"] = np.concatenate([np.broadcast_to(gate, like) for gate in each], axis=-1)
    given = dict(zip(op.saves, saved or (None,) * len(op.saves), strict=True))
    back = {n: values[n] if given.get(n) is None else given[n].astype(made_in)
            for n in ("gates", "c") if n in values}  # fmt: skip
    dys = [None if dy is None else dy.astype(made_in) for dy in (step.dh, step.dc)]
    found = formulas.gradients(op, dys[: len(op.results)], {**named, **back}, _WIDE)
    values |= {f"d{n}": found[n] for n in ("gates", "recurrent", op.state)}
    summands = [abs(named[n]) for n in ("gates", "recurrent", *_BIASES) if n in named]
    sums = sum(np.split(sum(summands[1:], summands[0]), len(step.letters), axis=-1))
    reset = 0 * named[op.state]
    if op.takes_recurrent:
        at = step.letters.index("n")
        for name in {"recurrent", "recurrent_bias"} & named.keys():
            reset = reset + abs(np.split(named[name], len(step.letters), axis=-1)[at])
    returned = sum(abs(dy) for dy in dys if dy is not None)
    return Exact(values, np.asarray(sums), named[op.state], np.asarray(returned), np.asarray(reset))


def _judged(of: str, op: Any, name: str, true: Exact, dtype: Any, to: Any = None) -> Expected:
    """A "state", a "gradient", or a "bias" by its rows' gradients, in `to`."""
    value = np.asarray(true.values[name])
    width, scales = value.shape[-1], [true.sums, true.before, true.returned, true.reset]
    if not value.size:
        found = np.zeros(value.shape[-1:] if of == "bias" else value.shape)
    else:  # arrays of the state's shape, once for each gate of a packed one
        scales = [np.concatenate([p] * (width // p.shape[-1]), axis=-1) for p in scales]
        if of == "state":
            found = op.bounds.allowed_state(value, scales, dtype)
        elif of == "gradient":
            found = op.bounds.allowed_gradient(value, scales, dtype)
        else:
            rows, *scales = (p.reshape(-1, width) for p in (value, *scales))
            found = op.bounds.allowed_dbias(rows, scales, dtype, to)
    if of == "bias":
        value = value.sum(tuple(range(value.ndim - 1)))
    error = (1 + reference.BUDGET) * found
    return Expected(value, error, False, np.isfinite(value) & np.isfinite(error))


def of_forward(step: Step, true: Exact) -> dict[str, Expected]:
    """The states, and the gates that are kept."""
    names, dtype = (*step.op.results, "gates"), step.gates.dtype
    return {name: _judged("state", step.op, name, true, dtype) for name in names}


def of_backward(step: Step, true: Exact) -> dict[str, Expected]:
    """The gradients; a bias adds up the gradients of all rows."""
    op, dtype = step.op, step.gates.dtype
    biases = {
        "dbias": ("dgates", step.bias),
        "drecurrent_bias": ("drecurrent", step.recurrent_bias),
    }
    if not op.takes_recurrent and step.bias is None:  # one gradient for both
        biases["dbias"] = ("dgates", step.recurrent_bias)
    found = {}
    for name in op.gradients:
        of, bias = biases.get(name, (name, None))
        if name not in biases:
            found[name] = _judged("gradient", op, name, true, dtype)
        elif bias is not None:
            found[name] = _judged("bias", op, of, true, dtype, bias.dtype)
    return found


def expected(case: Case) -> dict[str, Expected]:
    """Give the results of a step, or its gradients.

    Of backward, `before` has the arrays that forward was given, by which the bounds are told.
    """
    op, back = case.op, case.entry == "backward"
    before = case.at("forward", **case.given.get("before", {})) if back else case
    of = {k: before.array(k) for k in ("gates", op.state, "recurrent", *_BIASES) if before.has(k)}
    results = [case.array(f"d{k}") if back and case.has(f"d{k}") else None for k in op.results]
    dh = np.zeros(case.shape) if results[0] is None else results[0]
    step = Step(
        op, of["gates"], of[op.state], dh, of.get("recurrent"), of.get("bias"),
        of.get("recurrent_bias"), results[1] if len(results) > 1 else None,
        case.given.get("order", ""),
    )  # fmt: skip
    if not back:
        found = of_forward(step, exact(step))
        if case.option("recompute"):  # nothing is kept
            del found["gates"]
        return found
    saved: tuple[Any, ...] = ()
    if not case.option("recompute"):
        made = {k: case.array(k) for k in ("gates", "c") if case.has(k)}
        saved = tuple(made.get(name) for name in op.saves)
    return of_backward(step, exact(step, saved))
