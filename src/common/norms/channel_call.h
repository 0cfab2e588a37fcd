// The calls of batch_norm and norm_apply, whose statistics are one a channel.
#pragma once

#include "common/activations/list.h"
#include "common/core/call.h"
#include "common/core/dlpack.h"

namespace fastact {

// The options of both directions. They come first in the calls: fields are found from one address.
struct BatchOptions {
  int axis;   // the channels'
  int which;  // the activation
  ParameterValues parameters;
  bool is_training;  // the statistics depend on x; forward, running ones move towards its moments
};

// Statistics and parameters have one axis, or as many as x.
struct BatchForward : BatchOptions {
  ArrayArgument x, y;
  ArrayArgument mean, spread;  // of batch_norm running ones, or none; spread: a variance
  ArrayArgument weight, bias;
  ArrayArgument saved_mean, saved_rstd;  // or none
  double momentum, eps;
  bool is_rstd;  // spread is one: norm_apply
};

struct BatchBackward : BatchOptions {
  ArrayArgument dy, x, dx, mean, rstd, weight, bias;
  ArrayArgument sum_p, sum_p_xhat;  // of p = dy f'(z); none: they are computed
  ArrayArgument dweight, dbias;
  double count;     // values a channel that the sums are over
  bool accumulate;  // what backward writes is added to
};

inline const char* problem_of_batch_backward(const void* given) {
  const BatchBackward& call = *static_cast<const BatchBackward*>(given);
  return !call.sum_p.shape != !call.sum_p_xhat.shape
             ? "sum_p and sum_p_xhat must both be arrays, or neither"
             : nullptr;
}

// y OUT = f((x IN - mean) rstd weight IN + bias IN), mean OUT, rstd OUT. In training by the moments
// of x, and running statistics IN/OUT move towards them unless x is empty; else by the running
// statistics IN.
constexpr Field kBatchForwardFields[] = {
    fields::in<&BatchForward::x>("x"),
    fields::out<&BatchForward::y>("y").like("x"),
    fields::axis<&BatchForward::axis>("axis", "x"),
    fields::in<&BatchForward::is_training>("training"),
    fields::in<&BatchForward::mean>("running_mean")
        .channels("x", "axis")
        .optional()
        .written_where("training"),
    fields::in<&BatchForward::spread>("running_var")
        .channels("x", "axis")
        .optional()
        .written_where("training"),
    fields::in<&BatchForward::weight>("weight").channels("x", "axis").wide_enough("x").optional(),
    fields::in<&BatchForward::bias>("bias").channels("x", "axis").wide_enough("x").optional(),
    fields::out<&BatchForward::saved_mean>("mean").channels("x", "axis").optional(),
    fields::out<&BatchForward::saved_rstd>("rstd").channels("x", "axis").optional(),
    fields::in<&BatchForward::which>("which").below(kActivations),
    fields::in<&BatchForward::parameters>("parameters"),
    fields::in<&BatchForward::momentum>("momentum"),
    fields::in<&BatchForward::eps>("eps"),
};

// The fields of a norm by mean IN and rstd IN.
constexpr Field kNormApplyFields[] = {
    fields::in<&BatchForward::x>("x"),
    fields::out<&BatchForward::y>("y").like("x"),
    fields::axis<&BatchForward::axis>("axis", "x"),
    fields::in<&BatchForward::mean>("mean").channels("x", "axis"),
    fields::in<&BatchForward::spread>("rstd").channels("x", "axis"),
    fields::in<&BatchForward::weight>("weight").channels("x", "axis").wide_enough("x").optional(),
    fields::in<&BatchForward::bias>("bias").channels("x", "axis").wide_enough("x").optional(),
    fields::in<&BatchForward::which>("which").below(kActivations),
    fields::in<&BatchForward::parameters>("parameters"),
};

// dx OUT, dweight OUT = the sum of p xhat, dbias OUT = the sum of p, or each of them IN/OUT with
// accumulate.
constexpr Field kBatchBackwardFields[] = {
    fields::in<&BatchBackward::x>("x"),
    fields::in<&BatchBackward::dy>("dy").like("x"),
    fields::out<&BatchBackward::dx>("dx").like("x").optional(),
    fields::axis<&BatchBackward::axis>("axis", "x"),
    fields::in<&BatchBackward::mean>("mean").channels("x", "axis"),
    fields::in<&BatchBackward::rstd>("rstd").channels("x", "axis"),
    fields::in<&BatchBackward::weight>("weight").channels("x", "axis").wide_enough("x").optional(),
    fields::in<&BatchBackward::bias>("bias").channels("x", "axis").wide_enough("x").optional(),
    fields::in<&BatchBackward::sum_p>("sum_p").channels("x", "axis").optional(),
    fields::in<&BatchBackward::sum_p_xhat>("sum_p_xhat").channels("x", "axis").optional(),
    fields::out<&BatchBackward::dweight>("dweight").channels("x", "axis").optional(),
    fields::out<&BatchBackward::dbias>("dbias").channels("x", "axis").optional(),
    fields::in<&BatchBackward::which>("which").below(kActivations),
    fields::in<&BatchBackward::parameters>("parameters"),
    fields::in<&BatchBackward::count>("count"),
    fields::in<&BatchBackward::is_training>("training"),
    fields::in<&BatchBackward::accumulate>("accumulate"),
};

constexpr CallTable kBatchNormForward =
    table_of_call<BatchForward>("batch_norm_forward", kBatchForwardFields);
constexpr CallTable kNormApply = table_of_call<BatchForward>("norm_apply", kNormApplyFields);
constexpr CallTable kBatchNormBackward = table_of_call<BatchBackward>(
    "batch_norm_backward", kBatchBackwardFields, problem_of_batch_backward);

}  // namespace fastact
