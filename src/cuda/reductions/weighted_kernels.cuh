// The kernels of weighted and masked moments, and of their gradients. common/reductions/weights.h
// has the formulas, moments.cu explains the plan.
//
//   few_weighted, few_weighted_gradients   of at most kMostFewWeighted terms, which a thread has in
//                      registers: gradients follow at once, so x and weights are read once
//   weighted_blocks    of more: a block is tx outputs by 256 / tx terms
//   gradient_elements  gradients by numbers of each result that were found before
//
// A block passes over its chunk of the terms three times: for the first element that counts, for
// the mean about it, and for m2 about the mean. The chunk comes from memory once, and then from the
// cache. Where nobody asks for m2, narrower types than double need one pass, about 0. Threads' sums
// are added in shared memory by a tree, and chunks are merged as for other moments. Every array
// goes by its own strides, element by element. So there is one kernel for each dtype of x, whatever
// the layout; the dtypes of other arrays are tested for each element.
//
// Where squares leave the range of double, the last two passes follow once more, over elements
// times a power of two (common/reductions/range.h). Moments of double without weights, whose
// kernels know no scale, are looked at by a second kernel, this one: it finds their outputs anew
// where they are out of range.
#pragma once

#include "common/reductions/pairs.h"
#include "common/reductions/weights.h"
#include "cuda/core/parameter_io.cuh"
#include "cuda/reductions/moment_kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The axes of x, results, weights and mask; absent arrays have strides of 0. The outer axes count
// outputs, the others terms. (One set of axes for all arrays: a kernel's parameters are 4 KiB at
// most.)
struct WeightedSums {
  enum { kX, kY, kWeights, kWhere, kArrays };
  const char *x, *weights, *where;  // IN; null: not there
  int weights_dtype;
  int pair;  // what is added of x and weights
  int kept_axes, axes;
  int64_t length[kMaxAxes], stride[kArrays][kMaxAxes];
  int64_t outputs, terms;
  int64_t tiles;        // of tx outputs
  int tx, ty;           // threads of a block
  bool skips, squares;  // squares: m2 is wanted
  Chunks chunks;        // of the terms
  double* partials;     // OUT where there is more than one chunk, as in Sums
};

// Bytes into each array.
struct WeightedOffset {
  int64_t of[WeightedSums::kArrays];
};
FASTACT_DEVICE WeightedOffset offset_of(const WeightedSums& sums, int64_t index, int first,
                                        int end) {
  WeightedOffset at{};
  unravel(index, sums.length, first, end, [&](int axis, int64_t here) {
#pragma unroll
    for (int k = 0; k < WeightedSums::kArrays; ++k) at.of[k] += here * sums.stride[k][axis];
  });
  return at;
}

// Folds the values of a column of threads by combine(a, b), and gives all of them the result.
template <class Shared, class Combine>
FASTACT_DEVICE double fold_column(const WeightedSums& sums, Shared&& buffer, double value,
                                  const Combine& combine) {
  const int mine = int(threadIdx.x), y = mine / sums.tx;
  buffer[mine] = value;
  __syncthreads();
  for (int rows = sums.ty; rows > 1;) {
    const int half = (rows + 1) / 2;
    if (y + half < rows)
      buffer[mine] = combine(double(buffer[mine]), double(buffer[mine + half * sums.tx]));
    __syncthreads();
    rows = half;
  }
  const double all = buffer[mine % sums.tx];
  __syncthreads();
  return all;
}

// Whether a condition, the same for all threads of an output, holds for one of the block's.
template <class Shared>
FASTACT_DEVICE bool any_output(const WeightedSums& sums, Shared&& buffer, bool condition) {
  buffer[threadIdx.x] = condition;
  __syncthreads();
  bool any = false;
  for (int i = 0; i < sums.tx; ++i) any |= double(buffer[i]) != 0;
  __syncthreads();
  return any;
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

// Of a pair: its term, or one of its derivatives. Calls, for weights take no exponential.
FASTACT_DEVICE_CALL double pair_term(int pair, double x, double t) {
  switch (Pair(pair)) {
#define FASTACT_CASE(name, Struct) \
  case k##Struct:                  \
    return Struct::of(x, t);
    FASTACT_PAIRS(FASTACT_CASE)
#undef FASTACT_CASE
    case kWeightProduct:
    case kPairs:
      break;
  }
  return x * t;
}
FASTACT_DEVICE_CALL double pair_slope(int pair, bool by_t, double x, double t) {
  const auto chosen = [&](const PairSlopes<double>& of) { return by_t ? of.by_t : of.by_x; };
  switch (Pair(pair)) {
#define FASTACT_CASE(name, Struct) \
  case k##Struct:                  \
    return chosen(Struct::slopes(x, t));
    FASTACT_PAIRS(FASTACT_CASE)
#undef FASTACT_CASE
    case kWeightProduct:
    case kPairs:
      break;
  }
  return by_t ? x : t;
}

template <class T>
FASTACT_KERNEL_OF(kThreads, 2)
void weighted_blocks(FASTACT_GRID_CONSTANT const WeightedSums sums,
                     FASTACT_GRID_CONSTANT const MomentResults to, const bool only_far) {
  FASTACT_SHARED(double, buffer, kThreads);
  const int tx = int(threadIdx.x) % sums.tx, ty = int(threadIdx.x) / sums.tx;
  for (int64_t task = blockIdx.x; task < sums.tiles * sums.chunks.count; task += gridDim.x) {
    const int64_t chunk = task % sums.chunks.count;
    const int64_t output = task / sums.chunks.count * sums.tx + tx;
    bool is_there = output < sums.outputs;
    const WeightedOffset at = offset_of(sums, is_there ? output : 0, 0, sums.kept_axes);
    if (only_far) {
      is_there = is_there && is_far(to, at.of[WeightedSums::kY]);
      if (!any_output(sums, buffer, is_there)) continue;
    }
    const int64_t begin = chunk * sums.chunks.size + ty;
    const int64_t end = is_there ? smaller((chunk + 1) * sums.chunks.size, sums.terms) : begin;
    const auto for_terms = [&](const auto& visit) {
      for (int64_t i = begin; i < end; i += sums.ty) {
        const WeightedOffset on = offset_of(sums, i, sums.kept_axes, sums.axes);
        const auto address = [&](const char* p, int k) { return p + at.of[k] + on.of[k]; };
        const auto* p = reinterpret_cast<const T*>(address(sums.x, WeightedSums::kX));
        double x = double(widen(load(p))), w = 1;
        if (sums.weights)
          w = number_at(address(sums.weights, WeightedSums::kWeights), sums.weights_dtype);
        if (sums.pair) x = pair_term(sums.pair, x, w), w = 1;
        const bool counts =
            !sums.where || number_at(address(sums.where, WeightedSums::kWhere), kBool) != 0;
        const double weight = weight_of(x, w, counts, sums.skips);
        if (weight != 0 && !visit(x, weight)) return;
      }
    };
    const Growing all = moments_of_terms(
        sums.squares, for_terms,
        [&](double value, const auto& combine) {
          return fold_column(sums, buffer, value, combine);
        },
        [&](bool condition) { return any_output(sums, buffer, is_there && condition); });
    if (ty > 0 || !is_there) continue;
    if (sums.chunks.count > 1)
      put_chunk(to, sums.partials + (output * sums.chunks.count + chunk) * MomentResults::kNumbers,
                all);
    else
      put<T>(to, at.of[WeightedSums::kY], all);
  }
}

// --- few terms

constexpr int kMostFewWeighted = 8;

// Arrays over the axes of results, and where the few terms of a result are, in bytes. kY: results,
// or their gradients; then there are the arrays behind it, too.
struct FewRoles {
  enum { kX, kWeights, kWhere, kY, kDx, kDWeights, kArrays };
};
template <int arrays>
struct FewWeighted : FewRoles {
  char* data[arrays];  // null: not there
  int64_t term[arrays][kMostFewWeighted];
  int dtypes[arrays];
  int terms, axes;
  int64_t results, length[kMaxAxes], stride[arrays][kMaxAxes];
  bool skips, squares, accumulate, accumulate_dweights;
  bool touch[2];  // of dx, of dweights: whether the terms of all results lie one behind the other
  OfM2 of_m2;
  double correction;

  template <class Visit>
  FASTACT_DEVICE void locate(int64_t result, const Visit& visit) const {
    if (results <= int64_t(0xffffffff))
      unravel(uint32_t(result), length, 0, axes, visit);
    else
      unravel(result, length, 0, axes, visit);
  }
};
using FewMomentsOf = FewWeighted<FewRoles::kDx>;
using FewGradientsOf = FewWeighted<FewRoles::kArrays>;

FASTACT_DEVICE_CALL double number_by_call(const char* p, int dtype) { return number_at(p, dtype); }

// The terms of a result.
template <class T, int most>
struct WeightedTerms {
  int64_t at[FewRoles::kArrays] = {};  // bytes, of the result
  Compute<T> x[most] = {};
  double weight[most] = {};
  bool is_there[most] = {};

  // count: of terms that are read, all or none.
  template <int arrays>
  FASTACT_DEVICE WeightedTerms(const FewWeighted<arrays>& few, int64_t result, int count) {
    using Few = FewRoles;
    few.locate(result, [&](int axis, int64_t here) {
#pragma unroll
      for (int k = 0; k < arrays; ++k) at[k] += here * few.stride[k][axis];
    });
    const auto address = [&](int k, int r) { return few.data[k] + at[k] + few.term[k][r]; };
    T own[most] = {}, weights[most] = {};
    const bool is_own = few.dtypes[Few::kWeights] == kDTypeOf<T>;
#pragma unroll
    for (int r = 0; r < most; ++r)
      if (r < count) own[r] = load(reinterpret_cast<const T*>(address(Few::kX, r)));
    if (few.data[Few::kWeights] && is_own) {
#pragma unroll
      for (int r = 0; r < most; ++r)
        if (r < count) weights[r] = load(reinterpret_cast<const T*>(address(Few::kWeights, r)));
    }
#pragma unroll
    for (int r = 0; r < most; ++r) {
      if (r >= count) break;
      x[r] = widen(own[r]);
      weight[r] = 1;
      if (few.data[Few::kWeights])
        weight[r] = is_own ? double(widen(weights[r]))
                           : number_by_call(address(Few::kWeights, r), few.dtypes[Few::kWeights]);
      is_there[r] = !few.data[Few::kWhere] ||
                    load(reinterpret_cast<const uint8_t*>(address(Few::kWhere, r))) != 0;
      weight[r] = weight_of(double(x[r]), weight[r], is_there[r], few.skips);
    }
  }
  template <class Few>
  FASTACT_DEVICE Growing moments(const Few& few) const {
    return moments_of_terms(
        few.squares,
        [&](const auto& visit) {
#pragma unroll
          for (int r = 0; r < most; ++r)
            if (r < few.terms && weight[r] != 0 && !visit(double(x[r]), weight[r])) return;
        },
        [](double value, const auto&) { return value; }, [](bool condition) { return condition; });
  }
};

template <class T, int most>
FASTACT_KERNEL_OF(kThreads, 3)
void few_weighted(FASTACT_GRID_CONSTANT const FewMomentsOf few,
                  FASTACT_GRID_CONSTANT const MomentResults to) {
  const int64_t result = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (result >= few.results) return;
  const WeightedTerms<T, most> terms(few, result, few.terms);
  put<T>(to, terms.at[FewRoles::kY], terms.moments(few));
}

// Writes what number_of(r) says of the terms of a result; neighbours' terms that touch go through
// shared memory, so that a warp's stores do.
template <class T, int most, class NumberOf>
FASTACT_DEVICE void put_terms(const FewGradientsOf& few, int array, int64_t result, int64_t at,
                              bool accumulate, const NumberOf& number_of) {
  const auto tile = fold_buffer<kThreads * most, T>();
  char* const data = few.data[array];
  if (!data) return;
  const int lane = int(threadIdx.x) % kWarp, terms = few.terms;
  const bool is_there = result < few.results;
  if (few.touch[array - FewRoles::kDx] && !accumulate) {
    const int mine = int(threadIdx.x) * terms, first = mine - lane * terms;
    __syncthreads();  // all have read their terms, which may lie where the numbers go
    if (is_there) {
#pragma unroll
      for (int r = 0; r < most; ++r)
        if (r < terms) tile[mine + r] = narrow_once<T>(number_of(r));
    }
    __syncwarp();
    T* const to = reinterpret_cast<T*>(data) + (result - lane) * terms;
    const int count = int(smaller(few.results - (result - lane), kWarp)) * terms;
    for (int i = lane; i < count; i += kWarp) store(to + i, T(tile[first + i]));
    return;
  }
#pragma unroll
  for (int r = 0; r < most; ++r)
    if (is_there && r < terms)
      put_by_call(data + at + few.term[array][r], few.dtypes[array], number_of(r), accumulate);
}

// gradient_elements has the formulas.
template <class T, int most>
FASTACT_KERNEL_OF(kThreads, 3)
void few_weighted_gradients(FASTACT_GRID_CONSTANT const FewGradientsOf few) {
  using Few = FewRoles;
  const int64_t result = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  // A thread without a result reads no terms: dx may be x.
  const WeightedTerms<T, most> terms(few, smaller(result, few.results - 1),
                                     result < few.results ? few.terms : 0);
  const double dy =
      double(widen(load(reinterpret_cast<const T*>(few.data[Few::kY] + terms.at[Few::kY]))));
  MomentResults to{};
  to.of_m2 = few.of_m2, to.correction = few.correction, to.skips = few.skips;
  Denominator left;
  const OfMoments of(to, terms.moments(few), left, true);
  const double mean = of.get<double>(0), slope = of.second * dy;
  const bool is_of_mean = few.of_m2 == kMeanSlope;
  const auto distance = [&](int r) { return double(terms.x[r]) - mean; };
  put_terms<T, most>(few, Few::kDx, result, terms.at[Few::kDx], few.accumulate, [&](int r) {
    return is_of_mean ? gradient_of_mean(slope, terms.weight[r])
                      : gradient_of_second(slope, terms.weight[r], distance(r));
  });
  put_terms<T, most>(
      few, Few::kDWeights, result, terms.at[Few::kDWeights], few.accumulate_dweights, [&](int r) {
        const double once = weight_of(double(terms.x[r]), 1, terms.is_there[r], few.skips);
        return once != 0 ? gradient_of_weight(slope, distance(r)) : 0.0;
      });
}

// Operands in the order of WeightedGradientCall; absent ones have no data. mean and of_mean go by
// the slope's strides.
struct GradientArrays {
  enum { kTo, kDy, kSlope, kX, kWeights, kWhere, kCount };
  char* data[kCount];
  char *mean, *of_mean;
  int dtypes[kCount];
  int axes, term, pair;
  bool of_weights, skips, accumulate;
  int64_t size, length[kMaxAxes], stride[kCount][kMaxAxes];
};

// dy times the derivative of a term at x.
FASTACT_DEVICE double term_gradient(int term, double dy, double x) {
  switch (Term(term)) {
#define FASTACT_CASE(name, Struct) \
  case k##Struct:                  \
    return Struct::gradient(dy, x);
    FASTACT_TERMS(FASTACT_CASE)
#undef FASTACT_CASE
    case kTerms:
      break;
  }
  return dy;
}

template <class T>
FASTACT_KERNEL(kThreads)
void gradient_elements(FASTACT_GRID_CONSTANT const GradientArrays arrays) {
  using A = GradientArrays;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < arrays.size;
       i += int64_t(gridDim.x) * kThreads) {
    int64_t at[A::kCount] = {};
    unravel(i, arrays.length, 0, arrays.axes, [&](int axis, int64_t here) {
#pragma unroll
      for (int k = 0; k < A::kCount; ++k) at[k] += here * arrays.stride[k][axis];
    });
    const auto number = [&](int k, double otherwise) {
      return arrays.data[k] ? number_at(arrays.data[k] + at[k], arrays.dtypes[k]) : otherwise;
    };
    const auto beside_slope = [&](const char* p) { return number_at(p + at[A::kSlope], kF64); };
    const double x = number(A::kX, 0), dy = number(A::kDy, 0), slope = number(A::kSlope, 0);
    const double d = arrays.mean ? x - beside_slope(arrays.mean) : 0;
    const double weight = arrays.of_weights ? 1.0 : number(A::kWeights, 1);
    const double w = weight_of(x, weight, number(A::kWhere, 1) != 0, arrays.skips);
    double found = 0;
    if (arrays.pair) {
      found = gradient_of_mean(
          dy, pair_slope(arrays.pair, arrays.of_weights, x, number(A::kWeights, 1)));
    } else if (w != 0 && arrays.of_weights)
      found = gradient_of_weight(slope * dy, d);
    else if (w != 0 && arrays.of_mean)
      found = gradient_of_both(beside_slope(arrays.of_mean), slope * dy, w, d);
    else if (w != 0)
      found = arrays.mean ? gradient_of_second(slope * dy, w, d)
                          : gradient_of_mean(slope * term_gradient(arrays.term, dy, x), w);
    if (arrays.accumulate) found = number(A::kTo, 0) + found;
    put_by_call(arrays.data[A::kTo] + at[A::kTo], arrays.dtypes[A::kTo], found, false);
  }
}

}  // namespace
FASTACT_END_NAMESPACE
