// The formulas of mean and m2, the sum of the squared distances from the mean.
//
// One block, from d = x - shift for a shift amid the data, S = sum d and Q = sum d^2:
//
//   mean = shift + S / n        m2 = Q - S^2 / n
//
// Two sets of n and k values, of means a and b (Chan, Golub and LeVeque, "Updating Formulae and a
// Pairwise Algorithm for Computing Sample Variances", 1979, http://i.stanford.edu/pub/cstr/reports/
// cs/tr/79/773/CS-TR-79-773.pdf):
//
//   mean = a + (b - a) k / (n + k)        m2 = m2_a + m2_b + (b - a)^2 n k / (n + k)
//
// Both numbers carry a low part, in which the rounding errors of the merges add up, so that many
// merges round no more than one.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

struct Moments {
  double mean, m2, mean_low, m2_low;
};

FASTACT_HD bool is_finite(double x) { return x - x == 0; }
FASTACT_HD double finite_or_zero(double x) { return is_finite(x) ? x : 0.0; }

// mean and m2 from S / n, S and Q. Rounding takes m2 below zero nowhere. An overflow of Q alone is
// one of m2; with an infinity among the data m2 is NaN.
FASTACT_HD void moments_of_average(double shift, double average, double sum, double squares,
                                   double* mean, double* m2) {
  const double rest = madd(-average, sum, squares);
  *mean = shift + average;
  *m2 = rest < 0 ? 0.0 : !is_finite(squares) && is_finite(sum) ? squares : rest;
}
FASTACT_HD void moments_of_sums(double shift, double sum, double squares, double n, double* mean,
                                double* m2) {
  moments_of_average(shift, sum / n, sum, squares, mean, m2);
}

// high + x, and onto low what that rounding lost (Knuth's two-sum). Next to an infinity there is no
// error to keep.
FASTACT_HD double add_exactly(double high, double x, double* low) {
  const double sum = high + x, part = sum - high;
  *low += finite_or_zero((high - (sum - part)) + (x - part));
  return sum;
}

// to, of n values, becomes the moments of n + k: with from, of k.
// fraction = k / (n + k), weight = n k / (n + k).
FASTACT_HD void merge_moments(const Moments& from, double fraction, double weight, Moments* to) {
  const double delta = ((from.mean - to->mean) - to->mean_low) + from.mean_low;
  // An infinite mean, or means too far apart for their difference, take the other formula.
  const double apart = to->mean * (1 - fraction) + from.mean * fraction;
  const double mean = add_exactly(to->mean, delta * fraction, &to->mean_low);
  to->mean = is_finite(delta) ? mean : apart;
  to->m2 = add_exactly(to->m2, madd(delta * delta, weight, from.m2), &to->m2_low);
  to->m2_low += from.m2_low;
}

// The moments of n + k values; n or k may be 0. The lighter ones join the heavier: a mean that
// moves by nearly all of the distance between both would be as wrong as that is rounded.
FASTACT_HD Moments merge_counted(const Moments& from, double k, const Moments& to, double n) {
  const auto pick = [](bool first, const Moments& a, const Moments& b) -> Moments {
    return {first ? a.mean : b.mean, first ? a.m2 : b.m2, first ? a.mean_low : b.mean_low,
            first ? a.m2_low : b.m2_low};
  };
  const bool swaps = k > n;
  const Moments heavy = pick(swaps, from, to), light = pick(swaps, to, from);
  const double least = swaps ? n : k, fraction = least / (n + k);
  Moments both = heavy;
  merge_moments(light, fraction, (swaps ? k : n) * fraction, &both);
  return pick(least == 0, heavy, both);
}

FASTACT_END_NAMESPACE
