"""Sums, and moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ... import _cpu
from ...measure.cases import DOUBLE, Case, Shape
from ...measure.sum_axes import axes_of, is_sum
from ...ops.bounds import computed_in, unit_roundoff
from ...ops.engine.weighting import placed, places_of
from .common import Expected, ulp, wide

TINY = 2.0**-1074
_OF_WEIGHTS = 2.0**-46  # relative, of a sum of weights


#: The terms that the kernels' sums make of an element, by their names, and their derivatives.
_TERMS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "identity": (lambda x: x, lambda x: 1 + 0 * x),
    "square": (lambda x: x * x, lambda x: 2 * x),
    "valid": (lambda x: np.where(x == x, x, 0.0), lambda x: np.where(x == x, 1.0, 0.0)),
}


def term_of(op: Any) -> Callable[[Any], Any]:
    """Give the function that makes an element the term of a sum."""
    return _TERMS[_cpu.TERMS[op.term]][0]


def expected(case: Case) -> dict[str, Expected]:
    """A sum, or moments, or the gradient of one of them."""
    if not is_sum(case.op):
        return _moments_gradient(case) if case.entry == "backward" else _moments(case)
    return _sum_gradient(case) if case.entry == "backward" else _sum(case)


def kept_of(case: Case) -> tuple[Shape, Shape, Shape]:
    """The axes that are reduced, and the result's shape: its own, and with the axes kept."""
    axes, result = axes_of(case.op, case.shape, case.given)
    return axes, result, tuple(1 if a in axes else n for a, n in enumerate(case.shape))


def gradient_of(case: Case, name: str = "dy") -> Any:
    """The gradient of a result, with the reduced axes where they were."""
    return wide(case.array(name), DOUBLE).reshape(kept_of(case)[2])


def where_of(case: Case) -> Any:
    """The mask of a call; True where there is none."""
    return case.given["where"] if case.has("where") else np.bool_(True)


def of_groups(
    case: Case, expected_of: Callable[[Case], dict[str, Expected]]
) -> dict[str, Expected]:
    """Judge each group by a mask of its elements: results side by side, gradients added up."""
    axis, by = case.option("axis"), case.given["by"]
    by = placed(by, places_of("fastact", axis, by.shape, case.shape))
    labels = np.broadcast_to(by, case.shape)
    each, is_back = [], case.entry == "backward"
    for group in range(case.given["groups"]):
        given = {**case.given, "where": (labels == group) & where_of(case)}
        del given["by"], given["groups"]
        if is_back:
            given["dy"] = _of_group(given["dy"], group)
        each.append(expected_of(replace(case, given=given)))
    return {name: _joined([part[name] for part in each], labels, is_back) for name in each[0]}


def _of_group(dy: Any, group: int) -> Any:
    """A group's part of a gradient, or of a tuple of them; a number is one of all groups."""
    if isinstance(dy, tuple):
        return tuple(_of_group(part, group) for part in dy)
    return dy[..., group] if np.ndim(dy) else dy


def _joined(each: list[Expected], labels: Any, is_back: bool) -> Expected:
    """Results of all groups beside each other; gradients, which are 0 elsewhere, added up."""
    whole = [np.shape(part.exact) for part in each]
    judged: list[Any] = []
    for group, (part, shape) in enumerate(zip(each, whole, strict=True)):
        of = np.broadcast_to(True if part.judged is None else part.judged, shape)
        judged.append(of | (labels != group) if is_back and shape == labels.shape else of)
    exact = [part.exact for part in each]
    allowed = [np.broadcast_to(p.allowed, n) for p, n in zip(each, whole, strict=True)]
    if not is_back:
        beside = [np.stack(parts, -1) for parts in (exact, allowed, judged)]
        return replace(each[0], exact=beside[0], allowed=beside[1], judged=beside[2])
    total, error = (np.nan_to_num(np.stack(parts)).sum(0) for parts in (exact, allowed))
    return replace(each[0], exact=total, allowed=error, judged=np.all(judged, 0))


# --- sums -----------------------------------------------------------------------------------------


def _sum(case: Case) -> dict[str, Expected]:
    op, dtype = case.op, case.dtype
    axes, result, _ = kept_of(case)
    x = wide(case.array(op.entry_points["call"].arrays[0]), DOUBLE)
    terms = np.where(where_of(case), term_of(op)(x), 0)
    y = terms.sum(axes).reshape(result) + initial_of(case)
    size = np.abs(terms).sum(axes).reshape(result) + abs(initial_of(case))
    count = math.prod(case.shape[a] for a in axes)
    error = (op.bounds.ulp - 0.5) * ulp(y, dtype) + op.bounds.share(dtype) * size + count * TINY
    limit = np.finfo(np.float64).max / 4
    judged = ~(np.isfinite(size) & (size > limit)) if dtype == DOUBLE else None
    found = {op.results[0]: Expected(y, error, True, judged, adds=DOUBLE)}
    if case.entry == "value_and_grad":
        found["dx"] = Expected(_TERMS[_cpu.TERMS[op.term]][1](x), 0.0, True)
    return found


def _sum_gradient(case: Case) -> dict[str, Expected]:
    op, error = case.op, 0.0
    dx = np.broadcast_to(gradient_of(case), case.shape)
    if "x" in op.saves:
        dx = dx * _TERMS[_cpu.TERMS[op.term]][1](wide(case.array("x"), DOUBLE))
        error = ulp(dx, computed_in(case.dtype)) / 2 if case.dtype.itemsize == 2 else 0.0
    dx = np.where(where_of(case), dx, 0)
    return {"dx": Expected(dx, error, True, np.isfinite(dx))}


# --- moments --------------------------------------------------------------------------------------


def is_weighted(case: Case) -> bool:
    """Whether elements count more than once, or not at all."""
    return case.has("weights") or case.has("where") or bool(case.option("skipna"))


def initial_of(case: Case) -> float:
    """Give the value that a sum begins with."""
    return float(case.given["initial"]) if case.has("initial") else 0.0


def correction_of(case: Case) -> float:
    """Give the number that is subtracted from the count, under whichever name it comes."""
    ddof = case.given.get("ddof")
    return float(ddof if ddof is not None else case.given.get("correction", 0.0))


class Elements:
    """The elements of a call that count, in extended precision, and arrays that keep the axes.

    counts : which elements do: NaN does not where it is skipped. weights : how often each one
    counts, 0 for those that don't. count : the sum of weights. magnitude : the mean of abs(x).
    largest : the largest of these.
    """

    def __init__(self, case: Case, skips: bool) -> None:
        self.axes, self.result, _ = kept_of(case)
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
        self.correction = correction_of(case)
        self.divisor = np.maximum(self.count - self.correction, 0)


class _Moments(Elements):
    """Elements of moments, or of a mean and a variance; spread : tells the bound of a mean."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, bool(case.option("skipna")))
        self.spread = self.magnitude + self.largest
        if not is_weighted(case) and case.dtype == DOUBLE:
            self.spread = self.magnitude
        self.of_left = 0.0
        if case.has("weights"):
            self.of_left = _OF_WEIGHTS * self.count / np.abs(self.count - self.correction)
        if "m2" in case.op.results:
            self.divisor, self.of_left = np.ones_like(self.count), _OF_WEIGHTS * case.has("weights")


def _moments(case: Case) -> dict[str, Expected]:
    op, dtype, of = case.op, case.dtype, _Moments(case)
    bounds, is_moments = op.bounds, "m2" in op.results
    times = bounds.merged if case.entry == "merge" else 1 + is_weighted(case)
    second = of.m2 / of.divisor
    share = bounds.of_second(of.mean, np.sqrt(of.m2 / of.count), dtype) + of.of_left
    size = math.prod(case.shape[a] for a in of.axes)
    of_second = times * share * np.abs(second) + size * TINY
    largest = np.abs(np.where(of.counts, of.x, 0)).sum(of.axes, keepdims=True)
    judged: Any = np.ones(of.mean.shape, bool)
    if dtype == DOUBLE and case.on_gpu:  # it adds up the largest numbers as they are
        judged = (largest < np.finfo(np.float64).max / 4) | ~np.isfinite(of.spread)
    if is_weighted(case):  # of few elements tests/statistics has the rules
        judged = judged & (of.count > 0) & np.isfinite(of.mean)
    enough = judged & (is_moments | (of.count > of.correction))
    if dtype == DOUBLE:  # what is too large for it is infinite
        enough = enough & ((second <= np.finfo(np.float64).max) | ~np.isfinite(of.spread))
    if is_weighted(case):
        enough = enough & (of.m2 > 2.0**-40 * of.count * of.mean**2)
    found = {
        "mean": Expected(of.mean, times * bounds.mean * of.spread, True, judged),
        op.results[1]: Expected(second, of_second, True, enough),
    }
    if is_weighted(case) and is_moments:  # else the count is a number
        found["count"] = Expected(of.count, 2 * _OF_WEIGHTS * of.count, True)
    return {name: one.reshaped(of.result) for name, one in found.items()}


def _moments_gradient(case: Case) -> dict[str, Expected]:
    """dmean / n + 2 dvar (x - mean) / divisor; each product is rounded."""
    of, bounds = _Moments(case), case.op.bounds
    parts = []
    for part in case.given["dy"]:
        parts.append(0.0 if part is None else gradient_of(case.at("backward", dy=part)))
    one = parts[0] * of.weights / of.count
    slope = 2 * parts[1] * of.weights / of.divisor
    far = np.abs(slope * (of.x - of.mean))
    error = bounds.gradient * unit_roundoff(case.dtype) * (abs(one) + far) + of.of_left * far
    error = error + abs(slope) * (1 + is_weighted(case)) * bounds.mean * of.spread
    dx, error = (np.where(of.counts, part, 0) for part in (one + slope * (of.x - of.mean), error))
    judged = np.isfinite(dx) & (of.divisor > 0)
    return {"dx": Expected(dx, np.broadcast_to(error, dx.shape), True, judged)}
