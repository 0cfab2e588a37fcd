"""What the GPU benchmark runs: for each family, its cases, our call and the same work by torch.

A family is one entry of `GPU_WORKLOADS`: which cases there are, and how each is built. Nothing here
needs a GPU: `device` makes the tensors, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .cuda_work import (
    BYTES,
    ITEM,
    Family,
    GpuCase,
    GpuWork,
    Maker,
    Tensors,
    peers_of,
)
from .cuda_workloads_bias import BIAS
from .cuda_workloads_gates import GATES
from .cuda_workloads_norms import NORMS
from .cuda_workloads_reductions import REDUCTIONS
from .workloads import LeftOut, function_named, torch_backward_kernel

# --- activations: forward reads x and writes y; backward reads dy and x and writes dx -------------


def _activation_cases(
    op: Any, direction: str, dtype: str, sizes: Sequence[int] | None
) -> list[GpuCase]:
    elements = sizes or (BYTES // ITEM[dtype],)
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


GPU_WORKLOADS = {
    "activations": Family(_activation_cases, _activation_work),
    "bias": BIAS,
    "gates": GATES,
    "reductions": REDUCTIONS,
    "norms": NORMS,
}
