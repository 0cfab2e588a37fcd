"""Norms in the GPU benchmark: forward reads x and writes y; backward reads dy, x and writes dx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._gpu_work import ELEMENTS, Family, GpuCase, GpuWork, Maker, Tensors, peers_of
from ._workloads import COMPILED, TORCH

#: Rows from what a warp takes to what several blocks do, and the channels and pixels of a picture.
_LENGTHS = (256, 1024, 4096, 16384, 65536, 262144)
_CHANNELS, _GROUPS, _PIXELS = 64, 32, 56 * 56


def _norm_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    if op.name not in _NORMS:
        return []
    shapes: list[tuple[int, ...]] = []
    for size in sizes or (ELEMENTS,):
        if op.name == "group_norm":
            pixels = min(max(size // _CHANNELS, 1), _PIXELS)
            shapes.append((max(size // (_CHANNELS * pixels), 1), _CHANNELS, pixels))
        else:
            lengths = sorted({min(length, size) for length in _LENGTHS})
            shapes += [(size // length, length) for length in lengths]
    return [GpuCase(op, direction, dtype, shape) for shape in shapes]


def _layer_norm_by_torch(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def _rms_norm_by_torch(torch: Any, x: Any, weight: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def _group_norm_by_torch(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return torch.nn.functional.group_norm(x, _GROUPS, weight, bias)


#: Ops of the family that are measured, and what torch does for them.
_NORMS: dict[str, Callable[..., Any]] = {
    "layer_norm": _layer_norm_by_torch,
    "rms_norm": _rms_norm_by_torch,
    "group_norm": _group_norm_by_torch,
}


def _norm_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    op, torch, eager = case.op, device.torch, _NORMS[case.op.name]
    positional = (_GROUPS,) if op.name == "group_norm" else ()
    weights = 1 if op.name == "rms_norm" else 2
    length = _CHANNELS if op.name == "group_norm" else case.shape[-1]

    def parameters() -> list[Any]:
        return [device.random((length,), case.dtype) for _ in range(weights)]

    if case.direction == "forward":
        return GpuWork(
            lambda: (
                device.random(case.shape, case.dtype),
                *parameters(),
                device.empty(case.shape, case.dtype),
            ),
            lambda x, *rest: op(x, *positional, *rest[:-1], out=rest[-1]),
            lambda x, *rest: op(x, *positional, *rest[:-1]),
            peers_of(wanted, torch, lambda x, *own: eager(torch, x, *own), lambda t: t[:-1]),
        )

    def make() -> Tensors:
        """What backward takes, gradients of the parameters, dx."""
        x, dy = (device.random(case.shape, case.dtype) for _ in range(2))
        saved = op.forward(x, *positional, *parameters())[1]
        own = [device.empty((length,), case.dtype).zero_() for _ in range(weights)]
        return (dy, *saved, *own, device.empty(case.shape, case.dtype))

    def ours(*tensors: Any) -> Any:
        *inputs, dx = tensors
        return op.backward(*inputs[:-weights], out=(dx, *inputs[-weights:]))[0]

    def bind(tensors: Tensors) -> Callable[[], Any]:
        dy, x, *rest = tensors
        leaves = [t.detach().requires_grad_() for t in (x, *rest[-1 - 2 * weights : -1 - weights])]
        y = eager(torch, *leaves)
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)[0]

    return GpuWork(
        make,
        ours,
        lambda *tensors: op.backward(*tensors[: -1 - weights])[0],
        {TORCH: bind} if TORCH in wanted else {},
        {COMPILED: "its gradient is torch's own"} if COMPILED in wanted else {},
    )


NORMS = Family(_norm_cases, _norm_work)
