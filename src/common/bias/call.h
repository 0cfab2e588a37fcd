// The calls of bias_act, of functions of a parameter a channel, and of dropout.
#pragma once

#include "common/bias/channel_functions.h"
#include "common/core/call.h"

namespace fastact {

struct BiasCall {
  enum Data : int { kDy, kX, kResidual, kOut };  // kOut: y or dx

  ArrayArgument data[4];  // of one shape and dtype
  ArrayArgument bias, dbias;
  int axis;   // along which the bias runs
  int which;  // an activation, or else a channel's function of x and of its parameter, the bias
  ParameterValues parameters;
  bool accumulate_dx, accumulate_dbias;  // that one is added to
};

inline const char* problem_of_bias(const void* given) {
  const BiasCall& call = *static_cast<const BiasCall*>(given);
  const bool is_sum = call.which < kActivations;
  return is_sum || !call.data[BiasCall::kResidual].shape
             ? nullptr
             : "residual must not be an array beside a parameter of channels";
}

// y OUT = f(x IN + bias IN + residual IN), or f(x IN, bias IN). y is x, residual or disjoint from
// all of them.
constexpr Field kBiasForwardFields[] = {
    fields::in<&BiasCall::data, BiasCall::kX>("x"),
    fields::in<&BiasCall::data, BiasCall::kResidual>("residual").like("x").optional(),
    fields::out<&BiasCall::data, BiasCall::kOut>("y").like("x"),
    fields::axis<&BiasCall::axis>("axis", "x"),
    fields::in<&BiasCall::bias>("bias").along("x", "axis").wide_enough("x"),
    fields::in<&BiasCall::which>("which").below(kBiasFunctions),
    fields::in<&BiasCall::parameters>("parameters"),
};

// dx OUT = dy IN * f'(x IN + bias IN + residual IN), dbias OUT = its sum over all other axes, or
// the gradients of f(x IN, bias IN); each, as its flag says, IN/OUT and added to. dx is dy, x,
// residual or disjoint from all of them. Where f is the identity, x is not read.
constexpr Field kBiasBackwardFields[] = {
    fields::in<&BiasCall::data, BiasCall::kX>("x"),
    fields::in<&BiasCall::data, BiasCall::kDy>("dy").like("x"),
    fields::in<&BiasCall::data, BiasCall::kResidual>("residual").like("x").optional(),
    fields::out<&BiasCall::data, BiasCall::kOut>("dx").like("x"),
    fields::axis<&BiasCall::axis>("axis", "x"),
    fields::in<&BiasCall::bias>("bias").along("x", "axis").wide_enough("x"),
    fields::out<&BiasCall::dbias>("dbias").along("x", "axis").same_dtype("bias"),
    fields::in<&BiasCall::which>("which").below(kBiasFunctions),
    fields::in<&BiasCall::parameters>("parameters"),
    fields::in<&BiasCall::accumulate_dx>("accumulate_dx"),
    fields::in<&BiasCall::accumulate_dbias>("accumulate_dbias"),
};

struct DropoutCall {
  enum Data : int { kX, kResidual, kOut };

  ArrayArgument data[3];  // of one shape and dtype
  double p;
  uint64_t seed, offset;
  bool accumulate;  // y is added to
};

// The choice of dropped elements, as kernels take it.
struct Dropout {
  uint64_t seed, offset;
  uint32_t threshold;  // of a word, for its element to be kept
  bool drops_all;
  double scale;  // 1 / (1 - p)
};

inline const char* problem_of_probability(double p) {
  return p >= 0 && p <= 1 ? nullptr : "p must be from 0 to 1";
}
inline const char* problem_of_dropout(const void* given) {
  return problem_of_probability(static_cast<const DropoutCall*>(given)->p);
}

// y OUT = x IN / (1 - p) where it is kept and 0 elsewhere (dropout.h), and residual IN added; with
// accumulate, IN/OUT += of the same. y is x, residual or disjoint from both.
constexpr Field kDropoutFields[] = {
    fields::in<&DropoutCall::data, DropoutCall::kX>("x"),
    fields::in<&DropoutCall::data, DropoutCall::kResidual>("residual").like("x").optional(),
    fields::out<&DropoutCall::data, DropoutCall::kOut>("y").like("x"),
    fields::in<&DropoutCall::p>("p"),
    fields::in<&DropoutCall::seed>("seed"),
    fields::in<&DropoutCall::offset>("offset"),
    fields::in<&DropoutCall::accumulate>("accumulate"),
};

constexpr CallTable kBiasForward =
    table_of_call<BiasCall>("bias_act_forward", kBiasForwardFields, problem_of_bias);
constexpr CallTable kBiasBackward =
    table_of_call<BiasCall>("bias_act_backward", kBiasBackwardFields, problem_of_bias);
constexpr CallTable kDropout =
    table_of_call<DropoutCall>("dropout", kDropoutFields, problem_of_dropout);

}  // namespace fastact
