// The few macros that every kernel file shares, on the host and on the device.
//
// Everything in src/common is header-only and knows no Python, no allocation and no threads.
// It is compiled several times: once per CPU instruction set (FASTACT_ISA names it) and once by
// the CUDA compiler. An inline namespace per instruction set keeps the linker from merging, say,
// an AVX-512 copy of an inline function into the baseline, where it would be an illegal
// instruction.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef FASTACT_ISA
#define FASTACT_ISA baseline
#endif

#define FASTACT_BEGIN_NAMESPACE \
  namespace fastact {           \
  inline namespace FASTACT_ISA {
#define FASTACT_END_NAMESPACE \
  }                           \
  }

// On a lambda: it is part of the loop that calls it, however much else has been inlined by then. A
// loop with a call left in it does not vectorise.
#if defined(__GNUC__)
#define FASTACT_INLINED __attribute__((always_inline))
#else
#define FASTACT_INLINED
#endif

#if defined(__CUDACC__)
#define FASTACT_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define FASTACT_HD inline __attribute__((always_inline))
#else
#define FASTACT_HD inline
#endif

FASTACT_BEGIN_NAMESPACE

// a * b + c: one rounding where the target has a fused multiply-add, two where it has not.
//
// The build forbids the compiler to contract on its own (-ffp-contract=off, -fmad=false), so
// this is the only place where a rounding may disappear. Without FMA hardware, std::fma is a
// library call some thirty times slower than the two instructions below.
#if defined(__CUDA_ARCH__)
#define FASTACT_FMA 1
FASTACT_HD float madd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FASTACT_HD double madd(double a, double b, double c) { return __fma_rn(a, b, c); }
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define FASTACT_FMA 1
FASTACT_HD float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FASTACT_HD double madd(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
FASTACT_HD float madd(float a, float b, float c) { return a * b + c; }
FASTACT_HD double madd(double a, double b, double c) { return a * b + c; }
#endif

// Reads bits as another type of the same size (C++17 has no std::bit_cast).
template <class To, class From>
FASTACT_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

FASTACT_END_NAMESPACE
