// Small arithmetic of plans and kernels: quotients, chunks, and offsets along several axes.
#pragma once

#include <algorithm>

#include "common/core/reduction_plan.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The blocks of a kernel that goes on to further tasks.
inline int64_t blocks_for(int64_t tasks) { return std::min(tasks, kMaxBlocks); }
inline int power_of_two_from(int64_t n, int most) {
  int power = 1;
  while (power < n && power < most) power *= 2;
  return power;
}

// This is a call, for inlined a quotient of 64 bits is longer than most loops here.
FASTACT_DEVICE_CALL int64_t long_quotient(int64_t a, int64_t b) { return a / b; }

// a / b for numbers that are not negative: in 32 bits where they allow it.
FASTACT_DEVICE int64_t quotient(int64_t a, int64_t b) {
  return (a | b) <= int64_t(0xffffffff) ? uint32_t(a) / uint32_t(b) : long_quotient(a, b);
}

// a / by for 0 <= a < limit: floor(a factor / 2^(31 + shift)), which is exact for a < 2^31 with
// shift = ceil(log2(by)) and factor = ceil(2^(31 + shift) / by) < 2^32 (T. Granlund and P.
// Montgomery, "Division by invariant integers using multiplication", 1994). Where a or `by` may be
// larger, a division.
struct Divisor {
  int64_t by = 1;
  uint32_t factor = 0;  // 0: divide
  int shift = 0;

  Divisor() = default;
  Divisor(int64_t divisor, int64_t limit) : by(divisor) {
    constexpr int64_t kMost = int64_t(1) << 31;
    if (limit > kMost || by > kMost) return;
    while (int64_t(1) << shift < by) ++shift;
    factor = uint32_t(((uint64_t(1) << (31 + shift)) + uint64_t(by) - 1) / uint64_t(by));
  }
  FASTACT_DEVICE uint32_t quick(uint32_t a) const {
    return uint32_t(uint64_t(a << 1) * factor >> 32) >> shift;
  }
  FASTACT_DEVICE int64_t operator()(int64_t a) const {
    return factor ? int64_t(quick(uint32_t(a))) : long_quotient(a, by);
  }
};

FASTACT_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kMaxChunks = 1024;  // of one output, and so its most partial sums

// Parts of what a task would have: `count` chunks of `size` items.
struct Chunks {
  int64_t size, count;
};

// Cuts n items into chunks: as few of `least` items or more as kMaxChunks allows.
inline void cut(Chunks* chunks, int64_t n, int64_t least) {
  chunks->size = std::max(least, ceil_div(n, kMaxChunks));
  chunks->count = std::max<int64_t>(1, ceil_div(n, chunks->size));
}

// Calls step(axis, here) for the axes [first, end) that `index` counts, innermost first; `here`
// counts along the axis. The outermost takes no division.
template <class Step>
FASTACT_DEVICE void unravel(int64_t index, const int64_t* length, int first, int end,
                            const Step& step) {
#pragma unroll 1
  for (int axis = end - 1; axis > first; --axis) {
    const int64_t rest = quotient(index, length[axis]);
    step(axis, index - rest * length[axis]);
    index = rest;
  }
  if (end > first) step(first, index);
}

// Stands for an array of x's shape, but has no memory: its "address" is an element's index along
// the axes of `counts` (null: all), the last of them fastest.
struct IndexOperand {
  int64_t count = 1, stride[kMaxAxes] = {};
  Operand operand;

  IndexOperand(const Operand& x, const bool* counts)
      : operand{nullptr, x.ndim, x.shape, stride, 1} {
    for (int i = x.ndim - 1; i >= 0; --i)
      if (!counts || counts[i]) stride[i] = count, count *= x.shape[i];
  }
  IndexOperand(const IndexOperand&) = delete;
  IndexOperand& operator=(const IndexOperand&) = delete;
};

// One flag for each axis; only `axis` has its flag set.
struct OneAxis {
  bool flag[kMaxAxes] = {};
  explicit OneAxis(int axis) { flag[axis] = true; }
};

// Bytes into the two arrays of Axes.
struct Offset {
  int64_t x = 0, y = 0;
};
FASTACT_DEVICE Offset locate(const Axes& axes, int64_t index) {
  Offset at;
  unravel(index, axes.length, 0, axes.count, [&](int axis, int64_t here) {
    at.x += here * axes.x[axis];
    at.y += here * axes.y[axis];
  });
  return at;
}

// The axes of an array whose length is not 1, as y.
inline Axes axes_of(const Operand& a, int64_t item) {
  Axes axes;
  for (int i = 0; i < a.ndim; ++i)
    if (a.shape[i] != 1) axes.append(a.shape[i], 0, byte_stride(a, i, item));
  return axes;
}

}  // namespace
FASTACT_END_NAMESPACE
