// Single numbers of parameters, statistics and sums, in a dtype of their own.
#pragma once

#include "cuda/core/api.h"
#include "cuda/core/indexing.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
constexpr int kDTypeOf = sizeof(T) == 8 ? kF64 : kF32;
template <>
constexpr int kDTypeOf<f16> = kF16;
template <>
constexpr int kDTypeOf<bf16> = kBF16;

// Runs visit(p) with p as a pointer to numbers of a dtype, which is T's or a wider one, and beside
// double any.
template <class T, class Visit>
FASTACT_DEVICE auto with_type(const char* p, int dtype, const Visit& visit) {
  char* at = const_cast<char*>(p);
  if (dtype == kF64) return visit(reinterpret_cast<double*>(at));
  if (dtype == kF32) return visit(reinterpret_cast<float*>(at));
  if constexpr (sizeof(T) == sizeof(double)) {
    if (dtype == kF16) return visit(reinterpret_cast<f16*>(at));
    return visit(reinterpret_cast<bf16*>(at));
  } else {
    return visit(reinterpret_cast<T*>(at));
  }
}

// The number plus an offset, rounded once. Without an offset it stays as it is: a zero keeps its
// sign.
template <class T>
FASTACT_DEVICE Compute<T> load_parameter(const char* p, int dtype, double offset = 0) {
  return with_type<T>(p, dtype, [&](const auto* at) {
    const auto value = widen(load(at));
    using Wider = decltype(value + Compute<T>(0));
    return Compute<T>(offset == 0 ? Wider(value) : Wider(value) + Wider(offset));
  });
}
template <class T>
FASTACT_DEVICE Compute<T> parameter_at(const NumberVector& from, int64_t index) {
  return load_parameter<T>(from.data + index * from.stride, from.dtype);
}

// y OUT = sum, or y IN/OUT += sum; rounded once.
template <class T>
FASTACT_DEVICE void put(T* y, double sum, bool accumulate) {
  store(y, narrow_once<T>(accumulate ? double(widen(load(y))) + sum : sum));
}

// Puts a parameter's gradient likewise.
template <class T>
FASTACT_DEVICE void put_parameter(char* p, int dtype, double sum, bool accumulate) {
  with_type<T>(p, dtype, [&](auto* y) { put(y, sum, accumulate); });
}
template <class T>
FASTACT_DEVICE void put_parameter(const NumberVector& to, int64_t index, double sum,
                                  bool accumulate) {
  put_parameter<T>(to.data + index * to.stride, to.dtype, sum, accumulate);
}

// A number of any dtype that a View has.
FASTACT_DEVICE double number_at(const char* p, int dtype) {
  switch (dtype) {
    case kF16:
      return double(widen(load(reinterpret_cast<const f16*>(p))));
    case kBF16:
      return double(widen(load(reinterpret_cast<const bf16*>(p))));
    case kF32:
      return double(load(reinterpret_cast<const float*>(p)));
    case kF64:
      return load(reinterpret_cast<const double*>(p));
    case kI32:
      return double(load(reinterpret_cast<const int32_t*>(p)));
    case kI64:
      return double(load(reinterpret_cast<const int64_t*>(p)));
    default:
      return double(load(reinterpret_cast<const uint8_t*>(p)));
  }
}

// Gives it in the type that data of T are computed in.
template <class T>
FASTACT_DEVICE Compute<T> load_number(const char* p, int dtype) {
  const bool is_wide = dtype == kDTypeOf<T> || dtype == kF32 || dtype == kF64;
  return is_wide ? load_parameter<T>(p, dtype) : Compute<T>(number_at(p, dtype));
}

// The floating-point number `at` bytes from `data`; `neutral` where there are no numbers.
FASTACT_DEVICE double number_or(const char* data, int64_t at, int dtype, double neutral) {
  if (!data) return neutral;
  if (dtype == kF16) return double(widen(load(reinterpret_cast<const f16*>(data + at))));
  return with_type<bf16>(data + at, dtype, [](const auto* p) { return double(widen(load(p))); });
}
FASTACT_DEVICE double number_at(const NumberVector& from, int64_t index, double neutral) {
  return number_or(from.data, index * from.stride, from.dtype, neutral);
}
// Writes such a number: a call, for kernels that write numbers in several places.
FASTACT_DEVICE_CALL void put_by_call(char* p, int dtype, double value, bool accumulate) {
  if (dtype == kF16) return put(reinterpret_cast<f16*>(p), value, accumulate);
  put_parameter<bf16>(p, dtype, value, accumulate);
}
FASTACT_DEVICE void put_number(const NumberVector& to, int64_t index, double value,
                               bool accumulate = false) {
  if (to.data) put_by_call(to.data + index * to.stride, to.dtype, value, accumulate);
}

// Writes one value to all numbers of an array, which the y of `to` steps along.
template <class T>
FASTACT_KERNEL(256)
void fill_all(FASTACT_GRID_CONSTANT const Axes to, char* number, int dtype, double value) {
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i < to.size) put_parameter<T>(number + locate(to, i).y, dtype, value, false);
}
template <class T>
void fill_numbers(const Axes& to, char* number, int dtype, double value, cudaStream_t stream) {
  launch(fill_all<T>, {ceil_div(to.size, 256), 256}, stream, to, number, dtype, value);
}

}  // namespace
FASTACT_END_NAMESPACE
