// Small arithmetic of plans and kernels: quotients, chunks, and offsets along several axes.
#pragma once

#include <algorithm>

#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

inline bool is_empty(const Operand& a) {
  return std::any_of(a.shape, a.shape + a.ndim, [](int64_t n) { return n == 0; });
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int power_of_two_from(int64_t n, int most) {
  int power = 1;
  while (power < n && power < most) power *= 2;
  return power;
}

// a / b for numbers that are not negative: in 32 bits where they allow it.
FASTACT_DEVICE int64_t quotient(int64_t a, int64_t b) {
  return (a | b) <= int64_t(0xffffffff) ? uint32_t(a) / uint32_t(b) : a / b;
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
    return factor ? int64_t(quick(uint32_t(a))) : a / by;
  }
};

FASTACT_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kMaxChunks = 1024;  // and so at most as many partial sums of one output

// Cuts n items into `count` chunks of `size`: as few of `least` items or more as kMaxChunks allows.
template <class Chunks>
void cut(Chunks* chunks, int64_t n, int64_t least) {
  chunks->size = std::max(least, ceil_div(n, kMaxChunks));
  chunks->count = std::max<int64_t>(1, ceil_div(n, chunks->size));
}

// Axes along which two arrays step together, with their strides in bytes.
struct PairAxes {
  int count = 0;
  int64_t size = 1, length[kMaxAxes] = {}, a[kMaxAxes] = {}, b[kMaxAxes] = {};

  void append(int64_t n, int64_t of_a, int64_t of_b) {
    length[count] = n, a[count] = of_a, b[count] = of_b;
    ++count;
    size *= n;
  }
};

struct PairOffset {
  int64_t a, b;
};

// at: what to add to.
FASTACT_DEVICE PairOffset offset_of(const PairAxes& axes, int64_t index, PairOffset at = {0, 0}) {
  for (int axis = axes.count - 1; axis >= 0; --axis) {
    const int64_t rest = quotient(index, axes.length[axis]);
    const int64_t here = index - rest * axes.length[axis];
    at.a += here * axes.a[axis];
    at.b += here * axes.b[axis];
    index = rest;
  }
  return at;
}

}  // namespace
FASTACT_END_NAMESPACE
