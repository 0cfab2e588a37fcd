"""Over which axes a sum is, by the signature of the op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.bounds import SumBounds

Shape = tuple[int, ...]


def is_sum(op: Any) -> bool:
    """Whether an op states its accuracy as a sum does."""
    return isinstance(op.bounds, SumBounds)


def is_over_any(op: Any) -> bool:
    """Whether `axis` names the axes of a sum; else `axis` or `shape` tells which ones are left."""
    return "keepdims" in op.entry_points["call"].defaults


def is_to_shape(op: Any) -> bool:
    """Whether the shape of a sum is given."""
    return "shape" in op.entry_points["call"].defaults


def axes_of(op: Any, shape: Shape, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    """The axes of an array of a shape that a sum is over, and the shape of the sum."""
    ndim = len(shape)
    if is_to_shape(op):
        to = options["shape"]
        lacks = ndim - len(to)
        repeats = (i for i in range(lacks, ndim) if to[i - lacks] == 1 != shape[i])
        return (*range(lacks), *repeats), to
    default = op.entry_points["call"].defaults["axis"]
    axis = options.get("axis", default)
    if not is_over_any(op):
        return tuple(a for a in range(ndim) if a != axis % ndim), (shape[axis],)
    named = axis if isinstance(axis, tuple) else range(ndim) if axis is None else (axis,)
    axes = tuple(sorted(a % ndim for a in named))
    keepdims, groups = options.get("keepdims", False), options.get("groups")
    if groups is not None:
        return axes, (*(n for a, n in enumerate(shape) if a not in axes), groups)
    return axes, tuple(
        1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes
    )
