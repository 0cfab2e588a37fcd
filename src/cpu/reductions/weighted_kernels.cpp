// The kernels of reductions/weighted_kernels.h.
#include "cpu/reductions/weighted_kernels.h"

#include <cstring>
#include <type_traits>

#include "common/reductions/terms.h"
#include "common/reductions/weights.h"
#include "cpu/simd/accumulators.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Whether an element is added unseen, or after a look at its weight, or at x as well.
enum Look { kTrusts, kWeighs, kSkips };

// A vector of elements with their weights onto two lanes. The first steps are weight_of
// (common/reductions/weights.h) of vectors: a finite weight is one up to the largest number. The
// product of the converted factors is exact.
template <WeightedTerms what, bool is_exact, Look look>
FASTACT_HD void add_elements(Vector x, Vector w, Vector centre, Vector one, Vector& first,
                             Vector& second) {
  if constexpr (look != kTrusts) {
    const Vector none = {};
    w = (w >= none) & (w <= none + __DBL_MAX__) ? w : none + __builtin_nan("");
    const auto counts = look == kSkips ? (w != none) & (x == x) : w != none;
    w = counts ? w : none;
    x = counts ? x : none;
  }
  if constexpr (what == kProducts) {
    first = is_exact ? madd(w, x, first) : first + w * x;
    second = is_exact ? add_converted(w, one, second) : second + w;
  } else {
    const Vector d = x - centre, product = w * d;
    first += product;
    second += what == kSquares ? product * d : w;
  }
}

template <WeightedTerms what, Look look, class T, class W>
bool add(const WeightedRows& x, const WeightedRows& weights, int64_t step, int64_t rows,
         int64_t columns, const double* centre, double* first, double* second, bool fresh) {
  constexpr bool is_exact = is_converted<T> && is_converted<W>;
  const Vector one = Vector{} + hidden_one();
  Indices bits = {};  // the weights' bits, joined by or, where nobody looks at them
  // `count` vectors of columns from c on, or the `numbers` of one that is not whole: of all rows,
  // in registers.
  const auto add_columns = [&](auto vectors, auto partial, int64_t c,
                               int64_t numbers) FASTACT_INLINED {
    constexpr int count = decltype(vectors)::value;
    constexpr bool is_part = decltype(partial)::value;
    const auto read = [=](const auto* from, int k) FASTACT_INLINED {
      return is_part ? load_some(from, numbers, Vector{}) : load(from + k * kVector);
    };
    Vector a[count], b[count], from[count] = {};
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      a[k] = b[k] = -Vector{};
      if (!fresh) a[k] = read(first + c, k), b[k] = read(second + c, k);
      if (what != kProducts) from[k] = read(centre + c, k);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const T* const of_x = reinterpret_cast<const T*>(x.at + x.offsets[i * step]) + c;
      const W* const of_w = reinterpret_cast<const W*>(weights.at + weights.offsets[i * step]) + c;
      if (!is_part && x.ahead) prefetch<count * kVector>(of_x, x.ahead);
      if (!is_part && weights.ahead) prefetch<count * kVector>(of_w, weights.ahead);
#pragma GCC unroll 4
      for (int k = 0; k < count; ++k) {
        const Vector v = read(of_x, k), w = read(of_w, k);
        add_elements<what, is_exact, look>(v, w, from[k], one, a[k], b[k]);
        if (look == kTrusts) bits |= (Indices)w;
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      const size_t bytes = is_part ? numbers * sizeof(double) : sizeof(Vector);
      memcpy(first + c + k * kVector, &a[k], bytes);
      memcpy(second + c + k * kVector, &b[k], bytes);
    }
  };
  constexpr std::integral_constant<int, 4> four{};
  constexpr std::integral_constant<int, 1> single{};
  int64_t c = 0;
  for (; c + 4 * kVector <= columns; c += 4 * kVector) add_columns(four, std::false_type(), c, 0);
  for (; c + kVector <= columns; c += kVector) add_columns(single, std::false_type(), c, 0);
  if (c < columns) add_columns(single, std::true_type(), c, columns - c);
  bool is_signed = false;
  for (int k = 0; k < kVector; ++k) is_signed |= bits[k] < 0;
  return is_signed;
}

// The masks of `mask` and of `choose` are loops of their own: with both choices in one GCC would
// take it apart at -O2, and not vectorise it (tests/tools/test_vectorised.py).
void mask(double* weights, const double* where, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) weights[i] = where[i] != 0 ? weights[i] : 0.0;
}

void choose(double* x, double* weights, bool skips, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double w = weight_of(x[i], weights[i], true, skips);
    weights[i] = w;
    x[i] = w == 0 ? 0.0 : x[i];
  }
}

template <class Of, bool narrow>
void pair_terms(double* x, const double* t, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = Of::template of<narrow>(x[i], t[i]);
}

// Float32 is converted in loops of their own: in one, masks of both widths would be shuffled.
template <class Of, class T>
void pair_gradients(const char* of_dy, const char* of_x, const char* of_t, char* to_x, char* to_t,
                    int64_t n) {
  using C = std::conditional_t<is_half<T>, float, double>;
  constexpr bool is_rounded = std::is_same<T, float>::value;
  alignas(64) C wide[5][kChunk];
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const auto read = [&](int k, const char* from) FASTACT_INLINED -> const C* {
      const T* const at = pointer<T>(from) + i;
      if constexpr (std::is_same<T, C>::value) return at;
      if constexpr (is_half<T>) chunk_to_float(at, wide[k], m);
      if constexpr (is_rounded)
#pragma omp simd
        for (int64_t e = 0; e < m; ++e) wide[k][e] = at[e];
      return wide[k];
    };
    const C *dy = read(0, of_dy), *x = read(1, of_x), *t = read(2, of_t);
    C* __restrict dx = is_rounded ? wide[3] : pointer<C>(to_x) + i;
    C* __restrict dt = is_rounded ? wide[4] : pointer<C>(to_t) + i;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      const PairSlopes<C> slopes = Of::template slopes<is_rounded>(x[k], t[k]);
      dx[k] = gradient_of_mean(dy[k], slopes.by_x);
      dt[k] = gradient_of_mean(dy[k], slopes.by_t);
    }
    if constexpr (is_rounded) {
      float *const y = pointer<float>(to_x) + i, *const z = pointer<float>(to_t) + i;
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) y[k] = float(dx[k]), z[k] = float(dt[k]);
    }
  });
}

// The gradients of an element.
template <class Term>
struct ByTerm {
  static FASTACT_HD double of(double slope, double dy, double x, double w, double, double) {
    return gradient_of_mean(slope * Term::gradient(dy, x), w);
  }
};
struct ByBoth {
  static FASTACT_HD double of(double slope, double dy, double x, double w, double mean,
                              double of_mean) {
    return gradient_of_both(of_mean, slope * dy, w, x - mean);
  }
};
struct ByWeights {
  static FASTACT_HD double of(double slope, double dy, double x, double w, double mean, double) {
    return w == 0 ? 0.0 : gradient_of_weight(slope * dy, x - mean);
  }
};

template <class By, bool accumulate>
void gradient(const double* dy, const double* slope, const double* x, const double* weights,
              const double* mean, const double* of_mean, double* __restrict to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double found = By::of(slope[i], dy[i], x[i], weights[i], mean[i], of_mean[i]);
    to[i] = accumulate ? to[i] + found : found;
  }
}

}  // namespace

#define FASTACT_ADD(T) {add<kProducts, kTrusts, T, T>, add<kProducts, kWeighs, T, double>}
#define FASTACT_ADD_STAGED(what) \
  {add<what, kWeighs, double, double>, add<what, kSkips, double, double>}
#define FASTACT_PAIR_TERMS(name, Of) {pair_terms<Of, false>, pair_terms<Of, true>},
#define FASTACT_PAIR_GRADIENTS(name, Of)                                         \
  {pair_gradients<Of, f16>, pair_gradients<Of, bf16>, pair_gradients<Of, float>, \
   pair_gradients<Of, double>},
#define FASTACT_GRADIENT(By) {gradient<By, false>, gradient<By, true>}
#define FASTACT_TERM_GRADIENT(name, Term) FASTACT_GRADIENT(ByTerm<Term>),

extern const WeightingKernels weighting_kernels;
const WeightingKernels weighting_kernels = {
    {FASTACT_ADD(f16),
     FASTACT_ADD(bf16),
     FASTACT_ADD(float),
     {add<kProducts, kWeighs, double, double>, add<kProducts, kWeighs, double, double>}},
    {FASTACT_ADD_STAGED(kProducts), FASTACT_ADD_STAGED(kAboutCentre), FASTACT_ADD_STAGED(kSquares)},
    mask,
    choose,
    {{}, FASTACT_PAIRS(FASTACT_PAIR_TERMS)},
    {{}, FASTACT_PAIRS(FASTACT_PAIR_GRADIENTS)},
    {FASTACT_TERMS(FASTACT_TERM_GRADIENT) FASTACT_GRADIENT(ByBoth), FASTACT_GRADIENT(ByWeights)},
};

FASTACT_END_NAMESPACE
