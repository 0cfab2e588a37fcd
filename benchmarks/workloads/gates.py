"""The benchmark of the recurrent gates: forward adds up, activates and keeps, backward writes all.

Forward of an LSTM reads its gates, their recurrent projection and c, and writes h and c; backward
reads the activated gates and four states, and writes the gates' gradients and c's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from .. import shapes
from ..shapes import Layout
from .libraries import Library, unless_missing
from .work import Asked, Case, Family


def _accesses(op: Any, direction: str) -> int:
    """How many arrays of a state's shape are read or written once, biases aside."""
    states = len(op.results)
    if direction == "forward":  # gates, their recurrent projection, the state before, results
        return int(op.count + op.count + 1 + states)
    packed = op.count * sum(name in op.gradients for name in ("dgates", "drecurrent"))
    return int(len(op.kept) + 2 * states + packed + 1)  # what is saved and comes back; gradients


def _cases(asked: Asked) -> list[Case]:
    # A size counts all that forward of an LSTM adds up: 8 arrays of 64 units.
    sized = [Layout("", (max(size // (8 * 64), 1), 64)) for size in asked.sizes or ()]
    states = asked.layouts(shapes.STATES, sized or shapes.GPU_STATES)
    accesses = _accesses(asked.op, asked.direction)
    return [asked.case(state.shape, accesses) for state in states]


# --- the step as a chain of array operations: m has what torch, numpy and jax call differently ----


def _lstm(m: Any, gates: Any, c_prev: Any, recurrent: Any, bias: Any) -> Any:
    i, f, g, o = m.split(gates + recurrent + bias)
    c = m.sigmoid(f) * c_prev + m.sigmoid(i) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(c), c


def _gru(m: Any, gates: Any, recurrent: Any, h_prev: Any, bias: Any) -> Any:
    (xr, xz, xn), (ur, uz, un) = m.split(gates + bias), m.split(recurrent)
    z = m.sigmoid(xz + uz)
    return (1 - z) * m.tanh(xn + m.sigmoid(xr + ur) * un) + z * h_prev


def _reset(m: Any, gates: Any, h_prev: Any, recurrent: Any, bias: Any) -> Any:
    return m.sigmoid(gates + recurrent + bias) * h_prev


def _blend(m: Any, gates: Any, h_prev: Any, recurrent: Any, bias: Any) -> Any:
    z, n = m.split(gates + recurrent + bias)
    z = m.sigmoid(z)
    return (1 - z) * m.tanh(n) + z * h_prev


_STEPS = {"lstm_gates": _lstm, "gru_gates": _gru, "gru_reset": _reset, "gru_blend": _blend}


def _by(m: Library, case: Case) -> Callable[..., Any]:
    step = unless_missing(_STEPS.get(case.op.name), case.op.name)
    functions = {name: m.activation(name) for name in ("sigmoid", "tanh")}
    return partial(step, SimpleNamespace(split=m.split(case.op.count), **functions))


GATES = Family(
    _cases,
    _by,
    optional=("recurrent", "bias"),
    note="Gates: with a recurrent projection and a bias added inside; peers by their chain of ops.",
)
