"""The oracle: one obvious formula an op, evaluated far more precisely than what it judges.

Activations are `measure/formulas.py`, in three precisions: with NumPy in float64 to judge float32
and the 16-bit types, in long double to judge float64 in whole arrays, and with mpmath in 60 digits
to judge float64 number by number.

Formulas over whole arrays are computed in `wide(dtype)`: float64 to judge results that are computed
in float32, long double to judge float64. How far off the oracle is itself, is `BUDGET`.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..measure.formulas import DERIVATIVE, DERIVATIVE_BY_VALUE, FORWARD, NUMPY, Formula
from ..ops.bounds import largest
from ..ops.engine.fused import IDENTITY

Float64 = NDArray[np.float64]

#: The oracle's own error, as a share of an op's bound. Its type has 29 bits more than the
#: one that it judges, long double 11 more than float64; relative to a bound of 1 u at least, it
#: rounds some 10 times, and 30 times more in pairwise sums of 2^20 terms: 2^-5.7 of 1 u for
#: float64, and nothing for the others. But for float32 the mean's bound is 2^-48 |mean|, and
#: float64's 2^-53 are 2^-5 of that. (Where long double is no wider than double, float64 is judged
#: by its equal: there the bounds are as good as the oracle.)
BUDGET = 2.0**-5


def wide(dtype: Any) -> Any:
    """Return the type in which what a dtype gives is judged."""
    return np.longdouble if np.dtype(dtype) == np.float64 else np.float64


# --- dropout --------------------------------------------------------------------------------------


def philox(counter: Any, key: Any) -> Any:
    """The four words of a block of Philox 4x32-10, of a counter of four words and a key of two.

    Each is an array of uint64 with 32 bits in it, or a number.
    """
    low, (a, b, c, d), (k, m) = np.uint64(0xFFFFFFFF), map(np.uint64, counter), map(np.uint64, key)
    for _ in range(10):
        of_a, of_c = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (of_c >> 32) ^ b ^ k, of_c & low, (of_a >> 32) ^ d ^ m, of_a & low
        k, m = (k + np.uint64(0x9E3779B9)) & low, (m + np.uint64(0xBB67AE85)) & low
    return a, b, c, d


def kept(shape: tuple[int, ...], p: float, seed: int, offset: int) -> Any:
    """Tell which elements dropout keeps."""
    number = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(offset)
    block, seed = number // 4, seed % 2**64
    counter = (block & np.uint64(0xFFFFFFFF), block >> 32, 0 * block, 0 * block)
    words = np.choose((number % 4).astype(int), philox(counter, (seed & 0xFFFFFFFF, seed >> 32)))
    return (words >= np.uint64(round(p * 2**32))).reshape(shape)


# --- activations ----------------------------------------------------------------------------------


_LONG = np.longdouble
_PI = _LONG("3.14159265358979323846264338327950288")


def _npdf(x: Any) -> Any:
    """Return the density of normal numbers; the error of a square would be multiplied by it."""
    high = x.astype(np.float32).astype(_LONG)  # whose square is exact
    return np.exp(-high * high / 2) * np.exp((high - x) * (high + x) / 2) / np.sqrt(2 * _PI)


def _ncdf(x: Any) -> Any:
    """Their distribution: by a series, and where that cancels by a continued fraction."""
    size = abs(x)
    near, far = np.minimum(size, 1.75), np.maximum(size, 1.75)
    term = total = near
    for n in range(1, 50):
        term = term * near * near / (2 * n + 1)
        total = total + term
    fraction = far
    for n in range(200, 0, -1):
        fraction = far + n / fraction
    tail = np.where(size < 1.75, 0.5 - _npdf(near) * total, _npdf(far) / fraction)
    return np.where(x < 0, tail, 1 - tail)


#: NumPy in long double: its constants have no more digits than a double.
_WIDE = SimpleNamespace(
    **{
        **vars(NUMPY),
        "ncdf": _ncdf,
        "npdf": _npdf,
        "pi": _PI,
        "sqrt": lambda v: np.sqrt(np.asarray(v, _LONG)),
        "log": lambda v: np.log(np.asarray(v, _LONG)),
    }
)


def _evaluate(formula: Formula, x: Any, parameters: Mapping[str, Any]) -> Any:
    # Overflows give an infinity, which the formulas divide by; limits serve where even infinity
    # does not tell.
    is_long = np.asarray(x).dtype == _LONG
    with np.errstate(all="ignore"):
        made = formula.of(x, _WIDE if is_long else NUMPY, **parameters)
    low, high = formula.limits
    y = np.where(x == -np.inf, low, np.where(x == np.inf, high, made))
    return np.where(np.isnan(x), np.nan, y).astype(_LONG if is_long else np.float64)


def forward(name: str, x: Any, **parameters: Any) -> Any:
    """f(x) in float64, for x that float32 can represent, or in long double; for other than the
    default parameters, x must be finite. One more is the "identity"."""
    return x if name == IDENTITY else _evaluate(FORWARD[name], x, parameters)


def derivative(name: str, x: Any, **parameters: Any) -> Any:
    """f'(x), as `forward`."""
    return 1.0 + 0 * x if name == IDENTITY else _evaluate(DERIVATIVE[name], x, parameters)


def derivative_by_saved(name: str, saved: Any, **parameters: Any) -> Any:
    """f'(x), of what `forward` saves: x, or f(x)."""
    return _evaluate((DERIVATIVE | DERIVATIVE_BY_VALUE)[name], saved, parameters)


def _where(condition: bool, then: Any, otherwise: Any) -> Any:
    return then if condition else otherwise


def _evaluate_mp(formula: Formula, x: float, parameters: Mapping[str, Any]) -> Any:
    mpmath = importlib.import_module("mpmath")
    with mpmath.workdps(60):
        m = SimpleNamespace(**vars(mpmath), where=_where)
        return mpmath.mpf(formula.of(mpmath.mpf(x), m, **parameters))


def forward_mp(name: str, x: float, **parameters: Any) -> Any:
    """f(x) as an mpmath number, for any finite x."""
    return _evaluate_mp(FORWARD[name], x, parameters)


def derivative_by_saved_mp(name: str, x: float, **parameters: Any) -> Any:
    """`derivative_by_saved` as an mpmath number, for any finite x."""
    return _evaluate_mp((DERIVATIVE | DERIVATIVE_BY_VALUE)[name], x, parameters)


# --- bias -----------------------------------------------------------------------------------------


def along(bias: Any, ndim: int, axis: int) -> Any:
    """Return a bias as it broadcasts against an array whose axis `axis` it belongs to."""
    return np.expand_dims(bias, tuple(i for i in range(ndim) if i != axis % ndim))


# --- norms ----------------------------------------------------------------------------------------


def average(x: Any, axes: tuple[int, ...]) -> Any:
    """Return the mean over `axes`, which stay with length 1, in x's dtype; added up in long double.

    Of no elements 0, without NumPy's warning.
    """
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    return (x.astype(np.longdouble).sum(axes, keepdims=True) / count).astype(x.dtype)


@dataclass(frozen=True)
class RowFormulas:
    """The formulas of a norm over a row; by default a root of the mean of its squares.

    rstd : by that mean, how many elements there are, and eps. subtracted : by what dx subtracts
    multiples of xhat, over the mean of g xhat; by that number, rstd and eps.
    """

    rstd: Callable[[Any, int, float], Any] = lambda square, count, eps: 1 / np.sqrt(square + eps)
    subtracted: Callable[[int, Any, float], Any] = lambda count, rstd, eps: 1.0


#: Norms other than the mean of squares, by their functors in src/common/norms/rows.h.
ROW_NORMS = {
    "L2Norm": RowFormulas(
        lambda square, count, eps: 1 / np.maximum(np.sqrt(square * count), eps),
        # Whether a length 1 / rstd, which was rounded, is more than eps.
        lambda count, rstd, eps: np.where(rstd * eps < 1 - 2.0**-22, count, 0.0),
    ),
}


def row_formulas(op: Any) -> RowFormulas:
    """Give the formulas of a norm; batch_norm has layer_norm's."""
    return ROW_NORMS.get(getattr(op, "kind", ""), RowFormulas())


def statistics(
    x: Any,
    axes: tuple[int, ...],
    eps: float,
    centred: bool,
    formulas: RowFormulas = RowFormulas(),
) -> Any:
    """mean and rstd over `axes`, which stay with length 1, in x's dtype."""
    mean = average(x, axes) if centred else 0 * average(x, axes)
    square = average(np.square(x - mean), axes)
    return mean, formulas.rstd(square, x.size // max(1, square.size), eps)


def shares(actual: Any, exact: Any, allowed: Any) -> Any:
    """Return the errors divided by their bounds; infinite where one alone is no number.

    A value that is too large for the dtype of `actual`, or nearly, may be infinite, of either sign
    where the bound reaches past both ends.
    """
    actual, exact, most = np.asarray(actual), np.asarray(exact), largest(np.asarray(actual).dtype)
    found = actual.astype(exact.dtype)
    with np.errstate(all="ignore"):
        over = (np.abs(exact) + allowed > most) & np.isinf(found)
        over |= np.isinf(exact) & (np.abs(found) > 0.99 * most)
        signed = (found * exact > 0) | (allowed - np.abs(exact) > most)
        right = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (over & signed)
        right |= np.isinf(allowed) & ~np.isnan(found) & ~np.isnan(exact)
        share = np.abs(found - exact) / allowed
    return np.where(right, 0.0, np.where(np.isnan(share), np.inf, share))


def moved(running: Float64, new: Float64, momentum: float) -> Float64:
    """Running statistics after a batch: its mean, or its variance with correction 1, is new."""
    return (1 - momentum) * running + momentum * new


# --- softmax --------------------------------------------------------------------------------------


def softmax_row(
    kind: str,
    z: Any,
    axes: tuple[int, ...],
    masked: bool = False,
    out: Any = False,
    sink: Any = -np.inf,
) -> Any:
    """softmax, log_softmax or logsumexp (with length 1 along the axes) of z.

    masked : there is a mask. out : what it leaves out, in a row that is NaN as well. sink : a
    number a row, one more term of its sum; "share" is the kind of its softmax.

    By m + log1p(s), s the sum without one element that is the maximum, m: nothing cancels but
    these.
    """
    with np.errstate(all="ignore"):
        m = np.maximum(np.max(z, axes, keepdims=True, initial=-np.inf), sink)
        held = np.where(np.isfinite(m), m, 0)
        terms = np.exp(z - held)
        is_maximum = z == held
        count = np.sum(is_maximum, axes, keepdims=True)
        s = np.sum(np.where(is_maximum, 0, terms), axes, keepdims=True) + (count - 1)
        of_sink = np.where(np.isneginf(sink), 0, np.exp(sink - held))
        s = s + of_sink
        lse = np.where(np.isfinite(m), m + np.log1p(s), m)
        if kind == "logsumexp":
            return lse
        y = (z - held) - np.log1p(s)
        if kind == "share":
            return np.where(
                np.isfinite(m), of_sink / (s + 1), np.where(masked & (m < 0), 0, np.nan)
            )
        bad = np.where((np.isneginf(m) & masked) | out, -np.inf, np.nan)
        y = np.where(np.isfinite(m), y, bad)
        return (
            y if kind == "log_softmax" else np.where(np.isfinite(m), terms / (s + 1), np.exp(bad))
        )


def loss_gradient(
    logs: Any, tw: Any, target: Any, axis: int, smoothing: float, slope: Any
) -> tuple[Any, Any]:
    """Find dlogits of cross_entropy, and the magnitudes that its bound takes.

    logs : the logits less their logsumexp. target : None for probabilities. slope : of a z_loss.
    """
    p: Any = np.exp(logs)
    own: Any = 0.0
    if target is not None:  # of t w, what is the target's and not the smoothing's
        classes = along(np.arange(logs.shape[axis]), logs.ndim, axis)
        keep = 1 - smoothing
        own = np.where(classes == np.expand_dims(target, axis), tw, 0)
        own = own * (keep / (keep + smoothing / logs.shape[axis]))
    mass, less = np.sum(tw, axis, keepdims=True) - own, tw - own - own * np.expm1(logs)
    return p * (mass + slope) - less, p * (mass + np.abs(slope)) + less


def cross_entropy(
    logits: Any, target: Any, weight: Any, axis: int, ignore_index: int, smoothing: float
) -> tuple[Any, Any, Any, Any]:
    """Give each row its loss, its terms' magnitudes and the weight by which it counts; and t w."""
    classes = logits.shape[axis]
    w = np.ones(classes, logits.dtype) if weight is None else weight.astype(logits.dtype)
    w = along(w, logits.ndim, axis)
    if target.dtype.kind == "i":
        index = np.expand_dims(target, axis)
        counts = index != ignore_index
        of_class = np.arange(classes).reshape([-1 if a == axis else 1 for a in range(logits.ndim)])
        t = (of_class == index).astype(logits.dtype)
        weights = np.sum(t * w, axis) * counts.squeeze(axis)
    else:
        counts, t = np.bool_(True), target.astype(logits.dtype)
        weights = np.ones(np.delete(logits.shape, axis), logits.dtype)
    t = ((1 - smoothing) * t + smoothing / classes) * w * counts
    distance = -softmax_row("log_softmax", logits, (axis,))
    with np.errstate(invalid="ignore"):
        terms = np.where(t == 0, 0, t * distance)
    return np.sum(terms, axis), np.sum(np.abs(terms), axis), weights, t


# --- codes of 8 bits ------------------------------------------------------------------------------

#: The greatest number of a dtype of codes, which the greatest element becomes.
TOPS = {"int8": 127, "float8_e4m3fn": 448, "float8_e5m2": 57344}


def scales(y: Any, dtype: str, per: str | int, *, powers: bool = False) -> Any:
    """The scales of an op's value, in its dtype; powers: of two, as e8m0 has them."""
    magnitude = np.where(np.isfinite(y), np.abs(y), 0).astype(y.dtype)
    if per == "tensor":
        peak = magnitude.max(initial=0)
    else:
        *outer, length = y.shape
        blocks = (length // per, per) if isinstance(per, int) else (1, length)
        peak = magnitude.reshape(*outer, *blocks).max(-1, initial=0)
    if powers:
        exponent = np.frexp(peak)[1] - np.frexp(TOPS[dtype])[1]
        return np.ldexp(1.0, np.clip(np.where(peak == 0, -127, exponent), -127, 127))
    return np.asarray(np.maximum(peak / y.dtype.type(TOPS[dtype]), np.finfo(y.dtype).tiny))


def codes(y: Any, scale: Any, dtype: str) -> Any:
    """Return the codes of an op's value; float8 as uint8, by the table of ml_dtypes.

    The nearest number of the table, and of two the one with the even code.
    """
    scale = np.asarray(scale)
    if scale.ndim and scale.shape[-1]:
        scale = np.repeat(scale, y.shape[-1] // scale.shape[-1], -1)
    with np.errstate(all="ignore"):
        quotient = y.astype(scale.dtype) / scale
    if dtype == "int8":
        return np.clip(np.rint(np.nan_to_num(quotient, nan=0)), -128, 127).astype(np.int8)
    kind = getattr(importlib.import_module("ml_dtypes"), dtype)
    table = np.arange(128, dtype=np.uint8).view(kind).astype(np.float64)
    table = table[np.isfinite(table)]
    ties = (table[1:] + table[:-1]) / 2
    below, at = (np.searchsorted(ties, np.abs(quotient), side) for side in ("left", "right"))
    found = np.where(np.isnan(quotient), 127, np.where(below % 2, at, below))
    return (found + 128 * np.signbit(quotient)).astype(np.uint8)
