// A number by which a thread divides several others. A division in double takes some fifteen
// instructions and a branch; with the reciprocal at hand three give the same quotient, but for the
// last bit of one in 2^50 near the middle between two numbers.
#pragma once

#include "common/reductions/moments.h"

FASTACT_BEGIN_NAMESPACE

struct Denominator {
  double n = 1, share = 1;

  FASTACT_HD void set(double number) {
    if (number != n) n = number, share = 1 / number;
  }
  // The quotient but for two roundings of double, which results of less than double do not
  // show.
  FASTACT_HD double nearly_under(double a) const { return a * share; }
  FASTACT_HD double under(double a) const {
    const double near = a * share, rest = madd(-near, n, a);
    return is_finite(rest) ? madd(rest, share, near) : near;
  }
};

FASTACT_END_NAMESPACE
