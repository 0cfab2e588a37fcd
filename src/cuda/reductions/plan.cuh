// The plan of a reduction, of sums and of moments: how rows or columns are cut into tasks.
// reductions.cu explains it.
#pragma once

#include "common/core/reduction_plan.h"
#include "cuda/reductions/kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// How many vectors of a row a lane takes before the row gets more lanes: with fewer, the folds of
// the lanes would cost more than the elements.
template <class T>
constexpr int64_t kLaneVecs = sizeof(T) == 8 ? 16 : 32;
constexpr int64_t kChunk = 4096;    // vectors of a row, 64 KiB
constexpr int64_t kChunkRows = 64;  // rows of a column
// Blocks of columns: as many as an H200 has at once, three on a multiprocessor.
constexpr int64_t kManyBlocks = 3 * 132;

bool has_aligned_base(const Reduction& plan) {
  auto bits = reinterpret_cast<uintptr_t>(plan.x);
  for (int i = 0; i < plan.kept.count; ++i) bits |= uintptr_t(plan.kept.x[i]);
  return bits % kVecBytes == 0;
}

template <class T>
Sums describe(const Reduction& plan, double* partials) {
  Sums sums{};
  sums.x = plan.x;
  sums.kept = plan.kept;
  sums.segments = plan.reduced;
  sums.inner = plan.inner;
  sums.inner_x = plan.inner_x;
  sums.inner_y = plan.inner_y;
  sums.is_contiguous = plan.has_unit_inner;
  sums.access = kAnyhow;
  sums.partials = partials;
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
  const int narrow = power_of_two_from(ceil_div(sums.vecs, kInFlight), kWarp);
  const int wide = power_of_two_from(ceil_div(sums.vecs, kLaneVecs<T>), kThreads);
  sums.team = sums.chunks.count > 1 ? kThreads : std::max(narrow, wide);
  while (1 << sums.team_shift < sums.team) ++sums.team_shift;
  sums.threads = sums.team > kWarp ? sums.team : kThreads;
  sums.step_segments = sums.team / sums.segment_vecs;
  sums.step_vecs = sums.team % sums.segment_vecs;
  return sums;
}

bool has_few_rows(const ColumnSums& sums) { return sums.rows <= kFewRows && sums.elements == 0; }

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
  if (has_few_rows(sums)) {
    sums.tx = kThreads, sums.ty = 1, sums.tiles = vecs, sums.chunks = {sums.rows, 1};
    return sums;
  }
  sums.tx = sums.elements > 0 ? int(vecs) : power_of_two_from(vecs, kWarp);
  sums.ty = kThreads / sums.tx;
  sums.tiles = ceil_div(vecs, sums.tx);
  // There are as many chunks as fill any device: at 4096 x 768 whole columns would be six blocks.
  const int64_t chunks = std::max<int64_t>(1, kManyBlocks / sums.tiles);
  cut(&sums.chunks, sums.rows,
      std::max(kChunkRows * std::max(1, sums.ty / 8), ceil_div(sums.rows, chunks)));
  return sums;
}

// Whether rows of one segment lie one after the other.
bool rows_touch(const Reduction& plan, int64_t item) {
  return plan.kept.count == 0 || (plan.kept.count == 1 && plan.kept.x[0] == plan.inner * item);
}

// Bytes of the partial results that an x which is not empty needs.
template <class T, class To>
int64_t chunk_bytes(const Operand& x, const Operand& y, const bool* reduced) {
  const Reduction plan = plan_reduction(x, y, reduced, sizeof(T), false);
  const int64_t chunks = plan.inner_reduced ? plan_rows<T>(plan, nullptr).chunks.count
                                            : plan_columns<T>(plan, nullptr).chunks.count;
  return chunks > 1 ? To::kNumbers * plan.outputs() * chunks * int64_t(sizeof(double)) : 0;
}

// Whether few_rows takes them.
constexpr int64_t kMostFewOfRow = 4;
template <class T>
bool has_few_of_row(const Reduction& plan) {
  return sizeof(T) < sizeof(double) && plan.inner_reduced && plan.inner >= 2 &&
         plan.inner <= kMostFewOfRow && plan.reduced.size == 1 && plan.has_unit_inner &&
         rows_touch(plan, sizeof(T)) && reinterpret_cast<uintptr_t>(plan.x) % kVecBytes == 0;
}
// Gives kernel_of(terms), with their number as a constant.
template <class KernelOf>
auto kernel_of_few(int64_t terms, const KernelOf& kernel_of) {
  if (terms == 2) return kernel_of(std::integral_constant<int, 2>());
  if (terms == 3) return kernel_of(std::integral_constant<int, 3>());
  return kernel_of(std::integral_constant<int, 4>());
}
// Queues few_rows.
template <class T, class Reduce>
void run_few(const Reduction& plan, const Reduce& reduce, cudaStream_t stream) {
  const int64_t blocks = ceil_div(plan.outputs(), kThreads * Vec<T>::kSize);
  launch(kernel_of_few(plan.inner, [](auto n) { return few_rows<n(), T, Reduce>; }),
         {blocks_for(blocks), kThreads}, stream, plan_rows<T>(plan, nullptr), reduce);
}

// Queues the kernel for x's layout and, where there are chunks, the one that merges them. is_empty:
// rows have no elements.
template <class T, class Kernels, class To>
void reduce(const Reduction& plan, const To& to, void* workspace, bool is_empty,
            cudaStream_t stream) {
  auto* partials = static_cast<double*>(workspace);
  const auto run = [&](const auto& sums, auto kernel, const Shape& shape, int64_t inner) {
    launch(kernel, shape, stream, sums, to);
    if (sums.chunks.count > 1) finish<T>(sums, to, plan.outputs(), inner, stream);
  };
  if (plan.inner_reduced) {
    using Lane = typename Kernels::Lane;
    using OddLane = typename Kernels::OddLane;
    RowSums sums = plan_rows<T>(plan, partials);
    if (is_empty) sums.vecs = 0;
    const bool is_one = plan.reduced.size == 1 && sums.is_contiguous;
    if (is_one && sums.team == 1 && !is_empty && rows_touch(plan, sizeof(T))) {
      sums.low = plan.x, sums.high = plan.x + plan.outputs() * plan.inner * int64_t(sizeof(T));
      const int rows = rows_of_tile<T>(plan.inner);
      const Shape shape{blocks_for(ceil_div(sums.tasks, rows)), kThreads, 1, 1, kTileBytes<T>};
      return launch(reduce_short_rows<T, typename Kernels::ShortLane, To>, shape, stream, sums, to,
                    rows);
    }
    const bool is_aligned = sums.access == kAligned;
    auto kernel = is_aligned ? reduce_rows<kAligned, T, typename Kernels::ShortLane, To>
                             : reduce_rows<kAnyhow, T, OddLane, To>;
    if (is_one && is_aligned) kernel = reduce_rows<kAligned, T, Lane, To, true>;
    run(sums, kernel, {blocks_for(ceil_div(sums.tasks, sums.threads / sums.team)), sums.threads},
        1);
  } else {
    using Columns = typename Kernels::Columns;
    ColumnSums sums = plan_columns<T>(plan, partials);
    const bool is_few = has_few_rows(sums);
    if (is_empty) sums.rows = 0;
    const int64_t tasks = sums.kept.size * sums.chunks.count * sums.tiles;
    const auto kernel = sums.access == kAligned ? Kernels::template kColumns<kAligned>
                                                : Kernels::template kColumns<kAnyhow>;
    run(sums, is_few ? reduce_few_rows<T, Columns, To> : kernel,
        {blocks_for(is_few ? ceil_div(tasks, kThreads) : tasks), kThreads}, plan.inner);
  }
}

}  // namespace
FASTACT_END_NAMESPACE
