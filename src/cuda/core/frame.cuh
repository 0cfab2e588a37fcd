// Where the elements of several arrays are that one set of axes steps through.
#pragma once

#include "common/core/call.h"
#include "cuda/core/indexing.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <int arrays>
struct Frame {
  char* data[arrays];  // null: the array is not there, and has steps of 0
  int rank;
  int64_t length[kMaxAxes], step[arrays][kMaxAxes];  // bytes
};

// Adds to `at` the bytes from the first element of each array to the index-th one along the axes
// [first, end).
template <int arrays>
FASTACT_DEVICE void advance(const Frame<arrays>& frame, int64_t index, int first, int end,
                            int64_t (&at)[arrays]) {
  unravel(index, frame.length, first, end, [&](int axis, int64_t here) {
#pragma unroll
    for (int k = 0; k < arrays; ++k) at[k] += here * frame.step[k][axis];
  });
}

// The product of the lengths of the axes [first, end).
template <int arrays>
int64_t size_of(const Frame<arrays>& frame, int first, int end) {
  int64_t size = 1;
  for (int i = first; i < end; ++i) size *= frame.length[i];
  return size;
}

// The frame of a call's arrays, all of the first one's shape but where they have a length of 1. The
// axes that `reduced` has no flag for come first: *outer OUT is how many they are.
template <int arrays>
Frame<arrays> frame_of(const ArrayArgument* const (&of)[arrays], const bool* reduced, int* outer) {
  Frame<arrays> frame{};
  Operand operands[arrays];
  int64_t items[arrays];
  for (int k = 0; k < arrays; ++k)
    operands[k] = *of[k], items[k] = item_size(of[k]->dtype), frame.data[k] = of[k]->data;
  Axis<arrays> axes[kMaxAxes];
  int count =
      find_axes(axes, operands[0], arrays, operands, items, [&](int i) { return int(reduced[i]); });
  sort_axes(axes, count, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  int kept = 0;
  while (kept < count && !axes[kept].kind) ++kept;
  order_axes(axes, kept, 0);
  order_axes(axes + kept, count - kept, 0);
  frame.rank = merge_axes(axes, count);
  for (*outer = 0; *outer < frame.rank && !axes[*outer].kind;) ++*outer;
  for (int i = 0; i < frame.rank; ++i) {
    frame.length[i] = axes[i].length;
    for (int k = 0; k < arrays; ++k) frame.step[k][i] = axes[i].stride[k];
  }
  return frame;
}

}  // namespace
FASTACT_END_NAMESPACE
