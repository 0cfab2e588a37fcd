"""Sums, means, variances and deviations, of all elements or of those that count."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case
from .common import Expected, ulp
from .reductions import (
    TINY,
    correction_of,
    gradient_of,
    initial_of,
    kept_of,
    statistics_of,
    where_of,
)


def expected(case: Case) -> dict[str, Expected]:
    """The statistic, or its gradients."""
    found = statistics_of(case, case.op.skips)
    return _gradients(case, found) if case.entry == "backward" else _statistic(case, found)


def _of_left(case: Case, found: Any) -> Any:
    """The error of what a correction leaves of the weights; 0 without any."""
    if not case.has("weights"):
        return 0.0
    return case.op.bounds.of_left(found.count, correction_of(case))


def _statistic(case: Case, found: Any) -> dict[str, Expected]:
    op, dtype, correction = case.op, case.dtype, correction_of(case)
    exact = found.statistic(op.of, correction) + initial_of(case)
    # Infinities, too few elements and equal values, which long doubles do not tell apart, have
    # cases of their own in tests/statistics.
    judged = np.isfinite(exact) & (found.count > correction)
    safe = np.where(judged, exact, 0)
    if op.of in ("var", "std"):
        judged &= found.m2 > 2.0**-50 * found.count * found.mean**2
    error = op.bounds.error(safe, found, dtype, _of_left(case, found))
    allowed = np.nan_to_num(error) + found.count * TINY
    allowed = allowed + op.bounds.sums.share(dtype) * abs(initial_of(case))
    if dtype == DOUBLE:  # a GPU adds up means of the largest numbers as they are
        judged &= np.abs(safe) <= np.finfo(np.float64).max
        judged &= (found.magnitude * found.count < 1e307) | (not case.on_gpu)
    whole = np.broadcast_to(exact, found.count.shape)
    y = Expected(whole, allowed, True, judged)
    made = {op.results[0]: y.reshaped(kept_of(case)[1])}
    if case.option("returned"):
        count = np.broadcast_to(found.count, whole.shape)
        error = op.bounds.sums.allowed(count, count, dtype)
        made["count"] = Expected(count, error, True).reshaped(kept_of(case)[1])
    return made


def _gradients(case: Case, found: Any) -> dict[str, Expected]:
    op, dtype, correction = case.op, case.dtype, correction_of(case)
    dy = gradient_of(case)
    dx = found.gradient(op.of, dy, correction)
    slope = dy * found.slope(op.of, correction) * found.weights
    magnitude = found.magnitude + found.largest
    error = op.bounds.allowed_gradient(dx, slope, magnitude, dtype, _of_left(case, found))
    few = (found.count > correction) & (found.m2 > 2.0**-40 * found.count * found.mean**2)
    judged = np.isfinite(dx) & (few if op.of in ("var", "std") else True)
    made = {"dx": Expected(dx, np.broadcast_to(error, dx.shape), True, judged)}
    if "dweights" in op.gradients and case.has("weights"):
        made["dweights"] = _weight_gradient(case, found, dy)
    return made


def _weight_gradient(case: Case, found: Any, dy: Any) -> Expected:
    """Add up the gradients of the elements that share a weight and that no mask hides."""
    weights = case.given["weights"]
    each = np.where(where_of(case), found.weight_gradient(dy), 0.0) * np.ones(case.shape)
    spread = (found.magnitude + found.largest) * np.abs(dy) / found.count
    error = 2.0**-46 * spread * np.ones(each.shape) + ulp(each, weights.dtype)
    repeats = tuple(
        i for i, (n, m) in enumerate(zip(weights.shape, each.shape, strict=True)) if n != m
    )
    dw, error = (part.sum(repeats, keepdims=True) for part in (each, error))
    return Expected(dw, error, True, np.isfinite(dw) & np.isfinite(error))
