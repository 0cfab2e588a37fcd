"""The benchmark of the recurrent gates: forward adds up, activates and keeps, backward writes all.

Forward of an LSTM reads its gates, their recurrent projection and c, and writes h and c; backward
reads the activated gates and four states, and writes the gates' gradients and c's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..check import gates as _check_gates
from ..ops.gate import Gates
from .shapes import TINY, shape_label
from .workloads import (
    COMPILED,
    TORCH,
    Call,
    Case,
    Family,
    Options,
    Workload,
    as_tensor,
    ask_peers,
    compiled_by_torch,
    open_torch,
    ours_and_copy,
)

_SHAPES = {
    TINY: (8, 8),
    "cell": (256, 64),
    "wide": (64, 512),
    "large": (256, 1024),
    "memory": (16384, 1024),
}


def _cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    if not isinstance(op, Gates):
        return []
    return [
        Case(op, direction, dtype, options.threads, shape, shape_label(shape))
        for name, shape in _SHAPES.items()
        if not options.shapes or name in options.shapes
    ]


def _work(case: Case, peers: Sequence[str]) -> Workload:
    op = case.op
    step = _check_gates.random_step(op, case.shape, case.dtype)
    step.recurrent_bias = None
    results, saved = op.forward(*step.arrays, **step.options)
    results = results if isinstance(results, tuple) else (results,)
    ours: Callable[..., object]
    if case.direction == "forward":
        ours = partial(op, *step.arrays, **step.options)
        out = tuple(np.empty_like(y) for y in results)
    else:
        ours = partial(op.backward, *step.gradients, *saved)
        gradients = op.backward(*step.gradients, *saved)
        out = tuple(None if d is None else np.empty_like(d) for d in gradients)
    calls = ours_and_copy(ours, out, np.empty_like(step.state), step.state)
    theirs, left_out = ask_peers(_PEERS, peers, case, step, saved)
    return Workload(calls | theirs, accesses(op, case.direction) / 2, left_out)


def accesses(op: Any, direction: str) -> int:
    """How many arrays of a state's shape are read or written once, biases aside."""
    states = len(op.results)
    if direction == "forward":  # gates, their recurrent projection, the state before, results
        return int(op.count + op.count + 1 + states)
    packed = op.count * (2 if op.takes_recurrent else 1)
    return int(len(op.kept) + 2 * states + packed + 1)  # what is saved and comes back; gradients


def gate_chain(name: str, torch: Any) -> Callable[..., Any]:
    """The step as a chain of torch's operations."""
    sigmoid, tanh = torch.sigmoid, torch.tanh

    def lstm(gates: Any, state: Any, u: Any, bias: Any) -> Any:
        i, f, g, o = (gates + u + bias).chunk(4, -1)
        c = sigmoid(f) * state + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def gru(gates: Any, u: Any, state: Any, bias: Any) -> Any:
        (xr, xz, xn), (ur, uz, un) = (gates + bias).chunk(3, -1), u.chunk(3, -1)
        z = sigmoid(xz + uz)
        return ((1 - z) * tanh(xn + sigmoid(xr + ur) * un) + z * state,)

    def reset(gates: Any, state: Any, u: Any, bias: Any) -> Any:
        return (sigmoid(gates + u + bias) * state,)

    def blend(gates: Any, state: Any, u: Any, bias: Any) -> Any:
        z, n = (gates + u + bias).chunk(2, -1)
        z = sigmoid(z)
        return ((1 - z) * tanh(n) + z * state,)

    return {"lstm_gates": lstm, "gru_gates": gru, "gru_reset": reset, "gru_blend": blend}[name]


def _torch(case: Case, step: _check_gates.Step, saved: Any, compiles: bool = False) -> Call:
    torch = open_torch(case.threads)
    chain = gate_chain(case.op.name, torch)
    if compiles:
        chain = compiled_by_torch(torch, chain)
    arrays = [*step.arrays, *([] if case.op.takes_recurrent else [step.recurrent]), step.bias]
    tensors = [as_tensor(torch, np.asarray(a)) for a in arrays]
    if case.direction == "forward":
        return partial(chain, *tensors)
    leaves = [t.detach().requires_grad_() for t in tensors]
    results = chain(*leaves)
    gradients = [as_tensor(torch, np.asarray(d)) for d in step.gradients]
    return lambda: torch.autograd.grad(results, leaves, gradients, retain_graph=True)


_PEERS: dict[str, Callable[..., Call]] = {
    TORCH: _torch,
    COMPILED: partial(_torch, compiles=True),
}

FAMILY = Family(
    _cases,
    _work,
    note="Gates: with a recurrent projection and a bias added inside; torch by its chain of ops.",
)
