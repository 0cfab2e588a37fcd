"""Rotary embeddings, by the formula and the bound that they state."""

from __future__ import annotations

import numpy as np

from ...measure.cases import Case
from ...ops.bounds import computed_in
from .. import reference
from .common import Expected, info_of, wide, widened


def expected(case: Case) -> dict[str, Expected]:
    """y, or dx."""
    back = case.entry == "backward"
    x = widened(case, "dy" if back else "x")
    axis, named = case.option("axis") % x.ndim, {"interleaved": case.option("interleaved")}
    cos, sin = (_angles(case, name, x.shape, axis) for name in ("cos", "sin"))
    exact = reference.rotary(x, cos, -sin if back else sin, axis, **named)
    size = reference.rotary(np.abs(x), np.abs(cos), np.abs(sin), axis, signed=False, **named)
    count = 2 * cos.shape[axis]
    turned = (
        np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)]) < count
    )
    tiny = 4 * float(info_of(computed_in(case.dtype)).smallest_subnormal)
    error = np.where(turned, case.op.bounds.allowed(exact, size, case.dtype) + tiny, 0.0)
    most = float(info_of(computed_in(case.dtype)).max) / 4
    judged = np.isfinite(exact) & ((size < most) | ~turned)
    missing = _is_missing(case, x.shape, axis)
    if missing is None:
        return {case.results[0]: Expected(exact, error, False, judged)}
    return {case.results[0]: Expected(exact, error, False, judged & ~missing, missing & turned)}


def _positions(case: Case, shape: tuple[int, ...], axis: int) -> np.ndarray | None:
    """Over x's shape, with length 1 along the axis; None: there are none."""
    if not case.has("positions"):
        return None
    others = shape[:axis] + shape[axis + 1 :]
    return np.expand_dims(np.broadcast_to(np.asarray(case.given["positions"]), others), axis)


def _is_missing(case: Case, shape: tuple[int, ...], axis: int) -> np.ndarray | None:
    """Where a position is no row of the table, which only a GPU allows."""
    positions, rows = _positions(case, shape, axis), len(case.given["cos"])
    return None if positions is None else (positions < 0) | (positions >= rows)


def _angles(case: Case, name: str, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """The cosines or sines of each pair."""
    given = wide(np.asarray(case.given[name]), case.dtype)
    positions = _positions(case, shape, axis)
    if positions is None:
        full = (*shape[:axis], given.shape[axis - len(shape)], *shape[axis + 1 :])
        return np.broadcast_to(given, full)
    row = np.moveaxis(positions, axis, -1)[..., 0]
    rows = given[np.where((row >= 0) & (row < len(given)), row, 0)]
    return np.moveaxis(rows, -1, axis)
