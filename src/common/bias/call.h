// The calls of bias_act.
#pragma once

#include "common/activations/list.h"
#include "common/core/call.h"

namespace fastact {

struct BiasCall {
  enum Data : int { kDy, kX, kResidual, kOut };  // kOut: y or dx

  ArrayArgument data[4];  // of one shape and dtype
  ArrayArgument bias, dbias;
  int axis;  // along which the bias runs
  int which;
  ParameterValues parameters;
  bool accumulate_dx, accumulate_dbias;  // that one is added to
};

// y OUT = f(x IN + bias IN + residual IN). y is x, residual or disjoint from all of them.
constexpr Field kBiasForwardFields[] = {
    fields::in<&BiasCall::data, BiasCall::kX>("x"),
    fields::in<&BiasCall::data, BiasCall::kResidual>("residual").like("x").optional(),
    fields::out<&BiasCall::data, BiasCall::kOut>("y").like("x"),
    fields::axis<&BiasCall::axis>("axis", "x"),
    fields::in<&BiasCall::bias>("bias").along("x", "axis").wide_enough("x"),
    fields::in<&BiasCall::which>("which").below(kActivations),
    fields::in<&BiasCall::parameters>("parameters"),
};

// dx OUT = dy IN * f'(x IN + bias IN + residual IN), dbias OUT = its sum over all other axes; each,
// as its flag says, IN/OUT and added to. dx is dy, x, residual or disjoint from all of them. Where
// f is the identity, x is not read.
constexpr Field kBiasBackwardFields[] = {
    fields::in<&BiasCall::data, BiasCall::kX>("x"),
    fields::in<&BiasCall::data, BiasCall::kDy>("dy").like("x"),
    fields::in<&BiasCall::data, BiasCall::kResidual>("residual").like("x").optional(),
    fields::out<&BiasCall::data, BiasCall::kOut>("dx").like("x"),
    fields::axis<&BiasCall::axis>("axis", "x"),
    fields::in<&BiasCall::bias>("bias").along("x", "axis").wide_enough("x"),
    fields::out<&BiasCall::dbias>("dbias").along("x", "axis").same_dtype("bias"),
    fields::in<&BiasCall::which>("which").below(kActivations),
    fields::in<&BiasCall::parameters>("parameters"),
    fields::in<&BiasCall::accumulate_dx>("accumulate_dx"),
    fields::in<&BiasCall::accumulate_dbias>("accumulate_dbias"),
};

constexpr CallTable kBiasForward = table_of_call<BiasCall>("bias_act_forward", kBiasForwardFields);
constexpr CallTable kBiasBackward =
    table_of_call<BiasCall>("bias_act_backward", kBiasBackwardFields);

}  // namespace fastact
