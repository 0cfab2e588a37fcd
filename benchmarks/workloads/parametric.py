"""The benchmark of parametric activations: forward reads x and writes y, backward dy, x and dx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastact.measure.peers import function_named

from .. import shapes
from .work import BYTES, ITEM, Asked, Case, Family


def _case(asked: Asked, shape: shapes.Shape, channel: int) -> Case:
    return asked.case(
        shape,
        2 if asked.forward else 3,
        f"{shapes.shape_label(shape)}, channels {channel}",
        options={"channel_axis": channel},
        axis=shapes.others(shape, channel),
        channel=channel,
    )


def _cases(asked: Asked) -> list[Case]:
    if asked.on_gpu:
        rows = shapes.of_lengths(asked.sizes or (BYTES // 2 // ITEM[asked.dtype],), (1024,))
        pictures = [shape for shape, channel in shapes.pictures(asked.sizes) if channel == 1]
        return [_case(asked, shape, 1) for shape in (*rows, *pictures)]
    layouts = shapes.chosen(shapes.BIASED, asked.shapes)
    return [_case(asked, a.shape, 1) for a in layouts if a.channel is not None]


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    return function_named(torch.nn.functional, case.op.name)


PARAMETRIC = Family(_cases, _torch)
