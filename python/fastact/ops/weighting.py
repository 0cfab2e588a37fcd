"""What makes elements of x count more or less than once: weights, and a mask named `where`.

The formulas are in `src/common/reductions/weights.h`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .._cpu import View
from ..interop import foreign, validate
from ..interop.call import Call
from ..interop.frameworks import framework_of, to_numpy
from . import axes as _axes

_WHOLE = ("bool", "int32", "int64")

#: Dtypes that arrays of a call may have beside those that are computed; `x` where it is read alone.
ALSO: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"weights": _WHOLE, "where": validate.Only(("bool",))}
)
ALSO_OF_X = MappingProxyType({**ALSO, "x": _WHOLE})


class Weighting(NamedTuple):
    """Weights and mask over x's shape; None: not there."""

    weights: View | None = None
    where: View | None = None

    @property
    def given(self) -> bool:
        return self.weights is not None or self.where is not None


UNWEIGHTED = Weighting()


def arrays_with_weights(where: str, options: Any, **arrays: Any) -> dict[str, Any]:
    """The arrays of a call, with those that its options have for this."""
    for name in ALSO:
        value = getattr(options, name, None)
        if value is None or (name == "where" and value is True):
            continue
        if isinstance(value, bool | int | float):
            raise TypeError(f"{where}: {name} must be an array, got {validate.describe(value)}")
        foreign.plain(where, name, value)
        if not framework_of(value):
            value = to_numpy(where, name, value, also=_WHOLE, allowed=ALSO[name])
        arrays[name] = value
    return arrays


def weighting_of(call: Call, axis: Any) -> Weighting:
    """Of the arrays of a call, which `arrays_with_weights` gave it."""
    return Weighting(_weights_of(call, axis), _mask_of(call))


def _mask_of(call: Call) -> View | None:
    mask, x = call.views.get("where"), call.views["x"]
    if mask is None:
        return None
    check_mask(call.where, mask.dtype_name, mask.shape, x.shape)
    return mask.with_axes(tuple(range(x.ndim - mask.ndim))).broadcast_to(x.shape)


def _weights_of(call: Call, axis: Any) -> View | None:
    weights = call.views.get("weights")
    if weights is None:
        return None
    return aligned_weights(call, axis, weights).broadcast_to(call.views["x"].shape)


def check_mask(where: str, dtype: str, shape: tuple[int, ...], of_x: tuple[int, ...]) -> None:
    """Refuse a mask that does not say of each element of x whether it counts."""
    if dtype not in ALSO["where"]:
        raise validate.wrong_dtype(where, "where", dtype, ALSO["where"])
    if not _axes.broadcasts(shape, of_x):
        raise ValueError(f"{where}: where must broadcast to x's shape {of_x}, got {shape}")


def aligned_weights(call: Call, axis: Any, weights: View) -> View:
    """Give weights the axes of x: they have as many, or, as np.average has it, those of `axis`."""
    return weights.with_axes(lacking(call.where, axis, weights.shape, call.views["x"].shape))


def lacking(
    where: str, axis: Any, shape: tuple[int, ...], of_x: tuple[int, ...]
) -> tuple[int, ...]:
    """The axes of x that weights of this shape lack."""
    ndim = len(of_x)
    if len(shape) == ndim and _axes.broadcasts(shape, of_x):
        return ()
    over = _axes.axes(where, axis, ndim)
    named = axis if isinstance(axis, tuple | list) else over
    along = tuple(of_x[a] for a in over)
    if axis is None or shape != along or [a % ndim for a in named] != list(over):
        also = ""
        if axis is not None:
            of_axes = f"axes {over}, in this order," if len(over) > 1 else f"axis {over[0]}"
            also = f", or along {of_axes} {along}"
        elif 1 < len(shape) < ndim:
            also = ", or the lengths along the axes that axis= names"
        raise ValueError(
            f"{where}: weights must have shape {of_x}, or 1 along axes of it{also}, got {shape}"
        )
    return tuple(a for a in range(ndim) if a not in over)
