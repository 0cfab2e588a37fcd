"""A result with its bound, and formulas in the precision to judge by, for all families.

float32 and the 16-bit types are judged in float64, float64 in the 64 bits of x86's long double.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...derivatives.operations import Operations
from ...measure.cases import DOUBLE, Case
from ...ops.bounds import Activation, computed_in
from ...ops.bounds import ulp as ulp
from ...ops.engine.fused import IDENTITY
from ...ops.engine.op import ops
from .. import reference

_LONG = np.longdouble


@dataclass(frozen=True)
class Expected:
    """The value of a result, and how far off it may be.

    exact : in float64 or wider. allowed : how far off it may be, before it is rounded to its dtype,
    without the oracle's own error, which is allowed besides.
    rounds : whether that rounding adds half a ULP. judged : where; None: everywhere.
    nan : where it has to be a NaN whatever `exact` is; None: nowhere.
    is_near : whether a bound is near the oracle's own error in narrower dtypes than float64, too.
    adds : the type in which it is added to what is there; None: the one that it is computed in.
    """

    exact: Any
    allowed: Any
    rounds: bool = True
    judged: Any = None
    nan: Any = None
    adds: Any = None
    is_near: bool = False

    def added_to(self, base: Any, dtype: np.dtype[Any]) -> Expected:
        """Add this result to the values that were there, in their dtype."""
        base = wide(base, DOUBLE if self.adds else dtype)
        with np.errstate(all="ignore"):
            total, size = self.exact + base, np.abs(self.exact) + np.abs(base)
            error = self.allowed + ulp(size, self.adds or computed_in(dtype))
            if not self.rounds:
                error = error + ulp(total, dtype) / 2
        judged = np.isfinite(total) & (True if self.judged is None else self.judged)
        return replace(self, exact=total, allowed=error, judged=judged)

    def shares(self, result: Any) -> Any:
        """The errors of a result, each divided by what it may be; 0 where that is not judged."""
        result, exact = np.asarray(result), np.asarray(self.exact)
        budget = reference.BUDGET if self.is_near or result.dtype == DOUBLE else 0.0
        allowed = self.allowed * (1 + budget) + slack(exact, result.dtype)
        if self.rounds:
            allowed = allowed + ulp(np.abs(exact) + allowed, result.dtype) / 2
        if result.dtype == DOUBLE:  # half of the smallest number is none in float64
            allowed = allowed + np.ldexp(_LONG(1), -1075)
        share = reference.shares(result, exact, allowed)
        if self.judged is not None:
            share = np.where(self.judged, share, 0.0)
        missing = False if self.nan is None else self.nan & ~np.isnan(result)
        return np.where(missing, np.inf, share)

    def error(self, result: Any) -> float:
        """Return the worst of them."""
        return float(np.max(self.shares(result), initial=0.0))

    def reshaped(self, shape: tuple[int, ...]) -> Expected:
        """Give this result another shape; each part broadcasts to `exact`."""
        whole = np.shape(self.exact)
        parts = (self.exact, self.allowed, self.judged, self.nan)
        made = [p if p is None else np.broadcast_to(p, whole).reshape(shape) for p in parts]
        return replace(self, exact=made[0], allowed=made[1], judged=made[2], nan=made[3])


def finite(exact: Any, allowed: Any, judged: Any = True, **more: Any) -> Expected:
    """Return a result that is judged where it is a number, and where its error has a bound."""
    is_finite = np.isfinite(exact) & np.isfinite(allowed)
    return Expected(exact, allowed, judged=judged & is_finite, **more)


def wide(x: Any, dtype: Any) -> Any:
    """In the precision in which results of a dtype are judged."""
    return np.asarray(x).astype(reference.wide(dtype))


def widened(case: Case, name: str) -> Any:
    """Return an array of a call, in full, in that precision."""
    return wide(case.array(name), case.dtype)


#: Whether long double is wider than float64 here (on aarch64 it is, and slow; on MSVC it is not).
_WIDER = np.finfo(_LONG).nmant > np.finfo(np.float64).nmant


class _Wide(Operations):
    """NumPy's arithmetic, and the oracle's activations."""

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        return reference.forward(op.name, x, **parameters)


#: The operations by which formulas of `derivatives` are the oracle's.
WIDE = _Wide(np)


def activation_of(name: str, on_gpu: bool = False, **parameters: Any) -> Activation:
    """An activation behind an op's own arithmetic: the oracle's, with the bounds that it states."""
    value, slope = (
        partial(f, name, **parameters) for f in (reference.forward, reference.derivative)
    )
    return Activation(None if name == IDENTITY else ops[name].bounds, value, slope, on_gpu)


def slack(exact: Any, dtype: np.dtype[Any]) -> Any:
    """How far off the oracle itself may be."""
    if dtype != DOUBLE:
        return 0.0
    return np.where(np.isfinite(exact), np.abs(exact), 0.0) * (2.0**-58 if _WIDER else 2.0**-51)
