"""Recurrent gates: the formulas of `derivatives/gates.py`, in the oracle's type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...derivatives import formulas, gates
from ...derivatives.operations import Operations
from ...measure.cases import Case
from .. import reference
from .common import Expected, widened

_BIASES = ("bias", "recurrent_bias")


class _Wide(Operations):
    """NumPy's arithmetic, and the oracle's activations."""

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        return reference.forward(op.name, x, **parameters)


_WIDE = _Wide(np)


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
    values = dict(zip(op.results, gates.results(op, named, _WIDE), strict=True))
    each = gates.activated(op, named, _WIDE).values()
    like = named[op.state].shape
    values["gates"] = np.concatenate([np.broadcast_to(gate, like) for gate in each], axis=-1)
    scales = _scales(op, named, letters)
    if back:
        return _gradients(case, before, named, values, scales)
    if case.option("recompute"):  # nothing is kept
        del values["gates"]
    bound = op.bounds.allowed_state
    return {n: _judged(value, bound, scales, dtype=case.dtype) for n, value in values.items()}


def _scales(op: Any, named: Mapping[str, Any], letters: str) -> dict[str, Any]:
    """Give the magnitudes by which bounds are told, each of the state's shape."""
    sizes = {n: np.abs(named[n]) for n in ("gates", "recurrent", *_BIASES) if n in named}
    first, *others = sizes.values()
    reset, before = 0 * named[op.state], named[op.state]
    if op.takes_recurrent:
        for name in {"recurrent", "recurrent_bias"} & sizes.keys():
            reset = reset + np.split(sizes[name], len(letters), axis=-1)[letters.index("n")]
    sums = sum(np.split(sum(others, first), len(letters), axis=-1))
    return {"sums": sums, "before": before, "reset": reset}


def _gradients(
    case: Case,
    before: Case,
    named: Mapping[str, Any],
    values: Mapping[str, Any],
    scales: dict[str, Any],
) -> dict[str, Expected]:
    """Judge the gradients by the activated gates that were saved, or are computed again.

    A bias adds up the gradients of all rows.
    """
    op, bounds = case.op, case.op.bounds
    dys = [widened(case, f"d{n}") if case.has(f"d{n}") else None for n in op.results]
    saved = {n: values[n] for n in ("gates", "c") if n in values}
    if not case.option("recompute"):
        saved |= {n: widened(case, n) for n in saved if case.has(n)}
    found = gates.gradients(op, dys, {**named, **saved}, _WIDE)
    scales["returned"] = np.asarray(sum(np.abs(dy) for dy in dys if dy is not None))
    made = {}
    for gradient, name in zip(op.gradients, op.differentiated, strict=True):
        at = formulas.standing(op, name, named)
        if name not in _BIASES:
            exact, bound = found[name], bounds.allowed_gradient
            made[gradient] = _judged(exact, bound, scales, dtype=case.dtype)
        elif at is not None:
            rows = _rows(found["recurrent" if name == "recurrent_bias" else "gates"])
            flat = {n: _rows(p) for n, p in scales.items()}
            told = {"dtype": case.dtype, "to": np.asarray(before.given[at]).dtype}
            made[gradient] = _judged(rows, bounds.allowed_dbias, flat, rows.sum(0), **told)
    return made


def _rows(array: Any) -> Any:
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _judged(
    value: Any, bound: Callable[..., Any], scales: Mapping[str, Any], exact: Any = None, **told: Any
) -> Expected:
    """Judge an array of the state's shape, or several side by side, as the scales are repeated.

    exact : the sum of its rows, where that is judged.
    """
    exact = np.asarray(value if exact is None else exact)
    error = np.zeros(exact.shape)
    if np.size(value):
        times = {n: np.shape(value)[-1] // p.shape[-1] for n, p in scales.items()}
        whole = {n: np.concatenate([p] * times[n], axis=-1) for n, p in scales.items()}
        error = (1 + reference.BUDGET) * bound(value, **whole, **told)
    return Expected(exact, error, False, np.isfinite(exact) & np.isfinite(error))
