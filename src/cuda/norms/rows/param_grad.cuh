// The sums behind dweight and dbias: of a block's columns, of the runs of one row, and of all
// chunks.
#pragma once

#include "cuda/norms/rows/smem_cache.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Adds the sums of all teams of a group to the chunk's partials. group: the block's first.
template <class T, class Cache>
FASTACT_DEVICE void flush(const NormRows& rows, const Cache& cache, int64_t chunk, int64_t group,
                          bool is_first) {
  constexpr int kSize = Vec<T>::kSize;
  const int lanes = rows.lanes, columns = rows.per_lane * lanes, beside = cache.plan.beside;
  __syncthreads();
#pragma unroll 1
  for (int n = int(threadIdx.x); n < beside * columns; n += int(blockDim.x)) {
    const int here = n / columns, k = n - here * columns;
    const int i = k / lanes, lane = k - i * lanes;
    if (k >= vecs_of<T>(rows) || group + here >= rows.groups) continue;
    const int teams = rows.teams / beside, first = here * teams;
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      double sum[kSize] = {};
      for (int team = first; team < first + teams; ++team) {
        const Wide<T> part = cache.sums(i, which, team * lanes + lane);
#pragma unroll
        for (int j = 0; j < kSize; ++j) sum[j] += double(part.lane[j]);
      }
      double* to =
          cache.plan.partials +
          ((which * cache.plan.count + chunk) * rows.groups + group + here) * cache.plan.padded +
          int64_t(k) * kSize;
#pragma unroll
      for (int j = 0; j < kSize; j += 2) {
        Vec<double> two{{sum[j], sum[j + 1]}};
        if (!is_first) {
          const Vec<double> before = load_vec(to + j);
          two.lane[0] += before.lane[0], two.lane[1] += before.lane[1];
        }
        store_vec(to + j, two);
      }
    }
  }
  __syncthreads();
}

template <class T, class Cache>
FASTACT_DEVICE void clear(const Cache& cache, const Partition& partition) {
#pragma unroll 1
  for (int i = 0; i < partition.count; ++i) {
    cache.put_sums(i, 0, int(threadIdx.x), Wide<T>{});
    cache.put_sums(i, 1, int(threadIdx.x), Wide<T>{});
  }
}

// The sums of each run of one row, which the block has to itself.
template <class T, bool identity, class Rows, class Cache>
FASTACT_DEVICE void add_run_sums(const Rows& rows, const Cache& cache, const Partition& partition,
                                 int r, Compute<T> mean, Compute<T> rstd, int64_t chunk,
                                 int64_t group, bool is_first) {
  constexpr int kSize = Vec<T>::kSize;
  const int lanes = cache.plan.run_lanes, teams = int(blockDim.x) / lanes;
  const int team = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  int sum_index = 0;
  __syncthreads();
  for (int64_t s0 = 0; s0 < rows.params; s0 += teams) {
    const int64_t param = s0 + team;
    const bool idle = param >= rows.params;
    const int64_t begin = param * rows.run, end = begin + rows.run;
    double sums[2] = {};
#pragma unroll 1
    for (int64_t q = begin / kSize + lane; !idle && q * kSize < end; q += lanes) {
      const int valid = int(smaller(rows.length - q * kSize, kSize));
      const int i = int(q / rows.lanes), owner = int(q - int64_t(i) * rows.lanes);
      const bool cached = Rows::kDense && i < rows.resident;
      Wide<T> p = cached ? cache.p(r, i, owner)
                         : recompute_p<T, identity>(rows, mean, rstd, partition.row, q, valid);
      Wide<T> xhat = xhat_of(cached ? cache.vec(cache.x_slot(r, i), owner)
                                    : read<T>(rows, kIn, partition.row, q, valid),
                             mean, rstd);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const bool inside = q * kSize + j >= begin && q * kSize + j < end;
        p.lane[j] = inside ? p.lane[j] : 0;
        xhat.lane[j] = inside ? xhat.lane[j] : 0;
      }
      sums[0] += dot<T>(p, xhat);
      sums[1] += lanes_of<T>(p);
    }
    team_sum(sums, lanes, sum_index);
    if (idle || lane > 0) continue;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      double* to = cache.plan.partials +
                   ((which * cache.plan.count + chunk) * rows.groups + group) * cache.plan.padded +
                   param;
      store(to, is_first ? sums[which] : load(to) + sums[which]);
    }
  }
  __syncthreads();
}

// One gradient of the parameters: its partials added up, and where the sums go.
struct NormGradient {
  const double* partials;  // IN, count x groups x padded
  int64_t count, groups, padded, params;
  char* to;  // OUT, or IN/OUT with accumulate
  int dtype;
  bool accumulate;
  Axes axes;  // of the parameters; y: of `to`
};

// 32 parameters a block, eight threads to the chunks of each.
template <class T>
FASTACT_KERNEL(256)
void norm_parameters(FASTACT_GRID_CONSTANT const NormGradient gradient) {
  constexpr int kParts = 256 / kWarp;
  FASTACT_SHARED(double, parts, 256);
  const int lane = int(threadIdx.x) % kWarp, part = int(threadIdx.x) / kWarp;
  const int64_t all = gradient.groups * gradient.params;
  for (int64_t first = int64_t(blockIdx.x) * kWarp; first < all;
       first += int64_t(gridDim.x) * kWarp) {
    const int64_t param = first + lane;
    double sum = 0;
    if (param < all) {
      const int64_t group = quotient(param, gradient.params);
      const double* from =
          gradient.partials + group * gradient.padded + param - group * gradient.params;
      for (int64_t c = part; c < gradient.count; c += kParts)
        sum += load(from + c * gradient.groups * gradient.padded);
    }
    parts[part * kWarp + lane] = sum;
    __syncthreads();
    if (part == 0 && param < all) {
      for (int k = 1; k < kParts; ++k) sum += double(parts[k * kWarp + lane]);
      put_parameter<T>(gradient.to + locate(gradient.axes, param).y, gradient.dtype, sum,
                       gradient.accumulate);
    }
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
