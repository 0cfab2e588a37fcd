"""What the GPU benchmark runs: for each family, its cases, our call and the same work by torch.

A family is one entry of `GPU_WORKLOADS`: which cases there are, and how each is built. Nothing here
needs a GPU: `device` makes the tensors, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import _shapes
from ._gpu_work import (
    BYTES,
    ELEMENTS,
    ITEM,
    Family,
    GpuCase,
    GpuWork,
    Maker,
    Tensors,
    peers_of,
)
from ._workloads import LeftOut, function_named, torch_backward_kernel
from ._workloads_cuda_bias import BIAS
from ._workloads_cuda_gates import GATES
from ._workloads_cuda_norms import NORMS

# --- activations: forward reads x and writes y; backward reads dy and x and writes dx -------------


def _activation_cases(
    op: Any, direction: str, dtype: str, sizes: Sequence[int] | None
) -> list[GpuCase]:
    elements = sizes or sorted({ELEMENTS, BYTES // ITEM[dtype]})
    return [GpuCase(op, direction, dtype, (size,)) for size in elements]


def _activation_by_torch(torch: Any, name: str, direction: str) -> Callable[..., Any]:
    """The function, or what autograd calls for its gradient, of (dy, x)."""
    function = function_named(torch.nn.functional, name)
    if direction == "forward":
        return function
    kernel: Callable[..., Any] | None = torch_backward_kernel(torch, name)
    if kernel is not None:
        return kernel

    def pullback(dy: Any, x: Any) -> Any:
        return torch.func.vjp(function, x)[1](dy)[0]

    return pullback


def _activation_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    forward = case.direction == "forward"

    def make() -> Tensors:
        inputs = [device.random(case.shape, case.dtype) for _ in range(1 if forward else 2)]
        return (*inputs, device.empty(case.shape, case.dtype))

    call = case.op if forward else case.op.backward
    peers, left_out = {}, {}
    try:
        eager = _activation_by_torch(device.torch, case.op.name, case.direction)
        peers = peers_of(wanted, device.torch, eager, lambda tensors: tensors[:-1])
    except LeftOut as reason:
        left_out = dict.fromkeys(wanted, str(reason))
    return GpuWork(
        make,
        lambda *tensors: call(*tensors[:-1], out=tensors[-1]),
        lambda *tensors: call(*tensors[:-1]),
        peers,
        left_out,
    )


# --- reductions: x is read once; what is written is small -----------------------------------------


def _reduction_cases(
    op: Any, direction: str, dtype: str, sizes: Sequence[int] | None
) -> list[GpuCase]:
    if direction != "forward" or op.name not in _REDUCTIONS:
        return []
    return [
        GpuCase(op, direction, dtype, layout.shape, axis, *_results(op.name, dtype))
        for size in sizes or (ELEMENTS,)
        for layout in _shapes.reduced(size, narrow=max(size // 2, 1))
        for axis in layout.axes
    ]


def _sum_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    return torch.sum if axis is None else lambda x: torch.sum(x, dim=axis)


def _sum_squares_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    total = _sum_by_torch(torch, axis)
    return lambda x: total(torch.square(x))


def _var_mean_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    return lambda x: torch.var_mean(x, dim=axis, correction=0)[1]


#: Ops of the family that are measured, and what torch does for them.
_REDUCTIONS: dict[str, Callable[[Any, tuple[int, ...] | None], Callable[[Any], Any]]] = {
    "sum": _sum_by_torch,
    "sum_squares": _sum_squares_by_torch,
    "mean_var": _var_mean_by_torch,
    "moments": _var_mean_by_torch,
}


def _results(name: str, dtype: str) -> tuple[int, str]:
    """How many arrays an op reduces to, and of what dtype."""
    return 1 + (name in ("mean_var", "moments")), "float64" if name == "moments" else dtype


def _reduction_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """Of two results, which lie behind each other in one tensor, a call returns the mean."""
    eager = _REDUCTIONS[case.op.name](device.torch, case.axis)
    pair = case.reduces > 1
    shape = (case.reduces, *case.kept) if pair else case.kept

    def ours(x: Any, out: Any) -> Any:
        if not pair:
            return case.op(x, axis=case.axis, out=out)
        case.op(x, axis=case.axis, out=tuple(out))
        return out[0]

    def fresh(x: Any, out: Any) -> Any:
        made = case.op(x, axis=case.axis)
        return made if not pair else made.mean if case.op.name == "moments" else made[0]

    return GpuWork(
        lambda: (device.random(case.shape, case.dtype), device.empty(shape, case.into)),
        ours,
        fresh,
        peers_of(wanted, device.torch, eager, lambda tensors: tensors[:-1]),
    )


GPU_WORKLOADS = {
    "activations": Family(_activation_cases, _activation_work),
    "bias": BIAS,
    "gates": GATES,
    "reductions": Family(_reduction_cases, _reduction_work),
    "norms": NORMS,
}
