// The exponential linear units: a line above zero, an exponential that levels off below; and xielu,
// the integral of one.
#pragma once

#include <cmath>

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE

// rise x for x >= 0, fall expm1(inner x) below: what elu, selu and celu have in common.
//
// Derivative: rise for x > 0, fall inner exp(inner x) below and, as in torch, at zero. The second:
// 0 for x > 0, else fall inner^2 exp(inner x).
//
// inner x is above zero where celu is given a negative alpha, as torch allows: both ends are
// clamped, and overflow is left to the last multiplication. In the forward pass that is the one by
// 2 fall, after an exponential of half the size; in the derivative, exp(inner x) is the square of
// exp(inner x / 2).
template <class T>
struct EluTraits;
template <>
struct EluTraits<float> {
  static constexpr float kLow = -30, kHigh = 89, kLowest = -105, kTiny = 0x1p-30f;
};
template <>
struct EluTraits<double> {
  static constexpr double kLow = -60, kHigh = 710, kLowest = -750, kTiny = 0x1p-60;
};

template <class T, bool approximate, int scale = 0>
struct ExponentialUnit {
  using C = EluTraits<T>;
  T rise, fall, inner, slope, curve, half_inner;
  FASTACT_HD ExponentialUnit(double above, double below, double in)
      : rise(T(above)),
        fall(T(scale == 0 ? below : 2 * below)),
        inner(T(in)),
        slope(T(below * in)),
        curve(T(below * in * in)),
        half_inner(T(0.5 * in)) {}

  FASTACT_HD T forward(T x) const {
    T v = at_least(inner * x, C::kLow);
    if constexpr (scale != 0) v = at_most(v, C::kHigh);
    const Exp<T> exp = exp_scaled<scale>(v);
    T y = fall * madd(exp.s, exp.t, exp.s - (scale == 0 ? T(1) : T(0.5)));
    if constexpr (scale != 0) {
      y = magnitude(v) < C::kTiny ? x : y;  // x / alpha may lose its bits
      // For an alpha below 1 the product would be finite a little longer than the exponential.
      y = inner * x > C::kHigh ? fall * T(INFINITY) : y;
    }
    return x < T(0) ? y : rise * x;  // NaN goes to the right
  }

  FASTACT_HD T derivative(T x) const { return piece(x, rise, slope); }
  FASTACT_HD T second(T x) const { return piece(x, T(0), curve); }

  // `above` for x > 0, else below exp(inner x).
  FASTACT_HD T piece(T x, T above, T below) const {
    const T v = clamped(half_inner * x, C::kLowest / 2, C::kHigh / 2);
    const T e = exponential<0, approximate>(v);
    return unless_nan(x, x > T(0) ? above : below * e * e);
  }
};

// elu(x) = x for x > 0, else alpha expm1(x)             Clevert et al., arXiv:1511.07289
template <class T, bool approximate = false>
struct Elu : ExponentialUnit<T, approximate> {
  FASTACT_HD explicit Elu(const double* p) : ExponentialUnit<T, approximate>(1, p[0], 1) {}
};

// selu(x) = scale elu(x, alpha), with constants that make mean 0 and variance 1 a fixed point
//                                                       Klambauer et al., arXiv:1706.02515
template <class T, bool approximate = false>
struct Selu : ExponentialUnit<T, approximate> {
  static constexpr double kScale = 1.0507009873554804934193349852946;
  static constexpr double kAlpha = 1.6732632423543772848170429916717;
  FASTACT_HD explicit Selu(const double*)
      : ExponentialUnit<T, approximate>(kScale, kScale * kAlpha, 1) {}
};

// celu(x) = x for x > 0, else alpha expm1(x / alpha)      Barron, arXiv:1704.07483
//
// Parameter alpha, not zero. Below zero, y is infinite as soon as exp(x / alpha) is.
template <class T, bool approximate = false>
struct Celu : ExponentialUnit<T, approximate, -1> {
  FASTACT_HD explicit Celu(const double* p)
      : ExponentialUnit<T, approximate, -1>(1, p[0], 1 / p[0]) {}
};

// xielu(x) = x (alpha_p x + beta) for x > 0, else alpha_n (expm1(min(x, eps)) - x) + beta x
//                                                       Huang and Schlag, arXiv:2411.13010
//
// Parameters alpha_p > 0, alpha_n >= beta > 0; eps = -1e-6. Derivative: 2 alpha_p x + beta, below
// eps alpha_n expm1(x) + beta, and between eps and 0 beta - alpha_n. Second: 2 alpha_p,
// alpha_n exp(x) and 0.
//
// Below zero the terms of x are one, so that large ones do not cancel. Both the value and the
// derivative have a root there.
template <class T, bool approximate = false>
struct Xielu {
  using C = EluTraits<T>;
  static constexpr T kEps = T(-1e-6);
  T curve, fall, beta, level, lowest;
  FASTACT_HD explicit Xielu(const double* p)
      : curve(T(p[0])),
        fall(T(p[1])),
        beta(T(p[2])),
        level(T(p[2] - p[1])),
        lowest(level == T(0) ? C::kLowest : -T(INFINITY)) {}

  static FASTACT_HD T expm1_of(T x) {
    return exp_scaled<0>(at_least(no_more(x, kEps), C::kLow)).minus_one();
  }
  FASTACT_HD T forward(T x) const {
    const T below = madd(fall, expm1_of(x), level * no_less(x, lowest));
    return x > T(0) ? x * madd(curve, x, beta) : below;  // NaN goes to the left
  }
  FASTACT_HD T derivative(T x) const {
    const T below = x < kEps ? madd(fall, expm1_of(x), beta) : level;
    return unless_nan(x, x > T(0) ? madd(T(2) * curve, x, beta) : below);
  }
  FASTACT_HD T second(T x) const {
    const T below = x < kEps ? fall * exp_or_zero(no_more(x, kEps)) : T(0);
    return unless_nan(x, x > T(0) ? T(2) * curve : below);
  }
};

// The functors that list.h takes. X(name, Struct): the name is the op's in Python.
#define FASTACT_EXPONENTIAL_UNITS(X) \
  X(elu, Elu)                        \
  X(selu, Selu)                      \
  X(celu, Celu)                      \
  X(xielu, Xielu)

FASTACT_END_NAMESPACE
