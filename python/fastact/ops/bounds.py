"""Stated accuracy: the constants, and the formulas that they stand in.

An op states its accuracy as a bounds object, `op.bounds`. Its documentation has the constants in
words, composed or written by hand, and tests/ops/test_bounds.py compares them. From these constants
the oracle of the family (`check/expected`) computes, elementwise, how far a result may be from the
exact value. `python -m fastact check`, the tests and the fuzzer ask the oracle, and nothing else
multiplies a tolerance. The oracle's own error is not included.

Everywhere u is the unit roundoff of the type that a dtype is computed in (2^-24; float64: 2^-53),
and the allowed error includes the last rounding to the dtype. Two cases are left out: results that
overflow although the exact value, by its last few bits, does not; and products that leave the
normal range on the way. Each of these has a further error of the smallest subnormal number, times
what it is multiplied by afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

#: Bits of the fraction, exponent of the least normal number and largest number, by dtype.
_FORMATS = {
    "float16": (10, -14, 65504.0),
    "bfloat16": (7, -126, (2 - 2.0**-7) * 2.0**127),
    "float32": (23, -126, (2 - 2.0**-23) * 2.0**127),
    "float64": (52, -1022, (2 - 2.0**-52) * 2.0**1023),
}


def _format(dtype: Any) -> tuple[int, int, float]:
    return _FORMATS[np.dtype(dtype).name]


def is_narrow(dtype: Any) -> bool:
    """Tell whether a dtype has 16 bits and is computed in float32."""
    return bool(np.dtype(dtype).itemsize < 4)


def _is_double(dtype: Any) -> bool:
    return bool(np.dtype(dtype).itemsize > 4)


def unit_roundoff(dtype: Any) -> float:
    """Return the unit roundoff u of the type in which a dtype is computed."""
    return 2.0**-53 if _is_double(dtype) else 2.0**-24


def computed_in(dtype: Any) -> np.dtype[Any]:
    """Return the type in which a dtype is computed."""
    return np.dtype(np.float64 if _is_double(dtype) else np.float32)


def unless_beyond(factor: Any, dtype: Any, error: Any) -> Any:
    """Return a product's error, which is infinite where a factor is beyond the computing type."""
    return np.where(np.abs(factor) > np.finfo(computed_in(dtype)).max, np.inf, error)


def ulp(exact: Any, dtype: Any) -> Any:
    """Return the unit in the last place of a dtype at each value."""
    bits, least, largest = _format(dtype)
    magnitude = np.clip(np.abs(exact), 2.0**least, largest)
    _, exponents = np.frexp(magnitude)
    return np.ldexp(1.0, exponents - 1 - bits)


def least(dtype: Any) -> float:
    """Return the smallest subnormal number."""
    bits, least, _ = _format(dtype)
    return float(2.0 ** (least - bits))


def largest(dtype: Any) -> float:
    return _format(dtype)[2]


def rounding(exact: Any, dtype: Any, error: Any = 0.0) -> Any:
    """Bound the last rounding by half a unit in the last place; error: the value's own error."""
    return ulp(np.abs(exact) + error, dtype) / 2


def with_rounding(exact: Any, dtype: Any, error: Any) -> Any:
    """Add the last rounding, also to a subnormal number, to an error."""
    return error + rounding(exact, dtype, error) + least(dtype)


def through(f: Callable[[Any], Any], z: Any, error: Any) -> Any:
    """Bound how far f moves if z is off by `error`, also over a kink or a jump."""
    with np.errstate(all="ignore"):
        here = f(z)
        return np.maximum(np.abs(f(z + error) - here), np.abs(f(z - error) - here))


class Other(NamedTuple):
    """The error that parameters other than the default add to a value and to a derivative."""

    parameters: tuple[str, ...]
    text: str  # in words
    of: Callable[..., Any]  # by x, the exact value and these parameters, in units of 2 u


def scaling(parameter: str, formula: str, of: Callable[[Any, float], Any]) -> Other:
    """Make the error of a parameter that first scales x, which rounds the product.

    formula : the product in the docstring; of : the same as a function.
    """

    def units(x: Any, exact: Any, **given: float) -> Any:
        scaled = of(x, given[parameter])
        return (1 + np.where(np.isfinite(scaled), np.abs(scaled), 0.0)) * np.abs(exact)

    text = (
        f"With another {parameter} than the default, {formula} is rounded, which adds up to "
        f"2 u (1 + abs({formula})) times the result"
    )
    return Other((parameter,), text, units)


class Bounds(NamedTuple):
    """Stated accuracy in float32 over all inputs, and in float64 on samples of all exponents.

    One of derivative_ulp and derivative_abs holds: a derivative near 0, beside a root or in a tail
    (gelu's), may have fewer digits than the first one says. float64 has 2^-29 of derivative_abs.
    16-bit results are the float32 results, rounded once. On a GPU they come from faster and rougher
    functions; they are within narrow_ulp of the true value or, where the derivative is near 0,
    within 4 derivative_abs before they are rounded.
    """

    forward_ulp: float  # units in the last place of the result
    derivative_ulp: float
    derivative_abs: float
    narrow_ulp: float = 0.51
    second: float = 8  # units of u, times the largest magnitude of f'', that f'' may be off by
    forward_abs: float = 0  # for values, of an op with a root that is not at 0
    other: Other | None = None  # the error that `of_other` adds

    def of_other(self, x: Any, exact: Any, dtype: Any, parameters: Mapping[str, Any]) -> Any:
        """Add the error that parameters other than the default have for a value or derivative."""
        names = self.other.parameters if self.other else ()
        given = {n: float(v) for n, v in parameters.items() if n in names}
        if self.other is None or not given:
            return 0.0
        return 2 * unit_roundoff(dtype) * self.other.of(x, exact, **given)

    def absolute(self, dtype: Any, of: str = "derivative") -> float:
        """Bound the error of a derivative, or with "forward" of a value, where it is near 0."""
        bound = self.derivative_abs if of == "derivative" else self.forward_abs
        return bound * (2.0**-29 if _is_double(dtype) else 1.0)

    def before_rounding(
        self, exact: Any, dtype: Any, on_gpu: bool = False, of: str = "derivative"
    ) -> Any:
        """Bound the error of f', or with "forward" of f, in the type that is computed in."""
        ulps, rougher = (self.forward_ulp, 1) if of == "forward" else (self.derivative_ulp, 4)
        error = np.maximum(ulps * ulp(exact, computed_in(dtype)), self.absolute(dtype, of))
        if on_gpu and is_narrow(dtype):  # its functions are rough before they are rounded
            return np.maximum((self.narrow_ulp - 0.5) * ulp(exact, dtype), rougher * error)
        return error


class Activation(NamedTuple):
    """An activation that an op applies behind its own arithmetic, on some device.

    bounds : its own, or None for the identity. value, slope : the oracle's f and f'. Where f' is
    beyond the range of the computing type, a gradient has no bound.
    """

    bounds: Bounds | None
    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    on_gpu: bool = False

    def of_value(self, z: Any, of_z: Any, dtype: Any) -> Any:
        """Bound the error of f(z) in the computing type, where z has an error of of_z."""
        if self.bounds is None:
            return of_z
        error = through(self.value, z, of_z)
        value = np.abs(self.value(z)) + error
        return error + self.bounds.before_rounding(value, dtype, self.on_gpu, "forward")

    def allowed(self, z: Any, of_z: Any, dtype: Any) -> Any:
        """Bound the error of f(z), where z has an error of of_z."""
        error = self.of_value(z, of_z, dtype)
        return error + rounding(z if self.bounds is None else self.value(z), dtype, error)

    def of_gradient(self, dy: Any, z: Any, of_z: Any, dtype: Any) -> Any:
        """Bound the error of p = dy f'(z) in the computing type, where z has an error of of_z."""
        if self.bounds is None:
            return 0.0 * np.abs(dy)
        slope = self.slope(z)
        error = through(self.slope, z, of_z)
        error = error + self.bounds.before_rounding(np.abs(slope) + error, dtype, self.on_gpu)
        found = np.abs(dy) * error + unit_roundoff(dtype) * np.abs(dy) * (np.abs(slope) + error)
        return unless_beyond(slope, dtype, found)


class SumBounds(NamedTuple):
    """Stated accuracy of a sum: |y - exact| <= ulp ULP of y + absolute sum|x|.

    narrow : replaces absolute for 16-bit x if it is larger, since a few terms are added in float. A
        gradient through a sum is repeated or is a product, and has no error except its roundings.
    """

    ulp: float
    absolute: float
    narrow: float = 0.0

    def share(self, dtype: Any) -> float:
        """Give the allowed error in units of sum|x|, for an array x of `dtype`."""
        return max(self.absolute, self.narrow) if is_narrow(dtype) else self.absolute

    def allowed(self, exact: Any, sum_abs: Any, dtype: Any, of_terms: Any = 0.0) -> Any:
        """Bound the error of a sum. sum_abs: the magnitudes' sum; of_terms: the terms' errors."""
        error = self.share(dtype) * np.asarray(sum_abs) + of_terms
        return error + self.ulp * ulp(np.abs(exact) + error, dtype)


class MomentBounds(NamedTuple):
    """Stated accuracy of moments and of statistics in double, with d = abs(mean) / std.

    |mean - exact| <= 2**-53 |mean| + mean M,  |m2 - exact| <= (m2 + far d) m2
    M is the mean of |x|, and for types narrower than float64 the largest |x| more: a block's terms
    are taken relative to its first one, which may be the largest of all; float64 terms once more
    relative to their mean.
    m2_double : replaces m2 for float64. merged : the factor of the bounds of merged Moments.
    Rounding to another dtype adds half a ULP.
    gradient : dx has an error of so many u times the magnitudes of its two terms, and the mean's
    error times 2 dvar / (n - correction), or dstd / ((n - correction) std).
    sums : the bounds of a sum, of a mean, which is a sum over n, and of the sum of the weights.
    """

    mean: float
    m2: float
    m2_double: float
    far: float
    merged: float
    sums: SumBounds
    gradient: float = 6

    def of_second(self, mean: Any, std: Any, dtype: Any) -> Any:
        """Bound the relative error of m2, or of the variance, of data of `dtype`."""
        with np.errstate(all="ignore"):
            far = np.nan_to_num(np.abs(mean) / std, nan=0.0, posinf=0.0)
        return (self.m2_double if _is_double(dtype) else self.m2) + self.far * far


class BiasBounds(NamedTuple):
    """Stated accuracy of the activation's operand z = (x + bias) + residual: sums u sum|terms|.

    y and dx are those of the activation at that z, and dbias is a sum of dx before it is rounded.
    """

    sums: float
    dbias: SumBounds


class ParametricBounds(NamedTuple):
    """Stated accuracy of y = f(x, w) and both derivatives: this number of u times a magnitude.

    The magnitudes are the oracle's, mostly those of the numbers themselves. A product with dy is
    rounded, too, and dw is a sum of such products, within `sums`.
    """

    value: float
    by_x: float
    by_parameter: float
    sums: SumBounds = SumBounds(ulp=0.5, absolute=2.0**-46)


class DropoutBounds(NamedTuple):
    """Stated accuracy of x / (1 - p), scale u of itself, and of its sum with a residual, u more."""

    scale: float

    def of_result(self, scaled: Any, y: Any, dtype: Any) -> Any:
        """Bound the error of y before it is rounded; it may be `scaled`, x / (1 - p), itself."""
        error = self.scale * np.abs(scaled) + (0.0 if y is scaled else np.abs(y))
        return unit_roundoff(dtype) * error


class GatedBounds(NamedTuple):
    """Stated accuracy of y = act(z) c, with z = min(a + bias, limit), c = clamp(b + bias) + offset.

    z errs by sums u (|a| + |bias|), and c by as much of its own terms and u |c|, where there is a
    bias, or an offset. With these errors carried through: y is the product of the activation within
    its own bounds and c, which is rounded; da is (dy c) act'(z), and db dy act(z), of which each
    product is rounded; dbias is a sum of da and db before these are rounded to their dtype. Where
    dy c is beyond the range of the type that is computed in, da has no bound.
    """

    sums: float
    dbias: SumBounds


class NormBounds(NamedTuple):
    """Stated accuracy of z, which the activation is of, and of the gradients.

    |z - exact| <= scaled u |xhat weight| + u |z| + far |mean weight| rstd, for float64 instead of
    the last term far_double |mean weight| rstd (1 + |xhat|) + moments |weight| (1 + |xhat|), as its
    moments have its roundings; none of them where the statistics are not moments of x. Gradients
    are taken at the statistics that were saved. With p = dy act'(z), whose error is the
    derivative's, z's times the second derivative, and u |p|, and with g = p weight,

    |dx - exact| <= u rstd (gradient |g| + averaged (mean|g| + |xhat| mean|g xhat|)),
        where the statistics do not depend on x given u rstd |g|,
    |dweight - exact| <= summed u sum|p xhat|,   |dbias - exact| <= summed u sum|p|,

    and what the errors of p come to by the same formulas. In the averages and the sums of float64,
    which are added up in float64 as well, every term counts: of n terms, averaged and summed are
    larger by each n. A GPU adds up some moments of 16-bit data and of float32 in float32, after a
    mean near enough was taken away: where rough is not 0, the mean may be off by
    rough u mean|x - mean| and rstd by rough u of itself more, and z by
    rough u |weight| (1 + |xhat|). A bias of a wider dtype than x is computed in has u |bias| more
    in z. With a gate, A = act(gate) and act'(gate) are within the activation's bounds, each product
    with one of them is rounded, and errors are carried through; where x A is normalised, that
    product in the type that is computed in.

    Where they come from. The constants count roundings, of v2 too, whose multiply-add rounds twice.
    xhat: two differences, rstd, their product. z: weight and its product, twice. dx: weight, g, the
    difference from the mean, the product that is taken away, that with rstd. Averages: 7 additions
    in the type that is computed in, the rest in double; 9 roundings of the factors, and what
    follows. Sums over units: 15 additions, and 3 roundings of the factors. The moments of float64:
    src/cpu/reductions/kernels.h has 71 u of the mean distance from the mean, and 212 u of
    m2, and rstd has half of that; far from 0 a block's mean and the mean of all are rounded, u
    |mean| each, and m2 has 4 u of |mean| / std.
    """

    scaled: float
    far: float = 2.0**-48
    far_double: float = 2.0**-52
    moments: float = 2.0**-46
    gradient: float = 6
    averaged: float = 18
    given: float = 3
    summed: float = 18
    each: float = 1 / 8
    rough: float = 0


class RotaryBounds(NamedTuple):
    """Stated accuracy: |y - exact| <= products u (|a cos| + |b sin|), and a rounding to the dtype.

    Two products and their sum, and the rounding of wider cosines and sines.
    """

    products: float = 3

    def allowed(self, exact: Any, size: Any, dtype: Any, of_x: Any = 0.0) -> Any:
        """Bound the error of y; size: |a cos| + |b sin|. of_x: that sum of a's and b's errors."""
        error = self.products * unit_roundoff(dtype) * (np.asarray(size) + of_x) + of_x
        return error + rounding(exact, dtype, error)


class DivergenceBounds(NamedTuple):
    """Stated accuracy: |y - exact| <= share times its parts' magnitudes, and a rounding.

    The parts of a sum are what its terms are sums or products of, as the op's notes have them. A
    thread of a GPU adds 256 terms in double, in a row; a term is within 8 2**-53 of its parts.
    Gradients of 16 bits are computed in float32, on the CPU.
    """

    share: float = 2.0**-44
    narrow_gradient: float = 2.0**-20


class NormRotaryBounds(NormBounds):
    """Stated accuracy of a norm whose result is rounded, and then rotated.

    The bound is rotary's, for an operand with the error of the norm; for backward it is the norm's,
    for a gradient with the error of rotary.
    """

    turned = RotaryBounds()


class GateBounds(NamedTuple):
    """Stated accuracy: |result - exact| <= ulp u times a scale, and the rounding to the dtype.

    A state has the scale (1 + sums S) (1 + H), a gradient (1 + sums S) (1 + H)^2 G: S the largest
    sum of the magnitudes that a gate adds up, H the magnitude of the state before, G the magnitude
    of the gradients that came back. With a reset gate behind the matrix product, whose error meets
    the magnitude Q of what it scales, both have (1 + Q), the gradients' squared. dbias is a sum of
    gradients before they are rounded.
    """

    state_ulp: float
    gradient_ulp: float
    dbias: SumBounds
    sums: float = 0.15


#: The error of a rough exponential of a small exponent, in u: the exponent is rounded together
#: with a power of two that results are scaled by, of at most 2^64 (src/common/math/elementary.h).
ROUGH_EXP = 32.0

#: The error of a sum of these beside its largest, in u: one's, and that of all that are far.
ROUGH_SUM = ROUGH_EXP + 16


def _times_log(share: Any) -> Any:
    """Compute share |log(share)|, which is 0 at 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > 0, -share * np.log(share), 0.0)


class SoftmaxBounds(NamedTuple):
    """Stated accuracy of softmax, log_softmax and logsumexp: its kind is one of them.

    Without a scale and a mask ulps units in the last place, and for logsumexp near 0 not less than
    absolute u: m + log1p(s) cancels there, and s has relative errors of u. z = scale x + mask is
    rounded once, twice without FMA, which moves a result by as much as z: of n elements of z, moved
    u max(|scale x| + |mask|) more, relative for softmax and absolute for the others. In the sums of
    float64, which are added up in float64 as well, every term counts, and n / lanes u comes to the
    relative errors. A softcap errs by 3 ULP, and softcap / |scale| is rounded in double: `moved` is
    12 then, of the capped scale x. Its derivative errs by 4 ULP, and by 2 |scale x| / softcap times
    the error of that quotient.

    Where it comes from. exp errs by 2 u and its sum by as much; the factor 1 / S is rounded, and so
    is the product. log1p(s) is made in double of such an s, and rounded with the rest.

    Of 16-bit data on a GPU exponentials are rough: exp(d) has a relative error of (32 + |d|) u, and
    so a sum of them one of rough u.
    """

    kind: str
    ulps: float = 4
    absolute: float = 4
    moved: float = 4
    moved_and_capped: float = 12
    lanes: float = 32
    rough: float = ROUGH_SUM
    tree: float = 6

    def allowed(
        self, exact: Any, z: Any, count: int, dtype: Any, moved: float = 0, on_gpu: bool = False
    ) -> Any:
        """Bound the error of y.

        z : largest |scale x| + |mask| of the row. moved : 0 without a scale, a mask or a softcap.
        on_gpu : for 16-bit data on a GPU, which dtype need not tell: lse is float32.
        """
        u, magnitude = unit_roundoff(dtype), np.abs(exact)
        each = count / self.lanes + 1 if _is_double(dtype) else 0.0
        shift = moved * u * np.asarray(z) if moved else 0.0
        in_dtype, small = computed_in(dtype), np.minimum(magnitude, 1)
        if self.kind == "softmax":
            error = self.ulps * ulp(exact, in_dtype) + (shift + u * each) * magnitude
        else:
            error = self.ulps * ulp(exact, in_dtype) + shift + u * each * small
        if self.kind == "logsumexp":
            error = np.maximum(error, self.absolute * u * (1 + each) + shift)
            small = np.ones_like(magnitude)
        if on_gpu:
            error = error + u * (self.rough * small + _times_log(small))
        return error + (rounding(exact, dtype, error) if is_narrow(dtype) else least(dtype))


class CrossEntropyBounds(NamedTuple):
    """Stated accuracy of cross_entropy: a loss is within constant u sum t w (max - z + 1).

    The differences and their sum are of double; log1p(s) has the relative error of s, u. Means and
    sums of losses are of double, in one order: for float64 each row counts u. dlogits: constant u
    |g| (p sum t w + t w), for lse + rest as saved; where the target is one class, that one's as (1
    - p) of its own part of t w, p of the other classes' sum, and the smoothing's part. With a
    z_loss the first sum has z_loss |lse| (|max| + log1p(s)) more, because there the error of lse
    counts, and p 2 z_loss |lse| comes to dlogits. Of 16-bit data on a GPU exponentials are rough,
    as they are for `SoftmaxBounds`.
    """

    constant: float = 8
    lanes: float = 32
    rough: float = ROUGH_SUM

    def allowed(
        self, exact: Any, magnitude: Any, count: int, dtype: Any, rows: int, on_gpu: bool
    ) -> Any:
        """Bound the error of a loss.

        magnitude : sum of t w (max - z + log1p(s)). rows : that are added up. on_gpu : for 16-bit
        data on a GPU.
        """
        each = count / self.lanes + rows - 1 if _is_double(dtype) else 0.0
        size = np.abs(magnitude)
        error = (self.constant + each) * unit_roundoff(dtype) * size
        if on_gpu:
            rough = self.rough * size + _times_log(np.minimum(size, 1))
            error = error + unit_roundoff(dtype) * rough
        return with_rounding(exact, dtype, error)
