// The kernels of rotary/rotary.h: each converts, turns and rounds a few vectors at a time, which
// stay in registers. Angles that all rows share are converted once.
#include "cpu/rotary/rotary.h"
#include "cpu/simd/nontemporal.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

using Data = RotaryCall;

constexpr int64_t kAngles = 256;  // of a row that is converted once

// Cosines and sines in the compute type; there, back: the sine in what a and in what b becomes.
template <class C, int64_t most>
struct Angles {
  alignas(64) C cosine[most];
  alignas(64) C there[most];
  alignas(64) C back[most];

  // Of n angles.
  template <class A>
  FASTACT_HD void read(const A* cosines, const A* sines, int64_t n, const double (&sign)[2]) {
    const C to_there = C(sign[0]), to_back = C(sign[1]);
    Wide<A, most> of_cos, of_sin;
    const C *cos = of_cos.read(cosines, n), *sin = of_sin.read(sines, n);
#pragma omp simd
    for (int64_t k = 0; k < n; ++k)
      cosine[k] = cos[k], there[k] = to_there * sin[k], back[k] = to_back * sin[k];
  }
};

// to OUT = made IN, n elements; bypasses: past the caches.
template <bool bypasses, class T>
FASTACT_HD void put(const Compute<T>* made, T* to, int64_t n) {
  constexpr int64_t kMost = 2 * kInRegisters;
  if constexpr (!bypasses && is_half<T>) {
    chunk_from_float(made, to, n);
  } else if constexpr (is_half<T>) {
    alignas(64) T narrow[kMost];
    chunk_from_float(made, narrow, n);
    store_nontemporal(reinterpret_cast<const char*>(narrow), reinterpret_cast<char*>(to),
                      n * sizeof(T));
  } else if constexpr (bypasses) {
    store_nontemporal(reinterpret_cast<const char*>(made), reinterpret_cast<char*>(to),
                      n * sizeof(T));
  }
}

// The elements of a and b from a pair on: apart, or as neighbours.
template <class T>
struct Halves {
  template <bool bypasses, class C>
  FASTACT_HD static void turn(const PairRows& rows, int64_t row, int64_t i, int64_t m,
                              const C* cosine, const C* there, const C* back) {
    Wide<T, kInRegisters> of_a, of_b;
    alignas(64) C buffer_a[kInRegisters], buffer_b[kInRegisters];
    const C *a = of_a.read(rows.of<T>(Data::kA, row) + i, m),
            *b = of_b.read(rows.of<T>(Data::kB, row) + i, m);
    T *to_a = rows.of<T>(Data::kOutA, row) + i, *to_b = rows.of<T>(Data::kOutB, row) + i;
    C *out_a = buffer_a, *out_b = buffer_b;
    if constexpr (!bypasses && !is_half<T>) out_a = to_a, out_b = to_b;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      const Turned<C> made = turned(a[k], b[k], cosine[k], there[k], back[k]);
      out_a[k] = made.a, out_b[k] = made.b;
    }
    put<bypasses>(out_a, to_a, m), put<bypasses>(out_b, to_b, m);
  }
};

template <class T>
struct Neighbours {
  template <bool bypasses, class C>
  FASTACT_HD static void turn(const PairRows& rows, int64_t row, int64_t i, int64_t m,
                              const C* cosine, const C* there, const C* back) {
    const T* from = rows.of<T>(Data::kA, row) + 2 * i;
    T* to = rows.of<T>(Data::kOutA, row) + 2 * i;
    if constexpr (std::is_same_v<T, bf16>) {
      return turn_words<bypasses>(from, to, m, cosine, there, back);
    } else {
      Wide<T, 2 * kInRegisters> of_x;
      alignas(64) C buffer[2 * kInRegisters];
      const C* x = of_x.read(from, 2 * m);
      C* out = buffer;
      if constexpr (!bypasses && !is_half<T>) out = to;
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) {
        const Turned<C> made = turned(x[2 * k], x[2 * k + 1], cosine[k], there[k], back[k]);
        out[2 * k] = made.a, out[2 * k + 1] = made.b;
      }
      put<bypasses>(out, to, 2 * m);
    }
  }

  // Of bfloat16: a pair is a word, whose halves are the upper halves of two floats.
  template <bool bypasses>
  FASTACT_HD static void turn_words(const T* from, T* to, int64_t m, const float* cosine,
                                    const float* there, const float* back) {
    alignas(64) uint32_t words[kInRegisters];
    memcpy(words, from, m * sizeof(uint32_t));
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      const float a = bit_cast<float>(words[k] << 16), b = bit_cast<float>(words[k] & 0xffff0000u);
      const Turned<float> made = turned(a, b, cosine[k], there[k], back[k]);
      words[k] = narrow<bf16>(made.a).bits | uint32_t(narrow<bf16>(made.b).bits) << 16;
    }
    const auto* made = reinterpret_cast<const char*>(words);
    if constexpr (bypasses)
      store_nontemporal(made, reinterpret_cast<char*>(to), m * sizeof(uint32_t));
    else
      memcpy(to, made, m * sizeof(uint32_t));
  }
};

template <class A, class Lie, bool bypasses, class C>
void turn_rows(const PairRows& rows) {
  const int64_t n = rows.pairs;
  const bool are_shared = rows.step[Data::kCos] == 0 && rows.step[Data::kSin] == 0;
  if (are_shared && rows.rows > 1 && n <= kAngles) {
    Angles<C, kAngles> angles;
    angles.read(rows.of<A>(Data::kCos, 0), rows.of<A>(Data::kSin, 0), n, rows.sign);
    for (int64_t row = 0; row < rows.rows; ++row)
      for_chunks<kInRegisters>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
        Lie::template turn<bypasses>(rows, row, i, m, angles.cosine + i, angles.there + i,
                                     angles.back + i);
      });
    return;
  }
  Angles<C, kInRegisters> angles;
  for (int64_t row = 0; row < rows.rows; ++row)
    for_chunks<kInRegisters>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      angles.read(rows.of<A>(Data::kCos, row) + i, rows.of<A>(Data::kSin, row) + i, m, rows.sign);
      Lie::template turn<bypasses>(rows, row, i, m, angles.cosine, angles.there, angles.back);
    });
}

// A: the dtype of cos and sin.
template <class T, class A, template <class> class Lie>
void turn(const PairRows& rows) {
  using C = Compute<T>;
  if (rows.bypasses_caches) return turn_rows<A, Lie<T>, true, C>(rows);
  turn_rows<A, Lie<T>, false, C>(rows);
}

}  // namespace

#define FASTACT_TURN(T, A) {turn<T, A, Halves>, turn<T, A, Neighbours>}
#define FASTACT_TURN_OF(T) {FASTACT_TURN(T, T), FASTACT_TURN(T, Compute<T>)}

extern const RotaryKernels rotary_kernels;
const RotaryKernels rotary_kernels = {
    {FASTACT_TURN_OF(f16), FASTACT_TURN_OF(bf16), FASTACT_TURN_OF(float), FASTACT_TURN_OF(double)},
};

FASTACT_END_NAMESPACE
