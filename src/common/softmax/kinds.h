// The functions of a row that softmax, log_softmax and logsumexp are, as functors that both devices
// take by their number: one more is a struct and its line in FASTACT_SOFTMAX_KINDS.
//
// softmax.h derives the gradients. Where an element takes no part, y = 0 or -inf, dx is 0.
// logsumexp has kernels of its own.
#pragma once

#include "common/softmax/softmax.h"

FASTACT_BEGIN_NAMESPACE

// The parts of a row's sum that a gradient takes: rounded, the rest, and the first or 0,
// where that is not finite.
template <class C>
struct GradientSum {
  C first, second, finite;

  FASTACT_HD static GradientSum of(double sum) {
    const C first = C(sum);
    if (!(first - first == 0)) return {first, C(0), C(0)};
    return {first, C(sum - double(first)), first};
  }
};

struct ToSoftmax {
  static constexpr bool kHasY = true;           // else a row becomes one number, its lse
  static constexpr bool kTakesTerms = true;     // y is made of exponentials, else of z
  static constexpr bool kCountsMaxima = false;  // the log is needed (SoftmaxStat::ones)
  static constexpr bool kSumsProducts = true;   // the gradient takes the sum of dy y, else of dy
  static constexpr bool kSeesFar = false;       // what is far below the maximum tells in y
  static constexpr double kNothing = 0.0;       // y of what takes no part

  // numbers: of the row, a factor where y is made of exponentials, else maximum and log.
  template <class C>
  static FASTACT_HD C y_of(C term, C factor, C /*none*/) {
    return term * factor;
  }
  // dz. exp(y): of a y up to 0, as s and t.
  template <class C, class Exp>
  static FASTACT_HD C slope(C dy, C y, const GradientSum<C>& sum, Exp /*exp*/) {
    return y * (dy - sum.first);
  }
};

struct ToLogSoftmax {
  static constexpr bool kHasY = true;
  static constexpr bool kTakesTerms = false;
  static constexpr bool kCountsMaxima = true;
  static constexpr bool kSumsProducts = false;
  static constexpr bool kSeesFar = true;
  static constexpr double kNothing = -__builtin_inf();

  template <class C>
  static FASTACT_HD C y_of(C z, C max, C log) {
    return (z - max) - log;
  }
  template <class C, class Exp>
  static FASTACT_HD C slope(C dy, C y, const GradientSum<C>& sum, Exp exp) {
    const auto p = exp(y);
    return madd(-p.s, madd(p.t, sum.finite, sum.second), madd(-p.s, sum.first, dy));
  }
};

struct ToLogSumExp : ToLogSoftmax {
  static constexpr bool kHasY = false;
  static constexpr bool kSeesFar = false;
};

// Kinds with a y come first.
#define FASTACT_SOFTMAX_MAPS(X) \
  X(kSoftmax, ToSoftmax, "softmax") X(kLogSoftmax, ToLogSoftmax, "log_softmax")
#define FASTACT_SOFTMAX_KINDS(X) FASTACT_SOFTMAX_MAPS(X) X(kLogSumExp, ToLogSumExp, "logsumexp")

#define FASTACT_NUMBER(number, Kind, name) number,
#define FASTACT_NAME(number, Kind, name) name,
enum SoftmaxKind : int { FASTACT_SOFTMAX_KINDS(FASTACT_NUMBER) kSoftmaxKinds };
constexpr const char* kSoftmaxKindNames[] = {FASTACT_SOFTMAX_KINDS(FASTACT_NAME)};
constexpr int kSoftmaxMaps = kLogSumExp;
#undef FASTACT_NUMBER
#undef FASTACT_NAME

template <class Kind>
constexpr int kNumberOf = kSoftmaxKinds;
#define FASTACT_NUMBER(number, Kind, name) \
  template <>                              \
  constexpr int kNumberOf<Kind> = number;
FASTACT_SOFTMAX_KINDS(FASTACT_NUMBER)
#undef FASTACT_NUMBER

#define FASTACT_VISIT(number, Kind, name) \
  if (kind == number) return visit(Kind{});
// visit(functor) of a kind with a y. visit may be for the host alone, where a call is.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Visit>
FASTACT_HD auto with_softmax_map(int kind, Visit visit) {
  if (kind == kSoftmax) return visit(ToSoftmax{});
  return visit(ToLogSoftmax{});
}
// Calls with any kind; for a number beyond them, with logsumexp's.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Visit>
FASTACT_HD auto with_softmax_kind(int kind, Visit visit) {
  FASTACT_SOFTMAX_MAPS(FASTACT_VISIT)
  return visit(ToLogSumExp{});
}
#undef FASTACT_VISIT

FASTACT_END_NAMESPACE
