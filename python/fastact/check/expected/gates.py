"""Recurrent gates: the formulas of `derivatives/gates.py`, in the oracle's type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...derivatives import formulas, gates
from ...measure.cases import Case
from ...ops.bounds import unit_roundoff
from .common import WIDE, Expected, finite, widened

_BIASES = ("bias", "recurrent_bias")


def expected(case: Case) -> dict[str, Expected]:
    """Give the results of a step and the gates that it keeps, or the gradients.

    The bounds of backward are told by the arrays that forward was given, which `before` has.
    """
    op, back = case.op, case.entry == "backward"
    before = case.at("forward", **case.given.get("before", {})) if back else case
    takes = ("gates", "recurrent", op.state, *_BIASES)
    named = {name: widened(before, name) for name in takes if before.has(name)}
    letters = case.given.get("order", "").replace("c", "g") or op.letters
    named["order"] = letters + op.kept[op.count :]
    values = dict(zip(op.results, gates.results(op, named, WIDE), strict=True))
    each = gates.activated(op, named, WIDE).values()
    like = named[op.state].shape
    values["gates"] = np.concatenate([np.broadcast_to(gate, like) for gate in each], axis=-1)
    scale, again = _scales(op, named, letters)
    if back:
        return _gradients(case, before, named, values, scale * again)
    if case.option("recompute"):  # nothing is kept
        del values["gates"]
    error = op.bounds.state_ulp * unit_roundoff(case.dtype) * scale
    return {n: finite(value, _beside(error, value)) for n, value in values.items()}


def _scales(op: Any, named: Mapping[str, Any], letters: str) -> tuple[Any, Any]:
    """Give the scale of a state's errors, and by how much that of gradients is larger."""
    sizes = {n: np.abs(named[n]) for n in ("gates", "recurrent", *_BIASES) if n in named}
    first, *others = sizes.values()
    reset, before = 0 * named[op.state], np.abs(named[op.state])
    if op.takes_recurrent:
        for name in {"recurrent", "recurrent_bias"} & sizes.keys():
            reset = reset + np.split(sizes[name], len(letters), axis=-1)[letters.index("n")]
    sums = sum(np.split(sum(others, first), len(letters), axis=-1))
    again = (1 + before) * (1 + reset)
    return (1 + op.bounds.sums * sums) * again, again


def _gradients(
    case: Case,
    before: Case,
    named: Mapping[str, Any],
    values: Mapping[str, Any],
    scale: Any,
) -> dict[str, Expected]:
    """Judge the gradients by the activated gates that were saved, or are computed again.

    A bias adds up the gradients of all rows. scale : of the errors, for gradients that come back of
    magnitude 1.
    """
    op, bounds = case.op, case.op.bounds
    dys = [widened(case, f"d{n}") if case.has(f"d{n}") else None for n in op.results]
    saved = {n: values[n] for n in ("gates", "c") if n in values}
    if not case.option("recompute"):
        saved |= {n: widened(case, n) for n in saved if case.has(n)}
    found = gates.gradients(op, dys, {**named, **saved}, WIDE)
    returned = np.asarray(sum(np.abs(dy) for dy in dys if dy is not None))
    each = bounds.gradient_ulp * unit_roundoff(case.dtype) * scale * returned
    made = {}
    for gradient, name in zip(op.gradients, op.differentiated, strict=True):
        at = formulas.standing(op, name, named)
        if name not in _BIASES:
            made[gradient] = finite(found[name], _beside(each, found[name]))
        elif at is not None:
            exact = found["recurrent" if name == "recurrent_bias" else "gates"]
            parts = exact, np.abs(exact), _beside(each, exact)
            total, size, error = (_rows(part).sum(0) for part in parts)
            to = np.asarray(before.given[at]).dtype
            allowed = bounds.dbias.allowed(total, size, to, error) if exact.size else 0 * total
            made[gradient] = finite(total, allowed, rounds=False)
    return made


def _rows(array: Any) -> Any:
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _beside(error: Any, packed: Any) -> Any:
    """Repeat an error of the state's shape for the arrays that lie beside each other in one."""
    times = packed.shape[-1] // max(error.shape[-1], 1)
    return np.concatenate([error] * times, axis=-1) if packed.size else np.zeros(packed.shape)
