"""Rotary embeddings: the formula of `derivatives/formulas.py`, and the bound that they state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...derivatives import formulas
from ...measure.cases import Case
from ...ops.bounds import RotaryBounds, computed_in, rounding
from ...ops.engine.op import ops
from . import norms
from .common import WIDE, Expected, wide, widened


def expected(case: Case) -> dict[str, Expected]:
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
        axis = case.option("axis") % len(shape)
        self.cos, self.sin = (wide(case.given[name], case.dtype) for name in ("cos", "sin"))
        self.named = {"axis": axis, "interleaved": case.option("interleaved")}
        self.missing, along = None, axis - len(shape)
        if case.has("positions"):  # over x's shape, without the axis
            rows = np.asarray(case.given["positions"])
            missing = (rows < 0) | (rows >= len(self.cos))
            self.named["positions"], along = np.where(missing, 0, rows), -1
            others = shape[:axis] + shape[axis + 1 :]
            self.missing = np.expand_dims(np.broadcast_to(missing, others), axis)
        is_turned = np.arange(shape[axis]) < 2 * self.cos.shape[along]
        self.turned = np.expand_dims(is_turned, tuple(range(1, len(shape) - axis)))

    def _turn(self, x: Any, cos: Any, sin: Any) -> Any:
        named = {**self.named, "x": x, "cos": cos, "sin": sin}
        (y,) = formulas.results(ops["rotary"], named, WIDE)
        return y

    def _size(self, x: Any) -> Any:
        """Return the magnitudes that each element adds up."""
        x, cos, sin = map(np.abs, (x, self.cos, self.sin))
        return np.maximum(self._turn(x, cos, sin), self._turn(x, cos, -sin))

    def of(self, x: Any, bounds: RotaryBounds, of_x: Any = 0.0) -> Expected:
        """Turn x, which is off by of_x."""
        dtype = self.case.dtype
        exact = self._turn(x, self.cos, -self.sin if self.back else self.sin)
        size, of_x = self._size(x), self._size(0.0 * x + of_x)
        info = np.finfo(computed_in(dtype))
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
        tiny = 4 * float(np.finfo(computed_in(case.dtype)).smallest_subnormal)
        of_n = n.allowed + rounding(n.exact, case.dtype, n.allowed) + tiny
        y = turn.of(np.where(judged, n.exact, 0.0), turned, of_n)
        of_row = np.broadcast_to(judged, case.shape).all(turn.named["axis"], keepdims=True)
        nan = n.nan if y.nan is None else n.nan | y.nan
        return {**found, "y": replace(y, judged=y.judged & of_row, nan=nan)}
    p = turn.of(widened(case, "dy"), turned)
    found = norms.gradients(case, p.exact, p.allowed)
    if turn.missing is not None and turn.missing.any():
        dx = found["dx"]
        found = {"dx": replace(dx, judged=dx.judged & ~turn.missing)}
    fits = bool(np.all(p.judged if turn.missing is None else p.judged | turn.missing))
    return {name: replace(one, judged=one.judged & fits) for name, one in found.items()}
