// The kernels of softmax/kernels.h. Each is a loop that the compiler vectorises, over the elements
// of a row or, in a tile, over the rows; sums are a second loop over a block that lies in the
// first-level cache, for their lanes are fixed.
#include "cpu/softmax/kernels.h"

#include "common/softmax/softmax.h"
#include "cpu/simd/accumulators.h"
#include "cpu/simd/map_span.h"
#include "cpu/simd/mixed.h"
#include "cpu/simd/nontemporal.h"

FASTACT_BEGIN_NAMESPACE
namespace {

static_assert(kVectors * kVector == kSoftmaxLanes);
constexpr double kInfinity = __builtin_inf();

template <class T>
FASTACT_HD const T* in(const char* at) {
  return reinterpret_cast<const T*>(at);
}
template <class T>
FASTACT_HD T* out(char* at) {
  return reinterpret_cast<T*>(at);
}

constexpr NextChunk kNoNext = {};

// Lines of the first array go to the first-level cache (locality 3), lines of the second array to
// the second-level one (2). Their number is a constant, although it is twice what 16-bit elements
// need: a loop over it takes as long as some of the exponentials beside it.
template <size_t bytes, int locality>
FASTACT_HD void prefetch_lines(const char* at) {
#pragma GCC unroll 8
  for (size_t byte = 0; byte < bytes; byte += kCacheLine)
    __builtin_prefetch(at + byte, 0, locality);
}

// One row of LateProducts, in progress: `begin` stores up to the first whole cache line, `lines` up
// to so many lines past the caches, `end` all that is left.
template <class T>
struct Product {
  static constexpr int64_t kLine = int64_t(kCacheLine / sizeof(T));
  const T* from;
  T* to;
  int64_t n;
  T factor;
  int64_t done;

  FASTACT_HD void store_up_to(int64_t end) {
    for (; done < end; ++done) to[done] = from[done] * factor;
  }
  FASTACT_HD void begin() {
    const int64_t head = int64_t(-reinterpret_cast<uintptr_t>(to) % kCacheLine / sizeof(T));
    store_up_to(head < n ? head : n);
  }
  template <int most>
  FASTACT_HD void lines() {
#pragma GCC unroll 8
    for (int line = 0; line < most; ++line) {
      if (done + kLine > n) return;
      alignas(kCacheLine) T values[kLine];
#pragma omp simd
      for (int k = 0; k < kLine; ++k) values[k] = from[done + k] * factor;
      stream_line(reinterpret_cast<const char*>(values), reinterpret_cast<char*>(to + done));
      done += kLine;
    }
  }
  FASTACT_HD void end() {
    while (done + kLine <= n) lines<1>();
    store_up_to(n);
  }
};
template <class T>
constexpr Product<T> kNoProduct = {};

template <class T>
FASTACT_HD Product<T> product_of(const LateProducts& products, int64_t j) {
  if (j >= products.rows) return kNoProduct<T>;
  return {in<T>(products.exponentials.at + j * products.exponentials.stride),
          out<T>(products.y.at + j * products.y.stride), products.n, T(products.factors[j]), 0};
}

template <class T>
void store_row(Product<T> product) {
  product.begin();
  product.end();
}

template <class T>
void store(const LateProducts& products) {
  for (int64_t j = 0; j < products.rows; ++j) store_row(product_of<T>(products, j));
}

// y[i] = f(i), of elements that are y or disjoint from it. The incomplete last vector is computed
// first, by one that overlaps the vectors before it, and written last.
//
// y is __restrict although it may be what f reads: an element is read before it is written, and
// nobody else reads it. Otherwise a store holds the loads of the next vector back, and the steps of
// several can't be mixed (FASTACT_MIXED).
//
// beside: a product that is stored meanwhile, a line for each vector; disjoint from y and from what
// f reads. Of next.at[0] the first one of `parts` is prefetched; the rest by whoever adds up y.
template <int parts = 1, class T, class F>
FASTACT_HD void each(T* y, int64_t n, F f, const NextChunk& next = kNoNext,
                     Product<T> beside = kNoProduct<T>) {
  constexpr int kStep = int(kCacheLine / sizeof(T)), kMixed = 4 * kStep;
  const auto over = [&](int64_t first, auto count, T* __restrict to) FASTACT_INLINED {
#pragma omp simd
    for (int k = 0; k < count; ++k) to[k] = f(first + k);
  };
  constexpr std::integral_constant<int, kStep> step;
  constexpr std::integral_constant<int, kMixed> mixed;
  beside.begin();
  if (n < kStep) {
    over(0, int(n), y);
    return beside.end();
  }
  const int64_t whole = n / kStep * kStep;
  T last[kStep];
  if (whole < n) over(n - kStep, step, last);
  const char *const first_next = next.at[0], *const second_next = next.at[1];
  int64_t i = 0;
  for (; i + kMixed <= whole; i += kMixed) {
    if (first_next)
      prefetch_lines<kMixed * sizeof(T) / parts, 3>(first_next + i * next.item / parts);
    if (second_next) prefetch_lines<kMixed * sizeof(T), 2>(second_next + i * next.item);
    over(i, mixed, y + i);
    beside.template lines<kMixed / kStep>();
  }
  for (; i < whole; i += kStep) over(i, step, y + i);
  if (whole < n) memcpy(y + n - kStep, last, sizeof last);
  beside.end();
}

// The elements of a tile of T, in the compute type: element i of each of its rows, where they lie
// or converted.
template <class T>
struct TileIn {
  const RowsIn rows;
  const int64_t width;
  Wide<T, kTileWidth> wide;
  TileIn(const RowsIn& r, int64_t w) : rows(r), width(w) {}
  FASTACT_HD const Compute<T>* read(int64_t i) {
    return wide.read(in<T>(rows.at + i * rows.stride), width);
  }
};
template <class T>
struct TileOut {
  const RowsOut rows;
  const int64_t width;
  Wide<T, kTileWidth> wide;
  TileOut(const RowsOut& r, int64_t w) : rows(r), width(w) {}
  FASTACT_HD Compute<T>* at(int64_t i) { return wide.to(out<T>(rows.at + i * rows.stride)); }
  FASTACT_HD void finish(int64_t i) { wide.finish(out<T>(rows.at + i * rows.stride), width); }
};

// y[i][j] = f(x[i][j], j), x of T and y of U.
template <class T, class U, class F>
FASTACT_HD void map_tile(RowsIn x, int64_t n, int64_t width, RowsOut y, F f) {
  TileIn<T> from(x, width);
  TileOut<U> to(y, width);
  for (int64_t i = 0; i < n; ++i) {
    const Compute<T>* const of = from.read(i);
    Compute<U>* const made = to.at(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) made[j] = f(of[j], j);
    to.finish(i);
  }
}

template <class T, int mask_kind>
void prepare(const char* x_, const char* mask, double scale_, char* z, int64_t n) {
  const T* x = in<T>(x_);
  const T scale = T(scale_);
  if constexpr (mask_kind == 1) {
    const uint8_t* takes_part = in<uint8_t>(mask);
    each(out<T>(z), n, [=](int64_t i) FASTACT_INLINED {
      const T value = scale * x[i];
      return takes_part[i] ? value : T(-kInfinity);
    });
  } else {
    const T* added = in<T>(mask);
    each(out<T>(z), n, [=](int64_t i) FASTACT_INLINED {
      if constexpr (mask_kind == 0) return scale * x[i];
      const T value = madd(scale, x[i], added[i]);
      return added[i] == T(-kInfinity) ? T(-kInfinity) : value;
    });
  }
}

// The largest element, and -inf if there is none but NaNs. Vectors that overlap cover an incomplete
// last one.
template <class T>
FASTACT_HD T largest(const T* z, int64_t n) {
  constexpr int kWidth = 64, kShort = 16;
  if (n < kShort) {
    T max = T(-kInfinity);
    for (int64_t i = 0; i < n; ++i) max = z[i] > max ? z[i] : max;
    return max;
  }
  alignas(64) T lanes[kWidth];
  each(lanes, kShort, [](int64_t) FASTACT_INLINED { return T(-kInfinity); });
  int64_t i = 0;
  if (n >= kWidth) {
    each(lanes, kWidth, [](int64_t) FASTACT_INLINED { return T(-kInfinity); });
    for (; i + kWidth <= n; i += kWidth)
#pragma omp simd
      for (int k = 0; k < kWidth; ++k) lanes[k] = z[i + k] > lanes[k] ? z[i + k] : lanes[k];
#pragma GCC unroll 2
    for (int half = kWidth / 2; half >= kShort; half /= 2)
#pragma omp simd
      for (int k = 0; k < half; ++k)
        lanes[k] = lanes[half + k] > lanes[k] ? lanes[half + k] : lanes[k];
  }
  for (; i < n; i += kShort) {
    const T* at = z + (i + kShort <= n ? i : n - kShort);
#pragma omp simd
    for (int k = 0; k < kShort; ++k) lanes[k] = at[k] > lanes[k] ? at[k] : lanes[k];
  }
#pragma GCC unroll 4
  for (int half = kShort / 2; half > 0; half /= 2)
#pragma omp simd
    for (int k = 0; k < half; ++k)
      lanes[k] = lanes[half + k] > lanes[k] ? lanes[half + k] : lanes[k];
  return lanes[0];
}

template <class T>
FASTACT_HD bool has_nan(const T* z, int64_t n) {
  bool found = false;
  for (int64_t i = 0; i < n; ++i) found |= z[i] != z[i];
  return found;
}

// The sum of n terms, on fixed lanes. half: the second half of as many elements that are read next,
// of `item` bytes, prefetched meanwhile (each<2> took the first); null: nothing.
template <class T, class Load>
FASTACT_HD double sum_of(const T* a, int64_t n, Load load_terms, const char* half = nullptr,
                         int64_t item = 0) {
  Vector lanes[kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) lanes[k] = Vector{};
  int64_t i = 0;
  for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes) {
    if (half) prefetch_lines<kSoftmaxLanes * sizeof(T) / 2, 3>(half + i * item / 2);
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) lanes[k] = load_terms(a, i + k * kVector, lanes[k]);
  }
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k, i += kVector)
    if (i + kVector <= n)
      lanes[k] = load_terms(a, i, lanes[k]);
    else if (i < n)
      lanes[k] = load_terms.some(a, i, n - i, lanes[k]);
  return fold_vectors(lanes);
}

template <class T>
struct Terms {
  FASTACT_HD Vector operator()(const T* a, int64_t i, Vector lane) const {
    return lane + load(a + i);
  }
  FASTACT_HD Vector some(const T* a, int64_t i, int64_t n, Vector lane) const {
    return lane + load_some(a + i, n);
  }
};

template <class T>
struct Products {
  const T* b;
  FASTACT_HD Vector operator()(const T* a, int64_t i, Vector lane) const {
    return madd(load(a + i), load(b + i), lane);
  }
  FASTACT_HD Vector some(const T* a, int64_t i, int64_t n, Vector lane) const {
    return madd(load_some(a + i, n, Vector{}), load_some(b + i, n, Vector{}), lane);
  }
};

// How many elements are the maximum. Of the last vector, which overlaps the one before, only those
// that are over count.
template <class T>
FASTACT_HD T ones_of(const T* z, int64_t n, T max) {
  constexpr int kStep = int(kCacheLine / sizeof(T));
  T ones = 0;
  if (n < kStep) {
    for (int64_t i = 0; i < n; ++i) ones += z[i] == max ? T(1) : T(0);
    return ones;
  }
  T lanes[kStep] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
#pragma omp simd
    for (int k = 0; k < kStep; ++k) lanes[k] += z[i + k] == max ? T(1) : T(0);
  const T* const last = z + n - kStep;
  const int counted = int(i + kStep - n);
#pragma omp simd
  for (int k = 0; k < kStep; ++k) lanes[k] += k >= counted && last[k] == max ? T(1) : T(0);
#pragma GCC unroll 4
  for (int half = kStep / 2; half > 0; half /= 2)
#pragma omp simd
    for (int k = 0; k < half; ++k) lanes[k] += lanes[half + k];
  return lanes[0];
}

// One row, whose maximum is known: infinite, or far.
template <class T, bool apart>
void far_block(const T* z, int64_t n, T* e, TileStats* stats, int64_t j) {
  const T max = T(stats->max[j]);
  if (!(magnitude(max) < T(kInfinity))) {
    stats->rest[j] = has_nan(z, n) ? __builtin_nan("") : 0.0;
    stats->ones[j] = apart;
    each(e, n, [=](int64_t) FASTACT_INLINED { return T(0); });
    return;
  }
  stats->ones[j] = apart ? ones_of(z, n, max) : T(0);
  each(e, n, [=](int64_t i) FASTACT_INLINED {
    const T value = exp_far(z[i], max);
    return apart && z[i] == max ? T(0) : value;
  });
  stats->rest[j] = sum_of(e, n, Terms<T>{});
}

// Each step is a loop over the rows, which then overlap: a row alone is a chain of latencies.
template <class T, bool apart>
FASTACT_MIXED void block(RowsIn z, int64_t m, int64_t n, const NextRows& next,
                         const LateProducts& products, char* exponentials, TileStats* stats) {
  const auto row = [=](int64_t j) FASTACT_INLINED { return in<T>(z.at + j * z.stride); };
  T* const e = out<T>(exponentials);
  T max[kBand];
  SoftmaxReference<T> reference[kBand];
  for (int64_t j = 0; j < m; ++j) max[j] = largest(row(j), n);
  for (int64_t j = 0; j < m; ++j) stats->max[j] = double(max[j]);
  for (int64_t j = 0; j < m; ++j) reference[j] = reference_of(max[j]);
  for (int64_t j = 0; j < m; ++j) {
    const T* at = row(j);
    if (!is_near(max[j])) {
      far_block<T, apart>(at, n, e + j * n, stats, j);
      store_row(product_of<T>(products, j));
      continue;
    }
    const T top = max[j];
    const SoftmaxReference<T> beside = reference[j];
    stats->ones[j] = apart ? ones_of(at, n, top) : T(0);
    each<2>(
        e + j * n, n,
        [=](int64_t i) FASTACT_INLINED {
          const T value = exp_near(at[i], beside);
          return apart && at[i] == top ? T(0) : value;
        },
        next.of(j), product_of<T>(products, j));
  }
  for (int64_t j = 0; j < m; ++j) {
    if (!is_near(max[j])) continue;
    const NextChunk then = next.of(j);
    const char* const half = then.at[0] ? then.at[0] + n * then.item / 2 : nullptr;
    stats->rest[j] = sum_of(e + j * n, n, Terms<T>{}, half, then.item);
  }
}

// The lanes of a tile: kSoftmaxLanes of each of its rows.
struct TileLanes {
  alignas(64) double lanes[kSoftmaxLanes * kTileWidth];
  int64_t used, width;

  TileLanes(int64_t n, int64_t w) : used(n < kSoftmaxLanes ? n : kSoftmaxLanes), width(w) {
    for (int64_t i = 0; i < used * width; ++i) lanes[i] = 0.0;
  }
  double* of(int64_t i) { return lanes + i % kSoftmaxLanes * width; }
  // Those from `used` on are zero, which changes nothing that it is added to.
  const double* fold() {
    for (int64_t half = kSoftmaxLanes / 2; half > 0; half /= 2)
      for (int64_t lane = 0; lane < half && half + lane < used; ++lane) {
        double* to = lanes + lane * width;
        const double* from = lanes + (half + lane) * width;
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) to[j] += from[j];
      }
    return lanes;
  }
};

// What exponentials of the rows of a tile are relative to.
template <class T>
struct TileReferences {
  alignas(64) T max[kTileWidth], limit[kTileWidth], magic[kTileWidth];
  bool are_near = true;

  FASTACT_HD void set(int64_t width) {
    for (int64_t j = 0; j < width; ++j) {
      if (!(magnitude(max[j]) < T(kInfinity))) max[j] = 0;
      const SoftmaxReference<T> reference = reference_of(is_near(max[j]) ? max[j] : T(0));
      limit[j] = reference.limit, magic[j] = reference.magic;
      are_near &= is_near(max[j]);
    }
  }
  // y OUT (width) = finish(exponential, z, row) of z IN, one of each row.
  template <class F>
  FASTACT_HD void map(const T* z, int64_t width, T* y, F finish) const {
    if (are_near) {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j)
        y[j] = finish(exp_near(z[j], SoftmaxReference<T>{limit[j], magic[j]}), z[j], j);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        const T near = exp_near(z[j], SoftmaxReference<T>{limit[j], magic[j]});
        const T far = exp_far(z[j], max[j]);
        y[j] = finish(magnitude(max[j]) <= T(kNearMaximum) ? near : far, z[j], j);
      }
    }
  }
};

template <class T, bool apart>
void tile_block(RowsIn z_, int64_t n, int64_t width, RowsOut exponentials, TileStats* stats) {
  using C = Compute<T>;
  TileIn<T> z(z_, width);
  TileReferences<C> references;
  C* max = references.max;
  for (int64_t j = 0; j < width; ++j) max[j] = C(-kInfinity);
  for (int64_t i = 0; i < n; ++i) {
    const C* at = z.read(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) max[j] = at[j] > max[j] ? at[j] : max[j];
  }
  alignas(64) C ones[kTileWidth] = {};
  for (int64_t i = 0; apart && i < n; ++i) {
    const C* at = z.read(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) ones[j] += at[j] == max[j] ? C(1) : C(0);
  }
  bool are_finite = true;
  for (int64_t j = 0; j < width; ++j) {
    stats->max[j] = double(max[j]), stats->ones[j] = double(ones[j]);
    are_finite &= magnitude(max[j]) < C(kInfinity);
  }
  if (!are_finite) {  // before z may be written
    for (int64_t j = 0; j < width; ++j) stats->rest[j] = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const C* at = z.read(i);
      for (int64_t j = 0; j < width; ++j)
        if (at[j] != at[j]) stats->rest[j] = __builtin_nan("");
    }
  }
  references.set(width);
  TileLanes sums(n, width);
  for (int64_t i = 0; i < n; ++i) {
    C* const e = out<C>(exponentials.at + i * exponentials.stride);
    references.map(z.read(i), width, e, [=](C value, C of, int64_t j) FASTACT_INLINED {
      return apart && of == max[j] ? C(0) : value;
    });
    double* lane = sums.of(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) lane[j] += double(e[j]);
  }
  const double* sum = sums.fold();
  for (int64_t j = 0; j < width; ++j)
    if (are_finite || is_finite(stats->max[j]))
      stats->rest[j] = sum[j];
    else
      stats->ones[j] = apart;
}

FASTACT_HD SoftmaxStat stat_of(const TileStats& stats, int64_t j) {
  return {stats.max[j], stats.rest[j], stats.ones[j]};
}

template <class T>
void merge(TileStats* total, const TileStats& block, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const SoftmaxStat sum = merged<T>(stat_of(*total, j), stat_of(block, j));
    total->max[j] = sum.max, total->rest[j] = sum.rest, total->ones[j] = sum.ones;
  }
}

// Without branches where all rows are as they mostly are.
template <class T, bool apart>
void finish(const TileStats& stats, int64_t n, bool has_mask, TileRows* rows) {
  bool are_near = true;
  for (int64_t j = 0; j < n; ++j) are_near &= magnitude(stats.max[j]) <= kNearMaximum;
  if (!are_near) {
    for (int64_t j = 0; j < n; ++j) {
      const SoftmaxRow row = finished<T>(stat_of(stats, j), has_mask);
      rows->max[j] = row.max, rows->log[j] = row.log, rows->lse[j] = row.lse;
      rows->factor[j] = row.factor, rows->is_void[j] = row.is_void;
    }
    return;
  }
  alignas(64) T max[kTileWidth];
  alignas(64) double one[kTileWidth];
  const double *rest = stats.rest, *ones = stats.ones;
  each(max, n, [&](int64_t j) FASTACT_INLINED { return T(stats.max[j]); });
  each(max, n, [&](int64_t j) FASTACT_INLINED { return exp_near(max[j], reference_of(max[j])); });
  each(one, n, [&](int64_t j) FASTACT_INLINED { return double(max[j]); });
  each(rows->max, n, [&](int64_t j) FASTACT_INLINED { return stats.max[j]; });
  each(rows->factor, n,
       [&](int64_t j) FASTACT_INLINED { return 1.0 / (rest[j] + ones[j] * one[j]); });
  if (apart) {
    each(rows->log, n, [&](int64_t j) FASTACT_INLINED {
      return log1p_of_sum(rest[j] / one[j] + (ones[j] - 1.0));
    });
    each(rows->lse, n, [&](int64_t j) FASTACT_INLINED { return stats.max[j] + rows->log[j]; });
  }
  for (int64_t j = 0; j < n; ++j) rows->is_void[j] = false;
}

template <class T>
double lower(double block_max, double max) {
  if (block_max == max) return 1.0;
  if (!is_finite(block_max) || !is_near(T(block_max)) || !is_near(T(max))) return 0.0;
  const double factor = lower_by<T>(block_max, max);
  return factor < 0x1p-60 ? 0.0 : factor;
}

template <class T>
void scale(RowsIn exponentials, int64_t m, int64_t n, const double* factors, RowsOut y) {
  for (int64_t j = 0; j < m; ++j) {
    const T* e = in<T>(exponentials.at + j * exponentials.stride);
    const T factor = T(factors[j]);
    each(out<T>(y.at + j * y.stride), n, [=](int64_t i) FASTACT_INLINED { return e[i] * factor; });
  }
}

// Numbers of the rows of a tile, in the type that is computed in.
template <class C>
struct TileNumbers {
  alignas(64) C of[kTileWidth];
  FASTACT_HD TileNumbers(const double* numbers, int64_t width) {
    for (int64_t j = 0; j < width; ++j) of[j] = C(numbers[j]);
  }
};

template <class T>
void tile_scale(RowsIn exponentials, int64_t n, int64_t width, const double* factors, RowsOut y) {
  using C = Compute<T>;
  const TileNumbers<C> factor(factors, width);
  map_tile<C, T>(exponentials, n, width, y,
                 [&](C e, int64_t j) FASTACT_INLINED { return e * factor.of[j]; });
}

template <class T>
FASTACT_MIXED void exponentials(const char* z_, int64_t n, double max_, double factor_, char* y) {
  const T* z = in<T>(z_);
  const T max = is_finite(max_) ? T(max_) : T(0), factor = T(factor_);
  if (is_near(max)) {
    const SoftmaxReference<T> reference = reference_of(max);
    each(out<T>(y), n,
         [=](int64_t i) FASTACT_INLINED { return exp_near(z[i], reference) * factor; });
  } else {
    each(out<T>(y), n, [=](int64_t i) FASTACT_INLINED { return exp_far(z[i], max) * factor; });
  }
}

template <class T>
void tile_exponentials(RowsIn z, int64_t n, int64_t width, const double* maxima,
                       const double* factors, RowsOut y) {
  using C = Compute<T>;
  const TileNumbers<C> factor(factors, width);
  TileReferences<C> references;
  for (int64_t j = 0; j < width; ++j) references.max[j] = C(maxima[j]);
  references.set(width);
  TileIn<T> from(z, width);
  TileOut<T> to(y, width);
  for (int64_t i = 0; i < n; ++i) {
    references.map(from.read(i), width, to.at(i),
                   [&](C value, C, int64_t j) FASTACT_INLINED { return value * factor.of[j]; });
    to.finish(i);
  }
}

// Of T(lse), as exp_near and exp_far take it.
template <class T>
double factor_of(double lse) {
  if (!is_finite(lse)) return __builtin_nan("");
  return 1.0 / exp_of_maximum<T>(lse);
}

template <class T>
void shift(RowsIn rows, int64_t m, int64_t n, const double* maxima, const double* logs, RowsOut y) {
  for (int64_t j = 0; j < m; ++j) {
    const T* z = in<T>(rows.at + j * rows.stride);
    const T max = T(maxima[j]), log = T(logs[j]);
    each(out<T>(y.at + j * y.stride), n,
         [=](int64_t i) FASTACT_INLINED { return (z[i] - max) - log; });
  }
}

template <class T>
void tile_shift(RowsIn z, int64_t n, int64_t width, const double* maxima, const double* logs,
                RowsOut y) {
  using C = Compute<T>;
  const TileNumbers<C> max(maxima, width), log(logs, width);
  map_tile<T, T>(z, n, width, y, [&](C value, int64_t j) FASTACT_INLINED {
    return (value - max.of[j]) - log.of[j];
  });
}

// An element whose y is 0 takes no part, whatever its dy: infinite or a NaN, too. A sum that these
// made NaN is made anew without them.
template <class T>
double sum_of_parts(const T* dy, const T* y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double of_y = double(widen(y[i]));
    sum += of_y == 0.0 ? 0.0 : double(widen(dy[i])) * of_y;
  }
  return sum;
}

template <class T>
void sum(RowsIn a, RowsIn b, int64_t m, int64_t n, double* sums) {
  for (int64_t j = 0; j < m; ++j) {
    const T* of_a = in<T>(a.at + j * a.stride);
    if (!b.at) {
      sums[j] += sum_of(of_a, n, Terms<T>{});
      continue;
    }
    const T* of_b = in<T>(b.at + j * b.stride);
    const double found = sum_of(of_a, n, Products<T>{of_b});
    sums[j] += found == found ? found : sum_of_parts(of_a, of_b, n);
  }
}

template <class T>
double column_of_parts(TileIn<T>& dy, TileIn<T>& y, int64_t n, int64_t j) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const Compute<T> of_y = y.read(i)[j];
    sum += sum_of_parts(dy.read(i) + j, &of_y, 1);
  }
  return sum;
}

template <class T>
void tile_sum(RowsIn a_, RowsIn b_, int64_t n, int64_t width, double* sums) {
  TileIn<T> a(a_, width), b(b_, width);
  TileLanes lanes(n, width);
  for (int64_t i = 0; i < n; ++i) {
    double* lane = lanes.of(i);
    const Compute<T>* const of_a = a.read(i);
    if (b_.at) {
      const Compute<T>* const of_b = b.read(i);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) lane[j] = madd(double(of_a[j]), double(of_b[j]), lane[j]);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) lane[j] += double(of_a[j]);
    }
  }
  const double* sum = lanes.fold();
  for (int64_t j = 0; j < width; ++j)
    sums[j] += sum[j] == sum[j] || !b_.at ? sum[j] : column_of_parts(a, b, n, j);
}

// softmax: y_j = exp(z_j) / S has dy_j / dz_i = y_j ([i = j] - y_i), so that dz_i = y_i (dy_i - sum
// of dy y). log_softmax: y_j = z_j - log S has [i = j] - exp(y_i), so that dz_i = dy_i - exp(y_i)
// sum of dy. z = scale x + mask: dx = scale dz. An element that takes no part, y = 0 or -inf, has a
// dx of 0.
template <class T, int kind>
FASTACT_HD T gradient_of(T dy, T y, T sum, T scale) {
  if constexpr (kind == 0) return y == T(0) ? T(0) : scale * (y * (dy - sum));
  constexpr T down = Tail<T>::kDown;
  constexpr SoftmaxReference<T> zero = {-kZeroAt<T> * T(0.69314718055994530942),
                                        ExpTraits<T>::kRoundMagic + kZeroAt<T>};
  const T dx = scale * madd(-(exp_near(y, zero) * down), sum, dy);
  return y == T(-kInfinity) ? T(0) : dx;
}

template <class T, int kind>
FASTACT_MIXED void gradient(RowsIn of_dy, RowsIn of_y, int64_t m, int64_t n, const double* sums,
                            double scale_, const NextRows& next, RowsOut of_dx) {
  using C = Compute<T>;
  const C scale = C(scale_);
  for (int64_t j = 0; j < m; ++j) {
    const T *dy = in<T>(of_dy.at + j * of_dy.stride), *y = in<T>(of_y.at + j * of_y.stride);
    T* const dx = out<T>(of_dx.at + j * of_dx.stride);
    const C sum = C(sums[j]);
    const auto of = [=](C v, C w)
                        FASTACT_INLINED { return gradient_of<C, kind>(v, w, sum, scale); };
    if constexpr (is_half<T>) {
      if (n >= kInRegisters)
        map_span<kInRegisters>(dy, y, dx, n, of);
      else
        map_indexed<kInRegisters>(dy, y, dx, n,
                                  [=](int64_t, C v, C w) FASTACT_INLINED { return of(v, w); });
    } else {
      each(dx, n, [=](int64_t i) FASTACT_INLINED { return of(dy[i], y[i]); }, next.of(j));
    }
  }
}

template <class T, int kind>
void tile_gradient(RowsIn of_dy, RowsIn of_y, int64_t n, int64_t width, const double* sums,
                   double scale_, RowsOut of_dx) {
  using C = Compute<T>;
  const C scale = C(scale_);
  const TileNumbers<C> sum(sums, width);
  TileIn<T> dy(of_dy, width), y(of_y, width);
  TileOut<T> dx(of_dx, width);
  for (int64_t i = 0; i < n; ++i) {
    const C *a = dy.read(i), *b = y.read(i);
    C* const to = dx.at(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) to[j] = gradient_of<C, kind>(a[j], b[j], sum.of[j], scale);
    dx.finish(i);
  }
}

// t w of n elements, in double.
template <class T>
FASTACT_HD void weights_of(const SoftmaxTarget& target, int64_t n, double* counts) {
  const T *t = in<T>(target.target), *w = in<T>(target.weight);
  const double scale = target.scale, floor = target.floor;
  each(counts, n, [=](int64_t) FASTACT_INLINED { return floor; });
  if (t) each(counts, n, [=](int64_t i) FASTACT_INLINED { return scale * double(t[i]) + floor; });
  if (w) each(counts, n, [=](int64_t i) FASTACT_INLINED { return counts[i] * double(w[i]); });
}

template <class T>
void weigh(const char* z_, const SoftmaxTarget& target, int64_t n, double max, double* sums) {
  const T* z = in<T>(z_);
  double counts[kSoftmaxBlock], distance[kSoftmaxBlock];
  weights_of<T>(target, n, counts);
  // What counts nothing does so at any distance, an infinite one too.
  each(distance, n,
       [&](int64_t i) FASTACT_INLINED { return counts[i] == 0.0 ? 0.0 : max - double(z[i]); });
  sums[0] = sum_of(distance, n, Products<double>{counts});
  sums[1] = sum_of(counts, n, Terms<double>{});
}

template <class T>
void subtract(const SoftmaxTarget& target, int64_t n, double factor, char* dz_) {
  T* dz = out<T>(dz_);
  double counts[kSoftmaxBlock];
  weights_of<T>(target, n, counts);
  each(dz, n,
       [=, &counts](int64_t i) FASTACT_INLINED { return T(double(dz[i]) - factor * counts[i]); });
}

}  // namespace

#define FASTACT_SOFTMAX(T)                           \
  {                                                  \
      {prepare<T, 0>, prepare<T, 1>, prepare<T, 2>}, \
      {block<T, false>, block<T, true>},             \
      merge<T>,                                      \
      {finish<T, false>, finish<T, true>},           \
      lower<T>,                                      \
      scale<T>,                                      \
      store<T>,                                      \
      exponentials<T>,                               \
      factor_of<T>,                                  \
      shift<T>,                                      \
      weigh<T>,                                      \
      subtract<T>,                                   \
  }

#define FASTACT_GRADIENTS(T)                   \
  {                                            \
    sum<T>, { gradient<T, 0>, gradient<T, 1> } \
  }

#define FASTACT_TILES(T)                           \
  {                                                \
      {tile_block<T, false>, tile_block<T, true>}, \
      tile_scale<T>,                               \
      tile_exponentials<T>,                        \
      tile_shift<T>,                               \
      tile_sum<T>,                                 \
      {tile_gradient<T, 0>, tile_gradient<T, 1>},  \
  }

extern const SoftmaxTable softmax_table;
const SoftmaxTable softmax_table = {
    {FASTACT_SOFTMAX(float), FASTACT_SOFTMAX(double)},
    {FASTACT_GRADIENTS(f16), FASTACT_GRADIENTS(bf16), FASTACT_GRADIENTS(float),
     FASTACT_GRADIENTS(double)},
    {FASTACT_TILES(f16), FASTACT_TILES(bf16), FASTACT_TILES(float), FASTACT_TILES(double)}};

FASTACT_END_NAMESPACE
