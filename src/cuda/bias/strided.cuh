// Bias and activation over arrays of any strides: element by element, in the same two steps.
#pragma once

#include "cuda/bias/fused.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

enum Role { kDy, kX, kResidual, kOut, kRoles };

// All axes but the channels'.
struct Strided {
  char* data[kRoles];  // null: there is none
  int count;
  int64_t size;
  int64_t length[kMaxAxes], stride[kRoles][kMaxAxes], channel_stride[kRoles];
};

struct Address {
  int64_t at[kRoles];
};

FASTACT_DEVICE Address locate(const Strided& arrays, int64_t index, int64_t channel) {
  Address address;
#pragma unroll
  for (int k = 0; k < kRoles; ++k) address.at[k] = channel * arrays.channel_stride[k];
  for (int axis = arrays.count - 1; axis >= 0; --axis) {
    const int64_t rest = index / arrays.length[axis];
    const int64_t here = index - rest * arrays.length[axis];
#pragma unroll
    for (int k = 0; k < kRoles; ++k) address.at[k] += here * arrays.stride[k][axis];
    index = rest;
  }
  return address;
}

template <class T>
FASTACT_DEVICE Compute<T> read(const Strided& arrays, const Address& address, Role role) {
  return widen(load(reinterpret_cast<const T*>(arrays.data[role] + address.at[role])));
}

template <class T>
FASTACT_DEVICE Compute<T> preactivation(const Strided& arrays, const Fused& fused,
                                        const Address& address, int64_t channel) {
  const Compute<T> z = read<T>(arrays, address, kX) + bias_of<T>(fused, channel);
  return arrays.data[kResidual] ? z + read<T>(arrays, address, kResidual) : z;
}

template <class T>
FASTACT_KERNEL(kThreads)
void forward_strided(FASTACT_GRID_CONSTANT const Strided arrays,
                     FASTACT_GRID_CONSTANT const Fused fused) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= arrays.size * fused.channels) return;
  const int64_t index = i / fused.channels, channel = i - index * fused.channels;
  const Address address = locate(arrays, index, channel);
  Wide<T> z{};
  z.lane[0] = preactivation<T>(arrays, fused, address, channel);
  z = activate<T>(fused.which, fused.parameters, z);
  store(reinterpret_cast<T*>(arrays.data[kOut] + address.at[kOut]), narrow<T>(z.lane[0]));
}

template <class T>
FASTACT_DEVICE void put_gradient(T* dx, Compute<T> value, bool accumulate) {
  store(dx, narrow<T>(accumulate ? widen(load(dx)) + value : value));
}

template <class T>
FASTACT_KERNEL(kThreads)
void backward_strided(FASTACT_GRID_CONSTANT const Strided arrays,
                      FASTACT_GRID_CONSTANT const Fused fused, const Chunks chunks) {
  for (int64_t task = blockIdx.x; task < fused.channels * chunks.count; task += gridDim.x) {
    const int64_t channel = task / chunks.count, begin = (task % chunks.count) * chunks.size;
    const int64_t end = smaller(begin + chunks.size, arrays.size);
    double total = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const Address address = locate(arrays, i, channel);
      Wide<T> z{};
      z.lane[0] = preactivation<T>(arrays, fused, address, channel);
      z = slope_at<T>(fused.which, fused.parameters, z);
      const Compute<T> dx = read<T>(arrays, address, kDy) * z.lane[0];
      put_gradient(reinterpret_cast<T*>(arrays.data[kOut] + address.at[kOut]), dx,
                   chunks.accumulate);
      total += double(dx);
    }
    total = block_sum<kThreads>(total);
    if (threadIdx.x == 0) store(chunks.partials + task, total);
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
