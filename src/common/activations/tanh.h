// The hyperbolic tangent and what is made of it: softcap, tanhshrink, lisht, logcosh.
//
// All of them are odd or even: they are computed of m = |x|, by exp(-2 m), which does not overflow.
#pragma once

#include "common/math/elementary.h"
#include "common/reductions/range.h"

FASTACT_BEGIN_NAMESPACE

// tanh(x)
//
// Derivative: 1 - tanh(x)^2 = 4 e / (1 + e)^2 with e = e^(-2 m), the sigmoid's of 2 x times 4; of
// y, 1 - y^2, whose derivative by y is -2 y. Second: the sigmoid's of 2 x times 8.
template <class T, bool approximate = false>
struct Tanh {
  FASTACT_HD explicit Tanh(const double*) {}
  FASTACT_HD T forward(T x) const {
    if constexpr (approximate) return tanh_approximate(x);
    return with_sign(tanh_of_magnitude(magnitude(x)), x);
  }
  FASTACT_HD T derivative(T x) const {
    return unless_nan(x, sigmoid_slope_of<4, approximate>(T(2) * x));
  }
  FASTACT_HD T derivative_by_value(T y) const { return madd(-y, y, T(1)); }
  FASTACT_HD T second(T x) const { return unless_nan(x, T(8) * sigmoid_curve_of(T(2) * x)); }
  FASTACT_HD T second_by_value(T y) const { return T(-2) * y; }
};

// exp(-2 m), for m >= 0, where all that happens to it is an addition of at least some 2^-30.
template <bool approximate, class T>
FASTACT_HD T exp_of_minus_twice(T m) {
  return exponential<0, approximate>(at_least(T(-2) * m, T(-80)));
}

// tanh(m) for 0 <= m < 1, within 2 ULP, below 1/2 within 1: m - m^3 (1/3 + q(m^2)).
template <class T>
FASTACT_HD T tanh_near(T m) {
  const T z = m * m;
  return madd(-(z * m), T(1. / 3) + tanhshrink_quotient(z), m);
}

// softcap(x) = cap tanh(x / cap), parameter cap > 0            Gemma Team, arXiv:2408.00118
//
// Derivative: tanh's at x / cap. Second: tanh's over cap.
//
// cap is a power of two near its root times another number near its root, `rest`: x / cap and the
// result leave the range only where that does not matter, however small or large cap is. What
// x / cap loses by roundings is carried beside it. Where x / cap is small, or 0 / 0, y is x.
//
// Outside kLeast and kMost cap is as good as 0 or infinity to any x. From kHigh on tanh is 1 and
// its derivative 0.
FASTACT_HD double power_below(double x) {  // the largest power of two up to a normal number
  return bit_cast<double>(bit_cast<uint64_t>(x) & (uint64_t(2047) << 52));
}

template <class T>
struct SoftCapTraits;
template <>
struct SoftCapTraits<float> {
  static constexpr double kLeast = 0x1p-160, kMost = 0x1p160;
  static constexpr float kLinear = 0x1p-13f, kHigh = 64;
};
template <>
struct SoftCapTraits<double> {
  static constexpr double kLeast = 0x1p-1074, kMost = kMostDouble;
  static constexpr double kLinear = 0x1p-27, kHigh = 512;
};

template <class T, bool approximate = false>
struct SoftCap {
  using C = SoftCapTraits<T>;
  T power, inverse_power, rest, inverse, inverse_low;
  FASTACT_HD explicit SoftCap(const double* p)
      : SoftCap(no_more(no_less(p[0], C::kLeast), C::kMost)) {}
  FASTACT_HD explicit SoftCap(double cap) : SoftCap(cap, power_below(__builtin_sqrt(cap))) {}
  FASTACT_HD SoftCap(double cap, double root)
      : power(T(root)),
        inverse_power(T(1 / root)),
        rest(T(cap / root)),
        inverse(T(root / cap)),
        inverse_low(T(root / cap - double(inverse))) {}

  // |x| / cap, as rounded, and what the roundings lost.
  struct Quotient {
    T high, low;
  };
  FASTACT_HD Quotient over_cap(T x) const {
    const T m = no_more(magnitude(x) * inverse_power, C::kHigh * rest);
    const T high = m * inverse;
    if constexpr (approximate) return {high, T(0)};
    return {high, madd(m, inverse_low, product_rest(m, inverse, high))};
  }

  FASTACT_HD T forward(T x) const {
    const Quotient p = over_cap(x);
    T t;
    if constexpr (approximate) {
      t = tanh_approximate(p.high);
    } else {
      t = p.high < T(1) ? tanh_near(p.high) : tanh_of_magnitude(p.high);
      t = madd(p.low, madd(-t, t, T(1)), t);
    }
    return p.high >= C::kLinear ? with_sign(t * rest * power, x) : x;  // also where x is NaN
  }
  // Tanh's, with what the roundings lost put into e = e^(-2 p).
  FASTACT_HD T derivative(T x) const {
    const Quotient p = over_cap(x);
    if constexpr (approximate) return unless_nan(x, sigmoid_slope_of<4, true>(T(2) * p.high));
    const T of_high = exp_or_zero(T(-2) * p.high);
    const T e = madd(T(-2) * p.low, of_high, of_high), d = T(1) + e;
    return unless_nan(x, divide(T(4) * e, d * d));
  }
  FASTACT_HD T second(T x) const {
    const T p = over_cap(x).high;
    return unless_nan(x,
                      with_sign(T(8) * sigmoid_curve_of(T(2) * p) * inverse_power * inverse, -x));
  }
};

// tanhshrink(x) = x - tanh(x)
//
// Derivative: tanh(x)^2. Second: minus tanh's.
//
// Near 0 it is x^3/3 and the difference cancels: for m < 1, m^3 (1/3 + q(m^2)). From there on
//     m - (1 - e) / (1 + e) = (m - 1) + 2 e / (1 + e),
// a sum of positive numbers. A square doubles the relative error of its base: with n = expm1(2 m),
// the derivative is n^2 / (n + 2)^2.
template <class T, bool approximate = false>
struct TanhShrink {
  FASTACT_HD explicit TanhShrink(const double*) {}
  FASTACT_HD T forward(T x) const {
    const T m = magnitude(x);
    const T z = m * m;
    const T cube = z * m;
    const T near = madd(cube, T(1. / 3), cube * tanhshrink_quotient(z));
    const T e = exp_of_minus_twice<approximate>(m);
    const T far = (m - T(1)) + divide<approximate>(T(2) * e, T(1) + e);
    return with_sign(m < T(1) ? near : far, x);
  }
  FASTACT_HD T derivative(T x) const {
    if constexpr (approximate) {
      const T t = tanh_approximate(x);
      return t * t;
    }
    const T n = expm1_of_twice(magnitude(x));
    return divide(n * n, madd(n, n, madd(T(4), n, T(4))));  // (n + 2)^2, with n + 2 not rounded
  }
  FASTACT_HD T second(T x) const { return -Tanh<T, approximate>(nullptr).second(x); }
};

// lisht(x) = x tanh(x)                                       Roy et al., arXiv:1901.05894
//
// Derivative: tanh(x) + x (1 - tanh(x)^2). With e = e^(-2 m) and d = 1 + e, up to the sign of x,
//     (1 - e)/d + 4 m e/d^2 = ((1 - e) d + 4 m e) / d^2,
// where 1 - e = -expm1(-2 m). Second: as x tanh(x) is silu(2 x) - x, 4 times silu's of 2 x.
//
// Forward, with n = expm1(-2 m): tanh is -n / (n + 2), and from 1/2 on 1 - 2 e / (n + 2). tanh's
// own formula and the multiplication were off by 3.14 ULP without FMA. The sign of the quotient
// tells which it was: asked of n twice, GCC makes two divisions.
template <class T, bool approximate = false>
struct Lisht {
  FASTACT_HD explicit Lisht(const double*) {}
  FASTACT_HD T forward(T x) const {
    const T m = magnitude(x);
    if constexpr (approximate) return m * tanh_approximate(m);
    return m * (m < T(0.5) ? tanh_near(m) : tanh_of_magnitude(m));
  }
  FASTACT_HD T derivative(T x) const {
    const T m = at_most(magnitude(x), T(40));
    const Exp<T> exp = exp_scaled<0>(T(-2) * m);
    const T e = exp.value();
    const T d = T(1) + e;
    const T y = divide<approximate>(madd(T(4) * m, e, -exp.minus_one() * d), d * d);
    return unless_nan(x, with_sign(y, x));
  }
  FASTACT_HD T second(T x) const { return unless_nan(x, T(4) * silu_curve_of(T(2) * x)); }
};

// logcosh(x) = log(cosh(x)) = m + log1p(e^(-2 m)) - log(2)
//
// Derivative: tanh(x). Second: tanh's.
//
// Near 0 it is x^2/2 and the difference cancels: for m < 1, m^2 q(m^2). From there on log(2) is
// taken from m exactly, and its low part goes with the logarithm.
template <class T, bool approximate = false>
struct LogCosh {
  static constexpr T kLn2 = sizeof(T) == sizeof(float) ? T(0x1.62e43p-1f) : T(0x1.62e42fefa39efp-1);
  static constexpr T kLn2Rest =
      sizeof(T) == sizeof(float) ? T(-0x1.05c61p-29f) : T(0x1.abc9e3b39803fp-56);
  FASTACT_HD explicit LogCosh(const double*) {}
  FASTACT_HD T forward(T x) const {
    const T m = magnitude(x);
    const T z = m * m;
    const T near = z * logcosh_quotient(z);
    const T e = exp_of_minus_twice<approximate>(m);
    const T far = (m - kLn2) + (madd(e * log1p_low_quotient(e), e, e) - kLn2Rest);
    return m < T(1) ? near : far;
  }
  FASTACT_HD T derivative(T x) const { return Tanh<T, approximate>(nullptr).forward(x); }
  FASTACT_HD T second(T x) const { return Tanh<T>(nullptr).derivative(x); }
};

// The functors that list.h takes. X(name, Struct): the name is the op's in Python.
#define FASTACT_TANHS(X)    \
  X(tanh, Tanh)             \
  X(softcap, SoftCap)       \
  X(tanhshrink, TanhShrink) \
  X(lisht, Lisht)           \
  X(logcosh, LogCosh)

FASTACT_END_NAMESPACE
