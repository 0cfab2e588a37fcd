// The backward kernel of the norms; norms.cu tells its plan, common/norms.h the gradients.
#pragma once

#include <type_traits>

#include "cuda/norms/rows/param_grad.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The units of a tile that a team has, every step-th of the batch from `first` on.
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

// Step 1: x and dy of a tile are read and kept, two packs of each at a time where they are whole.
// Arrays of any strides have no registers to spare for that: theirs are read again in each step.
template <class T, class Rows, class Kept>
FASTACT_DEVICE void fetch_tile(const Rows& rows, const Kept& keep, const Share& share,
                               const Tile& tile) {
  if (!Rows::kDense || tile.rows == 0) return;
  constexpr int kSize = Pack<T>::kSize;
  const int mine = int(threadIdx.x);
  int i = 0;
  if (rows.fast[kIn] && rows.fast[kDy]) {
    const int whole = int(smaller(whole_of<T>(rows, share), rows.resident));
    const int64_t unit = tile.first * rows.groups + tile.group, units = tile.step * rows.groups;
    const T* x = row_of<T>(rows, kIn, unit) + share.first * kSize;
    const T* dy = row_of<T>(rows, kDy, unit) + share.first * kSize;
    const bool down = tile.rows > 1;  // pairs of rows, or of packs of the only one
    const int64_t to_x = down ? units * rows.pitch[kIn] / int64_t(sizeof(T)) : share.lanes * kSize;
    const int64_t to_dy = down ? units * rows.pitch[kDy] / int64_t(sizeof(T)) : share.lanes * kSize;
    const int slot = keep.at(1 + keep.kP, 0), to = down ? slot * rows.resident : slot;
    const int count = down ? tile.rows : whole, lines = down ? whole : int(smaller(whole, 1));
    int begin = mine;
#pragma unroll 1
    for (; i < lines; ++i, begin += slot, x += share.lanes * kSize, dy += share.lanes * kSize) {
      const T *from_x = x, *from_dy = dy;
      int at = begin, k = 0;
#pragma unroll 1
      for (; k + 2 <= count; k += 2, from_x += 2 * to_x, from_dy += 2 * to_dy, at += 2 * to) {
        const Pack<T> x0 = load_pack(from_x), dy0 = load_pack(from_dy);
        const Pack<T> x1 = load_pack(from_x + to_x), dy1 = load_pack(from_dy + to_dy);
        keep.to(at, x0);
        keep.to(at + int(blockDim.x), dy0);
        keep.to(at + to, x1);
        keep.to(at + to + int(blockDim.x), dy1);
      }
      if (k < count) {
        const Pack<T> x0 = load_pack(from_x), dy0 = load_pack(from_dy);
        keep.to(at, x0);
        keep.to(at + int(blockDim.x), dy0);
      }
    }
    if (!down) i = whole;
  }
#pragma unroll 1
  for (; i < rows.resident && i < share.count; ++i) {
    const int valid = valid_of<T>(rows, share, i);
    const int64_t q = share.pack(i);
#pragma unroll 1
    for (int r = 0; r < tile.rows; ++r) {
      const int64_t unit = (tile.first + r * tile.step) * rows.groups + tile.group;
      keep.put(keep.x_slot(r, i), mine, read<T>(rows, kIn, unit, q, valid));
      keep.put(keep.x_slot(r, i) + 1, mine, read<T>(rows, kDy, unit, q, valid));
    }
  }
}

// Runs visit(given) for rows that are quick, with how their weight is given.
template <class T, class Visit>
FASTACT_DEVICE void for_weight(const NormRows& rows, Visit visit) {
  if (!rows.quick) return;
  if (is_own(rows, kWeightRole, rows.weight_dtype, kDTypeOf<T>))
    visit(std::integral_constant<Given, kPacks>());
  else
    visit(std::integral_constant<Given, kAnything>());
}

// Step 2, of one unit: p, and the sums of g and of g xhat of this thread.
template <class T, bool identity, class Rows, class Kept>
FASTACT_DEVICE void add_up(const Rows& rows, const Kept& keep, const Share& share, int r,
                           Compute<T> mean, Compute<T> rstd, double (&sums)[2]) {
  using C = Compute<T>;
  const int mine = int(threadIdx.x);
  sums[0] = sums[1] = 0;
  int i = 0;
  if constexpr (identity && Rows::kDense) {
    for_weight<T>(rows, [&](auto given) {
      const int whole = int(smaller(whole_of<T>(rows, share), rows.resident));
      const char* const base = parameters_base(rows, kWeightRole, share.unit);
      const int slot = keep.at(2, 0);
      int q = int(share.first), at = keep.at(keep.x_slot(r, 0), mine);
#pragma unroll 1
      for (; i < whole; ++i, q += share.lanes, at += slot) {
        const Wide<T> weight = quick_parameters<T, decltype(given)::value>(
            rows, kWeightRole, base, rows.weight_dtype, C(1), q);
        const Pack<T> x = keep.from(at), p = keep.from(at + int(blockDim.x));
        add_terms<T>(rows, widen_pack(p), xhat_of<T>(x, mean, rstd), weight, sums);
      }
    });
  }
#pragma unroll 1
  for (; i < share.count; ++i) {
    const int valid = valid_of<T>(rows, share, i);
    const int64_t q = share.pack(i);
    const bool kept = Rows::kDense && i < rows.resident;
    Wide<T> p;
    if (!kept) {
      p = p_again<T, identity>(rows, mean, rstd, share.unit, q, valid);
    } else if constexpr (identity) {
      p = keep.p(r, i, mine);
    } else {
      p = slope_of<T>(rows, keep.pack(keep.x_slot(r, i), mine), mean, rstd, share.unit, q, valid);
      const Wide<T> dy = widen_pack(keep.pack(keep.x_slot(r, i) + 1, mine));
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) p.lane[j] *= dy.lane[j];
      if (valid < Pack<T>::kSize) cut_off<T>(p, valid);
      keep.put_wide(keep.x_slot(r, i) + 1, mine, p);
    }
    if (valid < Pack<T>::kSize) cut_off<T>(p, valid);
    const Wide<T> weight = weight_of<T>(rows, share.unit, q, valid);
    Wide<T> xhat = xhat_of<T>(
        kept ? keep.pack(keep.x_slot(r, i), mine) : read<T>(rows, kIn, share.unit, q, valid), mean,
        rstd);
    if (valid < Pack<T>::kSize) cut_off<T>(xhat, valid);
    add_terms<T>(rows, p, xhat, weight, sums);
  }
}

// Step 3: dx of a tile, and the sums of its columns.
template <class T, bool identity, class Rows, class Kept>
FASTACT_DEVICE void finish_tile(const Rows& rows, const Kept& keep, const Share& share,
                                const Tile& tile) {
  using C = Compute<T>;
  constexpr int kSize = Pack<T>::kSize;
  const int mine = int(threadIdx.x);
  int i = 0;
  if constexpr (Rows::kDense) {
    for_weight<T>(rows, [&](auto given) {
      const int whole = int(smaller(whole_of<T>(rows, share), rows.resident));
      const char* const base = parameters_base(rows, kWeightRole, tile.group);
      const int64_t unit = tile.first * rows.groups + tile.group, units = tile.step * rows.groups;
      T* const dx = row_of<T>(rows, kDx, unit);
      const int64_t to_dx = units * rows.pitch[kDx] / int64_t(sizeof(T));
      const bool plain = !rows.accumulate && !rows.data[kDTotal];
      const int slot = keep.at(1 + keep.kP, 0), row = slot * rows.resident;
      const int facts_at = keep.facts_at(0, mine / share.lanes);
      const int step = rows.teams * keep.kFacts;
      int begin = mine, q = int(share.first);
#pragma unroll 1
      for (; i < whole; ++i, begin += slot, q += share.lanes) {
        Wide<T> of_weight{}, of_bias{};
        if (keep.plan.has_columns)
          of_weight = keep.sums(i, 0, mine), of_bias = keep.sums(i, 1, mine);
        const Wide<T> weight = quick_parameters<T, decltype(given)::value>(
            rows, kWeightRole, base, rows.weight_dtype, C(1), q);
        T* to = dx + int64_t(q) * kSize;
        int at = begin, fact = facts_at;
#pragma unroll 1
        for (int r = 0; r < tile.rows; ++r, at += row, to += to_dx, fact += step) {
          const UnitFacts<C> facts = keep.facts_from(fact);
          const Wide<T> p = keep.p_from(at + int(blockDim.x));
          const Wide<T> xhat = xhat_of<T>(keep.from(at), facts.mean, facts.rstd);
          if (keep.plan.has_columns) add_columns<T>(p, xhat, of_weight, of_bias);
          if (!rows.data[kDx]) continue;
          if (plain)
            store_pack(to, narrow_pack<T>(gradient_of<T>(facts, p, xhat, weight)));
          else
            store_gradient<T>(rows, facts, p, xhat, weight, unit + r * units, q, kSize);
        }
        if (keep.plan.has_columns)
          keep.put_sums(i, 0, mine, of_weight), keep.put_sums(i, 1, mine, of_bias);
      }
    });
  }
#pragma unroll 1
  for (; i < share.count; ++i) {
    const int valid = valid_of<T>(rows, share, i);
    const int64_t q = share.pack(i);
    const bool kept = Rows::kDense && i < rows.resident;
#pragma unroll 1
    for (int r = 0; Rows::kDense ? r < tile.rows : r == 0 && tile.first < tile.end; ++r) {
      // Nothing wide lives across the activation's call.
      const int64_t unit = (tile.first + r * tile.step) * rows.groups + tile.group;
      const UnitFacts<C> facts = keep.facts(r, mine / share.lanes);
      const Wide<T> p = kept ? keep.p(r, i, mine)
                             : p_again<T, identity>(rows, facts.mean, facts.rstd, unit, q, valid);
      const Wide<T> xhat =
          xhat_of<T>(kept ? keep.pack(keep.x_slot(r, i), mine) : read<T>(rows, kIn, unit, q, valid),
                     facts.mean, facts.rstd);
      if (keep.plan.has_columns) {
        Wide<T> of_weight = keep.sums(i, 0, mine), of_bias = keep.sums(i, 1, mine);
        add_columns<T>(p, xhat, of_weight, of_bias);
        keep.put_sums(i, 0, mine, of_weight), keep.put_sums(i, 1, mine, of_bias);
      }
      if (rows.data[kDx])
        store_gradient<T>(rows, keep.facts(r, mine / share.lanes), p, xhat,
                          weight_of<T>(rows, tile.group, q, valid), unit, q, valid);
    }
  }
}

// Of a block, at most.
template <class T, class Rows>
constexpr int kBackwardThreads = Rows::kDense || sizeof(T) < 8 ? kNormThreads : kThreadsOfNarrow;

template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF((kBackwardThreads<T, Rows>), 1)
void norm_backward_units(FASTACT_GRID_CONSTANT const Rows rows,
                         FASTACT_GRID_CONSTANT const NormBackward plan) {
  using C = Compute<T>;
  const auto memory = dynamic_shared<Quad>();
  using Kept = Keep<T, identity, Rows::kDense, std::decay_t<decltype(memory)>>;
  const int mine = int(threadIdx.x);
  const int64_t task = blockIdx.x;
  const int64_t chunk = quotient(task, rows.groups), group = task - chunk * rows.groups;
  const int64_t end = smaller((chunk + 1) * plan.size, rows.batch);
  const int64_t spilled = task * rows.per_lane * 2 * Pack<T>::kSize * int(blockDim.x);
  const Kept keep{memory, rows, plan, plan.spilled + spilled * int64_t(sizeof(C))};
  const Share share = share_of(0, 0, packs_of<T>(rows), mine % rows.lanes, rows.lanes, false);
  if (plan.has_columns) clear<T>(keep, share);
  int added = 0;
  bool is_first = true;
  for (int64_t b0 = chunk * plan.size; b0 < end; b0 += keep.tile() * rows.teams) {
    const int64_t first = b0 + mine / rows.lanes;
    const Tile tile = tile_of(first, rows.teams, end, group, keep.tile());
    fetch_tile<T>(rows, keep, share, tile);
#pragma unroll 1
    for (int r = 0; r < keep.tile() && b0 + r * rows.teams < end; ++r) {
      const int64_t b = first + r * rows.teams;
      const bool idle = b >= end;  // yet it takes part in shuffles and barriers
      Share own = share;
      own.unit = (idle ? chunk * plan.size : b) * rows.groups + group;
      if (idle) own.count = 0;
      UnitFacts<C> facts{};
      if (rows.data[kMeanRole]) facts.mean = load(number_of<C>(rows, kMeanRole, own.unit));
      facts.rstd = load(number_of<C>(rows, kRstdRole, own.unit));
      double sums[2];
      add_up<T, identity>(rows, keep, own, r, facts.mean, facts.rstd, sums);
      int turn = r;  // a barrier parts the tiles
      team_sum(sums, rows.lanes, turn);
      facts.mean_g = C(sums[0] / double(rows.row));
      facts.mean_g_xhat = C(sums[1] / double(rows.row));
      if (share.lane == 0) keep.put_facts(r, mine / rows.lanes, facts);
      if (plan.has_slots) {
        add_slots<T, identity>(rows, keep, own, r, facts.mean, facts.rstd, chunk, group, is_first);
        is_first = false;
      }
    }
    rows.lanes > kWarp ? __syncthreads() : __syncwarp();
    finish_tile<T, identity>(rows, keep, share, tile);
    rows.lanes > kWarp ? __syncthreads() : __syncwarp();  // the next tile has facts of its own
    added += keep.tile();
    if (plan.has_columns && (added >= kSumRows || b0 + keep.tile() * rows.teams >= end)) {
      flush<T>(rows, keep, chunk, group, is_first);
      clear<T>(keep, share);
      added = 0, is_first = false;
    }
  }
}

}  // namespace
FASTACT_END_NAMESPACE
