// The kernels of cross_entropy; cross_entropy.cu explains them.
//
// Class c has the share a_c w_c in the loss of a row, a_c = keep p_c + smooth, where p is the
// target (of an index t: 1 at t and 0 elsewhere), keep = 1 - label_smoothing and smooth =
// label_smoothing / classes:
//
//   loss = sum a_c w_c (lse - z_c) = sum a_c w_c (m - z_c) + log(sum(exp(z - m))) sum a_c w_c
//
// All terms of both sums are of one sign: nothing cancels. A term of a_c w_c = 0 is 0, where z_c is
// -infinity too. With d lse / dz_c = exp(z_c - lse)
//
//   dloss / dz_c = exp(z_c - lse) sum a w - a_c w_c
#pragma once

#include "cuda/softmax/backward.cuh"
#include "cuda/softmax/forward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

struct Loss {
  double loss, weight;
};

// The class that a row's index names. -1: one that is ignored; -2: one that is none.
template <class Rows>
FASTACT_DEVICE int64_t class_of(const Rows& rows, int64_t row) {
  const char* p = number_address(rows, kTarget, row);
  const int64_t index = rows.target_dtype == kI32
                            ? int64_t(load(reinterpret_cast<const int32_t*>(p)))
                            : load(reinterpret_cast<const int64_t*>(p));
  if (index == rows.ignore_index) return -1;
  return index >= 0 && index < rows.length ? index : -2;
}
// The element of a class.
template <class Rows>
FASTACT_DEVICE int64_t element_of(const Rows& rows, int64_t index) {
  return rows.is_reversed ? rows.length - 1 - index : index;
}

// One logit.
template <class T, class Rows>
FASTACT_DEVICE Compute<T> logit_of(const Rows& rows, const RowPart& part, int s, int64_t element) {
  const char* p = rows.data[kX];
  if constexpr (Rows::kColumns)
    p += part.outer * rows.pitch[kX] + element * rows.step[kX] +
         (rows.repeated[kX] ? 0 : (part.at + s) * int(sizeof(T)));
  else if constexpr (Rows::kDense)
    p += part.row * rows.pitch[kX] + element * rows.step[kX];
  else
    p += offset_of(rows.table, kX, part.row, element);
  return widen(load(reinterpret_cast<const T*>(p)));
}

// The loss of the s-th row of a part, and what it weighs in the mean.
template <class T, bool has_shares, class Rows>
FASTACT_DEVICE Loss loss_of(const Rows& rows, const RowPart& part, int s, const RowSums& sums,
                            const Level<Compute<T>>& level) {
  using C = Compute<T>;
  Loss loss{0, 1};
  if (has_shares) loss.loss = sums.apart + double(level.log) * sums.mass;
  if (rows.data[kDy]) return loss;
  const int64_t index = class_of(rows, part.row + s);
  if (index == -1) return {0, 0};
  if (index < 0) return {__builtin_nan(""), __builtin_nan("")};
  const int64_t element = element_of(rows, index);
  const C weight = class_weight<T>(rows, part.row + s, element);
  const C share = C(rows.keep) * weight;
  const C below = share == 0 ? C(0) : level.max - logit_of<T>(rows, part, s, element);
  loss.loss += double(share * (below + level.log));
  loss.weight = double(weight);
  return loss;
}

// totals: of a reduction, blocks x [loss, weight]; null: there is none.
template <class T, bool shares>
struct LossOf : OfRows<T, LossOf<T, shares>, shares> {
  using C = Compute<T>;
  using OfChunks = PeakOf<T, shares>;
  static constexpr bool kWrites = false, kAddsUp = true;
  double* totals;

  template <class Rows>
  FASTACT_DEVICE void end(const Rows& rows, const RowPart& part, int s, const RowSums& sums,
                          const Level<C>& level, double (&total)[2]) const {
    store_lse<T>(rows, part.row + s, level.lse);
    const Loss loss = loss_of<T, shares>(rows, part, s, sums, level);
    put_number<T>(rows, kNumber, part.row + s, rows.number_dtype, loss.loss);
    total[0] += loss.loss;
    total[1] += loss.weight;
  }
};

// loss OUT and divisor OUT of the totals of all blocks, by one block, in a fixed order.
// count: what divides the mean where it is not the sum of the weights; else negative.
template <class T>
FASTACT_KERNEL(kRowThreads)
void finish_loss(const double* totals, int64_t tasks, bool is_mean, double count, char* loss,
                 double* divisor) {
  int fold_index = 0;
  double total[2] = {};
#pragma unroll 4
  for (int64_t task = threadIdx.x; task < tasks; task += kRowThreads) {
    total[0] += load(totals + 2 * task);
    total[1] += load(totals + 2 * task + 1);
  }
  team_sums(total, kRowThreads, fold_index);
  if (threadIdx.x > 0) return;
  const double by = !is_mean ? 1.0 : count < 0 ? total[1] : count;
  put(reinterpret_cast<T*>(loss), total[0] / by, false);
  store(divisor, by);
}

// What a row's gradient takes: factor (exp(z - lse) mass - a w), and of a target's index less
// factor `weight` at its element.
template <class C>
struct LossGradient {
  C factor, mass, lse, weight;
  int64_t element;
};

template <class T, class Rows>
FASTACT_DEVICE LossGradient<Compute<T>> loss_gradient(const Rows& rows, int64_t row, double mass) {
  using C = Compute<T>;
  LossGradient<C> made{};
  double factor = double(load_parameter<T>(number_address(rows, kNumber, row), rows.number_dtype));
  if (rows.divisor) factor /= load(rows.divisor);
  made.factor = C(factor);
  made.lse = load(reinterpret_cast<const C*>(number_address(rows, kLse, row)));
  made.mass = C(mass);
  made.element = -1;
  if (rows.data[kDy]) return made;
  const int64_t index = class_of(rows, row);
  made.element = index < 0 ? index : element_of(rows, index);
  if (index == -2) made.factor = C(__builtin_nan(""));
  if (index < 0) return made;
  made.weight = C(rows.keep) * class_weight<T>(rows, row, made.element);
  made.mass += made.weight;
  return made;
}

// Of rows, of columns, or of chunks of rows; with shares of whole rows of any length, for their sum
// is taken first.
template <class T, int vecs, bool has_shares, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (has_shares ? 1 : kBlocksOf<T, Rows>))
void cross_entropy_gradients(FASTACT_GRID_CONSTANT const Rows rows) {
  using C = Compute<T>;
  constexpr int n = kRowsOfVec<T, Rows>, kSize = Vec<T>::kSize;
  int fold_index = 0;
  const RowPart part = row_part<T, has_shares ? 0 : vecs, true>(rows);
  double mass[n] = {};
  if constexpr (has_shares) {
#pragma unroll 1
    for (int i = 0; i < part.count; ++i) {
      const Wide<T> share = shares_of<T>(rows, part, i, lanes_there<T>(rows, part, i));
      TreeSum<T, 1, n> sum;
      sum.add(0, share);
#pragma unroll
      for (int s = 0; s < n; ++s) mass[s] += sum.total(s);
    }
    fold_sums(rows, mass, fold_index);
  }
  if (part.idle) return;
  const TakenVecs<T, vecs, Rows> x(rows, part);
  LossGradient<C> of[n];
  Probability<T> p[n];
#pragma unroll
  for (int s = 0; s < n; ++s) {
    of[s] = loss_gradient<T>(rows, part.row + (s < part.columns ? s : 0), mass[s]);
    p[s] = Probability<T>::of(of[s].lse);
  }
  x.for_each(rows, part, [&](int i, const Vec<T>& vec) {
    const Wide<T> z = widen_vec(vec);
    Wide<T> share{}, dz;
    if constexpr (has_shares) share = shares_of<T>(rows, part, i, lanes_there<T>(rows, part, i));
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const LossGradient<C>& at = of[row_in_vec<Rows>(j)];
      dz.lane[j] = at.factor * madd(p[row_in_vec<Rows>(j)](z.lane[j]), at.mass, -share.lane[j]);
      if (at.element == -1 && !rows.data[kDy]) dz.lane[j] = 0;  // ignored
    }
    // One vector of a row has the target, and each lane of a vector of columns may.
    const int64_t first = element_at<T, Rows>(part, i, 0), to = of[0].element - first;
    if (Rows::kColumns || (to >= 0 && to < kSize)) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const LossGradient<C>& at = of[row_in_vec<Rows>(j)];
        if (Rows::kColumns ? at.element == first : j == to)
          dz.lane[j] = madd(-at.factor, at.weight, dz.lane[j]);
      }
    }
    put_gradient<T>(rows, part, i, dz);
  });
}

}  // namespace
FASTACT_END_NAMESPACE
