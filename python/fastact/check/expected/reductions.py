"""Sums, and moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ... import _cpu
from ...measure.cases import DOUBLE, Case
from ...measure.sum_axes import is_sum
from ...ops.bounds import computed_in
from ...ops.engine.weighting import placed, places_of
from . import statistics
from .common import Expected, ulp, wide
from .statistics import TINY, gradient_of, initial_of, kept_of, where_of

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
    """Return a sum, or moments, or the gradient of one of them."""
    if not is_sum(case.op):
        return statistics.expected(case)
    return _sum_gradient(case) if case.entry == "backward" else _sum(case)


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
    """Return a group's part of a gradient, or of a tuple of them; a number is one of all groups."""
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
