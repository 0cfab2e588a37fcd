// Sums about a shift, and how the sums of many threads become one mean and one m2.
//
// A thread keeps S = sum d and Q = sum d^2 of its inputs, d = x - shift in double. The shift is its
// first input. After 1, 2, 4, 8 ... rounds of loads (narrower types: after 16, 32 ...) it moves to
// the mean of the inputs so far, about which Q is m2 and S is near 0. With n inputs so far and the
// shift moving from c to c',
//
//   delta = c' - c      S' = S - n delta      Q' = Q - delta (S + S')
//
// which are the sums about c'. From the first move on each input meets a shift that is the mean of
// at least half of the inputs before it: Q <= 3 m2. Until then Q <= (n + 1) m2, with equality where
// the shift lies farthest out. Before the first move 16 bits have n = 512 inputs (float32 256,
// double 8), so at most 9 of the 53 bits cancel, wherever the data lie and whichever input came
// first.
//
// Threads are merged at one centre, the mean of all their inputs, which follows from their shifts
// and S. Each moves its sums there; then S and Q are simply added up, without a division for each
// pair, and the S that is left corrects the centre's own rounding.
//
// Error, with u = 2^-53: in a thread of n inputs Q takes fewer than n additions in a chain, all of
// one sign, and log2(n) moves of some 3 u Q each, so |m2 - exact| <= (n + 3 log2 n) u Q at worst.
// Of n <= 512 inputs before a move, Q <= 513 m2: 2^-34.9 m2. Rows of up to 64 MiB of double leave a
// thread at most 32 inputs, and Q <= 9 m2: 2^-44.3. Columns leave it an eighth of their chunk's
// rows.
#pragma once

#include "common/reductions/moments.h"
#include "cuda/core/block_reduce.cuh"
#include "cuda/reductions/denominator.cuh"

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

// Whether the shift moves after so many rounds, for data of T.
template <class T>
FASTACT_DEVICE constexpr bool moves_after(int rounds) {
  return rounds >= (sizeof(T) == 8 ? 1 : 16) && (rounds & (rounds - 1)) == 0;
}

// The moments of some inputs, and their number.
struct Part {
  double mean, m2, count;
};

// The moments from sums about a centre that is the mean but for rounding. A mean
// that is not finite comes of infinities or NaN: then m2 is NaN. by: for sums of as many inputs.
FASTACT_DEVICE Part part_of(double centre, double sum, double squares, double count,
                            Denominator& by) {
  Part part{centre, centre - centre, count};
  by.set(count);
  if (is_finite(centre))
    moments_of_average(centre, by.under(sum), sum, squares, &part.mean, &part.m2);
  return part;
}
FASTACT_DEVICE Part part_of(double centre, double sum, double squares, double count) {
  Denominator by;
  return part_of(centre, sum, squares, count, by);
}

// The moments of all inputs of a team of threads (team_sums), given to all of it.
template <class T>
FASTACT_DEVICE Part join(const Shifted& s, double n, int team, int& folds) {
  if (team == 1) return part_of(s.shift, s.sum, s.squares, n);
  // Sums of double about 0 might overflow: they are taken about the first thread's shift.
  double start[1] = {sizeof(T) == 8 && threadIdx.x % unsigned(team) == 0 ? s.shift : 0.0};
  if (sizeof(T) == 8) team_sums(start, team, folds);
  double total[2] = {n > 0 ? madd(n, s.shift - start[0], s.sum) : 0.0, n};
  team_sums(total, team, folds);
  const double count = total[1], centre = start[0] + total[0] / count;
  const Shifted moved = n > 0 ? about(s, n, centre) : Shifted{};
  double rest[2] = {moved.sum, moved.squares};
  team_sums(rest, team, folds);
  return part_of(centre, rest[0], rest[1], count);
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

}  // namespace
FASTACT_END_NAMESPACE
