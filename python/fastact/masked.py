"""Sums and statistics of masked arrays, over the elements that the mask leaves, by `where`.

Results are np.ma's: they are masked where no element counts, without a warning. For an array with
neither elements nor a mask they are numbers, as in np.ma: sums are 0, and others NaN, except `std`.
`Moments` have counts instead, which are 0 there.
"""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .interop import foreign, handlers
from .ops.engine import axes as _axes
from .ops.engine.op import ops
from .ops.engine.weighting import check_mask
from .ops.moments import Moments


def _serves(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call has a masked array, and its op takes a mask."""
    return "where" in op.args and bool(args) and foreign.is_masked(args[0])


def _call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    entry = op.entry_points["call"]
    options, where = entry.bind(args, kwargs), entry.where
    if any(out is not None for out in options.out):
        raise foreign.loses_mask(where)
    x, named = options.x, {name: getattr(options, name) for name in entry.defaults}
    ma = sys.modules["numpy.ma"]
    counts, is_nothing = ~ma.getmaskarray(x), not x.size and ma.getmask(x) is ma.nomask
    mask = named.pop("where", None)
    if mask is not None:
        foreign.plain(where, "where", mask)
        given = np.asarray(mask)
        check_mask(where, str(given.dtype), given.shape, x.shape)
        counts &= given
    del named["out"]
    result = quietly(op, x.data, **named, where=counts)  # the mask shows where
    if isinstance(result, Moments):
        return result
    skips_nan = getattr(op, "skips", False) and getattr(op, "term", None) is None
    skips_nan |= named.get("skipna", False)
    weights, by = named.get("weights"), named.get("by")
    if skips_nan or weights is not None or by is not None:
        left = _count(x.data, options, weights, counts, skips_nan)
    else:
        left = counts.sum(_axes.axes(where, options.axis, x.ndim), keepdims=options.keepdims)
    parts = result if isinstance(result, tuple) else (result,)
    names = (*op.results, "count")  # the last of an average that returns it
    is_nothing &= mask is None and weights is None and by is None
    hidden = []
    for name, part in zip(names, parts, strict=False):
        # A result is not shown where too little is left that counts.
        least = options.correction if name in ("var", "std") else 0
        hides = left < 0 if is_nothing and name != "std" else left <= least
        if np.ndim(part):
            hidden.append(ma.array(part, mask=hides))
        else:
            hidden.append(ma.masked if hides else part)
    return tuple(hidden) if isinstance(result, tuple) else hidden[0]


def _count(x: Any, options: Any, weights: Any, where: Any, skips_nan: bool) -> Any:
    """How much counts for each result: the weights of elements that are not NaN, by groups."""
    by = {"by": getattr(options, "by", None), "groups": getattr(options, "groups", None)}
    told = {"skipna": skips_nan, "keepdims": options.keepdims, **by}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the op itself has warned
        return ops["moments"](x, options.axis, weights=weights, where=where, **told).count


def quietly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function whose results show where too little counts, without a warning of that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice|Degrees of freedom", RuntimeWarning)
        return function(*args, **options)


handlers.register(handlers.Handler(_serves, _call))
