// Storage types, and how each is converted to the type in which it is computed (widen) and back
// (narrow).
//
//   storage   bits   computed in
//   f16        16    float        IEEE binary16
//   bf16       16    float        the upper half of a binary32
//   float      32    float
//   double     64    double
//
// The 16-bit conversions are integer arithmetic: they vectorise on every instruction set, need no
// hardware support, and do not depend on the flush-to-zero mode of the process. (GCC 12's _Float16
// with F16C converts one element at a time.) A GPU has instructions of its own, which give the same
// bits, NaN payloads aside.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<f16> {
  using type = float;
};
template <>
struct ComputeOf<bf16> {
  using type = float;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

FASTACT_HD float widen(float x) { return x; }
FASTACT_HD double widen(double x) { return x; }

// Exact for every input; a NaN keeps its sign and payload.
FASTACT_HD float widen(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

#if defined(__CUDA_ARCH__)
FASTACT_HD float widen(f16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
#else
// Exact for every input. A subnormal half is 2^-14 + m * 2^-24 less 2^-14, both exact in float.
FASTACT_HD float widen(f16 x) {
  const uint32_t sign = (uint32_t(x.bits) & 0x8000u) << 16;
  const uint32_t magnitude = (uint32_t(x.bits) & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t special = magnitude | 0x7f800000u;
  const float subnormal = bit_cast<float>(magnitude | 0x38800000u) - 0x1p-14f;
  uint32_t bits = magnitude >= 0x0f800000u ? special : normal;
  bits = magnitude < 0x00800000u ? bit_cast<uint32_t>(subnormal) : bits;
  return bit_cast<float>(bits | sign);
}
#endif

template <class T>
FASTACT_HD T narrow(Compute<T> x);

template <>
FASTACT_HD float narrow<float>(float x) {
  return x;
}
template <>
FASTACT_HD double narrow<double>(double x) {
  return x;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
FASTACT_HD bf16 narrow<bf16>(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bf16{bits};
}
#else
// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
template <>
FASTACT_HD bf16 narrow<bf16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return bf16{uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}
#endif

#if defined(__CUDA_ARCH__)
template <>
FASTACT_HD f16 narrow<f16>(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return f16{bits};
}
#else
// Round to nearest, ties to even, overflow to infinity. Below 2^-14 the addition of 0.5 aligns
// the significand so that the float adder itself rounds at the subnormal's last place.
template <>
FASTACT_HD f16 narrow<f16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return f16{uint16_t(half | sign)};
}
#endif

// A double as float, rounded to odd: rounded again, to 16 bits, it is what the double rounds to.
// Its 13 and more spare bits tell the second rounding all that it has to know.
FASTACT_HD float round_to_odd(double x) {
  const float nearest = float(x);
  uint32_t bits = bit_cast<uint32_t>(nearest);
  const double back = nearest;
  if (back != x && x == x) {
    if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) --bits;
    bits |= 1;
  }
  return bit_cast<float>(bits);
}

// A double as storage, rounded once.
template <class T>
FASTACT_HD T narrow_once(double x) {
  return narrow<T>(round_to_odd(x));
}
template <>
FASTACT_HD float narrow_once<float>(double x) {
  return float(x);
}
template <>
FASTACT_HD double narrow_once<double>(double x) {
  return x;
}

FASTACT_END_NAMESPACE
