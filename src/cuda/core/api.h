// Host declarations that the files of several families share. Each .cu is compiled once for each
// storage type (FASTACT_STORAGE), which keeps the build parallel and the object files small.
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

// An array with numbers along its only axis or along `axis`, or none.
inline NumberVector vector_of(const ArrayArgument& a, int axis = 0) {
  if (!a.shape) return {};
  return {a.data, byte_stride(a, a.ndim == 1 ? 0 : axis, item_size(a.dtype)), a.dtype};
}

FASTACT_END_NAMESPACE
