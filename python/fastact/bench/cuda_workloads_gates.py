"""Gates in the GPU benchmark: a recurrent projection and a bias inside; backward with dbias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cuda_work import Family, GpuCase, GpuWork, Maker, Tensors, gradients_of, peers_of
from .workloads_gates import gate_chain

#: Rows and units of a state: a small cell, a wide and large ones, and out of the caches.
_GATE_SHAPES = ((256, 64), (64, 512), (256, 1024), (1024, 2048), (4096, 1024), (4096, 4096))

_GATES = {"lstm_gates": 4, "gru_gates": 3, "gru_reset": 1, "gru_blend": 2}

#: Arrays of a state's shape that each direction reads and writes once, biases aside.
_GATE_ACCESSES = {
    "lstm_gates": {"forward": 4 + 4 + 1 + 2, "backward": 4 + 4 + 4 + 1},
    "gru_gates": {"forward": 3 + 3 + 1 + 1, "backward": 4 + 2 + 3 + 3 + 1},
    "gru_reset": {"forward": 1 + 1 + 1 + 1, "backward": 1 + 2 + 1 + 1},
    "gru_blend": {"forward": 2 + 2 + 1 + 1, "backward": 2 + 2 + 2 + 1},
}


def _gate_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    accesses = _GATE_ACCESSES[op.name][direction]
    # A size is that of all that forward of an LSTM adds up: 8 arrays of 64 units.
    shapes = [(max(size // (8 * 64), 1), 64) for size in sizes] if sizes else _GATE_SHAPES
    return [GpuCase(op, direction, dtype, shape, accesses=accesses) for shape in shapes]


def _gate_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """Tensors are what the chain takes, gradients, what else is saved, and outputs, backwards."""
    op, (rows, columns) = case.op, case.shape
    is_lstm, is_gru = op.name == "lstm_gates", op.name == "gru_gates"
    states = 2 if is_lstm else 1
    packed = (rows, _GATES[op.name] * columns)
    chain = gate_chain(op.name, device.torch)

    def given(tensors: Tensors) -> tuple[Tensors, dict[str, Any], Any]:
        """The call's arrays and options, and the state."""
        if is_gru:  # gates, recurrent, state, bias
            return tensors[:3], {"bias": tensors[3]}, tensors[2]
        return tensors[:2], {"recurrent": tensors[2], "bias": tensors[3]}, tensors[1]

    def random(*shapes: Sequence[int]) -> Tensors:
        return tuple(device.random(shape, case.dtype) for shape in shapes)

    def empty(*shapes: Sequence[int]) -> Tensors:
        return tuple(device.empty(shape, case.dtype) for shape in shapes)

    def make() -> Tensors:
        second = (packed, case.shape) if is_gru else (case.shape, packed)
        inputs = random(packed, *second, packed[1:])
        if case.direction == "forward":
            return (*inputs, *empty(*[case.shape] * states))
        arrays, options, _ = given(inputs)
        saved = op.forward(*arrays, **options)[1]
        also = (saved[0], saved[2]) if is_lstm else (saved[0],)
        outs = [packed[1:], case.shape, *[packed] * is_gru, packed]
        return (*inputs, *random(*[case.shape] * states), *also, *empty(*outs))

    def forward(tensors: Tensors, out: Any) -> Any:
        arrays, options, _ = given(tensors)
        results = op(*arrays, **options, out=out)
        return results[0] if is_lstm else results

    def backward(tensors: Tensors, out: Any) -> Any:
        _, options, state = given(tensors)
        dh, kept = tensors[4], tensors[4 + states]
        arrays: Tensors = (dh, kept, None, state) if is_gru else (dh, kept, state)
        if is_lstm:
            arrays = (dh, tensors[5], kept, state, tensors[7])
        return op.backward(*arrays, bias=options["bias"], out=out)[0]

    def outs(tensors: Tensors) -> Any:
        if case.direction == "forward":
            return tensors[:3:-1] if is_lstm else tensors[-1]
        return (*tensors[: -4 - is_gru : -1], *[None] * is_gru)

    ours = forward if case.direction == "forward" else backward
    return GpuWork(
        make,
        lambda *tensors: ours(tensors, outs(tensors)),
        lambda *tensors: ours(tensors, None),
        peers_of(wanted, device.torch, chain, lambda tensors: tensors[:4])
        if ours is forward
        else gradients_of(wanted, device.torch, chain, lambda t: (t[:4], t[4 : 4 + states])),
    )


GATES = Family(_gate_cases, _gate_work)
