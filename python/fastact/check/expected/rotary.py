"""Rotary embeddings, by the formula and the bound that they state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...measure.cases import Case
from ...ops.bounds import RotaryBounds, computed_in
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
    """The pairs of a call, and how they are turned.

    turned : elements that are part of a pair. missing : where a position is no row of the table,
    which only a GPU allows; None: there are no positions.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.back, shape = case, case.entry == "backward", case.shape
        self.axis = axis = case.option("axis") % len(shape)
        self.missing, row = None, None
        if case.has("positions"):  # over x's shape, without the axis
            others = shape[:axis] + shape[axis + 1 :]
            row = np.broadcast_to(np.asarray(case.given["positions"]), others)
            missing = (row < 0) | (row >= len(case.given["cos"]))
            self.missing = np.expand_dims(missing, axis)
            row = np.where(missing, 0, row)
        self.cos, sin = (self._angles(name, row) for name in ("cos", "sin"))
        self.sin = -sin if self.back else sin
        place = np.arange(shape[axis])
        self.turned = np.expand_dims(
            place < 2 * self.cos.shape[axis], tuple(range(1, len(shape) - axis))
        )

    def _angles(self, name: str, row: np.ndarray | None) -> np.ndarray:
        """Give the cosines or sines of each pair; row : of the table, by position."""
        given, shape, axis = (
            wide(self.case.given[name], self.case.dtype),
            self.case.shape,
            self.axis,
        )
        if row is not None:
            return np.moveaxis(given[row], -1, axis)
        full = (*shape[:axis], given.shape[axis - len(shape)], *shape[axis + 1 :])
        return np.broadcast_to(given, full)

    def _summed(self, x: Any, cos: Any, sin: Any, sign: int) -> Any:
        """Turn the pairs of x, or with the other sign add up magnitudes in their places."""
        y, cos, sin = (np.moveaxis(array, self.axis, -1) for array in (x.copy(), cos, sin))
        count = cos.shape[-1]
        if self.case.option("interleaved"):
            a, b = y[..., 0 : 2 * count : 2], y[..., 1 : 2 * count : 2]
        else:
            a, b = y[..., :count], y[..., count : 2 * count]
        a[...], b[...] = a * cos + sign * (b * sin), b * cos + a * sin
        return np.moveaxis(y, -1, self.axis)

    def _size(self, x: Any) -> Any:
        """The magnitudes that each element adds up."""
        return self._summed(np.abs(x), np.abs(self.cos), np.abs(self.sin), 1)

    def of(self, x: Any, bounds: RotaryBounds, of_x: Any = 0.0) -> Expected:
        """Turn x, which is off by of_x."""
        dtype = self.case.dtype
        exact = self._summed(x, self.cos, self.sin, -1)
        size, of_x = self._size(x), self._size(0.0 * x + of_x)
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
