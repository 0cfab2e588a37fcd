// The interface of the kernels to the bindings: host functions that check nothing and queue their
// work on a stream of the current device. Each .cu is compiled once for each storage type
// (FASTACT_STORAGE), which keeps the build parallel and the object files small.
#pragma once

#include <algorithm>

#include "common/reductions/call.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Numbers along one axis, in a dtype of their own: parameters, their gradients, or statistics, one
// a channel. Without data: there are none.
struct NumberVector {
  char* data = nullptr;
  int64_t stride = 0;  // bytes
  int dtype = kF64;
};

// An array of one axis, or none.
inline NumberVector vector_of(const ArrayArgument& a) {
  return {a.data, a.shape ? byte_stride(a, 0, item_size(a.dtype)) : 0, a.dtype};
}

// Calls that were checked (common/reductions/call.h); any array may be empty. workspace: aligned to
// 16 bytes, and as large as the ..._workspace function of the same call says.
template <class T>
void broadcast(const BroadcastCall& call, cudaStream_t stream);

template <class T>
int64_t sum_workspace(const SumCall& call);
template <class T>
void sum(const SumCall& call, void* workspace, cudaStream_t stream);

template <class T>
int64_t square_workspace(const SquareCall& call);
template <class T>
void square_value_and_grad(const SquareCall& call, void* workspace, cudaStream_t stream);

template <class T>
void sum_backward(const SumBackwardCall& call, cudaStream_t stream);

// y OUT (outputs, `stride` bytes apart) = the sums of partials IN (outputs x chunks), or y IN/OUT
// +=.
template <class T>
void finish_partials(const double* partials, int64_t outputs, int64_t chunks, char* y,
                     int64_t stride, bool accumulate, cudaStream_t stream);

// Runs visit(T{}) for the storage type of a dtype.
template <class Visit>
auto for_dtype(int dtype, Visit visit) {
  switch (dtype) {
    case kF16:
      return visit(f16{});
    case kBF16:
      return visit(bf16{});
    case kF32:
      return visit(float{});
    case kF64:
      return visit(double{});
  }
  throw std::invalid_argument("fastact: unknown dtype");
}

FASTACT_END_NAMESPACE
