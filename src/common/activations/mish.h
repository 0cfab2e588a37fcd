// Mish.
#pragma once

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE

// mish(x) = x tanh(softplus(x)) = x tanh(log(1 + e^x))             Misra, arXiv:1908.08681
//
// One exponential and one division, no logarithm and no tanh. With e = exp(x) and
// h = e (e + 2) / 2,
//     tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) = h / (h + 1).
//
// Derivative: with d = 1 + h and dh/dx = e (e + 1),
//     mish'(x) = h/d + x e (e + 1) / d^2 = (h d + x e (e + 1)) / d^2.
// Second: with h' = e (e + 1), h'' = e (2 e + 1) and q = h'/d it is
//     mish''(x) = (2 h' + x (h'' - 2 h' q)) / d^2,
// which above kHigh is less than u.
//
// Both ends. Above kHigh, h / d is 1 to the last bit: mish(x) = x and mish'(x) = 1. Below, mish(x)
// ~ x e^x stays representable long after e^x has lost its bits: the exponential is computed times
// 2^kScale, and the factor is taken out at the very last multiplication. Below kLow the result
// rounds to -0.
//
// Error over all 2^32 floats: forward 2.88 ULP (2.95 without FMA); derivative 0.99 (0.998) of the
// bound of 4 ULP or 1.2e-7 absolute. It has a root near -1.1925, where relative error means
// nothing.
//
// Four roundings make up the forward's error: h, d, the quotient, the product. For d < 1.5 the
// quotient is written h - h (h/d): the errors of d and of the division then count only h-fold,
// which takes the negative side from 3.2 to 2.1 ULP.
//
// Other forms that were tried: docs/design/activations.md.
template <class T>
struct MishTraits;
template <>
struct MishTraits<float> {
  static constexpr int kScale = 40;
  static constexpr float kLow = -110, kHigh = 12;
  static constexpr float kDown = 0x1p-40f, kHalfDown = 0x1p-41f;
};
template <>
struct MishTraits<double> {
  static constexpr int kScale = 128;
  static constexpr double kLow = -760, kHigh = 24;
  static constexpr double kDown = 0x1p-128, kHalfDown = 0x1p-129;
};

template <class T, bool approximate = false>
struct Mish {
  using C = MishTraits<T>;
  FASTACT_HD explicit Mish(const double*) {}

  FASTACT_HD T forward(T x) const {
    const T xc = at_least(x, C::kLow);  // above kHigh y is not used
    if constexpr (approximate) {
      const T e = exp_approximate<C::kScale>(xc);
      const T h = madd(e, e * C::kHalfDown, e);
      const T y = xc * divide<true>(h, h + 1 / C::kDown);
      return !(x <= C::kHigh) ? x : y;
    }
    const Exp<T> exp = exp_scaled<C::kScale>(xc);  // times 2^scale, as are e and h
    const T e = exp.value();
    const T rest = madd(exp.t, exp.s, e * (e * C::kHalfDown));  // h - s
    const T h = rest + exp.s;
    const T d = madd(h, C::kDown, T(1));
    const T quotient = divide(h, d);
    const T small = madd(-quotient, h * C::kDown, rest) + exp.s;  // h - h (h/d)
    const T y = (xc * (d < T(1.5) ? small : quotient)) * C::kDown;
    return !(x <= C::kHigh) ? x : y;  // also where x is NaN
  }

  FASTACT_HD T derivative(T x) const {
    if constexpr (approximate) {
      const T xc = held_above(held_below(x, C::kHigh), C::kLow);
      const T e = exp_approximate<C::kScale>(xc);
      const T h = madd(e, e * C::kHalfDown, e);
      const T r = divide<true>(T(1), madd(h, C::kDown, T(1)));  // 1/d
      const T slope = madd(e, e * C::kDown, e);
      return madd(xc * C::kDown, slope * r, h * C::kDown) * r;  // h/d + x slope/d^2
    }
    const T xc = clamped(x, C::kLow, C::kHigh);
    const Exp<T> exp = exp_scaled<C::kScale>(xc);
    const T e = exp.value();
    const T h = madd(exp.t, exp.s, e * (e * C::kHalfDown)) + exp.s;
    const T d = madd(h, C::kDown, T(1));
    const T slope = madd(e, e * C::kDown, e);  // dh/dx
    const T y = divide(madd(xc, slope, h * d), d * d) * C::kDown;
    return x != x ? x : y;
  }

  FASTACT_HD T second(T x) const {
    const T xc = at_most(x, C::kHigh);
    const T e = exp_or_zero(xc);
    const T r = divide(T(1), madd(e, madd(e, T(0.5), T(1)), T(1)));  // 1/d
    const T slope = madd(e, e, e);                                   // h'
    const T bend = madd(slope * r, T(-2) * slope, madd(T(2) * e, e, e));
    const T y = madd(at_least(xc, kExpZero<T>), bend, T(2) * slope) * r * r;
    return unless_nan(x, x > C::kHigh ? T(0) : y);
  }
};

// The functors that list.h takes. X(name, Struct): the name is the op's in Python.
#define FASTACT_MISHES(X) X(mish, Mish)

FASTACT_END_NAMESPACE
