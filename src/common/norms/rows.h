// The statistic of a normalization row that is held as a whole, and how xhat follows from it.
//
// Moments, in the compute type C (float for 16 bits), twice over the registers:
//
//   near = sum(x) / n        d = x - near        low = sum(d) / n        mean = near + low
//   m2 = sum(d^2) - n low^2
//
// near is rough, and d is exact where the subtraction cancels, so low makes good what near misses:
// eight d are added up in C as a tree, and these sums in double. With u the unit roundoff of C the
// mean is off by 3.5 u mean|d|, and m2 by 6 u of itself. Where squares leave the range of C, the
// row is multiplied by a power of two near the inverse of its largest |x|: exact, and rare, so that
// the lanes of a row vote on it.
#pragma once

#include "common/core/macros.h"
#include "common/reductions/moments.h"
#include "common/reductions/range.h"

FASTACT_BEGIN_NAMESPACE

// The moments of scale x: near + low and m2, which are 0 and the sum of the squares where no mean
// is subtracted.
template <class C>
struct ScaledMoments {
  C scale, near;
  double low, m2;

  FASTACT_HD double inverse_scale() const { return inverse_power(double(scale)); }
  FASTACT_HD double mean() const {
    // Next to an infinite mean there is nothing to correct.
    const double sum = is_finite(double(near)) ? double(near) + low : double(near);
    return sum * inverse_scale();
  }
};

// xhat = (x - near) rstd + shift, where shift = -low rstd.
template <class C>
struct Normaliser {
  C near, rstd, shift;
  FASTACT_HD C operator()(C x) const { return madd(x - near, rstd, shift); }
};

FASTACT_END_NAMESPACE
