// The kernels of norms/channels/kernels.h.
#include "cpu/norms/channels/kernels.h"

#include <algorithm>

#include "common/norms/batch_norm.h"
#include "common/norms/norms.h"
#include "cpu/simd/accumulators.h"
#include "cpu/simd/map_span.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The coefficients of a channel.
template <class T>
struct Channel {
  const char* const* all;
  int64_t channel;
  FASTACT_HD T operator()(int k) const { return pointer<T>(all[k])[channel]; }
};

// Maps are made of the coefficients of an element's channel.
template <class T>
struct Normalise {
  T high, low, factor, offset;
  FASTACT_HD explicit Normalise(Channel<T> of)
      : high(of(kHigh)), low(of(kLow)), factor(of(kScale)), offset(of(kOffset)) {}
  FASTACT_HD T operator()(T x, T) const { return batch_normalised(x, high, low, factor, offset); }
};
template <class T>
struct Gradient {
  T high, low, factor, mean_p, slope;
  FASTACT_HD explicit Gradient(Channel<T> of)
      : high(of(kHigh)), low(of(kLow)), factor(of(kScale)), mean_p(of(kMeanP)), slope(of(kSlope)) {}
  FASTACT_HD T operator()(T p, T x) const {
    return batch_gradient(p, centred(x, high, low), factor, mean_p, slope);
  }
};
template <class T>
struct Scale {
  T factor;
  FASTACT_HD explicit Scale(Channel<T> of) : factor(of(kScale)) {}
  FASTACT_HD T operator()(T p, T) const { return p * factor; }
};
template <class T>
struct GroupNormalise {
  T high, low, rstd, weight, bias;
  FASTACT_HD explicit GroupNormalise(Channel<T> of)
      : high(of(kHigh)), low(of(kLow)), rstd(of(kScale)), weight(of(kWeight)), bias(of(kOffset)) {}
  FASTACT_HD T operator()(T x, T) const {
    return affine(centred(x, high, low) * rstd, weight, bias);
  }
};
template <class T>
struct GroupGradient {
  T mean, rstd, mean_g, mean_g_xhat, weight;
  FASTACT_HD explicit GroupGradient(Channel<T> of)
      : mean(of(kHigh)),
        rstd(of(kScale)),
        mean_g(of(kMeanP)),
        mean_g_xhat(of(kSlope)),
        weight(of(kWeight)) {}
  FASTACT_HD T operator()(T p, T x) const {
    const RowGradient<T> row = {mean, rstd, mean_g, mean_g_xhat};  // a member stays in memory
    return row.dx(p * weight, row.xhat(x));
  }
};

// The factors of p in a sum.
constexpr auto distance = [](auto of, auto x)
                              FASTACT_INLINED { return centred(x, of(kHigh), of(kLow)); };
constexpr auto xhat = [](auto of, auto x)
                          FASTACT_INLINED { return xhat_of(x, of(kHigh), of(kScale)); };

// Pointers to the elements of rows.
template <class T>
struct RowsOf {
  T* first;
  int64_t pitch;
  FASTACT_HD RowsOf(const StridedRows& rows) : first(pointer<T>(rows.first)), pitch(rows.pitch) {}
  FASTACT_HD T* operator[](int64_t row) const { return first + row * pitch; }
};

constexpr int64_t kLongSegment = 2048;  // elements, from which on it is worth chunks of kChunk

// Maps rows that are segments of channels, with one coefficient each.
template <class Map, class T>
void map_segments(StridedRows from_a, StridedRows from_b, const char* const* all, StridedRows to,
                  int64_t segments, int64_t n, bool) {
  using C = Compute<T>;
  const RowsOf<T> a(from_a), b(from_b), made(to);
  const auto for_segments = [&](auto over) FASTACT_INLINED {
    for (int64_t r = 0; r < segments; ++r) {
      const Map map(Channel<C>{all, r});
      over(r, [=](C x, C y) FASTACT_INLINED { return map(x, y); });
    }
  };
  if (n >= kLeastSegment && n < kLongSegment)
    for_segments([&](int64_t r, auto of) FASTACT_INLINED { map_span(a[r], b[r], made[r], n, of); });
  else
    for_segments([&](int64_t r, auto of) FASTACT_INLINED {
      map_indexed(a[r], b[r], made[r], n,
                  [=](int64_t, C x, C y) FASTACT_INLINED { return of(x, y); });
    });
}

// Maps several rows at once, whose coefficients are read once.
template <class Map, class T>
FASTACT_HD void map_some(const RowsOf<T>& a, const RowsOf<T>& b, const char* const* all,
                         const RowsOf<T>& to, int64_t r, int64_t n) {
  const T *from_a[kRowsAtOnce], *from_b[kRowsAtOnce];
  T* made[kRowsAtOnce];
  for (int k = 0; k < kRowsAtOnce; ++k)
    from_a[k] = a[r + k], from_b[k] = b[r + k], made[k] = to[r + k];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Map map(Channel<T>{all, i});
#pragma GCC unroll 8
    for (int k = 0; k < kRowsAtOnce; ++k) made[k][i] = map(from_a[k][i], from_b[k][i]);
  }
}

template <class Map, class T>
void map_rows(StridedRows from_a, StridedRows from_b, const char* const* all, StridedRows to,
              int64_t rows, int64_t n, bool apart) {
  using C = Compute<T>;
  const RowsOf<T> a(from_a), b(from_b), made(to);
  int64_t r = 0;
  if constexpr (!is_half<T>)
    for (; !apart && r + kRowsAtOnce <= rows; r += kRowsAtOnce)
      map_some<Map>(a, b, all, made, r, n);
  for (; r < rows; ++r)
    map_indexed<kInRegisters>(a[r], b[r], made[r], n, [=](int64_t i, C x, C y) FASTACT_INLINED {
      return Map(Channel<C>{all, i})(x, y);
    });
}

// The number of a lane.
template <class T>
struct LaneNumbers {
  T at[kLanes / 2];
  constexpr LaneNumbers() : at() {
    for (int k = 0; k < kLanes / 2; ++k) at[k] = T(k);
  }
};
template <class T>
constexpr LaneNumbers<T> kLaneNumbers;

// Terms that a lane of the compute type takes before it is added to one of double.
constexpr int kTermsOfLane = 8;

// Onto the lanes `total`, in double, of n elements: element i belongs to lane i % kLanes, but a
// rest shorter than half of the lanes belongs to the last of them: they are read with the elements
// before them, of which none counts twice. (Added to the first lanes one by one they would stall: a
// vector's load waits for every store before it.)
template <class T>
FASTACT_HD void add_elements(const T* p, const T* x, Compute<T> high, Compute<T> low, int64_t n,
                             Vector (&total)[2][kVectors]) {
  using C = Compute<T>;
  using Read = ComputeVector<T>;
  using V = typename Read::type;
  constexpr int kCount = Read::kCount, kParts = kLanes / kCount;
  constexpr int kHalf = kLanes / 2, kHalfParts = kParts / 2;
  const T *const start = p, *const end = p + n;
  const V zero = {};
  while (p != end) {
    V sum[kParts], product[kParts];
#pragma GCC unroll 16
    for (int k = 0; k < kParts; ++k) sum[k] = product[k] = zero;
    const int64_t whole = (end - p) / kLanes;
    const int rounds = whole < kTermsOfLane ? int(whole) : kTermsOfLane;
    const auto add = [&](int k) FASTACT_INLINED {
      const V term = Read::load(p + k * kCount);
      sum[k] += term;
      product[k] += term * ((Read::load(x + k * kCount) - high) - low);
    };
    for (int round = 0; round < rounds; ++round, p += kLanes, x += kLanes)
#pragma GCC unroll 16
      for (int k = 0; k < kParts; ++k) add(k);
    C lanes[2][kLanes];
    int rest = rounds < kTermsOfLane ? int(end - p) : 0;
    if (rest >= kHalf) {
#pragma GCC unroll 16
      for (int k = 0; k < kHalfParts; ++k) add(k);
      p += kHalf, x += kHalf, rest -= kHalf;
    }
    const int before = kHalf - rest;
    if (rest > 0 && p - start >= before) {
#pragma GCC unroll 16
      for (int k = 0; k < kHalfParts; ++k) {
        const auto counts = Read::load(kLaneNumbers<C>.at + k * kCount) >= C(before);
        const V term = Read::load(p - before + k * kCount);
        const V centred_x = (Read::load(x - before + k * kCount) - high) - low;
        sum[kHalfParts + k] += counts ? term : zero;
        product[kHalfParts + k] += counts ? term * centred_x : zero;
      }
      p += rest;
    }
#pragma GCC unroll 16
    for (int k = 0; k < kParts; ++k) {
      memcpy(lanes[0] + k * kCount, &sum[k], sizeof sum[k]);
      memcpy(lanes[1] + k * kCount, &product[k], sizeof product[k]);
    }
    if (rest > 0 && p != end) {  // of a segment shorter than half the lanes
      for (int k = 0; k < rest; ++k) {
        const C term = widen(p[k]);
        lanes[0][kHalf + before + k] += term;
        lanes[1][kHalf + before + k] += term * centred(widen(x[k]), high, low);
      }
      p += rest;
    }
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) {
      total[0][k] += load(lanes[0] + k * kVector);
      total[1][k] += load(lanes[1] + k * kVector);
    }
  }
}

// The lanes lie in memory as [2][kLanes].
template <class T>
void add_piece(const char* p, const char* x, const char* const* all, int64_t n, double* lanes) {
  const Channel<Compute<T>> of{all, 0};
  Vector total[2][kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < 2 * kVectors; ++k)
    total[k / kVectors][k % kVectors] = load(lanes + k * kVector);
  add_elements(pointer<T>(p), pointer<T>(x), of(kHigh), of(kLow), n, total);
#pragma GCC unroll 16
  for (int k = 0; k < 2 * kVectors; ++k)
    store(total[k / kVectors][k % kVectors], lanes + k * kVector);
}

// Elements of a segment from which on the next one is prefetched, and of that, at most.
constexpr int64_t kLeastPrefetched = 64, kPrefetchedSegment = 1024;

template <class T>
void add_channels(const char* first_p, const char* first_x, const char* const* all,
                  int64_t channels, int64_t segments, int64_t pitch, int64_t n, double* sums,
                  double* products) {
  for (int64_t c = 0; c < channels; ++c) {
    const T *p = pointer<T>(first_p) + c * n, *x = pointer<T>(first_x) + c * n;
    const Channel<Compute<T>> of{all, c};
    Vector total[2][kVectors] = {};
    for (int64_t segment = 0; segment < segments; ++segment, p += pitch, x += pitch) {
      // The hardware does not know where the next segment lies. After the last one comes the first
      // of the next channel.
      const int64_t next = segment + 1 < segments ? pitch : n - segment * pitch;
      const int64_t asked = n < kLeastPrefetched     ? 0
                            : n < kPrefetchedSegment ? n
                                                     : kPrefetchedSegment;
      for (int64_t i = next; i < next + asked; i += kCacheLine / sizeof(T)) {
        __builtin_prefetch(p + i);
        __builtin_prefetch(x + i);
      }
      add_elements(p, x, of(kHigh), of(kLow), n, total);
    }
    sums[c] += fold_vectors(total[0]);
    products[c] += fold_vectors(total[1]);
  }
}

// Adds n columns, from `at` on, of some rows from `r` on, which meet in the compute type: in
// memory, or where kWidth is less, and n and rows are kWidth and kRowsAtOnce, in registers.
template <const auto& factor, int64_t kWidth, class T>
FASTACT_HD void add_tile(const RowsOf<const T>& p, const RowsOf<const T>& x, const char* const* all,
                         int64_t r, int64_t rows, int64_t at, int64_t n, double* sums,
                         double* products) {
  using C = Compute<T>;
  constexpr int64_t kStep = std::min(kWidth, kInRegisters);
  Wide<T, kStep> of_p, of_x;
  alignas(64) C sum[kWidth], product[kWidth];
  for (C* each : {sum, product}) memset(each, 0, size_t(n) * sizeof(C));
  const auto add_row = [&](int64_t k) FASTACT_INLINED {
    for_chunks<kStep>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      const C *terms = of_p.read(p[k] + at + i, m), *v = of_x.read(x[k] + at + i, m);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) {
        sum[i + j] += terms[j];
        product[i + j] += terms[j] * factor(Channel<C>{all, at + i + j}, v[j]);
      }
    });
  };
  if constexpr (kWidth < kTile) {
#pragma GCC unroll 8
    for (int k = 0; k < kRowsAtOnce; ++k) add_row(r + k);
  } else {
    for (int64_t k = r; k < r + rows; ++k) add_row(k);
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sums[at + i] += double(sum[i]);
    products[at + i] += double(product[i]);
  }
}

// Adds rows one after the other, in the columns begin .. end. It is not inlined: each use would be
// a copy of all its loops.
template <const auto& factor, class T>
__attribute__((noinline)) void add_apart(const RowsOf<const T>& p, const RowsOf<const T>& x,
                                         const char* const* all, int64_t r, int64_t rows,
                                         int64_t begin, int64_t end, double* sums,
                                         double* products) {
  for (int64_t width; begin < end; begin += width) {
    width = std::min(kTile, end - begin);
    add_tile<factor, kTile>(p, x, all, r, rows, begin, width, sums, products);
  }
}

// few_meet: fewer than kRowsAtOnce rows, too, meet in the compute type.
template <const auto& factor, bool few_meet, class T>
void add_rows(StridedRows from_p, StridedRows from_x, const char* const* all, int64_t rows,
              int64_t n, bool apart, double* sums, double* products) {
  constexpr int64_t kColumns = is_half<T> ? kInRegisters : kCacheLine / int64_t(sizeof(Compute<T>));
  constexpr int64_t kMeet = few_meet ? kRowsAtOnce : 1;
  const RowsOf<const T> p(from_p), x(from_x);
  int64_t r = 0;
  for (; !apart && r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    int64_t i = 0;
    for (; i + kColumns <= n; i += kColumns)
      add_tile<factor, kColumns>(p, x, all, r, kRowsAtOnce, i, kColumns, sums, products);
    if (i < n) add_apart<factor>(p, x, all, r, kRowsAtOnce, i, n, sums, products);
  }
  for (; r < rows; r += kMeet)
    add_apart<factor>(p, x, all, r, std::min(kMeet, rows - r), 0, n, sums, products);
}

}  // namespace

#define FASTACT_MAP(Map, T) {map_segments<Map<Compute<T>>, T>, map_rows<Map<Compute<T>>, T>}
#define FASTACT_COLUMNS(Map, T) {nullptr, map_rows<Map<Compute<T>>, T>}
#define FASTACT_BATCH(T)                                                               \
  {{FASTACT_MAP(Normalise, T), FASTACT_MAP(Gradient, T), add_rows<distance, true, T>}, \
   FASTACT_MAP(Scale, T),                                                              \
   add_piece<T>,                                                                       \
   add_channels<T>}
#define FASTACT_GROUPS(T) \
  {FASTACT_COLUMNS(GroupNormalise, T), FASTACT_COLUMNS(GroupGradient, T), add_rows<xhat, false, T>}

extern const ChannelTable channel_table;
const ChannelTable channel_table = {
    {FASTACT_BATCH(f16), FASTACT_BATCH(bf16), FASTACT_BATCH(float), FASTACT_BATCH(double)},
    {FASTACT_GROUPS(f16), FASTACT_GROUPS(bf16), FASTACT_GROUPS(float), FASTACT_GROUPS(double)}};

FASTACT_END_NAMESPACE
