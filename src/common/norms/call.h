// The calls of the norms over rows (common/norms/norms.h).
#pragma once

#include "common/activations/list.h"
#include "common/bias/call.h"
#include "common/core/call.h"
#include "common/norms/rows.h"

namespace fastact {

// The options of a norm. They come first in NormCall: fields are found from one address.
struct NormOptions {
  int norm;   // of FASTACT_ROW_NORMS (rows.h)
  int which;  // the activation: behind the norm, or the gate's
  ParameterValues parameters;
  double eps;
  double weight_offset;  // added to the weight, in the compute type
  bool casts;            // of 16-bit data, what lies between the steps is rounded (norms.h)
  bool gate_first;       // x is gated, else what the norm makes of it
  bool accumulate;       // what backward writes is added to
  double p;              // of x an element is dropped so often; 0: none is
  uint64_t seed, offset;
};

// All arrays have the axes of x (group_norm: of x with its channels split), with length 1 where
// they have none.
struct NormCall : NormOptions {
  enum Forward : int { kX, kResidual, kTotal, kY };
  enum Backward : int { kDy, kIn, kDTotal, kDx };
  enum OfGate : int { kGate = kDx + 1, kDGate, kData };

  ArrayArgument data[kData];
  ArrayArgument mean, rstd;  // length 1 along `reduced`; no mean: rms_norm
  ArrayArgument weight, bias, dweight, dbias;
  ArrayArgument dropped;   // backward: what dropout makes of dx
  AxisFlags reduced;       // inside a row
  AxisFlags of_parameter;  // of weight and bias
};

inline const char* problem_of_norm(const NormCall& call) {
  if (const char* problem = problem_of_probability(call.p)) return problem;
  const bool is_more = call.bias.shape || is_centred(call.norm);
  if (call.casts && is_more) return "casts must be False with a bias or a mean";
  if (!call.data[NormCall::kGate].shape) return nullptr;
  // kTotal is where kDTotal is.
  return is_more || call.data[NormCall::kTotal].shape
             ? "gate must not be an array with a bias, a mean or a sum"
             : nullptr;
}

inline const char* problem_of_norm_forward(const void* given) {
  const NormCall& call = *static_cast<const NormCall*>(given);
  if (!call.data[NormCall::kResidual].shape != !call.data[NormCall::kTotal].shape)
    return "residual and total must both be arrays, or neither";
  if (!call.rstd.shape ? bool(call.mean.shape) : !call.mean.shape == is_centred(call.norm))
    return "mean must be an array where it is subtracted and rstd is one, and only there";
  if (call.p != 0 && !call.data[NormCall::kResidual].shape) return "p must be 0 without a residual";
  return problem_of_norm(call);
}

inline const char* problem_of_norm_backward(const void* given) {
  const NormCall& call = *static_cast<const NormCall*>(given);
  if (!call.mean.shape == is_centred(call.norm))
    return "mean must be an array where it is subtracted, and only there";
  if (call.data[NormCall::kDGate].shape && !call.data[NormCall::kGate].shape)
    return "dgate must not be an array without a gate";
  if (call.dropped.shape && call.data[NormCall::kGate].shape)
    return "dropped must not be an array with a gate";
  return problem_of_norm(call);
}

// y OUT = f((x IN - mean) rstd weight IN + bias IN), with mean OUT and rstd OUT. With a residual
// IN, total OUT = x + residual, rounded, is normalised in x's place; with p it is what dropout
// makes of x and the residual (bias/dropout.h). Of x, residual, total and y, each is another or
// disjoint from it, but y is not total. With a gate IN, which y may be, y is what the norm gives
// times f(gate), or (gate_first) the norm of x f(gate).
constexpr Field kNormForwardFields[] = {
    fields::in<&NormCall::data, NormCall::kX>("x"),
    fields::in<&NormCall::data, NormCall::kResidual>("residual").like("x").optional(),
    fields::in<&NormCall::data, NormCall::kGate>("gate").like("x").optional(),
    fields::out<&NormCall::data, NormCall::kTotal>("total").like("x").optional(),
    fields::out<&NormCall::data, NormCall::kY>("y").like("x"),
    fields::axes<&NormCall::reduced>("reduced", "x"),
    fields::axes<&NormCall::of_parameter>("of_parameter", "x"),
    fields::out<&NormCall::mean>("mean").reduced("x", "reduced").compute_type("x").optional(),
    fields::out<&NormCall::rstd>("rstd").reduced("x", "reduced").compute_type("x").optional(),
    fields::in<&NormCall::weight>("weight").beside("x").wide_enough("x").optional(),
    fields::in<&NormCall::bias>("bias").beside("x").wide_enough("x").optional(),
    fields::in<&NormCall::norm>("norm").below(kRowNorms),
    fields::in<&NormCall::which>("which").below(kActivations),
    fields::in<&NormCall::parameters>("parameters"),
    fields::in<&NormCall::eps>("eps"),
    fields::in<&NormCall::weight_offset>("weight_offset"),
    fields::in<&NormCall::casts>("casts"),
    fields::in<&NormCall::gate_first>("gate_first"),
    fields::in<&NormCall::p>("p"),
    fields::in<&NormCall::seed>("seed"),
    fields::in<&NormCall::offset>("offset"),
};

// dx OUT, dweight OUT and dbias OUT from dy IN, x IN, mean IN and rstd IN, or each of them IN/OUT
// with accumulate. dtotal IN is added to dx, which is dy, x, dtotal or disjoint from them; so is
// dgate OUT, and either may be gate IN. dropped OUT may lie where dx may: dropout makes it of dx,
// or with accumulate of the numbers that are added to dx, and adds it.
constexpr Field kNormBackwardFields[] = {
    fields::in<&NormCall::data, NormCall::kIn>("x"),
    fields::in<&NormCall::data, NormCall::kDy>("dy").like("x"),
    fields::in<&NormCall::data, NormCall::kDTotal>("dtotal").like("x").optional(),
    fields::in<&NormCall::data, NormCall::kGate>("gate").like("x").optional(),
    fields::out<&NormCall::data, NormCall::kDx>("dx").like("x").optional(),
    fields::out<&NormCall::data, NormCall::kDGate>("dgate").like("x").optional(),
    fields::out<&NormCall::dropped>("dropped").like("x").optional(),
    fields::axes<&NormCall::reduced>("reduced", "x"),
    fields::axes<&NormCall::of_parameter>("of_parameter", "x"),
    fields::in<&NormCall::mean>("mean").reduced("x", "reduced").compute_type("x").optional(),
    fields::in<&NormCall::rstd>("rstd").reduced("x", "reduced").compute_type("x"),
    fields::in<&NormCall::weight>("weight").beside("x").wide_enough("x").optional(),
    fields::in<&NormCall::bias>("bias").beside("x").wide_enough("x").optional(),
    fields::out<&NormCall::dweight>("dweight")
        .kept("x", "of_parameter")
        .same_dtype("weight")
        .optional(),
    fields::out<&NormCall::dbias>("dbias").kept("x", "of_parameter").same_dtype("bias").optional(),
    fields::in<&NormCall::norm>("norm").below(kRowNorms),
    fields::in<&NormCall::which>("which").below(kActivations),
    fields::in<&NormCall::parameters>("parameters"),
    fields::in<&NormCall::eps>("eps"),
    fields::in<&NormCall::weight_offset>("weight_offset"),
    fields::in<&NormCall::casts>("casts"),
    fields::in<&NormCall::gate_first>("gate_first"),
    fields::in<&NormCall::accumulate>("accumulate"),
    fields::in<&NormCall::p>("p"),
    fields::in<&NormCall::seed>("seed"),
    fields::in<&NormCall::offset>("offset"),
};

constexpr CallTable kNormForward =
    table_of_call<NormCall>("norm_forward", kNormForwardFields, problem_of_norm_forward);
constexpr CallTable kNormBackward =
    table_of_call<NormCall>("norm_backward", kNormBackwardFields, problem_of_norm_backward);

}  // namespace fastact
