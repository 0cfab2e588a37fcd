"""Activations with a parameter for each channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case
from ...ops.bounds import computed_in, unit_roundoff
from .common import Expected, wide, widened

Three = tuple[Any, Any, Any]


def _prelu(x: Any, w: Any) -> tuple[Three, Three]:
    by_x = np.where(x > 0, 1, w) + 0 * np.where(np.isnan(x), x, 0)
    exact = np.where(x > 0, x, w * x), by_x, np.where(x > 0, 0, x) + 0 * w
    return exact, exact


def _snake(x: Any, w: Any) -> tuple[Three, Three]:
    """Derivatives are told up to some angle, and long double's are of an angle that was rounded."""
    u = w * x
    is_x = (w == 0) | np.isinf(x) | np.isinf(w)
    of_small = 1 - u * u  # to the fourth power of u
    found = np.sin(2 * u) / u - (np.sin(u) / u) ** 2
    by_alpha = x * (x * np.where(np.abs(u) < 2.0**-16, of_small, found))
    u, is_long = np.abs(u), u.dtype == np.longdouble
    turns = np.where(u < 2.0**44, 1 + u * 2.0**-10 * is_long, np.inf)
    sizes = x, turns, turns * x * (x * np.minimum(1, 1 / u))
    return (x + np.where(is_x, 0, np.sin(w * x) ** 2 / w), 1 + np.sin(2 * w * x), by_alpha), sizes


#: Functions of x and a parameter, by the op: y and its derivatives by both, and the magnitudes that
#: their errors are told by.
_FORMULAS: Mapping[str, Callable[[Any, Any], tuple[Three, Three]]] = {
    "prelu": _prelu,
    "snake": _snake,
}


def expected(case: Case) -> dict[str, Expected]:
    op, dtype, bounds = case.op, case.dtype, case.op.bounds
    given = np.asarray(case.given[op.parameter])
    x, w = widened(case, "x"), wide(given.astype(computed_in(dtype)), dtype)
    axes = tuple(range(x.ndim))
    if w.size != 1:
        axis = case.option("channel_axis") % x.ndim
        axes = tuple(i for i in axes if i != axis)
        w = np.expand_dims(w, axes)
    else:
        w = w.reshape(())
    exact, sizes = _FORMULAS[op.name](x, w)
    value, by_x, by_w = zip(exact, map(np.abs, sizes), strict=True)
    if case.entry != "backward":
        error = bounds.value * unit_roundoff(dtype) * value[1]
        return {"y": Expected(value[0], error)}
    dy, found, info = widened(case, "dy"), [], np.finfo(computed_in(dtype))
    for units, (exact, size) in ((bounds.by_x, by_x), (bounds.by_parameter, by_w)):
        error = unit_roundoff(dtype) * (np.abs(dy) * units * np.abs(size) + np.abs(dy * exact))
        error = error + info.smallest_subnormal
        usual = np.isfinite(dy * exact) & (np.abs(dy * exact) + error <= info.max)
        found.append((dy * exact, np.broadcast_to(error, dy.shape), usual))
    (dx, of_dx, judged), (terms, of_terms, are_judged) = found
    total, size = terms.sum(axes), np.abs(terms).sum(axes)
    error = of_terms.sum(axes) + bounds.sums.absolute * size
    dw = Expected(total, error, True, are_judged.all(axes) & (size < 1e300), adds=DOUBLE)
    return {"dx": Expected(dx, of_dx, True, judged), op.gradients[1]: dw.reshaped(given.shape)}
