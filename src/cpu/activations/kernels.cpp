// The kernels of the activations and of a few other element-wise operations, compiled once per
// instruction set (FASTACT_ISA).
//
// There is one loop for each number of operands, which takes the functor. GCC vectorises all of
// them (tests/tools/test_vectorised.py) and computes the loop's tail with the same IEEE
// operations: the bits of an element do not depend on its position.
//
// The loops are inlined into each kernel, parameters and all. In a function of its own a loop reads
// the parameters through a pointer, and one that is needed on one side of a choice alone is a load
// that GCC won't do on both: a branch stays in the loop, and it is not vectorised.
#include "cpu/activations/kernels.h"

#include "cpu/simd/accumulators.h"
#include "cpu/simd/mixed.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Not for processors without AVX2, whose kernels are compiled for size.
#if defined(__x86_64__) && !defined(__AVX2__)
constexpr bool kPrefetches = false;
#else
constexpr bool kPrefetches = true;
#endif

// y[i] = f(x[i]...), or y[i] += of the same, a cache line at a time, beside which later ones are
// prefetched.
//
// The operands are __restrict although an input may be the output: an element is read before it is
// written, and nobody else reads it. Otherwise the stores of one vector hold the loads of the next
// one back, and the compiler can't mix their steps.
template <bool accumulate, class T, class F, class... From>
FASTACT_HD void map_wide(T* __restrict y, int64_t n, int64_t ahead, F f,
                         const From* __restrict... x) {
  constexpr int64_t kLine = kCacheLine / sizeof(T);
  const auto one = [=](int64_t k) FASTACT_INLINED {
    const T value = f(x[k]...);
    y[k] = accumulate ? y[k] + value : value;
  };
  int64_t i = 0;
  for (; kPrefetches && i + kLine <= n; i += kLine) {
    (prefetch<1>(x + i, ahead), ...), prefetch<1>(y + i, ahead);
#pragma omp simd
    for (int64_t k = i; k < i + kLine; ++k) one(k);
  }
#pragma omp simd
  for (int64_t k = i; k < n; ++k) one(k);
}

// Maps 16-bit data. A chunk asks whether it accumulates: kernels of their own would be a sixth
// of the activations' code (docs/design/packaging.md).
template <class T, class F>
FASTACT_HD void narrow_map2(const T* __restrict dy, const T* __restrict x, T* __restrict dx,
                            int64_t n, bool accumulate, F f) {
  float wide_dy[kChunk], wide_x[kChunk], wide_dx[kChunk];
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    chunk_to_float(dy + i, wide_dy, m);
    chunk_to_float(x + i, wide_x, m);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) wide_dx[k] = f(wide_dy[k], wide_x[k]);
    if (accumulate) {
      chunk_to_float(dx + i, wide_dy, m);
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) wide_dx[k] += wide_dy[k];
    }
    chunk_from_float(wide_dx, dx + i, m);
  });
}

// y[i] = f(x[i]). 16 bits, whose conversions take longer than memory does, go in chunks.
template <class T, template <class, bool> class A>
FASTACT_HD void forward_loop(char* const* operands, int64_t n, const double* parameters,
                             int64_t ahead) {
  using C = Compute<T>;
  const A<C, false> a(parameters);
  const T* x = pointer<T>(operands[0]);
  T* y = pointer<T>(operands[1]);
  if constexpr (is_half<T>) {
    float wide[kChunk];
    for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      chunk_to_float(x + i, wide, m);
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) wide[k] = a.forward(wide[k]);
      chunk_from_float(wide, y + i, m);
    });
  } else {
    map_wide<false>(y, n, ahead, [&](C one) FASTACT_INLINED { return a.forward(one); }, x);
  }
}

// The kernels. Those of float and double mix the steps of several vectors (CMakeLists.txt). 16-bit
// ones must not: their chunks would spill registers, and take up to 1.5 times the time.
template <class T, template <class, bool> class A>
void forward(char* const* operands, int64_t n, const double* parameters, int64_t ahead) {
  forward_loop<T, A>(operands, n, parameters, ahead);
}
template <class T, template <class, bool> class A>
FASTACT_MIXED_LOOP void mixed_forward(char* const* operands, int64_t n, const double* parameters,
                                      int64_t ahead) {
  forward_loop<T, A>(operands, n, parameters, ahead);
}

// dy f'(x), of x, or of y = f(x)
template <bool by_value, class A, class T>
FASTACT_HD T gradient(const A& a, T dy, T x) {
  if constexpr (by_value)
    return dy * a.derivative_by_value(x);
  else
    return dy * a.derivative(x);
}
template <class T, template <class, bool> class A, bool by_value>
FASTACT_UNROLLED __attribute__((noinline)) void narrow_backward(char* const* operands, int64_t n,
                                                                const double* parameters,
                                                                bool accumulate) {
  const A<float, false> a(parameters);
  narrow_map2(pointer<T>(operands[0]), pointer<T>(operands[1]), pointer<T>(operands[2]), n,
              accumulate,
              [&](float dy, float x) FASTACT_INLINED { return gradient<by_value>(a, dy, x); });
}
template <class T, template <class, bool> class A, bool by_value, bool accumulate>
void backward(char* const* operands, int64_t n, const double* parameters, int64_t) {
  narrow_backward<T, A, by_value>(operands, n, parameters, accumulate);
}
template <class T, template <class, bool> class A, bool by_value, bool accumulate>
FASTACT_MIXED_LOOP void mixed_backward(char* const* operands, int64_t n, const double* parameters,
                                       int64_t ahead) {
  const A<T, false> a(parameters);
  const auto of = [&](int k) FASTACT_INLINED { return pointer<T>(operands[k]); };
  const auto one = [&](T dy, T x) FASTACT_INLINED { return gradient<by_value>(a, dy, x); };
  map_wide<accumulate>(of(2), n, ahead, one, of(0), of(1));
}

// The derivative of dx by what was saved, times ddx.
template <class T, template <class, bool> class A, bool accumulate>
void wide_second(char* const* operands, int64_t n, const double* parameters, int64_t ahead) {
  const A<T, false> a(parameters);
  const auto of = [&](int k) FASTACT_INLINED { return pointer<T>(operands[k]); };
  const auto one = [&](T dy, T saved, T ddx)
                       FASTACT_INLINED { return dy * (ddx * second_by_saved(a, saved)); };
  map_wide<accumulate>(of(3), n, ahead, one, of(0), of(1), of(2));
}

// 16 bits go through the kernel of float, chunk by chunk: kernels of their own were a third of the
// activations' code, for calls that are few (docs/design/packaging.md).
template <class T, bool accumulate>
__attribute__((noinline)) void second_by_chunks(ElementwiseKernel of_floats, char* const* operands,
                                                int64_t n, const double* parameters) {
  const auto of = [&](int k) FASTACT_INLINED { return pointer<T>(operands[k]); };
  alignas(kCacheLine) float wide[4][kChunk];
  const auto chunk = [&](int k) FASTACT_INLINED { return reinterpret_cast<char*>(wide[k]); };
  char* const chunks[] = {chunk(0), chunk(1), chunk(2), chunk(3)};
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    chunk_to_float(of(0) + i, wide[0], m);
    chunk_to_float(of(1) + i, wide[1], m);
    chunk_to_float(of(2) + i, wide[2], m);
    if (accumulate) chunk_to_float(of(3) + i, wide[3], m);
    of_floats(chunks, m, parameters, 0);
    chunk_from_float(wide[3], of(3) + i, m);
  });
}

template <class T, template <class, bool> class A, bool accumulate>
void second(char* const* operands, int64_t n, const double* parameters, int64_t ahead) {
  if constexpr (is_half<T>)
    second_by_chunks<T, accumulate>(wide_second<float, A, accumulate>, operands, n, parameters);
  else
    wide_second<T, A, accumulate>(operands, n, parameters, ahead);
}

// The gradient of a sum's term.
template <class T, class Term, bool accumulate>
void term_backward(char* const* operands, int64_t n, const double*, int64_t ahead) {
  const auto of = [&](int k) FASTACT_INLINED { return pointer<T>(operands[k]); };
  const auto one = [](Compute<T> dy, Compute<T> x)
                       FASTACT_INLINED { return Term::gradient(dy, x); };
  if constexpr (is_half<T>)
    narrow_map2(of(0), of(1), of(2), n, accumulate, one);
  else
    map_wide<accumulate>(of(2), n, ahead, one, of(0), of(1));
}

// The statistics of a gradient: mean and m2; one without a mean; one about a mean.
enum SpreadGradient { kOfMoments, kOfSlope, kOfDeviation };

// The gradient of moments is dx = dy / N + s (x - mean) dsecond, with 1 / N and s as parameters; of
// a statistic it is dx = slope dy (x - mean), or slope dy without a mean, and where x is NaN the
// parameter. The mean, which may be large beside x - mean, comes in full, and x - mean is rounded
// once or twice: of 16-bit data in double, as the slope is, else with what the mean's rounding lost
// as an operand of its own.
template <class T, SpreadGradient of, bool accumulate>
void spread_backward(char* const* operands, int64_t n, const double* parameters, int64_t) {
  using C = Compute<T>;
  using Exact = std::conditional_t<is_half<T>, double, T>;
  constexpr bool is_moments = of == kOfMoments;
  constexpr int kX = 0, kLows = is_half<T> ? 0 : 1, kMean = is_moments ? 1 : 3;
  constexpr int kDy = is_moments ? kMean + kLows + 1 : 1, kSlope = kDy + 1;  // or dsecond
  constexpr int kDx = of == kOfDeviation ? kMean + kLows + 1 : kSlope + 1;
  const C inverse_count = C(parameters[0]), of_nan = inverse_count;
  const C scale = is_moments ? C(parameters[1]) : C(0);
  Wide<T> wide_x, wide_dy, wide_second, wide_old;
  C dx[kChunk];
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const auto read = [&](Wide<T>& wide, int k)
                          FASTACT_INLINED { return wide.read(pointer<T>(operands[k]) + i, m); };
    const auto exact = [&](int k) FASTACT_INLINED { return pointer<Exact>(operands[k]) + i; };
    const C *x = read(wide_x, kX), *dy = read(wide_dy, kDy);
    const C* dsecond = is_moments ? read(wide_second, kSlope) : x;
    const C* old = accumulate ? read(wide_old, kDx) : x;
    const Exact* mean = exact(of == kOfSlope ? kX : kMean);
    const Exact* low = exact(of == kOfSlope ? kX : kMean + kLows);
    const Exact* slope = exact(kSlope);
    const auto distance = [=](int64_t k) FASTACT_INLINED {
      const Exact whole = Exact(x[k]) - mean[k];
      return kLows ? whole - low[k] : whole;
    };
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      C term;
      if constexpr (is_moments) {
        term = madd(scale * dsecond[k], C(distance(k)), inverse_count * dy[k]);
      } else {
        Exact product = slope[k] * Exact(dy[k]);
        if constexpr (of == kOfDeviation) product = product * distance(k);
        term = x[k] == x[k] ? C(product) : of_nan;
      }
      dx[k] = accumulate ? old[k] + term : term;
    }
    T* const y = pointer<T>(operands[kDx]) + i;
    if constexpr (is_half<T>)
      chunk_from_float(dx, y, m);
    else
      memcpy(y, dx, m * sizeof(T));
  });
}

template <class T>
void add(char* const* operands, int64_t n, const double*, int64_t ahead) {
  const T* x = pointer<T>(operands[0]);
  T* y = pointer<T>(operands[1]);
  const auto itself = [](Compute<T> dx, Compute<T>) FASTACT_INLINED { return dx; };
  if constexpr (is_half<T>)
    narrow_map2(x, x, y, n, true, itself);
  else
    map_wide<true>(y, n, ahead, itself, x, x);
}

}  // namespace

#define FASTACT_FORWARD(name, A) \
  {forward<f16, A>, forward<bf16, A>, mixed_forward<float, A>, mixed_forward<double, A>},
// Kernels of each dtype; [1] adds to what is there.
#define FASTACT_GRADIENTS(half, wide, ...)                                   \
  {                                                                          \
    {half<f16, __VA_ARGS__, false>, half<f16, __VA_ARGS__, true>},           \
        {half<bf16, __VA_ARGS__, false>, half<bf16, __VA_ARGS__, true>},     \
        {wide<float, __VA_ARGS__, false>, wide<float, __VA_ARGS__, true>}, { \
      wide<double, __VA_ARGS__, false>, wide<double, __VA_ARGS__, true>      \
    }                                                                        \
  }
#define FASTACT_BACKWARD(name, A) FASTACT_GRADIENTS(backward, mixed_backward, A, false),
#define FASTACT_BACKWARD_BY_SAVED(name, A) \
  FASTACT_GRADIENTS(backward, mixed_backward, A, kSavesValue<A<float>>),
#define FASTACT_SECOND(name, A) FASTACT_GRADIENTS(second, second, A),
#define FASTACT_TERM(name, Term) FASTACT_GRADIENTS(term_backward, term_backward, Term),
#define FASTACT_SPREAD(of) FASTACT_GRADIENTS(spread_backward, spread_backward, of)

extern const ElementwiseTable elementwise_table;
const ElementwiseTable elementwise_table = {
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD_BY_SAVED)},
    {FASTACT_ACTIVATIONS(FASTACT_SECOND)},
    {add<f16>, add<bf16>, add<float>, add<double>},
    {FASTACT_TERMS(FASTACT_TERM)},
    FASTACT_SPREAD(kOfMoments),
    FASTACT_SPREAD(kOfSlope),
    FASTACT_SPREAD(kOfDeviation),
};

FASTACT_END_NAMESPACE
