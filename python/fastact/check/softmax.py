"""The accuracy of the softmax family: results and gradients in units of their stated bounds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.bounds import CrossEntropyBounds, SoftmaxBounds
from .common import ErrorRow, Options, Report, check_by_cases
from .reductions import dtypes

_SHAPES = ((301, 77), (9, 2500), (3, 9), (2, 70_001))
_SPREADS = (0.01, 3.0, 30.0, 2000.0)  # of normal data: exponentials alike, and far apart
_AXES = (-1, 0)  # the transposed array: tiles of rows


def _logits(dtype: np.dtype[Any], options: Options) -> Iterator[NDArray[Any]]:
    rng = np.random.default_rng(0)
    for (rows, columns), spread in product(_SHAPES, _SPREADS):
        count = rows * (8 if options.exhaustive else 1)
        yield (spread * rng.standard_normal((count, columns))).astype(dtype)


def _of_function(op: Any, x: Any, oracle: Any) -> tuple[float, float]:
    """The worst errors of a function of rows and of its gradient."""
    wide, bounds, count = oracle.wide(x.dtype), op.bounds, x.shape[1]
    z = oracle.row_logits(x, 1.0, None, x.dtype)
    exact = oracle.softmax_row(op.name, z, (1,))
    largest = np.max(np.abs(z), 1, keepdims=True)
    allowed = bounds.allowed(exact, largest, count, x.dtype, rounds=False)
    keeps = {"keepdims": True} if op.saves != ("y",) else {}
    dy = np.random.default_rng(1).standard_normal(exact.shape).astype(x.dtype)
    worst = [0.0, 0.0]
    slope: Any
    for axis in _AXES:
        shown = x if axis == -1 else np.ascontiguousarray(x.T)
        y, saved = op.forward(shown, axis=axis, **keeps)
        dx = op.backward(dy if axis == -1 else dy.T, *saved, axis=axis, **keeps)
        y, dx, lse = (a if axis == -1 else a.T for a in (y, dx, saved[-1]))
        if keeps:
            slope = dy.astype(wide) * np.exp(z - lse.astype(wide))
            of_dx = bounds.through_lse(slope, z, x.dtype)
        else:
            of_y, of_dy = y.astype(wide), dy.astype(wide)
            slope, factor, total = oracle.softmax_gradient(op.name, of_dy, of_y, (1,), 1.0)
            of_dx = bounds.gradient(slope, 1.0, factor, of_dy, total, count, x.dtype)
        worst[0] = max(worst[0], oracle.excess(y, exact, allowed))
        worst[1] = max(worst[1], oracle.excess(dx, slope, of_dx))
    return worst[0], worst[1]


def _of_loss(op: Any, x: Any, oracle: Any) -> tuple[float, float]:
    """The worst errors of the losses and of their gradient, for classes and for probabilities."""
    rng, wide = np.random.default_rng(1), oracle.wide(x.dtype)
    weight = rng.uniform(0.5, 2, x.shape[1]).astype(np.promote_types(x.dtype, np.float32))
    classes = rng.integers(0, x.shape[1], x.shape[0])
    probable = rng.uniform(0, 2 / x.shape[1], x.shape).astype(x.dtype)
    dy = rng.standard_normal(x.shape[0]).astype(x.dtype)
    g = dy.astype(wide)[:, None]
    worst = [0.0, 0.0]
    for target, smoothing in product((classes, probable), (0.0, 0.1)):
        how: dict[str, Any] = {"reduction": "none", "label_smoothing": smoothing}
        found, saved = op.forward(x, target, weight=weight, **how)
        exact, terms, _, tw = oracle.cross_entropy(
            x.astype(wide), target, weight, 1, -100, smoothing
        )
        allowed = op.bounds.allowed(exact, terms, x.shape[1], x.dtype)
        worst[0] = max(worst[0], oracle.excess(found, exact, allowed))
        dx = op.backward(dy, *saved, **how)
        p = np.exp(x.astype(wide) - saved[3].astype(wide)[:, None]) * tw.sum(1, keepdims=True)
        slope = g * (p - tw)
        allowed = op.bounds.gradient(slope, np.abs(g) * (p + tw), x.shape[1], x.dtype)
        worst[1] = max(worst[1], oracle.excess(dx, slope, allowed))
    return worst[0], worst[1]


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    oracle = importlib.import_module("fastact.check.reference")
    of = _of_loss if isinstance(op.bounds, CrossEntropyBounds) else _of_function
    for dtype, _ in dtypes(report):
        yield ErrorRow((dtype.name,), partial(_logits, dtype, options), lambda x: of(op, x, oracle))


_LEGEND = """\
The worst errors of results and gradients in units of their bounds, which the docstrings tell, over
rows whose elements are alike or far apart, along the last axis and along the first. Gradients are
those for what forward saved."""

CHECK = check_by_cases(
    _rows,
    ["dtype"],
    {"y": 1, "dx": 1},
    _LEGEND,
    of=(SoftmaxBounds, CrossEntropyBounds),
)
