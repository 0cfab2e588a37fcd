// The moments of channels.
//
// A thread adds up d = x - shift and d^2 of its elements, where the shift is near the mean of what
// it has met: of the first round of vectors, and again after 2, 4, 8 ... rounds. A round adds up in
// the compute type C, of float and 16 bits float, and its sums are added in double: two conversions
// for 4 to 32 elements. When the shift moves from c to c', with n elements so far,
//
//   delta = c' - c      S' = S - n delta      Q' = Q - delta (S + S')
//
// so that Q <= 5 m2 wherever the data lie and whichever came first. The threads of a channel join
// at one centre, their mean.
//
// Error, with u the unit roundoff of C: the mean is off by 3.5 u mean|d| and m2 by 6 u Q, where
// each tree errs as much as it can.
//
// Squares that leave the range of float: such a tile is added up again, element by element in
// double. It is rare, so its threads vote on it.
#pragma once

#include "common/norms/norms.h"
#include "cuda/norms/channels/strips.cuh"
#include "cuda/reductions/shifted_moments.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, Way way>
struct UnitMoments {
  static constexpr int kSize = Vec<T>::kSize, kChannels = kUnitChannels<T, way>;
  using C = Compute<T>;
  C shift[kChannels] = {};
  double sum[kChannels] = {}, squares[kChannels] = {};
  int n = 0, rounds = 0;  // elements of each channel

  // Of vectors that begin with the first-th.
  FASTACT_DEVICE void add(const Walk<T, way>& walk, int first, const Vec<T> (&vecs)[kStripVecs],
                          bool wide) {
    int valid[kStripVecs], count = 0;
#pragma unroll
    for (int u = 0; u < kStripVecs; ++u) count += valid[u] = walk.elements(first + u);
    if (count == 0) return;
    if (n == 0) set_shift(vecs, C(1) / C(count));
    n += count;
    if (wide) {
      add_wide(vecs, valid);
    } else {
      walk.has_all(first, kStripVecs) ? add_round<true>(vecs, valid)
                                      : add_round<false>(vecs, valid);
    }
    if (++rounds > 1 && is_power_of_two(rounds)) {
      const double share = 1.0 / n;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        const C mean = C(double(shift[j]) + sum[j] * share);
        if (is_finite(double(mean))) move(j, double(mean)), shift[j] = mean;
      }
    }
  }

  FASTACT_DEVICE void move(int j, double to) {
    const Shifted moved = about({double(shift[j]), sum[j], squares[j]}, n, to);
    sum[j] = moved.sum, squares[j] = moved.squares;
  }

 private:
  // What is not there is 0.
  FASTACT_DEVICE void set_shift(const Vec<T> (&vecs)[kStripVecs], C share) {
    C near[kChannels] = {};
#pragma unroll
    for (int u = 0; u < kStripVecs; ++u) {
      const Wide<T> x = widen_vec(vecs[u]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        C& to = near[way == kColumns ? j : 0];
        to = madd(x.lane[j], share, to);
      }
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j) shift[j] = near[j] - near[j] == 0 ? near[j] : C(0);
  }
  // Eight elements of a channel, or as many as a round has, as a tree.
  template <bool has_all>
  FASTACT_DEVICE void add_round(const Vec<T> (&vecs)[kStripVecs], const int (&valid)[kStripVecs]) {
    constexpr int kTree = way == kColumns ? kStripVecs : 8, kTrees = kStripVecs * kSize / kTree;
    C d[kTrees][kTree];
#pragma unroll
    for (int u = 0; u < kStripVecs; ++u) {
      const Wide<T> x = widen_vec(vecs[u]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const bool counts = has_all || (kGathers<way> ? j < valid[u] : valid[u] > 0);
        const int tree = way == kColumns ? j : (u * kSize + j) / kTree;
        const int at = way == kColumns ? u : (u * kSize + j) % kTree;
        d[tree][at] = counts ? x.lane[j] - shift[way == kColumns ? j : 0] : C(0);
      }
    }
#pragma unroll
    for (int t = 0; t < kTrees; ++t) {
      constexpr int kHalf = kTree / 2;
      C of_squares[kHalf];
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        of_squares[i] = madd(d[t][i], d[t][i], d[t][i + kHalf] * d[t][i + kHalf]);
        d[t][i] += d[t][i + kHalf];
      }
#pragma unroll
      for (int half = kHalf / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; ++i)
          d[t][i] += d[t][i + half], of_squares[i] += of_squares[i + half];
      const int channel = way == kColumns ? t : 0;
      sum[channel] += double(d[t][0]);
      squares[channel] += double(of_squares[0]);
    }
  }
  FASTACT_DEVICE void add_wide(const Vec<T> (&vecs)[kStripVecs], const int (&valid)[kStripVecs]) {
#pragma unroll
    for (int u = 0; u < kStripVecs; ++u) {
      const Wide<T> x = widen_vec(vecs[u]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (j >= valid[u] * (way == kColumns ? kSize : 1)) continue;
        constexpr bool kOne = way != kColumns;
        const double d = double(x.lane[j]) - double(shift[kOne ? 0 : j]);
        sum[kOne ? 0 : j] += d;
        squares[kOne ? 0 : j] = madd(d, d, squares[kOne ? 0 : j]);
      }
    }
  }
};

// Mean squares in float that met neither overflow nor an underflow that matters beside eps.
FASTACT_DEVICE bool is_in_range(double mean_square, double eps) {
  return is_finite(mean_square) && (mean_square >= 0x1p-100 || eps >= 0x1p-40);
}

// The mean and m2 of each channel of a tile, into tile_pairs(). Every thread takes part.
// each_round(add): calls add(first, vecs) for each round of a thread's vectors.
template <class T, Way way, class Rounds>
FASTACT_DEVICE void find_moments(const Walk<T, way>& walk, double eps, const Rounds& each_round) {
  constexpr int kChannels = kUnitChannels<T, way>;
  const auto pairs = tile_pairs();
  const int mine = int(threadIdx.x), first = walk.unit * kChannels;
  const bool has_channel = mine < walk.tile.channels;
#pragma unroll 1
  for (bool wide = sizeof(T) == 8;; wide = true) {
    UnitMoments<T, way> unit;
    each_round([&](int i, const Vec<T>(&vecs)[kStripVecs]) { unit.add(walk, i, vecs, wide); });
    // The mean of each channel, from the shift of its first thread.
    if (walk.along == 0 && walk.is_there) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) pairs[first + j] = double(unit.shift[j]);
    }
    __syncthreads();
    double part[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j)
      part[j] = unit.n == 0 ? 0.0
                            : madd(double(unit.n), double(unit.shift[j]) - double(pairs[first + j]),
                                   unit.sum[j]);
    fold_tile(walk, part, kTileChannels);
    if (has_channel)
      pairs[mine] = double(pairs[mine]) + double(pairs[kTileChannels + mine]) / walk.tile.length;
    __syncthreads();
    // And the squares about it.
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (unit.n > 0) unit.move(j, pairs[first + j]);
      part[j] = unit.n > 0 ? unit.squares[j] : 0.0;
    }
    fold_tile(walk, part, kTileChannels);
    const double squares = has_channel ? double(pairs[kTileChannels + mine]) : 0.0;
    if (has_channel && squares < 0) pairs[kTileChannels + mine] = 0.0;
    const bool fits = !has_channel || is_in_range(squares / walk.tile.length, eps);
    if (wide || !any_of_block(!fits)) break;
  }
  __syncthreads();
}

// The same of parts, for each channel of which has two numbers, mean and m2: of group
// [first, first + 1), given to all of its lanes.
FASTACT_DEVICE void merge_moments(const Parts& parts, int64_t group, int width, bool idle,
                                  double count, double (&moments)[2]) {
  const double* data = parts.data + (idle ? 0 : 2 * group * parts.each);
  const double shift = finite_or_zero(load(data));
  double sum[2];
  sum_parts(parts, width, idle, sum, [&](int64_t i, double (&to)[2]) {
    const double n = parts.elements(i), apart = load(data + 2 * i) - shift;
    to[0] = madd(n, apart, to[0]);
    to[1] += madd(n * apart, apart, load(data + 2 * i + 1));
  });
  moments[0] = shift + sum[0] / count;
  const double m2 = madd(-sum[0] / count, sum[0], sum[1]);
  moments[1] = m2 < 0 ? 0.0 : m2;
}

}  // namespace
FASTACT_END_NAMESPACE
