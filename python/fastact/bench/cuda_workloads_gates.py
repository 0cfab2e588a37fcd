"""Gates in the GPU benchmark: a recurrent projection and a bias inside; backward with dbias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cuda_work import Family, GpuCase, GpuWork, Maker, Tensors, gradients_of, peers_of
from .workloads_gates import accesses, gate_chain

#: Rows and units of a state: a small cell, a wide and large ones, and out of the caches.
_GATE_SHAPES = ((256, 64), (64, 512), (256, 1024), (1024, 2048), (4096, 1024), (4096, 4096))


def _gate_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    # A size is that of all that forward of an LSTM adds up: 8 arrays of 64 units.
    shapes = [(max(size // (8 * 64), 1), 64) for size in sizes] if sizes else _GATE_SHAPES
    moved = accesses(op, direction)
    return [GpuCase(op, direction, dtype, shape, accesses=moved) for shape in shapes]


def _gate_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """Tensors are what the chain takes, gradients, what else is saved, and outputs, backwards."""
    op, (rows, columns) = case.op, case.shape
    has_cell, by_position, states = "c" in op.results, op.takes_recurrent, len(op.results)
    packed = (rows, op.count * columns)
    chain = gate_chain(op.name, device.torch)

    def given(tensors: Tensors) -> tuple[Tensors, dict[str, Any], Any]:
        """The call's arrays and options, and the state."""
        if by_position:  # gates, recurrent, state, bias
            return tensors[:3], {"bias": tensors[3]}, tensors[2]
        return tensors[:2], {"recurrent": tensors[2], "bias": tensors[3]}, tensors[1]

    def random(*shapes: Sequence[int]) -> Tensors:
        return tuple(device.random(shape, case.dtype) for shape in shapes)

    def empty(*shapes: Sequence[int]) -> Tensors:
        return tuple(device.empty(shape, case.dtype) for shape in shapes)

    def make() -> Tensors:
        second = (packed, case.shape) if by_position else (case.shape, packed)
        inputs = random(packed, *second, packed[1:])
        if case.direction == "forward":
            return (*inputs, *empty(*[case.shape] * states))
        arrays, options, _ = given(inputs)
        saved = op.forward(*arrays, **options)[1]
        also = (saved[0], saved[2]) if has_cell else (saved[0],)
        outs = [packed[1:], case.shape, *[packed] * by_position, packed]
        return (*inputs, *random(*[case.shape] * states), *also, *empty(*outs))

    def forward(tensors: Tensors, out: Any) -> Any:
        arrays, options, _ = given(tensors)
        results = op(*arrays, **options, out=out)
        return results[0] if has_cell else results

    def backward(tensors: Tensors, out: Any) -> Any:
        _, options, state = given(tensors)
        dh, kept = tensors[4], tensors[4 + states]
        arrays: Tensors = (dh, kept, None, state) if by_position else (dh, kept, state)
        if has_cell:
            arrays = (dh, tensors[5], kept, state, tensors[7])
        return op.backward(*arrays, bias=options["bias"], out=out)[0]

    def outs(tensors: Tensors) -> Any:
        if case.direction == "forward":
            return tensors[:3:-1] if has_cell else tensors[-1]
        return (*tensors[: -4 - by_position : -1], *[None] * by_position)

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
