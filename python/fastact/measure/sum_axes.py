"""Over which axes a sum is, by the signature of the op."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ..ops.bounds import SumBounds
from ..ops.engine.axes import Over, over_axes

Shape = tuple[int, ...]


def is_sum(op: Any) -> bool:
    """Tell whether an op states its accuracy as a sum does."""
    return isinstance(op.bounds, SumBounds)


def reduces(op: Any) -> bool:
    """Tell whether `axis` names axes that an op gives one number for, as a sum or a logsumexp does.

    Of another sum `axis` or `shape` tells which axes are left.
    """
    return "keepdims" in op.entry_points["call"].defaults


def is_to_shape(op: Any) -> bool:
    """Tell whether the shape of a sum is given."""
    return "shape" in op.entry_points["call"].defaults


def axes_of(op: Any, shape: Shape, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    """Return the axes of an array of a shape that a sum is over, and the shape of the sum."""
    told = SimpleNamespace(**{**op.entry_points["call"].defaults, **options})
    over: Over = getattr(op, "_over", over_axes)(op.name, told, shape)
    if options.get("groups") is None:
        return over.axes, over.shape
    kept = tuple(n for axis, n in enumerate(shape) if axis not in over.axes)
    return over.axes, (*kept, options["groups"])
