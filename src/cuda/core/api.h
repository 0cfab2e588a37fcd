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

// An array of one axis, or none.
inline NumberVector vector_of(const ArrayArgument& a) {
  return {a.data, a.shape ? byte_stride(a, 0, item_size(a.dtype)) : 0, a.dtype};
}

FASTACT_END_NAMESPACE
