// The gradients of logsumexp and cross_entropy (loss.cuh), and the sum of all losses.
#pragma once

#include "cuda/core/finish.cuh"
#include "cuda/softmax/backward.cuh"
#include "cuda/softmax/loss.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Adds up the totals of all blocks (core/finish.cuh), to loss OUT and divisor OUT. by: the mean's
// divisor; negative where that is the sum of the weights.
template <class T>
struct FinishLoss {
  static constexpr int kSums = 2;
  const double* totals;
  bool is_mean;
  double by;
  char* loss;
  double* divisor;
  int64_t outputs, count;

  FASTACT_DEVICE void add(int64_t, int64_t task, double (&sum)[2]) const {
    sum[0] += load(totals + 2 * task), sum[1] += load(totals + 2 * task + 1);
  }
  FASTACT_DEVICE void put(int64_t, const double (&sum)[2]) const {
    const double all = !is_mean ? 1.0 : by < 0 ? sum[1] : by;
    fastact::put(reinterpret_cast<T*>(loss), sum[0] / all, false);
    store(divisor, all);
  }
};

// The numbers of a row's gradient: dz = factor (exp(z - lse) mass - a w). Where the target is an
// index, mass is weight + others, and its element's dz is factor (weight (p - 1) + others p - a w).
// logsumexp has a mass of 1, and nothing else.
template <class C>
struct LseGradient {
  C factor, mass, lse, weight, others;
  int64_t element;  // the target's; -1: the row is ignored; below: there is none
};

template <class T, int fixed, class Rows>
FASTACT_DEVICE LseGradient<Compute<T>> lse_gradient(const Rows& rows, int64_t row, double mass,
                                                    Compute<T> given, Compute<T> lse) {
  using C = Compute<T>;
  LseGradient<C> made{};
  made.lse = lse;
  if ((fixed == kAnyKind ? rows.kind : fixed) == kLogSumExp) {
    made.factor = C(rows.scale) * given, made.mass = 1, made.element = -3;
    if (rows.data[kMask] && made.lse == -infinity<C>())
      made.factor = made.lse = 0;  // nothing takes part
    return made;
  }
  double factor = double(given);
  if (rows.loss.divisor) factor /= load(rows.loss.divisor);
  made.factor = C(factor);
  made.mass = C(mass) + slope_of_lse(C(rows.loss.z_loss), lse);
  made.element = -3;
  if (rows.data[kDy]) return made;
  const int64_t index = class_of(rows, row);
  made.element = index < 0 ? index : element_of(rows, index);
  if (index == -2) made.factor = C(__builtin_nan(""));
  if (index < 0) return made;
  made.weight = C(rows.loss.smoothing.keep) * class_weight<T>(rows, row, made.element);
  made.others = made.mass;
  made.mass += made.weight;
  return made;
}

// Calls it, for the reason of level_called.
template <class T, int fixed, class Rows>
FASTACT_DEVICE_CALL LseGradient<Compute<T>> lse_gradient_called(const Rows& rows, int64_t row,
                                                                double mass, Compute<T> given,
                                                                Compute<T> lse) {
  return lse_gradient<T, fixed>(rows, row, mass, given, lse);
}

// The gradients of logsumexp and cross_entropy, of rows, of columns, or of chunks of rows. Where
// classes have shares, of whole rows of any length, because the shares are added up first.
template <class T, int vecs, int fixed, bool may_share, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (may_share ? 1 : kBlocksOf<T, Rows>))
void lse_gradients(FASTACT_GRID_CONSTANT const Rows rows) {
  using C = Compute<T>;
  constexpr int n = kRowsOfVec<T, Rows>, kSize = Vec<T>::kSize;
  constexpr bool kHasTarget = fixed != kLogSumExp;
  int fold_index = 0;
  const bool shares = may_share && rows.shares;
  const RowPart mine = row_part < T, may_share || Rows::kColumns ? 0 : vecs, true > (rows);
  double mass[n] = {};
  if (shares) {
#pragma unroll 1
    for (int i = 0; i < mine.count; ++i) {
      const Wide<T> share = shares_of<T>(rows, mine, i, lanes_there<T>(rows, mine, i));
      TreeSum<T, 1, n> sum;
      sum.add(0, share);
#pragma unroll
      for (int s = 0; s < n; ++s) mass[s] += sum.total(s);
    }
    fold_sums(rows, mass, fold_index);
  }
  if (mine.count == 0) return;
  const TakenVecs<T, vecs, Rows> x(rows, mine);
  LseGradient<C> of[n];
  Probability<T> p[n];
  C given[n], lse[n], rest[n];  // all of them are on their way before the first is used
  const auto row_of_lane = [&](int s) { return mine.row + (s < mine.columns ? s : 0); };
  with_type<T>(rows.data[kNumber], rows.dtypes.number, [&](const auto* numbers) {
    using Number = std::remove_reference_t<decltype(*numbers)>;
#pragma unroll
    for (int s = 0; s < n; ++s)
      given[s] =
          C(widen(load(reinterpret_cast<Number*>(number_address(rows, kNumber, row_of_lane(s))))));
  });
#pragma unroll
  for (int s = 0; s < n; ++s) {
    lse[s] = load(reinterpret_cast<const C*>(number_address(rows, kLse, row_of_lane(s))));
    rest[s] = 0;
    if (rows.data[kRest])
      rest[s] = load(reinterpret_cast<const C*>(number_address(rows, kRest, row_of_lane(s))));
  }
#pragma unroll
  for (int s = 0; s < n; ++s) {
    const int64_t row = row_of_lane(s);
    if constexpr (n > 1 && kHasTarget)
      of[s] = lse_gradient_called<T, fixed>(rows, row, mass[s], given[s], lse[s]);
    else
      of[s] = lse_gradient<T, fixed>(rows, row, mass[s], given[s], lse[s]);
    p[s] = Probability<T>::of(of[s].lse, rest[s]);
    if (kApproximate<T>) (kHasTarget ? of[s].mass : of[s].factor) *= p[s].inverse;
  }
  const bool is_plain = fixed == kLoss || (rows.scale_down == 1 && !rows.data[kMask]);
  bool moves = false;
#pragma unroll
  for (int s = 0; s < n; ++s) moves |= p[s].by != 0;
  x.for_each(rows, mine, [&](const RowPart& part, int i, const Vec<T>& vec) {
    Wide<T> z = is_plain ? widen_vec(vec) : scores_of<T>(rows, part, i, widen_vec(vec));
    Wide<T> share{}, dz;
    if (moves) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) z.lane[j] -= p[row_in_vec<Rows>(j)].by;
    }
    if (shares) share = shares_of<T>(rows, part, i, lanes_there<T>(rows, part, i));
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const LseGradient<C>& at = of[row_in_vec<Rows>(j)];
      const C made = p[row_in_vec<Rows>(j)](z.lane[j]);
      dz.lane[j] = at.factor * (kHasTarget ? madd(made, at.mass, -share.lane[j]) : made);
      if (kHasTarget && at.element == -1) dz.lane[j] = 0;
    }
    // In a row one vector has the target; in columns each lane of a vector may have one.
    const int64_t first = element_at<T, Rows>(part, i, 0), to = of[0].element - first;
    if (kHasTarget && (Rows::kColumns || (to >= 0 && to < kSize))) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const LseGradient<C>& at = of[row_in_vec<Rows>(j)];
        if (Rows::kColumns ? at.element == first : j == to) {
          const int s = row_in_vec<Rows>(j);
          const C d = (p[s].by != 0 ? z.lane[j] : z.lane[j] - at.lse) - rest[s];
          const Exp<C> own = exp_scaled<0>(larger(d, kExpZero<C>));
          const C slope = madd(at.weight, own.minus_one(), at.others * own.value());
          dz.lane[j] = at.factor * (slope - share.lane[j]);
        }
      }
    }
    if (fixed != kLoss) leave_out<T>(rows, part, i, C(0), &dz);
    put_gradient<T>(rows, part, i, dz);
  });
}

}  // namespace
FASTACT_END_NAMESPACE
