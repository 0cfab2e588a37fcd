"""The benchmark of softmax, log_softmax, logsumexp and cross_entropy.

Forward reads x and writes y, or one number a row; backward reads dy and y, or x again, and writes
dx. cross_entropy is of classes: its loss is one number, its gradient an array like the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.bounds import CrossEntropyBounds
from .. import shapes
from ..peers import LeftOut
from .work import ITEM, Call, Case, Family, Maker, Options, Sizes, Work, unless_missing

_CLASS = 8  # bytes of the class of a row


def _is_loss(op: Any) -> bool:
    return isinstance(op.bounds, CrossEntropyBounds)


def _case(op: Any, direction: str, dtype: str, shape: shapes.Shape, axis: tuple[int, ...]) -> Case:
    loss, forward = _is_loss(op), direction == "forward"
    reduces = loss or "y" not in op.saves
    rows = shape[1 - axis[0]]
    small = rows * (_CLASS if loss else ITEM[dtype] if reduces else 0)
    return Case(
        op,
        direction,
        dtype,
        shape,
        shapes.sum_label(shape, axis),
        2 if forward or reduces else 3,
        {"axis": axis[0]},
        axis,
        span=shapes.shared(shape, axis),
        sums=forward and reduces,
        small=small,
    )


def _on_cpu(op: Any, direction: str, dtype: str, options: Options) -> list[Case]:
    layouts = shapes.CLASSIFIED if _is_loss(op) else shapes.SOFTMAXED
    return [
        _case(op, direction, dtype, layout.shape, axis)
        for layout in shapes.chosen(layouts, options.shapes)
        for axis in layout.axes
        if axis is not None
    ]


def _on_gpu(op: Any, direction: str, dtype: str, sizes: Sizes) -> list[Case]:
    return []  # not measured yet


def _inputs(case: Case, make: Maker) -> dict[str, Any]:
    if not _is_loss(case.op):
        return {"x": make.random(case.shape, case.dtype)}
    rows, classes = case.shape
    target = np.random.default_rng(0).integers(0, classes, rows)
    return {"logits": make.random(case.shape, case.dtype), "target": target}


def _incoming(case: Case, make: Maker) -> dict[str, Any]:
    if _is_loss(case.op):
        return {"dloss": make.random((), case.dtype)}
    shape = case.shape if "y" in case.op.saves else shapes.kept(case.shape, case.axis)
    return {"dy": make.random(shape, case.dtype)}


# --- the same by torch and numpy ------------------------------------------------------------------


def _axis(case: Case) -> int:
    return int(case.options["axis"])


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    functional = torch.nn.functional
    if _is_loss(case.op):
        return lambda logits, target: functional.cross_entropy(logits, target)
    function = unless_missing(getattr(torch, case.op.name, None), case.op.name)
    return lambda x: function(x, _axis(case))


def _shifted(x: Any, axis: int) -> tuple[Any, Any]:
    """x beside its maximum, and that."""
    m = np.max(x, axis, keepdims=True)
    return x - m, m


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(_shifted(x, axis)[0])
    return e / np.sum(e, axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    d, _ = _shifted(x, axis)
    return d - np.log(np.sum(np.exp(d), axis, keepdims=True))


def _logsumexp(x: Any, axis: int) -> Any:
    d, m = _shifted(x, axis)
    return np.log(np.sum(np.exp(d), axis)) + np.squeeze(m, axis)


#: As SciPy writes them.
_BY_NUMPY = {"softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp}


def _numpy(case: Case, work: Work, threads: int) -> Call:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    if _is_loss(case.op):
        logits, target = work.inputs["logits"], work.inputs["target"]
        rows = np.arange(len(target))
        return lambda: np.mean(_logsumexp(logits, 1) - logits[rows, target])
    function = unless_missing(_BY_NUMPY.get(case.op.name), case.op.name)
    return lambda: function(work.inputs["x"], _axis(case))


SOFTMAX = Family(
    _on_cpu,
    _on_gpu,
    _inputs,
    _incoming,
    _torch,
    constant=frozenset({"target"}),
    others={"numpy": _numpy},
)
