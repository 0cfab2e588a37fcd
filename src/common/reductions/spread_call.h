// The call of a statistic's gradient as a whole, for devices.
#pragma once

#include "common/reductions/call.h"

namespace fastact {

// Does what statistic_backward, moments_backward and weighted_gradient do, and finds their
// statistics: a device may find it and use it in one kernel.
struct SpreadBackwardCall {
  enum : int { kX, kDy, kDSecond, kDx, kWeights, kWhere, kDWeights, kArrays };

  ArrayArgument arrays[kArrays];
  AxisFlags axes;
  int of_m2;
  double correction, share, scale;
  bool skips, accumulate, accumulate_dweights;

  bool is_weighted() const { return arrays[kWeights].shape || arrays[kWhere].shape; }
};

inline const char* problem_of_spread_backward(const void* given) {
  const SpreadBackwardCall& call = *static_cast<const SpreadBackwardCall*>(given);
  const bool is_slope =
      call.of_m2 == kMeanSlope || call.of_m2 == kVarianceSlope || call.of_m2 == kDeviationSlope;
  if (!is_slope && call.of_m2 != kM2) return "of_m2 must be a slope, or m2";
  if (is_slope == bool(call.arrays[SpreadBackwardCall::kDSecond].shape))
    return "dsecond must come with m2, and only there";
  if (!is_slope && call.is_weighted()) return "weights and where must be None with m2";
  if (call.arrays[SpreadBackwardCall::kDWeights].shape && !call.is_weighted())
    return "dweights must be None without weights";
  if (!call.arrays[SpreadBackwardCall::kDx].shape && !call.is_weighted())
    return "dx must be an array without weights";
  return call.arrays[SpreadBackwardCall::kX].device_type == kDLCPU ? "x must be on a GPU" : nullptr;
}

// dx OUT, or IN/OUT +=, is what statistic_backward makes of dy IN with the slope that of_m2 names
// (of the mean's, without a mean), or, with m2, what moments_backward makes of dy IN, the mean's
// gradient, and of dsecond IN. With weights IN or where IN, which says whether an element counts,
// dx and dweights OUT, or IN/OUT +=, are what weighted_gradient makes of the slope. dy, dsecond,
// weights and where have strides of 0 where they repeat.
constexpr Field kSpreadBackwardFields[] = {
    fields::in<&SpreadBackwardCall::arrays, SpreadBackwardCall::kX>("x"),
    fields::in<&SpreadBackwardCall::arrays, SpreadBackwardCall::kDy>("dy").like("x"),
    fields::in<&SpreadBackwardCall::arrays, SpreadBackwardCall::kDSecond>("dsecond")
        .like("x")
        .optional(),
    fields::in<&SpreadBackwardCall::arrays, SpreadBackwardCall::kWeights>("weights")
        .same_shape("x")
        .any_dtype()
        .optional(),
    fields::in<&SpreadBackwardCall::arrays, SpreadBackwardCall::kWhere>("where")
        .same_shape("x")
        .mask()
        .optional(),
    fields::out<&SpreadBackwardCall::arrays, SpreadBackwardCall::kDx>("dx").like("x").optional(),
    fields::out<&SpreadBackwardCall::arrays, SpreadBackwardCall::kDWeights>("dweights")
        .same_shape("x")
        .optional(),
    fields::axes<&SpreadBackwardCall::axes>("axes", "x"),
    fields::in<&SpreadBackwardCall::of_m2>("of_m2").below(kOfM2),
    fields::in<&SpreadBackwardCall::correction>("correction"),
    fields::in<&SpreadBackwardCall::share>("share"),
    fields::in<&SpreadBackwardCall::scale>("scale"),
    fields::in<&SpreadBackwardCall::skips>("skips"),
    fields::in<&SpreadBackwardCall::accumulate>("accumulate"),
    fields::in<&SpreadBackwardCall::accumulate_dweights>("accumulate_dweights"),
};

constexpr CallTable kSpreadBackwardCall = table_of_call<SpreadBackwardCall>(
    "spread_backward", kSpreadBackwardFields, problem_of_spread_backward);

}  // namespace fastact
