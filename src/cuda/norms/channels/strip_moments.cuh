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
// double; of double, each element times a power of two, and m2 is the negative of its root where it
// has none (common/reductions/range.h). It is rare, so its threads vote on it.
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

  FASTACT_DEVICE explicit UnitMoments(const Walk<T, way>&) {}
  // Adds the vectors from the first-th on.
  FASTACT_DEVICE void add(const Walk<T, way>& walk, int first, const Held<T, way> (&vecs)[kVecs]) {
    int valid[kVecs], count = 0;
#pragma unroll
    for (int u = 0; u < kVecs; ++u) count += valid[u] = walk.elements(first + u);
    if (count == 0) return;
    if (n == 0) set_shift(vecs, C(1) / C(count));
    n += count;
    walk.has_all(first, kVecs) ? add_round<true>(vecs, valid) : add_round<false>(vecs, valid);
    end_round();
  }
  // The i-th vector, element by element in double, times a scale.
  FASTACT_DEVICE void add_wide(const Walk<T, way>& walk, int i, double scale) {
    const int valid = walk.elements(i);
    if (valid == 0) return;
    const Held<T, way> vecs[1] = {bit_cast<Held<T, way>>(walk.read_one(kStripX, i))};
    if (n == 0) set_shift(vecs, C(1) / C(valid) * C(scale));
    n += valid;
    const Wide<T> x = widen_held<T>(vecs[0]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (way == kSingles && j >= valid) continue;
      constexpr bool kApart = way == kColumns;
      const double d = double(x.lane[j]) * scale - double(shift[kApart ? j : 0]);
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
  FASTACT_DEVICE void set_shift(const Held<T, way> (&vecs)[vectors], C share) {
    C near[kChannels] = {};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      const Wide<T> x = widen_held<T>(vecs[u]);
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
  FASTACT_DEVICE void add_round(const Held<T, way> (&vecs)[kVecs], const int (&valid)[kVecs]) {
    constexpr int kTree = way == kColumns ? kVecs : 8, kTrees = kVecs * kSize / kTree;
    C d[kTrees][kTree];
#pragma unroll
    for (int u = 0; u < kVecs; ++u) {
      const Wide<T> x = widen_held<T>(vecs[u]);
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

// The same of planes, whose units have lanes of two channels. Trees are of a lane of all
// vectors of a round.
template <class T>
struct UnitMoments<T, kPlanes> {
  static constexpr int kSize = Vec<T>::kSize, kVecs = Walk<T, kPlanes>::kVecs;
  using C = Compute<T>;
  C shift[2] = {};
  double sum[2] = {}, squares[2] = {};
  int n = 0, rounds = 0;  // vectors
  const int split;

  FASTACT_DEVICE explicit UnitMoments(const Walk<T, kPlanes>& walk) : split(walk.split) {}
  FASTACT_DEVICE int lanes_of(int j) const { return j == 0 ? split : kSize - split; }

  // (The vectors keep their values: they are widened anew each time, so as not to be in registers
  // as 32 floats.)
  FASTACT_DEVICE void add(const Walk<T, kPlanes>& walk, int first, Words (&vecs)[kVecs]) {
    const int left = walk.mine - first, count = left < kVecs ? left : kVecs;
    if (count <= 0) return;
    if (n == 0) set_shift(vecs, count, C(1));
    if (sizeof(T) == 2) forget_row(vecs);
    n += count;
    count == kVecs ? add_round<true>(vecs, count) : add_round<false>(vecs, count);
    if (sizeof(T) == 2) forget_row(vecs);
    end_round();
  }
  FASTACT_DEVICE void add_wide(const Walk<T, kPlanes>& walk, int i, double scale) {
    if (i >= walk.mine) return;
    const Words vecs[1] = {bit_cast<Words>(walk.read_one(kStripX, i))};
    if (n == 0) set_shift(vecs, 1, C(scale));
    ++n;
    const Wide<T> x = widen_words<T>(vecs[0]);
#pragma unroll
    for (int lane = 0; lane < kSize; ++lane) {
      const double d = double(x.lane[lane]) * scale - double(shift_of(lane));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if ((lane >= split) != bool(j)) continue;
        sum[j] += d;
        squares[j] = madd(d, d, squares[j]);
      }
    }
    end_round();
  }

  FASTACT_DEVICE void move(int j, double to) {
    const Shifted moved = about({double(shift[j]), sum[j], squares[j]}, n * lanes_of(j), to);
    sum[j] = moved.sum, squares[j] = moved.squares;
  }

 private:
  FASTACT_DEVICE C shift_of(int lane) const { return lane < split ? shift[0] : shift[1]; }
  FASTACT_DEVICE void end_round() {
    ++rounds;
    if (rounds < 4 || (rounds & (rounds - 1)) != 0 || (rounds & 0x55555554) == 0) return;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (lanes_of(j) == 0) continue;
      const C mean = madd(C(sum[j]), C(1) / C(n * lanes_of(j)), shift[j]);
      if (mean - mean == 0) move(j, double(mean)), shift[j] = mean;
    }
  }
  // Elements that are not there are 0.
  template <int vectors>
  FASTACT_DEVICE void set_shift(const Words (&vecs)[vectors], int count, C scale) {
    C near[2] = {};
    const C share[2] = {scale / C(count * split), scale / C(count * (kSize - split))};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      const Wide<T> x = widen_words<T>(vecs[u]);
#pragma unroll
      for (int lane = 0; lane < kSize; ++lane) {
        if (lane < split)
          near[0] = madd(x.lane[lane], share[0], near[0]);
        else
          near[1] = madd(x.lane[lane], share[1], near[1]);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) shift[j] = near[j] - near[j] == 0 ? near[j] : C(0);
  }
  template <bool has_all>
  FASTACT_DEVICE void add_round(const Words (&vecs)[kVecs], int count) {
    constexpr int kHalf = kVecs / 2;
#pragma unroll
    for (int lane = 0; lane < kSize; ++lane) {
      const C near = shift_of(lane);
      C d[kVecs], of_squares[kHalf];
#pragma unroll
      for (int u = 0; u < kVecs; ++u)
        d[u] = has_all || u < count ? lane_of(vecs[u], lane) - near : C(0);
#pragma unroll
      for (int u = 0; u < kHalf; ++u) {
        of_squares[u] = madd(d[u], d[u], d[u + kHalf] * d[u + kHalf]);
        d[u] += d[u + kHalf];
      }
#pragma unroll
      for (int half = kHalf / 2; half > 0; half /= 2)
#pragma unroll
        for (int u = 0; u < half; ++u) d[u] += d[u + half], of_squares[u] += of_squares[u + half];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if ((lane >= split) != bool(j)) continue;
        sum[j] += double(d[0]);
        squares[j] += double(of_squares[0]);
      }
    }
  }
  FASTACT_DEVICE static C lane_of(const Words& words, int lane) {
    C wide[kOfWord<T>];
    widen_word<T>(words.word[lane / kOfWord<T>], wide);
    return wide[lane % kOfWord<T>];
  }
};

// Squares, or mean squares in float, that met neither overflow nor an underflow that matters beside
// eps. Of double a NaN is one of the data: no sum of theirs overflows.
template <class T>
FASTACT_DEVICE bool fits_range(double m2, double n, double eps) {
  if (sizeof(T) == sizeof(double)) return m2 != m2 || !leaves_range(m2, n, eps);
  const double mean_square = m2 / n;
  return is_finite(mean_square) && (mean_square >= 0x1p-100 || eps >= 0x1p-40);
}

// The mean and m2 of each channel of a tile, into tile_pairs(). Every thread takes part.
// each_round(add): calls add(first, vecs) for each round of a thread's vectors.
template <class T, Way way, class Rounds>
FASTACT_DEVICE void find_moments(const Walk<T, way>& walk, double eps, const Rounds& each_round) {
  constexpr int kChannels = kUnitChannels<T, way>;
  const auto pairs = tile_pairs();
  const int mine = int(threadIdx.x), first = walk.first;
  const bool has_channel = mine < walk.tile.channels;
  double scale = 1, unit_scale = 1;  // of the thread's channel, and of its unit's channels
#pragma unroll 1
  for (bool wide = false;; wide = true) {
    UnitMoments<T, way> unit(walk);
    if (wide) {
      const int vecs = walk.rounds(1);
      for (int i = 0; i < vecs; ++i) unit.add_wide(walk, i, unit_scale);
    } else {
      each_round([&](int i, Held<T, way>(&vecs)[Walk<T, way>::kVecs]) { unit.add(walk, i, vecs); });
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j)
      if (walk.begins(j)) pairs[first + j] = double(unit.shift[j]);
    __syncthreads();
    const double shift = has_channel ? double(pairs[mine]) : 0.0;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (unit.n > 0 && walk.has(j)) unit.move(j, pairs[first + j]);
    }
    fold_tile(walk, unit.sum, unit.squares);
    bool fits = true;
    if (has_channel) {
      const double n = walk.tile.length, sum = pairs[mine];
      const double rest = madd(-sum / n, sum, double(pairs[kTileChannels + mine]));
      const double m2 = rest < 0 ? 0.0 : rest, up = inverse_power(scale);
      pairs[mine] = (shift + sum / n) * up;
      pairs[kTileChannels + mine] = wide ? square_or_root(m2, up) : m2;
      fits = wide || fits_range<T>(m2, n, eps);
      if (!fits && sizeof(T) == sizeof(double)) scale = m2 < 1 ? kScaleUp : kScaleDown;
    }
    if (!any_of_block(!fits)) return;
    if constexpr (sizeof(T) == sizeof(double)) {
      static_assert(kChannels == 1, "double is gathered");
      if (has_channel) pairs[mine] = scale;
      __syncthreads();
      if (walk.is_there) unit_scale = pairs[first];
      __syncthreads();
    }
  }
}

// The mean and m2 of a group, from those numbers of its parts; all lanes of the group get them.
template <class T>
FASTACT_DEVICE void merge_moments(const Parts& parts, int64_t group, int width, bool idle,
                                  double count, double (&moments)[2]) {
  const double* data = parts.data + (idle ? 0 : 2 * group * parts.each);
  const double shift = finite_or_zero(load(data));
  double sum[2];
  const auto m2_of = [&](double scale) {
    sum_parts(parts, width, idle, sum, [&](int64_t i, double (&to)[2]) {
      const double n = parts.elements(i), m2 = load(data + 2 * i + 1);
      double apart = load(data + 2 * i) - shift;
      if (sizeof(T) == sizeof(double)) apart *= scale;
      to[0] = madd(n, apart, to[0]);
      to[1] += madd(n * apart, apart, sizeof(T) < sizeof(double) ? m2 : scaled_square(m2, scale));
    });
    const double m2 = madd(-sum[0] / count, sum[0], sum[1]);
    return m2 < 0 ? 0.0 : m2;
  };
  moments[1] = m2_of(1);
  moments[0] = shift + sum[0] / count;
  if constexpr (sizeof(T) == sizeof(double)) {
    const bool fits = idle || is_in_range(moments[1]) || moments[1] != moments[1];
    if (!__any_sync(kAllLanes, !fits)) return;  // lanes of other groups take part
    const double scale = fits ? 1.0 : moments[1] < 1 ? kScaleUp : kScaleDown;
    moments[1] = square_or_root(m2_of(scale), inverse_power(scale));
  }
}

// The same in tile_pairs(), for a tile that has whole groups.
template <class T, Way way>
FASTACT_DEVICE void merge_tile_moments(const Walk<T, way>& walk, int size) {
  const auto pairs = tile_pairs();
  const double n = walk.tile.length;
  // As they are; of double, also with each scale.
  constexpr int kScales = sizeof(T) == sizeof(double) ? 3 : 1;
  const double scales[] = {1, kScaleDown, kScaleUp};
  double sum = 0, squares[kScales] = {};
  merge_tile(walk, size, [&](int channel, int first, double (&pair)[2]) {
    const double shift = finite_or_zero(double(pairs[first]));
    const double apart = double(pairs[channel]) - shift, more = pairs[kTileChannels + channel];
    sum += apart;
    pair[0] = shift + sum / size;
    double m2[kScales];
    for (int k = 0; k < kScales; ++k) {
      const double d = apart * scales[k], all = sum * scales[k];
      squares[k] += madd(n * d, d, kScales == 1 ? more : scaled_square(more, scales[k]));
      m2[k] = madd(-all / size * n, all, squares[k]);
      if (m2[k] < 0) m2[k] = 0;
    }
    pair[1] = m2[0];
    if constexpr (kScales > 1) {
      const int k = m2[0] < 1 ? 2 : 1;
      if (!is_in_range(m2[0]) && m2[0] == m2[0])
        pair[1] = square_or_root(m2[k], inverse_power(scales[k]));
    }
  });
}

}  // namespace
FASTACT_END_NAMESPACE
