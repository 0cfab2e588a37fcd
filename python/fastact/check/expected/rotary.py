"""Rotary embeddings, by the formula and the bound that they state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...measure.cases import Case
from ...ops.bounds import RotaryBounds, computed_in
from .. import reference
from . import norms
from .common import Expected, info_of, wide, widened


def expected(case: Case) -> dict[str, Expected]:
    """y, or the gradients."""
    if "rstd" in case.op.saves:
        return _normed(case)
    turn = _Turn(case)
    found = turn.of(widened(case, "dy" if turn.back else "x"), case.op.bounds)
    return {case.results[0]: found}


class _Turn:
    """The pairs of a call, and how they are turned."""

    def __init__(self, case: Case) -> None:
        self.case, self.back = case, case.entry == "backward"
        self.axis = case.option("axis") % len(case.shape)
        cos, sin = (_angles(case, name, case.shape, self.axis) for name in ("cos", "sin"))
        self.cos, self.sin = cos, -sin if self.back else sin
        place = np.arange(case.shape[self.axis])
        self.turned = np.expand_dims(
            place < 2 * cos.shape[self.axis], tuple(range(1, len(case.shape) - self.axis))
        )
        self.missing = _is_missing(case, case.shape, self.axis)

    def _value(self, x: Any) -> Any:
        interleaved = self.case.option("interleaved")
        return reference.rotary(x, self.cos, self.sin, self.axis, interleaved=interleaved)

    def _size(self, x: Any) -> Any:
        """The magnitudes that each element adds up."""
        cos, sin, interleaved = abs(self.cos), abs(self.sin), self.case.option("interleaved")
        return reference.rotary(
            np.abs(x), cos, sin, self.axis, signed=False, interleaved=interleaved
        )

    def of(self, x: Any, bounds: RotaryBounds, of_x: Any = 0.0) -> Expected:
        """Turn x, which is off by of_x."""
        dtype = self.case.dtype
        exact, size, of_x = self._value(x), self._size(x), self._size(0.0 * x + of_x)
        info = info_of(computed_in(dtype))
        error = bounds.allowed(exact, size, dtype, of_x) + 4 * float(info.smallest_subnormal)
        error = np.where(self.turned, error, of_x)
        judged = np.isfinite(exact) & ((size < float(info.max) / 4) | ~self.turned)
        if self.missing is None:
            return Expected(exact, error, False, judged)
        missing = self.missing & self.turned
        return Expected(exact, error, False, judged & ~self.missing, missing)


def _normed(case: Case) -> dict[str, Expected]:
    """Judge a norm whose result is turned, if its casting is "exact"; give nothing otherwise."""
    if case.option("casting") not in (None, "exact"):
        return {}
    turn, turned = _Turn(case), case.op.bounds.turned
    if not turn.back:
        found = norms.expected(case)
        n = found["y"]
        judged = True if n.judged is None else n.judged
        tiny = 4 * float(info_of(computed_in(case.dtype)).smallest_subnormal)
        y = turn.of(np.where(judged, n.exact, 0.0), turned, n.allowed + tiny)
        of_row = np.broadcast_to(judged, case.shape).all(turn.axis, keepdims=True)
        nan = n.nan if y.nan is None else n.nan | y.nan
        return {**found, "y": replace(y, judged=y.judged & of_row, nan=nan)}
    p = turn.of(widened(case, "dy"), turned)
    found = norms.gradients(case, p.exact, p.allowed)
    if turn.missing is not None and turn.missing.any():
        dx = found["dx"]
        found = {"dx": replace(dx, judged=dx.judged & ~turn.missing)}
    fits = bool(np.all(p.judged if turn.missing is None else p.judged | turn.missing))
    return {name: replace(one, judged=one.judged & fits) for name, one in found.items()}


def _positions(case: Case, shape: tuple[int, ...], axis: int) -> np.ndarray | None:
    """Over x's shape, with length 1 along the axis; None: there are none."""
    if not case.has("positions"):
        return None
    others = shape[:axis] + shape[axis + 1 :]
    return np.expand_dims(np.broadcast_to(np.asarray(case.given["positions"]), others), axis)


def _is_missing(case: Case, shape: tuple[int, ...], axis: int) -> np.ndarray | None:
    """Tell where a position is no row of the table, which only a GPU allows."""
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
