"""Reductions in the GPU benchmark: x is read once, and what is written is small.

The gradients write an array of x's size: of a sum they read next to nothing, of a sum of squares x,
and of moments x twice, for the means are computed anew before anything can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import shapes
from .cuda_work import ELEMENTS, Family, GpuCase, GpuWork, Maker, Tensors, gradients_of, peers_of
from .shapes import Axis

_BOTH = "value_and_grad"

#: Arrays of x's size that the gradients read and write.
_ACCESSES = {"sum": 1, "sum_squares": 2, "mean_var": 3, "moments": 3}


def _pair(name: str) -> bool:
    """Whether an op has two results."""
    return name in ("mean_var", "moments")


def _cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    if op.name not in _ACCESSES:
        return []
    backward = direction == "backward"
    # Gradients are of x's dtype, whatever the results are.
    into = "float64" if op.name == "moments" and not backward else dtype
    case = partial(GpuCase, op, direction, dtype, reduces=1 + _pair(op.name), into=into)
    if backward:
        case = partial(case, accesses=_ACCESSES[op.name])
    found = [
        case(layout.shape, axis)
        for size in sizes or (ELEMENTS,)
        for layout in shapes.reduced(size, narrow=max(size // 2, 1))
        for axis in layout.axes
    ]
    if backward and hasattr(op, _BOTH):
        found += [case((size,), variant=_BOTH) for size in sizes or (ELEMENTS,)]
    return found


# --- the same by torch ----------------------------------------------------------------------------


def _sum(torch: Any, axis: Axis) -> Callable[[Any], Any]:
    return torch.sum if axis is None else lambda x: torch.sum(x, dim=axis)


def _sum_squares(torch: Any, axis: Axis) -> Callable[[Any], Any]:
    total = _sum(torch, axis)
    return lambda x: total(torch.square(x))


def _mean_var(torch: Any, axis: Axis) -> Callable[[Any], Any]:
    return lambda x: torch.var_mean(x, dim=axis, correction=0)[::-1]


def _moments(torch: Any, axis: Axis) -> Callable[[Any], Any]:
    def moments(x: Any) -> Any:
        var, mean = torch.var_mean(x, dim=axis, correction=0)
        return mean, var * (x.numel() // max(mean.numel(), 1))

    return moments


_FORWARD: dict[str, Callable[[Any, Axis], Callable[[Any], Any]]] = {
    "sum": _sum,
    "sum_squares": _sum_squares,
    "mean_var": _mean_var,
    "moments": _moments,
}


def _spread(case: GpuCase) -> Callable[[Any], Any]:
    """The gradient of a sum, aligned with x."""
    axes = range(len(case.shape)) if case.axis is None else case.axis
    aligned = tuple(1 if i in axes else n for i, n in enumerate(case.shape))
    return lambda dy: dy.view(aligned)


def _gradient(case: GpuCase) -> Callable[..., Any]:
    """The gradient of a sum, of dy and perhaps x, written out as ours is."""
    spread, shape = _spread(case), case.shape
    if case.op.name == "sum":
        return lambda dy: spread(dy).expand(shape).clone()
    return lambda dy, x: 2 * x * spread(dy)


# --- the calls ------------------------------------------------------------------------------------


def _work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    if case.variant == _BOTH:
        return _both(case, device, wanted)
    return (_forward if case.direction == "forward" else _backward)(case, device, wanted)


def _forward(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """A set: x, y; two results lie behind each other in one tensor, and a call returns the mean."""
    op, pair = case.op, _pair(case.op.name)
    shape = (2, *case.kept) if pair else case.kept

    def ours(x: Any, out: Any) -> Any:
        if not pair:
            return op(x, axis=case.axis, out=out)
        op(x, axis=case.axis, out=tuple(out))
        return out[0]

    def fresh(x: Any, out: Any) -> Any:
        made = op(x, axis=case.axis)
        return made if not pair else made.mean if op.name == "moments" else made[0]

    return GpuWork(
        lambda: (device.random(case.shape, case.dtype), device.empty(shape, case.into)),
        ours,
        fresh,
        peers_of(wanted, device.torch, _FORWARD[op.name](device.torch, case.axis), _all_but_last),
    )


def _all_but_last(tensors: Tensors) -> Tensors:
    """The inputs of a set."""
    return tensors[:-1]


def _backward(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """A set: dy, or the gradients of two results, perhaps x, and dx."""
    op, pair, torch = case.op, _pair(case.op.name), device.torch
    takes_x = op.name != "sum"

    def make() -> Tensors:
        came = [device.random(case.kept, case.dtype) for _ in range(1 + pair)]
        x = [device.random(case.shape, case.dtype)] if takes_x else []
        return (*came, *x, device.empty(case.shape, case.dtype))

    def call(tensors: Tensors, out: Any) -> Any:
        came = tensors[:2] if pair else tensors[0]
        return op.backward(came, tensors[-2] if takes_x else case.shape, axis=case.axis, out=out)

    peers = (
        gradients_of(wanted, torch, _FORWARD[op.name](torch, case.axis), lambda t: (t[2:3], t[:2]))
        if pair
        else peers_of(wanted, torch, _gradient(case), _all_but_last)
    )
    return GpuWork(
        make,
        lambda *tensors: call(tensors, tensors[-1]),
        lambda *tensors: call(tensors, None),
        peers,
    )


def _both(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """A set: x, y, dx, of which a call returns dx."""
    op, torch = case.op, device.torch
    return GpuWork(
        lambda: (
            device.random(case.shape, case.dtype),
            device.empty((), case.dtype),
            device.empty(case.shape, case.dtype),
        ),
        lambda x, y, dx: op.value_and_grad(x, out=(y, dx))[1],
        lambda x, y, dx: op.value_and_grad(x)[1],
        peers_of(
            wanted,
            torch,
            lambda x: (2 * x, torch.sum(torch.square(x))),
            lambda tensors: tensors[:1],
        ),
    )


REDUCTIONS = Family(_cases, _work)
