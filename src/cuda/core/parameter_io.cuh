// Single numbers of parameters and of sums, whose dtype is that of the data or a wider one.
#pragma once

#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
constexpr int kDTypeOf = sizeof(T) == 8 ? kF64 : kF32;
template <>
constexpr int kDTypeOf<f16> = kF16;
template <>
constexpr int kDTypeOf<bf16> = kBF16;

// With an offset added, and rounded once. Without one, as it is: a zero keeps its sign.
template <class T>
FASTACT_DEVICE Compute<T> load_parameter(const char* p, int dtype, double offset = 0) {
  if (dtype == kF64) {
    const double value = load(reinterpret_cast<const double*>(p));
    return Compute<T>(offset == 0 ? value : value + offset);
  }
  const Compute<T> value = dtype == kF32 ? Compute<T>(load(reinterpret_cast<const float*>(p)))
                                         : Compute<T>(widen(load(reinterpret_cast<const T*>(p))));
  return offset == 0 ? value : value + Compute<T>(offset);
}

// y OUT = sum, or y IN/OUT += sum; rounded once.
template <class T>
FASTACT_DEVICE void put(T* y, double sum, bool accumulate) {
  store(y, narrow_once<T>(accumulate ? double(widen(load(y))) + sum : sum));
}

// The same of a parameter's gradient.
template <class T>
FASTACT_DEVICE void put_parameter(char* p, int dtype, double sum, bool accumulate) {
  if (dtype == kF64)
    put(reinterpret_cast<double*>(p), sum, accumulate);
  else if (dtype == kF32)
    put(reinterpret_cast<float*>(p), sum, accumulate);
  else
    put(reinterpret_cast<T*>(p), sum, accumulate);
}

}  // namespace
FASTACT_END_NAMESPACE
