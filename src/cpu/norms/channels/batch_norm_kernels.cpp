// The kernels of norms/channels/batch_norm_kernels.h.
#include "cpu/norms/channels/batch_norm_kernels.h"

#include <type_traits>

#include "common/norms/batch_norm.h"
#include "cpu/simd/accumulators.h"
#include "cpu/simd/map_span.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The coefficients of a channel.
template <class T>
struct OfChannel {
  const char* const* all;
  int64_t channel;
  FASTACT_HD T operator()(int k) const { return reinterpret_cast<const T*>(all[k])[channel]; }
};

// Maps an element by them.
template <class T>
struct Normalise {
  T high, low, factor, offset;
  FASTACT_HD explicit Normalise(OfChannel<T> of)
      : high(of(kHigh)), low(of(kLow)), factor(of(kScale)), offset(of(kOffset)) {}
  FASTACT_HD T operator()(T x, T) const { return batch_normalised(x, high, low, factor, offset); }
};
template <class T>
struct Gradient {
  T high, low, factor, mean_p, slope;
  FASTACT_HD explicit Gradient(OfChannel<T> of)
      : high(of(kHigh)), low(of(kLow)), factor(of(kScale)), mean_p(of(kMeanP)), slope(of(kSlope)) {}
  FASTACT_HD T operator()(T p, T x) const {
    return batch_gradient(p, centred(x, high, low), factor, mean_p, slope);
  }
};
template <class T>
struct Scale {
  T factor;
  FASTACT_HD explicit Scale(OfChannel<T> of) : factor(of(kScale)) {}
  FASTACT_HD T operator()(T p, T) const { return p * factor; }
};

template <class T>
const T* elements(const char* at) {
  return reinterpret_cast<const T*>(at);
}

template <class Map, class T>
void map_chunk(const char* from_a, const char* from_b, const char* const* all, char* to,
               int64_t n) {
  using C = Compute<T>;
  const Map map(OfChannel<C>{all, 0});
  map_indexed<kChunk>(elements<T>(from_a), elements<T>(from_b), reinterpret_cast<T*>(to), n,
                      [=](int64_t, C x, C y) FASTACT_INLINED { return map(x, y); });
}

template <class Map, class T>
void map_segments(const char* from_a, const char* from_b, const char* const* all, char* to,
                  int64_t segments, int64_t n) {
  using C = Compute<T>;
  const T *a = elements<T>(from_a), *b = elements<T>(from_b);
  T* made = reinterpret_cast<T*>(to);
  for (int64_t r = 0; r < segments; ++r, a += n, b += n, made += n) {
    const Map map(OfChannel<C>{all, r});
    map_span(a, b, made, n, [=](C x, C y) FASTACT_INLINED { return map(x, y); });
  }
}

// Several rows at once, whose coefficients are read once.
template <class Map, class T>
FASTACT_HD void map_some(const T* a, const T* b, const char* const* all, T* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Map map(OfChannel<T>{all, i});
#pragma GCC unroll 8
    for (int k = 0; k < kRowsAtOnce; ++k) to[k * n + i] = map(a[k * n + i], b[k * n + i]);
  }
}

template <class Map, class T>
void map_rows(const char* from_a, const char* from_b, const char* const* all, char* to,
              int64_t rows, int64_t n) {
  using C = Compute<T>;
  const T *a = elements<T>(from_a), *b = elements<T>(from_b);
  T* made = reinterpret_cast<T*>(to);
  int64_t r = 0;
  if constexpr (!is_half<T>)
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce)
      map_some<Map>(a + r * n, b + r * n, all, made + r * n, n);
  for (; r < rows; ++r)
    map_indexed<kInRegisters>(a + r * n, b + r * n, made + r * n, n,
                              [=](int64_t i, C x, C y)
                                  FASTACT_INLINED { return Map(OfChannel<C>{all, i})(x, y); });
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

// Onto the lanes `total`, in double, of n elements: element i belongs to lane i % kLanes, but a
// rest shorter than half of the lanes belongs to the last of them: they are read with the elements
// before them, of which none counts twice. (Added to the first lanes one by one they would stall: a
// vector's load waits for every store before it.)
template <class T>
FASTACT_HD void add_elements(const T* p, const T* x, Compute<T> high, Compute<T> low, int64_t n,
                             Vector (&total)[2][kVectors]) {
  using C = Compute<T>;
  constexpr int kCount = kVector * int(sizeof(double) / sizeof(C)), kParts = kLanes / kCount;
  constexpr int kHalf = kLanes / 2, kHalfParts = kParts / 2;
  typedef C V __attribute__((vector_size(kCount * sizeof(C))));
  const auto read = [](const auto* at) FASTACT_INLINED {
    Wide<std::decay_t<decltype(*at)>, kCount> wide;
    V v;
    memcpy(&v, wide.read(at, kCount), sizeof v);
    return v;
  };
  const T *const start = p, *const end = p + n;
  const V zero = {};
  while (p != end) {
    V sum[kParts], product[kParts];
#pragma GCC unroll 16
    for (int k = 0; k < kParts; ++k) sum[k] = product[k] = zero;
    const int64_t whole = (end - p) / kLanes;
    const int rounds = whole < kTermsOfLane ? int(whole) : kTermsOfLane;
    for (int round = 0; round < rounds; ++round, p += kLanes, x += kLanes) {
#pragma GCC unroll 16
      for (int k = 0; k < kParts; ++k) {
        const V term = read(p + k * kCount);
        sum[k] += term;
        product[k] += term * ((read(x + k * kCount) - high) - low);
      }
    }
    C lanes[2][kLanes];
    int rest = rounds < kTermsOfLane ? int(end - p) : 0;
    if (rest >= kHalf) {
#pragma GCC unroll 16
      for (int k = 0; k < kHalfParts; ++k) {
        const V term = read(p + k * kCount);
        sum[k] += term;
        product[k] += term * ((read(x + k * kCount) - high) - low);
      }
      p += kHalf, x += kHalf, rest -= kHalf;
    }
    const int before = kHalf - rest;
    if (rest > 0 && p - start >= before) {
#pragma GCC unroll 16
      for (int k = 0; k < kHalfParts; ++k) {
        const auto counts = read(kLaneNumbers<C>.at + k * kCount) >= C(before);
        const V term = read(p - before + k * kCount);
        const V centred_x = (read(x - before + k * kCount) - high) - low;
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

// The lanes as they lie in memory, [2][kLanes], or zeros.
FASTACT_HD void set_lanes(Vector (&total)[2][kVectors], const double* from) {
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) {
    total[0][k] = from ? load(from + k * kVector) : Vector{};
    total[1][k] = from ? load(from + kLanes + k * kVector) : Vector{};
  }
}

template <class T>
FASTACT_HD void add_elements_of(const char* p, const char* x, const char* const* all, int64_t n,
                                Vector (&total)[2][kVectors]) {
  const OfChannel<Compute<T>> of{all, 0};
  add_elements(elements<T>(p), elements<T>(x), of(kHigh), of(kLow), n, total);
}

template <class T>
void add_segment(const char* p, const char* x, const char* const* all, int64_t n, double* sums) {
  Vector total[2][kVectors];
  set_lanes(total, nullptr);
  add_elements_of<T>(p, x, all, n, total);
  for (int s = 0; s < 2; ++s) sums[s] += fold_vectors(total[s]);
}

template <class T>
void add_piece(const char* p, const char* x, const char* const* all, int64_t n, double* lanes) {
  Vector total[2][kVectors];
  set_lanes(total, lanes);
  add_elements_of<T>(p, x, all, n, total);
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) {
    store(total[0][k], lanes + k * kVector);
    store(total[1][k], lanes + kLanes + k * kVector);
  }
}

// Elements of a segment from which on the next one is prefetched, and of that, at most.
constexpr int64_t kLeastPrefetched = 64, kPrefetchedSegment = 1024;

template <class T>
void add_channels(const char* first_p, const char* first_x, const char* const* all,
                  int64_t channels, int64_t segments, int64_t pitch, int64_t n, double* sums,
                  double* products) {
  for (int64_t c = 0; c < channels; ++c) {
    const T *p = elements<T>(first_p) + c * n, *x = elements<T>(first_x) + c * n;
    const OfChannel<Compute<T>> of{all, c};
    Vector total[2][kVectors];
    set_lanes(total, nullptr);
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
    sums[c] = fold_vectors(total[0]);
    products[c] = fold_vectors(total[1]);
  }
}

template <class T, int kRows>
FASTACT_HD void add_some(const T* p, const T* x, const char* const* all, int64_t n, Compute<T>* sum,
                         Compute<T>* product) {
  using C = Compute<T>;
  const C *high = elements<C>(all[kHigh]), *low = elements<C>(all[kLow]);
  if constexpr (is_half<T>) {
    Wide<T, kInRegisters> of_p, of_x;
    for_chunks<kInRegisters>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      C s[kInRegisters], q[kInRegisters];
      memcpy(s, sum + i, m * sizeof(C));
      memcpy(q, product + i, m * sizeof(C));
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) {
        const C *terms = of_p.read(p + k * n + i, m), *v = of_x.read(x + k * n + i, m);
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) {
          s[j] += terms[j];
          q[j] += terms[j] * centred(v[j], high[i + j], low[i + j]);
        }
      }
      memcpy(sum + i, s, m * sizeof(C));
      memcpy(product + i, q, m * sizeof(C));
    });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      C s = sum[i], q = product[i];
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) {
        const C term = p[k * n + i];
        s += term;
        q += term * centred(x[k * n + i], high[i], low[i]);
      }
      sum[i] = s, product[i] = q;
    }
  }
}

template <class T>
void add_rows(const char* p_, const char* x_, const char* const* all, int64_t rows, int64_t n,
              char* to, int64_t pitch) {
  const T *p = elements<T>(p_), *x = elements<T>(x_);
  Compute<T>*sum = reinterpret_cast<Compute<T>*>(to), *product = sum + pitch;
  int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce)
    add_some<T, kRowsAtOnce>(p + r * n, x + r * n, all, n, sum, product);
  for (; r < rows; ++r) add_some<T, 1>(p + r * n, x + r * n, all, n, sum, product);
}

template <class T>
void flush(char* from, double* sums, int64_t n) {
  Compute<T>* lanes = reinterpret_cast<Compute<T>*>(from);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += double(lanes[i]);
    lanes[i] = 0;
  }
}

}  // namespace

#define FASTACT_MAP(Map, T)                                          \
  {                                                                  \
    map_chunk<Map<Compute<T>>, T>, {                                 \
      map_segments<Map<Compute<T>>, T>, map_rows<Map<Compute<T>>, T> \
    }                                                                \
  }
#define FASTACT_BATCH(T)      \
  {FASTACT_MAP(Normalise, T), \
   FASTACT_MAP(Gradient, T),  \
   FASTACT_MAP(Scale, T),     \
   add_segment<T>,            \
   add_piece<T>,              \
   add_channels<T>,           \
   add_rows<T>,               \
   flush<T>}

extern const BatchNormTable batch_norm_table;
const BatchNormTable batch_norm_table = {
    {FASTACT_BATCH(f16), FASTACT_BATCH(bf16), FASTACT_BATCH(float), FASTACT_BATCH(double)}};

FASTACT_END_NAMESPACE
