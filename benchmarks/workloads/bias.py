"""The benchmark of biases: fused with an activation, and the gradients of broadcasting.

bias_act forward reads x and writes y, backward reads dy and x and writes dx, in one pass that sums
dbias, too. bias_grad and unbroadcast read dy once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from fastact.measure.peers import LeftOut
from fastact.measure.sum_axes import is_sum, is_to_shape
from fastact.ops.engine.fused import IDENTITY
from fastact.ops.engine.op import ops

from .. import onnx, shapes
from ..shapes import Layout, Shape
from .libraries import Library
from .reductions import NOTE
from .work import ELEMENTS, ITEM, Arrays, Asked, Case, Family, Gradient

_ACTIVATIONS = (IDENTITY, "relu", "mish")  # nothing, next to nothing, and an exponential
_ON_GPU = "mish"  # what is cheaper is no slower there


def _act(asked: Asked, shape: Shape, channel: int, activation: str) -> Case:
    # The derivative of the identity needs no x: it is not read.
    accesses = 2 if asked.forward or activation == IDENTITY else 3
    words = "channels" if asked.on_gpu else "axis"
    return asked.case(
        shape,
        accesses,
        f"{shapes.shape_label(shape)}, {words} {channel}, {activation}",
        options={"activation": activation, "axis": channel},
        axis=shapes.others(shape, channel),
        channel=channel,
        variant=activation,
    )


def _sum(asked: Asked, layout: Layout, axis: shapes.Axis) -> Case:
    """A sum of a layout: over an axis to a shape, or where that is None over all but its channels.

    On a CPU a sum is held against the copy of what it reads.
    """
    shape, channel = layout.shape, None
    if axis is None:
        channel = layout.channel or 0
        axis = shapes.others(shape, channel)
        options: dict[str, Any] = {"axis": channel}
        label = f"{shapes.shape_label(shape)}, axis {channel}"
    else:
        options = {"shape": shapes.broadcast_from(shape, axis)}
        label = f"{shapes.shape_label(shape)} to {shapes.shape_label(options['shape'])}"
    return asked.case(
        shape,
        1 if asked.on_gpu else 2,
        shapes.sum_label(shape, axis) if asked.on_gpu else label,
        options=options,
        axis=axis,
        channel=channel,
        sums=True,
        small=prod(shape) // shapes.shared(shape, axis) * ITEM[asked.dtype],
    )


def _sums(asked: Asked) -> list[Case]:
    if not asked.forward:  # they are backward passes of others
        return []
    layouts = asked.layouts(shapes.REDUCED, shapes.sums(asked.sizes or (ELEMENTS,)))
    if not is_to_shape(asked.op):
        return [_sum(asked, layout, None) for layout in layouts if layout.channel is not None]
    return [
        _sum(asked, layout, axis)
        for layout in layouts
        if layout.name == "matrix"
        for axis in layout.axes
        if axis is not None
    ]


def _cases(asked: Asked) -> list[Case]:
    if is_sum(asked.op):
        return _sums(asked)
    rows = shapes.of_lengths(asked.sized(), shapes.BIAS_LENGTHS)
    on_gpu = [replace(layout, channel=-1) for layout in rows]
    # Channels last are rows.
    on_gpu += [picture for picture in shapes.pictures(asked.sizes) if picture.channel == 1]
    return [
        _act(asked, layout.shape, layout.channel, activation)
        for activation in ((_ON_GPU,) if asked.on_gpu else _ACTIVATIONS)
        if activation == IDENTITY or activation in ops
        for layout in asked.layouts(shapes.BIASED, on_gpu)
        if layout.channel is not None
    ]


# --- the same by other libraries ------------------------------------------------------------------


def _with_bias(case: Case) -> Callable[[Any, Any], Any]:
    """x and a bias that lies along an axis of it, added up."""
    trailing = [1] * (-1 - range(-len(case.shape), 0)[case.options["axis"]])
    if not trailing:
        return lambda x, bias: x + bias
    return lambda x, bias: x + bias.reshape(-1, *trailing)


def _by(m: Library, case: Case) -> Callable[..., Any]:
    if is_to_shape(case.op):
        return lambda dy: m.module.sum(dy, axis=case.axis).reshape(case.options["shape"])
    if is_sum(case.op):
        return lambda dy: m.module.sum(dy, axis=case.axis)
    add = _with_bias(case)
    if case.variant == IDENTITY:
        return add
    function = m.activation(case.variant)
    return lambda x, bias: function(add(x, bias))


def _and_sum(case: Case, dx: Any) -> tuple[Any, Any]:
    """dx, and dbias from it."""
    return dx, dx.sum(case.axis)


def _gradient(m: Library, case: Case) -> Gradient | None:
    """On the CPU by one function, as aten's. The sum that ours computes again has been saved."""
    if case.on_gpu:
        return None
    if case.variant == IDENTITY:  # as autograd does: the gradient is handed on, not copied
        return Gradient(partial(_and_sum, case), lambda arrays: (arrays["dy"],))
    kernel = m.slope(case.variant)
    if kernel is None:
        return None
    add = _with_bias(case)

    def arguments(arrays: Arrays) -> tuple[Any, Any]:
        return arrays["dy"], kernel.saved(add(arrays["x"], arrays["bias"]))

    return Gradient(lambda dy, saved: _and_sum(case, kernel.function(dy, saved)), arguments)


def _onnx(case: Case) -> str:
    if is_sum(case.op):
        return onnx.reduced("ReduceSum", "dy", case.axis, "y")
    if case.channel not in (-1, len(case.shape) - 1):
        raise LeftOut("its addition broadcasts a bias along the last axis")
    if case.variant == IDENTITY:
        return "y = Add(x, bias)"
    return f"z = Add(x, bias)\n{onnx.activation(case.variant, 'z', 'y')}"


BIAS = Family(_cases, _by, _gradient, onnx=_onnx, note=NOTE)
