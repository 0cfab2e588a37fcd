"""The benchmark of the recurrent gates: forward adds up, activates and keeps, backward writes all.

Forward of an LSTM reads its gates, their recurrent projection and c, and writes h and c; backward
reads the activated gates and four states, and writes the gates' gradients and c's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastact.measure.peers import LeftOut

from .. import shapes
from ..shapes import Shape
from .work import Asked, Call, Case, Family, Work, unless_missing


def _accesses(op: Any, direction: str) -> int:
    """How many arrays of a state's shape are read or written once, biases aside."""
    states = len(op.results)
    if direction == "forward":  # gates, their recurrent projection, the state before, results
        return int(op.count + op.count + 1 + states)
    packed = op.count * sum(name in op.gradients for name in ("dgates", "drecurrent"))
    return int(len(op.kept) + 2 * states + packed + 1)  # what is saved and comes back; gradients


def _cases(asked: Asked) -> list[Case]:
    states: Sequence[Shape] = [one.shape for one in shapes.chosen(shapes.STATES, asked.shapes)]
    if asked.on_gpu:
        # A size counts all that forward of an LSTM adds up: 8 arrays of 64 units.
        sized = [(max(size // (8 * 64), 1), 64) for size in asked.sizes or ()]
        states = sized or shapes.GPU_STATES
    accesses = _accesses(asked.op, asked.direction)
    return [asked.case(state, accesses) for state in states]


# --- the step as a chain of array operations: m has what torch, numpy and jax call differently ----


def _lstm(m: Any, gates: Any, c_prev: Any, recurrent: Any, bias: Any) -> Any:
    i, f, g, o = m.split(gates + recurrent + bias, 4)
    c = m.sigmoid(f) * c_prev + m.sigmoid(i) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(c), c


def _gru(m: Any, gates: Any, recurrent: Any, h_prev: Any, bias: Any) -> Any:
    (xr, xz, xn), (ur, uz, un) = m.split(gates + bias, 3), m.split(recurrent, 3)
    z = m.sigmoid(xz + uz)
    return (1 - z) * m.tanh(xn + m.sigmoid(xr + ur) * un) + z * h_prev


def _reset(m: Any, gates: Any, h_prev: Any, recurrent: Any, bias: Any) -> Any:
    return m.sigmoid(gates + recurrent + bias) * h_prev


def _blend(m: Any, gates: Any, h_prev: Any, recurrent: Any, bias: Any) -> Any:
    z, n = m.split(gates + recurrent + bias, 2)
    z = m.sigmoid(z)
    return (1 - z) * m.tanh(n) + z * h_prev


_STEPS = {"lstm_gates": _lstm, "gru_gates": _gru, "gru_reset": _reset, "gru_blend": _blend}


def _step(case: Case, m: Any) -> Callable[..., Any]:
    return partial(unless_missing(_STEPS.get(case.op.name), case.op.name), m)


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    split = lambda x, parts: x.chunk(parts, -1)  # noqa: E731
    return _step(case, SimpleNamespace(split=split, sigmoid=torch.sigmoid, tanh=torch.tanh))


def _jax(jax: Any, case: Case) -> Callable[..., Any]:
    split = partial(jax.numpy.split, axis=-1)
    return _step(case, SimpleNamespace(split=split, sigmoid=jax.nn.sigmoid, tanh=jax.numpy.tanh))


def _numpy(case: Case, work: Work, threads: int) -> Call:
    if case.direction != "forward":
        raise LeftOut("the chain of its gradient is nobody's to write")
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    m = SimpleNamespace(split=partial(np.split, axis=-1), sigmoid=sigmoid, tanh=np.tanh)
    return partial(_step(case, m), **work.inputs)


GATES = Family(
    _cases,
    _torch,
    optional=("recurrent", "bias"),
    jax=_jax,
    others={"numpy": _numpy},
    note="Gates: with a recurrent projection and a bias added inside; peers by their chain of ops.",
)
