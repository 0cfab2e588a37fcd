// The activations without a transcendental function: lines, clamps, parabolas and one quotient.
//
// Where the derivative jumps it is what torch's backward kernels give. Those of relu6, hardtanh,
// hardswish and hardmish at both of their corners and of the shrinks at +-lambda take the flat
// side. A NaN gives a NaN in both directions.
#pragma once

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE

// identity(x) = x: what fused ops apply when they are given no activation. It has no op.
template <class T, bool approximate = false>
struct Unchanged {
  FASTACT_HD explicit Unchanged(const double*) {}
  FASTACT_HD T forward(T x) const { return x; }
  FASTACT_HD T derivative(T) const { return T(1); }
};

// relu(x) = max(x, 0)                                      Fukushima 1969; Nair and Hinton 2010
template <class T, bool approximate = false>
struct Relu {
  FASTACT_HD explicit Relu(const double*) {}
  FASTACT_HD T forward(T x) const { return no_less(x, T(0)); }
  FASTACT_HD T derivative(T x) const { return unless_nan(x, x > T(0) ? T(1) : T(0)); }
};

// hardtanh(x) = min(max(x, low), high), parameters low <= high
//
// Derivative: 1 strictly between the limits, else 0.
template <class T, bool approximate = false>
struct HardTanh {
  T low, high;
  FASTACT_HD explicit HardTanh(const double* p) : low(T(p[0])), high(T(p[1])) {}
  FASTACT_HD HardTanh(T from, T to) : low(from), high(to) {}
  FASTACT_HD T forward(T x) const { return no_more(no_less(x, low), high); }
  FASTACT_HD T derivative(T x) const {
    return unless_nan(x, x > low ? (x < high ? T(1) : T(0)) : T(0));
  }
};

// relu6(x) = min(max(x, 0), 6)                                      Krizhevsky 2010, MobileNet
template <class T, bool approximate = false>
struct Relu6 : HardTanh<T> {
  FASTACT_HD explicit Relu6(const double*) : HardTanh<T>(T(0), T(6)) {}
};

// relu2(x) = max(x, 0)^2                                          So et al., arXiv:2109.08668
//
// Derivative: 2 max(x, 0). Second: 2 for x > 0, else 0.
template <class T, bool approximate = false>
struct Relu2 {
  FASTACT_HD explicit Relu2(const double*) {}
  FASTACT_HD T forward(T x) const {
    const T rest = no_less(x, T(0));
    return rest * rest;
  }
  FASTACT_HD T derivative(T x) const { return T(2) * no_less(x, T(0)); }
  FASTACT_HD T second(T x) const { return unless_nan(x, x > T(0) ? T(2) : T(0)); }
};

// leaky_relu(x) = x for x > 0, else slope x                                         Maas 2013
template <class T, bool approximate = false>
struct LeakyRelu {
  T slope;
  FASTACT_HD explicit LeakyRelu(const double* p) : slope(T(p[0])) {}
  FASTACT_HD T forward(T x) const { return x > T(0) ? x : slope * x; }
  FASTACT_HD T derivative(T x) const { return unless_nan(x, x > T(0) ? T(1) : slope); }
};

// hardsigmoid(x) = min(max(x + 3, 0), 6) / 6
//
// Derivative: 1/6 strictly inside (-3, 3), else 0.
//
// x + 3 rather than x/6 + 1/2, which cancels near -3. x + 3, the constant 1/6 and the product each
// have an error.
template <class T, bool approximate = false>
struct HardSigmoid {
  FASTACT_HD explicit HardSigmoid(const double*) {}
  FASTACT_HD T forward(T x) const { return no_more(no_less(x + T(3), T(0)), T(6)) * T(1. / 6); }
  FASTACT_HD T derivative(T x) const {
    return unless_nan(x, magnitude(x) < T(3) ? T(1. / 6) : T(0));
  }
};

// hardswish(x) = x hardsigmoid(x)                                  Howard et al., MobileNetV3
//
// Derivative: (2x + 3) / 6 = x/3 + 1/2 strictly inside (-3, 3); 0 below and 1 above. Its root is
// at -3/2. Second: 1/3 inside, else 0.
//
// From -3 down the factor is 0: x, which may be infinite, is held at -3.
template <class T, bool approximate = false>
struct HardSwish {
  FASTACT_HD explicit HardSwish(const double*) {}
  FASTACT_HD T forward(T x) const {
    return no_less(x, T(-3)) * (between_0_and(T(6), x + T(3)) * T(1. / 6));
  }
  FASTACT_HD T derivative(T x) const {
    const T inside = madd(x, T(1. / 3), T(0.5));
    return unless_nan(x, x > T(-3) ? (x < T(3) ? inside : T(1)) : T(0));
  }
  FASTACT_HD T second(T x) const { return unless_nan(x, magnitude(x) < T(3) ? T(1. / 3) : T(0)); }
};

// hardmish(x) = x/2 min(max(x + 2, 0), 2), a piecewise parabola near Mish
//
// Derivative: x + 1 strictly inside (-2, 0); 0 below and 1 above. Its root is at -1. Second: 1
// inside, else 0.
//
// The factor is min(max(x/2 + 1, 0), 1), so that no bit of a subnormal x is halved away; x/2 is
// exact there. From -2 down it is 0: x, which may be infinite, is held at -2.
template <class T, bool approximate = false>
struct HardMish {
  FASTACT_HD explicit HardMish(const double*) {}
  FASTACT_HD T forward(T x) const {
    return no_less(x, T(-2)) * between_0_and(T(1), madd(x, T(0.5), T(1)));
  }
  FASTACT_HD T derivative(T x) const {
    return unless_nan(x, x > T(-2) ? (x < T(0) ? x + T(1) : T(1)) : T(0));
  }
  FASTACT_HD T second(T x) const {
    return unless_nan(x, x > T(-2) ? (x < T(0) ? T(1) : T(0)) : T(0));
  }
};

// softshrink(x) = x - lambda sign(x) for |x| > lambda, else 0, parameter lambda >= 0
//
// Derivative: 1 for |x| > lambda, else 0. Odd: the zeros inside have the sign of x.
template <class T, bool approximate = false>
struct SoftShrink {
  T lambda;
  FASTACT_HD explicit SoftShrink(const double* p) : lambda(T(p[0])) {}
  FASTACT_HD T forward(T x) const {
    const T rest = magnitude(x) - lambda;
    return with_sign(no_less(rest, T(0)), x);
  }
  FASTACT_HD T derivative(T x) const { return unless_nan(x, magnitude(x) > lambda ? T(1) : T(0)); }
};

// hardshrink(x) = x for |x| > lambda, else 0, with any parameter lambda: below 0 it is x
//
// Derivative: 1 for |x| > lambda, else 0. Odd: the zeros inside have the sign of x.
template <class T, bool approximate = false>
struct HardShrink {
  T lambda;
  FASTACT_HD explicit HardShrink(const double* p) : lambda(T(p[0])) {}
  FASTACT_HD T forward(T x) const { return magnitude(x) <= lambda ? with_sign(T(0), x) : x; }
  FASTACT_HD T derivative(T x) const { return unless_nan(x, magnitude(x) > lambda ? T(1) : T(0)); }
};

// softsign(x) = x / (1 + |x|)                                  Turian, Bergstra and Bengio 2009
//
// Derivative: 1 / (1 + |x|)^2, as the square of a quotient, which does not overflow. Second:
// -2 sign(x) / (1 + |x|)^3; at 0, where it jumps, 0 as torch has it.
//
// |x| is held where 1 + |x| has long been |x|, short of infinity.
template <class T, bool approximate = false>
struct SoftSign {
  static constexpr T kHigh = sizeof(T) == sizeof(float) ? T(0x1p100f) : T(0x1p1000);
  FASTACT_HD explicit SoftSign(const double*) {}
  FASTACT_HD T forward(T x) const {
    const T m = at_most(magnitude(x), kHigh);
    return unless_nan(x, with_sign(divide<approximate>(m, T(1) + m), x));
  }
  FASTACT_HD T derivative(T x) const {
    const T r = divide<approximate>(T(1), T(1) + at_most(magnitude(x), kHigh));
    return unless_nan(x, r * r);
  }
  FASTACT_HD T second(T x) const {
    const T r = divide<approximate>(T(1), T(1) + at_most(magnitude(x), kHigh));
    return x == T(0) ? T(0) : unless_nan(x, with_sign(T(2) * (r * r) * r, -x));
  }
};

// The functors that list.h takes. X(name, Struct): the name is the op's in Python.
#define FASTACT_PIECEWISE(X)  \
  X(identity, Unchanged)      \
  X(relu, Relu)               \
  X(relu6, Relu6)             \
  X(relu2, Relu2)             \
  X(leaky_relu, LeakyRelu)    \
  X(hardsigmoid, HardSigmoid) \
  X(hardtanh, HardTanh)       \
  X(hardswish, HardSwish)     \
  X(hardmish, HardMish)       \
  X(softshrink, SoftShrink)   \
  X(hardshrink, HardShrink)   \
  X(softsign, SoftSign)

FASTACT_END_NAMESPACE
