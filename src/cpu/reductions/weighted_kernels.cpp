// The kernels of reductions/weighted_kernels.h.
#include "cpu/reductions/weighted_kernels.h"

#include <type_traits>

#include "common/reductions/weights.h"
#include "cpu/core/kernel_table.h"
#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr double kLargest = __DBL_MAX__;

// A vector of elements with their weights onto two lanes. w becomes weight_of(x, w), and x 0 where
// that is 0; the product of what was converted is exact.
template <WeightedTerms terms, bool is_converted_, bool skips>
FASTACT_HD void add_elements(Vector x, Vector w, Vector centre, Vector one, Vector& first,
                             Vector& second) {
  const Vector none = {};
  w = (w >= none) & (w <= none + kLargest) ? w : none + __builtin_nan("");
  const auto counts = skips ? (w != none) & (x == x) : w != none;
  w = counts ? w : none;
  x = counts ? x : none;
  if constexpr (terms == kPlain) {
    first = is_converted_ ? madd(w, x, first) : first + w * x;
    second = is_converted_ ? add_converted(w, one, second) : second + w;
  } else {
    const Vector d = x - centre, product = w * d;
    first += product;
    second += terms == kSquares ? product * d : w;
  }
}

// `count` vectors of columns from `column` on, or the `some` numbers of one that is not whole: of
// all rows, in registers.
template <WeightedTerms terms, bool skips, class T, class W, int count, bool is_some = false>
FASTACT_HD void add_columns(const WeightedRows& x, const WeightedRows& weights, int64_t step,
                            int64_t rows, int64_t column, const double* centre, double* first,
                            double* second, bool fresh, int64_t some = 0) {
  constexpr bool is_exact = is_converted<T> && is_converted<W>;
  const Vector one = Vector{} + hidden_one();
  Vector a[count], b[count], from[count] = {};
#pragma GCC unroll 4
  for (int k = 0; k < count; ++k) {
    const int64_t c = column + k * kVector;
    a[k] = b[k] = -Vector{};
    if (!fresh) a[k] = is_some ? load_some(first + c, some) : load(first + c);
    if (!fresh) b[k] = is_some ? load_some(second + c, some) : load(second + c);
    if (terms != kPlain) from[k] = is_some ? load_some(centre + c, some) : load(centre + c);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const T* const of_x = reinterpret_cast<const T*>(x.x + x.offsets[i * step]) + column;
    const W* const of_w =
        reinterpret_cast<const W*>(weights.x + weights.offsets[i * step]) + column;
    if (!is_some && x.ahead) prefetch<count * kVector>(of_x, x.ahead);
    if (!is_some && weights.ahead) prefetch<count * kVector>(of_w, weights.ahead);
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      const Vector v = is_some ? load_some(of_x, some, Vector{}) : load(of_x + k * kVector);
      const Vector w = is_some ? load_some(of_w, some, Vector{}) : load(of_w + k * kVector);
      add_elements<terms, is_exact, skips>(v, w, from[k], one, a[k], b[k]);
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < count; ++k) {
    const size_t bytes = is_some ? some * sizeof(double) : sizeof(Vector);
    memcpy(first + column + k * kVector, &a[k], bytes);
    memcpy(second + column + k * kVector, &b[k], bytes);
  }
}

template <WeightedTerms terms, bool skips, class T, class W>
void add(const WeightedRows& x, const WeightedRows& weights, int64_t step, int64_t rows,
         int64_t columns, const double* centre, double* first, double* second, bool fresh) {
  constexpr int kAtOnce = 4;
  int64_t c = 0;
  for (; c + kAtOnce * kVector <= columns; c += kAtOnce * kVector)
    add_columns<terms, skips, T, W, kAtOnce>(x, weights, step, rows, c, centre, first, second,
                                             fresh);
  for (; c + kVector <= columns; c += kVector)
    add_columns<terms, skips, T, W, 1>(x, weights, step, rows, c, centre, first, second, fresh);
  if (c < columns)
    add_columns<terms, skips, T, W, 1, true>(x, weights, step, rows, c, centre, first, second,
                                             fresh, columns - c);
}

// The masks of `mask` and of `choose` are loops of their own: with both choices in one GCC would
// take it apart at -O2, and not vectorise it (tests/activations/test_vectorised.py).
void mask(double* weights, const double* where, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) weights[i] = where[i] != 0 ? weights[i] : 0.0;
}

void choose(double* x, double* weights, bool skips, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double w = weight_of(x[i], weights[i], skips);
    weights[i] = w;
    x[i] = w == 0 ? 0.0 : x[i];
  }
}

template <int of, bool accumulate>
void gradient(const double* dy, const double* slope, const double* x, const double* weights,
              const double* mean, double* __restrict to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double w = weights[i], s = slope[i] * dy[i];
    double found;
    if constexpr (of == kMeanByX)
      found = gradient_of_mean(s, w);
    else if constexpr (of == kSecondByX)
      found = gradient_of_second(s, w, x[i] - mean[i]);
    else
      found = gradient_of_weight(s, x[i] - mean[i]);
    if constexpr (of == kMeanByWeights) found = w == 0 ? 0.0 : found;
    to[i] = accumulate ? to[i] + found : found;
  }
}

}  // namespace

#define FASTACT_ADD(T) {add<kPlain, false, T, T>, add<kPlain, false, T, double>}
#define FASTACT_ADD_STAGED(terms) \
  {add<terms, false, double, double>, add<terms, true, double, double>}
#define FASTACT_GRADIENT(of) {gradient<of, false>, gradient<of, true>}

extern const WeightingKernels weighting_kernels;
const WeightingKernels weighting_kernels = {
    {FASTACT_ADD(f16), FASTACT_ADD(bf16), FASTACT_ADD(float), FASTACT_ADD(double)},
    {FASTACT_ADD_STAGED(kPlain), FASTACT_ADD_STAGED(kAboutCentre), FASTACT_ADD_STAGED(kSquares)},
    mask,
    choose,
    {FASTACT_GRADIENT(kMeanByX), FASTACT_GRADIENT(kSecondByX), FASTACT_GRADIENT(kMeanByWeights)},
};

FASTACT_END_NAMESPACE
