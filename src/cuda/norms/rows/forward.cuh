// The norms forward, a functor of core/row_kernels.cuh; norms.cu explains the passes.
#pragma once

#include <type_traits>

#include "cuda/core/row_kernels.cuh"
#include "cuda/norms/rows/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

enum ForwardRole { kX, kResidual, kTotal, kY };

// Reads x and the residual of a thread's vectors, as many at a time as registers allow, and writes
// their sum. Beyond the end of the row there are zeros.
template <class T, int vecs, class Rows>
FASTACT_DEVICE void take_sum(const Rows& rows, const RowPart& part, Words (&x)[vecs]) {
  constexpr int kAtOnce = sizeof(T) == 2 ? 1 : 2;
#pragma unroll
  for (int first = 0; first < vecs; first += kAtOnce) {
    Words residual[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      x[first + k] = {};
      if (first + k >= part.count) continue;
      x[first + k] = bit_cast<Words>(read_vec<T>(rows, kX, part, first + k));
      residual[k] = bit_cast<Words>(read_vec<T>(rows, kResidual, part, first + k));
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + k;
      if (i >= part.count) break;
      Wide<T> sum = widen_words<T>(x[i]);
      const Wide<T> more = widen_words<T>(residual[k]);
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) sum.lane[j] += more.lane[j];
      const Vec<T> total = narrow_vec<T>(sum);
      write_vec(rows, kTotal, part, i, total);
      x[i] = bit_cast<Words>(total);
    }
  }
}

// A block's rows that touch and are no whole vectors, together whole vectors: the block copies them
// to shared memory and back, and a thread takes its elements from there.
template <class T>
struct Tile {
  static constexpr int kSize = Vec<T>::kSize;
  decltype(dynamic_shared<T>()) elements;
  decltype(dynamic_shared<Vec<T>>()) vecs;
  int64_t row;            // the first
  int count;              // elements
  int first, left, step;  // of a thread: its first element, how many its row has from there on, and
                          // the way to its next vector

  FASTACT_DEVICE Tile(const NormRows& rows, const RowPart& part)
      : elements(dynamic_shared<T>()),
        vecs(dynamic_shared<Vec<T>>()),
        row(int64_t(blockIdx.x) * rows.teams),
        count(int(smaller(rows.teams, rows.count - row)) * int(rows.length)),
        first(int(part.row - row) * int(rows.length) + part.lane * kSize),
        left(part.idle ? 0 : int(rows.length) - part.lane * kSize),
        step(part.lanes * kSize) {}
  // Calls vec(i) for each vector of a thread and element(i) for elements behind the last.
  template <class OfVec, class OfElement>
  FASTACT_DEVICE void for_each(const OfVec& vec, const OfElement& element) const {
    const int whole = count / kSize;
#pragma unroll 2
    for (int i = int(threadIdx.x); i < whole; i += kThreadsOfNarrow) vec(i);
    const int i = whole * kSize + int(threadIdx.x);
    if (i < count) element(i);
  }
  FASTACT_DEVICE void read(const NormRows& rows, int role) const {
    const T* const from = row_of<T>(rows, role, row);
    for_each([&](int i) { vecs[i] = load_vec(from + i * kSize); },
             [&](int i) { elements[i] = load(from + i); });
    __syncthreads();
  }
  FASTACT_DEVICE void write(const NormRows& rows, int role) const {
    T* const to = row_of<T>(rows, role, row);
    __syncthreads();
    for_each([&](int i) { store_vec(to + i * kSize, Vec<T>(vecs[i])); },
             [&](int i) { store(to + i, T(elements[i])); });
  }
  // The i-th vector of a thread.
  FASTACT_DEVICE Vec<T> take(int i) const {
    Vec<T> vec{};
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      if (i * step + j < left) vec.lane[j] = T(elements[first + i * step + j]);
    return vec;
  }
  FASTACT_DEVICE void put(int i, const Vec<T>& vec) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      if (i * step + j < left) elements[first + i * step + j] = vec.lane[j];
  }
};
template <class T, int vecs>
FASTACT_DEVICE void take_tile(const NormElements& rows, const RowPart& part, Words (&x)[vecs]) {
  const Tile<T> tile(rows, part);
  tile.read(rows, kX);
#pragma unroll
  for (int i = 0; i < vecs; ++i) x[i] = bit_cast<Words>(tile.take(i));
}

// Adds up a group of numbers and their squares in C, each as a tree, and these in double.
template <class C, int n>
FASTACT_DEVICE void add_group(const C (&d)[n], double (&sums)[2]) {
  constexpr int kHalf = n / 2;
  C sum[kHalf], squares[kHalf];
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    sum[j] = d[j] + d[j + kHalf];
    squares[j] = madd(d[j], d[j], d[j + kHalf] * d[j + kHalf]);
  }
#pragma unroll
  for (int m = kHalf / 2; m > 0; m /= 2)
#pragma unroll
    for (int j = 0; j < m; ++j) sum[j] += sum[j + m], squares[j] += squares[j + m];
  sums[0] += double(sum[0]);
  sums[1] += double(squares[0]);
}

// A vector of a row as registers hold it: as it is in memory, or in the compute type.
template <class T>
FASTACT_DEVICE Wide<T> wide_of(const Words& held) {
  return widen_words<T>(held);
}
template <class T>
FASTACT_DEVICE Wide<T> wide_of(const Wide<T>& held) {
  return held;
}
template <class T>
FASTACT_DEVICE void hold(const Wide<T>& wide, Words& held) {
  held = bit_cast<Words>(narrow_vec<T>(wide));
}
template <class T>
FASTACT_DEVICE void hold(const Wide<T>& wide, Wide<T>& held) {
  held = wide;
}
template <class T, int vecs>
FASTACT_DEVICE void forget_row(Wide<T> (&)[vecs]) {}

// The largest magnitude, and the vectors times a scale.
template <class T, int vecs, class Held>
FASTACT_DEVICE Compute<T> peak_of(const Held (&x)[vecs]) {
  using C = Compute<T>;
  C peak = 0;
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    const Wide<T> wide = wide_of<T>(x[i]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const C size = wide.lane[j] < 0 ? -wide.lane[j] : wide.lane[j];
      peak = size > peak ? size : peak;
    }
  }
  return peak;
}
template <class T, int vecs, class Held>
FASTACT_DEVICE void scale_row(Compute<T> scale, Held (&x)[vecs]) {
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    Wide<T> wide = wide_of<T>(x[i]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) wide.lane[j] *= scale;
    hold<T>(wide, x[i]);
  }
}

template <class T, int vecs, class Rows, class Held>
FASTACT_DEVICE ScaledMoments<Compute<T>> find_moments(const Rows& rows, const RowPart& part,
                                                      Held (&x)[vecs], double per_count,
                                                      int& fold_index) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize, kGroup = sizeof(T) == 4 ? 2 : 1;  // vectors
  // The vector whose end is beyond the row's, if the thread has it.
  const int last = part.count - 1;
  const int valid = Rows::kWhole || last < 0 ? kSize : valid_of<T>(rows, part, last);
  const int cut = valid < kSize ? last : -1;
  ScaledMoments<C> moments{C(1), C(0), 0, 0};
#pragma unroll 1
  for (bool again = false;; again = true) {
    if (is_centred(rows.norm)) {
      C sums[2] = {0, 0};  // two chains
#pragma unroll
      for (int i = 0; i < vecs; ++i) {
        const Wide<T> wide = wide_of<T>(x[i]);
#pragma unroll
        for (int j = 0; j < kSize; ++j) sums[j % 2] += wide.lane[j];
      }
      C sum[1] = {sums[0] + sums[1]};
      team_sums(sum, part.lanes, fold_index);
      moments.near = sum[0] * C(per_count);
    }
    forget_row(x);
    double sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < vecs; i += kGroup) {
      if (i >= part.count) continue;
      C d[kGroup * kSize];
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const Wide<T> wide = wide_of<T>(x[i + g]);
        const bool is_there = g == 0 || i + g < part.count;
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          d[g * kSize + j] = is_there ? wide.lane[j] - moments.near : C(0);
        if (!Rows::kWhole && i + g == cut) {
#pragma unroll
          for (int j = 0; j < kSize; ++j)
            if (j >= valid) d[g * kSize + j] = 0;
        }
      }
      add_group(d, sums);
    }
    team_sums(sums, part.lanes, fold_index);
    moments.m2 = sums[1];
    if (is_centred(rows.norm)) {
      moments.low = sums[0] * per_count;
      moments.m2 = madd(-moments.low, sums[0], sums[1]);
      if (moments.m2 < 0) moments.m2 = 0;
    }
    const bool is_small =
        moments.m2 * per_count < Range<C>::kLeast && rows.eps < Range<C>::kLeastEps;
    const bool fits = sums[1] * per_count <= Range<C>::kMost && !is_small;
    forget_row(x);
    // All lanes of a warp take part; a row that needs no scale gives the same numbers again.
    if (again || !__any_sync(kAllLanes, !fits)) break;
    C peak[1] = {peak_of<T>(x)};
    fold_team(peak, part.lanes, fold_index, [](C a, C b) { return a > b ? a : b; });
    if (!fits) moments.scale = scale_of(peak[0]);
    scale_row<T>(moments.scale, x);
    forget_row(x);
  }
  return moments;
}

// 1 / sqrt(x), for float within 2^-38 of it: an estimate of 20 bits, and a step of Newton's.
template <class C>
FASTACT_DEVICE double inverse_root(double x) {
  if constexpr (sizeof(C) == 8) return 1.0 / __builtin_sqrt(x);
  const double near = inverse_root_estimate(x);
  const double better = madd(near * 0.5, madd(-x * near, near, 1.0), near);
  return better > 0 ? better : near;  // Newton's step of 0 or an infinity is a NaN
}

// z before it is rounded to the dtype; only casting rounds on the way.
template <class T>
FASTACT_DEVICE Wide<T> normalise(const Normaliser<Compute<T>>& normaliser, Wide<T> z,
                                 const Wide<T>& weight, const Wide<T>& bias, bool casts = false) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = normaliser(z.lane[j]);
  z = cast_if<T>(casts, z);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    z.lane[j] = affine(z.lane[j], weight.lane[j], bias.lane[j]);
  return cast_if<T>(casts, z);
}

// A thread's part of a row: x, or x f(gate), and the gate where it is read with x and used later.
template <class T, int vecs, class Gate>
struct HeldRow {
  static constexpr bool kHasGate = Gate::kIsFixed && !Gate::kIsFirst;
  static constexpr bool kIsWide = Gate::kIsThere && !kHasGate;
  std::conditional_t<kIsWide, Wide<T>, Words> x[vecs];
  Words gate[kHasGate ? vecs : 1];
};

// Reads x and the gate of a thread's vectors.
template <class T, class Gate, int vecs, class Rows>
FASTACT_DEVICE void take_gated(const Rows& rows, const RowPart& part, HeldRow<T, vecs, Gate>& row) {
  if constexpr (HeldRow<T, vecs, Gate>::kHasGate) {
    take_vecs<T>(rows, kX, part, T{}, row.x);
    take_vecs<T>(rows, kGateRole, part, T{}, row.gate);
  } else {
    Words x[vecs], gate[vecs];
    take_vecs<T>(rows, kX, part, T{}, x);
    const bool is_first = Gate::kIsFixed || rows.gate_first;
    if (is_first) take_vecs<T>(rows, kGateRole, part, T{}, gate);
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      row.x[i] = widen_words<T>(x[i]);
      if (is_first && i < part.count)
        row.x[i] = product_of<T>(Gate::template value<T>(rows, widen_words<T>(gate[i])), row.x[i]);
    }
  }
}

// y of a thread's vectors.
template <class T, class Gate, int vecs, class Rows>
FASTACT_DEVICE void put_row(const Rows& rows, const RowPart& part,
                            const HeldRow<T, vecs, Gate>& row,
                            const Normaliser<Compute<T>>& normaliser) {
  if constexpr (Rows::kQuick) {
    const int64_t group = group_of(rows, part.row);
    T* const y = row_of<T>(rows, kY, part.row);
    const auto quickly = [&](auto weight_given, auto bias_given) {
      const QuickParameters<T, decltype(weight_given)::value> weight(rows, kWeightRole, group);
      const QuickParameters<T, decltype(bias_given)::value> bias(rows, kBiasRole, group);
      int first = int(part.first);
      forget(first);  // else the addresses of all vectors stay in registers through the folds
#pragma unroll
      for (int i = 0; i < vecs; ++i) {
        if (i >= part.count) continue;
        const int q = first + i * part.lanes;
        Wide<T> z = normalise<T>(normaliser, wide_of<T>(row.x[i]), weight(q), bias(q));
        if constexpr (HeldRow<T, vecs, Gate>::kHasGate)
          z = product_of<T>(Gate::template value<T>(rows, widen_words<T>(row.gate[i])), z);
        const Vec<T> vec = narrow_vec<T>(z);
        if constexpr (Rows::kByElement)
          Tile<T>(rows, part).put(i, vec);
        else
          store_vec(y + q * Vec<T>::kSize, vec);
      }
    };
    const bool has_bias = !Gate::kIsFixed && rows.data[kBiasRole];
    const bool are_own = rows.data[kWeightRole] && rows.weight_dtype == kDTypeOf<T> &&
                         (!has_bias || rows.bias_dtype == kDTypeOf<T>);
    if constexpr (Rows::kHasRuns) {
      if (vecs <= 4 && rows.params == 1)  // with more vectors it would spill
        quickly(Way<kOne>(), Way<kOne>());
      else if (are_own)
        quickly(Way<kRuns>(), Way<kRuns>());
      else
        quickly(Way<kAnyRuns>(), Way<kAnyRuns>());
    } else {
      if (are_own && has_bias)
        quickly(Way<kVecs>(), Way<kVecs>());
      else if (are_own)
        quickly(Way<kVecs>(), Way<kNothing>());
      else
        quickly(Way<kAnyVecs>(), Way<kAnyVecs>());
    }
    if constexpr (Rows::kByElement) Tile<T>(rows, part).write(rows, kY);
  } else {
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= part.count) continue;
      const int valid = valid_of<T>(rows, part, i);
      const int64_t q = part.vec(i);
      const Wide<T> weight = weight_of<T>(rows, part.row, q, valid);
      const Wide<T> bias = bias_of<T>(rows, part.row, q, valid);
      Wide<T> z = normalise<T>(normaliser, wide_of<T>(row.x[i]), weight, bias, rows.casts);
      if constexpr (Gate::kIsThere) {
        if (!rows.gate_first) {
          const Vec<T> gate = read<T>(rows, kGateRole, part.row, q, valid);
          z = product_of<T>(Gate::template value<T>(rows, widen_vec(gate)), z);
        }
      } else if (rows.which != k_identity) {
        z = activate<T>(rows.which, rows.parameters, z);
      }
      write_vec(rows, kY, part, i, narrow_vec<T>(z));
    }
  }
}

template <class T, class Rows>
FASTACT_DEVICE void store_statistics(const Rows& rows, int64_t row, double mean, double rstd) {
  using C = Compute<T>;
  if (rows.data[kMeanRole]) store(number_of<C>(rows, kMeanRole, row), C(mean));
  if (rows.data[kRstdRole]) store(number_of<C>(rows, kRstdRole, row), C(rstd));
}

// mean = mean_0 + sum n_c (mean_c - mean_0) / N, m2 = sum m2_c + n_c (mean_c - mean)^2: the moments
// of all chunks at once, from a shift amid them, or from 0 where the first mean is infinite.
template <class T, class Gate = NoGate>
struct NormOf {
  using C = Compute<T>;
  using OfChunks = NormOf;
  using Applied = NormOf;
  using Slow = NormOf<T>;  // merges chunks of any
  static constexpr bool kIsLarge = Gate::kIsFixed, kAddsUp = false, kMayWrite = true;
  static constexpr int kChunkNumbers = 2, kRowNumbers = 2;  // mean and m2, mean and rstd
  static constexpr bool kClusters = !Gate::kIsThere && sizeof(T) < sizeof(double);
  template <int vecs>
  using Row = HeldRow<T, vecs, Gate>;
  template <int n>
  using Made = Normaliser<C>;
  struct Statistics {
    double mean, rstd;
  };

  Slow slow() const { return {}; }

  FASTACT_HD bool writes(const NormRows&) const { return true; }
  template <int vecs, class Rows>
  FASTACT_DEVICE void take(const Rows& rows, const RowPart& part, Row<vecs>& row,
                           bool again) const {
    if constexpr (Gate::kIsThere) {
      take_gated<T, Gate>(rows, part, row);
    } else if constexpr (Rows::kByElement) {
      take_tile<T>(rows, part, row.x);
    } else {
      const bool has_total = rows.data[kResidual];
      if (!has_total || again)
        take_vecs<T>(rows, has_total ? kTotal : kX, part, T{}, row.x);
      else
        take_sum<T>(rows, part, row.x);
    }
  }
  template <int vecs, class Rows>
  FASTACT_DEVICE ScaledMoments<C> find(const Rows& rows, const RowPart& part, Row<vecs>& row,
                                       bool in_chunks, int& fold_index) const {
    const double per_count =
        in_chunks ? 1.0 / double(elements_of(rows, part.chunk)) : rows.per_length;
    return find_moments<T>(rows, part, row.x, per_count, fold_index);
  }
  template <class Rows>
  FASTACT_DEVICE Normaliser<C> finish(const Rows& rows, const RowPart& part,
                                      const ScaledMoments<C>& moments, double (&)[2]) const {
    double rstd;
    const auto normaliser =
        Normaliser<C>::of(moments, rows.norm, rows.per_length, rows.eps, inverse_root<C>, &rstd);
    if (part.lane == 0) store_statistics<T>(rows, part.row, moments.mean(), rstd);
    return normaliser;
  }
  template <int vecs, class Rows>
  FASTACT_DEVICE void put(const Rows& rows, const RowPart& part, const Row<vecs>& row,
                          const Normaliser<C>& normaliser) const {
    put_row<T, Gate>(rows, part, row, normaliser);
  }

  template <class Rows>
  static FASTACT_DEVICE int64_t elements_of(const Rows& rows, int64_t chunk) {
    const int64_t size = rows.chunks.size * Vec<T>::kSize;
    return smaller(size, rows.length - chunk * size);
  }
  template <class Put>
  FASTACT_DEVICE void store_chunk(const ScaledMoments<C>& moments, int, const Put& put) const {
    put(0, moments.mean());
    put(1, square_or_root(moments.m2, moments.inverse_scale()));
  }
  // from(i): the mean of chunk i / 2, or its m2.
  template <class Rows, class From>
  FASTACT_DEVICE Statistics merge(const Rows& rows, const From& from, int lane, int width) const {
    const double shift = finite_or_zero(from(0));
    double sum = 0;
    for (int64_t c = lane; c < rows.chunks.count; c += kWarp)
      sum += double(elements_of(rows, c)) * (from(2 * c) - shift);
    const double mean = shift + warp_sum(sum, width) * rows.per_length;
    const auto squares_of = [&](double scale) {
      double squares = 0;
      for (int64_t c = lane; c < rows.chunks.count; c += kWarp) {
        const double apart = (from(2 * c) - mean) * scale;
        const double m2 = scaled_square(from(2 * c + 1), scale);
        squares += madd(double(elements_of(rows, c)), apart * apart, m2);
      }
      return double(warp_sum(squares, width));
    };
    const double squares = squares_of(1);
    if constexpr (sizeof(T) < sizeof(double))
      return {mean, inverse_root<C>(with_row_norm(rows.norm, [&](auto norm) {
                return norm.variance_by(squares, rows.per_length, rows.eps);
              }))};
    const double n = double(rows.length);
    if (!leaves_range(squares, n, rows.eps))
      return {mean, with_row_norm(rows.norm, [&](auto norm) {
                return rstd_of<decltype(norm)>(squares, n, rows.eps);
              })};
    const double scale = squares < 1 ? kScaleUp : kScaleDown;
    return {mean, rstd_of_scaled(rows.norm, squares_of(scale), n, rows.eps, inverse_power(scale))};
  }
  template <class Put>
  FASTACT_DEVICE void numbers_of(const Statistics& merged, const Put& put) const {
    put(0, merged.mean);
    put(1, merged.rstd);
  }
  template <class Rows>
  FASTACT_DEVICE void store_merged(const Rows& rows, int64_t row, const Statistics& merged) const {
    store_statistics<T>(rows, row, merged.mean, merged.rstd);
  }
  template <class From>
  FASTACT_DEVICE Normaliser<C> made_of(const From& from) const {
    return Normaliser<C>::of(from(0), from(1));
  }
  // Rows whose squares leave the range of C were scaled where they are held.
  FASTACT_DEVICE bool is_as_read(const ScaledMoments<C>& moments) const {
    return moments.scale == 1;
  }
  // With a residual, that too is read and the total written.
  bool reads_once(const NormRows& rows) const { return !rows.data[kResidual]; }
  template <class Rows>
  FASTACT_DEVICE void bring_near(const Rows& rows, int64_t row) const {
    bring_all_near(row_of<T>(rows, kX, row), unsigned(rows.length * int64_t(sizeof(T))));
  }
  template <class Rows>
  FASTACT_DEVICE void finish_merged(const Rows& rows, int64_t row, const Statistics& merged,
                                    double* to, double (&)[2]) const {
    numbers_of(merged, [&](int k, double number) { store(to + k, number); });
    store_merged(rows, row, merged);
  }
  template <int vecs, class Rows>
  FASTACT_DEVICE Normaliser<C> resume(const Rows&, const RowPart& part, const double* statistics,
                                      const Row<vecs>&) const {
    return made_of([&](int k) { return load(statistics + 2 * part.row + k); });
  }
};

}  // namespace
FASTACT_END_NAMESPACE
