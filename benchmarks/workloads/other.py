"""The benchmark of a family that has none of its own: the arrays of a call, and no peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastact.measure.peers import LeftOut

from ..shapes import hidden
from .work import BYTES, ITEM, Asked, Case, Family


def _cases(asked: Asked) -> list[Case]:
    point = asked.op.entry_points["call" if asked.forward else "backward"]
    sizes = asked.sizes or (BYTES // 2 // ITEM[asked.dtype],)
    return [asked.case(hidden(size), len(point.arrays) + point.outputs) for size in sizes]


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    raise LeftOut(f"{case.op.family} has no workloads of its own")


OTHER = Family(_cases, _torch)
