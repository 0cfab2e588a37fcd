"""The benchmark of the norms: forward reads x and writes y, backward reads dy and x, writes dx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.channel_norm import ChannelNorm
from ..ops.fused import IDENTITY
from ..ops.norm import Norm
from . import shapes, workloads_channels
from .workloads import (
    Call,
    Case,
    Family,
    LeftOut,
    Options,
    Workload,
    as_tensor,
    ask_peers,
    function_named,
    naive,
    open_torch,
    ours_and_copy,
    random,
    torch_backward_kernel,
)

_GROUPS = 32


def _has_channels(op: Any) -> bool:
    return op.name in ("group_norm", "instance_norm")


def _channel(case: Case) -> int | None:
    """The axis of the channels, of ops that have them."""
    return case.axis[0] if case.axis else None


def _cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    if isinstance(op, ChannelNorm):
        return workloads_channels.cases(op, direction, dtype, options)
    if not isinstance(op, Norm):
        return []
    layouts = shapes.NORMED_IMAGES if _has_channels(op) else shapes.NORMED_ROWS
    return [
        Case(
            op,
            direction,
            dtype,
            options.threads,
            layout.shape,
            f"{shapes.shape_label(layout.shape)}{channels}, {activation}",
            None if layout.channel is None else (layout.channel,),
            activation,
        )
        for activation in workloads_channels.ACTIVATIONS
        for layout in shapes.chosen(layouts, options.shapes)
        for channels in ["" if layout.channel is None else f", channels {layout.channel}"]
    ]


def _work(case: Case, peers: Sequence[str]) -> Workload:
    if isinstance(case.op, ChannelNorm):
        return workloads_channels.work(case, peers)
    op, channel = case.op, _channel(case)
    dy, x, residual = (random(case.shape, case.dtype, seed) for seed in range(3))
    length = case.shape[-1 if channel is None else channel]
    weights = [random((length,), case.dtype, seed) for seed in (3, 4)][: len(op.weights)]
    named: dict[str, Any] = {"activation": case.variant}
    named |= {} if channel is None else {"channel_axis": channel}
    inputs = (x, residual) if op.has_residual else (x,)
    positional = (_GROUPS,) if op.name == "group_norm" else ()
    out: tuple[NDArray[Any], ...] = tuple(np.empty_like(x) for _ in inputs)
    ours: Callable[..., object]
    if case.direction == "forward":
        ours, copies = partial(op, *inputs, *positional, *weights, **named), float(len(inputs))
    else:
        _, saved = op.forward(*inputs, *positional, *weights, **named)
        ours, copies = partial(op.backward, dy, *saved, **named), 1.5
        out = (out[0], *map(np.empty_like, weights))
    calls = ours_and_copy(ours, out, np.empty_like(x), x)
    theirs, left_out = ask_peers(_PEERS, peers, case, dy, inputs, weights)
    return Workload(calls | theirs, copies, left_out)


# --- the same by numpy and torch ------------------------------------------------------------------

Arrays = Sequence[NDArray[Any]]


def _numpy(case: Case, dy: NDArray[Any], inputs: Arrays, weights: Arrays) -> Call:
    """The textbook's chain of array operations."""
    if case.direction == "backward":
        raise LeftOut("the chain of its gradient is nobody's to write")
    channel, op = _channel(case), case.op
    formula = None if case.variant == IDENTITY else naive(case.variant)
    shape = [1] * len(case.shape)
    shape[-1 if channel is None else channel] = -1
    parameters = [weight.reshape(shape) for weight in weights]
    axes: tuple[int, ...] = (-1,)
    grouped = op.name == "group_norm"
    if grouped and channel != 1:
        raise LeftOut("groups of channels that come last are strided")
    if channel is not None:
        axes = tuple(a for a in range(1, len(case.shape)) if a != channel % len(case.shape))
        axes = (2,) if grouped else axes

    def forward() -> Any:
        x = inputs[0] if len(inputs) == 1 else inputs[0] + inputs[1]
        rows = x.reshape(len(x), _GROUPS, -1) if grouped else x
        if op._is_centred:
            rows = rows - rows.mean(axes, keepdims=True)
        scale = np.sqrt(np.square(rows).mean(axes, keepdims=True) + case.dtype.type(1e-5))
        z = (rows / scale).reshape(x.shape) * parameters[0]
        z = z + parameters[1] if len(parameters) > 1 else z
        return z if formula is None else formula(z, np)

    return forward


def _torch(case: Case, dy: NDArray[Any], inputs: Arrays, weights: Arrays) -> Call:
    torch = open_torch(case.threads)
    functional, channel, op = torch.nn.functional, _channel(case), case.op
    tensors = [as_tensor(torch, array) for array in inputs]
    gradient = as_tensor(torch, dy)
    if channel == -1:  # as torch has it: channels are axis 1, and last in memory
        tensors, gradient = [t.movedim(-1, 1) for t in tensors], gradient.movedim(-1, 1)
    parameters = [as_tensor(torch, weight) for weight in weights]
    name = op.name.removeprefix("add_")

    def norm(*leaves: Any) -> Any:
        data, own = leaves[: len(tensors)], leaves[len(tensors) :]
        x = data[0] if len(data) == 1 else data[0] + data[1]
        if name == "group_norm":
            z = functional.group_norm(x, _GROUPS, *own)
        elif name == "instance_norm":
            z = functional.instance_norm(x, None, None, *own)
        else:
            z = function_named(functional, name)(x, x.shape[-1:], *own)
        return z if case.variant == IDENTITY else function_named(functional, case.variant)(z)

    if case.direction == "forward":
        return partial(norm, *tensors, *parameters)
    kernel = _torch_backward(torch, name, tensors[0], parameters)
    slope = torch_backward_kernel(torch, case.variant)
    if len(tensors) == 1 and kernel is not None and (slope is None) == (case.variant == IDENTITY):
        back, z = kernel
        return lambda: back(gradient if slope is None else slope(gradient, z))
    # It has no kernel of its own on the CPU: what autograd does over a graph that is there already.
    leaves = [leaf.detach().requires_grad_() for leaf in (*tensors, *parameters)]
    result = norm(*leaves)
    return lambda: torch.autograd.grad(result, leaves, gradient, retain_graph=True)


def _torch_backward(
    torch: Any, name: str, x: Any, parameters: list[Any]
) -> tuple[Callable[[Any], Any], Any] | None:
    """torch's own kernel of the gradients, given dz, and z."""
    aten, wanted = torch.ops.aten, [True] * 3
    if name == "layer_norm":
        lengths = list(x.shape[-1:])
        z, *saved = aten.native_layer_norm(x, lengths, *parameters, 1e-5)
        return (
            lambda dz: aten.native_layer_norm_backward(dz, x, lengths, *saved, *parameters, wanted),
            z,
        )
    if name == "group_norm":
        shape = (len(x), x.shape[1], x[0, 0].numel(), _GROUPS)
        z, *saved = aten.native_group_norm(x, *parameters, *shape, 1e-5)
        weight = parameters[0]
        return (
            lambda dz: aten.native_group_norm_backward(dz, x, *saved, weight, *shape, wanted),
            z,
        )
    return None


_PEERS = {"numpy": _numpy, "torch": _torch}

NOTE = """\
Norms are held against a copy of what they read and write: of rows, groups and instances once each;
batch_norm in training reads everything twice, for its statistics are those of the whole batch."""

FAMILY = Family(_cases, _work, note=NOTE)
