"""Divergences, by the terms and the bound that they state."""

from __future__ import annotations

import numpy as np

from ... import _cpu
from ...measure.cases import DOUBLE, Case
from ...ops.bounds import is_narrow
from ...ops.engine.axes import axes, reduced
from .. import reference
from .common import Expected, wide
from .reductions import TINY

_MOST = float(np.finfo(np.float64).max) / 4
_SINGLE = np.finfo(np.float32)


def expected(case: Case) -> dict[str, Expected]:
    """y, or both gradients. Of a probability that is infinite nobody says what is right.

    Gradients of 16 bits take what is computed in float32 for infinite, and for 0.
    """
    op = case.op
    x, t = (wide(case.array(name), DOUBLE) for name in op.saves)
    over = axes("", case.option("axis"), x.ndim)
    term, *slopes = reference.DIVERGENCES[_cpu.PAIRS[op.pair]](x, t)
    wild = np.isposinf(x) | np.isposinf(t)
    tiny = TINY * (4 + np.where(np.isfinite(x - t), np.abs(x - t), 0))  # subnormal numbers
    if case.entry == "backward":
        dy = wide(case.array("dy"), DOUBLE).reshape(reduced(x.shape, over, keepdims=True))
        found = {}
        share, most = op.bounds.of_gradient(case.dtype), _MOST
        if is_narrow(case.dtype):
            tiny *= _SINGLE.smallest_subnormal / TINY
            most = float(_SINGLE.max) / 4
        for name, (each, size) in zip(op.gradients, slopes, strict=True):
            error = np.abs(dy) * (share * size + tiny) + TINY
            judged = np.isfinite(dy * each) & (size < most) & (np.abs(dy) * size < most) & ~wild
            found[name] = Expected(dy * each, error, True, judged, adds=DOUBLE)
        return found
    keeps = bool(case.option("keepdims"))
    nans = np.isnan(x) | np.isnan(t)
    parts = (np.sum(part, over, keepdims=keeps) for part in (*term, tiny, wild, nans))
    exact, size, least, count, missing = parts
    judged = (missing > 0) | ((size < _MOST) & (count == 0))
    return {"y": Expected(exact, op.bounds.share * size + least, True, judged)}
