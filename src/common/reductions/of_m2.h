// Statistics made of m2, the sum of the squared distances from a mean, of `count` values.
#pragma once

#include "common/core/macros.h"
#include "common/reductions/range.h"

namespace fastact {

// Nothing, for only the mean is wanted; m2 itself; m2 / (count - correction), the variance; its
// root; and what gradients of mean, variance and deviation are multiplied by: 1 / count, 2 / (count
// - correction), and 1 / ((count - correction) deviation), or 0 where a deviation is 0. kTotal:
// nothing, and the mean, times the count, is a sum. kSquaresOrRoot: m2, or the negative of its root
// where it is no number of double (common/reductions/range.h). The native modules' OF_M2 has this
// order. kVarianceOrRoot, for the norms alone: the same of the variance.
enum OfM2 : int {
  kNothing,
  kM2,
  kVariance,
  kDeviation,
  kMeanSlope,
  kVarianceSlope,
  kDeviationSlope,
  kTotal,
  kSquaresOrRoot,
  kOfM2,
  kVarianceOrRoot
};

}  // namespace fastact

FASTACT_BEGIN_NAMESPACE

// Whether these depend on the sum of the squares.
FASTACT_HD bool is_of_squares(OfM2 what) {
  return what == kM2 || what == kSquaresOrRoot || what == kVariance || what == kDeviation ||
         what == kDeviationSlope;
}

// sqrt(m2 / divisor), where the quotient may leave the range of double.
FASTACT_HD double deviation_of(double m2, double divisor) {
  const double variance = m2 / divisor;
  return is_in_range(variance) ? __builtin_sqrt(variance)
                               : __builtin_sqrt(m2) / __builtin_sqrt(divisor);
}

struct Quotient {
  FASTACT_HD double operator()(double a, double b) const { return a / b; }
};

// For too few values NumPy divides by 0, or has no number where NaN was skipped. up: values were
// divided by this power of two before they gave m2. over: divides m2 for a variance.
template <class Over = Quotient>
FASTACT_HD double second_moment(OfM2 what, double m2, double count, double correction, bool skips,
                                double up = 1, const Over& over = {}) {
  const double left = count - correction;
  const double divisor = left > 0 ? left : skips ? __builtin_nan("") : 0.0;
  switch (what) {
    case kVariance:
      return over(m2, divisor) * up * up;
    case kVarianceOrRoot:
      return square_or_root(m2 / divisor, up);
    case kSquaresOrRoot:
      return square_or_root(m2, up);
    case kDeviation:
      return deviation_of(m2, divisor) * up;
    case kMeanSlope:
      return 1 / count;
    case kVarianceSlope:
      return 2 / divisor;
    case kDeviationSlope:
      return m2 == 0 && left > 0 ? 0.0 : 1 / (divisor * deviation_of(m2, divisor)) / up;
    default:
      return m2 * up * up;
  }
}

FASTACT_END_NAMESPACE
