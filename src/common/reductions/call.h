// The calls of sums, moments and statistics, and of what repeats a number or an array.
#pragma once

#include "common/core/call.h"
#include "common/core/dlpack.h"
#include "common/reductions/of_m2.h"
#include "common/reductions/pairs.h"
#include "common/reductions/terms.h"

namespace fastact {

struct SumCall {
  ArrayArgument x, y;
  AxisFlags axes;
  int term;
  double divisor;
  double initial;  // what a sum begins with, behind the divisor; -0 is nothing
  bool accumulate;
};

// y OUT = initial + the sum of a term of x IN over the axes, / divisor, or y IN/OUT += the sum.
constexpr Field kSumFields[] = {
    fields::in<&SumCall::x>("x"),
    fields::axes<&SumCall::axes>("axes", "x"),
    fields::out<&SumCall::y>("y").reduced("x", "axes"),
    fields::in<&SumCall::term>("term").below(kTerms),
    fields::in<&SumCall::divisor>("divisor"),
    fields::in<&SumCall::initial>("initial"),
    fields::in<&SumCall::accumulate>("accumulate"),
};

struct SumBackwardCall {
  enum : int { kDy, kX, kDx, kArrays };

  ArrayArgument arrays[kArrays];
  int term;
  bool accumulate;
};

// dx OUT = dy IN times the term's derivative at x IN, or dx IN/OUT += of the same.
constexpr Field kSumBackwardFields[] = {
    fields::in<&SumBackwardCall::arrays, SumBackwardCall::kX>("x"),
    fields::in<&SumBackwardCall::arrays, SumBackwardCall::kDy>("dy").like("x"),
    fields::out<&SumBackwardCall::arrays, SumBackwardCall::kDx>("dx").like("x"),
    fields::in<&SumBackwardCall::term>("term").below(kTerms),
    fields::in<&SumBackwardCall::accumulate>("accumulate"),
};

struct SquareCall {
  ArrayArgument x, y, grad;
};

// y OUT = the sum of the squares of x IN, grad OUT = 2 x.
constexpr Field kSquareFields[] = {
    fields::in<&SquareCall::x>("x"),
    fields::out<&SquareCall::y>("y").one().same_dtype("x"),
    fields::out<&SquareCall::grad>("grad").like("x"),
};

struct BroadcastCall {
  ArrayArgument arrays[2];
  bool accumulate;
};

// y OUT = x IN, or y IN/OUT += x; x has strides of 0 where it repeats.
constexpr Field kBroadcastFields[] = {
    fields::in<&BroadcastCall::arrays, 0>("x"),
    fields::out<&BroadcastCall::arrays, 1>("y").like("x"),
    fields::in<&BroadcastCall::accumulate>("accumulate"),
};

struct FillCall {
  ArrayArgument y;
  uint64_t bits;
};

// y OUT = the element that has these bits.
constexpr Field kFillFields[] = {
    fields::out<&FillCall::y>("y").one().any_dtype(),
    fields::in<&FillCall::bits>("bits"),
};

struct MomentsCall {
  enum Input : int { kX, kWeights, kWhere, kInputs };
  enum Result : int { kMean, kLow, kSecond, kCount, kResults };

  ArrayArgument inputs[kInputs];    // weights and mask have strides of 0 where they repeat
  ArrayArgument results[kResults];  // each or none
  AxisFlags axes;
  int of_m2;
  double correction;
  double initial;       // what a total begins with; -0 is nothing
  bool skips;           // NaN
  const char* warning;  // of too few elements; null: none (the CPU's)
  int pair;             // of a total: what is added of x and weights

  // By groups: each result has an axis more, the last one, of as many numbers as there are groups.
  ArrayArgument labels;  // of x's shape
  int term;              // of a total
  const char* op;        // whose labels messages speak of

  const ArrayArgument& x() const { return inputs[kX]; }
  bool is_weighted() const { return inputs[kWeights].shape || inputs[kWhere].shape; }
  // Any result that is there but `low`: all have its dtype, shape and strides.
  const ArrayArgument& model() const {
    return results[results[kMean].shape ? kMean : results[kSecond].shape ? kSecond : kCount];
  }
};

inline const char* problem_of_moments(const void* given) {
  const MomentsCall& call = *static_cast<const MomentsCall*>(given);
  const ArrayArgument &x = call.x(), &model = call.model();
  if (is_empty(x)) return "x must have elements";
  if (!model.shape) return "mean, second or count must be an array";
  const bool has_moments = call.of_m2 != kNothing && call.of_m2 != kTotal;
  if (!has_moments &&
      (call.results[MomentsCall::kLow].shape || call.results[MomentsCall::kSecond].shape))
    return "low and second must be None where nothing becomes of m2";
  if (call.of_m2 == kTotal && !call.is_weighted() && x.dtype < kDTypes)
    return "a total must be of weighted terms";
  if (call.pair != kWeightProduct &&
      (call.of_m2 != kTotal || !call.inputs[MomentsCall::kWeights].shape || call.skips ||
       call.inputs[MomentsCall::kWhere].shape || call.results[MomentsCall::kCount].shape))
    return "pair must be 0 but for a total with weights, and nothing else";
  for (const ArrayArgument& result : call.results)
    if (result.shape && (result.dtype != model.dtype || !same_strides(model, result)))
      return "mean, low, second and count must have one dtype and the same strides";
  return x.device_type != kDLCPU && x.dtype >= kDTypes
             ? "x must have a dtype that is computed on a GPU"
             : nullptr;
}

// mean OUT = the mean of x IN over the axes; low OUT = what its rounding lost; second OUT = what
// OF_M2[of_m2] says of m2, the sum of the squared distances from it; count OUT = of how many
// elements that is. A total is initial + the sum. With weights IN or where IN, which says whether
// an element counts, it is how many elements `where` has True, or the sum of the weights. With a
// pair (pairs.h) weights are a second array, and a total is the sum of a term of both.
constexpr Field kMomentsFields[] = {
    fields::in<&MomentsCall::inputs, MomentsCall::kX>("x").any_dtype(),
    fields::in<&MomentsCall::inputs, MomentsCall::kWeights>("weights")
        .same_shape("x")
        .any_dtype()
        .optional(),
    fields::in<&MomentsCall::inputs, MomentsCall::kWhere>("where")
        .same_shape("x")
        .mask()
        .optional(),
    fields::axes<&MomentsCall::axes>("axes", "x"),
    fields::out<&MomentsCall::results, MomentsCall::kMean>("mean").reduced("x", "axes").optional(),
    fields::out<&MomentsCall::results, MomentsCall::kLow>("low").reduced("x", "axes").optional(),
    fields::out<&MomentsCall::results, MomentsCall::kSecond>("second")
        .reduced("x", "axes")
        .optional(),
    fields::out<&MomentsCall::results, MomentsCall::kCount>("count")
        .reduced("x", "axes")
        .optional(),
    fields::in<&MomentsCall::of_m2>("of_m2").below(kOfM2),
    fields::in<&MomentsCall::correction>("correction"),
    fields::in<&MomentsCall::initial>("initial"),
    fields::in<&MomentsCall::skips>("skips"),
    fields::in<&MomentsCall::warning>("warning").optional(),
    fields::in<&MomentsCall::pair>("pair").below(kPairs),
};

// The number of groups: the length of a result's last axis.
inline int64_t groups_of(const ArrayArgument& result) { return result.shape[result.ndim - 1]; }

inline const char* problem_of_grouped(const void* given) {
  const MomentsCall& call = *static_cast<const MomentsCall*>(given);
  const ArrayArgument& model = call.model();
  if (is_empty(call.x())) return "x must have elements";
  if (!model.shape) return "mean, second or count must be an array";
  if (call.results[MomentsCall::kSecond].shape && (call.of_m2 == kNothing || call.of_m2 == kTotal))
    return "second must be None where nothing becomes of m2";
  if (call.term != kItself && call.of_m2 != kTotal) return "term must be identity but of a total";
  for (const ArrayArgument& result : call.results)
    if (result.shape && (result.dtype != model.dtype || groups_of(result) != groups_of(model) ||
                         !same_strides(model, result)))
      return "mean, second and count must have one dtype, one shape and the same strides";
  return call.x().device_type == kDLCPU ? nullptr : "x must be on the CPU";
}

// Fields of a call by groups: each element of x IN belongs to the group that labels IN says, or, if
// that is -1, to none. With of_m2 kTotal the mean is the sum of a term.
constexpr Field kGroupedFields[] = {
    fields::in<&MomentsCall::inputs, MomentsCall::kX>("x").any_dtype(),
    fields::in<&MomentsCall::inputs, MomentsCall::kWeights>("weights")
        .same_shape("x")
        .any_dtype()
        .optional(),
    fields::in<&MomentsCall::inputs, MomentsCall::kWhere>("where")
        .same_shape("x")
        .mask()
        .optional(),
    fields::in<&MomentsCall::labels>("labels").same_shape("x").index(),
    fields::axes<&MomentsCall::axes>("axes", "x"),
    fields::out<&MomentsCall::results, MomentsCall::kMean>("mean").grouped("x", "axes").optional(),
    fields::out<&MomentsCall::results, MomentsCall::kSecond>("second")
        .grouped("x", "axes")
        .optional(),
    fields::out<&MomentsCall::results, MomentsCall::kCount>("count")
        .grouped("x", "axes")
        .optional(),
    fields::in<&MomentsCall::term>("term").below(kTerms),
    fields::in<&MomentsCall::of_m2>("of_m2").below(kOfM2),
    fields::in<&MomentsCall::correction>("correction"),
    fields::in<&MomentsCall::initial>("initial"),
    fields::in<&MomentsCall::skips>("skips"),
    fields::in<&MomentsCall::warning>("warning").optional(),
    fields::in<&MomentsCall::op>("op").optional(),
};

// All of x's shape, with strides of 0 where they repeat. The mean of 16-bit data is float64, and
// has no low part.
struct MomentsBackwardCall {
  enum : int { kX, kMean, kLow, kDMean, kDSecond, kDx, kArrays };

  ArrayArgument arrays[kArrays];
  double share, scale;
  bool accumulate;
};

inline const char* problem_of_moments_backward(const void* given) {
  using Call = MomentsBackwardCall;
  const ArrayArgument(&arrays)[Call::kArrays] = static_cast<const Call*>(given)->arrays;
  return !arrays[Call::kLow].shape != (item_size(arrays[Call::kX].dtype) == 2)
             ? "low must be an array for data of 32 bits or more, and only there"
             : nullptr;
}

// dx OUT = share dmean IN + scale (x IN - mean IN - low IN) dsecond IN, or dx IN/OUT += of the
// same.
constexpr Field kMomentsBackwardFields[] = {
    fields::in<&MomentsBackwardCall::arrays, MomentsBackwardCall::kX>("x"),
    fields::in<&MomentsBackwardCall::arrays, MomentsBackwardCall::kDMean>("dmean").like("x"),
    fields::in<&MomentsBackwardCall::arrays, MomentsBackwardCall::kDSecond>("dsecond").like("x"),
    fields::in<&MomentsBackwardCall::arrays, MomentsBackwardCall::kMean>("mean")
        .same_shape("x")
        .unrounded("x"),
    fields::in<&MomentsBackwardCall::arrays, MomentsBackwardCall::kLow>("low").like("x").optional(),
    fields::out<&MomentsBackwardCall::arrays, MomentsBackwardCall::kDx>("dx").like("x"),
    fields::in<&MomentsBackwardCall::share>("share"),
    fields::in<&MomentsBackwardCall::scale>("scale"),
    fields::in<&MomentsBackwardCall::accumulate>("accumulate"),
};

// The gradient of one statistic.
struct StatisticBackwardCall {
  enum : int { kX, kDy, kSlope, kMean, kLow, kDx, kArrays };

  ArrayArgument arrays[kArrays];
  bool skips, accumulate;
};

inline const char* problem_of_statistic_backward(const void* given) {
  using Call = StatisticBackwardCall;
  const ArrayArgument(&arrays)[Call::kArrays] = static_cast<const Call*>(given)->arrays;
  const bool is_narrow = item_size(arrays[Call::kX].dtype) == 2;
  const bool fits = !arrays[Call::kLow].shape == (!arrays[Call::kMean].shape || is_narrow);
  return fits ? nullptr : "low must come with a mean of data of 32 bits or more, and only there";
}

// dx OUT = slope IN dy IN (x IN - mean IN - low IN), without a mean slope dy, or dx IN/OUT += of
// the same; where x is NaN, 0 (skips) or NaN.
constexpr Field kStatisticBackwardFields[] = {
    fields::in<&StatisticBackwardCall::arrays, StatisticBackwardCall::kX>("x"),
    fields::in<&StatisticBackwardCall::arrays, StatisticBackwardCall::kDy>("dy").like("x"),
    fields::in<&StatisticBackwardCall::arrays, StatisticBackwardCall::kSlope>("slope")
        .same_shape("x")
        .unrounded("x"),
    fields::in<&StatisticBackwardCall::arrays, StatisticBackwardCall::kMean>("mean")
        .same_shape("x")
        .unrounded("x")
        .optional(),
    fields::in<&StatisticBackwardCall::arrays, StatisticBackwardCall::kLow>("low")
        .like("x")
        .optional(),
    fields::out<&StatisticBackwardCall::arrays, StatisticBackwardCall::kDx>("dx").like("x"),
    fields::in<&StatisticBackwardCall::skips>("skips"),
    fields::in<&StatisticBackwardCall::accumulate>("accumulate"),
};

struct WeightedGradientCall {
  enum Array : int { kTo, kDy, kSlope, kX, kWeights, kWhere, kMean, kOfMean, kToWeights, kArrays };

  ArrayArgument arrays[kArrays];
  int term;
  int pair;  // of a sum: whose derivative it is, of x and weights
  bool of_weights, skips, accumulate;
  // By groups: labels of x's shape. dy, slope, mean and of_mean have an axis of groups more.
  ArrayArgument labels;
  AxisFlags axes;
  const char* op;
};

inline const char* problem_of_weighted_gradient(const void* given) {
  using Call = WeightedGradientCall;
  const Call& call = *static_cast<const Call*>(given);
  const ArrayArgument &x = call.arrays[Call::kX], &slope = call.arrays[Call::kSlope];
  const ArrayArgument &mean = call.arrays[Call::kMean], &of_mean = call.arrays[Call::kOfMean];
  if (call.pair != kWeightProduct && (mean.shape || !call.arrays[Call::kWeights].shape ||
                                      call.arrays[Call::kWhere].shape || call.skips))
    return "pair must be 0 but with weights, and nothing else";
  if (call.arrays[Call::kToWeights].shape && (call.pair == kWeightProduct || call.of_weights))
    return "to_weights must be None but with a pair, beside the gradient of x";
  if (call.of_weights && !mean.shape && call.pair == kWeightProduct)
    return "mean must be an array for the gradient of weights";
  if (of_mean.shape && (call.of_weights || !mean.shape))
    return "of_mean must be None but beside a mean, for the gradient of x";
  if (!same_strides(slope, mean) || !same_strides(slope, of_mean))
    return "slope, mean and of_mean must have the same strides";
  return x.device_type != kDLCPU && x.dtype >= kDTypes
             ? "x must have a dtype that is computed on a GPU"
             : nullptr;
}

// to OUT, or IN/OUT +=, is one of these gradients of x IN, or of its weights IN, by a result's
// gradient dy IN; 0 where an element does not count. t' is the derivative of a term (terms.h).
//
//   without a mean              w slope dy t'(x)
//   with a mean                 w slope dy (x - mean)
//   with of_mean too            w (slope dy (x - mean) + of_mean)
//   of the weights              slope dy (x - mean)
//   with a pair                 dy times its derivative by x, or by the weights; to_weights OUT, or
//                               IN/OUT +=, is the latter beside the former
//
// Arrays have strides of 0 where they repeat.
constexpr Field kWeightedGradientFields[] = {
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kX>("x").any_dtype(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kDy>("dy").same_shape("x"),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kSlope>("slope")
        .same_shape("x")
        .float64(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kWeights>("weights")
        .same_shape("x")
        .any_dtype()
        .optional(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kWhere>("where")
        .same_shape("x")
        .mask()
        .optional(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kMean>("mean")
        .same_shape("x")
        .float64()
        .optional(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kOfMean>("of_mean")
        .same_shape("x")
        .float64()
        .optional(),
    fields::out<&WeightedGradientCall::arrays, WeightedGradientCall::kTo>("to").same_shape("x"),
    fields::out<&WeightedGradientCall::arrays, WeightedGradientCall::kToWeights>("to_weights")
        .same_shape("x")
        .optional(),
    fields::in<&WeightedGradientCall::term>("term").below(kTerms),
    fields::in<&WeightedGradientCall::pair>("pair").below(kPairs),
    fields::in<&WeightedGradientCall::of_weights>("of_weights"),
    fields::in<&WeightedGradientCall::skips>("skips"),
    fields::in<&WeightedGradientCall::accumulate>("accumulate"),
};

inline const char* problem_of_grouped_gradient(const void* given) {
  using Call = WeightedGradientCall;
  const Call& call = *static_cast<const Call*>(given);
  const int64_t groups = groups_of(call.arrays[Call::kDy]);
  const auto differs = [&](Call::Array k) {
    return call.arrays[k].shape && groups_of(call.arrays[k]) != groups;
  };
  if (differs(Call::kSlope) || differs(Call::kMean) || differs(Call::kOfMean))
    return "dy, slope, mean and of_mean must have as many groups";
  if (call.arrays[Call::kX].device_type != kDLCPU) return "x must be on the CPU";
  return problem_of_weighted_gradient(given);
}

// Fields of a gradient by groups, which is 0 where an element belongs to none.
constexpr Field kGroupedGradientFields[] = {
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kX>("x").any_dtype(),
    fields::in<&WeightedGradientCall::labels>("labels").same_shape("x").index(),
    fields::axes<&WeightedGradientCall::axes>("axes", "x"),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kDy>("dy").grouped("x", "axes"),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kSlope>("slope")
        .grouped("x", "axes")
        .float64(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kWeights>("weights")
        .same_shape("x")
        .any_dtype()
        .optional(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kWhere>("where")
        .same_shape("x")
        .mask()
        .optional(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kMean>("mean")
        .grouped("x", "axes")
        .float64()
        .optional(),
    fields::in<&WeightedGradientCall::arrays, WeightedGradientCall::kOfMean>("of_mean")
        .grouped("x", "axes")
        .float64()
        .optional(),
    fields::out<&WeightedGradientCall::arrays, WeightedGradientCall::kTo>("to").same_shape("x"),
    fields::in<&WeightedGradientCall::term>("term").below(kTerms),
    fields::in<&WeightedGradientCall::of_weights>("of_weights"),
    fields::in<&WeightedGradientCall::skips>("skips"),
    fields::in<&WeightedGradientCall::accumulate>("accumulate"),
    fields::in<&WeightedGradientCall::op>("op").optional(),
};

constexpr CallTable kSumCall = table_of_call<SumCall>("sum", kSumFields);
constexpr CallTable kSumBackwardCall =
    table_of_call<SumBackwardCall>("sum_backward", kSumBackwardFields);
constexpr CallTable kSquareCall = table_of_call<SquareCall>("square_value_and_grad", kSquareFields);
constexpr CallTable kBroadcastCall = table_of_call<BroadcastCall>("broadcast", kBroadcastFields);
constexpr CallTable kFillCall = table_of_call<FillCall>("fill", kFillFields);
constexpr CallTable kMomentsCall =
    table_of_call<MomentsCall>("moments", kMomentsFields, problem_of_moments);
constexpr CallTable kGroupedCall =
    table_of_call<MomentsCall>("grouped", kGroupedFields, problem_of_grouped);
constexpr CallTable kMomentsBackwardCall = table_of_call<MomentsBackwardCall>(
    "moments_backward", kMomentsBackwardFields, problem_of_moments_backward);
constexpr CallTable kStatisticBackwardCall = table_of_call<StatisticBackwardCall>(
    "statistic_backward", kStatisticBackwardFields, problem_of_statistic_backward);
constexpr CallTable kWeightedGradientCall = table_of_call<WeightedGradientCall>(
    "weighted_gradient", kWeightedGradientFields, problem_of_weighted_gradient);
constexpr CallTable kGroupedGradientCall = table_of_call<WeightedGradientCall>(
    "grouped_gradient", kGroupedGradientFields, problem_of_grouped_gradient);

}  // namespace fastact
