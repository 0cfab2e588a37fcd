// The kernels of bias/kernels.h.
#include "cpu/bias/kernels.h"

#include <algorithm>
#include <type_traits>

#include "common/bias/dropout.h"
#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kVectors = kLanes / kVector;

template <class T>
FASTACT_HD void prefetch(const T* x, int64_t ahead) {
#pragma GCC unroll 4
  for (size_t line = 0; line < kLanes * sizeof(T); line += kCacheLine)
    __builtin_prefetch(reinterpret_cast<const char*>(x) + ahead + line);
}

// The biases of a chunk: `period` of them, a multiple of kLanes, come round again.
template <class C>
struct Biases {
  const C* all;
  int64_t period, at = 0;

  Biases(const char* bias, int64_t p) : all(reinterpret_cast<const C*>(bias)), period(p) {}
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

// y OUT = f(x IN + bias IN), of m <= kLanes elements.
template <class T, class C, class Activation>
FASTACT_HD void activate(const Activation& a, const T* x, const C* bias, T* y, int64_t m) {
  Wide<T, kLanes> of_x, of_y;
  const C* terms = of_x.read(x, m);
  C* made = of_y.to(y);
#pragma omp simd
  for (int64_t k = 0; k < m; ++k) made[k] = a.forward(terms[k] + bias[k]);
  of_y.finish(y, m);
}

// Takes fewer than kLanes. It is not inlined: it would be a second copy of the loop's body.
template <class T, class C, class Activation>
__attribute__((noinline)) void activate_some(const Activation& a, const T* x, const C* bias, T* y,
                                             int64_t m) {
  activate(a, x, bias, y, m);
}

template <class T, template <class, bool> class A>
void forward(const char* from, const char* bias, int64_t period, char* to, int64_t n, int64_t ahead,
             const double* parameters) {
  using C = Compute<T>;
  const A<C, false> a(parameters);
  const T* x = reinterpret_cast<const T*>(from);
  T* y = reinterpret_cast<T*>(to);
  Biases<C> biases(bias, period);
  const int64_t whole =
      for_groups(0, n, &biases, [&](int64_t i, int64_t m, const C* b) FASTACT_INLINED {
        if (ahead != 0) {
          prefetch(x + i, ahead);
          prefetch(y + i, ahead);
        }
        activate(a, x + i, b, y + i, m);
      });
  if (whole < n) activate_some(a, x + whole, biases.here(), y + whole, n - whole);
}

// The identity's dx is dy, whose 16 bits are copied.
template <class T, class Activation>
constexpr bool kCopies = is_half<T> && std::is_same<Activation, Unchanged<Compute<T>>>::value;

// dx OUT = dy IN f'(x IN + bias IN), of m <= kLanes elements; returns it before it was rounded.
template <class T, class C, class Activation>
FASTACT_HD const C* gradient(const Activation& a, const T* dy, const T* x, const C* bias, T* dx,
                             int64_t m, Wide<T, kLanes>* of_dx) {
  if constexpr (kCopies<T, Activation>) {
    const C* terms = of_dx->read(dy, m);
    if (dx != dy) memcpy(dx, dy, m * sizeof(T));
    return terms;
  }
  Wide<T, kLanes> of_dy, of_x;
  const C *dys = of_dy.read(dy, m), *xs = of_x.read(x, m);
  C* made = of_dx->to(dx);
#pragma omp simd
  for (int64_t k = 0; k < m; ++k) made[k] = dys[k] * a.derivative(xs[k] + bias[k]);
  of_dx->finish(dx, m);
  return made;
}

// Takes fewer than kLanes, and adds them to the sums, if there are any. It is not inlined either.
template <class T, class C, class Activation>
__attribute__((noinline)) void some_gradient(const Activation& a, const T* dy, const T* x,
                                             const C* bias, T* dx, int64_t m, double* sums) {
  Wide<T, kLanes> of_dx;
  const C* made = gradient(a, dy, x, bias, dx, m, &of_dx);
  if (!sums) return;
  for (int64_t k = 0; k < m; ++k) sums[k] += double(made[k]);
}

template <class T, template <class, bool> class A>
void backward(const char* gradients, const char* from, const char* bias, int64_t period, char* to,
              int64_t n, int64_t ahead, const double* parameters, int64_t phase, double* lanes) {
  using C = Compute<T>;
  const A<C, false> a(parameters);
  const T *dy = reinterpret_cast<const T*>(gradients), *x = reinterpret_cast<const T*>(from);
  T* dx = reinterpret_cast<T*>(to);
  Biases<C> biases(bias, period);
  int64_t i = 0;
  if (lanes && phase > 0) {
    i = kLanes - phase < n ? kLanes - phase : n;
    some_gradient(a, dy, x, biases.here(), dx, i, lanes + phase);
    biases.pass(i);
  }
  const auto ask = [&](int64_t at) FASTACT_INLINED {
    if (ahead == 0) return;
    prefetch(dy + at, ahead);
    prefetch(x + at, ahead);
    prefetch(dx + at, ahead);
  };
  Wide<T, kLanes> of_dx;
  if (lanes) {
    Vector v[kVectors];
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) v[k] = load(lanes + k * kVector);
    i = for_groups(i, n, &biases, [&](int64_t at, int64_t m, const C* b) FASTACT_INLINED {
      ask(at);
      const C* made = gradient(a, dy + at, x + at, b, dx + at, m, &of_dx);
#pragma GCC unroll 16
      for (int k = 0; k < kVectors; ++k) v[k] += load(made + k * kVector);
    });
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) store(v[k], lanes + k * kVector);
  } else {
    i = for_groups(i, n, &biases, [&](int64_t at, int64_t m, const C* b) FASTACT_INLINED {
      ask(at);
      gradient(a, dy + at, x + at, b, dx + at, m, &of_dx);
    });
  }
  if (i < n) some_gradient(a, dy + i, x + i, biases.here(), dx + i, n - i, lanes);
}

// Bytes ahead: the rows of a lane, kLanes apart, are more than the hardware's prefetcher follows.
// Behind a row lies one of the next lane.
constexpr int64_t kAheadInRow = 256;

template <class T, template <class, bool> class A>
void backward_rows(const char* const* dy, const char* const* x, const char* bias, char* const* dx,
                   int64_t rows, int64_t n, const double* parameters, double* lane, bool fresh) {
  using C = Compute<T>;
  const A<C, false> a(parameters);
  Biases<C> biases(bias, n);
  Wide<T, kLanes> of_dx;
  const auto of = [](const char* row, int64_t i)
                      FASTACT_INLINED { return reinterpret_cast<const T*>(row) + i; };
  const int64_t whole =
      for_groups(0, n, &biases, [&](int64_t i, int64_t m, const C* b) FASTACT_INLINED {
        Vector v[kVectors];
#pragma GCC unroll 16
        for (int k = 0; k < kVectors; ++k) v[k] = fresh ? -Vector{} : load(lane + i + k * kVector);
        for (int64_t row = 0; row < rows; ++row) {
          T* const to = reinterpret_cast<T*>(dx[row]) + i;
          prefetch(of(dy[row], i), kAheadInRow);
          if (!kCopies<T, A<C, false>>) prefetch(of(x[row], i), kAheadInRow);
          prefetch(to, kAheadInRow);
          const C* made = gradient(a, of(dy[row], i), of(x[row], i), b, to, m, &of_dx);
#pragma GCC unroll 16
          for (int k = 0; k < kVectors; ++k) v[k] += load(made + k * kVector);
        }
#pragma GCC unroll 16
        for (int k = 0; k < kVectors; ++k) store(v[k], lane + i + k * kVector);
      });
  if (whole == n) return;
  for (int64_t i = whole; fresh && i < n; ++i) lane[i] = -0.0;
  for (int64_t row = 0; row < rows; ++row)
    some_gradient(a, of(dy[row], whole), of(x[row], whole), biases.here(),
                  reinterpret_cast<T*>(dx[row]) + whole, n - whole, lane + whole);
}

// Functions of x and of its channel's parameter w, of kLanes elements. Not inlined: whole groups
// and a padded rest share one copy.
template <class F, class C>
__attribute__((noinline)) void set_values(const F& f, const C* x, const C* w, C* y) {
#pragma omp simd
  for (int64_t k = 0; k < kLanes; ++k) y[k] = f.forward(x[k], w[k]);
}
template <class F, class C>
__attribute__((noinline)) void set_gradients(const F& f, const C* dy, const C* x, const C* w, C* dx,
                                             C* terms) {
#pragma omp simd
  for (int64_t k = 0; k < kLanes; ++k) {
    const C d = dy[k];
    C by_w;
    const C by_x = f.slopes(x[k], w[k], &by_w);
    dx[k] = d * by_x, terms[k] = d * by_w;
  }
}

template <class C, template <class, bool> class A>
void channel_forward(const char* from, const char* parameters, int64_t period, char* to, int64_t n,
                     int64_t ahead, const double*) {
  const A<C, false> f(nullptr);
  const C* x = reinterpret_cast<const C*>(from);
  C* y = reinterpret_cast<C*>(to);
  Biases<C> all(parameters, period);
  const int64_t i = for_groups(0, n, &all, [&](int64_t at, int64_t, const C* w) FASTACT_INLINED {
    if (ahead != 0) {
      prefetch(x + at, ahead);
      prefetch(y + at, ahead);
    }
    set_values(f, x + at, w, y + at);
  });
  if (i == n) return;
  const size_t bytes = size_t(n - i) * sizeof(C);
  alignas(64) C in[2][kLanes] = {}, out[kLanes];
  memcpy(in[0], x + i, bytes), memcpy(in[1], all.here(), bytes);
  set_values(f, in[0], in[1], out);
  memcpy(y + i, out, bytes);
}

template <class C, template <class, bool> class A>
void gradients(const char* incoming, const char* from, const char* parameters, int64_t period,
               char* to, char* of_w, int64_t n, int64_t ahead) {
  const A<C, false> f(nullptr);
  const C *dy = reinterpret_cast<const C*>(incoming), *x = reinterpret_cast<const C*>(from);
  C *dx = reinterpret_cast<C*>(to), *terms = reinterpret_cast<C*>(of_w);
  Biases<C> all(parameters, period);
  const int64_t i = for_groups(0, n, &all, [&](int64_t at, int64_t, const C* w) FASTACT_INLINED {
    if (ahead != 0) {
      prefetch(dy + at, ahead);
      prefetch(x + at, ahead);
      prefetch(dx + at, ahead);
    }
    set_gradients(f, dy + at, x + at, w, dx + at, terms + at);
  });
  if (i == n) return;
  const size_t bytes = size_t(n - i) * sizeof(C);
  alignas(64) C in[3][kLanes] = {}, out[2][kLanes];
  memcpy(in[0], dy + i, bytes), memcpy(in[1], x + i, bytes), memcpy(in[2], all.here(), bytes);
  set_gradients(f, in[0], in[1], in[2], out[0], out[1]);
  memcpy(dx + i, out[0], bytes), memcpy(terms + i, out[1], bytes);
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
  const T *x = reinterpret_cast<const T*>(from), *residual = reinterpret_cast<const T*>(other);
  T* y = reinterpret_cast<T*>(to);
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
  const C *x = reinterpret_cast<const C*>(from), *residual = reinterpret_cast<const C*>(other);
  C* y = reinterpret_cast<C*>(to);
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
#define FASTACT_FORWARD(name, A)                                                               \
  {FASTACT_OF_HALF((forward<f16, A>)), FASTACT_OF_HALF((forward<bf16, A>)), forward<float, A>, \
   forward<double, A>},
#define FASTACT_CHANNEL_FORWARD(name, A) \
  {nullptr, nullptr, channel_forward<float, A>, channel_forward<double, A>},
#define FASTACT_GRADIENTS(name, A) {gradients<float, A>, gradients<double, A>},
#define FASTACT_BACKWARD(name, A) {backward<float, A>, backward<double, A>},
#define FASTACT_BACKWARD_ROWS(name, A) \
  {FASTACT_OF_HALF((backward_rows<f16, A>)), FASTACT_OF_HALF((backward_rows<bf16, A>))},

}  // namespace

extern const BiasKernels bias_kernels;
const BiasKernels bias_kernels = {
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD) FASTACT_CHANNEL_FUNCTIONS(FASTACT_CHANNEL_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD_ROWS)},
    {FASTACT_CHANNEL_FUNCTIONS(FASTACT_GRADIENTS)},
    {{drop<f16, false>, drop<f16, true>},
     {drop<bf16, false>, drop<bf16, true>},
     {drop<float, false>, drop<float, true>},
     {drop<double, false>, drop<double, true>}},
    {{drop_at<float, false>, drop_at<float, true>},
     {drop_at<double, false>, drop_at<double, true>}},
};

FASTACT_END_NAMESPACE
