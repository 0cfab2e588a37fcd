// The calls of gated activations (common/gated/gated.h).
#pragma once

#include "common/activations/list.h"
#include "common/core/call.h"

namespace fastact {

struct GatedCall {
  enum Data : int { kDy, kA, kB, kOutA, kOutB };  // kOutA, kOutB: da, db
  static constexpr int kY = kOutA;                // of forward

  ArrayArgument data[5];            // of one shape and dtype
  ArrayArgument bias[2], dbias[2];  // of a, of b: both or neither
  int axis;                         // along which biases run
  int which;
  ParameterValues parameters;
  double limit, offset;
  bool accumulate;  // what backward writes is added to
};

inline const char* problem_of_gated(const GatedCall& call) {
  if (!(call.limit > 0)) return "limit must be above 0";
  if (!call.bias[0].shape != !call.bias[1].shape)
    return "bias_a and bias_b must both be arrays, or neither";
  return nullptr;
}

inline const char* problem_of_gated_forward(const void* given) {
  return problem_of_gated(*static_cast<const GatedCall*>(given));
}

inline const char* problem_of_gated_backward(const void* given) {
  const GatedCall& call = *static_cast<const GatedCall*>(given);
  const bool has_sums = call.dbias[0].shape;
  if (has_sums != bool(call.dbias[1].shape))
    return "dbias_a and dbias_b must both be arrays, or neither";
  if (has_sums && !call.bias[0].shape) return "dbias_a must be None without a bias";
  if (!has_sums && !call.data[GatedCall::kOutA].shape && !call.data[GatedCall::kOutB].shape)
    return "da, db or dbias_a must be an array";
  return problem_of_gated(call);
}

// y OUT = f(min(a', limit)) (clamp(b', -limit, limit) + offset), a' = a IN + bias_a IN, b' = b IN +
// bias_b IN. y is a, b or disjoint from both, and disjoint from the biases.
constexpr Field kGatedForwardFields[] = {
    fields::in<&GatedCall::data, GatedCall::kA>("a"),
    fields::in<&GatedCall::data, GatedCall::kB>("b").like("a"),
    fields::out<&GatedCall::data, GatedCall::kY>("y").like("a"),
    fields::axis<&GatedCall::axis>("axis", "a").optional(),
    fields::in<&GatedCall::bias, 0>("bias_a").along("a", "axis").wide_enough("a").optional(),
    fields::in<&GatedCall::bias, 1>("bias_b").along("a", "axis").same_dtype("bias_a").optional(),
    fields::in<&GatedCall::which>("which").below(kActivations),
    fields::in<&GatedCall::parameters>("parameters"),
    fields::in<&GatedCall::limit>("limit"),
    fields::in<&GatedCall::offset>("offset"),
};

// da OUT, db OUT, and dbias_a OUT, dbias_b OUT: the sums of da and db over all axes but `axis`,
// whose summands are not rounded. With accumulate all are IN/OUT and added to. da and db are each
// dy, a, b or disjoint from all three, and disjoint from each other, the biases and their
// gradients.
constexpr Field kGatedBackwardFields[] = {
    fields::in<&GatedCall::data, GatedCall::kA>("a"),
    fields::in<&GatedCall::data, GatedCall::kB>("b").like("a"),
    fields::in<&GatedCall::data, GatedCall::kDy>("dy").like("a"),
    fields::out<&GatedCall::data, GatedCall::kOutA>("da").like("a").optional(),
    fields::out<&GatedCall::data, GatedCall::kOutB>("db").like("a").optional(),
    fields::axis<&GatedCall::axis>("axis", "a").optional(),
    fields::in<&GatedCall::bias, 0>("bias_a").along("a", "axis").wide_enough("a").optional(),
    fields::in<&GatedCall::bias, 1>("bias_b").along("a", "axis").same_dtype("bias_a").optional(),
    fields::out<&GatedCall::dbias, 0>("dbias_a").along("a", "axis").same_dtype("bias_a").optional(),
    fields::out<&GatedCall::dbias, 1>("dbias_b").along("a", "axis").same_dtype("bias_a").optional(),
    fields::in<&GatedCall::which>("which").below(kActivations),
    fields::in<&GatedCall::parameters>("parameters"),
    fields::in<&GatedCall::limit>("limit"),
    fields::in<&GatedCall::offset>("offset"),
    fields::in<&GatedCall::accumulate>("accumulate"),
};

constexpr CallTable kGatedForward =
    table_of_call<GatedCall>("gated_forward", kGatedForwardFields, problem_of_gated_forward);
constexpr CallTable kGatedBackward =
    table_of_call<GatedCall>("gated_backward", kGatedBackwardFields, problem_of_gated_backward);

}  // namespace fastact
