"""Norms in the GPU benchmark: forward reads x and writes y; backward reads dy, x and writes dx.

Of those that add a residual, forward reads it and writes the sum, too, and backward reads the
gradient of the sum. Norms of channels in training are in `cuda_workloads_channels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import shapes
from .cuda_norms import Norm, by_channels, channel_axis, norm_work
from .cuda_work import ITEM, Family, GpuCase, GpuWork, Maker, Tensors, pictures
from .cuda_workloads_channels import CHANNEL_NORMS

#: Rows from what a warp takes to what several blocks do, in arrays past any second-level cache.
_LENGTHS = (256, 1024, 4096, 16384, 65536, 262144)
_ARRAY = 2**27  # bytes
#: And short rows as others publish them, of which an array fits into the cache, and a length that
#: is no power of two.
_PUBLISHED = ((32768, 256), (8192, 5120))
_GROUPS = 32


def _norm_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    arrays = _NORMS[op.name].arrays[direction == "backward"]
    case = partial(GpuCase, op, direction, dtype, accesses=arrays)
    if op.name in _OF_ROWS:
        rows = [
            (size // length, length)
            for size in sizes or (_ARRAY // ITEM[dtype],)
            for length in sorted({min(length, size) for length in _LENGTHS})
        ]
        rows += () if sizes else _PUBLISHED
        return [case(shape, axis=(1,)) for shape in rows]
    # Of pictures, statistics are those of each one, unless they are the batch's or given.
    each = 0 if op.name in CHANNEL_NORMS else 1
    return [
        case(
            shape,
            axis=shapes.others(shape, channel)[each:],
            channel=channel,
            groups=_GROUPS if op.name == "group_norm" else 0,
        )
        for shape, channel in pictures(sizes)
    ]


def _row_norm_by_torch(name: str, torch: Any, case: GpuCase) -> Callable[..., Any]:
    functional = torch.nn.functional

    def norm(x: Any, *rest: Any) -> Any:
        if name == "layer_norm":
            return functional.layer_norm(x, x.shape[-1:], *rest)
        return functional.rms_norm(x, x.shape[-1:], *rest, 1e-6)

    def add_norm(x: Any, *rest: Any) -> Any:
        *weights, residual = rest
        total = x + residual
        return norm(total, *weights), total

    return norm if case.op.name == name else add_norm


def _zero(saved: Tensors, case: GpuCase) -> Tensors:
    """The residual on backward of torch, where x is the sum already."""
    return (saved[0].new_zeros(()),)


def _residual(device: Maker, case: GpuCase) -> Tensors:
    return (device.random(case.shape, case.dtype),)


def _group_norm_by_torch(torch: Any, case: GpuCase) -> Callable[..., Any]:
    return by_channels(
        case, lambda x, *weights: torch.nn.functional.group_norm(x, _GROUPS, *weights)
    )


def _instance_norm_by_torch(torch: Any, case: GpuCase) -> Callable[..., Any]:
    return by_channels(
        case, lambda x, *weights: torch.nn.functional.instance_norm(x, None, None, *weights)
    )


def _of_rows(name: str, weights: int) -> dict[str, Norm]:
    by_torch = partial(_row_norm_by_torch, name)
    adds = Norm(by_torch, (4, 4), weights, 2, others=_residual, fixed=_zero)
    return {name: Norm(by_torch, weights=weights), f"add_{name}": adds}


_OF_ROWS = _of_rows("layer_norm", 2) | _of_rows("rms_norm", 1)

#: The norms that are measured.
_NORMS: dict[str, Norm] = {
    **_OF_ROWS,
    "group_norm": Norm(_group_norm_by_torch, told=channel_axis, positional=(_GROUPS,)),
    "instance_norm": Norm(_instance_norm_by_torch, told=channel_axis),
    **CHANNEL_NORMS,
}


def _norm_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    return norm_work(case, device, wanted, _NORMS[case.op.name])


NORMS = Family(_norm_cases, _norm_work)
