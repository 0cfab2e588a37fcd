// The kernels of bias/kernels.h.
#include "cpu/bias/kernels.h"

#include <algorithm>
#include <type_traits>

#include "common/bias/dropout.h"
#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The biases of a chunk: `period` of them, a multiple of kLanes, come round again.
template <class C>
struct Biases {
  const C* all;
  int64_t period, at = 0;

  Biases(const char* bias, int64_t p) : all(pointer<C>(bias)), period(p) {}
  FASTACT_HD const C* here() const { return all + at; }
  FASTACT_HD void pass(int64_t n) {
    at += n;
    if (at >= period) at -= period;
  }
};

// Maps groups of kLanes elements: group(i, m, biases) from element i on, m of them.
template <class C, class Group>
FASTACT_HD int64_t for_groups(int64_t i, int64_t n, Biases<C>* biases, Group group) {
  for (; i + kLanes <= n; i += kLanes) {
    group(i, kLanes, biases->here());
    biases->pass(kLanes);
  }
  return i;
}

// The lanes of a sum, in registers.
FASTACT_HD void load_lanes(const double* from, Vector (&v)[kVectors]) {
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) v[k] = load(from + k * kVector);
}
template <class C>
FASTACT_HD void add_lanes(const C* terms, Vector (&v)[kVectors]) {
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) v[k] += load(terms + k * kVector);
}
FASTACT_HD void store_lanes(const Vector (&v)[kVectors], double* to) {
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) store(v[k], to + k * kVector);
}

// A function of x and of its channel's number: an activation of their sum, whose gradient is the
// term of the bias's, or a function of x and of a parameter.
template <class C, template <class, bool> class A>
struct OfSum {
  static constexpr bool kHasTerms = false;
  static constexpr bool kIsIdentity = std::is_same<A<C, false>, Unchanged<C>>::value;
  A<C, false> a;
  FASTACT_HD explicit OfSum(const double* parameters) : a(parameters) {}
  FASTACT_HD C value(C x, C bias) const { return a.forward(x + bias); }
  FASTACT_HD C slopes(C x, C bias, C*) const { return a.derivative(x + bias); }
};
template <class C, template <class, bool> class A>
struct OfParameter {
  static constexpr bool kHasTerms = true, kIsIdentity = false;
  A<C, false> a;
  FASTACT_HD explicit OfParameter(const double* parameters) : a(parameters) {}
  FASTACT_HD C value(C x, C w) const { return a.forward(x, w); }
  FASTACT_HD C slopes(C x, C w, C* by_w) const { return a.slopes(x, w, by_w); }
};

// y OUT = f(x IN, bias IN), of m <= kLanes elements.
template <class T, class C, class F>
FASTACT_HD void set_values(const F& f, const T* x, const C* bias, T* y, int64_t m) {
  Wide<T, kLanes> of_x, of_y;
  const C* terms = of_x.read(x, m);
  C* made = of_y.to(y);
#pragma omp simd
  for (int64_t k = 0; k < m; ++k) made[k] = f.value(terms[k], bias[k]);
  of_y.finish(y, m);
}

// Takes fewer than kLanes. It is not inlined: it would be a second copy of the loop's body.
template <class T, class C, class F>
__attribute__((noinline)) void set_some(const F& f, const T* x, const C* bias, T* y, int64_t m) {
  set_values(f, x, bias, y, m);
}

template <class T, class F>
void forward(const char* from, const char* bias, int64_t period, char* to, int64_t n, int64_t ahead,
             const double* parameters) {
  const F f(parameters);
  const T* x = pointer<T>(from);
  T* y = pointer<T>(to);
  Biases<Compute<T>> biases(bias, period);
  const int64_t whole =
      for_groups(0, n, &biases, [&](int64_t i, int64_t m, const auto* b) FASTACT_INLINED {
        if (ahead != 0) {
          prefetch<kLanes>(x + i, ahead);
          prefetch<kLanes>(y + i, ahead);
        }
        set_values(f, x + i, b, y + i, m);
      });
  if (whole < n) set_some(f, x + whole, biases.here(), y + whole, n - whole);
}

// dx OUT = dy IN df/dx, of m <= kLanes elements; returns what the sum takes: dx before it was
// rounded, or terms OUT = dy df/dbias, of a function that has such. The identity's dx is dy, whose
// 16 bits are copied.
template <class T, class C, class F>
FASTACT_HD const C* gradient(const F& f, const T* dy, const T* x, const C* bias, T* dx, C* terms,
                             int64_t m, Wide<T, kLanes>* of_dx) {
  if constexpr (is_half<T> && F::kIsIdentity) {
    const C* copied = of_dx->read(dy, m);
    if (dx != dy) memcpy(dx, dy, m * sizeof(T));
    return copied;
  }
  Wide<T, kLanes> of_dy, of_x;
  const C *dys = of_dy.read(dy, m), *xs = of_x.read(x, m);
  C* made = of_dx->to(dx);
#pragma omp simd
  for (int64_t k = 0; k < m; ++k) {
    const C d = dys[k];
    C by_bias = 0;
    made[k] = d * f.slopes(xs[k], bias[k], &by_bias);
    if (F::kHasTerms) terms[k] = d * by_bias;
  }
  of_dx->finish(dx, m);
  return F::kHasTerms ? terms : made;
}

// Takes fewer than kLanes, and adds them to the sums, if there are any. It is not inlined either.
template <class T, class C, class F>
__attribute__((noinline)) void some_gradient(const F& f, const T* dy, const T* x, const C* bias,
                                             T* dx, C* terms, int64_t m, double* sums) {
  Wide<T, kLanes> of_dx;
  const C* made = gradient(f, dy, x, bias, dx, terms, m, &of_dx);
  if (!sums) return;
  for (int64_t k = 0; k < m; ++k) sums[k] += double(made[k]);
}

template <class T, class F>
void backward(const char* gradients, const char* from, const char* bias, int64_t period, char* to,
              char* of_bias, int64_t n, int64_t ahead, const double* parameters, int64_t phase,
              double* lanes) {
  using C = Compute<T>;
  const F f(parameters);
  const T *dy = pointer<T>(gradients), *x = pointer<T>(from);
  T* dx = pointer<T>(to);
  C* terms = pointer<C>(of_bias);
  Biases<C> biases(bias, period);
  int64_t i = 0;
  if (lanes && phase > 0) {
    i = kLanes - phase < n ? kLanes - phase : n;
    some_gradient(f, dy, x, biases.here(), dx, terms, i, lanes + phase);
    biases.pass(i);
  }
  Wide<T, kLanes> of_dx;
  const auto make = [&](int64_t at, int64_t m, const C* b) FASTACT_INLINED {
    if (ahead != 0) {
      prefetch<kLanes>(dy + at, ahead);
      prefetch<kLanes>(x + at, ahead);
      prefetch<kLanes>(dx + at, ahead);
    }
    return gradient(f, dy + at, x + at, b, dx + at, terms + at, m, &of_dx);
  };
  if (lanes) {
    Vector v[kVectors];
    load_lanes(lanes, v);
    i = for_groups(i, n, &biases, [&](int64_t at, int64_t m, const C* b) FASTACT_INLINED {
      add_lanes(make(at, m, b), v);
    });
    store_lanes(v, lanes);
  } else {
    i = for_groups(i, n, &biases, make);
  }
  if (i < n) some_gradient(f, dy + i, x + i, biases.here(), dx + i, terms + i, n - i, lanes);
}

// Bytes ahead: the rows of a lane, kLanes apart, are more than the hardware's prefetcher follows.
// Behind a row lies one of the next lane.
constexpr int64_t kAheadInRow = 256;

template <class T, class F>
void backward_rows(const char* const* dy, const char* const* x, const char* bias, char* const* dx,
                   int64_t rows, int64_t n, const double* parameters, double* lane, bool fresh) {
  using C = Compute<T>;
  const F f(parameters);
  Biases<C> biases(bias, n);
  Wide<T, kLanes> of_dx;
  C* const none = nullptr;
  const auto of = [](const char* row, int64_t i) FASTACT_INLINED { return pointer<T>(row) + i; };
  const int64_t whole =
      for_groups(0, n, &biases, [&](int64_t i, int64_t m, const C* b) FASTACT_INLINED {
        Vector v[kVectors];
#pragma GCC unroll 16
        for (int k = 0; k < kVectors; ++k) v[k] = fresh ? -Vector{} : load(lane + i + k * kVector);
        for (int64_t row = 0; row < rows; ++row) {
          T* const to = pointer<T>(dx[row]) + i;
          prefetch<kLanes>(of(dy[row], i), kAheadInRow);
          if (!F::kIsIdentity) prefetch<kLanes>(of(x[row], i), kAheadInRow);
          prefetch<kLanes>(to, kAheadInRow);
          add_lanes(gradient(f, of(dy[row], i), of(x[row], i), b, to, none, m, &of_dx), v);
        }
        store_lanes(v, lane + i);
      });
  if (whole == n) return;
  for (int64_t i = whole; fresh && i < n; ++i) lane[i] = -0.0;
  for (int64_t row = 0; row < rows; ++row)
    some_gradient(f, of(dy[row], whole), of(x[row], whole), biases.here(),
                  pointer<T>(dx[row]) + whole, none, n - whole, lane + whole);
}

// Blocks of Philox, each word in 64 bits of a vector: the product of two lower halves is one
// instruction, and nobody reads what is left in the upper ones.
typedef uint64_t Blocks __attribute__((vector_size(kVector * sizeof(uint64_t))));

FASTACT_HD Blocks product(Blocks a, Blocks b) {
#if defined(__AVX512F__)
  return (Blocks)_mm512_maskz_mul_epu32(__mmask8(-1), (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Blocks)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// words OUT: of each block the four, side by side. Lanes have the blocks in this order: each half
// of the words is one interleaving of lanes, without a permutation.
FASTACT_HD Blocks block_order() {
  Blocks order;
  for (int j = 0; j < kVector; ++j) order[j] = uint64_t(j / 2 + j % 2 * (kVector / 2));
  return order;
}
FASTACT_HD void store_blocks(Blocks ab, Blocks cd, uint32_t* words) {
  Indices even, odd;
  for (int j = 0; j < kVector; ++j) even[j] = j / 2 * 2 + j % 2 * kVector, odd[j] = even[j] + 1;
  const Vector halves[] = {shuffle((Vector)ab, (Vector)cd, even),
                           shuffle((Vector)ab, (Vector)cd, odd)};
  memcpy(words, halves, sizeof halves);
}

// The key of each round: an operand in memory, for registers are few.
struct RoundKeys {
  Blocks a[kPhiloxRounds], c[kPhiloxRounds];

  explicit RoundKeys(uint64_t seed) {
    uint32_t of_a = uint32_t(seed), of_c = uint32_t(seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      a[round] = Blocks{} + of_a, c[round] = Blocks{} + of_c;
      of_a += kPhiloxStepA, of_c += kPhiloxStepC;
    }
  }
};

// Vectors that are drawn side by side, each of them one chain of steps; and their words.
constexpr int kDrawn = 4;
constexpr int64_t kDrawnWords = kDrawn * kVector * kBlockWords;

// words OUT (n): of elements by their indices. Not inlined: see draw.
__attribute__((noinline)) void draw_at(const uint64_t* indices, int64_t n, uint64_t seed,
                                       uint32_t* words) {
  const PhiloxKeys keys = philox_keys(seed);
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) words[k] = dropout_word(indices[k], keys);
}

// words OUT (kDrawnWords): of the blocks from number `first` on. Not inlined: it is more
// instructions than all else that a kernel has, and each kernel would have copies.
__attribute__((noinline)) void draw(uint64_t first, const RoundKeys& keys, uint32_t* words) {
  if (uint32_t(first + kDrawnWords / kBlockWords) < uint32_t(first)) {  // upper halves differ
    uint64_t indices[kDrawnWords];
    for (int64_t k = 0; k < kDrawnWords; ++k) indices[k] = first * kBlockWords + uint64_t(k);
    return draw_at(indices, kDrawnWords, keys.a[0][0] | keys.c[0][0] << 32, words);
  }
  const Blocks none{}, factor_a = none + kPhiloxFactorA, factor_c = none + kPhiloxFactorC;
  const Blocks lower = none + 0xffffffffu;
  // The first two rounds: c and d begin with 0, and the blocks' upper halves are one number.
  const uint64_t upper = uint64_t(kPhiloxFactorA) * uint32_t((first >> 32) ^ keys.a[0][0]);
  const Blocks of_upper = none + (upper >> 32 ^ keys.c[1][0]), low_of_upper = none + upper;
  Blocks a[kDrawn], b[kDrawn], c[kDrawn], d[kDrawn];
#pragma GCC unroll 4
  for (int v = 0; v < kDrawn; ++v) {
    const Blocks of_a = product(factor_a, block_order() + (first + uint64_t(v * kVector)));
    const Blocks of_c = product(factor_c, (of_a >> 32) ^ keys.c[0]);
    a[v] = (of_c >> 32) ^ keys.a[1], b[v] = of_c;
    c[v] = of_a ^ of_upper, d[v] = low_of_upper;
  }
#pragma GCC unroll 10
  for (int round = 2; round < kPhiloxRounds - 1; ++round) {
#pragma GCC unroll 4
    for (int v = 0; v < kDrawn; ++v) {
      const Blocks of_a = product(factor_a, a[v]), of_c = product(factor_c, c[v]);
      a[v] = (of_c >> 32) ^ b[v] ^ keys.a[round], b[v] = of_c;
      c[v] = (of_a >> 32) ^ d[v] ^ keys.c[round], d[v] = of_a;
    }
  }
  // The last one leaves a and b, c and d side by side.
  const auto last = [&](Blocks made, Blocks added, Blocks key) FASTACT_INLINED {
    return (made >> 32 | made << 32) ^ key ^ (added & lower);
  };
#pragma GCC unroll 4
  for (int v = 0; v < kDrawn; ++v)
    store_blocks(last(product(factor_c, c[v]), b[v], keys.a[kPhiloxRounds - 1]),
                 last(product(factor_a, a[v]), d[v], keys.c[kPhiloxRounds - 1]),
                 words + v * kVector * kBlockWords);
}

// y OUT = what dropout makes of m elements by their words.
template <class T, bool has_residual, class C>
FASTACT_HD void drop_by(const Dropout& of, C scale, const uint32_t* words, const T* x,
                        const T* residual, T* y, int64_t m) {
  Wide<T, kDrawnWords> of_x, of_residual, of_y;
  const C* xs = of_x.read(x, m);
  const C* added = has_residual ? of_residual.read(residual, m) : nullptr;
  C* made = of_y.to(y);
#pragma omp simd
  for (int64_t k = 0; k < m; ++k)
    made[k] = has_residual ? dropped(of, xs[k], words[k], scale, added[k])
                           : dropped(of, xs[k], words[k], scale);
  of_y.finish(y, m);
}
// Takes fewer than kDrawnWords. It is not inlined: it would be a second copy of the loop's body.
template <class T, bool has_residual, class C>
__attribute__((noinline)) void drop_some(const Dropout& of, C scale, const uint32_t* words,
                                         const T* x, const T* residual, T* y, int64_t m) {
  drop_by<T, has_residual>(of, scale, words, x, residual, y, m);
}

// Words are drawn for few elements at a time, beside whose steps memory brings the next ones. The
// hardware's prefetcher alone, which begins anew with each page, leaves AMD's processors waiting as
// long again as drawing takes.
template <class T, bool has_residual>
void drop(const char* from, const char* other, char* to, int64_t n, uint64_t index,
          const Dropout& given) {
  using C = Compute<T>;
  const Dropout of = given;
  const C scale = C(of.scale);
  const RoundKeys keys(of.seed);
  const T *x = pointer<T>(from), *residual = pointer<T>(other);
  T* y = pointer<T>(to);
  alignas(64) uint32_t words[kDrawnWords] = {};
  const auto draw_from = [&](uint64_t first) FASTACT_INLINED {
    if (!of.drops_all) draw(first / kBlockWords, keys, words);
  };
  const auto at = [=](int64_t i) FASTACT_INLINED { return has_residual ? residual + i : nullptr; };
  const int64_t skipped = int64_t(index % kBlockWords);
  int64_t i = 0;
  if (skipped) {
    draw_from(index);
    i = std::min(n, kDrawnWords - skipped);
    drop_some<T, has_residual>(of, scale, words + skipped, x, at(0), y, i);
  }
  for (; i + kDrawnWords <= n; i += kDrawnWords) {
    for (int64_t k = 0; k < kDrawnWords; k += int64_t(kCacheLine / sizeof(T))) {
      __builtin_prefetch(reinterpret_cast<const char*>(x + i + k) + kAhead);
      if (has_residual) __builtin_prefetch(reinterpret_cast<const char*>(at(i + k)) + kAhead);
      __builtin_prefetch(reinterpret_cast<const char*>(y + i + k) + kAhead, 1);
    }
    draw_from(index + uint64_t(i));
    drop_by<T, has_residual>(of, scale, words, x + i, at(i), y + i, kDrawnWords);
  }
  if (i == n) return;
  draw_from(index + uint64_t(i));
  drop_some<T, has_residual>(of, scale, words, x + i, at(i), y + i, n - i);
}

template <class C, bool has_residual>
void drop_at(const char* from, const char* other, char* to, int64_t n, const uint64_t* indices,
             const Dropout& given) {
  const Dropout of = given;
  const C scale = C(of.scale);
  const C *x = pointer<C>(from), *residual = pointer<C>(other);
  C* y = pointer<C>(to);
  for (int64_t i = 0; i < n; i += kDrawnWords) {
    const int64_t m = std::min(n - i, kDrawnWords);
    alignas(64) uint32_t words[kDrawnWords] = {};
    draw_at(indices + i, of.drops_all ? 0 : m, of.seed, words);
    drop_some<C, has_residual>(of, scale, words, x + i, has_residual ? residual + i : nullptr,
                               y + i, m);
  }
}

// Elsewhere a conversion is more instructions, of which each kernel would have copies.
#if defined(__AVX512F__)
#define FASTACT_OF_HALF(f) f
#else
#define FASTACT_OF_HALF(f) nullptr
#endif
#define FASTACT_FORWARD(name, A)                                                       \
  {FASTACT_OF_HALF((forward<f16, OfSum<float, A>>)),                                   \
   FASTACT_OF_HALF((forward<bf16, OfSum<float, A>>)), forward<float, OfSum<float, A>>, \
   forward<double, OfSum<double, A>>},
#define FASTACT_CHANNEL_FORWARD(name, A)                    \
  {nullptr, nullptr, forward<float, OfParameter<float, A>>, \
   forward<double, OfParameter<double, A>>},
#define FASTACT_BACKWARD_OF(F, A) {backward<float, F<float, A>>, backward<double, F<double, A>>},
#define FASTACT_BACKWARD(name, A) FASTACT_BACKWARD_OF(OfSum, A)
#define FASTACT_CHANNEL_BACKWARD(name, A) FASTACT_BACKWARD_OF(OfParameter, A)
#define FASTACT_BACKWARD_ROWS(name, A)                     \
  {FASTACT_OF_HALF((backward_rows<f16, OfSum<float, A>>)), \
   FASTACT_OF_HALF((backward_rows<bf16, OfSum<float, A>>))},

}  // namespace

extern const BiasKernels bias_kernels;
const BiasKernels bias_kernels = {
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD) FASTACT_CHANNEL_FUNCTIONS(FASTACT_CHANNEL_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD) FASTACT_CHANNEL_FUNCTIONS(FASTACT_CHANNEL_BACKWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD_ROWS)},
    {{drop<f16, false>, drop<f16, true>},
     {drop<bf16, false>, drop<bf16, true>},
     {drop<float, false>, drop<float, true>},
     {drop<double, false>, drop<double, true>}},
    {{drop_at<float, false>, drop_at<float, true>},
     {drop_at<double, false>, drop_at<double, true>}},
};

FASTACT_END_NAMESPACE
