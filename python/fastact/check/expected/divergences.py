"""Divergences, by the terms and the bound that they state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import _cpu
from ...measure.cases import DOUBLE, Case
from ...ops.bounds import is_narrow
from ...ops.engine.axes import axes, reduced
from .common import Expected, wide
from .statistics import TINY

_MOST = float(np.finfo(np.float64).max) / 4
_SINGLE = np.finfo(np.float32)

Sized = tuple[Any, Any]  # an array, and the magnitudes that it is made of


def _times(p: Any, *parts: Any) -> Sized:
    """p times the sum of the parts, 0 where a double has no such probability."""
    none = p.astype(np.float64) == 0
    each = [np.where(none, 0, p * np.where(none, 0, part)) for part in parts]
    return sum(each), sum(map(np.abs, each))


def _kullback_leibler(x: Any, t: Any) -> Any:
    p = np.exp(t)
    return _with_nan(x, t, _times(p, t - x), _times(p, -1), _times(p, t - x, 1))


def _jensen_shannon(x: Any, t: Any) -> Any:
    def less_mean(d: Any) -> Any:
        """Less log((1 + exp(d)) / 2), which cancels near 0."""
        far = np.logaddexp(0, d) - np.log(x.dtype.type(2))
        return -np.where(d > 1, far, np.log1p(np.expm1(np.minimum(d, 1)) / 2))

    (of_p, size_p), (of_q, size_q) = (
        _times(np.exp(own), less_mean(other - own)) for own, other in ((t, x), (x, t))
    )
    of_both = (of_p + of_q) / 2, (size_p + size_q) / 2
    return _with_nan(x, t, of_both, (of_q / 2, size_q / 2), (of_p / 2, size_p / 2))


def _with_nan(x: Any, t: Any, *found: Sized) -> Any:
    is_nan = np.isnan(x) | np.isnan(t)
    return tuple((np.where(is_nan, np.nan, each), size) for each, size in found)


#: Functions of x = log(q) and t = log(p): an element's term, and its derivatives by x and by t.
_FORMULAS: Mapping[str, Callable[[Any, Any], Any]] = {
    "kl": _kullback_leibler,
    "js": _jensen_shannon,
}


def expected(case: Case) -> dict[str, Expected]:
    """y, or both gradients. Of a probability that is infinite nobody says what is right.

    Gradients of 16 bits take what is computed in float32 for infinite, and for 0.
    """
    op = case.op
    x, t = (wide(case.array(name), DOUBLE) for name in op.saves)
    over = axes("", case.option("axis"), x.ndim)
    term, *slopes = _FORMULAS[_cpu.PAIRS[op.pair]](x, t)
    wild = np.isposinf(x) | np.isposinf(t)
    tiny = TINY * (4 + np.where(np.isfinite(x - t), np.abs(x - t), 0))  # subnormal numbers
    if case.entry == "backward":
        dy = wide(case.array("dy"), DOUBLE).reshape(reduced(x.shape, over, keepdims=True))
        found = {}
        share, most = op.bounds.share, _MOST
        if is_narrow(case.dtype):
            share = op.bounds.narrow_gradient
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
