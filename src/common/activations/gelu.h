// Gelu, and its approximation by tanh.                  Hendrycks and Gimpel, arXiv:1606.08415
#pragma once

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE

// gelu(x) = x Phi(x), Phi the standard normal distribution
//
// With t = |x| and the tail q = 1 - Phi(t), it is max(x, 0) - t q for both signs: where x > 0 the
// difference is at least x/2, and for x < 0 there is none. From kNormalNear on
//     t q = exp(-t^2/2) p(z),  z = (t - 19/16) / (t + 3),
// p a polynomial. For smaller t, which t + 3 leaves too little of, gelu(x) = x (1/2 + x p(x^2)).
//
// Derivative: with e = exp(-t^2/2), q = e g and the density c e, c = 1/sqrt(2 pi), it is
// Phi(x) + c x e, which is
//     e (g - c t) for x <= 0, and 1 - e (g - c t) for x > 0.
// It has a root near -0.752, so that errors count absolutely: with d = t + kSlopeShift, g - c t is
// d p(t / d). The second derivative is c e (2 - x^2).
//
// e is computed times 2^kScale, so that t q keeps its bits after e has lost them; the coefficients
// of p take the factor out again. Of e = s (1 + r) the power s scales p + p r exactly: for x < 0
// that sum is the last rounding.
//
// Error over all floats from 2^-12 on, and every 16th from 2^-30 to there: forward 2.45 ULP (2.89
// without FMA); derivative 0.87 (0.90) of the bound of 4 ULP or 1.2e-7 absolute. float64, of 2 10^6
// numbers: 2.5 (2.6) and 0.86.
//
// Other forms that were tried: docs/design/activations.md.
template <class T>
struct GeluTraits;
template <>
struct GeluTraits<float> {
  static constexpr int kScale = 40;
  static constexpr float kEnd = 15, kDown = 0x1p-40f;
  static constexpr float kSlopeEnd = 13.27f;  // where exp is zero: k is minus its bias
};
template <>
struct GeluTraits<double> {
  static constexpr int kScale = 128;
  static constexpr double kEnd = 39.5, kDown = 0x1p-128;
  static constexpr double kSlopeEnd = 37.66;
};

template <class T, bool approximate = false>
struct Gelu {
  using C = GeluTraits<T>;
  static constexpr T kDensity = T(0.39894228040143267794);
  static constexpr T kHalfLog2E = T(-0.72134752044448170368);
  FASTACT_HD explicit Gelu(const double*) {}

  FASTACT_HD T forward(T x) const {
    const T t = at_most(magnitude(x), C::kEnd);
    // -0: the zero left far on the left is negative.
    if constexpr (approximate) {
      const T w = reciprocal_estimate(madd(t, T(0.3), T(1)));
      const T e = power_of_two_estimate(madd(t * t, kHalfLog2E, T(C::kScale)));
      return madd(t * w * e * normal_tail_of(w), -C::kDown, held_above(x, T(-0.0)));
    }
    const T positive = no_less(x, T(-0.0));
    const Exp<T> exp = exp_of_half_square<C::kScale>(t);  // times 2^kScale
    const T p = normal_far(divide(t - kNormalMiddle<T>, t + kNormalShift<T>), C::kDown);
    const T far = madd(-exp.s, madd(p, exp.t, p), positive);
    const T near = x * madd(x, normal_near(t * t), T(0.5));
    return t < kNormalNear<T> ? near : far;
  }

  FASTACT_HD T derivative(T x) const {
    if constexpr (approximate) {
      const T t = held_below(magnitude(x), C::kEnd);
      const T w = reciprocal_estimate(madd(t, T(0.3), T(1)));
      const T e = power_of_two_estimate(madd(t * t, kHalfLog2E, T(C::kScale)));
      const T y = madd(t, -kDensity, w * normal_tail_of(w)) * e;
      return x > T(0) ? madd(y, -C::kDown, T(1)) : y * C::kDown;
    }
    const T t = at_most(magnitude(x), C::kSlopeEnd);
    const T shifted = t + kSlopeShift<T>;
    const T y = shifted * normal_slope(divide(t, shifted)) * exp_of_half_square<0>(t).value();
    return unless_nan(x, x > T(0) ? T(1) - y : y);
  }

  FASTACT_HD T second(T x) const {
    const T t = at_most(magnitude(x), C::kSlopeEnd);
    return unless_nan(x, madd(-t, t, T(2)) * (kDensity * exp_of_half_square<0>(t).value()));
  }
};

// gelu(x, "tanh") = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(p),
// p = x (a + b x^2), a = 2 sqrt(2/pi), b = 0.044715 a
//
// Derivative: as for silu, with m = |x|, e = e^-p(m), d = 1 + e and p' = a + 3 b m^2,
//     (d + m p' e) / d^2 for x > 0, and e (d - m p') / d^2 below.
// The second derivative is even: e / d^2 (2 p' + m p'' - m p'^2 (1 - e) / d), p'' = 6 b m.
//
// Far on the left an error of p makes an error of the result p times as large. p is therefore
// carried with the rest that its rounding leaves: a is split so that a_high minus the rounded
// factor is exact.
template <class T>
struct GeluTanhTraits;
template <>
struct GeluTanhTraits<float> {
  static constexpr int kScale = 60;
  static constexpr float kLow = -11.4f, kHigh = 5.5f, kDown = 0x1p-60f;
  static constexpr float kA = 0x1.988p0f, kALow = 0x1.14cf5p-14f;
  static constexpr float kB = 0x1.2444f2p-4f, kBLow = 0x1.49b16ap-29f;
};
template <>
struct GeluTanhTraits<double> {
  static constexpr int kScale = 256;
  static constexpr double kLow = -22.2, kHigh = 7.2, kDown = 0x1p-256;
  static constexpr double kA = 0x1.9884530p0, kALow = 0x1.ea1b284687e5ap-27;
  static constexpr double kB = 0x1.2444f2a4d8b4bp-4, kBLow = -0x1.6c843a29d1c70p-61;
};

template <class T, bool approximate = false>
struct GeluTanh {
  using C = GeluTanhTraits<T>;
  FASTACT_HD explicit GeluTanh(const double*) {}

  // -p / x log2(e), roughly.
  static FASTACT_HD T exponent_over(T square) {
    constexpr T unit = -ExpTraits<T>::kLog2E;
    return madd(square, unit * C::kB, unit * (C::kA + C::kALow));
  }

  FASTACT_HD T forward(T x) const {
    if constexpr (approximate) {
      const T xc = held_above(x, C::kLow);
      return xc * sigmoid_approximate(xc, exponent_over(xc * xc));
    }
    const T xc = at_least(x, C::kLow);  // above kHigh y is not used
    const T square = xc * xc;
    const T factor = madd(square, C::kB, C::kA);
    const T p = xc * factor;
    const T bs = square * C::kB;
    const T low = madd(product_rest(xc, xc, square), C::kB, madd(square, C::kBLow, C::kALow)) +
                  product_rest(square, C::kB, bs);
    const T rest = madd(xc, ((C::kA - factor) + bs) + low, product_rest(xc, factor, p));
    const T y = silu_of(xc, exp_split<C::kScale>(p, rest), C::kDown) * C::kDown;
    return !(x <= C::kHigh) ? x : y;  // also where x is NaN
  }

  FASTACT_HD T derivative(T x) const {
    if constexpr (approximate) {
      const T xc = held_below(held_above(x, C::kLow), C::kHigh);
      const T square = xc * xc;
      const T s = sigmoid_approximate(xc, exponent_over(square));
      return slope_approximate(s, xc * madd(square, T(3) * C::kB, C::kA + C::kALow));
    }
    const T m = at_most(magnitude(x), -C::kLow);
    const T square = m * m;
    const T e = exp_or_zero(-(m * madd(square, C::kB, C::kA + C::kALow)));
    const T m_slope = m * madd(square, T(3) * C::kB, C::kA + C::kALow);
    return unless_nan(x, slope_of_product(x, e, m_slope));
  }

  FASTACT_HD T second(T x) const {
    const T m = at_most(magnitude(x), -C::kLow);
    const T square = m * m;
    const T e = exp_or_zero(-(m * madd(square, C::kB, C::kA + C::kALow)));
    const T r = divide(T(1), T(1) + e);
    const T slope = madd(square, T(3) * C::kB, C::kA + C::kALow);
    const T bend = madd(square, T(6) * C::kB, T(2) * slope);
    return unless_nan(x, madd(-(m * slope * slope), (T(1) - e) * r, bend) * (e * r * r));
  }
};

// The functors that list.h takes. X(name, Struct): the name is the op's in Python.
#define FASTACT_GELUS(X) \
  X(gelu, Gelu)          \
  X(gelu_tanh, GeluTanh)

FASTACT_END_NAMESPACE
