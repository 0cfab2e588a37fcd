"""The benchmark of batch_norm in training, and of norm_apply, which takes statistics as they come.

Training forward reads x for the moments and once more to write y, backward reads dy and x for the
sums and once more to write dx.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.fused import IDENTITY
from . import shapes
from .workloads import (
    Call,
    Case,
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

#: Nothing behind a norm, and an exponential.
ACTIVATIONS = (IDENTITY, "mish")
_EPS, _MOMENTUM = 1e-5, 0.1
#: Arrays of x's size that are read and written, two of which a copy moves.
_MOVED = {
    ("batch_norm", "forward"): 3,
    ("batch_norm", "backward"): 5,
    ("norm_apply", "forward"): 2,
    ("norm_apply", "backward"): 3,
}


def cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    """An op's, with and without an activation behind, channels first and last."""
    return [
        Case(
            op,
            direction,
            dtype,
            options.threads,
            layout.shape,
            f"{shapes.shape_label(layout.shape)}, channels {layout.channel}, {activation}",
            (layout.channel,),
            activation,
        )
        for activation in ACTIVATIONS
        for layout in shapes.chosen(shapes.BATCHED, options.shapes)
        if layout.channel is not None
    ]


def work(case: Case, peers: Sequence[str]) -> Workload:
    """The calls of a case."""
    op, (channel,) = case.op, case.axis or (1,)
    dy, x = (random(case.shape, case.dtype, seed) for seed in range(2))
    weight, bias, mean = (random((case.shape[channel],), case.dtype, seed) for seed in (2, 3, 4))
    var = np.abs(mean) + case.dtype.type(1)
    activation: dict[str, Any] = {"activation": case.variant}
    of_call: tuple[Any, ...]
    if op.name == "batch_norm":
        told, trains = {"channel_axis": channel, **activation}, {"training": True}
        of_call = (mean, var, weight, bias)
    else:
        told, trains = {"axis": channel, **activation}, {}
        of_call = (mean, (1 / np.sqrt(var + _EPS)).astype(case.dtype), weight, bias)
    ours: Callable[..., object]
    out: tuple[NDArray[Any], ...] = (np.empty_like(x),)
    if case.direction == "forward":
        ours = partial(op, x, *of_call, **trains, **told)
    else:
        _, saved = op.forward(x, *of_call, **trains, **told)
        ours = partial(op.backward, dy, *saved, **trains, **told)
        out = (*out, np.empty_like(weight), np.empty_like(bias))
    calls = ours_and_copy(ours, out, np.empty_like(x), x)
    theirs, left_out = ask_peers(_PEERS, peers, case, dy, x, weight, bias, mean.copy(), var.copy())
    return Workload(calls | theirs, _MOVED[op.name, case.direction] / 2, left_out)


# --- the same by numpy and torch ------------------------------------------------------------------


def _numpy(case: Case, dy: NDArray[Any], x: NDArray[Any], *of_channels: NDArray[Any]) -> Call:
    """The textbook's chain of array operations."""
    if case.direction == "backward":
        raise LeftOut("the chain of its gradient is nobody's to write")
    (channel,) = case.axis or (1,)
    axes = shapes.others(case.shape, channel)
    formula = None if case.variant == IDENTITY else naive(case.variant)
    trains = case.op.name == "batch_norm"
    weight, bias, mean, var = (np.expand_dims(a, axes) for a in of_channels)
    unbiased = x.size / weight.size / (x.size / weight.size - 1)

    def forward() -> Any:
        m, v = mean, var
        if trains:
            m, v = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            mean[...] += _MOMENTUM * (m - mean)
            var[...] += _MOMENTUM * (unbiased * v - var)
        z = (x - m) / np.sqrt(v + case.dtype.type(_EPS)) * weight + bias
        return z if formula is None else formula(z, np)

    return forward


def _torch(case: Case, dy: NDArray[Any], x: NDArray[Any], *of_channels: NDArray[Any]) -> Call:
    """Its own kernels, those that autograd would call too."""
    torch = open_torch(case.threads)
    aten, (channel,) = torch.ops.aten, case.axis or (1,)
    trains = case.op.name == "batch_norm"
    # As torch has channels that are last in memory: as axis 1, with other strides.
    gradient, data = (as_tensor(torch, a).movedim(channel, 1) for a in (dy, x))
    weight, bias, mean, var = (as_tensor(torch, a) for a in of_channels)
    normalise = partial(
        aten.native_batch_norm, data, weight, bias, mean, var, trains, _MOMENTUM, _EPS
    )
    plain = case.variant == IDENTITY
    function = None if plain else function_named(torch.nn.functional, case.variant)
    if case.direction == "forward":
        return lambda: normalise()[0] if function is None else function(normalise()[0])
    z, *saved = normalise()
    slope = None if plain else torch_backward_kernel(torch, case.variant)
    if slope is None and not plain:
        raise LeftOut(f"it has no kernel for the gradient of {case.variant}")

    def backward() -> Any:
        p = gradient if slope is None else slope(gradient, z)
        return aten.native_batch_norm_backward(
            p, data, weight, mean, var, *saved, trains, _EPS, [True] * 3
        )

    return backward


_PEERS = {"numpy": _numpy, "torch": _torch}
