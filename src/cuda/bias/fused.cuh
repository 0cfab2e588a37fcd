// What the kernels of bias.cu share: activation and bias as parameters, and the forward's functor.
#pragma once

#include "cuda/activations/activate.cuh"
#include "cuda/core/api.h"
#include "cuda/core/block_reduce.cuh"
#include "cuda/core/elementwise.cuh"
#include "cuda/core/indexing.cuh"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;

// The activation, and the bias in its own dtype.
struct Fused {
  int which;
  double parameters[kMaxParameters];
  const char* bias;  // IN, channels
  int bias_dtype;
  int64_t bias_stride;  // bytes
  int64_t channels, inner;
};

template <class T>
FASTACT_DEVICE Compute<T> bias_of(const Fused& fused, int64_t channel) {
  return load_parameter<T>(fused.bias + channel * fused.bias_stride, fused.bias_dtype);
}

// Adds the bias to the elements [index, index + Vec<T>::kSize) of a whole array.
template <class T, class B>
FASTACT_DEVICE void add_bias_as(const Fused& fused, int64_t index, Wide<T>& z) {
  const int64_t row = fused.inner == 1 ? index : quotient(index, fused.inner);
  int64_t left = fused.inner - (index - row * fused.inner);  // elements of the same channel
  int64_t channel = row - quotient(row, fused.channels) * fused.channels;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    const char* p = fused.bias + channel * fused.bias_stride;
    z.lane[j] += Compute<T>(widen(load(reinterpret_cast<const B*>(p))));
    if (--left > 0) continue;
    left = fused.inner;
    channel = channel + 1 == fused.channels ? 0 : channel + 1;
  }
}
template <class T>
FASTACT_DEVICE void add_bias(const Fused& fused, int64_t index, Wide<T>& z) {
  if (fused.bias_dtype == kF64)
    add_bias_as<T, double>(fused, index, z);
  else if (fused.bias_dtype == kF32)
    add_bias_as<T, float>(fused, index, z);
  else
    add_bias_as<T, T>(fused, index, z);
}

template <class T, int inputs>
struct BiasForward : Fused {
  static constexpr int kUnroll = 1;  // a call leaves few registers to what would be in flight
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[inputs], int64_t index) const {
    Wide<T> z = in[0];
    add_bias<T>(*this, index, z);
    if constexpr (inputs == 2) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += in[1].lane[j];
    }
    return activate<T>(which, parameters, z);
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[inputs], int64_t index) const {
    Wide<T> z{};
    z.lane[0] = in[0] + bias_of<T>(*this, index / inner % channels);
    if constexpr (inputs == 2) z.lane[0] += in[1];
    return activate<T>(which, parameters, z).lane[0];
  }
};

struct Chunks {
  int64_t size, count;  // of each, in elements, vectors or rows; and how many
  double* partials;     // OUT, channels x count
  bool accumulate;      // dx IN/OUT: added to
};

}  // namespace
FASTACT_END_NAMESPACE
