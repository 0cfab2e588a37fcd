// The forward kernels of softmax and its kin; softmax.cu explains the passes.
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, class Rows>
FASTACT_DEVICE void store_lse(const Rows& rows, int64_t row, Compute<T> lse) {
  put_number<T>(rows, kLse, row, sizeof(T) == 8 ? kF64 : kF32, double(lse));
}

template <class T, class Kind, class Rows, int n>
FASTACT_DEVICE void put_result(const Rows& rows, const RowPart& part, int i, Wide<T> y,
                               const Level<Compute<T>> (&level)[n]) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    y.lane[j] = Kind::result(y.lane[j], level[row_in_vec<Rows>(j)]);
  leave_out<T>(rows, part, i, Kind::kNothing, &y);
  write_vec(rows, kY, part, i, narrow_vec<T>(y));
}

// The kinds, functors of core/row_kernels.cuh: whether y is written, of a term or of z, with what
// stands where a mask leaves one out; and what a row's sums end in.
//
// What all kinds have. Its chunks' peaks are found alike for all without shares.
template <class T, class Kind, bool shares>
struct OfRows {
  using C = Compute<T>;
  static constexpr bool kWrites = true, kKeepsTerms = false, kAddsUp = false;
  static constexpr bool kHasShares = shares, kIsLarge = shares;
  static constexpr int kChunkNumbers = shares ? 5 : 3, kRowNumbers = 3;  // max, inverse, log
  template <int vecs>
  struct Row {
    Wide<T> z[vecs];
  };
  template <int n>
  struct Levels {
    Level<C> of[n];
  };
  // What a row ends in beside y.
  template <class Rows>
  FASTACT_DEVICE void end(const Rows& rows, const RowPart& part, int s, const RowSums&,
                          const Level<C>& level, double (&)[2]) const {
    store_lse<T>(rows, part.row + s, level.lse);
  }

  template <int vecs, class Rows>
  FASTACT_DEVICE void take(const Rows& rows, const RowPart& part, Row<vecs>& row) const {
    take_scores<T>(rows, part, row.z);
  }
  template <bool in_chunks, int vecs, class Rows>
  FASTACT_DEVICE auto find(const Rows& rows, const RowPart& part, Row<vecs>& row,
                           int& fold_index) const {
    Peak<T, kRowsOfVec<T, Rows>> peak{};
    find_peak<T, Kind>(rows, part, row.z, fold_index, &peak);
    return peak;
  }
  template <class Rows, int n>
  FASTACT_DEVICE Levels<n> finish(const Rows& rows, const RowPart& part, const Peak<T, n>& peak,
                                  double (&total)[2]) const {
    const bool ends = !Kind::kWrites || rows.data[kLse];
    Levels<n> level;
#pragma unroll
    for (int s = 0; s < n; ++s)
      level.of[s] = level_of<T>(sums_of(peak, s), peak.at[s], rows.data[kMask], rows.up,
                                !Kind::kKeepsTerms || ends);
    if (ends && part.lane == 0) {
#pragma unroll
      for (int s = 0; s < n; ++s)
        if (s < part.columns) kind().end(rows, part, s, sums_of(peak, s), level.of[s], total);
    }
    return level;
  }
  template <int vecs, class Rows, int n>
  FASTACT_DEVICE void put(const Rows& rows, const RowPart& part, const Row<vecs>& row,
                          const Levels<n>& level) const {
#pragma unroll
    for (int i = 0; i < vecs; ++i)
      if (i < part.count) put_result<T, Kind>(rows, part, i, row.z[i], level.of);
  }

  template <int n>
  FASTACT_DEVICE void store_chunk(const Peak<T, n>& peak, int s, double* to) const {
    store(to, double(peak.max[s]));
    store(to + 1, divide(peak.rest[s], double(peak.at[s](peak.at[s].m))));
    store(to + 2, peak.count[s]);
    if constexpr (shares) store(to + 3, peak.mass[s]), store(to + 4, peak.apart[s]);
  }
  template <class Rows>
  FASTACT_DEVICE RowSums merge(const Rows& rows, const double* peaks, int) const {
    return merge_peaks<kChunkNumbers>(peaks, rows.chunks.count, rows.up);
  }
  template <class Rows>
  FASTACT_DEVICE void finish_merged(const Rows& rows, int64_t row, const RowSums& sums, double* to,
                                    double (&total)[2]) const {
    const Level<C> level = merged_level<T>(sums, rows.data[kMask], rows.up);
    RowPart part{};
    part.row = row;
    if (Rows::kColumns)
      part.outer = quotient(row, rows.inner), part.at = row - part.outer * rows.inner;
    kind().end(rows, part, 0, sums, level, total);
    if (!Kind::kWrites) return;
    store(to, sums.max);
    store(to + 1, double(level.inverse));
    store(to + 2, double(level.log));
  }
  template <class Rows>
  FASTACT_DEVICE void apply(const Rows& rows, const RowPart& part, const double* levels) const {
    constexpr int n = kRowsOfVec<T, Rows>, vecs = kMostVecs<T>;
    const C up = C(rows.up);
    Levels<n> level;
    Move<C> move[n];
    TermsAt<T> at[n];
#pragma unroll
    for (int s = 0; s < n; ++s) {
      const double* from = levels + (part.row + (s < part.columns ? s : 0)) * kRowNumbers;
      const C max = C(load(from)), m = max == -infinity<C>() ? C(0) : max;
      move[s] = Move<C>::of(m, up);
      at[s] = TermsAt<T>::of(move[s](m));
      level.of[s] = {m, at[s].m, C(load(from + 1)), C(load(from + 2)), C(0)};
    }
    Row<vecs> row;
    take(rows, part, row);
#pragma unroll
    for (int i = 0; i < vecs; ++i)
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const int s = row_in_vec<Rows>(j);
        C& value = row.z[i].lane[j];
        if (move[s].is_needed()) value = move[s](value);
        if constexpr (Kind::kKeepsTerms) value = at[s](value);
      }
    put(rows, part, row, level);
  }

 private:
  FASTACT_DEVICE const Kind& kind() const { return static_cast<const Kind&>(*this); }
};

// Of a kind whose peaks alone are wanted.
template <class T, bool shares>
struct PeakOf : OfRows<T, PeakOf<T, shares>, shares> {
  static constexpr bool kWrites = false;
};

template <class T>
struct SoftmaxOf : OfRows<T, SoftmaxOf<T>, false> {
  using C = Compute<T>;
  using OfChunks = PeakOf<T, false>;
  static constexpr bool kKeepsTerms = true;
  static constexpr C kNothing = 0;
  static FASTACT_DEVICE C result(C term, const Level<C>& of) { return term * of.inverse; }
};
template <class T>
struct LogSoftmaxOf : OfRows<T, LogSoftmaxOf<T>, false> {
  using C = Compute<T>;
  using OfChunks = PeakOf<T, false>;
  static constexpr C kNothing = C(-__builtin_inf());
  static FASTACT_DEVICE C result(C z, const Level<C>& of) { return (z - of.m) - of.log; }
};
template <class T>
struct LogSumExpOf : OfRows<T, LogSumExpOf<T>, false> {
  using OfChunks = PeakOf<T, false>;
  static constexpr bool kWrites = false;
  template <class Rows>
  FASTACT_DEVICE void end(const Rows& rows, const RowPart& part, int s, const RowSums&,
                          const Level<Compute<T>>& level, double (&)[2]) const {
    store_lse<T>(rows, part.row + s, level.lse);
    put_number<T>(rows, kNumber, part.row + s, rows.number_dtype, double(level.lse));
  }
};

// Queues the kernels of a kind; how many blocks have totals. workspace: of peaks and levels.
template <class T, class Kind>
int64_t run_kind(const SoftmaxPlan& plan, const Kind& kind, void* workspace, cudaStream_t stream) {
  int64_t blocks = 0;
  for_layout<T, !Kind::kHasShares>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    blocks = run_forward<T, decltype(vecs)::value>(rows, kind, shape, workspace, stream);
  });
  return blocks;
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
