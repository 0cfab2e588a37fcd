// Elements that count more or less than once: weighted and masked moments, and their gradients.
//
// An element of weight w counts as if it were there w times. Of W = sum w, the mean is a number c
// near it and what is left over, and m2 is about that:
//
//   mean = c + sum w (x - c) / W        m2 = sum w (x - c)^2 - (sum w (x - c))^2 / W
// So the formulas of common/reductions/moments.h hold, merging two sets included, with W in the
// place of the count. An element does not count at all, whatever it is, where its weight is 0,
// where the mask says so, or where it is NaN and those are skipped: a mask is weights of 0 and 1. A
// weight that is negative or not finite is NaN, and so is what is made of it.
//
// Gradients, from dW = dw, d(sum w x) = w dx + x dw, and sum w (x - mean) = 0:
//
//   dmean = sum (w dx + (x - mean) dw) / W        dm2 = sum 2 w (x - mean) dx, by x
//
// `slope` is what common/reductions/of_m2.h says: 1 / W of the mean, 2 / (W - correction) of the
// variance, and that over 2 std of the deviation.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

// How often x counts. is_there: by the mask.
FASTACT_HD double weight_of(double x, double w, bool is_there, bool skips) {
  const bool counts = is_there & (w != 0) & !(skips & (x != x));
  const bool is_weight = (w >= 0) & (w - w == 0);
  return counts ? is_weight ? w : __builtin_nan("") : 0.0;
}

// The gradient of an element, made of slope times dy. With respect to x: of a mean, or of a sum,
// whose slope has the term's derivative; of a variance or deviation, with d = x - mean; or of a
// mean and a variance at once, in which of_mean is the mean's slope times dy. With respect to the
// weights: of a mean.
template <class C>
FASTACT_HD C gradient_of_mean(C slope, C w) {
  const C gradient = slope * w;
  return w == 0 ? C(0) : gradient;
}
FASTACT_HD double gradient_of_second(double slope, double w, double d) {
  const double gradient = slope * w * d;
  return w == 0 ? 0.0 : gradient;
}
FASTACT_HD double gradient_of_both(double of_mean, double slope, double w, double d) {
  return gradient_of_mean(of_mean, w) + gradient_of_second(slope, w, d);
}
FASTACT_HD double gradient_of_weight(double slope, double d) { return slope * d; }

FASTACT_END_NAMESPACE
