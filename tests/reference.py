"""The oracle: one obvious formula an op, evaluated far more precisely than what it judges.

A formula is written once over a namespace `m` and evaluated twice: with `m = numpy` in float64 to
judge float32 and the 16-bit types, and with `m = mpmath` in 60 digits to judge float64. It is the
textbook's, not the kernels': nothing here is shared with src/. What it cannot say by itself, its
limits at minus and plus infinity, stands beside it.

The same file is installed as `fastact._reference`, for `python -m fastact check`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Formula:
    """f(x, m), and its values at x = -inf and x = +inf."""

    of: Callable[[Any, Any], Any]
    limits: tuple[float, float]


FORWARD = {
    "mish": Formula(lambda x, m: x * m.tanh(m.log1p(m.exp(x))), (-0.0, np.inf)),
}

# mish' = tanh(s) + x sech(s)^2 sigmoid(x), with s = softplus(x)
DERIVATIVE = {
    "mish": Formula(
        lambda x, m: (
            m.tanh(m.log1p(m.exp(x))) + x / m.cosh(m.log1p(m.exp(x))) ** 2 / (1 + m.exp(-x))
        ),
        (0.0, 1.0),
    ),
}


def _evaluate(formula: Formula, x: Float64) -> Float64:
    # Past +-700 exp and cosh leave float64's range, where every formula has reached its limit to
    # the last bit of float32; the values themselves (x f(x), say) are put back by the limits only
    # at the infinities.
    with np.errstate(all="ignore"):
        inside = np.clip(x, -700.0, 300.0)
        y = np.asarray(formula.of(inside, np), np.float64)
        low, high = formula.limits
        y = np.where(x > inside, x if np.isinf(high) else high, y)
    y = np.where(x == -np.inf, low, np.where(x == np.inf, high, y))
    return np.where(np.isnan(x), np.nan, y)


def forward(name: str, x: Float64) -> Float64:
    """f(x) in float64, for x that float32 can represent."""
    return _evaluate(FORWARD[name], x)


def derivative(name: str, x: Float64) -> Float64:
    """f'(x) in float64, for x that float32 can represent."""
    return _evaluate(DERIVATIVE[name], x)


def _evaluate_mp(formula: Formula, x: float) -> Any:
    import mpmath

    with mpmath.workdps(60):
        return +formula.of(mpmath.mpf(x), mpmath)


def forward_mp(name: str, x: float) -> Any:
    """f(x) as an mpmath number, for any finite x."""
    return _evaluate_mp(FORWARD[name], x)


def derivative_mp(name: str, x: float) -> Any:
    """f'(x) as an mpmath number, for any finite x."""
    return _evaluate_mp(DERIVATIVE[name], x)


# --- reductions -----------------------------------------------------------------------------------


def terms(x: Float64, axes: tuple[int, ...]) -> Float64:
    """What is summed over `axes`: a row for each output, in C order."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    outputs = math.prod(x.shape[axis] for axis in kept)
    count = math.prod(x.shape[axis] for axis in axes)
    return x.transpose(*kept, *axes).reshape(outputs, count)


def sum_error(row: Float64, y: float) -> float:
    """|y - the sum of the row|, the exact one, rounded once."""
    return abs(math.fsum((*row, -y)))


# What each reduction sums up of an element.
TERM: dict[str, Callable[[Float64], Float64]] = {"sum": lambda x: x, "sum_squares": lambda x: x * x}


# --- bias -----------------------------------------------------------------------------------------


def along(bias: Any, ndim: int, axis: int) -> Any:
    """A bias as it broadcasts against an array whose axis `axis` it belongs to."""
    return np.expand_dims(bias, tuple(i for i in range(ndim) if i != axis % ndim))


def biased(x: Any, bias: Any, axis: int, residual: Any = None) -> Any:
    """x + bias + residual, in the dtype that they have."""
    z = x + along(bias, x.ndim, axis)
    return z if residual is None else z + residual


def bias_act(name: str, x: Float64, bias: Float64, axis: int, residual: Any = None) -> Float64:
    """act(x + bias + residual), in float64."""
    z: Float64 = biased(x, bias, axis, residual)
    return z if name == "identity" else forward(name, z)


def bias_act_gradients(
    name: str, dy: Float64, x: Float64, bias: Float64, axis: int, residual: Any = None
) -> tuple[Float64, Float64]:
    """dx and dbias, in float64."""
    z = biased(x, bias, axis, residual)
    dx = dy if name == "identity" else dy * derivative(name, z)
    return dx, dx.sum(tuple(i for i in range(x.ndim) if i != axis % x.ndim))
