// The formulas of softmax, log_softmax, logsumexp and cross_entropy: the exponential of a row's
// elements beside its maximum, the statistic of a block of a row, and how two of them merge.
//
// Of a row z with maximum m, S = sum of exp(z - m), and s = S without the maximum's own term,
//
//   softmax = exp(z - m) / S      log_softmax = (z - m) - log1p(s)      logsumexp = m + log1p(s)
//
// s and not S - 1: where one element is far above all others, log(S) has lost every digit
// (https://github.com/scipy/scipy/issues/19521).
//
// z - m is rounded, and exp multiplies that error by |z - m|: 16 ULP at z - m = -20. So it is never
// formed. With K = round(m / ln 2), near exponentials are exp(z - K ln 2): z = k ln 2 + r is
// reduced by itself, exactly but for r's last bit, and exp(z - K ln 2) = 2^(k - K) exp(r). The
// references K ln 2 of two blocks differ by a power of two, by which their sums merge exactly. It
// needs that k is small: a row with |m| > kNearMaximum takes exp(d) with d = z - m and the rest
// that d's rounding left (Knuth's two-sum), which costs half as much again.
//
// Exponentials are scaled by 2^kScale: what is subnormal after the division keeps its bits until
// then.
//
// The gradients, of z = scale x + mask. With p = exp(z) / sum exp(z), dp_j / dz_i = p_j ([i = j] -
// p_i), and dlog(p_j) / dz_i = [i = j] - p_i. Summed over j with dy_j:
//
//   softmax        dz = y (dy - sum(dy y))             logsumexp       dz = dy exp(z - lse)
//   log_softmax    dz = dy - exp(y) sum(dy)            dx = scale dz
//   cross_entropy  dz = dloss (p sum(t w) - t w), for the loss -sum t w log(p)
//
// Where one p is nearly 1, the two terms of its own dz cancel, and what is left of them is what p
// lacks. log_softmax and cross_entropy know log(p), and take expm1 of it: with exp(y) = s + s t, s
// a power of two, dz = (dy - s sum(dy)) - s t sum(dy), where s is 1 and t is expm1. softmax has p
// as it was rounded, and such a dz is off by 2^-24 of dy. Beside logits of 1e4 a float of lse is
// off by 5e-4, and so would all p be: forward saves the error of that rounding too, as `rest`, and
// z - lse - rest has the digits of (z - m) - log1p(s).
//
// Below a softcap c, z = c tanh(scale x / c) + mask = scale cap tanh(x / cap) + mask with cap = c /
// |scale|: x is capped as it is read, and all else is as it was. So dx has one more factor, the
// derivative of the cap at x (SoftCap in common/activations/tanh.h has both).
//
// A sink is a logit s more in softmax's sum, of probability q = exp(s) / sum. It has no y, so dz of
// the others is as it was, and with dy_j / ds = -q y_j its own gradient is -q sum(dy y).
#pragma once

#include "common/math/elementary.h"
#include "common/reductions/moments.h"

FASTACT_BEGIN_NAMESPACE

constexpr double kNearMaximum = 1024;  // of |m|, for which k ln2_high is exact

// Powers of two below a row's maximum, from which on an exponential is zero: of the biased exponent
// of s in exp_scaled. For float exp(-115.8), for double exp(-797.8): after the division that is
// less than half of the least subnormal number.
template <class T>
constexpr T kZeroAt = T(ExpTraits<T>::kBias + Tail<T>::kScale);

// The reference of a row's near exponentials.
template <class T>
struct SoftmaxReference {
  T limit;  // of z, at and below which they are zero
  T magic;  // added to z / ln 2, it rounds it and makes the exponent of 2^(k - K + kScale)
};

template <class T>
FASTACT_HD T reference_exponent(T max) {  // K
  return madd(max, ExpTraits<T>::kLog2E, ExpTraits<T>::kRoundMagic) - ExpTraits<T>::kRoundMagic;
}

// zero_at: kBias, where exponentials are not scaled.
template <class T>
FASTACT_HD SoftmaxReference<T> reference_of(T max, T zero_at = kZeroAt<T>) {
  const T k = reference_exponent(max);
  return {(k - zero_at) * T(0.69314718055994530942), ExpTraits<T>::kRoundMagic + (zero_at - k)};
}

// exp(z - K ln 2) 2^kScale for z up to the maximum. A NaN stays. held: no less than the limit.
constexpr double kSoftmaxExpUlp = 1.0;
template <class T>
FASTACT_HD Exp<T> exp_near_held(T held, const SoftmaxReference<T>& reference) {
  using C = ExpTraits<T>;
  const T shifted = madd(held, C::kLog2E, reference.magic);
  const T k = shifted - reference.magic;
  const T s = bit_cast<T>(bit_cast<typename C::Bits>(shifted) << C::kMantissaBits);
  const T r = madd(k, -C::kLn2Low, madd(k, -C::kLn2High, held));
  return {s, madd(C::template q<false>(r) * r, r, r)};
}
template <class T>
FASTACT_HD T exp_near(T z, const SoftmaxReference<T>& reference) {
  return exp_near_held(no_less(z, reference.limit), reference).value();
}

// exp(z - max) 2^kScale for z up to the maximum. A NaN stays.
template <class T>
FASTACT_HD T exp_far(T z, T max) {
  constexpr T zero = -kZeroAt<T> * T(0.69314718055994530942);
  const T d = z - max, back = d - z;
  const T rest = (z - (d - back)) - (max + back);
  const bool is_zero = d < zero;
  return exp_split<Tail<T>::kScale>(is_zero ? zero : d, is_zero ? T(0) : rest).value();
}

template <class T>
FASTACT_HD bool is_near(T max) {
  return magnitude(max) <= T(kNearMaximum);
}

// log(1 + s) for s >= 0, and NaN: of s up to 1 itself, else of 1 + s = 2^k (1 + u), 0 <= u < 1. For
// T double.
constexpr double kLog1pOfSumUlp = 2.5;
template <class T>
FASTACT_HD T log1p_of_sum(T s) {
  using C = ExpTraits<T>;
  const T whole = T(1) + s;
  const auto bits = bit_cast<typename C::Bits>(whole);
  // as the last bits of a number that counts ones: not all instruction sets convert integers
  constexpr auto counts = typename C::Bits(C::kBias + C::kMantissaBits) << C::kMantissaBits;
  const T k = bit_cast<T>((bits >> C::kMantissaBits) | counts) - (bit_cast<T>(counts) + C::kBias);
  const T one_up = bit_cast<T>((bits & ((typename C::Bits(1) << C::kMantissaBits) - 1)) |
                               bit_cast<typename C::Bits>(T(1)));
  const T above = one_up - T(1);
  const T u = s < T(1) ? s : above;
  const T log = log1p_of_unit(u);
  const T with_power = madd(k, C::kLn2High, madd(k, C::kLn2Low, log));
  return unless_nan(s, s < T(1) ? log : with_power);
}

// The statistics of a block of a row, and of all blocks up to one.
// rest: the sum of the exponentials, without the elements that are the maximum where these are
// counted apart (ones; else 0). Of an infinite maximum: NaN if there is one in the row, else 0.
struct SoftmaxStat {
  double max, rest, ones;
};

// The exponential of the maximum itself: of 1 where it is far.
template <class T>
FASTACT_HD double exp_of_maximum(double max) {
  constexpr double one = Tail<T>::kScale == 40 ? 0x1p40 : 0x1p128;
  return is_near(T(max)) ? double(exp_near(T(max), reference_of(T(max)))) : one;
}

FASTACT_HD double power_of_two(int64_t n) {
  return n < -1022 ? 0.0 : bit_cast<double>(uint64_t(n + 1023) << 52);
}

// By what exponentials beside one maximum are multiplied to be those beside a larger one, where
// both are finite.
template <class T>
FASTACT_HD double lower_by(double max, double larger) {
  if (is_near(T(max)) && is_near(T(larger)))
    return power_of_two(int64_t(reference_exponent(T(max))) -
                        int64_t(reference_exponent(T(larger))));
  if (max - larger < -700.0) return 0.0;
  return exp_scaled<0>(max - larger).value() * exp_of_maximum<T>(larger) / exp_of_maximum<T>(max);
}

// The statistic of a row so far, after one more block of it.
template <class T>
FASTACT_HD SoftmaxStat merged(const SoftmaxStat& a, const SoftmaxStat& b) {
  if (a.max == b.max) return {a.max, a.rest + b.rest, a.ones + b.ones};
  const SoftmaxStat &high = a.max > b.max ? a : b, &low = a.max > b.max ? b : a;
  if (!is_finite(low.max) || !is_finite(high.max))  // rest of a minus infinity is 0, or NaN
    return {high.max, high.rest + (is_finite(high.max) ? low.rest : 0.0 * low.rest), high.ones};
  const double whole = low.rest + low.ones * exp_of_maximum<T>(low.max);
  return {high.max, high.rest + whole * lower_by<T>(low.max, high.max), high.ones};
}

// Finds what the rounding of max + log to C left; 0 where that is not finite.
template <class C>
FASTACT_HD double rest_of_lse(double max, double log) {
  const C lse = C(max + log);
  return is_finite(lse) ? (max - double(lse)) + log : 0.0;
}

// Numbers that follow from a row's statistic, in the type C: softmax = exponential * factor,
// log_softmax = (z - max) - log. max: 0 where no element takes part.
template <class C>
struct SoftmaxLevel {
  C max, log, lse, factor;
};

// The level of a row whose maximum is infinite, or NaN. Where a mask leaves nothing, softmax is 0
// and log_softmax -inf; without a mask they are NaN.
template <class C>
FASTACT_HD SoftmaxLevel<C> infinite_level(C max, bool has_mask) {
  const C nan = C(__builtin_nan(""));
  if (max != C(-__builtin_inf())) return {max, nan, max, nan};
  return {C(0), has_mask ? C(0) : nan, max, has_mask ? C(0) : nan};
}

// The sum S of all exponentials, and s = S / one - 1: the log is log1p(s). one: the exponential of
// the maximum.
FASTACT_HD double sum_of_terms(double rest, double ones, double one) {
  return madd(ones, one, rest);
}
FASTACT_HD double sum_beside_one(double rest, double ones, double one) {
  return divide(rest, one) + (ones - 1.0);
}

template <class T>
FASTACT_HD SoftmaxLevel<double> level_of(const SoftmaxStat& stat, bool has_mask) {
  if (!is_finite(stat.max)) return infinite_level(stat.max + stat.rest, has_mask);
  if (stat.ones == 0.0) return {stat.max, 0.0, 0.0, 1.0 / stat.rest};
  const double one = exp_of_maximum<T>(stat.max);
  const double log = log1p_of_sum(sum_beside_one(stat.rest, stat.ones, one));
  return {stat.max, log, stat.max + log, 1.0 / sum_of_terms(stat.rest, stat.ones, one)};
}

// z = scale x + down mask, of a mask of numbers; what is -inf there takes no part, at any x. down:
// of a z that lies down by a power of two.
template <class T>
FASTACT_HD T masked_score(T scale, T x, T mask, T down = T(1)) {
  const T z = madd(scale, x, down * mask);
  return mask == T(-__builtin_inf()) ? mask : z;
}

FASTACT_END_NAMESPACE
