// The moments of channels.
//
// A thread adds up d = x - shift and d^2 of its elements. The shift is near the mean of the
// elements so far: it is set in the first round of vectors, and again after 4, 16, 64 ... rounds.
// Four or eight elements are added up in the compute type C as a tree, and these sums in double. (C
// is float for float and 16 bits.) When the shift moves from c to c', with n elements so far,
//
//   delta = c' - c      S' = S - n delta      Q' = Q - delta (S + S')
//
// so that Q <= 4 m2 wherever the data lie, in whatever order. The threads of a channel are merged
// at the shift of the first of them: the bits that m2 = Q - S^2 / n then cancels are double's.
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
  static constexpr int kVecs = Walk<T, way>::kVecs;
  using C = Compute<T>;
  C shift[kChannels] = {};
  double sum[kChannels] = {}, squares[kChannels] = {};
  int n = 0, rounds = 0;  // elements of each channel

  // Adds the vectors from the first-th on.
  FASTACT_DEVICE void add(const Walk<T, way>& walk, int first, const Vec<T> (&vecs)[kVecs]) {
    int valid[kVecs], count = 0;
#pragma unroll
    for (int u = 0; u < kVecs; ++u) count += valid[u] = walk.elements(first + u);
    if (count == 0) return;
    if (n == 0) set_shift(vecs, C(1) / C(count));
    n += count;
    walk.has_all(first, kVecs) ? add_round<true>(vecs, valid) : add_round<false>(vecs, valid);
    end_round();
  }
  // The i-th vector, element by element in double.
  FASTACT_DEVICE void add_wide(const Walk<T, way>& walk, int i) {
    const int valid = walk.elements(i);
    if (valid == 0) return;
    const Vec<T> vecs[1] = {walk.read_one(kStripX, i)};
    if (n == 0) set_shift(vecs, C(1) / C(valid));
    n += valid;
    const Wide<T> x = widen_vec(vecs[0]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (way == kSingles && j >= valid) continue;
      constexpr bool kApart = way == kColumns;
      const double d = double(x.lane[j]) - double(shift[kApart ? j : 0]);
      sum[kApart ? j : 0] += d;
      squares[kApart ? j : 0] = madd(d, d, squares[kApart ? j : 0]);
    }
    end_round();
  }

  FASTACT_DEVICE void move(int j, double to) {
    const Shifted moved = about({double(shift[j]), sum[j], squares[j]}, n, to);
    sum[j] = moved.sum, squares[j] = moved.squares;
  }

 private:
  // After a power of four.
  FASTACT_DEVICE void end_round() {
    ++rounds;
    if (rounds < 4 || (rounds & (rounds - 1)) != 0 || (rounds & 0x55555554) == 0) return;
    const C share = C(1) / C(n);
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const C mean = madd(C(sum[j]), share, shift[j]);
      if (mean - mean == 0) move(j, double(mean)), shift[j] = mean;
    }
  }
  // Elements that are not there are 0.
  template <int vectors>
  FASTACT_DEVICE void set_shift(const Vec<T> (&vecs)[vectors], C share) {
    C near[kChannels] = {};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
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
  // Adds eight elements of a channel, or as many as a round has, as a tree.
  template <bool has_all>
  FASTACT_DEVICE void add_round(const Vec<T> (&vecs)[kVecs], const int (&valid)[kVecs]) {
    constexpr int kTree = way == kColumns ? kVecs : 8, kTrees = kVecs * kSize / kTree;
    C d[kTrees][kTree];
#pragma unroll
    for (int u = 0; u < kVecs; ++u) {
      const Wide<T> x = widen_vec(vecs[u]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const bool counts = has_all || (way == kSingles ? j < valid[u] : valid[u] > 0);
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
};

// Whether a mean square in float is right: nothing overflowed, and no underflow matters beside eps.
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
  for (bool wide = false;; wide = true) {
    UnitMoments<T, way> unit;
    if (wide) {
      const int vecs = walk.rounds(1);
      for (int i = 0; i < vecs; ++i) unit.add_wide(walk, i);
    } else {
      each_round([&](int i, const Vec<T>(&vecs)[Walk<T, way>::kVecs]) { unit.add(walk, i, vecs); });
    }
    if (walk.along == 0 && walk.is_there) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) pairs[first + j] = double(unit.shift[j]);
    }
    __syncthreads();
    const double shift = has_channel ? double(pairs[mine]) : 0.0;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (unit.n > 0) unit.move(j, pairs[first + j]);
    }
    fold_tile(walk, unit.sum, unit.squares);
    bool fits = true;
    if (has_channel) {
      const double n = walk.tile.length, sum = pairs[mine];
      const double m2 = madd(-sum / n, sum, double(pairs[kTileChannels + mine]));
      pairs[mine] = shift + sum / n;
      pairs[kTileChannels + mine] = m2 < 0 ? 0.0 : m2;
      fits = sizeof(T) == 8 || wide || is_in_range(m2 / n, eps);
    }
    if (!any_of_block(!fits)) return;
  }
}

// The mean and m2 of a group, from those numbers of its parts; all lanes of the group get them.
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

// The same in tile_pairs(), for a tile that has whole groups.
template <class T, Way way>
FASTACT_DEVICE void merge_tile_moments(const Walk<T, way>& walk, int size) {
  const auto pairs = tile_pairs();
  const double n = walk.tile.length;
  double sum = 0, squares = 0;
  merge_tile(walk, size, [&](int channel, int first, double (&pair)[2]) {
    const double shift = finite_or_zero(double(pairs[first]));
    const double apart = double(pairs[channel]) - shift;
    sum += apart;
    squares += madd(n * apart, apart, double(pairs[kTileChannels + channel]));
    const double m2 = madd(-sum / size * n, sum, squares);
    pair[0] = shift + sum / size;
    pair[1] = m2 < 0 ? 0.0 : m2;
  });
}

}  // namespace
FASTACT_END_NAMESPACE
