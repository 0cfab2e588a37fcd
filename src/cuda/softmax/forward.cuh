// The forward kernels of softmax and its kin; softmax.cu explains the passes.
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, class Rows>
FASTACT_DEVICE void store_lse(const Rows& rows, int64_t row, Compute<T> lse) {
  put_number<T>(rows, kLse, row, sizeof(T) == 8 ? kF64 : kF32, double(lse));
}

// The kinds: whether y is written, of a term or of z, with what stands where a mask leaves one out;
// whether all classes have shares in a loss; and what a row's sums end in, called by one thread.
template <class T>
struct SoftmaxOf {
  using C = Compute<T>;
  static constexpr bool kWrites = true, kKeepsTerms = true, kHasShares = false;
  static constexpr C kNothing = 0;
  static FASTACT_DEVICE C result(C term, const Level<C>& of) { return term * of.inverse; }
  template <class Rows>
  static FASTACT_DEVICE void finish(const Rows& rows, const Part& part, int s, const RowSums&,
                                    const Level<C>& level, double (&)[2]) {
    store_lse<T>(rows, part.row + s, level.lse);
  }
};
template <class T>
struct LogSoftmaxOf : SoftmaxOf<T> {
  using C = Compute<T>;
  static constexpr bool kKeepsTerms = false;
  static constexpr C kNothing = C(-__builtin_inf());
  static FASTACT_DEVICE C result(C z, const Level<C>& of) { return (z - of.m) - of.log; }
};
template <class T>
struct LogSumExpOf : LogSoftmaxOf<T> {
  using C = Compute<T>;
  static constexpr bool kWrites = false;
  template <class Rows>
  static FASTACT_DEVICE void finish(const Rows& rows, const Part& part, int s, const RowSums&,
                                    const Level<C>& level, double (&)[2]) {
    store_lse<T>(rows, part.row + s, level.lse);
    put_number<T>(rows, kNumber, part.row + s, rows.number_dtype, double(level.lse));
  }
};

// Of a reduction of losses: these and their weights added up by each block, and by one at the end.
struct LossTotals {
  double* totals;  // OUT, tasks x [loss, weight]; null: no reduction
};

// Of a kind whose peaks alone are wanted.
template <class T, bool shares>
struct PeakOf : LogSumExpOf<T> {
  static constexpr bool kHasShares = shares;
};

// Numbers of a chunk's peak, and of a row's level.
template <class Kind>
constexpr int kPeakFields = Kind::kHasShares ? 5 : 3;
constexpr int kLevelFields = 3;

// Adds up over the threads of a block.
FASTACT_DEVICE void add_over_block(double (&total)[2], int& fold_index) {
  fold_lanes(total, int(blockDim.x), fold_index, [](double a, double b) { return a + b; });
}

// Stores what a block's threads have, added up.
FASTACT_DEVICE void store_total(const LossTotals& to, int64_t task, double (&total)[2],
                                int& fold_index) {
  if (!to.totals) return;
  add_over_block(total, fold_index);
  if (threadIdx.x > 0) return;
  store(to.totals + 2 * task, total[0]);
  store(to.totals + 2 * task + 1, total[1]);
}

template <class T, class Kind, class Rows, int n>
FASTACT_DEVICE void put_result(const Rows& rows, const Part& part, int i, Wide<T> y,
                               const Level<Compute<T>> (&level)[n]) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    y.lane[j] = Kind::result(y.lane[j], level[row_in_vec<Rows>(j)]);
  leave_out<T>(rows, part, i, Kind::kNothing, &y);
  write_vec(rows, kY, part, i, lanes_there<T>(rows, part, i), narrow_vec<T>(y));
}

// Rows of some lanes of a warp or of a block, and columns, which a block holds.
template <class T, int vecs, class Kind, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows, Kind::kHasShares>))
void softmax_forward_rows(FASTACT_GRID_CONSTANT const Rows rows, const RowChunks chunks,
                          const LossTotals totals) {
  constexpr int n = kRowsOfVec<T, Rows>;
  int fold_index = 0, total_index = 0;
  int64_t task = blockIdx.x;
  for_each_part<T, vecs>(rows, chunks, [&](const Part& part, bool) {
    Wide<T> z[vecs];
    take_scores<T>(rows, part, z);
    Peak<T, n> peak{};
    find_peak<T, Kind>(rows, part, z, fold_index, &peak);
    const bool finishes = !Kind::kWrites || rows.data[kLse];
    double total[2] = {};
    if (Kind::kWrites || part.lane == 0) {
      Level<Compute<T>> level[n];
#pragma unroll
      for (int s = 0; s < n; ++s)
        level[s] = level_of<T>(sums_of(peak, s), peak.at[s], rows.data[kMask], rows.up,
                               !Kind::kKeepsTerms || finishes);
      if (finishes && part.lane == 0) {
#pragma unroll
        for (int s = 0; s < n; ++s)
          if (s < part.columns) Kind::finish(rows, part, s, sums_of(peak, s), level[s], total);
      }
      if constexpr (Kind::kWrites) {
#pragma unroll
        for (int i = 0; i < vecs; ++i)
          if (i < part.count) put_result<T, Kind>(rows, part, i, z[i], level);
      }
    }
    store_total(totals, task, total, total_index);
    task += gridDim.x;
  });
}

// Of rows that no block holds: the peaks of chunks, the level of each row, and y.
template <class T, class Kind, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows, Kind::kHasShares>))
void softmax_peaks(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  constexpr int vecs = kMostVecs<T>;
  int fold_index = 0;
  for_each_part<T, vecs>(rows, chunks, [&](const Part& part, bool) {
    Wide<T> z[vecs];
    take_scores<T>(rows, part, z);
    Peak<T, kRowsOfVec<T, Rows>> peak{};
    find_peak<T, Kind>(rows, part, z, fold_index, &peak);
    store_peaks<kPeakFields<Kind>>(chunks, part, peak);
  });
}

template <class T, class Kind, class Rows>
FASTACT_KERNEL(256)
void softmax_merge(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks,
                   const LossTotals totals) {
  int total_index = 0;
  int64_t task = blockIdx.x;
  for_each_of_warps(rows.count, [&](int64_t row, int lane, bool idle) {
    const double* peaks = chunks.peaks + (idle ? 0 : row) * chunks.count * kPeakFields<Kind>;
    const RowSums sums = merge_peaks<kPeakFields<Kind>>(peaks, chunks.count, rows.up);
    double total[2] = {};
    if (!idle && lane == 0) {
      const Level<Compute<T>> level = merged_level<T>(sums, rows.data[kMask], rows.up);
      Part part{};
      part.row = row;
      if (Rows::kColumns)
        part.outer = quotient(row, rows.inner), part.at = row - part.outer * rows.inner;
      Kind::finish(rows, part, 0, sums, level, total);
      if (Kind::kWrites) {
        double* to = chunks.levels + row * kLevelFields;
        store(to, sums.max);
        store(to + 1, double(level.inverse));
        store(to + 2, double(level.log));
      }
    }
    store_total(totals, task, total, total_index);
    task += gridDim.x;
  });
}

template <class T, class Kind, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows>))
void softmax_apply(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  using C = Compute<T>;
  constexpr int n = kRowsOfVec<T, Rows>, kSize = Vec<T>::kSize, vecs = kMostVecs<T>;
  const C up = C(rows.up);
  for_each_part<T, vecs, true>(rows, chunks, [&](const Part& part, bool idle) {
    if (idle) return;
    Level<C> level[n];
    Move<C> move[n];
    TermsAt<T> at[n];
#pragma unroll
    for (int s = 0; s < n; ++s) {
      const double* from = chunks.levels + (part.row + (s < part.columns ? s : 0)) * kLevelFields;
      const C max = C(load(from)), m = max == -infinity<C>() ? C(0) : max;
      move[s] = Move<C>::of(m, up);
      at[s] = TermsAt<T>::of(move[s](m));
      level[s] = {m, at[s].m, C(load(from + 1)), C(load(from + 2)), C(0)};
    }
    Wide<T> z[vecs];
    take_scores<T>(rows, part, z);
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= part.count) break;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int s = row_in_vec<Rows>(j);
        C& value = z[i].lane[j];
        if (move[s].is_needed()) value = move[s](value);
        if constexpr (Kind::kKeepsTerms) value = at[s](value);
      }
      put_result<T, Kind>(rows, part, i, z[i], level);
    }
  });
}

// Queues the kernels of a kind; how many blocks have totals. workspace: of peaks and levels.
template <class T, class Kind>
int64_t run_forward(const SoftmaxPlan& plan, void* workspace, const LossTotals& totals,
                    cudaStream_t stream) {
  const int64_t count = plan.rows.count;
  SoftmaxChunks chunks{plan.chunks, static_cast<double*>(workspace), nullptr};
  chunks.levels = chunks.peaks + count * chunks.count * kPeakFields<Kind>;
  for_layout<T, !Kind::kHasShares>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    using Rows = decltype(rows);
    if (chunks.count == 1)
      return launch(softmax_forward_rows<T, decltype(vecs)::value, Kind, Rows>, shape, stream, rows,
                    plan.chunks, totals);
    launch(softmax_peaks<T, PeakOf<T, Kind::kHasShares>, Rows>, shape, stream, rows, chunks);
    using Merged = std::conditional_t<Rows::kQuick, SoftmaxRows, Rows>;
    launch(softmax_merge<T, Kind, Merged>, warps_for(count, 256), stream, Merged(rows), chunks,
           totals);
    if constexpr (Kind::kWrites) launch(softmax_apply<T, Kind, Rows>, shape, stream, rows, chunks);
  });
  return chunks.count == 1 ? plan.rows.tasks : ceil_div(count, 256 / kWarp);
}

// number OUT = -infinity.
template <class T>
FASTACT_KERNEL(256)
void fill_numbers(FASTACT_GRID_CONSTANT const Axes to, char* number, int dtype) {
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i < to.size) put_parameter<T>(number + locate(to, i).y, dtype, -infinity<double>(), false);
}

}  // namespace
FASTACT_END_NAMESPACE
