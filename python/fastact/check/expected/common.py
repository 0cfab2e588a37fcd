"""What the families share: a result with its bound, and formulas in the precision to judge by.

float32 and the 16-bit types are judged in float64, float64 in the 64 bits of x86's long double;
what that cannot give (erfc, and differences of nearly equal numbers) is budgeted for.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case
from ...ops.bounds import computed_in
from .. import reference

_LONG = np.longdouble


@dataclass(frozen=True)
class Expected:
    """What a result should be.

    exact : in float64 or wider. allowed : how far off it may be, before it is rounded to its dtype.
    rounds : whether that rounding adds half a ULP. judged : where; None: everywhere.
    nan : where it has to be a NaN whatever `exact` is; None: nowhere.
    adds : the type in which it is added to what is there; None: the one that it is computed in.
    """

    exact: Any
    allowed: Any
    rounds: bool = True
    judged: Any = None
    nan: Any = None
    adds: Any = None

    def added_to(self, base: Any, dtype: np.dtype[Any]) -> Expected:
        """The same added to what is there, in its dtype."""
        base = wide(base, DOUBLE if self.adds else dtype)
        with np.errstate(all="ignore"):
            total, size = self.exact + base, np.abs(self.exact) + np.abs(base)
            error = self.allowed + ulp(size, self.adds or computed_in(dtype))
            if not self.rounds:
                error = error + ulp(total, dtype) / 2
        judged = np.isfinite(total) & (True if self.judged is None else self.judged)
        return replace(self, exact=total, allowed=error, judged=judged)

    def error(self, result: Any) -> float:
        """The worst error of a result, in units of what it may be off, where that is judged."""
        result = np.asarray(result)
        exact, allowed = np.asarray(self.exact), self.allowed
        if self.rounds:
            allowed = allowed + ulp(np.abs(exact) + allowed, result.dtype) / 2
        judged = True if self.judged is None else self.judged
        exact = np.where(judged, exact, result.astype(exact.dtype))
        return reference.excess(result, exact, allowed)

    def reshaped(self, shape: tuple[int, ...]) -> Expected:
        """The same in another shape; each part broadcasts to `exact`."""
        whole = np.shape(self.exact)
        parts = (self.exact, self.allowed, self.judged, self.nan)
        made = [p if p is None else np.broadcast_to(p, whole).reshape(shape) for p in parts]
        return replace(self, exact=made[0], allowed=made[1], judged=made[2], nan=made[3])


def wide(x: Any, dtype: Any) -> Any:
    """In the precision in which results of a dtype are judged."""
    return np.asarray(x).astype(reference.wide(dtype))


def info_of(dtype: np.dtype[Any]) -> Any:
    """The properties of a floating dtype, bfloat16 among them."""
    of: Any = np.finfo if dtype.kind == "f" else importlib.import_module("ml_dtypes").finfo
    return of(dtype)


def widened(case: Case, name: str) -> Any:
    """An array of a call, in full, in that precision."""
    return wide(case.array(name), case.dtype)


def ulp(exact: Any, dtype: np.dtype[Any]) -> Any:
    """The unit in the last place of a dtype, for numbers of any precision."""
    info = info_of(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(exact), float(info.smallest_normal)))
    one = _LONG(1) if dtype == DOUBLE else 1.0  # half of the smallest is no double
    return np.ldexp(one, np.minimum(exponent, int(info.maxexp)) - 1 - int(info.nmant))


# --- activations, as NumPy evaluates their formulas -----------------------------------------------

_PI = _LONG("3.14159265358979323846264338327950288")
#: Whether long double is wider than float64 here (on aarch64 it is, and slow; on MSVC it is not).
_WIDER = np.finfo(_LONG).nmant > np.finfo(np.float64).nmant


_math_erfc = np.vectorize(math.erfc, otypes=[np.float64])  # 2.7 u off at the most; SciPy 258


def _erfc(x: Any) -> Any:
    """erfc of a long double, by erfc of the nearest double and one term of its Taylor series."""
    near = np.asarray(x).astype(np.float64)
    rest = x - near
    return _math_erfc(near) - 2 / np.sqrt(_PI) * np.exp(-_LONG(1) * near * near) * rest


def _tanhshrink(x: Any, m: Any) -> Any:
    """Seven terms of the series: `reference` has too few for 64 bits."""
    s, total = x * x, _LONG(0)
    for up, down in _TANH:
        total = total * s + _LONG(up) / _LONG(down)
    return np.where(abs(x) < 0.06, -x * s * total, x - np.tanh(x))


# The series of tanh from x^15 down to x^3.
_TANH = (
    (-929569, 638512875), (21844, 6081075), (-1382, 155925), (62, 2835), (-17, 315), (2, 15),
    (-1, 3),
)  # fmt: skip


def _logcosh(x: Any, m: Any) -> Any:
    """log(1 + 2 sinh(x / 2)^2), which does not cancel, where that does not overflow."""
    near = np.clip(x, -1, 1)
    far = abs(x) + np.log1p(np.exp(-2 * abs(x))) - np.log(_LONG(2))
    return np.where(abs(x) < 1, np.log1p(2 * np.sinh(near / 2) ** 2), far)


_BETTER = {"tanhshrink": _tanhshrink, "logcosh": _logcosh}


_WIDE = SimpleNamespace(
    **{
        **vars(np),
        "erfc": _erfc,
        "pi": _PI,
        "sqrt": lambda v: np.sqrt(np.asarray(v, _LONG)),
        "log": lambda v: np.log(np.asarray(v, _LONG)),
        "small": 0.003,
    }
)


def evaluate(
    entry: str, name: str, x: Any, dtype: np.dtype[Any], parameters: dict[str, Any]
) -> Any:
    """f ("forward") or f' ("derivative") of x, or f' of a saved result, for `wide` numbers."""
    formulas = reference.FORWARD if entry == "forward" else reference.DERIVATIVE
    if entry == "derivative_by_saved":
        formulas = {**formulas, **reference.DERIVATIVE_BY_VALUE}
    formula = formulas[name]
    with np.errstate(all="ignore"):
        if dtype != DOUBLE:
            y = formula.of(x, reference.NUMPY, **parameters)
        elif entry == "forward" and name in _BETTER:
            y = _BETTER[name](x, _WIDE)
        else:
            y = formula.of(x, _WIDE, **parameters)
        if name == "celu" and entry == "forward":  # infinite as soon as the exponential is
            alpha = parameters.get("alpha", 1.0)
            y = np.where((x < 0) & (x / alpha > (710 if dtype == DOUBLE else 89)), -np.inf, y)
    low, high = formula.limits
    y = np.where(x == -np.inf, low, np.where(x == np.inf, high, y))
    return np.where(np.isnan(x), np.nan, y)


def slack(name: str, x: Any, exact: Any, dtype: np.dtype[Any]) -> Any:
    """How far off the oracle itself may be, in float64."""
    if dtype != DOUBLE:
        return 0.0
    found = np.abs(exact) * 2.0**-58
    if name == "gelu":
        # math.erfc is a float64: some ULP off, and where it is subnormal, a step that x multiplies.
        found = found + np.abs(exact) * 2.0**-51
        steps = np.where(np.isfinite(x), np.abs(x), 0) * np.ldexp(_LONG(1), -1073)
        found = found + steps
    if name in ("tanhshrink", "logcosh"):
        found = found + np.where(np.abs(x) < 0.06, 0.0, np.minimum(np.abs(x), 1.0) * 2.0**-63)
    return found if _WIDER else found + np.abs(exact) * 2.0**-51
