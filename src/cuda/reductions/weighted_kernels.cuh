// The kernels of weighted and masked moments, and of their gradients. common/reductions/weights.h
// has the formulas, moments.cu explains the plan.
//
//   weighted_blocks     a block is tx outputs by 256 / tx terms
//   gradient_elements   gradients by numbers of each result that were found before
//
// A block passes over its chunk of the terms three times: for the first element that counts, for
// the mean about it, and for m2 about the mean. The chunk comes from memory once, and then from the
// cache. Where nobody asks for m2, narrower types than double need one pass, about 0. Threads' sums
// are added in shared memory by a tree, and chunks are merged as for other moments. Few terms are a
// thread's alone. Every array goes by its own strides, element by element. So there is one kernel
// for each dtype of x, whatever the layout; the dtypes of other arrays are tested for each element.
//
// Where squares leave the range of double, the last two passes follow once more, over elements
// times a power of two (common/reductions/range.h). Moments of double without weights, whose
// kernels know no scale, are looked at by a second kernel, this one: it finds their outputs anew
// where they are out of range.
#pragma once

#include "common/reductions/pairs.h"
#include "common/reductions/weights.h"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_io.cuh"
#include "cuda/reductions/moment_kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kFewTerms = 8;  // of an output, which one thread has, at most

// Weighted terms and their results, in y. "Rows" of the table are outputs, and their elements
// terms.
struct WeightedSums {
  enum { kX, kWeights, kWhere, kY, kArrays };
  StridedArrays<kArrays> of;
  int dtypes[kArrays];
  int64_t outputs, terms;
  bool skips, squares;  // squares: m2 is wanted
  int64_t tiles;        // of tx outputs
  int tx, ty;           // threads of a block
  int pair;             // what is added of x and weights
  Chunks chunks;        // of the terms
  double* partials;     // OUT where there is more than one chunk, as in Sums
};

FASTACT_DEVICE_CALL double number_by_call(const char* p, int dtype) { return number_at(p, dtype); }

// A term and its weight, by which it counts where `is_there`.
template <class T>
struct WeightedTerm {
  Compute<T> x;
  double weight;
  bool is_there;

  FASTACT_DEVICE WeightedTerm(const WeightedSums& plan, const int64_t (&at)[WeightedSums::kArrays])
      : weight(1), is_there(true) {
    using Plan = WeightedSums;
    const auto address_of = [&](int k) { return plan.of.data[k] + at[k]; };
    x = widen(load(reinterpret_cast<const T*>(address_of(Plan::kX))));
    if (plan.of.data[Plan::kWeights]) {
      const char* const p = address_of(Plan::kWeights);
      const int dtype = plan.dtypes[Plan::kWeights];
      weight = dtype == kDTypeOf<T> ? double(widen(load(reinterpret_cast<const T*>(p))))
                                    : number_by_call(p, dtype);
    }
    if (plan.of.data[Plan::kWhere])
      is_there = load(reinterpret_cast<const uint8_t*>(address_of(Plan::kWhere))) != 0;
  }
};

// Folds the values of a column of threads by combine(a, b), and gives all of them the result.
template <class Shared, class Combine>
FASTACT_DEVICE double fold_column(const WeightedSums& sums, Shared&& buffer, double value,
                                  const Combine& combine) {
  if (sums.ty == 1) return value;
  const int mine = int(threadIdx.x);
  buffer[mine] = value;
  __syncthreads();
  halve_rows(mine / sums.tx, sums.ty, 1, [&](int half) {
    buffer[mine] = combine(double(buffer[mine]), double(buffer[mine + half * sums.tx]));
  });
  const double all = buffer[mine % sums.tx];
  __syncthreads();
  return all;
}

// The moments of what counts. for_terms(visit): calls visit(x, weight) for each of a thread's terms
// that counts, until it returns false. fold(value, combine): over the threads of a result, given to
// all of them. any(condition): whether it holds for a result whose threads take part in the same
// folds. squares: m2 is wanted; else the sums are about 0, of less than double.
template <class ForTerms, class Fold, class Any>
FASTACT_DEVICE Growing moments_of_terms(bool squares, const ForTerms& for_terms, const Fold& fold,
                                        const Any& any) {
  const auto add = [](double a, double b) { return a + b; };
  Growing all{};
  if (!squares) {
    double sum = 0, mine = 0;
    for_terms([&](double x, double w) {
      sum = madd(w, x, sum);
      mine += w;
      return true;
    });
    all.count = fold(mine, add);
    all.of.mean = fold(sum, add) / all.count;
    return all;
  }
  double first = __builtin_nan("");
  for_terms([&](double x, double w) {
    if (w > 0 && is_finite(x)) first = x;
    return first != first;
  });
  const double start =
      finite_or_zero(fold(first, [](double a, double b) { return a == a ? a : b; }));
  double scale = 1;
#pragma unroll 1
  for (bool again = false;; again = true) {
    double sum = 0, of_squares = 0, mine = 0;
    for_terms([&](double x, double w) {
      sum += w * (x * scale - start * scale);
      mine += w;
      return true;
    });
    all.count = fold(mine, add);
    sum = fold(sum, add);
    const double mean = start * scale + sum / all.count;
    const double centre = all.count > 0 ? finite_or_zero(mean) : 0.0;
    sum = 0;
    for_terms([&](double x, double w) {
      const double d = x * scale - centre, product = w * d, square = product * d;
      sum += product;
      of_squares += square == 0 && d != 0 ? kVanished : square;
      return true;
    });
    sum = fold(sum, add);
    of_squares = fold(of_squares, add);
    double* const m2 = &all.of.m2;
    if (all.count != 0) moments_of_sums(centre, sum, of_squares, all.count, &all.of.mean, m2);
    const double up = inverse_power(scale);
    all.of.mean *= up;
    if (again) *m2 = square_or_root(*m2, up);
    const bool is_far = *m2 > 0 && !is_in_range(*m2);
    if (again || !any(is_far)) return all;
    if (is_far) scale = *m2 < 1 ? kScaleUp : kScaleDown;
  }
}

// Whether the squares of an output left the range of double, by what was stored.
FASTACT_DEVICE bool is_far(const MomentResults& to, int64_t at) {
  const double second = load(reinterpret_cast<const double*>(to.second + at));
  const bool is_root = to.of_m2 == kDeviation;
  if (to.of_m2 == kDeviationSlope)
    return second > 0x1p400 || (second == 0 && bit_cast<uint64_t>(second) != 0);
  const double least = is_root ? 0x1p-440 : 0x1p-880;
  return second < 0 || second > kMostDouble || (second > 0 && second < least);
}

// Calls visit(Pair{}); gives `otherwise` where weights are weights.
template <class Visit>
FASTACT_DEVICE double visit_pair(int pair, double otherwise, const Visit& visit) {
  switch (Pair(pair)) {
#define FASTACT_CASE(name, Struct) \
  case k##Struct:                  \
    return visit(Struct{});
    FASTACT_PAIRS(FASTACT_CASE)
#undef FASTACT_CASE
    case kWeightProduct:
    case kPairs:
      break;
  }
  return otherwise;
}
// The term of a pair, and one of its derivatives: calls, for weights take no exponential.
FASTACT_DEVICE_CALL double pair_term(int pair, double x, double t) {
  return visit_pair(pair, x * t, [&](auto of) { return of.of(x, t); });
}
FASTACT_DEVICE_CALL double pair_slope(int pair, bool by_t, double x, double t) {
  return visit_pair(pair, by_t ? x : t, [&](auto of) {
    const PairSlopes<double> slopes = of.slopes(x, t);
    return by_t ? slopes.by_t : slopes.by_x;
  });
}

template <class T>
FASTACT_KERNEL_OF(kThreads, 2)
void weighted_blocks(FASTACT_GRID_CONSTANT const WeightedSums sums,
                     FASTACT_GRID_CONSTANT const MomentResults to, const bool only_far) {
  constexpr int kArrays = WeightedSums::kArrays;
  FASTACT_SHARED(double, buffer, kThreads);
  const int tx = int(threadIdx.x) % sums.tx, ty = int(threadIdx.x) / sums.tx;
  for (int64_t task = blockIdx.x; task < sums.tiles * sums.chunks.count; task += gridDim.x) {
    const int64_t chunk = task % sums.chunks.count;
    const int64_t output = task / sums.chunks.count * sums.tx + tx;
    bool is_there = output < sums.outputs;
    int64_t at[kArrays] = {};
    offset_all(sums.of, is_there ? output : 0, 0, sums.of.row_axes, at);
    __syncthreads();  // any_of_block may follow upon another one
    if (only_far) {
      is_there = is_there && is_far(to, at[sums.kY]);
      if (!any_of_block(is_there)) continue;
      __syncthreads();
    }
    const int64_t begin = chunk * sums.chunks.size + ty;
    const int64_t end = is_there ? smaller((chunk + 1) * sums.chunks.size, sums.terms) : begin;
    const auto for_terms = [&](const auto& visit) {
      for (int64_t i = begin; i < end; i += sums.ty) {
        int64_t on[kArrays];
#pragma unroll
        for (int k = 0; k < kArrays; ++k) on[k] = at[k];
        offset_all(sums.of, i, sums.of.row_axes, sums.of.count, on);
        const WeightedTerm<T> term(sums, on);
        double x = double(term.x), w = term.weight;
        if (sums.pair) x = pair_term(sums.pair, x, w), w = 1;
        const double weight = weight_of(x, w, term.is_there, sums.skips);
        if (weight != 0 && !visit(x, weight)) return;
      }
    };
    const Growing all = moments_of_terms(
        sums.squares, for_terms,
        [&](double value, const auto& combine) {
          return fold_column(sums, buffer, value, combine);
        },
        [&](bool condition) { return any_of_block(is_there && condition); });
    if (ty > 0 || !is_there) continue;
    if (sums.chunks.count > 1)
      put_chunk(to, sums.partials + (output * sums.chunks.count + chunk) * MomentResults::kNumbers,
                all);
    else
      put<T>(to, at[sums.kY], all);
  }
}

// The gradient of an element of weight w, or by its weight, from slope times dy and d = x - mean.
FASTACT_DEVICE double element_gradient(bool of_weight, bool of_mean, double slope, double w,
                                       double d) {
  if (w == 0) return 0;
  if (of_weight) return gradient_of_weight(slope, d);
  return of_mean ? gradient_of_mean(slope, w) : gradient_of_second(slope, w, d);
}

// The arrays of WeightedGradientCall up to the mask; absent ones have no data. mean and of_mean go
// by the slope's steps.
struct GradientElements {
  static constexpr int kArrays = WeightedGradientCall::kWhere + 1;
  StridedArrays<kArrays> of;
  char *mean, *of_mean;
  int dtypes[kArrays];
  int term, pair;
  bool of_weights, skips, accumulate;
  int64_t size;
};

// dy times the derivative of a term at x.
FASTACT_DEVICE double term_gradient(int term, double dy, double x) {
  double dx = dy;
  visit_term(term, [&](auto of) { dx = decltype(of)::gradient(dy, x); });
  return dx;
}

template <class T>
FASTACT_KERNEL(kThreads)
void gradient_elements(FASTACT_GRID_CONSTANT const GradientElements all) {
  using A = WeightedGradientCall;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < all.size;
       i += int64_t(gridDim.x) * kThreads) {
    int64_t at[GradientElements::kArrays] = {};
    offset_all(all.of, i, 0, all.of.count, at);
    const auto number = [&](int k, double otherwise) {
      const char* const p = all.of.data[k];
      return p ? number_at(p + at[k], all.dtypes[k]) : otherwise;
    };
    const auto beside_slope = [&](const char* p) { return number_at(p + at[A::kSlope], kF64); };
    const double x = number(A::kX, 0), dy = number(A::kDy, 0), slope = number(A::kSlope, 0);
    const double d = all.mean ? x - beside_slope(all.mean) : 0;
    const double weight = all.of_weights ? 1.0 : number(A::kWeights, 1);
    const double w = weight_of(x, weight, number(A::kWhere, 1) != 0, all.skips);
    double found = 0;
    if (all.pair)
      found = gradient_of_mean(dy, pair_slope(all.pair, all.of_weights, x, number(A::kWeights, 1)));
    else if (w != 0 && all.of_mean)
      found = gradient_of_both(beside_slope(all.of_mean), slope * dy, w, d);
    else
      found = element_gradient(all.of_weights, !all.mean,
                               slope * (all.mean ? dy : term_gradient(all.term, dy, x)), w, d);
    if (all.accumulate) found = number(A::kTo, 0) + found;
    put_by_call(all.of.data[A::kTo] + at[A::kTo], all.dtypes[A::kTo], found, false);
  }
}

}  // namespace
FASTACT_END_NAMESPACE
