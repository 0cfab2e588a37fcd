"""Statistics of masked arrays: of what the mask does not hide, by `where`.

What comes back is np.ma's: masked where nothing is left that counts, and there is no warning of it.
`Moments` have counts instead, which are 0 there.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..interop import foreign
from . import axes as _axes
from .moments import Moments
from .weighting import check_mask


def serves(op: Any, args: Sequence[Any]) -> bool:
    """Whether a call is a statistic's, of a masked array."""
    takes_where = "where" in op.entry_points["call"].defaults
    return takes_where and bool(args) and foreign.is_masked(args[0])


def call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The op's result."""
    entry = op.entry_points["call"]
    options, where = entry.bind(args, kwargs), entry.where
    if any(out is not None for out in options.out):
        raise foreign.loses_mask(where)
    ma = sys.modules["numpy.ma"]
    x, named = options.x, {name: getattr(options, name) for name in entry.defaults}
    counts = ~ma.getmaskarray(x)
    if options.where is not None:
        foreign.plain(where, "where", options.where)
        given = np.asarray(options.where)
        check_mask(where, str(given.dtype), given.shape, x.shape)
        counts &= given
    del named["out"]
    with warnings.catch_warnings():  # of too few elements, which the mask says; weights have others
        warnings.filterwarnings("ignore", "Mean of empty slice|Degrees of freedom", RuntimeWarning)
        result = op(x.data, **{**named, "where": counts})
    if isinstance(result, Moments):
        return result
    if isinstance(result, tuple):
        names = (*op.results, "count")  # the last of an average that returns it
        pairs = zip(names, result, strict=False)
        return tuple(_hidden(op, options, name, y, counts) for name, y in pairs)
    return _hidden(op, options, op.results[0], result, counts)


def _hidden(op: Any, options: Any, name: str, result: Any, counts: Any) -> Any:
    """A result with its own mask, where nothing is left that counts."""
    where, ma, x = f"fastact.{op.name}", sys.modules["numpy.ma"], options.x
    skips_nan, weights = getattr(op, "skips", False) and name != "sum", vars(options).get("weights")
    if skips_nan or weights is not None:
        left = _count(x.data, options, weights, counts, skips_nan)
    else:
        left = counts.sum(_axes.axes(where, options.axis, x.ndim), keepdims=options.keepdims)
    is_hidden = left <= (options.correction if name in ("var", "std") else 0)
    if np.ndim(result):
        return ma.array(result, mask=is_hidden)
    return ma.masked if is_hidden else result


def _count(x: Any, options: Any, weights: Any, where: Any, skips_nan: bool) -> Any:
    """How much counts for each result: weights, and what is not NaN."""
    from .mean_var import moments  # which imports this module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the op itself has warned
        return moments(
            x,
            options.axis,
            weights=weights,
            where=where,
            skipna=skips_nan,
            keepdims=options.keepdims,
        ).count
