// softmax and its kin forward, functors of core/row_kernels.cuh; softmax.cu explains the passes.
#pragma once

#include "cuda/softmax/loss.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// fixed: softmax or log_softmax; kNoY, for all kinds without a y, which are told apart once a row;
// or kAnyKind, for rows that are neither quick nor columns, whose calls make kernels large. totals:
// the sums of the losses, blocks x [loss, weight]; null where they are not wanted.
template <class T, int fixed, bool may_share = false>
struct KindOf {
  using C = Compute<T>;
  using OfChunks = KindOf<T, fixed == kAnyKind ? kAnyKind : kNoY, may_share>;
  using Applied = KindOf<T, kAnyKind>;
  using Slow = KindOf<T, kAnyKind, true>;
  static constexpr bool kIsLarge = may_share, kAddsUp = fixed < 0, kMayWrite = fixed != kNoY;
  static constexpr int kChunkNumbers = kPeakFields, kRowNumbers = 3;  // max, factor, log
  template <int vecs>
  struct Row {
    Wide<T> z[vecs];
  };
  template <int n>
  struct Made {
    Level<C> of[n];
  };
  double* totals = nullptr;
  Slow slow() const { return {totals}; }

  static FASTACT_HD int kind_of(const SoftmaxRows& rows) { return fixed < 0 ? rows.kind : fixed; }
  static FASTACT_HD bool writes(const SoftmaxRows& rows) {
    return kMayWrite && kind_of(rows) < kSoftmaxMaps;
  }

  static FASTACT_HD bool takes_terms(const SoftmaxRows& rows) {
    return with_softmax_map(kind_of(rows), [](auto kind) { return kind.kTakesTerms; });
  }

  template <int vecs, class Rows>
  FASTACT_DEVICE void take(const Rows& rows, const RowPart& part, Row<vecs>& row, bool) const {
    take_scores<T>(rows, part, row.z);
  }
  template <int vecs, class Rows>
  FASTACT_DEVICE auto find(const Rows& rows, const RowPart& part, Row<vecs>& row, bool in_chunk,
                           int& fold_index) const {
    const bool shares = may_share && rows.shares;
    const PeakWays ways{!in_chunk && kMayWrite && takes_terms(rows),
                        (in_chunk || !writes(rows)) && !shares, shares};
    Peak<T, kRowsOfVec<T, Rows>> peak{};
    find_peak<T, may_share           ? 4
                 : fixed == kSoftmax ? 1
                                     : 2>(rows, part, ways, row.z, fold_index, &peak);
    return peak;
  }
  template <class Rows, int n>
  FASTACT_DEVICE Made<n> finish(const Rows& rows, const RowPart& part, const Peak<T, n>& peak,
                                double (&total)[2]) const {
    const bool ends = !writes(rows) || rows.data[kLse];
    Made<n> made;
    const bool wants_log = !kMayWrite || !takes_terms(rows) || ends;
#pragma unroll
    for (int s = 0; s < n; ++s) {
      RowSums sums = sums_of(peak, s);
      C of_sink = 0;
      constexpr bool kMayHaveSink = kMayWrite && !Rows::kQuick && fixed != kLogSoftmax;
      if (kMayHaveSink && rows.data[kSink]) {
        const int64_t row = part.row + (s < part.columns ? s : 0);
        of_sink = sink_term<T>(rows, row, peak.at[s], peak.max[s]);
        sums.rest += double(of_sink);
      }
      const auto level = [&](auto by) {
        return by(sums, peak.at[s], rows.data[kMask], rows.up, wants_log);
      };
      if constexpr (n > 1)
        made.of[s] = level(level_called<T>);
      else
        made.of[s] = level(level_of<T>);
      if (kMayHaveSink && part.lane == 0 && s < part.columns)
        put_share(rows, part.row + s, double(of_sink) * double(made.of[s].factor));
    }
    if (ends && part.lane == 0) {
#pragma unroll
      for (int s = 0; s < n; ++s)
        if (s < part.columns) end(rows, part.row + s, sums_of(peak, s), made.of[s], total);
    }
    return made;
  }
  template <int vecs, class Rows, int n>
  FASTACT_DEVICE void put(const Rows& rows, const RowPart& part, const Row<vecs>& row,
                          const Made<n>& made) const {
    const int kind = kind_of(rows);
    const C nothing = with_softmax_map(kind, [](auto as) { return C(as.kNothing); });
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= part.count) continue;
      Wide<T> y = row.z[i];
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const Level<C>& of = made.of[row_in_vec<Rows>(j)];
        y.lane[j] = with_softmax_map(kind, [&](auto as) {
          return as.y_of(y.lane[j], as.kTakesTerms ? of.factor : of.m, of.log);
        });
      }
      leave_out<T>(rows, part, i, nothing, &y);
      write_vec(rows, kY, part, i, narrow_vec<T>(y));
    }
  }
  template <class Rows>
  FASTACT_DEVICE void put_share(const Rows& rows, int64_t row, double share) const {
    put_number<T>(rows, kShare, row, sizeof(T) == 8 ? kF64 : kF32, share);
  }
  // Stores the numbers of a row.
  template <class Rows>
  FASTACT_DEVICE void end(const Rows& rows, int64_t row, const RowSums& sums, const Level<C>& level,
                          double (&total)[2]) const {
    put_number<T>(rows, kLse, row, sizeof(T) == 8 ? kF64 : kF32, double(level.lse));
    if (rows.data[kLse])
      put_number<T>(rows, kRest, row, sizeof(T) == 8 ? kF64 : kF32, double(level.rest));
    if (kind_of(rows) == kLogSumExp)
      put_number<T>(rows, kNumber, row, rows.dtypes.number, double(level.lse));
    if (kind_of(rows) != kLoss) return;
    const auto loss_by = [&](auto by) {
      return by(rows, row, sums.mass, sums.apart, level.max, level.log, may_share && rows.shares);
    };
    Loss loss;
    if constexpr (Rows::kColumns)
      loss = loss_by(loss_called<T, Rows>);
    else
      loss = loss_by(loss_of<T, Rows>);
    put_number<T>(rows, kNumber, row, rows.dtypes.number, loss.loss);
    total[0] += loss.loss;
    total[1] += loss.weight;
  }

  template <int n, class Put>
  FASTACT_DEVICE void store_chunk(const Peak<T, n>& peak, int s, const Put& put) const {
    put(0, double(peak.max[s]));
    put(1, divide(peak.rest[s], double(peak.at[s](peak.at[s].m))));
    put(2, peak.count[s]);
    if constexpr (may_share) put(3, peak.mass[s]), put(4, peak.apart[s]);
  }
  template <class Rows, class From>
  FASTACT_DEVICE RowSums merge(const Rows& rows, const From& from, int lane, int) const {
    return merge_peaks(from, lane, rows.chunks.count, rows.up, rows.shares);
  }
  template <class Rows>
  FASTACT_DEVICE void finish_merged(const Rows& rows, int64_t row, RowSums sums, double* to,
                                    double (&total)[2]) const {
    const double sink = rows.data[kSink] ? double(sink_of<T>(rows, row)) : 0.0;
    if (rows.data[kSink]) sums = with_sink(sums, sink, rows.up);
    const Level<C> level = merged_level<T>(sums, rows.data[kMask], rows.up);
    if (rows.data[kSink]) {
      const double share = term_below(sink, sums.max, rows.up) / (sums.rest + sums.count);
      put_share(rows, row, level.factor > 0 ? share : double(level.factor));
    }
    end(rows, row, sums, level, total);
    store(to, sums.max);
    store(to + 1, double(level.factor));
    store(to + 2, double(level.log));
  }
  template <int vecs, class Rows>
  FASTACT_DEVICE auto resume(const Rows& rows, const RowPart& part, const double* levels,
                             Row<vecs>& row) const {
    constexpr int n = kRowsOfVec<T, Rows>;
    const bool are_terms = takes_terms(rows);
    const C up = C(rows.up);
    Made<n> made{};
    if (part.idle) return made;
#pragma unroll
    for (int s = 0; s < n; ++s) {
      const double* from = levels + (part.row + (s < part.columns ? s : 0)) * kRowNumbers;
      const C m = reference_top(C(load(from)));
      const Move<C> move = Move<C>::of(m, up);
      const TermsAt<T> at = TermsAt<T>::of(move(m));
      made.of[s] = {{m, C(load(from + 2)), C(0), C(load(from + 1))}, at.m, C(0)};
#pragma unroll
      for (int i = 0; i < vecs; ++i)
#pragma unroll
        for (int j = s; j < Vec<T>::kSize; j += n) {
          C& value = row.z[i].lane[j];
          if (move.is_needed()) value = move(value);
          if (are_terms) value = at(value);
        }
    }
    return made;
  }
};

}  // namespace
FASTACT_END_NAMESPACE
