"""The benchmark of the softmax family: functions of rows of x, and the loss of rows of logits.

Forward reads x and writes y, or next to nothing where a row gives one number; backward reads dy and
what was saved, and writes dx.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from fastact.measure.cases import is_loss, reduces_rows
from fastact.measure.peers import LeftOut, function_named

from .. import onnx, shapes
from ..shapes import Shape
from .work import ELEMENTS, ITEM, Asked, Call, Case, Family, Work, unless_missing


def _case(asked: Asked, shape: Shape, axis: int = 1) -> Case:
    op, forward = asked.op, asked.forward
    gives_rows = op.results == ("y",) and not reduces_rows(op)
    rows = prod(shape) // shape[axis]
    return asked.case(
        shape,
        (2 if forward else 3) if gives_rows else (1 if forward and asked.on_gpu else 2),
        shapes.shape_label(shape) if axis == 1 else shapes.sum_label(shape, (axis,)),
        options={} if is_loss(op) else {"axis": axis},
        axis=(axis,),
        sums=forward and not gives_rows,
        small=0 if gives_rows else 2 * rows * ITEM[asked.dtype],
    )


def _cases(asked: Asked) -> list[Case]:
    loss = is_loss(asked.op)
    if not asked.on_gpu:
        return [
            _case(asked, layout.shape, axis[0])
            for layout in shapes.chosen(
                shapes.CLASSES if loss else shapes.SOFTMAX_ROWS, asked.shapes
            )
            for axis in layout.axes
            if axis is not None
        ]
    found = []
    for size in asked.sizes or (ELEMENTS,):
        length = min(size, shapes.WORDS if loss else shapes.ROW)
        found.append(_case(asked, (size // length, length)))
        if not loss:
            found.append(_case(asked, (length, size // length), 0))
    return found


# --- the same by torch and numpy ------------------------------------------------------------------

_TORCH: dict[str, Callable[[Any, int], Callable[..., Any]]] = {
    "softmax": lambda torch, axis: lambda x: torch.softmax(x, axis),
    "log_softmax": lambda torch, axis: lambda x: torch.log_softmax(x, axis),
    "logsumexp": lambda torch, axis: lambda x: torch.logsumexp(x, axis),
    "cross_entropy": lambda torch, _: (
        lambda logits, target: torch.nn.functional.cross_entropy(logits, target)
    ),
}


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    made = unless_missing(_TORCH.get(case.op.name), case.op.name)
    function: Callable[..., Any] = made(torch, (case.axis or (1,))[0])
    return function


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - np.max(x, axis, keepdims=True))
    return e / np.sum(e, axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    d = x - np.max(x, axis, keepdims=True)
    return d - np.log(np.sum(np.exp(d), axis, keepdims=True))


def _logsumexp(x: Any, axis: int) -> Any:
    top = np.max(x, axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.sum(np.exp(x - top), axis))


def _cross_entropy(logits: Any, target: Any) -> Any:
    return np.mean(_logsumexp(logits, 1) - logits[np.arange(len(target)), target])


_NUMPY: dict[str, Callable[..., Any]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
}


def _numpy(case: Case, work: Work, threads: int) -> Call:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    if is_loss(case.op):
        return partial(_cross_entropy, work.inputs["logits"], work.inputs["target"])
    function = unless_missing(_NUMPY.get(case.op.name), case.op.name)
    return partial(function, work.inputs["x"], (case.axis or (1,))[0])


def _jax(jax: Any, case: Case) -> Callable[..., Any]:
    of, m, axis = jax.nn, jax.numpy, (case.axis or (1,))[0]
    if is_loss(case.op):

        def loss(logits: Any, target: Any) -> Any:
            rows = m.arange(len(target))
            return m.mean(of.logsumexp(logits, 1) - logits[rows, target])

        return loss
    function = function_named(of, case.op.name)
    return lambda x: function(x, axis)


_ONNX: dict[str, str] = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def _onnx(case: Case) -> str:
    if is_loss(case.op):
        return "y = SoftmaxCrossEntropyLoss(logits, target)"
    if reduces_rows(case.op):
        return onnx.reduced("ReduceLogSumExp", "x", case.axis, "y")
    name = unless_missing(_ONNX.get(case.op.name), case.op.name)
    return f"y = {name} <axis = {(case.axis or (1,))[0]}> (x)"


NOTE = """\
Functions that give one number a row are held against a copy of the array that they read: 0.5 is the
speed of memory that is only read."""

SOFTMAX = Family(
    _cases,
    _torch,
    constant=frozenset({"target"}),
    jax=_jax,
    onnx=_onnx,
    others={"numpy": _numpy},
    note=NOTE,
)
