"""Sums, means, variances and deviations, of all elements or of those that count."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case
from ...ops.bounds import rounding, unit_roundoff
from .common import Expected, ulp
from .reductions import TINY, Elements, gradient_of, initial_of, where_of


def expected(case: Case) -> dict[str, Expected]:
    """The statistic, or its gradients."""
    found = Elements(case, case.op.skips)
    return _gradients(case, found) if case.entry == "backward" else _statistic(case, found)


def _value(of: str, found: Elements) -> Any:
    """The sum, mean, var or std."""
    if of == "sum":
        return np.where(found.counts, found.x, 0).sum(found.axes, keepdims=True)
    if of == "mean":
        return found.mean
    var = found.m2 / found.divisor
    return np.sqrt(var) if of == "std" else var


def _slope(of: str, found: Elements) -> Any:
    """The factor by which dy gives dx, of a sum or a mean; else x - mean is another factor."""
    if of == "sum":
        return 1 + 0 * found.count
    if of == "mean":
        return 1 / found.count
    left = found.divisor
    if of == "var":
        return 2 / left
    return np.where(found.m2 == 0, 0, 1 / (left * np.sqrt(found.m2 / left)))


def _of_left(case: Case, found: Elements) -> Any:
    """The error of what a correction leaves of the weights; 0 without any."""
    if not case.has("weights"):
        return 0.0
    return case.op.bounds.sums.absolute * found.count / np.abs(found.count - found.correction)


def _statistic(case: Case, found: Elements) -> dict[str, Expected]:
    op, dtype, correction = case.op, case.dtype, found.correction
    exact = _value(op.of, found) + initial_of(case)
    # Infinities, too few elements and equal values, which long doubles do not tell apart, have
    # cases of their own in tests/statistics.
    judged = np.isfinite(exact) & (found.count > correction)
    safe = np.where(judged, exact, 0)
    if op.of in ("var", "std"):
        judged &= found.m2 > 2.0**-50 * found.count * found.mean**2
    if op.of in ("sum", "mean"):
        share = op.bounds.sums.share(dtype) * (found.count if op.of == "sum" else 1.0)
        error = share * found.magnitude
    else:
        std = np.sqrt(found.m2 / found.count)
        share = op.bounds.moments.of_second(found.mean, std, dtype) + _of_left(case, found)
        if op.of == "std":  # half of the variance's, and the root's own
            share = share / 2 + 2.0**-52
        error = share * np.abs(safe)
    allowed = np.nan_to_num(error) + found.count * TINY
    allowed = allowed + op.bounds.sums.share(dtype) * abs(initial_of(case))
    if dtype == DOUBLE:  # a GPU adds up means of the largest numbers as they are
        judged &= np.abs(safe) <= np.finfo(np.float64).max
        judged &= (found.magnitude * found.count < 1e307) | (not case.on_gpu)
    whole = np.broadcast_to(exact, found.count.shape)
    y = Expected(whole, allowed, True, judged)
    made = {op.results[0]: y.reshaped(found.result)}
    if case.option("returned"):
        count = np.broadcast_to(found.count, whole.shape)
        error = op.bounds.sums.allowed(count, count, dtype)
        made["count"] = Expected(count, error, True).reshaped(found.result)
    return made


def _gradients(case: Case, found: Elements) -> dict[str, Expected]:
    op, dtype, dy = case.op, case.dtype, gradient_of(case)
    slope = dy * _slope(op.of, found) * found.weights
    dx = slope * (found.x - found.mean) if op.of in ("var", "std") else slope
    dx = np.where(found.counts, dx, 0)
    error = op.bounds.gradient * unit_roundoff(dtype) * np.abs(dx)
    if op.of in ("var", "std"):
        of_mean = op.bounds.moments.mean * (found.magnitude + found.largest) * np.abs(slope)
        error = error + _of_left(case, found) * np.abs(dx) + of_mean
    error = error + rounding(dx, dtype, error)
    few = (found.count > found.correction) & (found.m2 > 2.0**-40 * found.count * found.mean**2)
    judged = np.isfinite(dx) & (few if op.of in ("var", "std") else True)
    made = {"dx": Expected(dx, np.broadcast_to(error, dx.shape), True, judged)}
    if "dweights" in op.gradients and case.has("weights"):
        made["dweights"] = _weight_gradient(case, found, dy)
    return made


def _weight_gradient(case: Case, found: Elements, dy: Any) -> Expected:
    """Add up the gradients of the elements that share a weight and that no mask hides."""
    weights = case.given["weights"]
    each = np.where(where_of(case), dy * (found.x - found.mean) / found.count, 0.0) * np.ones(
        case.shape
    )
    spread = (found.magnitude + found.largest) * np.abs(dy) / found.count
    error = 2.0**-46 * spread * np.ones(each.shape) + ulp(each, weights.dtype)
    repeats = tuple(
        i for i, (n, m) in enumerate(zip(weights.shape, each.shape, strict=True)) if n != m
    )
    dw, error = (part.sum(repeats, keepdims=True) for part in (each, error))
    return Expected(dw, error, True, np.isfinite(dw) & np.isfinite(error))
