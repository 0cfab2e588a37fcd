// Elementary functions without branches, for compilers to vectorise.
//
// Each states its range and its error bound; tests/activations/test_accuracy.py reads the bound
// from here, through the module, and holds the function to it.
//
// Arguments are clamped by integer minima: for a comparison of floats GCC 12 emits three mask
// instructions (docs/design/activations.md).
#pragma once

#include "common/math/minimax_tables.h"

#if defined(FASTACT_CUDA_EMULATION)
#include "cuda_emulation/arithmetic.h"
#endif

FASTACT_BEGIN_NAMESPACE

// Constants of exp, for each compute type.
//
// expm1(r) = r + r^2 q(r) on |r| <= ln(2)/2, where q minimises the worst relative error of exp:
// 2^-28.3 (float, degree 4) and 2^-57.9 (double, degree 9), by Lawson's reweighted least squares
// in 60 digits on Chebyshev nodes.
//
// ln2_high has so few bits that k * ln2_high is exact for every k in range: the reduced argument
// is then as good without FMA as with it.
template <class T>
struct ExpTraits;

template <>
struct ExpTraits<float> {
  using Bits = uint32_t;
  using SignedBits = int32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr int kBias = 127;
  static constexpr float kRoundMagic = 0x1.8p23f;  // adding it rounds to an integer
  static constexpr float kLog2E = 0x1.715476p0f;
  static constexpr float kLn2 = 0x1.62e43p-1f;
  static constexpr float kLn2High = 0x1.63p-1f;
  static constexpr float kLn2Low = -0x1.bd0106p-13f;

  template <bool split>
  static FASTACT_HD float q(float r) {
    return polynomial<split>(r, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239e6p-7f,
                             0x1.6a23f6p-10f);
  }
};

template <>
struct ExpTraits<double> {
  using Bits = uint64_t;
  using SignedBits = int64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr int kBias = 1023;
  static constexpr double kRoundMagic = 0x1.8p52;
  static constexpr double kLog2E = 0x1.71547652b82fep0;
  static constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  static constexpr double kLn2High = 0x1.62e42fefa0000p-1;
  static constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;

  template <bool split>
  static FASTACT_HD double q(double r) {
    return polynomial<split>(r, 0x1.000000000000ap-1, 0x1.55555555554fap-3, 0x1.5555555550855p-5,
                             0x1.1111111127aa0p-7, 0x1.6c16c184313dbp-10, 0x1.a01a012ad29d4p-13,
                             0x1.a01999fbe94cbp-16, 0x1.71df242e164f1p-19, 0x1.28ad80013c392p-22,
                             0x1.ad814f0804f48p-26);
  }
};

// exp(x) * 2^scale as the factors of s (1 + t): s a power of two, |t| <= 0.42.
//
// Range: any x for which k = round(x / ln 2) keeps k + scale in the normal exponents; the caller
// clamps. `scale` lifts results that would be subnormal into the normal range, where they keep
// all their bits.
// Error: the product, rounded once, is within kExpUlp. Because s t is exact, callers that add
// something to s + s t fold it in before that rounding.
//
// The exponent's bias sits in the number that is added to round: the shift alone makes s.
constexpr double kExpUlp = 1.0;

// expm1(x) is s t + (s - 1) with scale 0: s - 1 is exact or swamps the rest, and where k is 0, s is
// 1 and t is expm1 itself. Range: as above. A zero gives +0.
constexpr double kExpm1Ulp = 1.5;

template <class T>
struct Exp {
  T s, t;
  FASTACT_HD T value() const { return madd(t, s, s); }
  FASTACT_HD T minus_one() const { return madd(s, t, s - T(1)); }
};

// Two orders of the same steps. exp_scaled is the one with the fewest; exp_split is the one with
// the shortest chain, for callers in which a long chain follows, and takes a rest: added to x,
// which is far larger, without being rounded into it.
template <int scale, class T>
struct ExpReduction {
  using C = ExpTraits<T>;
  T k, s;
  FASTACT_HD explicit ExpReduction(T x, T log2_of_base = C::kLog2E) {
    constexpr T magic = C::kRoundMagic + T(C::kBias + scale);
    const T shifted = madd(x, log2_of_base, magic);
    k = shifted - magic;
    s = bit_cast<T>(bit_cast<typename C::Bits>(shifted) << C::kMantissaBits);
  }
};
template <int scale, class T>
FASTACT_HD Exp<T> exp_scaled(T x) {
  using C = ExpTraits<T>;
  const ExpReduction<scale, T> at(x);
  const T r = madd(at.k, -C::kLn2Low, madd(at.k, -C::kLn2High, x));
  return {at.s, madd(C::template q<false>(r) * r, r, r)};
}
template <int scale, class T>
FASTACT_HD Exp<T> exp_split(T x) {
  using C = ExpTraits<T>;
  const ExpReduction<scale, T> at(x);
  const T r = madd(at.k, -C::kLn2Low, madd(at.k, -C::kLn2High, x));
  return {at.s, madd(C::template q<true>(r), r * r, r)};
}
template <int scale, class T>
FASTACT_HD Exp<T> exp_split(T x, T rest) {
  using C = ExpTraits<T>;
  const ExpReduction<scale, T> at(x);
  const T r = madd(at.k, -C::kLn2High, x) + madd(at.k, -C::kLn2Low, rest);
  return {at.s, madd(C::template q<true>(r), r * r, r)};
}

// a b - product, for product = a b as rounded: what exp needs on top of a large rounded product.
//
// Exact with FMA. Without, by halves of the significands (Dekker), whose products are exact but for
// the last bit of the two low halves of double.
template <class T>
FASTACT_HD T product_rest(T a, T b, T product) {
#if defined(FASTACT_FMA)
  return madd(a, b, -product);
#else
  using Bits = typename ExpTraits<T>::Bits;
  constexpr Bits mask = ~Bits(0) << (ExpTraits<T>::kMantissaBits / 2 + 1);
  const T a_high = bit_cast<T>(bit_cast<Bits>(a) & mask), a_low = a - a_high;
  const T b_high = bit_cast<T>(bit_cast<Bits>(b) & mask), b_low = b - b_high;
  return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
#endif
}

// The division and the exponential of the GPU.
//
// divide: a / b, the same bits as IEEE division, wherever a, b and a / b are normal numbers and the
// product of b with the quotient does not overflow. On a GPU the quotient is corrected by its exact
// remainder (Markstein), as the compiler would have it, but without its test for special operands
// and the call behind that, which cost six instructions and spill registers. On the CPU, with
// reciprocals off by up to 2 ULP (float) or of 20 bits (double), none of 3 10^8 random quotients
// differed from IEEE's. Of a positive b the sign of a zero is IEEE's, too: no remainder is left as
// +0, and taken from q as -0, to which either zero is what it was.
// divide<true> and exp_approximate are for 16-bit data alone. A GPU has to compute one such element
// every 27 instructions that an H200's lanes can issue: the special function units give reciprocals
// and powers of two within 2 ULP of float (PTX ISA, rcp.approx and ex2.approx).
#if defined(__CUDA_ARCH__)
#define FASTACT_GPU_FUNCTIONS
FASTACT_HD float reciprocal_estimate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FASTACT_HD double reciprocal_estimate(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}
FASTACT_HD float power_of_two_estimate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FASTACT_HD double inverse_root_estimate(double x) {
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}
FASTACT_HD float minimum(float a, float b) { return fminf(a, b); }
FASTACT_HD float maximum(float a, float b) { return fmaxf(a, b); }
FASTACT_HD double minimum(double a, double b) { return fmin(a, b); }
FASTACT_HD double maximum(double a, double b) { return fmax(a, b); }
#elif defined(FASTACT_CUDA_EMULATION)
#define FASTACT_GPU_FUNCTIONS
template <class T>
T reciprocal_estimate(T x) {
  return emulation::reciprocal_approx_ftz(x);
}
inline float power_of_two_estimate(float x) { return emulation::power_of_two_approx_ftz(x); }
inline double inverse_root_estimate(double x) { return emulation::inverse_root_approx_ftz(x); }
using emulation::maximum;
using emulation::minimum;
#else
template <class T>
FASTACT_HD T reciprocal_estimate(T x) {
  return T(1) / x;
}
inline float power_of_two_estimate(float x) { return __builtin_exp2f(x); }
inline double inverse_root_estimate(double x) { return 1 / __builtin_sqrt(x); }
#endif

template <bool approximate = false, class T>
FASTACT_HD T divide(T a, T b) {
  if constexpr (approximate) return a * reciprocal_estimate(b);
#if defined(FASTACT_GPU_FUNCTIONS)
  T r = reciprocal_estimate(b);  // 23 bits of float, 20 of double; each step doubles them
  r = madd(madd(-b, r, T(1)), r, r);
  if constexpr (sizeof(T) == sizeof(double)) r = madd(madd(-b, r, T(1)), r, r);
  T q = a * r;
  q = madd(madd(b, q, -a), -r, q);
  return madd(madd(b, q, -a), -r, q);
#else
  return a / b;
#endif
}

// exp(x) * 2^scale, relative error below 2^-19 + |x| 2^-24: of exponents from 32 to 64 the sum with
// the scale is rounded by 2^-19.
template <int scale>
FASTACT_HD float exp_approximate(float x) {
  return power_of_two_estimate(madd(x, ExpTraits<float>::kLog2E, float(scale)));
}

// x or the limit, whichever is larger (at_least, for a negative limit) or smaller (at_most, for a
// positive one), or x between 0 and the limit. A NaN gives any number: the caller puts NaNs back.
#if defined(FASTACT_GPU_FUNCTIONS)
template <class T>
FASTACT_HD T at_least(T x, T limit) {
  return maximum(x, limit);
}
template <class T>
FASTACT_HD T at_most(T x, T limit) {
  return minimum(x, limit);
}
template <class T>
FASTACT_HD T clamped(T x, T least, T most) {
  return at_least(at_most(x, most), least);
}
template <class T>
FASTACT_HD T between_0_and(T limit, T x) {
  return at_most(maximum(x, T(0)), limit);
}
#else
// As integers positive floats are ordered as they are, and negative floats the other way round
// when read as unsigned: one minimum each, where a comparison costs three mask instructions with
// AVX-512, and two without. AVX2 has no minimum of 64 bits.
template <class T>
FASTACT_HD T at_least(T x, T limit) {
#if !defined(__AVX512F__)
  if constexpr (sizeof(T) == sizeof(double)) return limit > x ? limit : x;
#endif
  using U = typename ExpTraits<T>::Bits;
  const U a = bit_cast<U>(x), b = bit_cast<U>(limit);
  return bit_cast<T>(a < b ? a : b);
}
template <class T>
FASTACT_HD T at_most_by_bits(T x, T limit) {
  using S = typename ExpTraits<T>::SignedBits;
  const S a = bit_cast<S>(x), b = bit_cast<S>(limit);
  return bit_cast<T>(a < b ? a : b);
}
template <class T>
FASTACT_HD T at_most(T x, T limit) {
#if !defined(__AVX512F__)
  if constexpr (sizeof(T) == sizeof(double)) return limit < x ? limit : x;
#endif
  return at_most_by_bits(x, limit);
}
// Both: of two comparisons of floats GCC makes nine instructions, of one four.
template <class T>
FASTACT_HD T clamped(T x, T least, T most) {
  return at_least(at_most_by_bits(x, most), least);
}
template <class T>
FASTACT_HD T between_0_and(T limit, T x) {
  using S = typename ExpTraits<T>::SignedBits;
  const S a = bit_cast<S>(x);
  return at_most_by_bits(bit_cast<T>(a > 0 ? a : S(0)), limit);
}
#endif

// x or the limit, whichever is larger (no_less) or smaller (no_more), for any limit. A NaN stays.
template <class T>
FASTACT_HD T no_less(T x, T limit) {
  return limit > x ? limit : x;
}
template <class T>
FASTACT_HD T no_more(T x, T limit) {
  return limit < x ? limit : x;
}

// Does so for limits that are no +0, for 16-bit data on a GPU, which has an instruction for it.
FASTACT_HD float held_above(float x, float limit) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
  return y;
#else
  return no_less(x, limit);
#endif
}
FASTACT_HD float held_below(float x, float limit) { return -held_above(-x, -limit); }

// y, but x where x is a NaN.
template <class T>
FASTACT_HD T unless_nan(T x, T y) {
  return x != x ? x : y;
}

template <class T>
constexpr typename ExpTraits<T>::Bits kSignBit =
    typename ExpTraits<T>::Bits(1) << (sizeof(T) * 8 - 1);

// |x|, and y with the sign of x.
template <class T>
FASTACT_HD T magnitude(T x) {
#if defined(__CUDA_ARCH__)
  return fabs(x);  // a part of the instruction that takes it
#else
  return bit_cast<T>(bit_cast<typename ExpTraits<T>::Bits>(x) & ~kSignBit<T>);
#endif
}
template <class T>
FASTACT_HD T with_sign(T y, T x) {
  using Bits = typename ExpTraits<T>::Bits;
  return bit_cast<T>((bit_cast<Bits>(y) & ~kSignBit<T>) | (bit_cast<Bits>(x) & kSignBit<T>));
}

// exp(x) * 2^scale, rounded or, for 16-bit data on a GPU, roughly.
template <int scale, bool approximate, class T>
FASTACT_HD T exponential(T x) {
  if constexpr (approximate) return exp_approximate<scale>(x);
  return exp_scaled<scale>(x).value();
}

// How far the tails of what falls off as exp(x) are carried: until they round to zero, in numbers
// that are scaled by 2^kScale so that none of their bits are lost before the last multiplication.
// From kHigh on, 1 + exp(-x) is 1.
template <class T>
struct Tail;
template <>
struct Tail<float> {
  static constexpr int kScale = 40;
  static constexpr float kLow = -110, kHigh = 20, kDown = 0x1p-40f;
};
template <>
struct Tail<double> {
  static constexpr int kScale = 128;
  static constexpr double kLow = -760, kHigh = 40, kDown = 0x1p-128;
};

// exp(x) for x <= -kExpZero, but zero instead of a subnormal number: enough for derivatives, whose
// bound is an absolute error as well. exp_scaled makes s = 0 of the exponent below the last normal
// one.
template <class T>
constexpr T kExpZero = sizeof(T) == sizeof(float) ? T(-88) : T(-709);
template <class T>
FASTACT_HD T exp_or_zero(T x) {
  return exp_scaled<0>(at_least(x, kExpZero<T>)).value();
}

// log(1 + u) for 0 <= u <= 1.
constexpr double kLog1pUlp = 1.5;
template <class T>
FASTACT_HD T log1p_of_unit(T u) {
  return madd(u * log1p_quotient(u), u, u);
}

// 1 / (1 + 2^(x y)), by default 1 / (1 + exp(-x)), roughly, for 16-bit data on a GPU, of any
// product, infinite or NaN. Numerator and denominator are 2^-16 times as large: a reciprocal of
// more than 2^126 is zero to a GPU, which begins where 100 times the result is zero to bfloat16.
FASTACT_HD float sigmoid_approximate(float x, float y = -ExpTraits<float>::kLog2E) {
  constexpr float down = 0x1p-16f;
  const float e = power_of_two_estimate(madd(x, y, -16.0f));
  return reciprocal_estimate(e + down) * down;
}

// 1 / (1 + exp(-x)), for every x but NaN, which may give anything, and is one for 16-bit data.
constexpr double kSigmoidUlp = 2.5;
template <bool approximate = false, class T>
FASTACT_HD T sigmoid_of(T x) {
  using C = Tail<T>;
  if constexpr (approximate) return sigmoid_approximate(x);
  const T e = exp_scaled<C::kScale>(clamped(x, C::kLow, C::kHigh)).value();
  return divide(e, madd(e, C::kDown, T(1))) * C::kDown;
}

// Gives zero instead of a subnormal number, but for 16-bit data on a GPU. Far on the right
// the quotient is 1 as soon as 1 + e is e; of an e above 2^126 a GPU's reciprocal would be
// subnormal, which is zero to it.
template <bool approximate = false, class T>
FASTACT_HD T sigmoid_or_zero(T x) {
  if constexpr (approximate) return sigmoid_of<true>(x);
  const T e = exp_scaled<0>(clamped(x, kExpZero<T>, Tail<T>::kHigh)).value();
  return divide(e, T(1) + e);
}

// x / (1 + exp(-p)) / down of exp(p) / down. x exp(p) is rounded once: a factor of x at the end
// would be the fourth rounding on the left, where silu then was off by 3.15 ULP.
template <class T>
FASTACT_HD T silu_of(T x, Exp<T> exp, T down) {
  const T xs = x * exp.s;
  return divide(madd(xs, exp.t, xs), madd(exp.value(), down, T(1)));
}
// For 16-bit data on a GPU, of e = exp(p) / down.
template <class T>
FASTACT_HD T silu_approximate(T x, T e, T down) {
  return x * divide<true>(e, madd(e, down, T(1)));
}

// Its derivative, e / (1 + e)^2 with e = exp(-|x|), times `times`. A NaN may give anything. For
// 16-bit data on a GPU s - s^2 with s = e / (1 + e).
template <int times = 1, bool approximate = false, class T>
FASTACT_HD T sigmoid_slope_of(T x) {
  if constexpr (approximate) {
    const T s = sigmoid_approximate(-magnitude(x));
    return times * madd(-s, s, s);
  }
  const T e = exp_or_zero(-magnitude(x));
  const T d = T(1) + e;
  return divide(times * e, d * d);
}

// Second derivatives of the sigmoid, which is odd, and of x sigmoid(x), which is even: with
// e = exp(-m), m = |x| and d = 1 + e,
//     -e (1 - e) / d^3 for x > 0, and e (2 d - m (1 - e)) / d^3.
// Both have roots: errors count absolutely. A NaN may give anything.
template <class T>
FASTACT_HD T sigmoid_curve_of(T x) {
  const T e = exp_or_zero(-magnitude(x));
  const T d = T(1) + e;
  return with_sign(divide(e * (T(1) - e), d * d * d), -x);
}
template <class T>
FASTACT_HD T silu_curve_of(T x) {
  const T m = at_most(magnitude(x), -kExpZero<T>);
  const T e = exp_or_zero(-m);
  const T d = T(1) + e;
  return divide(e * madd(-m, T(1) - e, T(2) * d), d * d * d);
}

// The derivative of x / (1 + exp(-p)), p an odd function of x: of e = exp(-|p|) and m = x p'(x),
// with d = 1 + e, it is (d + m e) / d^2 for x > 0, and e (d - m) / d^2 below.
template <class T>
FASTACT_HD T slope_of_product(T x, T e, T m) {
  const T d = T(1) + e;
  return divide(x > T(0) ? madd(m, e, d) : e * (d - m), d * d);
}
// For 16-bit data on a GPU, of s = 1 / (1 + exp(-p)): s (1 + m (1 - s)). Where s is nearly 1 it is
// off by m times the error of s: m is held below some 100.
FASTACT_HD float slope_approximate(float s, float m) { return madd(s, madd(-m, s, m), s); }

// n = expm1(2 m) for m >= 0, with m held where tanh(m) has long been 1. A NaN stays.
// It is for n / (n + 2), in which an error of exp counts 2 / (n + 2)-fold: less, the further 2 m is
// reduced. One step does, by ln(2) as rounded, and by m itself, which waits for no doubling.
template <class T>
FASTACT_HD T expm1_of_twice(T m) {
  using C = ExpTraits<T>;
  const T held = no_more(m, sizeof(T) == sizeof(float) ? T(10) : T(20));
  const ExpReduction<0, T> at(held, T(2) * C::kLog2E);
  const T r = madd(at.k, -C::kLn2, held + held);
  return Exp<T>{at.s, madd(C::template q<true>(r), r * r, r)}.minus_one();
}

// tanh(m) for m >= 0. A NaN stays.
//
// With n = expm1(2 m) it is n / (n + 2): n has all its bits near 0, and where it is large its error
// counts 2 / (n + 2)-fold. (By expm1(-2 m) what is nearly 1 was rounded three times, which took a
// second formula above 1/2 to mend: GCC makes two divisions of that, and 1.8 times the time.)
constexpr double kTanhUlp = 2.75;
template <class T>
FASTACT_HD T tanh_of_magnitude(T m) {
  const T n = expm1_of_twice(m);
  return divide(n, n + T(2));
}

// tanh(x), roughly, for 16-bit data on a GPU: 1 - 2 / (1 + exp(2 x)), which holds for any x,
// infinite or NaN, and below 1/8 three terms of the series, which leave 2^-22 of the result.
FASTACT_HD float tanh_approximate(float x) {
  const float e = power_of_two_estimate(x * (2 * ExpTraits<float>::kLog2E));
  const float far = madd(-2.0f, reciprocal_estimate(1.0f + e), 1.0f);
  const float z = x * x;
  const float near = x * madd(z, madd(z, float(2. / 15), float(-1. / 3)), 1.0f);
  return magnitude(x) < 0.125f ? near : far;
}

// exp(-t^2/2) * 2^scale as the factors of s (1 + t). Range: t^2/2 as x of exp_scaled.
//
// A multiple of 2 ln(2) is taken off t^2 before t^2 is rounded: that rounding would give exp an
// error t^2/2 times as large.
template <int scale, class T>
FASTACT_HD Exp<T> exp_of_half_square(T t) {
  using C = ExpTraits<T>;
  const T square = t * t;
  const ExpReduction<scale, T> at(square, T(-0.5) * C::kLog2E);
  const T multiple = at.k * (T(2) * C::kLn2High);  // exact, and negative as k is
#if defined(FASTACT_FMA)
  const T high = madd(t, t, multiple);
#else
  const T high = (square + multiple) + product_rest(t, t, square);
#endif
  const T r = madd(at.k, T(2) * C::kLn2Low, high);
  return {at.s, r * half_exp_quotient(r)};
}

FASTACT_END_NAMESPACE
