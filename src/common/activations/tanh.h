// The hyperbolic tangent and what is made of it: tanhshrink, lisht, logcosh.
//
// All of them are odd or even: they are computed of m = |x|, by exp(-2 m), which does not overflow.
#pragma once

#include "common/math/elementary.h"

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

// tanh(m) for 0 <= m < 1/2, within 1 ULP: m - m^3 (1/3 + q(m^2)).
template <class T>
FASTACT_HD T tanh_near(T m) {
  const T z = m * m;
  return madd(-(z * m), T(1. / 3) + tanhshrink_quotient(z), m);
}

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

// What list.h has of this file. X(name, Struct): the name is the op's in Python.
#define FASTACT_TANHS(X)    \
  X(tanh, Tanh)             \
  X(tanhshrink, TanhShrink) \
  X(lisht, Lisht)           \
  X(logcosh, LogCosh)

FASTACT_END_NAMESPACE
