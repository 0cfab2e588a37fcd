"""The benchmark of biases: fused with an activation, and the gradients of broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.fused import IDENTITY
from ..ops.op import ops
from . import shapes
from .shapes import Shape
from .workloads import (
    Call,
    Case,
    Family,
    Options,
    Workload,
    as_tensor,
    ask_peers,
    function_named,
    jax_call,
    naive,
    open_jax,
    open_torch,
    ours_and_copy,
    random,
    torch_gradient,
)
from .workloads_reductions import NOTE

_ACTIVATIONS = (IDENTITY, "relu", "mish")  # nothing, next to nothing, and an exponential


def _channel(case: Case) -> int:
    """The axis of the bias: the one that is not summed over."""
    (channel,) = set(range(len(case.shape))) - set(case.axis or ())
    return channel


# --- bias_act: forward reads x and writes y; backward reads dy and x, writes dx and dbias ---------


def _act_cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    case = partial(Case, op, direction, dtype, options.threads)
    return [
        case(
            layout.shape,
            f"{shapes.shape_label(layout.shape)}, axis {layout.channel}, {activation}",
            shapes.others(layout.shape, layout.channel),
            activation,
        )
        for activation in _ACTIVATIONS
        if activation == IDENTITY or activation in ops
        for layout in shapes.chosen(shapes.BIASED, options.shapes)
        if layout.channel is not None
    ]


def _act_work(case: Case, peers: Sequence[str]) -> Workload:
    axis = _channel(case)
    dy, x = (random(case.shape, case.dtype, seed) for seed in (0, 1))
    bias = random((case.shape[axis],), case.dtype, seed=2)
    like_x = np.empty_like(x)
    ours: Callable[..., object]
    out: tuple[NDArray[Any], ...]
    if case.direction == "forward":
        ours, out, copies = partial(case.op, x, bias, case.variant, axis=axis), (like_x,), 1.0
    else:
        ours = partial(case.op.backward, dy, x, bias, None, case.variant, axis=axis)
        # The derivative of the identity needs no x: it is not read.
        out, copies = (like_x, np.empty_like(bias)), 1.0 if case.variant == IDENTITY else 1.5
    calls = ours_and_copy(ours, out, like_x, x)
    theirs, left_out = ask_peers(
        _ACT_PEERS, peers, case, dy, x, np.expand_dims(bias, case.axis or ())
    )
    return Workload(calls | theirs, copies, left_out)


def _and_sum(case: Case, gradient: Callable[[], Any]) -> Call:
    """dx, and dbias from it."""

    def backward() -> tuple[Any, Any]:
        dx = gradient()
        return dx, dx.sum(case.axis)

    return backward


def _act_numpy(case: Case, dy: NDArray[Any], x: NDArray[Any], bias: NDArray[Any]) -> Call:
    plain = case.variant == IDENTITY
    if case.direction == "forward":
        formula = naive(case.variant) if not plain else lambda x, m: x
        return lambda: formula(x + bias, np)
    if plain:  # as autograd does: the gradient is handed on, not copied
        return _and_sum(case, lambda: dy)
    slope = naive(case.variant, derivative=True)
    return _and_sum(case, lambda: dy * slope(x + bias, np))


def _act_torch(case: Case, dy: NDArray[Any], x: NDArray[Any], bias: NDArray[Any]) -> Call:
    torch = open_torch(case.threads)
    plain = case.variant == IDENTITY
    gradient, tensor, addend = (as_tensor(torch, array) for array in (dy, x, bias))
    if case.direction == "forward":
        if plain:
            return partial(torch.add, tensor, addend)
        function = function_named(torch.nn.functional, case.variant)
        return lambda: function(tensor + addend)
    if plain:
        return _and_sum(case, lambda: gradient)
    # Autograd has saved the sum, which ours computes again.
    return _and_sum(case, torch_gradient(torch, case.variant, gradient, tensor + addend))


def _act_jax(case: Case, dy: NDArray[Any], x: NDArray[Any], bias: NDArray[Any]) -> Call:
    jax = open_jax()
    function = function_named(jax.nn, case.variant)

    def forward(x: Any, bias: Any) -> Any:
        return function(x + bias)

    if case.direction == "forward":
        return jax_call(jax, forward, x, bias)

    def backward(dy: Any, x: Any, bias: Any) -> Any:
        dx, dbias = jax.vjp(forward, x, bias)[1](dy)
        return dx, dbias.reshape(-1)

    return jax_call(jax, backward, dy, x, bias)


_ACT_PEERS = {"numpy": _act_numpy, "torch": _act_torch, "jax": _act_jax}


# --- bias_grad and unbroadcast: sums of dy, over all axes but one and to a shape ------------------


def _grad_cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    if direction != "forward":  # they are backward passes of others
        return []
    return [
        Case(
            op,
            direction,
            dtype,
            options.threads,
            layout.shape,
            f"{shapes.shape_label(layout.shape)}, axis {layout.channel}",
            shapes.others(layout.shape, layout.channel),
        )
        for layout in shapes.chosen(shapes.REDUCED, options.shapes)
        if layout.channel is not None
    ]


def _unbroadcast_cases(
    op: Any, direction: str, dtype: np.dtype[Any], options: Options
) -> list[Case]:
    if direction != "forward":
        return []
    return [
        Case(op, direction, dtype, options.threads, layout.shape, label, axis)
        for layout in shapes.chosen(shapes.REDUCED, options.shapes)
        if layout.name in ("matrix", shapes.TINY)
        for axis in layout.axes
        if axis is not None
        for target in [shapes.shape_label(shapes.broadcast_from(layout.shape, axis))]
        for label in [f"{shapes.shape_label(layout.shape)} to {target}"]
    ]


def _sum_work(case: Case, peers: Sequence[str]) -> Workload:
    dy = random(case.shape, case.dtype)
    ours: Callable[..., object]
    if case.op.name == "bias_grad":
        target, ours = (
            shapes.kept(case.shape, case.axis),
            partial(case.op, dy, axis=_channel(case)),
        )
    else:
        target = shapes.broadcast_from(case.shape, case.axis)
        ours = partial(case.op, dy, target)
    calls = ours_and_copy(ours, (np.empty(target, case.dtype),), np.empty_like(dy), dy)
    theirs, left_out = ask_peers(_SUM_PEERS, peers, case, dy, target)
    return Workload(calls | theirs, 1.0, left_out)


def _sum_numpy(case: Case, dy: NDArray[Any], target: Shape) -> Call:
    return lambda: np.sum(dy, axis=case.axis).reshape(target)


def _sum_torch(case: Case, dy: NDArray[Any], target: Shape) -> Call:
    torch = open_torch(case.threads)
    tensor = as_tensor(torch, dy)
    if case.op.name == "unbroadcast":
        return partial(tensor.sum_to_size, target)
    return partial(torch.sum, tensor, dim=case.axis)


def _sum_jax(case: Case, dy: NDArray[Any], target: Shape) -> Call:
    jax = open_jax()
    return jax_call(jax, lambda dy: jax.numpy.sum(dy, axis=case.axis).reshape(target), dy)


_SUM_PEERS = {"numpy": _sum_numpy, "torch": _sum_torch, "jax": _sum_jax}


# --- the family -----------------------------------------------------------------------------------

_CASES = {"bias_act": _act_cases, "bias_grad": _grad_cases, "unbroadcast": _unbroadcast_cases}


def _cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    found = _CASES.get(op.name)
    return found(op, direction, dtype, options) if found else []


def _work(case: Case, peers: Sequence[str]) -> Workload:
    return (_act_work if case.op.name == "bias_act" else _sum_work)(case, peers)


FAMILY = Family(_cases, _work, note=NOTE)
