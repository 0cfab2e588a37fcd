"""What makes elements of x count more or less than once: weights, and a mask named `where`.

The formulas are in `src/common/reductions/weights.h`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...interop import foreign, validate
from ...interop.frameworks import framework_of, to_numpy
from ...interop.validate import Role
from . import axes as _axes

#: The roles of these arguments.
ROLES: Mapping[str, Role] = MappingProxyType(
    {"weights": validate.WEIGHTS, "where": validate.COUNTS}
)


def read_what_counts(where: str, arrays: dict[str, Any]) -> None:
    """Read weights and a mask among the arrays as they are, whatever their dtype."""
    if arrays.get("where") is True:
        del arrays["where"]
    for name in [name for name in ROLES if name in arrays]:
        value = arrays[name]
        foreign.plain(where, name, value)
        if not (isinstance(value, bool | int | float) or framework_of(value)):
            also, allowed = validate.WHOLE, ROLES[name].also
            arrays[name] = to_numpy(where, name, value, also=also, allowed=allowed)


def check_mask(where: str, dtype: str, shape: tuple[int, ...], of_x: tuple[int, ...]) -> None:
    """Refuse a mask that does not say of each element of x whether it counts."""
    if dtype not in validate.COUNTS.also:
        raise validate.wrong_dtype(where, "where", dtype, validate.COUNTS.also)
    _axes.check_repeats(where, "where", shape, of_x)


def lacking(
    where: str, axis: Any, shape: tuple[int, ...], of_x: tuple[int, ...]
) -> tuple[int, ...]:
    """The axes of x that weights of this shape lack.

    They are along `axis`, as np.average has them, or else broadcast.
    """
    ndim = len(of_x)
    over = _axes.axes(where, axis, ndim)
    named = list(axis) if isinstance(axis, tuple | list) else over
    along = tuple(of_x[a] for a in over)
    if shape == along and (ndim == 0 or [a % ndim for a in named] == list(over)):
        return _axes.others(over, ndim)
    if not _axes.broadcasts(shape, of_x):
        also = ""
        if axis is not None:
            of_axes = f"axes {over}, in this order," if len(over) != 1 else f"axis {over[0]}"
            also = f", or be along {of_axes} {along}"
        elif 1 < len(shape) < ndim:
            also = ", or have the lengths along the axes that axis= names"
        raise ValueError(f"{where}: weights must broadcast to x's shape {of_x}{also}, got {shape}")
    return tuple(range(ndim - len(shape)))
