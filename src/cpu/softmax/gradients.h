// The gradient of an element, and what a row's sum leaves out, of contiguous rows and of tiles.
#pragma once

#include "common/softmax/kinds.h"
#include "cpu/softmax/loops.h"

FASTACT_BEGIN_NAMESPACE

// exp(y) of a y up to 0.
struct ExpOfLog {
  template <class T>
  FASTACT_HD T operator()(T y) const {
    constexpr SoftmaxReference<T> zero = {-kZeroAt<T> * T(0.69314718055994530942),
                                          ExpTraits<T>::kRoundMagic + kZeroAt<T>};
    return exp_near(y, zero) * Tail<T>::kDown;
  }
};

// dx, 0 where y took no part.
template <class Kind, class T>
FASTACT_HD T gradient_of(T dy, T y, T sum, T scale) {
  const T dx = scale * Kind::slope(dy, y, sum, ExpOfLog{});
  return y == T(Kind::kNothing) ? T(0) : dx;
}

// An element whose y is 0 takes no part, whatever its dy: infinite or a NaN, too. A sum that these
// made NaN is made anew without them.
template <class T>
FASTACT_HD double sum_of_parts(const T* dy, const T* y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double of_y = double(widen(y[i]));
    sum += of_y == 0.0 ? 0.0 : double(widen(dy[i])) * of_y;
  }
  return sum;
}

FASTACT_END_NAMESPACE
