// Sums about a shift, and how those of many threads become one mean and one m2.
//
// A thread keeps S = sum d and Q = sum d^2 of its inputs, d = x - shift in double. The shift is its
// first input; after 1, 2, 4, 8 ... rounds of loads it moves to the mean of the inputs so far,
// where Q is m2 and S is about 0. With n inputs so far and the shift moving from c to c',
//
//   delta = c' - c      S' = S - n delta      Q' = Q - delta (S + S')
//
// which are the sums about c'. Each input so meets a shift that is the mean of at least half of the
// inputs before it: Q <= 3 m2 (5 m2 after the first round of four), and no more than 2 to 3 of the
// 53 bits cancel, wherever the data lie and whichever input came first.
//
// Threads join at one centre, the mean of all their inputs, from their shifts and S. Each moves its
// sums there; S and Q then add up as they are, without a division for each pair, and what is left
// in S corrects the centre's own rounding.
//
// Error, with u = 2^-53: in a thread of n inputs Q takes fewer than n additions in a chain, all of
// one sign, and log2(n) moves of some 3 u Q each, with Q <= 5 m2; so |m2 - exact| <= 5 (n + 3 log2
// n) u m2 at worst. Rows of up to 64 MiB leave a thread at most 128 inputs: 2^-43.5 m2 (float64: 32
// inputs, 2^-45). Columns leave it an eighth of their chunk's rows.
#pragma once

#include "common/reductions/moments.h"
#include "cuda/core/block_reduce.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

struct Shifted {
  double shift, sum, squares;
};

// The sums of n inputs about another shift.
FASTACT_DEVICE Shifted about(const Shifted& s, double n, double shift) {
  const double delta = shift - s.shift;
  const double sum = madd(-n, delta, s.sum);
  return {shift, sum, madd(-delta, s.sum + sum, s.squares)};
}

FASTACT_DEVICE void move_to_mean(Shifted& s, double share, double n) {
  const double mean = s.shift + s.sum * share;
  if (is_finite(mean)) s = about(s, n, mean);
}

FASTACT_DEVICE bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

// The moments of some inputs, and their number.
struct Part {
  double mean, m2, count;
};

// From the sums about a centre that is the mean but for rounding. A mean that is no number is one
// of data with infinities or NaN: m2 is NaN.
FASTACT_DEVICE Part part_of(double centre, double sum, double squares, double count) {
  Part part{centre, centre - centre, count};
  if (is_finite(centre)) moments_of_sums(centre, sum, squares, count, &part.mean, &part.m2);
  return part;
}

// The moments of all inputs of a team of threads, valid in its first one, which has inputs unless
// none has. sum_of(value): over the team, valid there; first_of(value): its first thread's, to
// all.
template <class Sum, class First>
FASTACT_DEVICE Part join(const Shifted& s, double n, const Sum& sum_of, const First& first_of) {
  const double start = first_of(s.shift);
  const double count = sum_of(n);
  const double total = sum_of(n > 0 ? madd(n, s.shift - start, s.sum) : 0.0);
  const double centre = first_of(start + total / count);
  const Shifted moved = n > 0 ? about(s, n, centre) : Shifted{};
  const double sum = sum_of(moved.sum);
  return part_of(centre, sum, sum_of(moved.squares), count);
}

// Moments that grow by parts (Chan's formula), in a fixed order.
struct Growing {
  Moments of;
  double count;
};

FASTACT_DEVICE void absorb(Growing& to, const Moments& from, double count) {
  if (count == 0) return;
  if (to.count == 0) {
    to = {from, count};
    return;
  }
  const double all = to.count + count, share = count / all;
  merge_moments(from, share, to.count * share, &to.of);
  to.count = all;
}

FASTACT_DEVICE void absorb(Growing& to, const Part& part) {
  absorb(to, Moments{part.mean, part.m2, 0, 0}, part.count);
}

// Over the lanes of a warp, valid in the first one.
FASTACT_DEVICE Growing warp_merge(Growing mine) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const auto other = [&](double x) { return __shfl_xor_sync(kAllLanes, x, step, kWarp); };
    const Moments theirs{other(mine.of.mean), other(mine.of.m2), other(mine.of.mean_low),
                         other(mine.of.m2_low)};
    absorb(mine, theirs, other(mine.count));
  }
  return mine;
}

}  // namespace
FASTACT_END_NAMESPACE
