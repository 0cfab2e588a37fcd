"""Sums, means, variances and deviations, of all elements or of those that count, and moments."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case, Shape
from ...measure.sum_axes import axes_of
from ...ops.bounds import MomentBounds, unit_roundoff
from ...ops.engine.axes import unbroadcast
from .common import Expected, ulp, wide

TINY = 2.0**-1074
_OF_WEIGHTS = 2.0**-46  # relative, of a sum of weights
_SPREADS = {"var", "std", "m2"}
_CORRECTED = {"var", "std"}


def kept_of(case: Case) -> tuple[Shape, Shape, Shape]:
    """Return the axes that are reduced, and the result's shape: its own, and with the axes kept."""
    axes, result = axes_of(case.op, case.shape, case.given)
    return axes, result, tuple(1 if a in axes else n for a, n in enumerate(case.shape))


def gradient_of(case: Case) -> Any:
    """Return the gradient of a result, with the reduced axes where they were."""
    return wide(case.array("dy"), DOUBLE).reshape(kept_of(case)[2])


def where_of(case: Case) -> Any:
    """Return the mask of a call; True where there is none."""
    return case.given["where"] if case.has("where") else np.bool_(True)


def initial_of(case: Case) -> float:
    """Give the value that a sum begins with."""
    return float(case.given["initial"]) if case.has("initial") else 0.0


class Elements:
    """The elements of a call that count, in extended precision, and arrays that keep the axes.

    counts : which elements do: NaN does not where it is skipped. weights : how often each one
    counts, 0 for those that don't. count : the sum of weights. magnitude : the mean of abs(x).
    largest : the largest of these. of_left : the relative error of what a correction leaves of the
    weights. spread : tells the bound of a mean. times : so many times the bounds of moments.
    """

    def __init__(self, case: Case) -> None:
        self.axes, self.result, _ = kept_of(case)
        skips = getattr(case.op, "skips", False) or bool(case.option("skipna"))
        self.is_weighted = case.has("weights") or case.has("where") or skips
        self.x = x = wide(case.array("x"), DOUBLE)
        weights = case.given["weights"] if case.has("weights") else 1
        w = np.broadcast_to(np.asarray(weights).astype(x.dtype), x.shape)
        counts = (w != 0) & np.broadcast_to(where_of(case), x.shape) & ((x == x) | (not skips))
        held, total = np.where(counts, x, 0), partial(np.sum, axis=self.axes, keepdims=True)
        self.counts, self.weights = counts, np.where(counts, w, 0)
        self.count = total(self.weights)
        self.mean = total(self.weights * held) / self.count
        d = np.where(counts, x - self.mean, 0)
        d -= total(self.weights * d) / self.count  # the mean's own rounding
        self.m2 = total(np.where(counts, self.weights * d * d, 0))
        self.magnitude = total(self.weights * np.abs(held)) / self.count
        self.largest = np.abs(held).max(self.axes, keepdims=True, initial=0)
        ddof = case.given.get("ddof")
        self.correction = float(ddof if ddof is not None else case.given.get("correction", 0.0))
        self.divisor = np.maximum(self.count - self.correction, 0)
        self.of_left = 0.0
        if case.has("weights"):
            self.of_left = _OF_WEIGHTS * self.count / np.abs(self.count - self.correction)
        is_one = case.op.family == "statistics"
        self.times = 1.0 if is_one else 1.0 + self.is_weighted
        self.spread = self.magnitude + self.largest
        if not (self.is_weighted or is_one) and case.dtype == DOUBLE:
            self.spread = self.magnitude


def expected(case: Case) -> dict[str, Expected]:
    return (_gradients if case.entry == "backward" else _results)(case, Elements(case))


def _value(name: str, case: Case, of: Elements) -> tuple[Any, Any]:
    """Return a sum, mean, var, std or m2, and how far off it may be."""
    bounds: MomentBounds = case.op.bounds
    if case.op.family == "statistics" and name not in _SPREADS:
        share, more = bounds.sums.share(case.dtype), initial_of(case)
        if name == "mean":
            return of.mean, share * of.magnitude
        total = np.where(of.counts, of.x, 0).sum(of.axes, keepdims=True) + more
        return total, share * (of.count * of.magnitude + abs(more))
    times = bounds.merged if case.entry == "merge" else of.times
    if name == "mean":
        return of.mean, times * bounds.mean * of.spread
    share = bounds.of_second(of.mean, np.sqrt(of.m2 / of.count), case.dtype) + of.of_left
    exact = of.m2 if name == "m2" else of.m2 / of.divisor
    if name == "std":  # half of the variance's, and the root's own
        exact, share = np.sqrt(exact), share / 2 + 2.0**-52
    return exact, times * share * np.abs(exact)


def _results(case: Case, of: Elements) -> dict[str, Expected]:
    """Judge the results.

    Infinities, too few elements and equal values, which long doubles do not tell apart, have cases
    of their own in tests/statistics, but for moments in which each element counts once.
    """
    op, dtype, found = case.op, case.dtype, {}
    is_one = op.family == "statistics"
    for name in op.results:
        exact, error = _value(name, case, of)
        judged = of.count > (of.correction if name in _CORRECTED else 0)
        if is_one or of.is_weighted:
            judged &= np.isfinite(exact)
            if name in _SPREADS:
                judged &= of.m2 > (2.0**-50 if is_one else 2.0**-40) * of.count * of.mean**2
        elif name not in _CORRECTED:
            judged = np.ones(of.mean.shape, bool)
        if dtype == DOUBLE:  # what is too large for it is infinite; a GPU adds that up as it is
            fits = np.abs(exact) <= np.finfo(np.float64).max
            fits &= (of.magnitude * of.count < 1e307) | (not case.on_gpu)
            judged &= fits | ~np.isfinite(of.spread)
        error = np.where(np.isnan(error), 0, error) + (of.x.size + of.count) * TINY
        whole = np.broadcast_to(exact, of.count.shape)
        found[name] = Expected(whole, error, True, judged).reshaped(of.result)
    if case.option("returned") or ("m2" in op.results and of.is_weighted):
        share = op.bounds.sums.share(dtype) if is_one else 2 * _OF_WEIGHTS
        found["count"] = Expected(of.count, share * of.count, True).reshaped(of.result)
    return found


def _gradients(case: Case, of: Elements) -> dict[str, Expected]:
    """dx is dy times a factor of a sum or a mean, and one more times x - mean of the others."""
    op, dtype, dys = case.op, case.dtype, case.given["dy"]
    dys = dys if isinstance(dys, tuple) else (dys,)
    one, slope = np.zeros_like(of.x), np.zeros_like(of.x)
    for name, part in zip(op.results, dys, strict=True):
        dy = 0.0 if part is None else gradient_of(case.at("backward", dy=part)) * of.weights
        if name not in _SPREADS:
            one = one + (dy if name == "sum" else dy / of.count)
        elif name == "std":
            root = of.divisor * np.sqrt(of.m2 / of.divisor)
            slope = slope + np.where(of.m2 == 0, 0, dy / root)
        else:
            slope = slope + 2 * dy / (1 if name == "m2" else of.divisor)
    far = slope * (of.x - of.mean) if _SPREADS & {*op.results} else 0.0
    dx = np.where(of.counts, one + far, 0)
    error = op.bounds.gradient * unit_roundoff(dtype) * (np.abs(one) + np.abs(far))
    error = error + of.of_left * (np.abs(one) + np.abs(far))  # both are over the sum of the weights
    judged = np.isfinite(dx)
    if _SPREADS & {*op.results}:
        error = error + np.abs(slope) * of.times * op.bounds.mean * of.spread
        judged &= of.divisor > 0
    if "std" in op.results:
        judged &= of.m2 > 2.0**-40 * of.count * of.mean**2
    error = np.broadcast_to(np.where(of.counts, error, 0), dx.shape)
    found = {"dx": Expected(dx, error, True, judged)}
    if "dweights" in op.gradients and case.has("weights"):
        found["dweights"] = _weight_gradient(case, of, gradient_of(case))
    return found


def _weight_gradient(case: Case, found: Elements, dy: Any) -> Expected:
    """Add up the gradients of the elements that share a weight and that no mask hides."""
    weights = case.given["weights"]
    each = np.where(where_of(case), dy * (found.x - found.mean) / found.count, 0.0) * np.ones(
        case.shape
    )
    spread = (found.magnitude + found.largest) * np.abs(dy) / found.count
    error = 2.0**-46 * spread * np.ones(each.shape) + ulp(each, weights.dtype)
    repeats = unbroadcast("", weights.shape, each.shape)
    dw, error = (part.sum(repeats, keepdims=True) for part in (each, error))
    return Expected(dw, error, True, np.isfinite(dw) & np.isfinite(error))
