// Activations with a parameter that each channel has: y = f(x, w), one struct each, and the list.
//
// They are computed by the kernels of bias_act, whose bias stands for w. forward(x, w) is the
// value; slopes(x, w, by_w) returns the derivative by x, and by_w OUT is the one by w. As w is the
// same for all elements of a channel,
//
//   dx = dy df/dx      dw = the sum over them of dy df/dw.
#pragma once

#include "common/activations/list.h"
#include "common/math/sine.h"

FASTACT_BEGIN_NAMESPACE

// prelu(x, w) = x for x > 0, else w x                           He et al. 2015, arXiv:1502.01852
//
// At 0 the derivatives are the left side's, w and 0, as in torch. A NaN gives NaN.
template <class T, bool approximate = false>
struct Prelu {
  FASTACT_HD explicit Prelu(const double*) {}
  FASTACT_HD T forward(T x, T w) const { return x > T(0) ? x : w * x; }
  FASTACT_HD T slopes(T x, T w, T* by_w) const {
    *by_w = x > T(0) ? T(0) : x;
    return unless_nan(x, x > T(0) ? T(1) : w);
  }
};

// snake(x, w) = x + sin(w x)^2 / w                             Ziyin et al. 2020, arXiv:2006.08195
//
// With u = w x and q = sin(u) / u it is x (1 + q sin(u)), which needs no division by w: of w = 0 it
// is x. The derivatives are 1 + sin(2 u) by x, and x^2 (sin(2 u) / u - q^2) = x^2 q (2 cos(u) - q)
// by w. Where u is far, and so of an infinite x, it is x, and the derivatives are 1 and 0: the sine
// then adds less than a rounding to x, and all angles lie between x and its neighbours.
template <class T, bool approximate = false>
struct Snake {
  FASTACT_HD explicit Snake(const double*) {}
  FASTACT_HD T forward(T x, T w) const {
    const SineAndCosine<T> at(x, w);
    const T y = madd(x, at.sine * at.ratio(), x);
    return unless_nan(w, at.is_far ? x : y);
  }
  FASTACT_HD T slopes(T x, T w, T* by_w) const {
    const SineAndCosine<T> at(x, w);
    const T q = at.ratio(), twice = at.cosine + at.cosine;
    const T slope = at.is_far ? T(1) : madd(at.sine, twice, T(1));
    *by_w = unless_nan(x, unless_nan(w, at.is_far ? T(0) : x * (x * (q * (twice - q)))));
    return unless_nan(x, unless_nan(w, slope));
  }
};

// X(name, Struct)
#define FASTACT_CHANNEL_FUNCTIONS(X) X(prelu, Prelu) X(snake, Snake)

// Their numbers go on behind the activations'.
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
