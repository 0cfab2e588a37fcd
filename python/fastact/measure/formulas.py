"""The textbook's formulas of activations, by which `check` judges and which `bench` times as NumPy.

Each is written once over a namespace `m`: numpy, or mpmath in 60 digits. It is the textbook's, not
the kernels': nothing here is shared with src/. What it cannot say by itself, its limits at minus
and plus infinity, stands beside it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from .peers import LeftOut


@dataclass(frozen=True)
class Formula:
    """f(x, m, ...), and its values at x = -inf and x = +inf for the default parameters."""

    of: Callable[..., Any]
    limits: tuple[float, float]


INF = np.inf
# of selu, to the digits of its paper's code
SCALE, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _clip(x: Any, low: float, high: float, m: Any) -> Any:
    return m.where(x < low, low, m.where(x > high, high, x))


def _softplus(x: Any, m: Any) -> Any:
    """log(1 + exp(x)), without exp of anything large."""
    return (x + abs(x)) / 2 + m.log1p(m.exp(-abs(x)))


def sigmoid(x: Any, m: Any) -> Any:
    return 1 / (1 + m.exp(-x))


def _swish_slope(x: Any, m: Any, alpha: float = 1.702) -> Any:
    """s + p s (1 - s) with p = alpha x, s = sigmoid(p)."""
    p = alpha * x
    return sigmoid(p, m) + p * m.exp(-abs(p)) / (1 + m.exp(-abs(p))) ** 2


def _gelu(x: Any, m: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":  # (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel
        return x * sigmoid(2 * m.sqrt(2 / m.pi) * (x + x * x * x * 44715 / 1000000), m)
    return x * m.ncdf(_clip(x, -1000, 1000, m))


def _gelu_slope(x: Any, m: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        c = 2 * m.sqrt(2 / m.pi)
        s = sigmoid(c * (x + x * x * x * 44715 / 1000000), m)
        tail = sigmoid(-c * (x + x * x * x * 44715 / 1000000), m)
        return s + s * tail * x * c * (1 + x**2 * 134145 / 1000000)
    x = _clip(x, -1000, 1000, m)
    return m.ncdf(x) + x * m.npdf(x)


def _tanhshrink(x: Any, m: Any) -> Any:
    """x - tanh(x), which cancels near 0: there (x cosh(x) - sinh(x)) / cosh(x), by its series."""
    near = _clip(x, -1, 1, m)
    terms = (2 * k * near ** (2 * k) / math.factorial(2 * k + 1) for k in range(1, 12))
    return m.where(abs(x) < 1, near * sum(terms) / m.cosh(near), x - m.tanh(x))


def _tanh_slope(x: Any, m: Any) -> Any:
    """1 - tanh(x)^2 = 1 / cosh(x)^2, without anything large."""
    e = m.exp(-2 * abs(x))
    return 4 * e / (1 + e) ** 2


def _logcosh(x: Any, m: Any) -> Any:
    """log(1 + 2 sinh(x / 2)^2), which does not cancel, where that does not overflow."""
    near = m.log1p(2 * m.sinh(_clip(x, -1, 1, m) / 2) ** 2)
    return m.where(abs(x) < 1, near, abs(x) + m.log1p(m.exp(-2 * abs(x))) - m.log(2))


FORWARD = {
    "relu": Formula(lambda x, m: m.where(x < 0, 0, x), (0.0, INF)),
    "relu6": Formula(lambda x, m: _clip(x, 0, 6, m), (0.0, 6.0)),
    "relu2": Formula(lambda x, m: m.where(x < 0, 0, x) ** 2, (0.0, INF)),
    "leaky_relu": Formula(
        lambda x, m, negative_slope=0.01: m.where(x < 0, negative_slope * x, x), (-INF, INF)
    ),
    "elu": Formula(lambda x, m, alpha=1: m.where(x < 0, alpha * m.expm1(x), x), (-1.0, INF)),
    "selu": Formula(
        lambda x, m: SCALE * m.where(x < 0, ALPHA * m.expm1(x), x), (-SCALE * ALPHA, INF)
    ),
    "celu": Formula(
        lambda x, m, alpha=1: m.where(x < 0, alpha * m.expm1(x / alpha), x), (-1.0, INF)
    ),
    "xielu": Formula(
        lambda x, m, alpha_p=0.8, alpha_n=0.8, beta=0.5: m.where(
            x > 0,
            alpha_p * x * x + beta * x,
            alpha_n * m.expm1(m.where(x < -1e-6, x, -1e-6)) + (beta * x - alpha_n * x),
        ),
        (INF, INF),
    ),
    "gelu": Formula(_gelu, (-0.0, INF)),
    "silu": Formula(lambda x, m: x * sigmoid(x, m), (-0.0, INF)),
    "quick_gelu": Formula(lambda x, m, alpha=1.702: x * sigmoid(alpha * x, m), (-0.0, INF)),
    "mish": Formula(lambda x, m: x * m.tanh(m.log1p(m.exp(x))), (-0.0, INF)),
    "sigmoid": Formula(sigmoid, (0.0, 1.0)),
    "logsigmoid": Formula(lambda x, m: -_softplus(-x, m), (-INF, -0.0)),
    "hardsigmoid": Formula(lambda x, m: _clip(x + 3, 0, 6, m) / 6, (0.0, 1.0)),
    "tanh": Formula(lambda x, m: m.tanh(x), (-1.0, 1.0)),
    "softcap": Formula(lambda x, m, cap=30: cap * m.tanh(x / cap), (-30.0, 30.0)),
    "hardtanh": Formula(
        lambda x, m, min_val=-1, max_val=1: _clip(x, min_val, max_val, m), (-1.0, 1.0)
    ),
    "tanhshrink": Formula(_tanhshrink, (-INF, INF)),
    "softplus": Formula(lambda x, m, beta=1: _softplus(beta * x, m) / beta, (0.0, INF)),
    "softsign": Formula(lambda x, m: x / (1 + abs(x)), (-1.0, 1.0)),
    "softshrink": Formula(
        lambda x, m, lambd=0.5: m.where(
            x > lambd, x - lambd, m.where(x < -lambd, x + lambd, 0 * x)
        ),
        (-INF, INF),
    ),
    "hardshrink": Formula(lambda x, m, lambd=0.5: m.where(abs(x) > lambd, x, 0 * x), (-INF, INF)),
    "hardswish": Formula(lambda x, m: x * _clip(x + 3, 0, 6, m) / 6, (-0.0, INF)),
    "hardmish": Formula(lambda x, m: x * _clip(x + 2, 0, 2, m) / 2, (-0.0, INF)),
    "lisht": Formula(lambda x, m: x * m.tanh(x), (INF, INF)),
    "logcosh": Formula(_logcosh, (INF, INF)),
}

DERIVATIVE = {
    "relu": Formula(lambda x, m: m.where(x > 0, 1, 0), (0.0, 1.0)),
    "relu6": Formula(lambda x, m: m.where(x > 0, m.where(x < 6, 1, 0), 0), (0.0, 0.0)),
    "relu2": Formula(lambda x, m: 2 * m.where(x < 0, 0, x), (0.0, INF)),
    "leaky_relu": Formula(
        lambda x, m, negative_slope=0.01: m.where(x > 0, 1, negative_slope), (0.01, 1.0)
    ),
    "elu": Formula(lambda x, m, alpha=1: m.where(x > 0, 1, alpha * m.exp(x)), (0.0, 1.0)),
    "selu": Formula(lambda x, m: SCALE * m.where(x > 0, 1, ALPHA * m.exp(x)), (0.0, SCALE)),
    "celu": Formula(lambda x, m, alpha=1: m.where(x > 0, 1, m.exp(x / alpha)), (0.0, 1.0)),
    "xielu": Formula(
        lambda x, m, alpha_p=0.8, alpha_n=0.8, beta=0.5: m.where(
            x > 0,
            2 * alpha_p * x + beta,
            m.where(x < -1e-6, alpha_n * m.expm1(m.where(x < 0, x, 0)), -alpha_n) + beta,
        ),
        (-0.3, INF),
    ),
    "gelu": Formula(_gelu_slope, (0.0, 1.0)),
    "silu": Formula(lambda x, m: _swish_slope(x, m, 1), (0.0, 1.0)),
    "quick_gelu": Formula(_swish_slope, (0.0, 1.0)),
    # tanh(s) + x sech(s)^2 sigmoid(x) with s = softplus(x)
    "mish": Formula(
        lambda x, m: (
            m.tanh(m.log1p(m.exp(x))) + x / m.cosh(m.log1p(m.exp(x))) ** 2 / (1 + m.exp(-x))
        ),
        (0.0, 1.0),
    ),
    "sigmoid": Formula(lambda x, m: m.exp(-abs(x)) / (1 + m.exp(-abs(x))) ** 2, (0.0, 0.0)),
    "logsigmoid": Formula(lambda x, m: sigmoid(-x, m), (1.0, 0.0)),
    "hardsigmoid": Formula(lambda x, m: m.where(abs(x) < 3, x * 0 + 1, x * 0) / 6, (0.0, 0.0)),
    "tanh": Formula(_tanh_slope, (0.0, 0.0)),
    "softcap": Formula(lambda x, m, cap=30: _tanh_slope(x / cap, m), (0.0, 0.0)),
    "hardtanh": Formula(
        lambda x, m, min_val=-1, max_val=1: m.where(x > min_val, m.where(x < max_val, 1, 0), 0),
        (0.0, 0.0),
    ),
    "tanhshrink": Formula(lambda x, m: m.tanh(x) ** 2, (1.0, 1.0)),
    "softplus": Formula(lambda x, m, beta=1: sigmoid(beta * x, m), (0.0, 1.0)),
    "softsign": Formula(lambda x, m: 1 / (1 + abs(x)) ** 2, (0.0, 0.0)),
    "softshrink": Formula(lambda x, m, lambd=0.5: m.where(abs(x) > lambd, 1, 0), (1.0, 1.0)),
    "hardshrink": Formula(lambda x, m, lambd=0.5: m.where(abs(x) > lambd, 1, 0), (1.0, 1.0)),
    # (2 x + 3) / 6 inside
    "hardswish": Formula(
        lambda x, m: m.where(x > -3, m.where(x < 3, (2 * x + 3) / 6, 1), 0), (0.0, 1.0)
    ),
    "hardmish": Formula(lambda x, m: m.where(x > -2, m.where(x < 0, x + 1, 1), 0), (0.0, 1.0)),
    "lisht": Formula(lambda x, m: m.tanh(x) + x / m.cosh(x) ** 2, (-1.0, 1.0)),
    "logcosh": Formula(lambda x, m: m.tanh(x), (-1.0, 1.0)),
}

# The derivative as a function of y, of the ops that save y. (1 - y) and (1 + y) are exact where it
# is small.
DERIVATIVE_BY_VALUE = {
    "sigmoid": Formula(lambda y, m: y * (1 - y), (-INF, np.nan)),
    "tanh": Formula(lambda y, m: (1 - y) * (1 + y), (-INF, -INF)),
}

try:
    from scipy.special import erfc  # as good as math.erfc, and twenty times as fast
except ImportError:
    erfc = np.vectorize(math.erfc, otypes=[np.float64])

#: NumPy, and what else the formulas call.
NUMPY = SimpleNamespace(
    **vars(np),
    ncdf=lambda x: erfc(-x / np.sqrt(2)) / 2,
    npdf=lambda x: np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi),
)


def naive(name: str, derivative: bool = False) -> Callable[[Any, Any], Any]:
    """Return the formula of an activation or of its derivative, f(x, m), or leave a peer out."""
    formulas = DERIVATIVE if derivative else FORWARD
    if name not in formulas:
        raise LeftOut(f"there is no formula of {name}")
    return formulas[name].of
