// Activations with a parameter that each channel has: y = f(x, w), one struct each, and the list.
//
// They are computed by the kernels of bias_act, whose bias stands for w. forward(x, w) is the
// value; slopes(x, w, by_w) returns the derivative by x, and by_w OUT is the one by w. As w is the
// same for all elements of a channel,
//
//   dx = dy df/dx      dw = the sum over them of dy df/dw.
#pragma once

#include "common/activations/list.h"

FASTACT_BEGIN_NAMESPACE

// prelu(x, w) = x for x > 0, else w x                           He et al. 2015, arXiv:1502.01852
//
// At 0 the derivatives are those of the left side, w and 0, as in torch. A NaN gives NaN.
template <class T, bool approximate = false>
struct Prelu {
  FASTACT_HD explicit Prelu(const double*) {}
  FASTACT_HD T forward(T x, T w) const { return x > T(0) ? x : w * x; }
  FASTACT_HD T slopes(T x, T w, T* by_w) const {
    *by_w = x > T(0) ? T(0) : x;
    return unless_nan(x, x > T(0) ? T(1) : w);
  }
};

// X(name, Struct)
#define FASTACT_CHANNEL_FUNCTIONS(X) X(prelu, Prelu)

// Their numbers follow those of the activations.
#define FASTACT_ENUMERATE(name, Struct) k_##name,
enum ChannelFunction : int {
  kBeforeChannelFunctions = kActivations - 1,
  FASTACT_CHANNEL_FUNCTIONS(FASTACT_ENUMERATE) kBiasFunctions
};
#undef FASTACT_ENUMERATE
constexpr int kChannelFunctions = kBiasFunctions - kActivations;

#define FASTACT_NAME(name, Struct) #name,
constexpr const char* kChannelFunctionNames[] = {FASTACT_CHANNEL_FUNCTIONS(FASTACT_NAME)};
#undef FASTACT_NAME

FASTACT_END_NAMESPACE
