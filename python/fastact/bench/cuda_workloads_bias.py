"""Biases in the GPU benchmark: fused with an activation, and the gradients of broadcasting.

bias_act forward reads x and writes y, backward reads dy and x and writes dx, in one pass that sums
dbias, too. bias_grad and unbroadcast read dy once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import shapes as _shapes
from .cuda_work import (
    BYTES,
    ELEMENTS,
    ITEM,
    Family,
    GpuCase,
    GpuWork,
    Maker,
    Tensors,
    gradients_of,
    peers_of,
    pictures,
)

_ACTIVATION = "mish"  # an exponential: what is cheaper is no slower
_LENGTHS = (256, 4096, 65536)  # of rows, as many as fill half of BYTES


# --- bias_act -------------------------------------------------------------------------------------


def _act_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    rows = [
        ((size // length, length), -1)
        for size in sizes or (BYTES // 2 // ITEM[dtype],)
        for length in sorted({min(length, size) for length in _LENGTHS})
    ]
    # Channels last are rows.
    shapes = [*rows, *(picture for picture in pictures(sizes) if picture[1] == 1)]
    return [
        GpuCase(
            op,
            direction,
            dtype,
            shape,
            _shapes.others(shape, channel),
            channel=channel,
            variant=_ACTIVATION,
        )
        for shape, channel in shapes
    ]


def _act_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """A set: perhaps dy, x, bias, perhaps dbias, and y or dx."""
    op, torch, axis = case.op, device.torch, case.channel
    length = case.shape[-1 if axis is None else axis]
    function = getattr(torch.nn.functional, _ACTIVATION)
    forward = case.direction == "forward"
    aligned = (length,) if axis == -1 else (length, *[1] * (len(case.shape) - 2))

    def make() -> Tensors:
        *dy, x = (device.random(case.shape, case.dtype) for _ in range(1 if forward else 2))
        dbias = [] if forward else [device.empty((length,), case.dtype).zero_()]
        bias = device.random((length,), case.dtype)
        return (*dy, x, bias, *dbias, device.empty(case.shape, case.dtype))

    def ours(*tensors: Any, fresh: bool = False) -> Any:
        if forward:
            x, bias, y = tensors
            return op(x, bias, _ACTIVATION, axis=axis, out=None if fresh else y)
        dy, x, bias, dbias, dx = tensors
        out = None if fresh else (dx, dbias)
        return op.backward(dy, x, bias, None, _ACTIVATION, axis=axis, out=out)[0]

    def eager(x: Any, bias: Any) -> Any:
        return function(x + bias.view(aligned))

    peers = (
        peers_of(wanted, torch, eager, lambda tensors: tensors[:2])
        if forward
        else gradients_of(wanted, torch, eager, lambda tensors: (tensors[1:3], tensors[:1]))
    )
    return GpuWork(make, ours, partial(ours, fresh=True), peers)


# --- bias_grad and unbroadcast --------------------------------------------------------------------


def _sum_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    if direction != "forward":  # they are backward passes of others
        return []
    case = partial(GpuCase, op, direction, dtype, reduces=1, into=dtype)
    layouts = [
        layout
        for size in sizes or (ELEMENTS,)
        for layout in _shapes.reduced(size, narrow=max(size // 2, 1))
    ]
    if op.name == "unbroadcast":
        return [
            case(layout.shape, axis)
            for layout in layouts
            for axis in layout.axes
            if layout.name == "matrix" and axis is not None
        ]
    return [
        case(layout.shape, _shapes.others(layout.shape, layout.channel), channel=layout.channel)
        for layout in layouts
        if layout.channel is not None
    ]


def _sum_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    op, torch = case.op, device.torch
    eager: Callable[..., Any]
    ours: Callable[..., Any]
    if op.name == "bias_grad":
        target, axis = case.kept, case.axis
        ours, eager = partial(op, axis=case.channel), lambda dy: torch.sum(dy, dim=axis)
    else:
        target = _shapes.broadcast_from(case.shape, case.axis)
        ours, eager = lambda dy, **told: op(dy, target, **told), lambda dy: dy.sum_to_size(target)
    return GpuWork(
        lambda: (device.random(case.shape, case.dtype), device.empty(target, case.dtype)),
        lambda dy, out: ours(dy, out=out),
        lambda dy, out: ours(dy),
        peers_of(wanted, torch, eager, lambda tensors: tensors[:1]),
    )


# --- the family -----------------------------------------------------------------------------------


def _cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    return (_act_cases if op.name == "bias_act" else _sum_cases)(op, direction, dtype, sizes)


def _work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    return (_act_work if case.op.name == "bias_act" else _sum_work)(case, device, wanted)


BIAS = Family(_cases, _work)
