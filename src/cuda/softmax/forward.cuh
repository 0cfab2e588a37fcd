// The forward kernels of softmax, log_softmax and logsumexp; softmax.cu explains the passes.
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kPeakFields = 3;   // numbers of a chunk's peak: max, rest, count
constexpr int kLevelFields = 3;  // and of a row's level: m, inverse, log

template <class T, class Rows, int n>
FASTACT_DEVICE void store_lse(const Rows& rows, const Part& part,
                              const Level<Compute<T>> (&level)[n]) {
  if (part.lane > 0) return;
#pragma unroll
  for (int s = 0; s < n; ++s) {
    if (s >= part.columns) break;
    const int64_t row = part.row + s;
    const double lse = double(level[s].lse);
    put_number<T>(rows, kLse, row, sizeof(T) == 8 ? kF64 : kF32, lse);
    if (rows.kind == kLogSumExp) put_number<T>(rows, kNumber, row, rows.number_dtype, lse);
  }
}

// Pass 3: y. has_terms: those of the cache.
template <class T, bool masked, bool has_terms, class Rows, class Scores, int n>
FASTACT_DEVICE void put_softmax(const Rows& rows, const Part& part, const Scores& scores,
                                const Level<Compute<T>> (&level)[n]) {
  constexpr int kSize = Vec<T>::kSize;
#pragma unroll 1
  for (int i = 0; i < part.count; ++i) {
    const int valid = lanes_there<T>(rows, part, i);
    Wide<T> y;
    if (has_terms && kCachesWide<T, masked> && scores.has(i)) {
      y = scores.wide(i);
    } else {
      y = scores.z(part, i, valid);
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        y.lane[j] =
            term_of<T>(difference<T>(y.lane[j], level[row_in_vec<Rows>(j)].m, Compute<T>(rows.up)));
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) y.lane[j] *= level[row_in_vec<Rows>(j)].inverse;
    leave_out<T, masked>(rows, part, i, valid, Compute<T>(0), &y);
    write_vec(rows, kY, part, i, valid, narrow_vec<T>(y));
  }
}
template <class T, bool masked, class Rows, class Scores, int n>
FASTACT_DEVICE void put_log_softmax(const Rows& rows, const Part& part, const Scores& scores,
                                    const Level<Compute<T>> (&level)[n]) {
#pragma unroll 1
  for (int i = 0; i < part.count; ++i) {
    const int valid = lanes_there<T>(rows, part, i);
    Wide<T> y = scores.z(part, i, valid);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const Level<Compute<T>>& of = level[row_in_vec<Rows>(j)];
      const auto at = difference<T>(y.lane[j], of.m, Compute<T>(rows.up));
      y.lane[j] = (at.d - of.log) + at.low;
    }
    leave_out<T, masked>(rows, part, i, valid, -infinity<Compute<T>>(), &y);
    write_vec(rows, kY, part, i, valid, narrow_vec<T>(y));
  }
}
template <class T, bool masked, bool has_terms, class Rows, class Scores, int n>
FASTACT_DEVICE void put_result(const Rows& rows, const Part& part, const Scores& scores,
                               const Level<Compute<T>> (&level)[n]) {
  if (rows.kind == kSoftmax)
    put_softmax<T, masked, has_terms>(rows, part, scores, level);
  else if (rows.kind == kLogSoftmax)
    put_log_softmax<T, masked>(rows, part, scores, level);
}

// Rows of some lanes of a warp or of a block, and columns.
template <class T, bool masked, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows, masked>))
void softmax_forward_rows(FASTACT_GRID_CONSTANT const Rows rows) {
  constexpr int n = kRowsOfVec<T, Rows>;
  const auto memory = dynamic_shared<Quad>();
  const Scores<T, masked, Rows, std::decay_t<decltype(memory)>> scores{{memory}, rows};
  int fold_index = 0;
  for_each_part<T>(rows, [&](const Part& part, bool idle) {
    Peak<n> peak;
    find_peak<T, masked, false>(rows, part, scores, fold_index, &peak);
    if (idle) return;
    Level<Compute<T>> level[n];
#pragma unroll
    for (int s = 0; s < n; ++s)
      level[s] = level_of<Compute<T>>(peak.max[s], peak.rest[s], peak.count[s], masked, rows.up);
    store_lse<T>(rows, part, level);
    put_result<T, masked, true>(rows, part, scores, level);
  });
}

// Rows of several blocks each.
struct SoftmaxChunks : RowChunks {
  double* peaks;   // OUT of the first kernel: rows x count x [max, rest, count]
  double* levels;  // OUT of the second: rows x [m, inverse, log]
};

template <int fields, int n>
FASTACT_DEVICE void store_peak(double* to, const Peak<n>& peak) {
  store(to, peak.max[0]);
  store(to + 1, peak.rest[0]);
  store(to + 2, peak.count[0]);
  if constexpr (fields > 3) {
    store(to + 3, peak.mass[0]);
    store(to + 4, peak.apart[0]);
  }
}

template <class T, bool masked, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kSoftmaxBlocks<T, Rows, masked>))
void softmax_peaks(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  const auto memory = dynamic_shared<Quad>();
  const Scores<T, masked, Rows, std::decay_t<decltype(memory)>> scores{{memory}, rows};
  int fold_index = 0;
  for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t task) {
    Peak<1> peak;
    find_peak<T, masked, false>(rows, Part{partition, 0, 0, 1}, scores, fold_index, &peak);
    if (partition.lane == 0) store_peak<kPeakFields>(chunks.peaks + task * kPeakFields, peak);
  });
}

template <class T, class Rows>
FASTACT_KERNEL(256)
void softmax_merge(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  for_each_of_warps(rows.count, [&](int64_t row, int lane, bool idle) {
    const double* peaks = chunks.peaks + (idle ? 0 : row) * chunks.count * kPeakFields;
    const Peak<1> peak = merge_peaks<kPeakFields>(peaks, chunks.count, rows.up);
    if (idle || lane > 0) return;
    const Level<Compute<T>> level[1] = {level_of<Compute<T>>(
        peak.max[0], peak.rest[0], peak.count[0], rows.data[kMask] != nullptr, rows.up)};
    double* to = chunks.levels + row * kLevelFields;
    store(to, double(level[0].m));
    store(to + 1, double(level[0].inverse));
    store(to + 2, double(level[0].log));
    store_lse<T>(rows, Part{{row, 0, 0, 1, 0}, 0, 0, 1}, level);
  });
}

template <class T, bool masked, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kSoftmaxBlocks<T, Rows, masked>))
void softmax_apply(FASTACT_GRID_CONSTANT const Rows rows, const SoftmaxChunks chunks) {
  using C = Compute<T>;
  const auto memory = dynamic_shared<Quad>();  // nothing is in it: rows.resident is 0
  const Scores<T, masked, Rows, std::decay_t<decltype(memory)>> scores{{memory}, rows};
  for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t) {
    const double* from = chunks.levels + partition.row * kLevelFields;
    const Level<C> level[1] = {{C(load(from)), C(load(from + 1)), C(load(from + 2)), C(0)}};
    put_result<T, masked, false>(rows, Part{partition, 0, 0, 1}, scores, level);
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
