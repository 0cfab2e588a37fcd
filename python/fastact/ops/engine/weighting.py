"""What makes elements of x count more or less than once: weights, and a mask named `where`.

The formulas are in `src/common/reductions/weights.h`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop import foreign, validate
from ...interop.call import Call
from ...interop.frameworks import framework_of, to_numpy
from ...interop.validate import Role
from . import axes as _axes

#: The roles of these arguments.
ROLES: Mapping[str, Role] = MappingProxyType(
    {"weights": validate.WEIGHTS, "where": validate.COUNTS}
)

#: What the kernels make of m2.
NOTHING, M2, VARIANCE, DEVIATION, MEAN_SLOPE, VARIANCE_SLOPE, DEVIATION_SLOPE, TOTAL, M2_OR_ROOT = (
    range(len(_cpu.OF_M2))
)


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
    given = {name: getattr(options, name, None) for name in ROLES}
    arrays |= {name: value for name, value in given.items() if value is not None}
    read_what_counts(where, arrays)
    return arrays


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


def weighting_of(call: Call, axis: Any) -> Weighting:
    """Of the arrays of a call, which `arrays_with_weights` gave it."""
    if "where" not in call.views and "weights" not in call.views:
        return UNWEIGHTED
    return Weighting(_weights_of(call, axis), mask_of(call, call.views["x"].shape))


def mask_of(call: Call, shape: tuple[int, ...]) -> View | None:
    """The mask of a call, over the shape of the data."""
    mask = call.views.get("where")
    if mask is None:
        return None
    check_mask(call.where, mask.dtype_name, mask.shape, shape)
    return _axes.repeated(mask, shape)


def _weights_of(call: Call, axis: Any) -> View | None:
    weights = call.views.get("weights")
    if weights is None:
        return None
    return aligned_weights(call, axis, weights).broadcast_to(call.views["x"].shape)


def check_mask(where: str, dtype: str, shape: tuple[int, ...], of_x: tuple[int, ...]) -> None:
    """Refuse a mask that does not say of each element of x whether it counts."""
    if dtype not in validate.COUNTS.also:
        raise validate.wrong_dtype(where, "where", dtype, validate.COUNTS.also)
    _axes.check_repeats(where, "where", shape, of_x)


def aligned_weights(call: Call, axis: Any, weights: View) -> View:
    """Give weights the axes of x."""
    return weights.with_axes(lacking(call.where, axis, weights.shape, call.views["x"].shape))


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


def reduce_moments(
    call: Call,
    axes: tuple[int, ...],
    mean: View | None = None,
    low: View | None = None,
    second: View | None = None,
    count: View | None = None,
    of_m2: int = M2,
    correction: float = 0.0,
    skips: bool = False,
    warning: str | None = None,
    weighting: Weighting = UNWEIGHTED,
) -> None:
    """Of the elements of x, which is not empty."""
    x, y = call.views["x"], second if mean is None else mean
    assert y is not None
    weights, where = weighting
    results = {"mean": mean, "low": low, "second": second, "count": count}
    given = {name: view for name, view in results.items() if view is not None}
    run = partial(
        call.run,
        "moments",
        x=x,
        weights=weights,
        where=where,
        axes=axes,
        of_m2=of_m2,
        correction=correction,
        skips=skips,
        warning=warning,
    )
    if all(validate.steps(view) == validate.steps(y) for view in given.values()):
        run(**given)
        return
    for name, view in given.items():  # for it walks results by one set of strides
        run(**{name: view})


def weighted_gradient(
    call: Call,
    dy: View,
    slope: View,
    to: View,
    weighting: Weighting,
    skips: bool,
    *,
    x: View | None = None,
    mean: View | None = None,
    of_weights: bool = False,
    accumulate: bool = False,
) -> None:
    """The gradient for x, or for the weights, by `src/common/reductions/weights.h`.

    x : None: the call's.
    """
    weights, where = weighting
    call.run(
        "weighted_gradient",
        x=call.views["x"] if x is None else x,
        dy=dy,
        slope=slope,
        weights=weights,
        where=where,
        mean=mean,
        to=to,
        of_weights=of_weights,
        skips=skips,
        accumulate=accumulate,
    )
