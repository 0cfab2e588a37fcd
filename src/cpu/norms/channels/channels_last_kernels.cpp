// The kernels of norms/channels/channels_last_kernels.h.
#include "cpu/norms/channels/channels_last_kernels.h"

#include "common/norms/norms.h"
#include "cpu/simd/map_span.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
const T* coefficient(const char* const* coefficients, int which) {
  return reinterpret_cast<const T*>(coefficients[which]);
}

// Pointers to kRows rows.
template <class T, int kRows>
struct Rows {
  T* at[kRows];
  template <class Char>
  explicit Rows(Char* const* rows) {
    for (int k = 0; k < kRows; ++k) at[k] = reinterpret_cast<T*>(rows[k]);
  }
};

// Visits rows by eight as long as there are eight, and the others one by one.
template <class Visit8, class Visit1>
FASTACT_HD void for_rows(int64_t rows, bool apart, Visit8 eight, Visit1 one) {
  int64_t r = 0;
  for (; !apart && r + kColumnRows <= rows; r += kColumnRows) eight(r);
  for (; r < rows; ++r) one(r);
}

template <class T, int kRows>
void normalise_rows(const char* const* from, int64_t n, const char* const* coefficients,
                    char* const* to) {
  using C = Compute<T>;
  const Rows<const T, kRows> x(from);
  const Rows<T, kRows> z(to);
  const C *high = coefficient<C>(coefficients, kColumnHigh),
          *low = coefficient<C>(coefficients, kColumnLow),
          *rstd = coefficient<C>(coefficients, kColumnRstd),
          *w = coefficient<C>(coefficients, kColumnWeight),
          *b = coefficient<C>(coefficients, kColumnBias);
  const auto of = [=](C v, C mean, C rest, int64_t i) FASTACT_INLINED {
    return affine(normalised(v, Centre<C>{mean, rest}, rstd[i]), w[i], b[i]);
  };
  if constexpr (is_half<T>) {
    for (int k = 0; k < kRows; ++k)
      map_indexed<kInRegisters>(x.at[k], x.at[k], z.at[k], n,
                                [=](int64_t i, C v, C)
                                    FASTACT_INLINED { return of(v, high[i], low[i], i); });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const C mean = high[i], rest = low[i];  // a Centre made here would stay in memory
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) z.at[k][i] = of(x.at[k][i], mean, rest, i);
    }
  }
}

template <class T>
void normalise(const char* const* x, int64_t rows, int64_t n, const char* const* coefficients,
               char* const* z, bool apart) {
  for_rows(
      rows, apart,
      [&](int64_t r) { normalise_rows<T, kColumnRows>(x + r, n, coefficients, z + r); },
      [&](int64_t r) { normalise_rows<T, 1>(x + r, n, coefficients, z + r); });
}

template <class T, int kRows>
void add_rows(const char* const* from_p, const char* const* from_x, int64_t n,
              const char* const* coefficients, double* sums, double* products) {
  using C = Compute<T>;
  const Rows<const T, kRows> p(from_p), x(from_x);
  const C *mean = coefficient<C>(coefficients, kColumnHigh),
          *rstd = coefficient<C>(coefficients, kColumnRstd);
  if constexpr (is_half<T>) {
    Wide<T, kInRegisters> of_p, of_x;
    for_chunks<kInRegisters>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      C sum[kInRegisters] = {}, product[kInRegisters] = {};
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) {
        const C *terms = of_p.read(p.at[k] + i, m), *v = of_x.read(x.at[k] + i, m);
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) {
          sum[j] += terms[j];
          product[j] += terms[j] * xhat_of(v[j], mean[i + j], rstd[i + j]);
        }
      }
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) {
        sums[i + j] += double(sum[j]);
        products[i + j] += double(product[j]);
      }
    });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      C sum = 0, product = 0;
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) {
        const C term = p.at[k][i];
        sum += term;
        product += term * xhat_of(x.at[k][i], mean[i], rstd[i]);
      }
      sums[i] += double(sum);
      products[i] += double(product);
    }
  }
}

template <class T>
void add_sums(const char* const* p, const char* const* x, int64_t rows, int64_t n,
              const char* const* coefficients, double* sums, double* products) {
  for_rows(
      rows, false,
      [&](int64_t r) { add_rows<T, kColumnRows>(p + r, x + r, n, coefficients, sums, products); },
      [&](int64_t r) { add_rows<T, 1>(p + r, x + r, n, coefficients, sums, products); });
}

template <class T, int kRows>
void finish_rows(const char* const* from_p, const char* const* from_x, int64_t n,
                 const char* const* coefficients, char* const* to) {
  using C = Compute<T>;
  const Rows<const T, kRows> p(from_p), x(from_x);
  const Rows<T, kRows> dx(to);
  const C *mean = coefficient<C>(coefficients, kColumnHigh),
          *rstd = coefficient<C>(coefficients, kColumnRstd),
          *w = coefficient<C>(coefficients, kColumnWeight),
          *mean_g = coefficient<C>(coefficients, kColumnMeanG),
          *mean_gx = coefficient<C>(coefficients, kColumnMeanGx);
  const auto of = [=](int64_t i, C product, C v) FASTACT_INLINED {
    const RowGradient<C> row = {mean[i], rstd[i], mean_g[i], mean_gx[i]};
    return row.dx(product * w[i], row.xhat(v));
  };
  if constexpr (is_half<T>) {
    for (int k = 0; k < kRows; ++k) map_indexed<kInRegisters>(p.at[k], x.at[k], dx.at[k], n, of);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) dx.at[k][i] = of(i, p.at[k][i], x.at[k][i]);
    }
  }
}

template <class T>
void finish(const char* const* p, const char* const* x, int64_t rows, int64_t n,
            const char* const* coefficients, char* const* dx, bool apart) {
  for_rows(
      rows, apart,
      [&](int64_t r) { finish_rows<T, kColumnRows>(p + r, x + r, n, coefficients, dx + r); },
      [&](int64_t r) { finish_rows<T, 1>(p + r, x + r, n, coefficients, dx + r); });
}

}  // namespace

#define FASTACT_KERNELS(T) {normalise<T>, add_sums<T>, finish<T>}

extern const ChannelsLastTable channels_last_table;
const ChannelsLastTable channels_last_table = {
    {FASTACT_KERNELS(f16), FASTACT_KERNELS(bf16), FASTACT_KERNELS(float), FASTACT_KERNELS(double)}};

FASTACT_END_NAMESPACE
