// The kernels of norms/channels/channels_last_kernels.h.
#include "cpu/norms/channels/channels_last_kernels.h"

#include "common/norms/norms.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
const T* coefficient(const char* const* coefficients, int which) {
  return reinterpret_cast<const T*>(coefficients[which]);
}

// Pointers to kRows rows, and on to those that follow.
template <class T, int kRows>
struct Rows {
  T* at[kRows];
  template <class Char>
  explicit Rows(Char* const* rows) {
    for (int k = 0; k < kRows; ++k) at[k] = reinterpret_cast<T*>(rows[k]);
  }
};

// As many calls with 8 rows as there are, the others one by one.
template <class Visit8, class Visit1>
FASTACT_HD void for_rows(int64_t rows, bool apart, Visit8 eight, Visit1 one) {
  int64_t r = 0;
  for (; !apart && r + kColumnRows <= rows; r += kColumnRows) eight(r);
  for (; r < rows; ++r) one(r);
}

template <class T, int kRows>
void normalise_rows(const char* const* from, int64_t n, const char* const* coefficients,
                    char* const* to) {
  const Rows<const T, kRows> x(from);
  const Rows<T, kRows> z(to);
  const T *high = coefficient<T>(coefficients, kColumnHigh),
          *low = coefficient<T>(coefficients, kColumnLow),
          *rstd = coefficient<T>(coefficients, kColumnRstd),
          *w = coefficient<T>(coefficients, kColumnWeight),
          *b = coefficient<T>(coefficients, kColumnBias);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T mean = high[i], rest = low[i];  // a Centre made here would stay in memory
#pragma GCC unroll 8
    for (int k = 0; k < kRows; ++k)
      z.at[k][i] = affine(normalised(x.at[k][i], Centre<T>{mean, rest}, rstd[i]), w[i], b[i]);
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
  const Rows<const T, kRows> p(from_p), x(from_x);
  const T *mean = coefficient<T>(coefficients, kColumnHigh),
          *rstd = coefficient<T>(coefficients, kColumnRstd);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T sum = 0, product = 0;
#pragma GCC unroll 8
    for (int k = 0; k < kRows; ++k) {
      const T term = p.at[k][i];
      sum += term;
      product += term * ((x.at[k][i] - mean[i]) * rstd[i]);
    }
    sums[i] += double(sum);
    products[i] += double(product);
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
  const Rows<const T, kRows> p(from_p), x(from_x);
  const Rows<T, kRows> dx(to);
  const T *mean = coefficient<T>(coefficients, kColumnHigh),
          *rstd = coefficient<T>(coefficients, kColumnRstd),
          *w = coefficient<T>(coefficients, kColumnWeight),
          *mean_g = coefficient<T>(coefficients, kColumnMeanG),
          *mean_gx = coefficient<T>(coefficients, kColumnMeanGx);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < kRows; ++k)
      dx.at[k][i] = input_gradient(p.at[k][i] * w[i], (x.at[k][i] - mean[i]) * rstd[i], rstd[i],
                                   mean_g[i], mean_gx[i]);
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

extern const ChannelsLastTable channels_last_table;
const ChannelsLastTable channels_last_table = {
    {{normalise<float>, add_sums<float>, finish<float>},
     {normalise<double>, add_sums<double>, finish<double>}}};

FASTACT_END_NAMESPACE
