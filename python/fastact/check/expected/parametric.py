"""Activations with a parameter for each channel."""

from __future__ import annotations

import numpy as np

from ...measure.cases import DOUBLE, Case
from ...ops.bounds import computed_in, unit_roundoff
from .. import reference
from .common import Expected, slack, wide, widened


def expected(case: Case) -> dict[str, Expected]:
    """y, or dx and the parameter's gradient."""
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
    value, by_x, by_w = reference.PARAMETRIC[op.name].of(x, w)
    if case.entry != "backward":
        error = bounds.value * unit_roundoff(dtype) * value[1] + slack(value[1], dtype)
        return {"y": Expected(value[0], error)}
    dy, found, info = widened(case, "dy"), [], np.finfo(computed_in(dtype))
    for units, (exact, size) in ((bounds.by_x, by_x), (bounds.by_parameter, by_w)):
        error = bounds.of_product(units, dy, exact, size, dtype) + slack(dy * size, dtype)
        error = error + info.smallest_subnormal
        usual = np.isfinite(dy * exact) & (np.abs(dy * exact) + error <= info.max)
        found.append((dy * exact, np.broadcast_to(error, dy.shape), usual))
    (dx, of_dx, judged), (terms, of_terms, are_judged) = found
    total, size = terms.sum(axes), np.abs(terms).sum(axes)
    error = of_terms.sum(axes) + bounds.sums.absolute * size
    dw = Expected(total, error, True, are_judged.all(axes) & (size < 1e300), adds=DOUBLE)
    return {"dx": Expected(dx, of_dx, True, judged), op.gradients[1]: dw.reshaped(given.shape)}
