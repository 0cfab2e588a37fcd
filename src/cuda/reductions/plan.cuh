// The plan of a reduction, of sums and of moments: how rows or columns are cut into tasks.
// reductions.cu explains it.
#pragma once

#include "common/core/reduction_plan.h"
#include "cuda/reductions/kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kWarpRow = 512;   // vectors that one warp takes
constexpr int64_t kChunk = 4096;    // vectors of a row, 64 KiB
constexpr int64_t kChunkRows = 64;  // rows of a column
constexpr int64_t kManyBlocks = 1024;

Outer outer_of(const Axes& axes) {
  Outer outer{axes.count, axes.size, {}, {}, {}};
  for (int i = 0; i < axes.count; ++i)
    outer.length[i] = axes.length[i], outer.x[i] = axes.x[i], outer.y[i] = axes.y[i];
  return outer;
}

bool has_aligned_base(const Reduction& plan) {
  auto bits = reinterpret_cast<uintptr_t>(plan.x);
  for (int i = 0; i < plan.kept.count; ++i) bits |= uintptr_t(plan.kept.x[i]);
  return bits % kVecBytes == 0;
}

template <class T>
Sums describe(const Reduction& plan, double* partials) {
  Sums sums{};
  sums.x = plan.x;
  sums.y = plan.y;
  sums.kept = outer_of(plan.kept);
  sums.segments = outer_of(plan.reduced);
  sums.inner = plan.inner;
  sums.inner_x = plan.inner_x;
  sums.inner_y = plan.inner_y;
  sums.is_contiguous = plan.has_unit_inner;
  sums.access = kAnyhow;
  sums.partials = partials;
  int64_t reach = plan.inner_x * (plan.inner - 1) + int64_t(sizeof(T));
  for (int i = 0; i < plan.kept.count; ++i) reach += plan.kept.x[i] * (plan.kept.length[i] - 1);
  for (int i = 0; i < plan.reduced.count; ++i)
    reach += plan.reduced.x[i] * (plan.reduced.length[i] - 1);
  const int64_t elements = plan.outputs() * plan.terms();
  if (sums.is_contiguous && reach == elements * int64_t(sizeof(T)))
    sums.access = kDense, sums.low = plan.x, sums.high = plan.x + reach;
  bool aligned = sums.is_contiguous && has_aligned_base(plan);
  for (int i = 0; i < plan.reduced.count; ++i) aligned &= plan.reduced.x[i] % kVecBytes == 0;
  if (aligned) sums.access = kAligned;
  if (plan.reduced.count > 1) sums.access = kAnyhow;
  return sums;
}

template <class T>
RowSums plan_rows(const Reduction& plan, double* partials) {
  RowSums sums{};
  static_cast<Sums&>(sums) = describe<T>(plan, partials);
  sums.segment_vecs = ceil_div(plan.inner, Vec<T>::kSize);
  sums.vecs = sums.segment_vecs * plan.reduced.size;
  cut(&sums.chunks, sums.vecs, kChunk);
  sums.tasks = plan.outputs() * sums.chunks.count;
  sums.team =
      sums.vecs > kWarpRow ? kThreads : power_of_two_from(ceil_div(sums.vecs, kInFlight), kWarp);
  sums.step_segments = sums.team / sums.segment_vecs;
  sums.step_vecs = sums.team % sums.segment_vecs;
  return sums;
}

template <class T>
ColumnSums plan_columns(const Reduction& plan, double* partials) {
  constexpr int64_t kSize = Vec<T>::kSize;
  ColumnSums sums{};
  static_cast<Sums&>(sums) = describe<T>(plan, partials);
  sums.width = plan.inner;
  sums.rows = plan.reduced.size;
  if (plan.has_dense_rows && plan.reduced.count == 1 && plan.inner % kSize != 0 &&
      plan.inner <= kWarp) {
    int64_t folded = kSize;
    while (plan.inner * folded / 2 % kSize == 0) folded /= 2;
    sums.elements = plan.terms() * plan.inner;
    sums.width = plan.inner * folded;
    sums.rows = ceil_div(sums.elements, sums.width);
    sums.segments.x[0] = sums.width * int64_t(sizeof(T));
    if (has_aligned_base(plan)) sums.access = kAligned;
  }
  const int64_t vecs = ceil_div(sums.width, kSize);
  sums.tx = sums.elements > 0 ? int(vecs) : power_of_two_from(vecs, kWarp);
  sums.ty = kThreads / sums.tx;
  sums.tiles = ceil_div(vecs, sums.tx);
  // As many chunks as fill a device, whichever it is: at 4096 x 768 whole columns are six blocks.
  const int64_t chunks = std::max<int64_t>(1, kManyBlocks / sums.tiles);
  cut(&sums.chunks, sums.rows, std::max(kChunkRows * std::max(1, sums.ty / 8), sums.rows / chunks));
  return sums;
}

}  // namespace
FASTACT_END_NAMESPACE
