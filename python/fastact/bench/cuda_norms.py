"""Forward and backward of any norm in the GPU benchmark; what tells one from another is `Norm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .cuda_work import LIGER, GpuCase, GpuWork, Maker, Tensors, first, gradients_of, peers_of
from .liger import OPS, by_liger
from .workloads import LeftOut

Peers = Mapping[str, Callable[..., Any]]  # peers beside torch


def no_others(of: Any, case: GpuCase) -> Tensors:
    """Nothing beside x and the weights."""
    return ()


@dataclass(frozen=True)
class Norm:
    """A norm in the benchmark.

    by_torch : the same by torch for a case: a function of x, the weights and what `others` gives.
    arrays : of x's size that move, forward and backward.
    weights : how many parameters, 2 being weight and bias.
    outputs : 2 where the sum with a residual is returned, too.
    told : options of every call for a case.
    positional : options of forward that follow x.
    others : arrays of forward that follow x, from a maker.
    fixed : constants of backward that follow torch's weights, from what forward saved.
    """

    by_torch: Callable[[Any, GpuCase], Callable[..., Any]]
    arrays: tuple[int, int] = (2, 3)
    weights: int = 2
    outputs: int = 1
    told: Callable[[GpuCase], dict[str, Any]] = lambda case: {}
    positional: tuple[Any, ...] = ()
    others: Callable[[Maker, GpuCase], Tensors] = no_others
    fixed: Callable[[Tensors, GpuCase], Tensors] = no_others


def channel_axis(case: GpuCase) -> dict[str, Any]:
    """How most norms of channels are told their axis."""
    return {"channel_axis": case.channel}


def by_channels(case: GpuCase, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch, whose channels are axis 1, and where they are last, last in memory."""
    if case.channel == 1:
        return function
    return lambda x, *rest: function(x.movedim(-1, 1), *rest).movedim(1, -1)


def length_of(case: GpuCase) -> tuple[int]:
    """The shape of a parameter."""
    return (case.shape[-1 if case.channel is None else case.channel],)


def norm_work(case: GpuCase, device: Maker, wanted: Sequence[str], norm: Norm) -> GpuWork:
    """The calls of a case."""
    also, left_out = {}, {}
    if LIGER in wanted and case.op.name in OPS:
        try:
            also[LIGER] = by_liger(case)
        except LeftOut as reason:
            left_out[LIGER] = str(reason)
    build = _forward if case.direction == "forward" else _backward
    return replace(build(case, device, wanted, norm, also), left_out=left_out)


def _weights(case: GpuCase, device: Maker, norm: Norm) -> list[Any]:
    return [device.random(length_of(case), case.dtype) for _ in range(norm.weights)]


def _forward(
    case: GpuCase, device: Maker, wanted: Sequence[str], norm: Norm, also: Peers
) -> GpuWork:
    """A set: x, others, weights, perhaps the sum, y."""
    op, told = case.op, norm.told(case)
    ends = -norm.outputs
    from_weights = ends - norm.weights

    def make() -> Tensors:
        return (
            device.random(case.shape, case.dtype),
            *norm.others(device, case),
            *_weights(case, device, norm),
            *(device.empty(case.shape, case.dtype) for _ in range(norm.outputs)),
        )

    def call(tensors: Tensors, out: Any) -> Any:
        x, *others = tensors[:from_weights]
        given = (*others, *norm.positional, *tensors[from_weights:ends])
        return first(op(x, *given, out=out, **told))

    def outs(tensors: Tensors) -> Any:
        return tensors[-1] if norm.outputs == 1 else tensors[: ends - 1 : -1]

    def pick(tensors: Tensors) -> Tensors:
        x, *others = tensors[:from_weights]
        return (x, *tensors[from_weights:ends], *others)

    return GpuWork(
        make,
        lambda *tensors: call(tensors, outs(tensors)),
        lambda *tensors: call(tensors, None),
        peers_of(wanted, device.torch, norm.by_torch(device.torch, case), pick, also),
    )


def _backward(
    case: GpuCase, device: Maker, wanted: Sequence[str], norm: Norm, also: Peers
) -> GpuWork:
    """A set: dy, perhaps dtotal, what was saved, gradients of the weights, dx."""
    op, told, outputs = case.op, norm.told(case), norm.outputs
    ends = -norm.weights - 1

    def make() -> Tensors:
        x, *came = (device.random(case.shape, case.dtype) for _ in range(1 + outputs))
        given = (*norm.others(device, case), *norm.positional, *_weights(case, device, norm))
        saved = op.forward(x, *given, **told)[1]
        own = [device.empty(length_of(case), case.dtype).zero_() for _ in range(norm.weights)]
        return (*came, *saved, *own, device.empty(case.shape, case.dtype))

    def call(tensors: Tensors, out: Any) -> Any:
        more = {"dtotal": tensors[1]} if outputs > 1 else {}
        return op.backward(tensors[0], *tensors[outputs:ends], out=out, **more, **told)[0]

    def pick(tensors: Tensors) -> tuple[Tensors, ...]:
        saved = tensors[outputs:ends]
        leaves = (saved[0], *saved[-norm.weights :])
        return leaves, tensors[:outputs], norm.fixed(saved, case)

    return GpuWork(
        make,
        lambda *tensors: call(tensors, (tensors[-1], *tensors[ends:-1])),
        lambda *tensors: call(tensors, None),
        gradients_of(wanted, device.torch, norm.by_torch(device.torch, case), pick, also),
    )
