// The calls of softmax, log_softmax, logsumexp and cross_entropy (common/softmax/softmax.h).
#pragma once

#include <algorithm>

#include "common/core/call.h"
#include "common/softmax/kinds.h"

namespace fastact {

enum LossReduction : int { kNone, kMean, kSum, kReductions };
constexpr const char* kReductionNames[] = {"none", "mean", "sum"};

// The arrays of a call, all with the axes of x. x, dy and y are of one shape and dtype; numbers
// have length 1 inside a row.
namespace softmax_roles {

enum SoftmaxRole : int {
  kX,       // IN: x, the logits, or (backward) what softmax gave
  kDy,      // IN: dy, or the probabilities of cross_entropy's target
  kY,       // OUT: y, or the gradient of x
  kMask,    // IN: booleans, or what is added
  kWeight,  // IN: of the classes
  kLse,     // OUT forward, IN backward: log(sum(exp(z))), of the compute type
  kNumber,  // OUT: logsumexp's result, the losses, or the sinks' gradients; IN backward: the
            // gradients of the first two
  kTarget,  // IN: indices of classes
  kSink,    // IN: of each row, a logit that takes part in its sum alone
  kShare,   // OUT forward, IN backward: the sink's probability, of the compute type
  kSoftmaxRoles,
  kRest = kShare,  // of lse, likewise: what its rounding left
  kCapped = kMask  // IN backward, which has no mask: x, where it was capped
};

}  // namespace softmax_roles

struct SoftmaxCall {
  ArrayArgument arrays[softmax_roles::kSoftmaxRoles];
  ArrayArgument loss, divisor;  // of cross_entropy: one number each
  AxisFlags reduced;            // inside a row
  int kind;
  double scale;
  double softcap;   // of scale x; 0: none
  bool accumulate;  // the gradient of x is added to

  // cross_entropy's numbers.
  int64_t ignore_index;
  double label_smoothing, z_loss;
  int reduction;

  // Whether the target is classes, and not probabilities.
  bool has_indices() const { return arrays[softmax_roles::kTarget].shape; }
  // Whether classes other than the target's have a share in the loss.
  bool has_shares() const { return !has_indices() || label_smoothing != 0; }
  // The cap of x itself: softcap tanh(scale x / softcap) = scale cap tanh(x / cap). 0: there is
  // none, or x does not count.
  double cap() const {
    if (softcap == 0 || scale == 0) return 0.0;
    return no_less(softcap / magnitude(scale), 0x1p-1074);
  }
  // A call of logsumexp with the rows of this call of cross_entropy.
  SoftmaxCall of_logits() const {
    SoftmaxCall made = *this;
    made.kind = kLogSumExp, made.scale = 1;
    return made;
  }
};

inline const char* problem_of_softcap(const SoftmaxCall& call) {
  if (!(call.softcap >= 0 && is_finite(call.softcap)))
    return "softcap must be finite and not negative";
  if (call.softcap != 0 && call.kind != kSoftmax) return "softcap must be 0 but for softmax";
  return nullptr;
}

inline const char* problem_of_softmax_forward(const void* given) {
  const SoftmaxCall& call = *static_cast<const SoftmaxCall*>(given);
  const bool has_number = call.arrays[softmax_roles::kNumber].shape;
  if (has_number != (call.kind == kLogSumExp) ||
      has_number == bool(call.arrays[softmax_roles::kY].shape))
    return "y must be an array, or number of logsumexp, and the other one none";
  if (call.arrays[softmax_roles::kLse].shape && !has_number)
    return "lse must be none but for logsumexp";
  if (call.arrays[softmax_roles::kSink].shape && call.kind != kSoftmax)
    return "sink must be none but for softmax";
  if (call.arrays[softmax_roles::kShare].shape && !call.arrays[softmax_roles::kSink].shape &&
      !call.arrays[softmax_roles::kLse].shape)
    return "share must be none without a sink or lse";
  return problem_of_softcap(call);
}

inline const char* problem_of_softmax_backward(const void* given) {
  const SoftmaxCall& call = *static_cast<const SoftmaxCall*>(given);
  const bool has_share = call.arrays[softmax_roles::kShare].shape;
  if (has_share && call.kind != kSoftmax) return "share must be none but for softmax";
  if (call.arrays[softmax_roles::kNumber].shape && !has_share)
    return "dsinks must be none without a share";
  if (bool(call.arrays[softmax_roles::kCapped].shape) != (call.softcap != 0))
    return "x must be an array with a softcap, and else none";
  return problem_of_softcap(call);
}

inline const char* problem_of_cross_entropy(const SoftmaxCall& call) {
  const ArrayArgument& logits = call.arrays[softmax_roles::kX];
  if (std::count(call.reduced + 0, call.reduced + logits.ndim, true) != 1)
    return "axes must be one axis";
  for (int i = 0; i < logits.ndim; ++i)
    if (call.reduced[i] && logits.shape[i] == 0) return "logits must have a class";
  if (call.has_indices() == bool(call.arrays[softmax_roles::kDy].shape))
    return "target or probabilities must be an array, and the other one none";
  if (!(call.label_smoothing >= 0 && call.label_smoothing <= 1))
    return "label_smoothing must be from 0 to 1";
  if (!(call.z_loss >= 0)) return "z_loss must not be negative";
  return nullptr;
}

inline const char* problem_of_cross_entropy_forward(const void* given) {
  const SoftmaxCall& call = *static_cast<const SoftmaxCall*>(given);
  const bool is_one = call.reduction != kNone;
  if (bool(call.arrays[softmax_roles::kNumber].shape) == is_one ||
      bool(call.loss.shape) != is_one || bool(call.divisor.shape) != is_one)
    return "losses, or loss and divisor, must be arrays, as the reduction says";
  return problem_of_cross_entropy(call);
}

inline const char* problem_of_cross_entropy_backward(const void* given) {
  const SoftmaxCall& call = *static_cast<const SoftmaxCall*>(given);
  const ArrayArgument& dloss = call.arrays[softmax_roles::kNumber];
  for (int i = 0; i < dloss.ndim; ++i)
    if (call.reduced[i] && dloss.shape[i] != 1) return "dloss must have length 1 along the axis";
  return problem_of_cross_entropy(call);
}

// Arrays that forward and backward take alike.
constexpr Field kMaskField = fields::in<&SoftmaxCall::arrays, softmax_roles::kMask>("mask")
                                 .beside("x")
                                 .any_dtype()
                                 .optional();
constexpr Field kTargetField = fields::in<&SoftmaxCall::arrays, softmax_roles::kTarget>("target")
                                   .reduced("logits", "axes")
                                   .index()
                                   .optional();
constexpr Field kProbabilitiesField =
    fields::in<&SoftmaxCall::arrays, softmax_roles::kDy>("probabilities").like("logits").optional();
constexpr Field kClassWeightField =
    fields::in<&SoftmaxCall::arrays, softmax_roles::kWeight>("weight")
        .kept("logits", "axes")
        .any_dtype()
        .optional();

// y OUT of z = scale x IN + mask IN: softmax or log_softmax of each row along `axes`; or number OUT
// and lse OUT, logsumexp. mask: bool, whose False gives z = -inf, or numbers. y is x or disjoint
// from it. softcap, of softmax: c > 0 puts c tanh(scale x / c) in the place of scale x. sink IN, of
// softmax: exp(sink) is added to the row's sum; share OUT: its part of that, or beside lse what the
// rounding of lse left.
constexpr Field kSoftmaxForwardFields[] = {
    fields::in<&SoftmaxCall::arrays, softmax_roles::kX>("x"),
    fields::axes<&SoftmaxCall::reduced>("axes", "x"),
    kMaskField,
    fields::out<&SoftmaxCall::arrays, softmax_roles::kY>("y").like("x").optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kNumber>("number")
        .reduced("x", "axes")
        .same_dtype("x")
        .optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kLse>("lse")
        .reduced("x", "axes")
        .compute_type("x")
        .optional(),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kSink>("sink")
        .reduced("x", "axes")
        .wide_enough("x")
        .optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kShare>("share")
        .reduced("x", "axes")
        .compute_type("x")
        .optional(),
    fields::in<&SoftmaxCall::kind>("kind").below(kSoftmaxKinds),
    fields::in<&SoftmaxCall::scale>("scale"),
    fields::in<&SoftmaxCall::softcap>("softcap"),
};

// dx OUT from dy IN and y IN of softmax or log_softmax, or IN/OUT with accumulate. softmax: dx =
// scale y (dy - sum(dy y)). log_softmax: dx = scale (dy - exp(y) sum(dy)), and 0 where y is -inf.
// With a softcap c and x IN dx is multiplied by 1 - tanh^2(scale x / c), and stays 0 where x is
// NaN. dx is dy, y, x or disjoint from all. dsinks OUT, from share IN: -share sum(dy y).
constexpr Field kSoftmaxBackwardFields[] = {
    fields::in<&SoftmaxCall::arrays, softmax_roles::kX>("y"),
    fields::axes<&SoftmaxCall::reduced>("axes", "y"),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kDy>("dy").like("y"),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kY>("dx").like("y"),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kCapped>("x").like("y").optional(),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kShare>("share")
        .reduced("y", "axes")
        .compute_type("y")
        .optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kNumber>("dsinks")
        .reduced("y", "axes")
        .float64()
        .optional(),
    fields::in<&SoftmaxCall::kind>("kind").below(kLogSumExp),
    fields::in<&SoftmaxCall::scale>("scale"),
    fields::in<&SoftmaxCall::softcap>("softcap"),
    fields::in<&SoftmaxCall::accumulate>("accumulate"),
};

struct SinkCall {
  ArrayArgument dsink, total;
  bool accumulate;
};

// dsink OUT = total IN, rounded, or dsink IN/OUT += of that.
constexpr Field kSinkFields[] = {
    fields::out<&SinkCall::dsink>("dsink"),
    fields::in<&SinkCall::total>("total").same_shape("dsink").float64(),
    fields::in<&SinkCall::accumulate>("accumulate"),
};

// dx OUT = scale dy IN exp(scale x IN + mask IN - lse IN - rest IN), or IN/OUT with accumulate. dx
// is x or disjoint from all.
constexpr Field kLogSumExpBackwardFields[] = {
    fields::in<&SoftmaxCall::arrays, softmax_roles::kX>("x"),
    fields::axes<&SoftmaxCall::reduced>("axes", "x"),
    kMaskField,
    fields::in<&SoftmaxCall::arrays, softmax_roles::kNumber>("dy")
        .reduced("x", "axes")
        .same_dtype("x"),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kLse>("lse")
        .reduced("x", "axes")
        .compute_type("x"),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kRest>("rest")
        .reduced("x", "axes")
        .compute_type("x")
        .optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kY>("dx").like("x"),
    fields::in<&SoftmaxCall::scale>("scale"),
    fields::in<&SoftmaxCall::accumulate>("accumulate"),
};

// losses OUT (reduction "none"), or loss OUT and divisor OUT, and lse OUT and rest OUT, of logits
// IN, with their classes along the one axis of `axes`, and of target IN, classes, or probabilities
// IN. weight IN: of each class.
constexpr Field kCrossEntropyForwardFields[] = {
    fields::in<&SoftmaxCall::arrays, softmax_roles::kX>("logits"),
    fields::axes<&SoftmaxCall::reduced>("axes", "logits"),
    kTargetField,
    kProbabilitiesField,
    kClassWeightField,
    fields::out<&SoftmaxCall::arrays, softmax_roles::kLse>("lse")
        .reduced("logits", "axes")
        .compute_type("logits")
        .optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kRest>("rest")
        .reduced("logits", "axes")
        .compute_type("logits")
        .optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kNumber>("losses")
        .reduced("logits", "axes")
        .same_dtype("logits")
        .optional(),
    fields::out<&SoftmaxCall::loss>("loss").one().same_dtype("logits").optional(),
    fields::out<&SoftmaxCall::divisor>("divisor").one().float64().optional(),
    fields::in<&SoftmaxCall::ignore_index>("ignore_index"),
    fields::in<&SoftmaxCall::label_smoothing>("label_smoothing"),
    fields::in<&SoftmaxCall::z_loss>("z_loss"),
    fields::in<&SoftmaxCall::reduction>("reduction").below(kReductions),
};

// dlogits OUT from dloss IN, one number or one a row, or IN/OUT with accumulate; lse IN, rest IN
// (none: 0) and divisor IN (none: 1) as forward made them. dlogits is the logits or disjoint from
// all.
constexpr Field kCrossEntropyBackwardFields[] = {
    fields::in<&SoftmaxCall::arrays, softmax_roles::kX>("logits"),
    fields::axes<&SoftmaxCall::reduced>("axes", "logits"),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kNumber>("dloss").beside("logits").same_dtype(
        "logits"),
    kTargetField,
    kProbabilitiesField,
    kClassWeightField,
    fields::in<&SoftmaxCall::arrays, softmax_roles::kLse>("lse")
        .reduced("logits", "axes")
        .compute_type("logits"),
    fields::in<&SoftmaxCall::arrays, softmax_roles::kRest>("rest")
        .reduced("logits", "axes")
        .compute_type("logits")
        .optional(),
    fields::in<&SoftmaxCall::divisor>("divisor").one().float64().optional(),
    fields::out<&SoftmaxCall::arrays, softmax_roles::kY>("dlogits").like("logits"),
    fields::in<&SoftmaxCall::ignore_index>("ignore_index"),
    fields::in<&SoftmaxCall::label_smoothing>("label_smoothing"),
    fields::in<&SoftmaxCall::z_loss>("z_loss"),
    fields::in<&SoftmaxCall::accumulate>("accumulate"),
};

constexpr CallTable kSoftmaxForward = table_of_call<SoftmaxCall>(
    "softmax_forward", kSoftmaxForwardFields, problem_of_softmax_forward);
constexpr CallTable kSoftmaxBackward = table_of_call<SoftmaxCall>(
    "softmax_backward", kSoftmaxBackwardFields, problem_of_softmax_backward);
constexpr CallTable kSoftmaxSink = table_of_call<SinkCall>("softmax_sink", kSinkFields);
constexpr CallTable kLogSumExpBackward =
    table_of_call<SoftmaxCall>("logsumexp_backward", kLogSumExpBackwardFields);
constexpr CallTable kCrossEntropyForward = table_of_call<SoftmaxCall>(
    "cross_entropy_forward", kCrossEntropyForwardFields, problem_of_cross_entropy_forward);
constexpr CallTable kCrossEntropyBackward = table_of_call<SoftmaxCall>(
    "cross_entropy_backward", kCrossEntropyBackwardFields, problem_of_cross_entropy_backward);

}  // namespace fastact
