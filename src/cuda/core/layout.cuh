// How dense arrays of one shape lie around their channels.
#pragma once

#include "common/core/operand.h"
#include "cuda/core/indexing.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The common layout of the arrays: outer x channels x inner if all are without gaps in one order.
struct Layout {
  bool dense;
  int64_t channels, outer, inner;
};

inline Layout layout_of(const Operand* arrays, int count, int axis, int64_t item) {
  const Operand& last = arrays[count - 1];
  Layout layout{true, last.shape[axis], 1, 1};
  for (int i = 0; i < last.ndim; ++i) {
    if (last.shape[i] == 1) continue;
    const int64_t stride = byte_stride(last, i, item);
    int64_t inside = item;  // elements whose stride is smaller: what a step of this axis skips
    for (int k = 0; k < last.ndim; ++k)
      if (last.shape[k] != 1 && byte_stride(last, k, item) < stride) inside *= last.shape[k];
    for (int k = 0; k < count; ++k) layout.dense &= byte_stride(arrays[k], i, item) == inside;
    if (i == axis) continue;
    const bool is_outer = last.shape[axis] == 1 || stride > byte_stride(last, axis, item);
    (is_outer ? layout.outer : layout.inner) *= last.shape[i];
  }
  return layout;
}

}  // namespace
FASTACT_END_NAMESPACE
