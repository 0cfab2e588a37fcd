// Plans the iteration over arrays of one shape together, element by element: for CUDA's kernels.
// The CPU's iterator (core/tensor_iterator.cpp) has its limit of operands from here.
//
// Axes of length 1 are dropped. Axes along which the leader runs backwards are reversed in every
// operand. The rest are sorted by the leader's strides, largest first, and merged where the strides
// of every operand allow it. The leader is an output: the last operand, unless told otherwise.
#pragma once

#include <algorithm>

#include "common/core/axes.h"

namespace fastact {

constexpr int kMaxOperands = 8;  // the most so far are six: of the moments' gradient, and gated's

struct ElementwisePlan {
  int64_t item;  // bytes an element
  int64_t size;  // elements
  int operands;
  int ndim;  // at least 1
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
inline bool rows_aligned(const ElementwisePlan& plan, int operand, int64_t bytes) {
  auto bits = reinterpret_cast<uintptr_t>(plan.data[operand]);
  for (int axis = 0; axis + 1 < plan.ndim; ++axis) bits |= uintptr_t(plan.strides[operand][axis]);
  return bits % uintptr_t(bytes) == 0;
}

// All operands have the same shape and dtype (checked by the caller). One without a shape is
// absent: it stands in nobody's way, and its data stays null.
inline void plan_elementwise(ElementwisePlan* plan, int64_t item, int operands,
                             const Operand* arrays, int leader) {
  plan->item = item;
  plan->operands = operands;
  plan->size = 1;
  for (int axis = 0; axis < arrays[leader].ndim; ++axis) plan->size *= arrays[leader].shape[axis];
  int64_t items[kMaxOperands];
  for (int k = 0; k < operands; ++k) items[k] = item, plan->data[k] = arrays[k].data;

  Axis<kMaxOperands> axes[kMaxAxes];
  const int count = find_axes(axes, arrays[leader], operands, arrays, items, [](int) { return 0; });
  for (int i = 0; i < count; ++i)
    if (axes[i].stride[leader] < 0) reverse_axis(&axes[i], operands, plan->data);
  // The leader's largest stride outermost.
  sort_axes(axes, count,
            [&](const auto& a, const auto& b) { return a.stride[leader] > b.stride[leader]; });
  plan->ndim = merge_axes(axes, count);
  for (int i = 0; i < plan->ndim; ++i) {
    plan->shape[i] = axes[i].length;
    for (int k = 0; k < operands; ++k) plan->strides[k][i] = axes[i].stride[k];
  }

  if (plan->ndim == 0) {  // one element: an axis of length 1 serves every case
    plan->ndim = 1;
    plan->shape[0] = 1;
    for (int k = 0; k < operands; ++k) plan->strides[k][0] = item;
  }
  for (int k = 0; k < operands; ++k) {
    plan->contiguous[k] = rows_aligned(*plan, k, item);
    int64_t expected = item;
    for (int axis = plan->ndim; axis-- > 0; expected *= plan->shape[axis])
      plan->contiguous[k] &= plan->strides[k][axis] == expected;
    plan->contiguous[k] |= !arrays[k].shape;
  }
}
inline void plan_elementwise(ElementwisePlan* plan, int64_t item, int operands,
                             const Operand* arrays) {
  plan_elementwise(plan, item, operands, arrays, operands - 1);
}

}  // namespace fastact
