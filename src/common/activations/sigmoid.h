// The logistic sigmoid and what is made of it: silu, quick_gelu, softplus, logsigmoid.
#pragma once

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE

// sigmoid(x) = 1 / (1 + e^-x)
//
// Derivative: sigmoid(x) sigmoid(-x) = e / (1 + e)^2 with e = e^-|x|; of y, y (1 - y) = y - y^2,
// whose derivative by y is 1 - 2 y. Second: sigmoid_curve_of.
template <class T, bool approximate = false>
struct Sigmoid {
  FASTACT_HD explicit Sigmoid(const double*) {}
  FASTACT_HD T forward(T x) const {
    if constexpr (approximate) return sigmoid_approximate(x);
    return unless_nan(x, sigmoid_of(x));
  }
  FASTACT_HD T derivative(T x) const { return unless_nan(x, sigmoid_slope_of<1, approximate>(x)); }
  FASTACT_HD T derivative_by_value(T y) const { return madd(-y, y, y); }
  FASTACT_HD T second(T x) const { return unless_nan(x, sigmoid_curve_of(x)); }
  FASTACT_HD T second_by_value(T y) const { return madd(T(-2), y, T(1)); }
};

// silu(x) = x sigmoid(x) = x e / (1 + e), e = e^x               Hendrycks and Gimpel 2016
//
// Derivative: with s = sigmoid(x) and s' = s (1 - s) it is s + x s'. With m = |x|, e = e^-m and
// d = 1 + e, that is
//     (d + m e) / d^2 for x > 0, and e (d - m) / d^2 below.
// It has a root near -1.278. (By e^x for both signs: one ULP more.) Second: silu_curve_of.
//
// As for mish, x e^x outlives e^x on the left, and on the right the quotient is 1.
template <class T, bool approximate = false>
struct Silu {
  using C = Tail<T>;
  FASTACT_HD explicit Silu(const double*) {}

  FASTACT_HD T forward(T x) const {
    if constexpr (approximate) {
      const T xc = held_above(x, C::kLow);
      return xc * sigmoid_approximate(xc);
    }
    const T xc = at_least(x, C::kLow);  // above kHigh y is not used
    const T y = silu_of(xc, exp_scaled<C::kScale>(xc), C::kDown) * C::kDown;
    return !(x <= C::kHigh) ? x : y;  // also where x is NaN
  }

  FASTACT_HD T derivative(T x) const {
    if constexpr (approximate) {
      const T xc = held_below(held_above(x, C::kLow), -C::kLow);
      return slope_approximate(sigmoid_approximate(xc), xc);
    }
    const T m = at_most(magnitude(x), -kExpZero<T>);
    return unless_nan(x, slope_of_product(x, exp_or_zero(-m), m));
  }
  FASTACT_HD T second(T x) const { return unless_nan(x, silu_curve_of(x)); }
  // The value, and the derivative OUT: of 16-bit data on a GPU both by one sigmoid, which is 1 from
  // -kLow on.
  FASTACT_HD T forward(T x, T& slope) const {
    if constexpr (approximate) {
      const T low = held_above(x, C::kLow), xc = held_below(low, -C::kLow);
      const T s = sigmoid_approximate(xc);
      slope = slope_approximate(s, xc);
      return low * s;
    }
    slope = derivative(x);
    return forward(x);
  }
};

// quick_gelu(x) = x sigmoid(alpha x), parameter alpha > 0        Hendrycks and Gimpel 2016
// Derivative: silu's at alpha x. Second: alpha times silu's.
//
// With p = alpha x it is silu's quotient, of x and e^p. An error of p would make an error of the
// result |p| times as large: p is carried with the rest that its rounding leaves, and with what
// alpha's own rounding to T has lost. x e^p outlives e^p the longer the smaller alpha is: the scale
// is larger than silu's, and x is held where p is kLow, which leaves zero for any alpha above 1e-8.
template <class T>
struct QuickGeluTraits;
template <>
struct QuickGeluTraits<float> {
  static constexpr int kScale = 60;
  static constexpr float kLow = -128, kHigh = 20, kDown = 0x1p-60f, kLargest = 0x1p127f;
};
template <>
struct QuickGeluTraits<double> {
  static constexpr int kScale = 200;
  static constexpr double kLow = -845, kHigh = 40, kDown = 0x1p-200, kLargest = 0x1p1023;
};

template <class T, bool approximate = false>
struct QuickGelu {
  using C = QuickGeluTraits<T>;
  T alpha, alpha_low, lowest, highest;
  FASTACT_HD explicit QuickGelu(const double* p)
      : alpha(T(p[0])),
        alpha_low(T(p[0] - double(alpha))),
        lowest(-reach(-C::kLow, p[0])),
        highest(reach(C::kHigh, p[0])) {}

  // The x at which alpha x is p, or the largest number.
  static FASTACT_HD T reach(double p, double alpha) {
    return p >= alpha * double(C::kLargest) ? C::kLargest : T(p / alpha);
  }

  FASTACT_HD T forward(T x) const {
    const T xc = at_least(x, lowest);  // above `highest` y is not used
    const T p = alpha * xc;
    T y;
    if constexpr (approximate)
      y = silu_approximate(xc, exp_approximate<C::kScale>(p), C::kDown) * C::kDown;
    else
      y = silu_of(xc, exp_split<C::kScale>(p, madd(alpha_low, xc, product_rest(alpha, xc, p))),
                  C::kDown) *
          C::kDown;
    return !(x <= highest) ? x : y;  // also where x is NaN
  }

  FASTACT_HD T derivative(T x) const { return Silu<T, approximate>(nullptr).derivative(alpha * x); }
  FASTACT_HD T second(T x) const { return alpha * Silu<T, approximate>(nullptr).second(alpha * x); }
};

// softplus(x) = log(1 + e^(beta x)) / beta, parameter beta > 0        Dugas et al. 2001
//
// Derivative: sigmoid(beta x). Second: beta times sigmoid's derivative at beta x.
//
// With m = |x|, it is max(x, 0) + log1p(e^(-beta m)) / beta: nothing overflows and nothing
// cancels. beta m is not rounded on its way into the exponential, which would magnify the error
// as far as the tail goes.
template <class T, bool approximate = false>
struct Softplus {
  using C = Tail<T>;
  T beta, inverse, furthest;
  FASTACT_HD explicit Softplus(const double* p)
      : beta(T(p[0])), inverse(T(1 / p[0])), furthest(reach(p[0])) {}

  // |x| from which e^(-beta |x|) is zero, or the largest number.
  static FASTACT_HD T reach(double beta) {
    const double largest = sizeof(T) == sizeof(float) ? 0x1p127 : 0x1p1023;
    return -C::kLow >= beta * largest ? T(largest) : T(-C::kLow / beta);
  }

  FASTACT_HD T forward(T x) const {
    const T m = at_most(magnitude(x), furthest);
    const T p = -beta * m;
    T e;
    if constexpr (approximate)
      e = exp_approximate<C::kScale>(p) * C::kDown;
    else
      e = exp_split<C::kScale>(p, product_rest(-beta, m, p)).value() * C::kDown;
    return madd(log1p_of_unit(e), inverse, no_less(x, T(0)));
  }

  FASTACT_HD T derivative(T x) const {
    return unless_nan(x, sigmoid_or_zero<approximate>(beta * x));
  }
  FASTACT_HD T second(T x) const { return unless_nan(x, beta * sigmoid_slope_of(beta * x)); }
};

// logsigmoid(x) = log(sigmoid(x)) = -softplus(-x)
//
// Derivative: 1 - sigmoid(x) = sigmoid(-x). Second: minus sigmoid's derivative.
template <class T, bool approximate = false>
struct LogSigmoid {
  using C = Tail<T>;
  FASTACT_HD explicit LogSigmoid(const double*) {}
  FASTACT_HD T forward(T x) const {
    const T p = at_least(-magnitude(x), C::kLow);
    T e;
    if constexpr (approximate)
      e = exp_approximate<C::kScale>(p) * C::kDown;
    else
      e = exp_split<C::kScale>(p).value() * C::kDown;
    return no_more(x, T(-0.0)) - log1p_of_unit(e);
  }
  FASTACT_HD T derivative(T x) const { return unless_nan(x, sigmoid_or_zero<approximate>(-x)); }
  FASTACT_HD T second(T x) const { return unless_nan(x, -sigmoid_slope_of(x)); }
};

// The functors that list.h takes. X(name, Struct): the name is the op's in Python.
#define FASTACT_SIGMOIDS(X) \
  X(sigmoid, Sigmoid)       \
  X(silu, Silu)             \
  X(quick_gelu, QuickGelu)  \
  X(softplus, Softplus)     \
  X(logsigmoid, LogSigmoid)

FASTACT_END_NAMESPACE
