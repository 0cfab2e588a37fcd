// The calls of activations.
#pragma once

#include "common/activations/list.h"
#include "common/core/call.h"

namespace fastact {

struct ActivationCall {
  enum Forward : int { kX, kY };
  enum Backward : int { kDy, kSaved, kDx };
  enum Second : int { kDdx = 2, kDsaved };  // after dy and saved

  ArrayArgument data[4];  // of one shape and dtype
  int which;
  ParameterValues parameters;
  bool accumulate;  // dx, or dsaved, is added to
};

// y OUT = f(x IN), which may be x.
constexpr Field kActivationForwardFields[] = {
    fields::in<&ActivationCall::data, ActivationCall::kX>("x"),
    fields::out<&ActivationCall::data, ActivationCall::kY>("y").like("x"),
    fields::in<&ActivationCall::which>("which").below(kActivations),
    fields::in<&ActivationCall::parameters>("parameters"),
};

// dx OUT = dy IN * f'(x), or with accumulate IN/OUT += of the same; saved IN is x, or f(x)
// (kActivationSavesValue). dx is dy, saved or disjoint from both.
constexpr Field kActivationBackwardFields[] = {
    fields::in<&ActivationCall::data, ActivationCall::kSaved>("saved"),
    fields::in<&ActivationCall::data, ActivationCall::kDy>("dy").like("saved"),
    fields::out<&ActivationCall::data, ActivationCall::kDx>("dx").like("saved"),
    fields::in<&ActivationCall::which>("which").below(kActivations),
    fields::in<&ActivationCall::parameters>("parameters"),
    fields::in<&ActivationCall::accumulate>("accumulate"),
};

// dsaved OUT = dy IN (ddx IN f''(x)), or with accumulate IN/OUT += of the same: the derivative of
// backward's dx by `saved`, times ddx. It is any of them, or disjoint from all.
constexpr Field kActivationSecondFields[] = {
    fields::in<&ActivationCall::data, ActivationCall::kSaved>("saved"),
    fields::in<&ActivationCall::data, ActivationCall::kDy>("dy").like("saved"),
    fields::in<&ActivationCall::data, ActivationCall::kDdx>("ddx").like("saved"),
    fields::out<&ActivationCall::data, ActivationCall::kDsaved>("dsaved").like("saved"),
    fields::in<&ActivationCall::which>("which").below(kActivations),
    fields::in<&ActivationCall::parameters>("parameters"),
    fields::in<&ActivationCall::accumulate>("accumulate"),
};

constexpr CallTable kActivationForward =
    table_of_call<ActivationCall>("activation_forward", kActivationForwardFields);
constexpr CallTable kActivationBackward =
    table_of_call<ActivationCall>("activation_backward", kActivationBackwardFields);
constexpr CallTable kActivationSecond =
    table_of_call<ActivationCall>("activation_second", kActivationSecondFields);

}  // namespace fastact
