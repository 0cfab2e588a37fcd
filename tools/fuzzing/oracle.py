"""The functions of `fastact.check.reference`, in the precision that each dtype is judged in.

float32 and the 16-bit types are judged in float64, float64 in the 64 bits of x86's long double;
what that cannot give (erfc, and differences of nearly equal numbers) is budgeted for.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastact.check import reference as reference  # type: ignore[attr-defined]

from .cases import FLOAT64

_LONG = np.longdouble
_PI = _LONG("3.14159265358979323846264338327950288")
#: Whether long double is wider than float64 here (on aarch64 it is, and slow; on MSVC it is not).
WIDER = np.finfo(_LONG).nmant > np.finfo(np.float64).nmant


_math_erfc = np.vectorize(math.erfc, otypes=[np.float64])  # 2.7 u off at the most; SciPy 258


def _erfc(x: Any) -> Any:
    """erfc of a long double by that of the nearest double, and one term of its Taylor series."""
    near = np.asarray(x).astype(np.float64)
    rest = x - near
    return _math_erfc(near) - 2 / np.sqrt(_PI) * np.exp(-_LONG(1) * near * near) * rest


def _tanhshrink(x: Any, m: Any) -> Any:
    """Seven terms of the series, where those of `reference` do not do for 64 bits."""
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


def wide(x: Any, dtype: np.dtype[Any]) -> Any:
    """In the precision in which results of a dtype are judged."""
    return np.asarray(x).astype(_LONG if dtype == FLOAT64 else np.float64)


def evaluate(
    entry: str, name: str, x: Any, dtype: np.dtype[Any], parameters: dict[str, Any]
) -> Any:
    """f ("forward"), or f' of x ("derivative") or of what is saved, of `wide` numbers."""
    formulas = reference.FORWARD if entry == "forward" else reference.DERIVATIVE
    if entry == "derivative_by_saved":
        formulas = {**formulas, **reference.DERIVATIVE_BY_VALUE}
    formula = formulas[name]
    with np.errstate(all="ignore"):
        if dtype != FLOAT64:
            y = formula.of(x, reference.NUMPY, **parameters)
        elif entry == "forward" and name in _BETTER:
            y = _BETTER[name](x, _WIDE)
        else:
            y = formula.of(x, _WIDE, **parameters)
        if name == "celu" and entry == "forward":  # infinite as soon as the exponential is
            alpha = parameters.get("alpha", 1.0)
            y = np.where((x < 0) & (x / alpha > (710 if dtype == FLOAT64 else 89)), -np.inf, y)
    low, high = formula.limits
    y = np.where(x == -np.inf, low, np.where(x == np.inf, high, y))
    return np.where(np.isnan(x), np.nan, y)


def slack(name: str, x: Any, exact: Any, dtype: np.dtype[Any]) -> Any:
    """How far off the oracle itself may be, in float64."""
    if dtype != FLOAT64:
        return 0.0
    found = np.abs(exact) * 2.0**-58
    if name == "gelu":
        # math.erfc is a float64: some ULP off, and where it is subnormal, a step that x multiplies.
        found = found + np.abs(exact) * 2.0**-51
        steps = np.where(np.isfinite(x), np.abs(x), 0) * np.ldexp(np.longdouble(1), -1073)
        found = found + steps
    if name in ("tanhshrink", "logcosh"):
        found = found + np.where(np.abs(x) < 0.06, 0.0, np.minimum(np.abs(x), 1.0) * 2.0**-63)
    return found if WIDER else found + np.abs(exact) * 2.0**-51
