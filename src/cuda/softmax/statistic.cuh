// The statistic of a softmax: of each row the largest z, m, and the sum of exp(z - m) over the
// others.
//
// One pass finds m and caches z, a second adds exp(z - m) from the cache. With m known no sum is
// ever rescaled: one that is rescaled whenever a larger element comes loses half an ULP each time,
// which a rising row does at every element. Elements equal to m are counted and not added, so that
// log(sum) = log1p(rest + count - 1) has all its bits where the others are tiny. d = z - m is
// carried in two numbers of the compute type: rounded, a difference of 100 is off by 2^-18, and
// its exponential by 64 ULP. (16-bit results hide that.)
//
// Terms are scaled by 2^40 (float) so that none is subnormal before it is divided by the sum.
// What one vector gives is added in the compute type, all vectors in double; of float64 with what
// their additions lose.
//
// m is NaN where an element is: then all that follows is, as where m is infinity, lse aside. Where
// m is -infinity no element takes part, and 0 stands for m: all terms are 0. Such a row gives 0 and
// -infinity with a mask, NaN without.
#pragma once

#include "common/math/elementary.h"
#include "common/reductions/moments.h"
#include "cuda/softmax/row_access.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class C>
FASTACT_DEVICE C infinity() {
  return C(__builtin_inf());
}

// The larger of two; NaN where one is.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FASTACT_DEVICE float larger(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#else
FASTACT_DEVICE float larger(float a, float b) { return b > a || b != b ? b : a; }
#endif
FASTACT_DEVICE double larger(double a, double b) { return b > a || b != b ? b : a; }

// (z - m) up as d + low; low is 0 where d is not finite.
template <class C>
struct Difference {
  C d, low;
};
template <class T>
FASTACT_DEVICE Difference<Compute<T>> difference(Compute<T> z, Compute<T> m,
                                                 Compute<T> up = Compute<T>(1)) {
  using C = Compute<T>;
  const C d = z - m, raised = d * up;
  if constexpr (kApproximate<T>) return {raised, C(0)};
  const C part = d - z;  // Knuth's two-sum
  const C low = (z - (d - part)) - (m + part);
  return {raised, raised - raised == 0 ? low * up : C(0)};
}

// exp(z - m) 2^Tail::kScale; 0 where it has long been.
template <class T>
FASTACT_DEVICE Compute<T> term_of(const Difference<Compute<T>>& at) {
  using C = Compute<T>;
  constexpr int kScale = Tail<C>::kScale;
  if constexpr (kApproximate<T>) return exp_approximate<kScale>(at.d);
  const C term = exp_split<kScale>(at.d, at.low).value();
  return at.d < Tail<C>::kLow ? C(0) : term;
}

// Whether the cache holds vectors in the compute type: z, and then their terms.
template <class T, bool masked>
constexpr bool kCachesWide = masked || sizeof(T) >= 4;
template <class T, bool masked>
constexpr int kCacheSlots = kCachesWide<T, masked> ? kPlanes<T> : 1;

// The cached z of a thread.
template <class T, bool masked, class Rows, class Shared>
struct Scores {
  static constexpr int kSlots = kCacheSlots<T, masked>;
  RowCache<T, Shared> cache;
  const Rows& rows;

  FASTACT_DEVICE int slot(int i) const { return i * kSlots; }
  FASTACT_DEVICE bool has(int i) const { return i < rows.resident; }
  FASTACT_DEVICE void put(int i, const Vec<T>& x, const Wide<T>& z) const {
    if (!has(i)) return;
    if constexpr (kCachesWide<T, masked>)
      cache.put_wide(slot(i), int(threadIdx.x), z);
    else
      cache.put(slot(i), int(threadIdx.x), x);
  }
  FASTACT_DEVICE void put_terms(int i, const Wide<T>& terms) const {
    if constexpr (kCachesWide<T, masked>)
      if (has(i)) cache.put_wide(slot(i), int(threadIdx.x), terms);
  }
  FASTACT_DEVICE Wide<T> wide(int i) const { return cache.wide(slot(i), int(threadIdx.x)); }
  FASTACT_DEVICE Wide<T> z(const Part& part, int i, int valid) const {
    if (has(i)) {
      if constexpr (kCachesWide<T, masked>) return wide(i);
      return scores_of<T, masked>(rows, part, i, valid, cache.vec(slot(i), int(threadIdx.x)));
    }
    return scores_of<T, masked>(rows, part, i, valid, read_vec<T>(rows, kX, part, i, valid));
  }
};

// Sums over a row, or over each of neighbouring rows. rest and count: of the terms below m, and of
// the elements equal to it. Of cross_entropy: mass is the sum of the shares a of the classes, apart
// that of a (m - z).
template <int n>
struct Peak {
  double max[n], rest[n], count[n], mass[n], apart[n];
};

template <class T, class Rows>
FASTACT_DEVICE Compute<T> class_weight(const Rows& rows, int64_t row, int64_t element) {
  if (!rows.data[kWeight]) return Compute<T>(1);
  return load_number<T>(element_address(rows, kWeight, row, element), rows.weight_dtype);
}

// The shares of the classes in the loss of a row, beside that of a target's index.
template <class T, class Rows>
FASTACT_DEVICE Wide<T> shares_of(const Rows& rows, const Part& part, int i, int valid) {
  using C = Compute<T>;
  Wide<T> share{};
  if (rows.data[kDy]) share = widen_vec(read_vec<T>(rows, kDy, part, i, valid));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    if (j >= valid) {
      share.lane[j] = 0;
      continue;
    }
    share.lane[j] = madd(C(rows.keep), share.lane[j], C(rows.smooth));
    if (rows.data[kWeight])
      share.lane[j] *=
          class_weight<T>(rows, row_at<Rows>(part, j), element_at<T, Rows>(part, i, j));
  }
  return share;
}

// A vector's lanes added to the sum of its row, or each to that of its own.
template <class T, int n>
FASTACT_DEVICE void add_lanes(const Wide<T>& value, double (&sum)[n]) {
  if constexpr (n > 1) {
#pragma unroll
    for (int j = 0; j < n; ++j) sum[j] += double(value.lane[j]);
  } else {
    Compute<T> two[2] = {};
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) two[j % 2] += value.lane[j];
    sum[0] += double(two[0] + two[1]);
  }
}

// Passes 1 and 2 over the part of a thread, folded over the lanes.
template <class T, bool masked, bool has_shares, class Rows, class Scores, int n>
FASTACT_DEVICE void find_peak(const Rows& rows, const Part& part, const Scores& scores,
                              int& fold_index, Peak<n>* peak) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  C most[n];
#pragma unroll
  for (int s = 0; s < n; ++s) most[s] = -infinity<C>();
  for_vecs<T>(rows, kX, part, [&](int i, int valid, const Vec<T>& x) {
    const Wide<T> z = scores_of<T, masked>(rows, part, i, valid, x);
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      most[row_in_vec<Rows>(j)] = larger(most[row_in_vec<Rows>(j)], z.lane[j]);
    scores.put(i, x, z);
  });
  *peak = {};
#pragma unroll
  for (int s = 0; s < n; ++s) peak->max[s] = double(most[s]);
  fold(rows, peak->max, fold_index, [](double a, double b) { return larger(a, b); });
  C m[n];
#pragma unroll
  for (int s = 0; s < n; ++s) m[s] = peak->max[s] == -infinity<double>() ? C(0) : C(peak->max[s]);
  int count[n] = {};
  double low[n] = {};
#pragma unroll 1
  for (int i = 0; i < part.count; ++i) {
    const int valid = lanes_there<T>(rows, part, i);
    const Wide<T> z = scores.z(part, i, valid);
    Wide<T> terms, rest;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int s = row_in_vec<Rows>(j);
      terms.lane[j] = term_of<T>(difference<T>(z.lane[j], m[s], C(rows.up)));
      const bool is_top = z.lane[j] == m[s];
      rest.lane[j] = is_top ? C(0) : terms.lane[j];
      count[s] += is_top;
    }
    if constexpr (sizeof(T) == 8) {
      double sum[n] = {};
      add_lanes<T>(rest, sum);
#pragma unroll
      for (int s = 0; s < n; ++s) peak->rest[s] = add_exactly(peak->rest[s], sum[s], &low[s]);
    } else {
      add_lanes<T>(rest, peak->rest);
    }
    if (!has_shares && rows.kind == kSoftmax) scores.put_terms(i, terms);
    if constexpr (has_shares) {
      const Wide<T> share = shares_of<T>(rows, part, i, valid);
      Wide<T> apart;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C term = share.lane[j] * (m[row_in_vec<Rows>(j)] - z.lane[j]);
        apart.lane[j] = share.lane[j] == 0 ? C(0) : term;  // past the end, too
      }
      add_lanes<T>(share, peak->mass);
      add_lanes<T>(apart, peak->apart);
    }
  }
#pragma unroll
  for (int s = 0; s < n; ++s) {
    peak->count[s] = double(count[s]);
    peak->rest[s] = (peak->rest[s] + low[s]) * double(Tail<C>::kDown);
  }
  fold_sums(rows, peak->rest, fold_index);
  fold_sums(rows, peak->count, fold_index);
  if constexpr (has_shares) {
    fold_sums(rows, peak->mass, fold_index);
    fold_sums(rows, peak->apart, fold_index);
  }
}

// log(1 + rest), rest >= 0: of 2^k (1 + u) as k log(2) + log1p(u).
template <class C>
FASTACT_DEVICE C log_of_sum(double rest) {
  if (rest <= 1) return log1p_of_unit(C(rest));
  const double sum = 1 + rest;
  const int k = int(bit_cast<uint64_t>(sum) >> 52) - 1023;
  const double down = bit_cast<double>(uint64_t(1023 - k) << 52);
  const C u = C(madd(sum, down, -1.0));
  const C high = madd(C(k), ExpTraits<C>::kLn2Low, log1p_of_unit(u));
  return madd(C(k), ExpTraits<C>::kLn2High, high);
}

// What follows from a row's sums: y = term inverse, or z - m - log.
template <class C>
struct Level {
  C m, inverse, log, lse;
};
template <class C>
FASTACT_DEVICE Level<C> level_of(double max, double rest, double count, bool masked, double up) {
  if (max == -infinity<double>()) {
    const C nothing = masked ? C(0) : C(__builtin_nan(""));
    return {C(0), nothing, nothing, -infinity<C>()};
  }
  if (max == infinity<double>())
    return {C(max), C(__builtin_nan("")), C(__builtin_nan("")), C(max)};
  const C m = C(max), log = log_of_sum<C>(rest + (count - 1));
  const C inverse = C(double(Tail<C>::kDown) / (rest + count));
  return {m, inverse, log, m * C(up) + log};
}

// The level of a row from the peaks of its chunks, of which a lane of a warp has every 32nd, given
// to all lanes. peaks: `fields` numbers each, of which the first three are max, rest and count.
// mass and apart are added up too where they are there, and nothing was put down.
template <int fields>
FASTACT_DEVICE Peak<1> merge_peaks(const double* peaks, int64_t count, double up) {
  const int lane = int(threadIdx.x) % kWarp;
  Peak<1> whole{};
  double max = -infinity<double>();
  for (int64_t c = lane; c < count; c += kWarp) max = larger(max, load(peaks + c * fields));
  max = warp_fold(max, [](double a, double b) { return larger(a, b); });
  whole.max[0] = max;
  for (int64_t c = lane; c < count; c += kWarp) {
    const double* peak = peaks + c * fields;
    const double of_chunk = load(peak), rest = load(peak + 1), ones = load(peak + 2);
    const bool is_top = of_chunk == max;
    if (is_top) {
      whole.rest[0] += rest, whole.count[0] += ones;
    } else if (of_chunk > -infinity<double>() || max != max) {
      // A NaN stays one.
      const double apart = no_less((of_chunk - max) * up, kExpZero<double>);
      whole.rest[0] += (rest + ones) * exp_scaled<0>(apart).value();
    }
    if constexpr (fields > 3) {
      const double mass = load(peak + 3);
      // Where a chunk has nothing, 0 stands for its m.
      const double from = of_chunk == -infinity<double>() ? 0.0 : of_chunk;
      const double to = max == -infinity<double>() ? 0.0 : max;
      whole.mass[0] += mass;
      whole.apart[0] += mass == 0 ? load(peak + 4) : load(peak + 4) + mass * (to - from);
    }
  }
  whole.rest[0] = warp_sum(whole.rest[0]);
  whole.count[0] = warp_sum(whole.count[0]);
  if constexpr (fields > 3) {
    whole.mass[0] = warp_sum(whole.mass[0]);
    whole.apart[0] = warp_sum(whole.apart[0]);
  }
  return whole;
}

// A number of a row, of x's dtype or of the compute type.
template <class T, class Rows>
FASTACT_DEVICE void put_number(const Rows& rows, int role, int64_t row, int dtype, double value) {
  if (rows.data[role]) put_parameter<T>(number_address(rows, role, row), dtype, value, false);
}

}  // namespace
FASTACT_END_NAMESPACE
