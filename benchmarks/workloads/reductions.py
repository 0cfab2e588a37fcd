"""The benchmark of reductions: x is read once, and what is written is small.

The gradients write an array of x's size: of a sum they read next to nothing, of a sum of squares x,
and of moments x twice, for the means are computed anew before anything can be written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fastact.measure.peers import SUMS, LeftOut

from .. import onnx, shapes
from ..shapes import Axis, Shape
from .libraries import Library, unless_missing
from .work import ELEMENTS, ITEM, Arrays, Asked, Case, Family, Gradient

_BOTH = "value_and_grad"


def _is_pair(op: Any) -> bool:
    """Whether it gives a mean and another moment, whose gradient needs the mean again."""
    return len(op.results) == 2


def _is_weighted(op: Any) -> bool:
    """Whether it is measured with weights of x's shape: those that have a gradient."""
    return "dweights" in op.gradients


def _has_gradient(op: Any) -> bool:
    """Whether backward of an op is measured beside peers' on the CPU."""
    return op.name not in SUMS or op.name in _GRADIENTS


def _case(asked: Asked, shape: Shape, axis: Axis = None, variant: str = "") -> Case:
    op, forward, pair = asked.op, asked.forward, _is_pair(asked.op)
    # Gradients of statistics but a plain sum or mean need x twice: they compute its mean anew.
    accesses = 1 if forward else 1 + ("x" in op.saves) + pair
    accesses += _is_weighted(op)
    # `Moments` are of double; gradients are of x's dtype, whatever the results are.
    into = "float64" if "m2" in op.results and forward else asked.dtype
    return asked.case(
        shape,
        accesses if asked.on_gpu else 2,
        f"{shapes.shape_label(shape)}, {variant}" if variant else shapes.sum_label(shape, axis),
        options={"axis": axis},
        axis=axis,
        variant=variant,
        sums=forward,
        small=len(op.results) * (prod(shape) // shapes.shared(shape, axis)) * ITEM[into],
    )


def _cases(asked: Asked) -> list[Case]:
    op, pair, sizes = asked.op, _is_pair(asked.op), asked.sizes or (ELEMENTS,)
    if not (asked.on_gpu or asked.forward) and (pair or not _has_gradient(op)):
        return []
    every = (*shapes.REDUCED, *(shapes.MIDDLE if pair else ()))
    layouts = asked.layouts(every, shapes.sums(sizes))
    found = [_case(asked, layout.shape, axis) for layout in layouts for axis in layout.axes]
    if not asked.forward and _BOTH in op.entry_points:
        whole = asked.layouts(shapes.WEIGHTS, [shapes.Layout("", (size,)) for size in sizes])
        found += [_case(asked, layout.shape, variant=_BOTH) for layout in whole]
    return found


# --- the same by other libraries ------------------------------------------------------------------


def _spread(dy: Any, x: Any, m: Any) -> Any:
    """Written out, as ours is; a peer could leave it a view."""
    return (m.clone if hasattr(m, "clone") else m.copy)(m.broadcast_to(dy, x.shape))


#: The gradients of sums for a dy that broadcasts against x.
_GRADIENTS: dict[str, Callable[..., Any]] = {
    "sum": _spread,
    "sum_squares": lambda dy, x, m: 2 * x * dy,
}


def _by(m: Library, case: Case) -> Callable[..., Any]:
    """What a peer does with x on forward, and what gives value and gradient."""
    total, module = unless_missing(SUMS.get(case.op.name), case.op.name), m.module
    if case.variant == _BOTH:
        return lambda x: (total(x, None, module), 2 * x)
    if _is_weighted(case.op):
        return lambda x, weights: total(x, case.axis, module, weights)
    return lambda x: total(x, case.axis, module)


def _gradient(m: Library, case: Case) -> Gradient | None:
    gradient = _GRADIENTS.get(case.op.name)
    if gradient is None:
        return None
    axes = range(len(case.shape)) if case.axis is None else case.axis
    aligned = [1 if i in axes else n for i, n in enumerate(case.shape)]

    def arguments(arrays: Arrays) -> tuple[Any, Any]:
        return arrays["dy"].reshape(aligned), arrays["x"]

    return Gradient(lambda dy, x: gradient(dy, x, m.module), arguments)


def _onnx(case: Case) -> str:
    if case.entry != "call":
        raise LeftOut("only its sums are measured")
    return onnx.reduced(unless_missing(_ONNX.get(case.op.name), case.op.name), "x", case.axis, "y")


_ONNX = {"sum": "ReduceSum", "sum_squares": "ReduceSumSquare", "mean": "ReduceMean"}

#: For all families that sum.
NOTE = """\
Sums are held against a copy of the array that they read, which reads as much and writes as much
again: 0.5 is the speed of memory that is only read. In the same way the gradient of a sum is held
against a copy of the array that it writes."""

REDUCTIONS = Family(_cases, _by, _gradient, optional=("weights",), onnx=_onnx, note=NOTE)
