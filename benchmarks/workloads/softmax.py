"""The benchmark of the softmax family: functions of rows of x, and the loss of rows of logits.

Forward reads x and writes y, or next to nothing where a row gives one number; backward reads dy and
what was saved, and writes dx.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fastact.measure.cases import is_loss
from fastact.measure.sum_axes import reduces

from .. import onnx, shapes
from ..shapes import Layout, Shape
from .libraries import Library, unless_missing
from .work import ELEMENTS, ITEM, Asked, Case, Family


def _case(asked: Asked, shape: Shape, axis: int = 1) -> Case:
    op, forward = asked.op, asked.forward
    gives_rows = op.results == ("y",) and not reduces(op)
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
    loss, on_gpu = is_loss(asked.op), []
    for size in asked.sizes or (ELEMENTS,):
        length = min(size, shapes.WORDS if loss else shapes.ROW)
        on_gpu.append(Layout("", (size // length, length), ((1,),)))
        if not loss:
            on_gpu.append(Layout("", (length, size // length), ((0,),)))
    return [
        _case(asked, layout.shape, axis[0])
        for layout in asked.layouts(shapes.CLASSES if loss else shapes.SOFTMAX_ROWS, on_gpu)
        for axis in layout.axes
        if axis is not None
    ]


# --- the same by other libraries ------------------------------------------------------------------


def _by(m: Library, case: Case) -> Callable[..., Any]:
    return (
        m.cross_entropy() if is_loss(case.op) else m.of_rows(case.op.name, (case.axis or (1,))[0])
    )


_ONNX: dict[str, str] = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def _onnx(case: Case) -> str:
    if is_loss(case.op):
        return "y = SoftmaxCrossEntropyLoss(logits, target)"
    if reduces(case.op):
        return onnx.reduced("ReduceLogSumExp", "x", case.axis, "y")
    name = unless_missing(_ONNX.get(case.op.name), case.op.name)
    return f"y = {name} <axis = {(case.axis or (1,))[0]}> (x)"


NOTE = """\
Functions that give one number a row are held against a copy of the array that they read: 0.5 is the
speed of memory that is only read."""

SOFTMAX = Family(_cases, _by, constant=frozenset({"target"}), onnx=_onnx, note=NOTE)
