// The backward kernel of the norms; norms.cu explains its steps, common/norms/norms.h the
// gradients.
#pragma once

#include <type_traits>

#include "cuda/norms/rows/param_grad.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The rows of a tile that a team has, every step-th of the batch from `first` on.
struct Tile {
  int64_t first, step, end, group;
  int rows;  // of the tile; fewer at the end of a chunk
};
FASTACT_DEVICE Tile tile_of(int64_t first, int64_t step, int64_t end, int64_t group, int most) {
  Tile tile{first, step, end, group, 0};
#pragma unroll 1
  while (tile.rows < most && first + tile.rows * step < end) ++tile.rows;
  return tile;
}

// Step 1: x and dy of a tile are read and cached, two vectors of each at a time where they are
// whole. Arrays of any strides have no registers to spare for that: theirs are read again in each
// step.
template <class T, class Rows, class Cache>
FASTACT_DEVICE void fetch_tile(const Rows& rows, const Cache& cache, const Partition& partition,
                               const Tile& tile) {
  if (!Rows::kDense || tile.rows == 0) return;
  constexpr int kSize = Vec<T>::kSize;
  const int mine = int(threadIdx.x);
  int i = 0;
  if (rows.fast[kIn] && rows.fast[kDy]) {
    const int whole = int(smaller(whole_of<T>(rows, partition), rows.resident));
    const int64_t row = tile.first * rows.groups + tile.group, row_step = tile.step * rows.groups;
    const T* x = row_of<T>(rows, kIn, row) + partition.first * kSize;
    const T* dy = row_of<T>(rows, kDy, row) + partition.first * kSize;
    const bool down = tile.rows > 1;  // pairs of rows, or of vectors of the only one
    const int64_t to_x =
        down ? row_step * rows.pitch[kIn] / int64_t(sizeof(T)) : partition.lanes * kSize;
    const int64_t to_dy =
        down ? row_step * rows.pitch[kDy] / int64_t(sizeof(T)) : partition.lanes * kSize;
    const int slot = cache.at(1 + cache.kP, 0), to = down ? slot * rows.resident : slot;
    const int count = down ? tile.rows : whole, passes = down ? whole : int(smaller(whole, 1));
    int begin = mine;
#pragma unroll 1
    for (; i < passes;
         ++i, begin += slot, x += partition.lanes * kSize, dy += partition.lanes * kSize) {
      const T *from_x = x, *from_dy = dy;
      int at = begin, k = 0;
#pragma unroll 1
      for (; k + 2 <= count; k += 2, from_x += 2 * to_x, from_dy += 2 * to_dy, at += 2 * to) {
        const Vec<T> x0 = load_vec(from_x), dy0 = load_vec(from_dy);
        const Vec<T> x1 = load_vec(from_x + to_x), dy1 = load_vec(from_dy + to_dy);
        cache.to(at, x0);
        cache.to(at + int(blockDim.x), dy0);
        cache.to(at + to, x1);
        cache.to(at + to + int(blockDim.x), dy1);
      }
      if (k < count) {
        const Vec<T> x0 = load_vec(from_x), dy0 = load_vec(from_dy);
        cache.to(at, x0);
        cache.to(at + int(blockDim.x), dy0);
      }
    }
    if (!down) i = whole;
  }
#pragma unroll 1
  for (; i < rows.resident && i < partition.count; ++i) {
    const int valid = valid_of<T>(rows, partition, i);
    const int64_t q = partition.vec(i);
#pragma unroll 1
    for (int r = 0; r < tile.rows; ++r) {
      const int64_t row = (tile.first + r * tile.step) * rows.groups + tile.group;
      cache.put(cache.x_slot(r, i), mine, read<T>(rows, kIn, row, q, valid));
      cache.put(cache.x_slot(r, i) + 1, mine, read<T>(rows, kDy, row, q, valid));
    }
  }
}

// Runs visit(given) for rows that are quick, with how their weight is given.
template <class T, class Visit>
FASTACT_DEVICE void for_weight(const NormRows& rows, Visit visit) {
  if (!rows.quick) return;
  if (is_own(rows, kWeightRole, rows.weight_dtype, kDTypeOf<T>))
    visit(std::integral_constant<Given, kVecs>());
  else
    visit(std::integral_constant<Given, kAnything>());
}

// Step 2, of one row: p, and the sums of g and of g xhat of this thread.
template <class T, bool identity, class Rows, class Cache>
FASTACT_DEVICE void add_up(const Rows& rows, const Cache& cache, const Partition& partition, int r,
                           Compute<T> mean, Compute<T> rstd, double (&sums)[2]) {
  using C = Compute<T>;
  const int mine = int(threadIdx.x);
  sums[0] = sums[1] = 0;
  int i = 0;
  if constexpr (identity && Rows::kDense) {
    for_weight<T>(rows, [&](auto given) {
      const int whole = int(smaller(whole_of<T>(rows, partition), rows.resident));
      const char* const base = parameters_base(rows, kWeightRole, partition.row);
      const int slot = cache.at(2, 0);
      int q = int(partition.first), at = cache.at(cache.x_slot(r, 0), mine);
#pragma unroll 1
      for (; i < whole; ++i, q += partition.lanes, at += slot) {
        const Wide<T> weight = quick_parameters<T, decltype(given)::value>(
            rows, kWeightRole, base, rows.weight_dtype, C(1), q);
        const Vec<T> x = cache.from(at), p = cache.from(at + int(blockDim.x));
        add_row_sums<T>(rows, widen_vec(p), xhat_of<T>(x, mean, rstd), weight, sums);
      }
    });
  }
#pragma unroll 1
  for (; i < partition.count; ++i) {
    const int valid = valid_of<T>(rows, partition, i);
    const int64_t q = partition.vec(i);
    const bool cached = Rows::kDense && i < rows.resident;
    Wide<T> p;
    if (!cached) {
      p = recompute_p<T, identity>(rows, mean, rstd, partition.row, q, valid);
    } else if constexpr (identity) {
      p = cache.p(r, i, mine);
    } else {
      const Wide<T> slope = slope_of<T>(rows, cache.vec(cache.x_slot(r, i), mine), mean, rstd,
                                        partition.row, q, valid);
      p = p_of<T>(rows, cache.vec(cache.x_slot(r, i) + 1, mine), slope);
      if (valid < Vec<T>::kSize) zero_tail<T>(p, valid);
      cache.put_wide(cache.x_slot(r, i) + 1, mine, p);
    }
    if (valid < Vec<T>::kSize) zero_tail<T>(p, valid);
    const Wide<T> weight = weight_of<T>(rows, partition.row, q, valid);
    Wide<T> xhat = xhat_of<T>(
        cached ? cache.vec(cache.x_slot(r, i), mine) : read<T>(rows, kIn, partition.row, q, valid),
        mean, rstd);
    if (valid < Vec<T>::kSize) zero_tail<T>(xhat, valid);
    add_row_sums<T>(rows, p, xhat, weight, sums, rows.casts);
  }
}

// Step 3: dx of a tile, and the sums of its columns.
template <class T, bool identity, class Rows, class Cache>
FASTACT_DEVICE void finish_tile(const Rows& rows, const Cache& cache, const Partition& partition,
                                const Tile& tile) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  const int mine = int(threadIdx.x);
  int i = 0;
  if constexpr (Rows::kDense) {
    for_weight<T>(rows, [&](auto given) {
      const int whole = int(smaller(whole_of<T>(rows, partition), rows.resident));
      const char* const base = parameters_base(rows, kWeightRole, tile.group);
      const int64_t row = tile.first * rows.groups + tile.group, row_step = tile.step * rows.groups;
      T* const dx = row_of<T>(rows, kDx, row);
      const int64_t to_dx = row_step * rows.pitch[kDx] / int64_t(sizeof(T));
      const bool plain = !rows.accumulate && !rows.data[kDTotal];
      const int slot = cache.at(1 + cache.kP, 0), row_slots = slot * rows.resident;
      const int stats_at = cache.stats_at(0, mine / partition.lanes);
      const int step = rows.teams * cache.kStats;
      int begin = mine, q = int(partition.first);
#pragma unroll 1
      for (; i < whole; ++i, begin += slot, q += partition.lanes) {
        Wide<T> of_weight{}, of_bias{};
        if (cache.plan.has_columns)
          of_weight = cache.sums(i, 0, mine), of_bias = cache.sums(i, 1, mine);
        const Wide<T> weight = quick_parameters<T, decltype(given)::value>(
            rows, kWeightRole, base, rows.weight_dtype, C(1), q);
        T* to = dx + int64_t(q) * kSize;
        int at = begin, stat = stats_at;
#pragma unroll 1
        for (int r = 0; r < tile.rows; ++r, at += row_slots, to += to_dx, stat += step) {
          const RowStats<C> stats = cache.stats_from(stat);
          const Wide<T> p = cache.p_from(at + int(blockDim.x));
          const Wide<T> xhat = xhat_of<T>(cache.from(at), stats.mean, stats.rstd);
          if (cache.plan.has_columns) add_column_sums<T>(p, xhat, of_weight, of_bias);
          if (!rows.data[kDx]) continue;
          if (plain)
            store_vec(to, narrow_vec<T>(gradient_of<T>(stats, p, xhat, weight)));
          else
            store_gradient<T>(rows, stats, p, xhat, weight, row + r * row_step, q, kSize);
        }
        if (cache.plan.has_columns)
          cache.put_sums(i, 0, mine, of_weight), cache.put_sums(i, 1, mine, of_bias);
      }
    });
  }
#pragma unroll 1
  for (; i < partition.count; ++i) {
    const int valid = valid_of<T>(rows, partition, i);
    const int64_t q = partition.vec(i);
    const bool cached = Rows::kDense && i < rows.resident;
#pragma unroll 1
    for (int r = 0; Rows::kDense ? r < tile.rows : r == 0 && tile.first < tile.end; ++r) {
      // Nothing wide lives across the activation's call.
      const int64_t row = (tile.first + r * tile.step) * rows.groups + tile.group;
      const RowStats<C> stats = cache.stats(r, mine / partition.lanes);
      const Wide<T> p = cached
                            ? cache.p(r, i, mine)
                            : recompute_p<T, identity>(rows, stats.mean, stats.rstd, row, q, valid);
      const Wide<T> xhat = xhat_of<T>(
          cached ? cache.vec(cache.x_slot(r, i), mine) : read<T>(rows, kIn, row, q, valid),
          stats.mean, stats.rstd);
      if (cache.plan.has_columns) {
        Wide<T> of_weight = cache.sums(i, 0, mine), of_bias = cache.sums(i, 1, mine);
        add_column_sums<T>(p, xhat, of_weight, of_bias, rows.casts);
        cache.put_sums(i, 0, mine, of_weight), cache.put_sums(i, 1, mine, of_bias);
      }
      if (rows.data[kDx])
        store_gradient<T>(rows, cache.stats(r, mine / partition.lanes), p, xhat,
                          weight_of<T>(rows, tile.group, q, valid), row, q, valid);
    }
  }
}

template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF(kRowThreads, 1)
void norm_backward_rows(FASTACT_GRID_CONSTANT const Rows rows,
                        FASTACT_GRID_CONSTANT const NormBackward plan) {
  using C = Compute<T>;
  const auto memory = dynamic_shared<Quad>();
  using Cache = SmemCache<T, identity, Rows::kDense, std::decay_t<decltype(memory)>>;
  const int mine = int(threadIdx.x);
  const int64_t task = blockIdx.x;
  const int64_t chunk = quotient(task, plan.blocks);
  const int64_t first_group = (task - chunk * plan.blocks) * plan.beside;
  const int64_t end = smaller((chunk + 1) * plan.size, rows.batch);
  // A team whose group is not there has none of the rows.
  const int teams = rows.teams / plan.beside, here = mine / rows.lanes / teams;
  const int64_t group = smaller(first_group + here, rows.groups - 1);
  const int64_t start = first_group + here == group ? mine / rows.lanes % teams : plan.size;
  const int64_t spilled = task * rows.per_lane * 2 * Vec<T>::kSize * int(blockDim.x);
  const Cache cache{{memory}, rows, plan, plan.spilled + spilled * int64_t(sizeof(C))};
  const Partition partition =
      partition_of(0, 0, vecs_of<T>(rows), mine % rows.lanes, rows.lanes, false);
  if (plan.has_columns) clear<T>(cache, partition);
  int added = 0;
  bool is_first = true;
  for (int64_t b0 = chunk * plan.size; b0 < end; b0 += cache.tile() * teams) {
    const int64_t first = b0 + start;
    const Tile tile = tile_of(first, teams, end, group, cache.tile());
    fetch_tile<T>(rows, cache, partition, tile);
#pragma unroll 1
    for (int r = 0; r < cache.tile() && b0 + r * teams < end; ++r) {
      const int64_t b = first + r * teams;
      const bool idle = b >= end;  // yet it takes part in shuffles and barriers
      Partition own = partition;
      own.row = (idle ? chunk * plan.size : b) * rows.groups + group;
      if (idle) own.count = 0;
      RowStats<C> stats{};
      if (rows.data[kMeanRole]) stats.mean = load(number_of<C>(rows, kMeanRole, own.row));
      stats.rstd = load(number_of<C>(rows, kRstdRole, own.row));
      double sums[2];
      add_up<T, identity>(rows, cache, own, r, stats.mean, stats.rstd, sums);
      int sum_index = r;  // a barrier parts the tiles
      team_sum(sums, rows.lanes, sum_index);
      stats.mean_g = C(sums[0] / double(rows.length));
      stats.mean_g_xhat = C(sums[1] / double(rows.length));
      if (partition.lane == 0) cache.put_stats(r, mine / rows.lanes, stats);
      if (plan.has_runs) {
        add_run_sums<T, identity>(rows, cache, own, r, stats.mean, stats.rstd, chunk, group,
                                  is_first);
        is_first = false;
      }
    }
    rows.lanes > kWarp ? __syncthreads() : __syncwarp();
    finish_tile<T, identity>(rows, cache, partition, tile);
    rows.lanes > kWarp ? __syncthreads() : __syncwarp();  // the next tile has statistics of its own
    added += cache.tile();
    if (plan.has_columns && (added >= kSumRows || b0 + cache.tile() * teams >= end)) {
      flush<T>(rows, cache, chunk, first_group, is_first);
      clear<T>(cache, partition);
      added = 0, is_first = false;
    }
  }
}

}  // namespace
FASTACT_END_NAMESPACE
