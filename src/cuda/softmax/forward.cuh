// The forward kernels of softmax, log_softmax and logsumexp; softmax.cu explains the passes.
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// What the kinds write, of a term or of z: the last step of each element, and what stands where a
// mask leaves one out.
template <class T>
struct SoftmaxOf {
  using C = Compute<T>;
  static constexpr bool kKeepsTerms = true, kHasShares = false;
  static constexpr C kNothing = 0;
  static FASTACT_DEVICE C result(C term, const Level<C>& of) { return term * of.inverse; }
};
template <class T>
struct LogSoftmaxOf {
  using C = Compute<T>;
  static constexpr bool kKeepsTerms = false, kHasShares = false;
  static constexpr C kNothing = C(-__builtin_inf());
  static FASTACT_DEVICE C result(C z, const Level<C>& of) { return (z - of.m) - of.log; }
};
// Of those that write nothing. shares: of a loss in which all classes have a share.
template <bool shares>
struct SumsAlone {
  static constexpr bool kKeepsTerms = false, kHasShares = shares;
};

constexpr int kPeakFields = 3, kLossFields = 5;  // numbers of a chunk's peak, and with its shares

template <class T, class Rows>
FASTACT_DEVICE void store_lse(const Rows& rows, int64_t row, Compute<T> lse) {
  put_number<T>(rows, kLse, row, sizeof(T) == 8 ? kF64 : kF32, double(lse));
  if (rows.kind == kLogSumExp) put_number<T>(rows, kNumber, row, rows.number_dtype, double(lse));
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
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows>))
void softmax_forward_rows(FASTACT_GRID_CONSTANT const Rows rows, const RowChunks chunks) {
  constexpr int n = kRowsOfVec<T, Rows>;
  int fold_index = 0;
  for_each_part<T, vecs>(rows, chunks, [&](const Part& part, bool idle) {
    Wide<T> z[vecs];
    take_scores<T>(rows, part, z);
    Peak<T, n> peak;
    find_peak<T, Kind>(rows, part, z, fold_index, &peak);
    if (idle) return;
    constexpr bool kWrites = !std::is_same_v<Kind, SumsAlone<false>>;
    const bool has_lse = rows.data[kLse] || !kWrites;
    Level<Compute<T>> level[n];
#pragma unroll
    for (int s = 0; s < n; ++s)
      level[s] = level_of<T>(sums_of(peak, s), peak.at[s], rows.data[kMask], rows.up,
                             !Kind::kKeepsTerms || has_lse);
    if (has_lse && part.lane == 0) {
#pragma unroll
      for (int s = 0; s < n; ++s)
        if (s < part.columns) store_lse<T>(rows, part.row + s, level[s].lse);
    }
    if constexpr (kWrites) {
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        if (i < part.count) put_result<T, Kind>(rows, part, i, z[i], level);
    }
  });
}

// Of rows that no block holds: the peaks of chunks, the level of each row, and y.
template <class T, class Kind, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows, Kind::kHasShares>))
void softmax_peaks(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  int fold_index = 0;
  constexpr int vecs = kMostVecs<T>;
  for_each_part<T, vecs>(rows, chunks, [&](const Part& part, bool) {
    Wide<T> z[vecs];
    take_scores<T>(rows, part, z);
    Peak<T, kRowsOfVec<T, Rows>> peak;
    find_peak<T, Kind>(rows, part, z, fold_index, &peak);
    store_peaks<Kind::kHasShares ? kLossFields : kPeakFields>(rows, chunks, part, peak);
  });
}

template <class T, class Rows>
FASTACT_KERNEL(256)
void softmax_merge(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  for_each_of_warps(rows.count, [&](int64_t row, int lane, bool idle) {
    const double* peaks = chunks.peaks + (idle ? 0 : row) * chunks.count * kPeakFields;
    const RowSums sums = merge_peaks<kPeakFields>(peaks, chunks.count, rows.up);
    if (idle || lane > 0) return;
    const Level<Compute<T>> level = merged_level<T>(sums, rows.data[kMask], rows.up);
    double* to = chunks.levels + row * kPeakFields;
    store(to, sums.max);
    store(to + 1, double(level.inverse));
    store(to + 2, double(level.log));
    store_lse<T>(rows, row, level.lse);
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
      const double* from = chunks.levels + (part.row + (s < part.columns ? s : 0)) * kPeakFields;
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

// number OUT = -infinity.
template <class T>
FASTACT_KERNEL(256)
void fill_numbers(FASTACT_GRID_CONSTANT const Axes to, char* number, int dtype) {
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i < to.size) put_parameter<T>(number + locate(to, i).y, dtype, -infinity<double>(), false);
}

}  // namespace
FASTACT_END_NAMESPACE
