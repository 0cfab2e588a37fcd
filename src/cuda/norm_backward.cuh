// The backward kernel of the norms; norms.cu tells its plan, common/norms.h the gradients.
#pragma once

#include <type_traits>

#include "norm_sums.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Step 1: x and dy of a tile are read and kept, two units at a time where they are whole. Arrays of
// any strides have no registers to spare for that: theirs are read again in each step.
template <class T, class Rows, class Kept>
FASTACT_DEVICE void fetch_tile(const Rows& rows, const Kept& keep, const Share& share,
                               int64_t first, int64_t step, int64_t end, int64_t group) {
  if constexpr (!Rows::kDense) return;
  constexpr int kSize = Pack<T>::kSize;
  const int mine = int(threadIdx.x);
#pragma unroll 1
  for (int i = 0; i < rows.resident && i < share.count; ++i) {
    const int valid = valid_of<T>(rows, share, i);
    const int64_t q = share.pack(i);
    int r = 0;
    if constexpr (Rows::kDense) {
      if (rows.fast[kIn] && rows.fast[kDy] && valid >= kSize) {
        const int64_t unit = first * rows.groups + group;
        const T* x = row_of<T>(rows, kIn, unit) + q * kSize;
        const T* dy = row_of<T>(rows, kDy, unit) + q * kSize;
        const int64_t step_x = step * rows.groups * rows.pitch[kIn] / int64_t(sizeof(T));
        const int64_t step_dy = step * rows.groups * rows.pitch[kDy] / int64_t(sizeof(T));
#pragma unroll 1
        for (; r + 2 <= keep.tile() && first + (r + 1) * step < end; r += 2) {
          const Pack<T> x0 = load_pack(x + r * step_x), dy0 = load_pack(dy + r * step_dy);
          const Pack<T> x1 = load_pack(x + (r + 1) * step_x);
          const Pack<T> dy1 = load_pack(dy + (r + 1) * step_dy);
          keep.put(keep.x_slot(r, i), mine, x0);
          keep.put(keep.x_slot(r, i) + 1, mine, dy0);
          keep.put(keep.x_slot(r + 1, i), mine, x1);
          keep.put(keep.x_slot(r + 1, i) + 1, mine, dy1);
        }
      }
    }
#pragma unroll 1
    for (; r < keep.tile(); ++r) {
      const int64_t b = first + r * step;
      if (b >= end) break;
      const int64_t unit = b * rows.groups + group;
      keep.put(keep.x_slot(r, i), mine, read<T>(rows, kIn, unit, q, valid));
      keep.put(keep.x_slot(r, i) + 1, mine, read<T>(rows, kDy, unit, q, valid));
    }
  }
}

// Step 2, of one unit: p, and the sums of g and of g xhat of this thread.
template <class T, bool identity, class Rows, class Kept>
FASTACT_DEVICE void add_up(const Rows& rows, const Kept& keep, const Share& share, int r,
                           Compute<T> mean, Compute<T> rstd, double (&sums)[2]) {
  const int mine = int(threadIdx.x);
  sums[0] = sums[1] = 0;
#pragma unroll 1
  for (int i = 0; i < share.count; ++i) {
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
    Wide<T> xhat = xhat_of(
        kept ? keep.pack(keep.x_slot(r, i), mine) : read<T>(rows, kIn, share.unit, q, valid), mean,
        rstd);
    if (valid < Pack<T>::kSize) cut_off<T>(xhat, valid);
    Wide<T> one;
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) p.lane[j] *= weight.lane[j], one.lane[j] = 1;
    if (rows.is_centred) sums[0] += dot<T>(p, one);
    sums[1] += dot<T>(p, xhat);
  }
}

// Step 3, of one pack of one unit: dx.
template <class T, class Rows>
FASTACT_DEVICE void store_gradient(const Rows& rows, const UnitFacts<Compute<T>>& facts,
                                   const Wide<T>& p, const Wide<T>& xhat, const Wide<T>& weight,
                                   int64_t unit, int64_t q, int valid) {
  Wide<T> dx;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j)
    dx.lane[j] = input_gradient(p.lane[j] * weight.lane[j], xhat.lane[j], facts.rstd, facts.mean_g,
                                facts.mean_g_xhat);
  if (rows.data[kDTotal]) {
    const Wide<T> more = widen_pack(read<T>(rows, kDTotal, unit, q, valid));
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) dx.lane[j] += more.lane[j];
  }
  if (rows.accumulate) {
    const Wide<T> before = widen_pack(read<T>(rows, kDx, unit, q, valid));
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) dx.lane[j] = before.lane[j] + dx.lane[j];
  }
  write(rows, kDx, unit, q, valid, narrow_pack<T>(dx));
}

// Step 3: dx of a tile, and the sums of its columns.
template <class T, bool identity, class Rows, class Kept>
FASTACT_DEVICE void finish_tile(const Rows& rows, const Kept& keep, const Share& share,
                                int64_t first, int64_t step, int64_t end, int64_t group) {
  using C = Compute<T>;
  const int mine = int(threadIdx.x);
#pragma unroll 1
  for (int i = 0; i < share.count; ++i) {
    const int valid = valid_of<T>(rows, share, i);
    const int64_t q = share.pack(i);
    const auto facts_of = [&](int r) { return keep.facts(r, mine / share.lanes); };
    const auto add_columns = [&](const Wide<T>& p, const Wide<T>& xhat, Wide<T>& of_weight,
                                 Wide<T>& of_bias) {
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) {
        of_weight.lane[j] = madd(p.lane[j], xhat.lane[j], of_weight.lane[j]);
        of_bias.lane[j] += p.lane[j];
      }
    };
    if (Rows::kDense && i < rows.resident) {
      Wide<T> of_weight{}, of_bias{};
      if (keep.plan.has_columns) of_weight = keep.sums(i, 0, mine), of_bias = keep.sums(i, 1, mine);
      const Wide<T> weight = weight_of<T>(rows, group, q, valid);
#pragma unroll 1
      for (int r = 0; r < keep.tile(); ++r) {
        const int64_t b = first + r * step;
        if (b >= end) break;
        const UnitFacts<C> facts = facts_of(r);
        const Wide<T> p = keep.p(r, i, mine);
        const Wide<T> xhat = xhat_of(keep.pack(keep.x_slot(r, i), mine), facts.mean, facts.rstd);
        if (keep.plan.has_columns) add_columns(p, xhat, of_weight, of_bias);
        if (rows.data[kDx])
          store_gradient(rows, facts, p, xhat, weight, b * rows.groups + group, q, valid);
      }
      if (keep.plan.has_columns)
        keep.put_sums(i, 0, mine, of_weight), keep.put_sums(i, 1, mine, of_bias);
      continue;
    }
#pragma unroll 1
    for (int r = 0; r < keep.tile(); ++r) {  // nothing wide lives across the activation's call
      const int64_t b = first + r * step;
      if (b >= end) break;
      const int64_t unit = b * rows.groups + group;
      const UnitFacts<C> facts = facts_of(r);
      const Wide<T> p = p_again<T, identity>(rows, facts.mean, facts.rstd, unit, q, valid);
      const Wide<T> xhat = xhat_of(read<T>(rows, kIn, unit, q, valid), facts.mean, facts.rstd);
      if (keep.plan.has_columns) {
        Wide<T> of_weight = keep.sums(i, 0, mine), of_bias = keep.sums(i, 1, mine);
        add_columns(p, xhat, of_weight, of_bias);
        keep.put_sums(i, 0, mine, of_weight), keep.put_sums(i, 1, mine, of_bias);
      }
      if (rows.data[kDx])
        store_gradient(rows, facts_of(r), p, xhat, weight_of<T>(rows, group, q, valid), unit, q,
                       valid);
    }
  }
}

template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF(kNormThreads, 1)
void norm_backward_units(FASTACT_GRID_CONSTANT const Rows rows,
                         FASTACT_GRID_CONSTANT const NormBackward plan) {
  using C = Compute<T>;
  const auto memory = dynamic_shared<Pack<T>>();
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
    fetch_tile<T>(rows, keep, share, first, rows.teams, end, group);
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
      team_sum(sums, rows.lanes);
      facts.mean_g = C(sums[0] / double(rows.row));
      facts.mean_g_xhat = C(sums[1] / double(rows.row));
      if (share.lane == 0) keep.put_facts(r, mine / rows.lanes, facts);
      if (plan.has_slots) {
        add_slots<T, identity>(rows, keep, own, r, facts.mean, facts.rstd, chunk, group, is_first);
        is_first = false;
      }
    }
    rows.lanes > kWarp ? __syncthreads() : __syncwarp();
    finish_tile<T, identity>(rows, keep, share, first, rows.teams, end, group);
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
