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

// The sums of a thread's unit. Where lanes of a vector belong to several channels, trees are of a
// lane of all vectors of a round; else of eight elements, or as many as a round has.
template <class T, Way way>
struct UnitMoments {
  static constexpr int kSize = Vec<T>::kSize, kChannels = kUnitChannels<T, way>;
  static constexpr int kVecs = Walk<T, way>::kVecs;
  using C = Compute<T>;
  C shift[kChannels] = {};
  double sum[kChannels] = {}, squares[kChannels] = {};
  int n = 0, rounds = 0;  // elements of each channel

  // Adds the vectors from the first-th on.
  FASTACT_DEVICE void add(const Walk<T, way>& walk, int first, Held<T, way> (&vecs)[kVecs]) {
    int valid[kVecs], count = 0;
#pragma unroll
    for (int u = 0; u < kVecs; ++u) count += valid[u] = walk.elements(first + u);
    if (count == 0) return;
    if (n == 0) set_shift(vecs, count, C(1));
    n += count;
    walk.has_all(first, kVecs) ? add_round<true>(vecs, valid) : add_round<false>(vecs, valid);
    end_round();
  }
  // The i-th vector, element by element in double, times a scale.
  FASTACT_DEVICE void add_wide(const Walk<T, way>& walk, int i, double scale) {
    const int valid = walk.elements(i);
    if (valid == 0) return;
    const Held<T, way> vecs[1] = {bit_cast<Held<T, way>>(walk.read_one(kStripX, i))};
    if (n == 0) set_shift(vecs, valid, C(scale));
    n += valid;
    const Wide<T> x = widen_held<T>(vecs[0]);
#pragma unroll
    for (int lane = 0; lane < kSize; ++lane) {
      if (way == kSingles && lane >= valid) continue;
      const int j = channel_of(lane);
      const double d = double(x.lane[lane]) * scale - double(shift[j]);
      sum[j] += d;
      squares[j] = madd(d, d, squares[j]);
    }
    end_round();
  }

  FASTACT_DEVICE void move(int j, double to) {
    const Shifted moved = about({double(shift[j]), sum[j], squares[j]}, n, to);
    sum[j] = moved.sum, squares[j] = moved.squares;
  }

 private:
  FASTACT_DEVICE static constexpr int channel_of(int lane) { return way == kColumns ? lane : 0; }
  // After a power of four.
  FASTACT_DEVICE void end_round() {
    ++rounds;
    if (rounds < 4 || (rounds & (rounds - 1)) != 0 || (rounds & 0x55555554) == 0) return;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const C mean = madd(C(sum[j]), C(1) / C(n), shift[j]);
      if (mean - mean == 0) move(j, double(mean)), shift[j] = mean;
    }
  }
  // Elements that are not there are 0.
  template <int vectors>
  FASTACT_DEVICE void set_shift(const Held<T, way> (&vecs)[vectors], int count, C scale) {
    const C share = scale / C(count);
    C near[kChannels] = {};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      const Wide<T> x = widen_held<T>(vecs[u]);
#pragma unroll
      for (int lane = 0; lane < kSize; ++lane) {
        C& of_channel = near[channel_of(lane)];
        of_channel = madd(x.lane[lane], share, of_channel);
      }
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j) shift[j] = near[j] - near[j] == 0 ? near[j] : C(0);
  }
  // Adds distances and their squares, as trees, to the sums of a lane's channel.
  template <int size>
  FASTACT_DEVICE void add_tree(int lane, C (&d)[size]) {
    constexpr int kHalf = size / 2;
    C of_squares[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      of_squares[i] = madd(d[i], d[i], d[i + kHalf] * d[i + kHalf]);
      d[i] += d[i + kHalf];
    }
#pragma unroll
    for (int half = kHalf / 2; half > 0; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i) d[i] += d[i + half], of_squares[i] += of_squares[i + half];
    sum[channel_of(lane)] += double(d[0]);
    squares[channel_of(lane)] += double(of_squares[0]);
  }
  template <bool has_all>
  FASTACT_DEVICE void add_round(const Held<T, way> (&vecs)[kVecs], const int (&valid)[kVecs]) {
    if constexpr (way == kColumns) {
#pragma unroll
      for (int lane = 0; lane < kSize; ++lane) {
        C d[kVecs];
#pragma unroll
        for (int u = 0; u < kVecs; ++u)
          d[u] = has_all || valid[u] > 0 ? widen_held<T>(vecs[u]).lane[lane] - shift[lane] : C(0);
        add_tree(lane, d);
      }
    } else {
      constexpr int kTree = 8, kTrees = kVecs * kSize / kTree;
#pragma unroll
      for (int t = 0; t < kTrees; ++t) {
        C d[kTree];
#pragma unroll
        for (int at = 0; at < kTree; ++at) {
          const int u = (t * kTree + at) / kSize, j = (t * kTree + at) % kSize;
          const bool counts = has_all || (way == kSingles ? j < valid[u] : valid[u] > 0);
          d[at] = counts ? widen_held<T>(vecs[u]).lane[j] - shift[0] : C(0);
        }
        add_tree(0, d);
      }
    }
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
    UnitMoments<T, way> unit;
    if (wide) {
      const int vecs = walk.rounds(1);
      for (int i = 0; i < vecs; ++i) unit.add_wide(walk, i, unit_scale);
    } else {
      each_round([&](int i, Held<T, way>(&vecs)[Walk<T, way>::kVecs]) { unit.add(walk, i, vecs); });
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j)
      if (walk.begins()) pairs[first + j] = double(unit.shift[j]);
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

// Merges moments in tile_pairs(), for a tile that has whole groups.
template <class T, Way way>
FASTACT_DEVICE void merge_tile_moments(const Walk<T, way>& walk, int size) {
  const auto pairs = tile_pairs();
  const double n = walk.tile.length;
  // Squares as they are; of double, also with each scale.
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
