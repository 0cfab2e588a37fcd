"""How elements of x count: weights, a mask named `where`, and groups, named `by`.

The formulas are in `src/common/reductions/weights.h`, and those of groups are in
`src/cpu/reductions/grouped.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from types import MappingProxyType
from typing import Any

import numpy as np

from ...interop import devices, foreign, validate
from ...interop.call import Call
from ...interop.frameworks import framework_of, to_numpy
from ...interop.validate import Role
from . import axes as _axes
from .axes import Over

#: The roles of these arguments.
ROLES: Mapping[str, Role] = MappingProxyType(
    {"weights": validate.WEIGHTS, "where": validate.COUNTS}
)

#: The arguments that `forward` saves, in this order.
SAVED = (*ROLES, "by")


def read_what_counts(where: str, arrays: dict[str, Any]) -> None:
    """Read weights and a mask among the arrays, whatever their dtype."""
    if arrays.get("where") is True:
        del arrays["where"]
    if isinstance(labels := arrays.get("by"), list) and str in map(type, labels):
        raise validate.wrong_dtype(where, "by", "str", validate.LABELS.also)
    for name in [name for name in ROLES if name in arrays]:
        value = arrays[name]
        foreign.plain(where, name, value)
        if not (isinstance(value, bool | int | float) or framework_of(value)):
            also, allowed = validate.WHOLE, ROLES[name].also
            arrays[name] = to_numpy(where, name, value, also=also, allowed=allowed)


def check_mask(where: str, dtype: str, shape: tuple[int, ...], of_x: tuple[int, ...]) -> None:
    """Refuse a mask that is not bool or does not broadcast to x."""
    if dtype not in validate.COUNTS.also:
        raise validate.wrong_dtype(where, "where", dtype, validate.COUNTS.also)
    _axes.check_repeats(where, "where", shape, of_x)


def places_of(
    where: str, axis: Any, shape: tuple[int, ...], of_x: tuple[int, ...], name: str = "weights"
) -> tuple[int, ...]:
    """Find, for each axis of x, the axis of weights (or another `name`) of this shape, or -1.

    They have x's shape, or lie along the axes that `axis` names, in its order, as for np.average,
    or else broadcast.
    """
    ndim = len(of_x)
    over = _axes.axes(where, axis, ndim)
    if ndim and isinstance(axis, tuple | list):
        over = tuple(index(a) % ndim for a in axis)
    along = tuple(of_x[a] for a in over)
    if shape == along and shape != of_x:
        return tuple(over.index(a) if a in over else -1 for a in range(ndim))
    if not _axes.broadcasts(shape, of_x):
        also = ""
        if axis is not None:
            of_axes = f"axes {over}, in this order," if len(over) != 1 else f"axis {over[0]}"
            also = f", or be along {of_axes} {along}"
        elif 1 < len(shape) < ndim:
            also = ", or have the lengths along the axes that axis= names"
        raise ValueError(f"{where}: {name} must broadcast to x's shape {of_x}{also}, got {shape}")
    extra = ndim - len(shape)
    return tuple(max(a - extra, -1) for a in range(ndim))


def placed(array: Any, places: tuple[int, ...], m: Any = np) -> Any:
    """Give an array the axes of x, by the result of `places_of`; m: the array's module."""
    order = tuple(axis for axis in places if axis >= 0)
    if order != tuple(sorted(order)):
        array = m.transpose(array, order)
    return array.reshape(tuple(array.shape[order.index(a)] if a >= 0 else 1 for a in places))


def groups_in(labels: Any) -> int:
    """Count the groups that labels name."""
    return int(np.max(np.asarray(labels), initial=-1)) + 1


def untold(where: str) -> TypeError:
    """Make the error for a missing number of groups where labels have no values."""
    return TypeError(
        f"{where}: groups must be given with by under JAX and where torch traces or dask is lazy: "
        f"labels are not read there"
    )


def by_groups(call: Any, options: Any, over: Over) -> Over:
    """Replace the reduced axes by groups if a call has labels."""
    where, labels = call.where, call.views.get("by")
    groups = getattr(options, "groups", None)
    if labels is None:
        if groups is not None:
            raise TypeError(f"{where}: groups must come with by")
        return over
    device = call.place.device if isinstance(call, Call) else (devices.CPU, 0)
    if device[0] != devices.CPU:
        came = validate.device_name(device)
        raise TypeError(f"{where}: by must be None except on the CPU, got {came}")
    if groups is None:
        if not (isinstance(call, Call) and call.framework.computes):
            raise untold(where)
        call.reads_values()
        groups = groups_in(np.asarray(labels).view(labels.dtype_name))
    count, ndim = _axes.integer(where, "groups", groups), len(over.whole)
    if count < 0:
        raise ValueError(f"{where}: groups must not be negative, got {count}")
    if options.keepdims:
        raise ValueError(f"{where}: keepdims must be False with by, whose groups are an axis")
    if not over.axes or ndim == _axes.MOST:
        raise ValueError(
            f"{where}: x must have an axis to reduce and at most {_axes.MOST - 1} axes with by, "
            f"got axis {validate.describe(options.axis)} of {ndim}"
        )
    kept = _axes.reduced(over.whole, over.axes, keepdims=True)
    return over._replace(
        shape=(*_axes.reduced(over.whole, over.axes, keepdims=False), count),
        dropped=over.axes,
        grouped=(*kept, count),
        of_labels=places_of(where, options.axis, labels.shape, over.whole, "by"),
    )
