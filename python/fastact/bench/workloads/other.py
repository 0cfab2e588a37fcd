"""The benchmark of a family that has none of its own: the arrays of a call, and no peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...measure.peers import LeftOut
from ...measure.shapes import hidden, shape_label
from .work import BYTES, ITEM, Case, Family, Options, Sizes


def _cases(op: Any, direction: str, dtype: str, sizes: Sizes, on_gpu: bool) -> list[Case]:
    point = op.entry_points["call" if direction == "forward" else "backward"]
    accesses = len(point.arrays) + point.outputs
    shapes = [hidden(size) for size in sizes or (BYTES // 2 // ITEM[dtype],)]
    return [
        Case(op, direction, dtype, shape, shape_label(shape), accesses, on_gpu=on_gpu)
        for shape in shapes
    ]


def _on_cpu(op: Any, direction: str, dtype: str, options: Options) -> list[Case]:
    return _cases(op, direction, dtype, options.sizes, on_gpu=False)


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    raise LeftOut(f"{case.op.family} has no workloads of its own")


OTHER = Family(_on_cpu, partial(_cases, on_gpu=True), _torch)
