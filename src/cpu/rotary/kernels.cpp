// The kernels of rotary/rotary.h.
#include "cpu/rotary/rotary.h"
#include "cpu/simd/nontemporal.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Where results are made: as `Wide` has it, or in a buffer from which they are stored past the
// caches.
template <class T, int64_t most>
struct Made {
  Wide<T, most> wide;
  alignas(64) Compute<T> beside[most];
  alignas(64) T narrow[most];
  const bool bypasses;

  explicit Made(bool bypasses_caches) : bypasses(bypasses_caches) {}

  FASTACT_HD Compute<T>* to(T* y) { return bypasses ? beside : wide.to(y); }
  FASTACT_HD void finish(T* y, int64_t n) {
    if (!bypasses) return wide.finish(y, n);
    if constexpr (is_half<T>) {
      chunk_from_float(beside, narrow, n);
      store_nontemporal(reinterpret_cast<const char*>(narrow), reinterpret_cast<char*>(y),
                        n * sizeof(T));
    } else {
      store_nontemporal(reinterpret_cast<const char*>(beside), reinterpret_cast<char*>(y),
                        n * sizeof(T));
    }
  }
};

// Visits the rows: visit(row's address of an array, as a function of its number).
template <class Visit>
FASTACT_HD void for_each_row(const PairRows& rows, Visit visit) {
  for (int64_t row = 0; row < rows.rows; ++row)
    visit([&](int k) FASTACT_INLINED { return rows.at[k] + row * rows.step[k]; });
}

// T: of the data; A: of cos and sin.
template <class T, class A>
void turn_halves(const PairRows& rows) {
  using C = Compute<T>;
  Wide<T> of_a, of_b;
  Wide<A> of_cos, of_sin;
  Made<T, kChunk> of_out_a(rows.bypasses_caches), of_out_b(rows.bypasses_caches);
  const C there = C(rows.sign[0]), back = C(rows.sign[1]);
  for_each_row(rows, [&](auto at) FASTACT_INLINED {
    for_chunks(rows.pairs, [&](int64_t i, int64_t m) FASTACT_INLINED {
      const C* a = of_a.read(reinterpret_cast<const T*>(at(RotaryCall::kA)) + i, m);
      const C* b = of_b.read(reinterpret_cast<const T*>(at(RotaryCall::kB)) + i, m);
      const C* cosine = of_cos.read(reinterpret_cast<const A*>(at(RotaryCall::kCos)) + i, m);
      const C* sine = of_sin.read(reinterpret_cast<const A*>(at(RotaryCall::kSin)) + i, m);
      T *to_a = reinterpret_cast<T*>(at(RotaryCall::kOutA)) + i,
        *to_b = reinterpret_cast<T*>(at(RotaryCall::kOutB)) + i;
      C *out_a = of_out_a.to(to_a), *out_b = of_out_b.to(to_b);
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) {
        const Turned<C> made = turned(a[k], b[k], cosine[k], there * sine[k], back * sine[k]);
        out_a[k] = made.a, out_b[k] = made.b;
      }
      of_out_a.finish(to_a, m), of_out_b.finish(to_b, m);
    });
  });
}

template <class T, class A>
void turn_neighbours(const PairRows& rows) {
  using C = Compute<T>;
  Wide<T, 2 * kChunk> of_x;
  Wide<A> of_cos, of_sin;
  Made<T, 2 * kChunk> of_out(rows.bypasses_caches);
  const C there = C(rows.sign[0]), back = C(rows.sign[1]);
  for_each_row(rows, [&](auto at) FASTACT_INLINED {
    for_chunks(rows.pairs, [&](int64_t i, int64_t m) FASTACT_INLINED {
      const C* x = of_x.read(reinterpret_cast<const T*>(at(RotaryCall::kA)) + 2 * i, 2 * m);
      const C* cosine = of_cos.read(reinterpret_cast<const A*>(at(RotaryCall::kCos)) + i, m);
      const C* sine = of_sin.read(reinterpret_cast<const A*>(at(RotaryCall::kSin)) + i, m);
      T* to = reinterpret_cast<T*>(at(RotaryCall::kOutA)) + 2 * i;
      C* out = of_out.to(to);
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) {
        const Turned<C> made =
            turned(x[2 * k], x[2 * k + 1], cosine[k], there * sine[k], back * sine[k]);
        out[2 * k] = made.a, out[2 * k + 1] = made.b;
      }
      of_out.finish(to, 2 * m);
    });
  });
}

}  // namespace

#define FASTACT_TURN(T, A) {turn_halves<T, A>, turn_neighbours<T, A>}
#define FASTACT_TURN_OF(T) {FASTACT_TURN(T, T), FASTACT_TURN(T, Compute<T>)}

extern const RotaryKernels rotary_kernels;
const RotaryKernels rotary_kernels = {
    {FASTACT_TURN_OF(f16), FASTACT_TURN_OF(bf16), FASTACT_TURN_OF(float), FASTACT_TURN_OF(double)},
};

FASTACT_END_NAMESPACE
