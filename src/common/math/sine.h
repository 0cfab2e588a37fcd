// The sine and the cosine of a product, for functions that repeat after pi.
//
// The polynomials minimise the worst error of their results, by `python tools/minimax.py sine` and
// `cosine`; the errors named here are theirs with rounded coefficients, before other roundings.
#pragma once

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE

// sine: q(r^2) of sin(r) = r + r^3 q(r^2) for |r| <= pi/2. Error 2^-27.3, 2^-61.6.
FASTACT_HD float sine_rest(float z) {
  return horner(z, -0x1.55554cp-3f, 0x1.110edap-7f, -0x1.9f70eep-13f, 0x1.5dc8c4p-19f);
}
FASTACT_HD double sine_rest(double z) {
  return horner(z, -0x1.5555555555555p-3, 0x1.11111111110c8p-7, -0x1.a01a01a014d6ep-13,
                0x1.71de3a52a0a15p-19, -0x1.ae6454d468275p-26, 0x1.6123cd02d35f7p-33,
                -0x1.ae4382e72c52dp-41, 0x1.8832736d537fap-49);
}

// cosine: q(r^2) of cos(r) = 1 + r^2 q(r^2) for |r| <= pi/2. Absolute error 2^-31.1, 2^-57.7.
FASTACT_HD float cosine_rest(float z) {
  return horner(z, -0x1p-1f, 0x1.55555p-5f, -0x1.6c14b8p-10f, 0x1.9f931cp-16f, -0x1.196acep-22f);
}
FASTACT_HD double cosine_rest(double z) {
  return horner(z, -0x1.ffffffffffffdp-2, 0x1.5555555555413p-5, -0x1.6c16c16c0b51dp-10,
                0x1.a01a0199d98a2p-16, -0x1.27e4f99474aa8p-22, 0x1.1eece5306f7d6p-29,
                -0x1.935205f085024p-37, 0x1.9f4575f0e7e45p-45);
}

// Sine and cosine of u = a b, both times (-1)^k, where k pi is the multiple of pi next to u.
//
// u is exact: of float in double, of double as the sum of u and a rest. k pi is subtracted in two
// parts, the first of them exactly. Up to |u| = 2^44 both have errors of 2^-23 (double: 2^-52), and
// the sine as much of itself where k is 0. From 2^52 on, and of a NaN, u is far.
template <class T>
struct SineAndCosine {
  double u;
  T sine, cosine;
  bool is_far;

  FASTACT_HD SineAndCosine(T a, T b) : u(double(a) * double(b)) {
    constexpr double kMagic = 0x1.8p52, kPi = 0x1.921fb54442d18p1, kPiRest = 0x1.1a62633145c07p-53;
    is_far = !(magnitude(u) < 0x1p52);
    const double k = madd(u, 0x1.45f306dc9c883p-2, kMagic) - kMagic;
    const double turn = k * kPi;
    double rest = madd(-k, kPiRest, (u - turn) - product_rest(k, kPi, turn));
    if constexpr (sizeof(T) == sizeof(double)) rest += product_rest(a, b, u);
    const T r = T(rest), z = r * r;
    sine = madd(r * z, sine_rest(z), r);
    cosine = madd(z, cosine_rest(z), T(1));
  }
  // sin(u) / u, times (-1)^k. Of a small u it is 1, where products and quotients vanish.
  FASTACT_HD T ratio() const {
    const bool is_small = magnitude(u) < (sizeof(T) == sizeof(double) ? 0x1p-28 : 0x1p-13);
    return is_small ? T(1) : divide(sine, is_small ? T(1) : T(u));
  }
};

FASTACT_END_NAMESPACE
