"""The accuracy of the softmax family: results and gradients in units of their stated bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..measure.cases import is_loss, reduces_rows
from ..ops.bounds import CrossEntropyBounds, SoftmaxBounds
from .common import ErrorRow, Options, Report, check_by_cases, dtypes
from .expected import errors

_SHAPES = ((301, 77), (9, 2500), (3, 9), (2, 70_001))
_SPREADS = (0.01, 3.0, 30.0, 2000.0)  # of normal data: exponentials alike, and far apart
_AXES = (-1, 0)  # the transposed array: tiles of rows


def _logits(dtype: np.dtype[Any], options: Options) -> Iterator[NDArray[Any]]:
    rng = np.random.default_rng(0)
    for (rows, columns), spread in product(_SHAPES, _SPREADS):
        count = rows * (8 if options.exhaustive else 1)
        yield (spread * rng.standard_normal((count, columns))).astype(dtype)


def _of_function(op: Any, x: Any) -> tuple[float, ...]:
    """The worst errors of a function of rows and of its gradient."""
    worst = [0.0, 0.0]
    for axis in _AXES:
        shown = x if axis == -1 else np.ascontiguousarray(x.T)
        named = {"x": shown, "axis": axis}
        named |= {"keepdims": True} if reduces_rows(op) else {}
        rows = (len(x), 1) if reduces_rows(op) else x.shape
        dy = np.random.default_rng(1).standard_normal(rows).astype(x.dtype)
        found = errors(op, shown.shape, named, {"dy": dy if axis == -1 else dy.T})
        worst = [*map(max, worst, found.values())]
    return tuple(worst)


def _of_loss(op: Any, x: Any) -> tuple[float, ...]:
    """The worst errors of the losses and of their gradient, for classes and for probabilities."""
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, x.shape[1]).astype(np.promote_types(x.dtype, np.float32))
    classes = rng.integers(0, x.shape[1], x.shape[0])
    probable = rng.uniform(0, 2 / x.shape[1], x.shape).astype(x.dtype)
    dy = rng.standard_normal(x.shape[0]).astype(x.dtype)
    worst = [0.0, 0.0]
    for target, smoothing in product((classes, probable), (0.0, 0.1)):
        named = {"logits": x, "target": target, "weight": weight, "reduction": "none"}
        found = errors(op, x.shape, {**named, "label_smoothing": smoothing}, {"dloss": dy})
        worst = [*map(max, worst, found.values())]
    return tuple(worst)


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    of = _of_loss if is_loss(op) else _of_function
    for dtype in dtypes(report):
        yield ErrorRow((dtype.name,), partial(_logits, dtype, options), partial(of, op))


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
