// The kernels of norms/rows/kernels.h.
#include "cpu/norms/rows/kernels.h"

#include "common/norms/rows.h"
#include "cpu/simd/accumulators.h"
#include "cpu/simd/map_span.h"

FASTACT_BEGIN_NAMESPACE
namespace {

static_assert(kVectors * kVector == kNormLanes);  // both sums fold alike

// Some bytes, to be read or written soon. A kernel that reads a chunk, computes, and then reads the
// next one leaves the memory idle while it computes: the hardware's prefetcher stops at the end of
// a page, which is a chunk of float.
FASTACT_HD void prefetch_range(const char* at, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += kCacheLine) __builtin_prefetch(at + byte, 0, 2);
}

// Prefetches kPrefetchStep elements.
FASTACT_HD void prefetch_next(const NextChunk& next, int64_t element) {
  for (const char* at : next.at)
    if (at) prefetch_range(at + element * next.item, kPrefetchStep * next.item);
}

constexpr int64_t kLeastPeeled = 256;  // shorter chunks gain less than the peeling costs

// Elements up to the next one at a multiple of 64 bytes, from where on a vector's store and the
// loads beside it touch one line each, not two.
template <class T>
FASTACT_HD int64_t head_of(const T* at, int64_t n) {
  if (n < kLeastPeeled) return 0;
  return int64_t(-reinterpret_cast<uintptr_t>(at) % 64 / sizeof(T));
}

// over(first, end) for the elements up to `head`, and for those that follow: kPrefetchStep of them
// at a time where some others are prefetched. `over` stands here once, and so is inlined once.
template <class Prefetch, class Over>
FASTACT_HD void over_all(int64_t head, int64_t n, bool has_next, Prefetch prefetch, Over over) {
  for (int64_t i = 0, end = head; i < n;) {
    over(i, end);
    i = end;
    const bool prefetches = has_next && i + kPrefetchStep <= n;
    if (prefetches) prefetch(i);
    end = prefetches ? i + kPrefetchStep : n;
  }
}

template <class Norm>
void roots(double* squares, int64_t n, double count, double eps) {
  for (int64_t i = n; i < kRoots; ++i) squares[i] = 1.0;
#pragma omp simd
  for (int i = 0; i < kRoots; ++i) squares[i] = rstd_of<Norm>(squares[i], count, eps);
}

template <class T, bool weight_row, bool bias_row>
FASTACT_HD void normalise_one(const NormRow& row, int64_t n, const Compute<T>* w,
                              const Compute<T>* b) {
  using C = Compute<T>;
  const T* x = pointer<T>(row.x);
  T* z = pointer<T>(row.z);
  const Centre<C> mean = centre_of<C>(row.stats.mean);
  const C rstd = C(row.stats.rstd), one_w = *w, one_b = *b;
  const auto of = [=](int64_t i, C v) FASTACT_INLINED {
    return affine(normalised(v, mean, rstd), weight_row ? w[i] : one_w, bias_row ? b[i] : one_b);
  };
  const auto over = [&](int64_t first, int64_t end) FASTACT_INLINED {
    if constexpr (is_half<T>) {
      map_indexed<kInRegisters>(x + first, x + first, z + first, end - first,
                                [=](int64_t i, C v, C)
                                    FASTACT_INLINED { return of(first + i, v); });
    } else {
#pragma omp simd
      for (int64_t i = first; i < end; ++i) z[i] = of(i, x[i]);
    }
  };
  over_all(
      is_half<T> ? 0 : head_of(z, n), n, row.next.at[0],
      [&](int64_t i) FASTACT_INLINED { prefetch_next(row.next, i); }, over);
}

template <class T>
FASTACT_HD T value_of(const SpanValues& values, int64_t span) {
  return *pointer<T>(values.at + span * values.step);
}

FASTACT_HD void prefetch_span(const NextChunk& next, int64_t span, int64_t n) {
  if (!next.at[0]) return;
  for (int64_t i = 0; i < n; i += kPrefetchStep) prefetch_next(next, span * n + i);
}

// Elements of a span that are mapped at once.
template <class T>
constexpr int kSpanStep = is_half<T> ? kInRegisters : kCacheLine / sizeof(T);
static_assert(kInRegisters <= kLeastSpan);

template <class T>
void normalise_spans(const NormRow& row, int64_t spans, int64_t n, const SpanValues& weight,
                     const SpanValues& bias) {
  using C = Compute<T>;
  const T* x = pointer<T>(row.x);
  T* z = pointer<T>(row.z);
  const Centre<C> mean = centre_of<C>(row.stats.mean);
  const C rstd = C(row.stats.rstd);
  for (int64_t r = 0; r < spans; ++r, x += n, z += n) {
    const C w = value_of<C>(weight, r), b = value_of<C>(bias, r);
    prefetch_span(row.next, r, n);
    map_span<kSpanStep<T>>(x, x, z, n, [=](C v, C) FASTACT_INLINED {
      return affine(normalised(v, mean, rstd), w, b);
    });
  }
}

template <class T, bool weight_row, bool bias_row>
void normalise(const NormRow* rows, int64_t count, int64_t n, const char* weight,
               const char* bias) {
  using C = Compute<T>;
  const C *w = pointer<C>(weight), *b = pointer<C>(bias);
  for (int64_t k = 0; k < count; ++k) normalise_one<T, weight_row, bias_row>(rows[k], n, w, b);
}

template <class T>
FASTACT_HD RowGradient<Compute<T>> gradient_of(const RowStats& stats, const double* means) {
  using C = Compute<T>;
  return {C(stats.mean), C(stats.rstd), C(means[0]), C(means[1])};
}
// For the sums alone, from which the means follow.
template <class T>
FASTACT_HD RowGradient<Compute<T>> gradient_of(const RowStats& stats) {
  return {Compute<T>(stats.mean), Compute<T>(stats.rstd), 0, 0};
}

// A lane of the compute type takes 8 terms before it is added to its lane of double: half as many
// instructions as with terms in double, which have to be converted one by one; they are rounded as
// a product is.
constexpr int kTermsOfLane = 8;

// The sums of up to kTermsOfLane rounds of lanes, and of a rest; moves p, x and w on.
template <class T, bool weight_row>
struct LaneSums {
  using C = Compute<T>;
  static constexpr int kCount = ComputeVector<T>::kCount;
  static constexpr int kLanesOfT = kNormLanes * int(sizeof(float)) / int(sizeof(C));
  static constexpr int kVectorsOfT = kLanesOfT / kCount;  // lanes are 128 bytes in all
  C sums[2][kLanesOfT];

  FASTACT_HD void take(const T*& p, const T* end, const T*& x, const C*& w,
                       const RowGradient<C>& of) {
    using V = typename ComputeVector<T>::type;
    V g_sum[kVectorsOfT] = {}, gx_sum[kVectorsOfT] = {};
    const auto add = [&](int k) FASTACT_INLINED {
      V g = ComputeVector<T>::load(p + k * kCount);
      if (weight_row) g *= ComputeVector<T>::load(w + k * kCount);
      g_sum[k] += g;
      gx_sum[k] += g * of.xhat(ComputeVector<T>::load(x + k * kCount));
    };
    const int64_t left = end - p;
    const int rounds = left >= kTermsOfLane * kLanesOfT ? kTermsOfLane : int(left / kLanesOfT);
    for (int round = 0; round < rounds; ++round, p += kLanesOfT, x += kLanesOfT) {
      prefetch<kLanesOfT>(p, kAhead);
      prefetch<kLanesOfT>(x, kAhead);
#pragma GCC unroll 16
      for (int k = 0; k < kVectorsOfT; ++k) add(k);
      if (weight_row) w += kLanesOfT;
    }
    const int rest = rounds == kTermsOfLane ? 0 : int(end - p);
#pragma GCC unroll 16
    for (int k = 0; k < kVectorsOfT; ++k)
      if (rest >= (k + 1) * kCount) add(k);
    memcpy(sums[0], g_sum, sizeof sums[0]);
    memcpy(sums[1], gx_sum, sizeof sums[1]);
    for (int lane = rest / kCount * kCount; lane < rest; ++lane) {
      const C of_p = C(widen(p[lane])), g = weight_row ? of_p * w[lane] : of_p;
      sums[0][lane] += g;
      sums[1][lane] += g * of.xhat(C(widen(x[lane])));
    }
    p += rest;
  }
};

// sums OUT (2): the sums of n elements, on lanes that never leave the registers.
template <class T, bool weight_row>
FASTACT_HD void sum_whole(const T* p, const T* x, const Compute<T>* w, int64_t n,
                          const RowStats& stats, double* sums) {
  constexpr int kVectorsOfLanes = LaneSums<T, weight_row>::kLanesOfT / kVector;
  const RowGradient<Compute<T>> of = gradient_of<T>(stats);
  const T* const end = p + n;
  Vector total[2][kVectors];
  LaneSums<T, weight_row> some;
  const auto add = [&](bool is_first) FASTACT_INLINED {
    some.take(p, end, x, w, of);
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k)
#pragma GCC unroll 2
      for (int s = 0; s < 2; ++s) {
        const Vector terms = k < kVectorsOfLanes ? load(some.sums[s] + k * kVector) : Vector{};
        total[s][k] = is_first ? terms : total[s][k] + terms;
      }
  };
  add(true);
  while (p != end) add(false);
  for (int s = 0; s < 2; ++s) sums[s] = fold_vectors(total[s]) + 0.0;  // never -0
}

template <class T, bool weight_row>
void sum_rows(BackwardRow* rows, int64_t count, int64_t n, const char* weight, bool prefetches_dx) {
  for (int64_t i = 0; i < count; ++i) {
    BackwardRow& row = rows[i];
    if (prefetches_dx) prefetch_range(row.dx, n * sizeof(T));
    sum_whole<T, weight_row>(pointer<T>(row.p), pointer<T>(row.x), pointer<Compute<T>>(weight), n,
                             row.stats, row.means);
  }
}

template <class T>
void sum_spans(const BackwardRow& row, int64_t first, int64_t spans, int64_t n, double* both) {
  const T *p = pointer<T>(row.p) + first * n, *x = pointer<T>(row.x) + first * n;
  for (int64_t r = 0; r < spans; ++r)
    sum_whole<T, false>(p + r * n, x + r * n, nullptr, n, row.stats, both + 2 * r);
}

// The operands of `finish` for `count` rows, from a column on.
template <class T, int count>
struct RowsToFinish {
  using C = Compute<T>;
  const T *p[count], *x[count];
  T* dx[count];
  RowGradient<C> of[count];

  FASTACT_HD RowsToFinish(const BackwardRow* rows, int64_t column) {
    for (int k = 0; k < count; ++k) {
      p[k] = pointer<T>(rows[k].p) + column;
      x[k] = pointer<T>(rows[k].x) + column;
      dx[k] = pointer<T>(rows[k].dx) + column;
      of[k] = gradient_of<T>(rows[k].stats, rows[k].means);
    }
  }
};

template <class T, bool weight_row, bool has_sums, int count>
void finish_some(const BackwardRow* rows, int64_t column, int64_t n, const T* w, T* dweight,
                 T* dbias) {
  const RowsToFinish<T, count> all(rows, column);
  const T one_w = *w;
  const auto over = [&](int64_t first, int64_t end) FASTACT_INLINED {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      const T weight = weight_row ? w[i] : one_w;
      T dw = has_sums ? dweight[i] : 0, db = has_sums ? dbias[i] : 0;
#pragma GCC unroll 4
      for (int k = 0; k < count; ++k) {
        const T product = all.p[k][i], xhat = all.of[k].xhat(all.x[k][i]);
        if (has_sums) dw = weight_sum(dw, product, xhat), db += product;
        all.dx[k][i] = all.of[k].dx(product * weight, xhat);
      }
      if (has_sums) dweight[i] = dw, dbias[i] = db;
    }
  };
  const auto prefetch_all = [&](int64_t i) FASTACT_INLINED {
    for (int k = 0; k < count; ++k) prefetch_next(rows[k].next, column + i);
  };
  over_all(head_of(all.dx[0], n), n, rows[0].next.at[0], prefetch_all, over);
}

// Finishes rows of 16 bits, as many elements at once as registers hold.
template <class T, bool weight_row, bool has_sums, int count>
void finish_halves(const BackwardRow* rows, int64_t column, int64_t n, const float* w,
                   float* dweight, float* dbias) {
  const RowsToFinish<T, count> all(rows, column);
  const float one_w = *w;
  Wide<T, kInRegisters> of_p, of_x, of_dx;
  const bool has_next = rows[0].next.at[0];
  for_chunks<kInRegisters>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    for (int k = 0; has_next && i % kPrefetchStep == 0 && k < count; ++k)
      prefetch_next(rows[k].next, column + i);
    float weights[kInRegisters], dw[kInRegisters], db[kInRegisters];
#pragma omp simd
    for (int64_t j = 0; j < m; ++j) {
      weights[j] = weight_row ? w[i + j] : one_w;
      dw[j] = has_sums ? dweight[i + j] : 0;
      db[j] = has_sums ? dbias[i + j] : 0;
    }
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      const float *of_row = of_p.read(all.p[k] + i, m), *v = of_x.read(all.x[k] + i, m);
      float* const made = of_dx.to(all.dx[k] + i);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) {
        const float product = of_row[j], xhat = all.of[k].xhat(v[j]);
        if (has_sums) dw[j] = weight_sum(dw[j], product, xhat), db[j] += product;
        made[j] = all.of[k].dx(product * weights[j], xhat);
      }
      of_dx.finish(all.dx[k] + i, m);
    }
#pragma omp simd
    for (int64_t j = 0; j < m; ++j)
      if (has_sums) dweight[i + j] = dw[j], dbias[i + j] = db[j];
  });
}

// By `most` rows at once, then by half as many: with sums, which are then loaded and stored less
// often.
template <class T, bool weight_row, bool has_sums, int most>
FASTACT_HD void finish_all(const BackwardRow* rows, int64_t count, int64_t column, int64_t n,
                           const Compute<T>* w, Compute<T>* dw, Compute<T>* db) {
  for (; count >= most; count -= most, rows += most)
    if constexpr (is_half<T>)
      finish_halves<T, weight_row, has_sums, most>(rows, column, n, w, dw, db);
    else
      finish_some<T, weight_row, has_sums, most>(rows, column, n, w, dw, db);
  if constexpr (most > 1)
    finish_all<T, weight_row, has_sums, most / 2>(rows, count, column, n, w, dw, db);
}

template <class T, bool weight_row>
void finish(const BackwardRow* rows, int64_t count, int64_t column, int64_t n, const char* weight,
            char* dweight, char* dbias) {
  using C = Compute<T>;
  const C* w = pointer<C>(weight);
  C *dw = pointer<C>(dweight), *db = pointer<C>(dbias);
  dw ? finish_all<T, weight_row, true, is_half<T> ? 2 : kQuad>(rows, count, column, n, w, dw, db)
     : finish_all<T, weight_row, false, is_half<T> ? 1 : kQuad>(rows, count, column, n, w, dw, db);
}

template <class T>
void finish_spans(const BackwardRow& row, int64_t first, int64_t spans, int64_t n,
                  const SpanValues& weight) {
  using C = Compute<T>;
  const T *p = pointer<T>(row.p) + first * n, *x = pointer<T>(row.x) + first * n;
  T* dx = pointer<T>(row.dx) + first * n;
  const RowGradient<C> of = gradient_of<T>(row.stats, row.means);
  for (int64_t r = 0; r < spans; ++r, p += n, x += n, dx += n) {
    const C w = value_of<C>(weight, r);
    prefetch_span(row.next, first + r, n);
    map_span<kSpanStep<T>>(p, x, dx, n, [=](C product, C v) FASTACT_INLINED {
      return of.dx(product * w, of.xhat(v));
    });
  }
}

template <class T>
void add_band(const char* sums, int64_t n, double* total) {
  const T* from = pointer<T>(sums);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) total[i] += double(from[i]);
}

}  // namespace

#define FASTACT_ROOTS(Norm) roots<Norm>,
#define FASTACT_NORM(T)                                         \
  {                                                             \
      {FASTACT_ROW_NORMS(FASTACT_ROOTS)},                       \
      {{normalise<T, false, false>, normalise<T, false, true>}, \
       {normalise<T, true, false>, normalise<T, true, true>}},  \
      normalise_spans<T>,                                       \
      {sum_rows<T, false>, sum_rows<T, true>},                  \
      {finish<T, false>, finish<T, true>},                      \
      sum_spans<T>,                                             \
      finish_spans<T>,                                          \
      add_band<Compute<T>>,                                     \
  }
#if defined(__AVX2__)
#define FASTACT_NORM_OF_HALVES(T) FASTACT_NORM(T)
#else
#define FASTACT_NORM_OF_HALVES(T) \
  {                               \
  }
#endif

extern const NormTable norm_table;
const NormTable norm_table = {{FASTACT_NORM_OF_HALVES(f16), FASTACT_NORM_OF_HALVES(bf16),
                               FASTACT_NORM(float), FASTACT_NORM(double)}};

FASTACT_END_NAMESPACE
