// Backward of long rows, in three kernels; norms.cu tells their plan.
//
//   norm_long_terms       a block a chunk of a row     the sums of g and of g xhat of the chunk
//   norm_long_means       a warp a row                 their means over the row
//   norm_long_gradients   a block a tile of columns    dx, and the sums of the columns
//
// So that one row keeps the whole device busy. In the third a thread has one pack of columns and
// goes down the rows of its part of the batch: weight is read once, the sums stay with the thread,
// and no thread waits for another. x and dy are read twice.
#pragma once

#include "cuda/norms/rows/backward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kTermThreads = 256;    // of a block of the first kernel
constexpr int kColumnThreads = 128;  // of the third

// The chunks of a row, beside the NormBackward that tells those of the batch.
struct NormLong {
  int64_t size, count;  // packs of a chunk, chunks of a row
  double* terms;        // OUT of the first kernel, units x count x [sum of g, of g xhat]
  double* means;        // OUT of the second, units x [mean of g, of g xhat]
};

template <class C>
FASTACT_DEVICE UnitFacts<C> statistics_of(const NormRows& rows, int64_t unit) {
  UnitFacts<C> facts{};
  if (rows.data[kMeanRole]) facts.mean = load(number_of<C>(rows, kMeanRole, unit));
  facts.rstd = load(number_of<C>(rows, kRstdRole, unit));
  return facts;
}

template <class T, bool identity>
FASTACT_KERNEL_OF(kTermThreads, 2)
void norm_long_terms(FASTACT_GRID_CONSTANT const NormRows rows, const NormLong plan) {
  using C = Compute<T>;
  constexpr int kSize = Pack<T>::kSize;
  int turn = 0;
  for (int64_t task = blockIdx.x; task < rows.units * plan.count; task += gridDim.x) {
    const int64_t unit = quotient(task, plan.count), begin = (task - unit * plan.count) * plan.size;
    const Share share = share_of(unit, begin, smaller(begin + plan.size, packs_of<T>(rows)),
                                 int(threadIdx.x), kTermThreads, false);
    const UnitFacts<C> facts = statistics_of<C>(rows, unit);
    double sums[2] = {};
    int i = 0;
    if constexpr (identity) {
      for_weight<T>(rows, [&](auto given) {
        const int whole = whole_of<T>(rows, share);
        const char* const base = parameters_base(rows, kWeightRole, unit);
        const T* const x = row_of<T>(rows, kIn, unit);
        const T* const dy = row_of<T>(rows, kDy, unit);
        int q = int(share.first);
#pragma unroll 1
        for (; i + 2 <= whole; i += 2, q += 2 * kTermThreads) {
          Pack<T> in[2], out[2];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            in[k] = load_pack(x + int64_t(q + k * kTermThreads) * kSize);
            out[k] = load_pack(dy + int64_t(q + k * kTermThreads) * kSize);
          }
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const Wide<T> weight = quick_parameters<T, decltype(given)::value>(
                rows, kWeightRole, base, rows.weight_dtype, C(1), q + k * kTermThreads);
            add_terms<T>(rows, widen_pack(out[k]), xhat_of<T>(in[k], facts.mean, facts.rstd),
                         weight, sums);
          }
        }
      });
    }
#pragma unroll 1
    for (; i < share.count; ++i) {
      const int valid = valid_of<T>(rows, share, i);
      const int64_t q = share.pack(i);
      Wide<T> p = p_again<T, identity>(rows, facts.mean, facts.rstd, unit, q, valid);
      if (valid < kSize) cut_off<T>(p, valid);
      Wide<T> xhat = xhat_of<T>(read<T>(rows, kIn, unit, q, valid), facts.mean, facts.rstd);
      if (valid < kSize) cut_off<T>(xhat, valid);
      add_terms<T>(rows, p, xhat, weight_of<T>(rows, unit, q, valid), sums);
    }
    team_sum(sums, kTermThreads, turn);
    if (threadIdx.x > 0) continue;
    store(plan.terms + 2 * task, sums[0]);
    store(plan.terms + 2 * task + 1, sums[1]);
  }
}

template <class T>
FASTACT_KERNEL(256)
void norm_long_means(FASTACT_GRID_CONSTANT const NormRows rows, const NormLong plan) {
  const int lane = int(threadIdx.x) % kWarp;
  for (int64_t first = int64_t(blockIdx.x) * (256 / kWarp); first < rows.units;
       first += int64_t(gridDim.x) * (256 / kWarp)) {
    const int64_t unit = first + int(threadIdx.x) / kWarp;
    const bool idle = unit >= rows.units;
    const double* terms = plan.terms + 2 * plan.count * (idle ? 0 : unit);
    double sums[2] = {};
    for (int64_t c = lane; c < plan.count; c += kWarp) {
      sums[0] += load(terms + 2 * c);
      sums[1] += load(terms + 2 * c + 1);
    }
    sums[0] = warp_sum(sums[0]), sums[1] = warp_sum(sums[1]);
    if (idle || lane > 0) continue;
    store(plan.means + 2 * unit, sums[0] / double(rows.row));
    store(plan.means + 2 * unit + 1, sums[1] / double(rows.row));
  }
}

// The block's numbers [dweight, dbias] x elements of a pack x threads: each thread has its own.
template <class T>
FASTACT_DEVICE int own_sum(int which, int j) {
  return (which * Pack<T>::kSize + j) * kColumnThreads + int(threadIdx.x);
}

template <class T, bool identity>
FASTACT_KERNEL_OF(kColumnThreads, 4)
void norm_long_gradients(FASTACT_GRID_CONSTANT const NormRows rows,
                         FASTACT_GRID_CONSTANT const NormBackward plan, const NormLong parts) {
  using C = Compute<T>;
  constexpr int kSize = Pack<T>::kSize;
  FASTACT_SHARED(double, totals, 2 * kSize * kColumnThreads);
  // Of activations in shared memory: nothing wide lives across their call.
  FASTACT_SHARED(C, held, identity ? 1 : 2 * kSize * kColumnThreads);
  const int64_t tiles = (packs_of<T>(rows) + kColumnThreads - 1) / kColumnThreads;
  const int64_t task = blockIdx.x, part = quotient(task, tiles);
  const int64_t chunk = quotient(part, rows.groups), group = part - chunk * rows.groups;
  const int64_t q = (task - part * tiles) * kColumnThreads + threadIdx.x;
  if (q >= packs_of<T>(rows)) return;
  const int valid = int(smaller(rows.row - q * kSize, kSize));
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
  const auto facts_of = [&](int64_t unit) {
    UnitFacts<C> facts = statistics_of<C>(rows, unit);
    if (!rows.data[kDx]) return facts;
    facts.mean_g = C(load(parts.means + 2 * unit));
    facts.mean_g_xhat = C(load(parts.means + 2 * unit + 1));
    return facts;
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
      const auto place = [&](int role) {
        return row_of<T>(rows, role, begin * rows.groups + group) + q * kSize;
      };
      const T *x = place(kIn), *dy = place(kDy);
      T* dx = place(kDx);
      const auto step = [&](int role) {
        return rows.groups * rows.pitch[role] / int64_t(sizeof(T));
      };
      const int64_t to_x = step(kIn), to_dy = step(kDy), to_dx = step(kDx);
      const auto one = [&](const Pack<T>& in, const Pack<T>& out) {
        const int64_t unit = b * rows.groups + group;
        const UnitFacts<C> facts = facts_of(unit);
        const Wide<T> p = widen_pack(out), xhat = xhat_of<T>(in, facts.mean, facts.rstd);
        if (has_columns) add_columns<T>(p, xhat, sums[0], sums[1]);
        if (plain && rows.data[kDx])
          store_pack(dx, narrow_pack<T>(gradient_of<T>(facts, p, xhat, weight)));
        else if (rows.data[kDx])
          store_gradient<T>(rows, facts, p, xhat, weight, unit, q, kSize);
        ++b, dx += to_dx;
      };
#pragma unroll 1
      while (b + 2 <= end) {
        const Pack<T> x0 = load_pack(x), dy0 = load_pack(dy);
        const Pack<T> x1 = load_pack(x + to_x), dy1 = load_pack(dy + to_dy);
        x += 2 * to_x, dy += 2 * to_dy;
        one(x0, dy0);
        one(x1, dy1);
        if ((added += 2) == kSumRows) flush(), added = 0;
      }
    }
  }
#pragma unroll 1
  for (; b < end; ++b) {
    const int64_t unit = b * rows.groups + group;
    const UnitFacts<C> facts = facts_of(unit);
    const Wide<T> p = p_again<T, identity>(rows, facts.mean, facts.rstd, unit, q, valid);
    const Wide<T> xhat = xhat_of<T>(read<T>(rows, kIn, unit, q, valid), facts.mean, facts.rstd);
    if constexpr (!identity) each_sum([&](int at, C& sum) { sum = held[at]; });
    if (has_columns) add_columns<T>(p, xhat, sums[0], sums[1]);
    if constexpr (!identity) each_sum([&](int at, C& sum) { held[at] = sum; });
    if (rows.data[kDx])
      store_gradient<T>(rows, facts, p, xhat, weight_of<T>(rows, group, q, valid), unit, q, valid);
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
      store_pack(to + j, Pack<double>{{double(totals[own_sum<T>(which, j)]),
                                       double(totals[own_sum<T>(which, j + 1)])}});
  }
}

}  // namespace
FASTACT_END_NAMESPACE
