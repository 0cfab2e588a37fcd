// How dense arrays of one shape lie around their channels.
#pragma once

#include "common/core/operand.h"
#include "cuda/core/indexing.cuh"
#include "cuda/core/vector_io.cuh"

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

// A single channel is one segment.
inline Layout with_one_segment(Layout layout) {
  if (layout.channels == 1) layout.inner *= layout.outer, layout.outer = 1;
  return layout;
}

// Rows of channels that come last, as a block takes them: tiles of tx vectors of columns, ty rows
// at a time. Rows that are no whole number of vectors are folded, as many as make one, into rows of
// `width` elements; a lane always meets the same channel.
struct ChannelRows {
  int64_t width, rows, tiles;
  int tx, ty;
};

template <class T>
ChannelRows rows_of(int64_t channels, int64_t count, int threads) {
  constexpr int64_t kSize = Vec<T>::kSize;
  int64_t folded = 1;
  if (channels % kSize != 0 && channels <= kWarp) {
    folded = kSize;
    while (channels * folded / 2 % kSize == 0) folded /= 2;
  }
  ChannelRows made{};
  made.width = channels * folded;
  made.rows = ceil_div(count, folded);
  const int64_t vecs = ceil_div(made.width, kSize);
  made.tx = folded > 1 ? int(vecs) : power_of_two_from(vecs, kWarp);
  made.ty = threads / made.tx;
  made.tiles = ceil_div(vecs, made.tx);
  return made;
}

}  // namespace
FASTACT_END_NAMESPACE
