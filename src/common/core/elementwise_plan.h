// Plans the iteration over arrays of one shape together, element by element: for the CPU's tensor
// iterator and for CUDA's element-wise kernels.
//
// Axes of length 1 are dropped. Axes along which the output runs backwards are reversed in every
// operand. The rest are sorted by the output's strides, largest first, and merged where the strides
// of every operand allow it.
#pragma once

#include <algorithm>

#include "common/core/operand.h"

namespace fastact {

constexpr int kMaxOperands = 6;  // of the moments' gradient: five that are read, dx

struct Walk {
  int64_t item;  // bytes an element
  int64_t size;  // elements
  int operands;  // the last is the output
  int ndim;      // at least 1
  int64_t shape[kMaxAxes];
  char* data[kMaxOperands];
  int64_t strides[kMaxOperands][kMaxAxes];  // bytes
  bool contiguous[kMaxOperands];            // each axis steps over exactly the axes inside it

  bool all_contiguous() const {
    bool all = true;
    for (int k = 0; k < operands; ++k) all &= contiguous[k];
    return all;
  }
};

// Base and strides are multiples of `bytes`, the innermost stride aside.
inline bool rows_aligned(const Walk& walk, int operand, int64_t bytes) {
  auto bits = reinterpret_cast<uintptr_t>(walk.data[operand]);
  for (int axis = 0; axis + 1 < walk.ndim; ++axis) bits |= uintptr_t(walk.strides[operand][axis]);
  return bits % uintptr_t(bytes) == 0;
}

// All operands have the same shape and dtype (checked by the caller); the last is the output.
inline void plan_walk(Walk* walk, int64_t item, int operands, const Operand* arrays) {
  const int output = operands - 1;
  walk->item = item;
  walk->operands = operands;
  walk->size = 1;
  walk->ndim = 0;
  for (int k = 0; k < operands; ++k) walk->data[k] = arrays[k].data;

  for (int axis = 0; axis < arrays[output].ndim; ++axis) {
    const int64_t length = arrays[output].shape[axis];
    walk->size *= length;
    if (length == 1) continue;
    const int to = walk->ndim++;
    walk->shape[to] = length;
    for (int k = 0; k < operands; ++k) walk->strides[k][to] = byte_stride(arrays[k], axis, item);
    if (walk->strides[output][to] >= 0) continue;
    for (int k = 0; k < operands; ++k) {
      walk->data[k] += (length - 1) * walk->strides[k][to];
      walk->strides[k][to] = -walk->strides[k][to];
    }
  }

  // The output's largest stride outermost; axes keep their order where it does not tell them apart.
  for (int i = 1; i < walk->ndim; ++i)
    for (int j = i; j > 0 && walk->strides[output][j - 1] < walk->strides[output][j]; --j) {
      std::swap(walk->shape[j - 1], walk->shape[j]);
      for (int k = 0; k < operands; ++k) std::swap(walk->strides[k][j - 1], walk->strides[k][j]);
    }

  int outer = 0;
  for (int axis = 1; axis < walk->ndim; ++axis) {
    bool merge = true;
    for (int k = 0; k < operands; ++k)
      merge &= walk->strides[k][outer] == walk->strides[k][axis] * walk->shape[axis];
    if (merge) {
      walk->shape[outer] *= walk->shape[axis];
    } else {
      walk->shape[++outer] = walk->shape[axis];
    }
    for (int k = 0; k < operands; ++k) walk->strides[k][outer] = walk->strides[k][axis];
  }
  walk->ndim = std::min(walk->ndim, outer + 1);

  if (walk->ndim == 0) {  // one element: an axis of length 1 serves every case
    walk->ndim = 1;
    walk->shape[0] = 1;
    for (int k = 0; k < operands; ++k) walk->strides[k][0] = item;
  }
  for (int k = 0; k < operands; ++k) {
    walk->contiguous[k] = rows_aligned(*walk, k, item);
    int64_t expected = item;
    for (int axis = walk->ndim; axis-- > 0; expected *= walk->shape[axis])
      walk->contiguous[k] &= walk->strides[k][axis] == expected;
  }
}

}  // namespace fastact
