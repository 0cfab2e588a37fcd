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
void normalise(const NormRow* rows, int64_t count, int64_t n, const char* weight,
               const char* bias) {
  using C = Compute<T>;
  const C *w = pointer<C>(weight), *b = pointer<C>(bias), one_w = *w, one_b = *b;
  for (const NormRow* row = rows; row < rows + count; ++row) {
    const T* x = pointer<T>(row->x);
    T* z = pointer<T>(row->z);
    const Centre<C> mean = centre_of<C>(row->stats.mean);
    const C rstd = C(row->stats.rstd);
    const auto of = [=](int64_t i, C v) FASTACT_INLINED {
      return affine(normalised(v, mean, rstd), weight_row ? w[i] : one_w, bias_row ? b[i] : one_b);
    };
    const auto over = [&](int64_t first, int64_t end) FASTACT_INLINED {
      if constexpr (is_half<T>) {
        map_indexed<kInRegisters>(x + first, z + first, end - first,
                                  [=](int64_t i, C v) FASTACT_INLINED { return of(first + i, v); });
      } else {
#pragma omp simd
        for (int64_t i = first; i < end; ++i) z[i] = of(i, x[i]);
      }
    };
    over_all(
        is_half<T> ? 0 : head_of(z, n), n, row->next.at[0],
        [&](int64_t i) FASTACT_INLINED { prefetch_next(row->next, i); }, over);
  }
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

template <class T>
FASTACT_HD RowGradient<Compute<T>> gradient_of(const RowStats& stats, const double* means) {
  using C = Compute<T>;
  return {C(stats.mean), C(stats.rstd), C(means[0]), C(means[1])};
}

// A lane of the compute type takes 8 terms before it is added to its lane of double: half as many
// instructions as with terms in double, which have to be converted one by one; they are rounded as
// a product is.
constexpr int kTermsOfLane = 8;

// sums OUT (2): the sums of n elements, on lanes that never leave the registers.
template <class T, bool weight_row>
FASTACT_HD void sum_whole(const T* p, const T* x, const Compute<T>* w, int64_t n,
                          const RowStats& stats, double* sums) {
  using C = Compute<T>;
  using Read = ComputeVector<T>;
  using V = typename Read::type;
  constexpr int kCount = Read::kCount;
  constexpr int kLanesOfT = kNormLanes * int(sizeof(float)) / int(sizeof(C));
  constexpr int kVectorsOfT = kLanesOfT / kCount;  // lanes are 128 bytes in all
  const RowGradient<C> of = {C(stats.mean), C(stats.rstd), 0, 0};
  const T* const end = p + n;
  Vector total[2][kVectors] = {};
  do {
    V g_sum[kVectorsOfT] = {}, gx_sum[kVectorsOfT] = {};
    const auto add = [&](int k) FASTACT_INLINED {
      V g = Read::load(p + k * kCount);
      if (weight_row) g *= Read::load(w + k * kCount);
      g_sum[k] += g;
      gx_sum[k] += g * of.xhat(Read::load(x + k * kCount));
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
    C lanes[2][kLanesOfT];
    memcpy(lanes[0], g_sum, sizeof lanes[0]);
    memcpy(lanes[1], gx_sum, sizeof lanes[1]);
    for (int lane = rest / kCount * kCount; lane < rest; ++lane) {
      const C of_p = C(widen(p[lane])), g = weight_row ? of_p * w[lane] : of_p;
      lanes[0][lane] += g;
      lanes[1][lane] += g * of.xhat(C(widen(x[lane])));
    }
    p += rest;
#pragma GCC unroll 16
    for (int k = 0; k < kLanesOfT / kVector; ++k)
#pragma GCC unroll 2
      for (int s = 0; s < 2; ++s) total[s][k] += load(lanes[s] + k * kVector);
  } while (p != end);
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

// Rows of 16 bits are finished by as many elements at once as registers hold.
template <class T, bool weight_row, bool has_sums, int count>
void finish_some(const BackwardRow* rows, int64_t column, int64_t n, const Compute<T>* w,
                 Compute<T>* dweight, Compute<T>* dbias) {
  using C = Compute<T>;
  const T *of_p[count], *of_x[count];
  T* of_dx[count];
  RowGradient<C> of[count];
  for (int k = 0; k < count; ++k) {
    of_p[k] = pointer<T>(rows[k].p) + column;
    of_x[k] = pointer<T>(rows[k].x) + column;
    of_dx[k] = pointer<T>(rows[k].dx) + column;
    of[k] = gradient_of<T>(rows[k].stats, rows[k].means);
  }
  const C one_w = *w;
  const auto finish = [&](const C* const(&p)[count], const C* const(&x)[count],
                          C* const(&dx)[count], const C* weights, C* dw_row, C* db_row,
                          int64_t first, int64_t end) FASTACT_INLINED {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      const C weight = weight_row ? weights[i] : one_w;
      C dw = has_sums ? dw_row[i] : 0, db = has_sums ? db_row[i] : 0;
#pragma GCC unroll 4
      for (int k = 0; k < count; ++k) {
        const C product = p[k][i], xhat = of[k].xhat(x[k][i]);
        if (has_sums) dw = weight_sum(dw, product, xhat), db += product;
        dx[k][i] = of[k].dx(product * weight, xhat);
      }
      if (has_sums) dw_row[i] = dw, db_row[i] = db;
    }
  };
  const auto over = [&](int64_t first, int64_t end) FASTACT_INLINED {
    if constexpr (!is_half<T>)
      finish(of_p, of_x, of_dx, w, dweight, dbias, first, end);
    else
      for_chunks<kInRegisters>(end - first, [&](int64_t done, int64_t m) FASTACT_INLINED {
        Wide<T, kInRegisters> wide_p[count], wide_x[count], wide_dx[count];
        const int64_t at = first + done, step = has_sums ? at : 0;
        const C *p[count], *x[count];
        C* dx[count];
#pragma GCC unroll 4
        for (int k = 0; k < count; ++k) {
          p[k] = wide_p[k].read(of_p[k] + at, m);
          x[k] = wide_x[k].read(of_x[k] + at, m);
          dx[k] = wide_dx[k].to(of_dx[k] + at);
        }
        finish(p, x, dx, weight_row ? w + at : w, dweight + step, dbias + step, 0, m);
#pragma GCC unroll 4
        for (int k = 0; k < count; ++k) wide_dx[k].finish(of_dx[k] + at, m);
      });
  };
  const auto prefetch_all = [&](int64_t i) FASTACT_INLINED {
    for (int k = 0; k < count; ++k) prefetch_next(rows[k].next, column + i);
  };
  over_all(is_half<T> ? 0 : head_of(of_dx[0], n), n, rows[0].next.at[0], prefetch_all, over);
}

// By `most` rows at once, then by half as many: with sums, which are then loaded and stored less
// often.
template <class T, bool weight_row, bool has_sums, int most>
FASTACT_HD void finish_all(const BackwardRow* rows, int64_t count, int64_t column, int64_t n,
                           const Compute<T>* w, Compute<T>* dw, Compute<T>* db) {
  for (; count >= most; count -= most, rows += most)
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
