// Backward of long rows, in three kernels (norms.cu says which rows are long).
//
//   norm_long_sums        one block per chunk of a row     the sums of g and of g xhat of the chunk
//   norm_long_means       one warp per row                 their means over the row
//   norm_long_gradients   one block per tile of columns    dx, and the sums of the columns
//
// A single row so occupies the whole device. In the third kernel a thread has one vector of columns
// and goes down the rows of its part of the batch: weight is read once, the sums stay with the
// thread, and no thread waits for another. x and dy are read twice.
#pragma once

#include "cuda/norms/rows/backward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kRowSumThreads = 256;  // of a block of the first kernel
constexpr int kColumnThreads = 128;  // of the third

// The chunks of a row, beside those of the batch in NormBackward.
struct NormLong {
  int64_t size, count;  // vectors of a chunk, chunks of a row
  double* chunk_sums;   // OUT of the first kernel, rows x count x [sum of g, of g xhat]
  double* means;        // OUT of the second, rows x [mean of g, of g xhat]
};

template <class C, class Rows>
FASTACT_DEVICE RowStats<C> statistics_of(const Rows& rows, int64_t row) {
  RowStats<C> stats{};
  if (rows.data[kMeanRole]) stats.mean = load(number_of<C>(rows, kMeanRole, row));
  stats.rstd = load(number_of<C>(rows, kRstdRole, row));
  return stats;
}

template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF(kRowSumThreads, 2)
void norm_long_sums(FASTACT_GRID_CONSTANT const Rows rows, const NormLong plan) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  int sum_index = 0;
  for (int64_t task = blockIdx.x; task < rows.count * plan.count; task += gridDim.x) {
    const int64_t row = quotient(task, plan.count), begin = (task - row * plan.count) * plan.size;
    const Partition partition =
        partition_of(row, begin, smaller(begin + plan.size, vecs_of<T>(rows)), int(threadIdx.x),
                     kRowSumThreads, false);
    const RowStats<C> stats = statistics_of<C>(rows, row);
    double sums[2] = {};
    int i = 0;
    if constexpr (identity) {
      for_weight<T>(rows, [&](auto given) {
        const int whole = whole_of<T>(rows, partition);
        const char* const base = parameters_base(rows, kWeightRole, row);
        const T* const x = row_of<T>(rows, kIn, row);
        const T* const dy = row_of<T>(rows, kDy, row);
        int q = int(partition.first);
#pragma unroll 1
        for (; i + 2 <= whole; i += 2, q += 2 * kRowSumThreads) {
          Vec<T> in[2], out[2];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            in[k] = load_vec(x + int64_t(q + k * kRowSumThreads) * kSize);
            out[k] = load_vec(dy + int64_t(q + k * kRowSumThreads) * kSize);
          }
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const Wide<T> weight = quick_parameters<T, decltype(given)::value>(
                rows, kWeightRole, base, rows.weight_dtype, C(1), q + k * kRowSumThreads);
            add_row_sums<T>(rows, widen_vec(out[k]), xhat_of<T>(in[k], stats.mean, stats.rstd),
                            weight, sums);
          }
        }
      });
    }
#pragma unroll 1
    for (; i < partition.count; ++i) {
      const int valid = valid_of<T>(rows, partition, i);
      const int64_t q = partition.vec(i);
      Wide<T> p = recompute_p<T, identity>(rows, stats.mean, stats.rstd, row, q, valid);
      if (valid < kSize) zero_tail<T>(p, valid);
      Wide<T> xhat = xhat_of<T>(read<T>(rows, kIn, row, q, valid), stats.mean, stats.rstd);
      if (valid < kSize) zero_tail<T>(xhat, valid);
      add_row_sums<T>(rows, p, xhat, weight_of<T>(rows, row, q, valid), sums, rows.casts);
    }
    team_sum(sums, kRowSumThreads, sum_index);
    if (threadIdx.x > 0) continue;
    store(plan.chunk_sums + 2 * task, sums[0]);
    store(plan.chunk_sums + 2 * task + 1, sums[1]);
  }
}

template <class T>
FASTACT_KERNEL(256)
void norm_long_means(FASTACT_GRID_CONSTANT const NormRows rows, const NormLong plan) {
  for_each_of_warps(rows.count, [&](int64_t row, int lane, bool idle) {
    const double* chunk_sums = plan.chunk_sums + 2 * plan.count * (idle ? 0 : row);
    double sums[2] = {};
    for (int64_t c = lane; c < plan.count; c += kWarp) {
      sums[0] += load(chunk_sums + 2 * c);
      sums[1] += load(chunk_sums + 2 * c + 1);
    }
    sums[0] = warp_sum(sums[0]), sums[1] = warp_sum(sums[1]);
    if (idle || lane > 0) return;
    store(plan.means + 2 * row, sums[0] / double(rows.length));
    store(plan.means + 2 * row + 1, sums[1] / double(rows.length));
  });
}

// Index of a thread's own sum in shared memory: [dweight, dbias] x elements of a vector x threads.
template <class T>
FASTACT_DEVICE int own_sum(int which, int j) {
  return (which * Vec<T>::kSize + j) * kColumnThreads + int(threadIdx.x);
}

template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF(kColumnThreads, 4)
void norm_long_gradients(FASTACT_GRID_CONSTANT const Rows rows,
                         FASTACT_GRID_CONSTANT const NormBackward plan, const NormLong parts) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  FASTACT_SHARED(double, totals, 2 * kSize * kColumnThreads);
  // Of activations in shared memory: nothing wide lives across their call.
  FASTACT_SHARED(C, held, identity ? 1 : 2 * kSize * kColumnThreads);
  const int64_t tiles = (vecs_of<T>(rows) + kColumnThreads - 1) / kColumnThreads;
  const int64_t task = blockIdx.x, part = quotient(task, tiles);
  const int64_t chunk = quotient(part, rows.groups), group = part - chunk * rows.groups;
  const int64_t q = (task - part * tiles) * kColumnThreads + threadIdx.x;
  if (q >= vecs_of<T>(rows)) return;
  const int valid = int(smaller(rows.length - q * kSize, kSize));
  const int64_t begin = chunk * plan.size, end = smaller(begin + plan.size, rows.batch);
  const bool has_columns = plan.has_columns;
  Wide<T> sums[2] = {};
  const auto each_sum = [&](auto visit) {
    if (!has_columns) return;
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int j = 0; j < kSize; ++j) visit(own_sum<T>(which, j), sums[which].lane[j]);
  };
  each_sum([&](int at, C) {
    totals[at] = 0.0;
    if constexpr (!identity) held[at] = C(0);
  });
  const auto stats_of = [&](int64_t row) {
    RowStats<C> stats = statistics_of<C>(rows, row);
    if (!rows.data[kDx]) return stats;
    stats.mean_g = C(load(parts.means + 2 * row));
    stats.mean_g_xhat = C(load(parts.means + 2 * row + 1));
    return stats;
  };
  const auto flush = [&] {
    each_sum([&](int at, C& sum) {
      if constexpr (!identity) sum = held[at];
      totals[at] += double(sum);
      sum = 0;
      if constexpr (!identity) held[at] = C(0);
    });
  };
  int64_t b = begin;
  int added = 0;
  if constexpr (identity) {
    if (rows.quick && valid == kSize) {
      const Wide<T> weight = quick_parameters<T, kAnything>(
          rows, kWeightRole, parameters_base(rows, kWeightRole, group), rows.weight_dtype, C(1),
          int(q));
      const bool plain = !rows.accumulate && !rows.data[kDTotal];
      const auto begin_of = [&](int role) {
        return row_of<T>(rows, role, begin * rows.groups + group) + q * kSize;
      };
      const T *x = begin_of(kIn), *dy = begin_of(kDy);
      T* dx = begin_of(kDx);
      const auto step = [&](int role) {
        return rows.groups * rows.pitch[role] / int64_t(sizeof(T));
      };
      const int64_t to_x = step(kIn), to_dy = step(kDy), to_dx = step(kDx);
      const auto one = [&](const Vec<T>& in, const Vec<T>& out) {
        const int64_t row = b * rows.groups + group;
        const RowStats<C> stats = stats_of(row);
        const Wide<T> p = widen_vec(out), xhat = xhat_of<T>(in, stats.mean, stats.rstd);
        if (has_columns) add_column_sums<T>(p, xhat, sums[0], sums[1]);
        if (plain && rows.data[kDx])
          store_vec(dx, narrow_vec<T>(gradient_of<T>(stats, p, xhat, weight)));
        else if (rows.data[kDx])
          store_gradient<T>(rows, stats, p, xhat, weight, row, q, kSize);
        ++b, dx += to_dx;
      };
#pragma unroll 1
      while (b + 2 <= end) {
        const Vec<T> x0 = load_vec(x), dy0 = load_vec(dy);
        const Vec<T> x1 = load_vec(x + to_x), dy1 = load_vec(dy + to_dy);
        x += 2 * to_x, dy += 2 * to_dy;
        one(x0, dy0);
        one(x1, dy1);
        if ((added += 2) == kSumRows) flush(), added = 0;
      }
    }
  }
#pragma unroll 1
  for (; b < end; ++b) {
    const int64_t row = b * rows.groups + group;
    const RowStats<C> stats = stats_of(row);
    const Wide<T> p = recompute_p<T, identity>(rows, stats.mean, stats.rstd, row, q, valid);
    const Wide<T> xhat = xhat_of<T>(read<T>(rows, kIn, row, q, valid), stats.mean, stats.rstd);
    if constexpr (!identity) each_sum([&](int at, C& sum) { sum = held[at]; });
    if (has_columns) add_column_sums<T>(p, xhat, sums[0], sums[1], rows.casts);
    if constexpr (!identity) each_sum([&](int at, C& sum) { held[at] = sum; });
    if (rows.data[kDx])
      store_gradient<T>(rows, stats, p, xhat, weight_of<T>(rows, group, q, valid), row, q, valid);
    if (++added == kSumRows) flush(), added = 0;
  }
  flush();
  if (!has_columns) return;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    double* to = plan.partials +
                 ((which * plan.count + chunk) * rows.groups + group) * plan.padded + q * kSize;
#pragma unroll
    for (int j = 0; j < kSize; j += 2)
      store_vec(to + j, Vec<double>{{double(totals[own_sum<T>(which, j)]),
                                     double(totals[own_sum<T>(which, j + 1)])}});
  }
}

}  // namespace
FASTACT_END_NAMESPACE
