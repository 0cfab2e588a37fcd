// The kernels of rotary/kernels.h: each converts, turns and rounds a few vectors at a time, which
// stay in registers.
#include "cpu/rotary/kernels.h"

#include <utility>

#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

using Data = RotaryCall;

// visit(i, m) for all n pairs: where 16 bits are converted, as many as registers hold.
template <class T, class Visit>
FASTACT_HD void for_pairs(int64_t n, Visit visit) {
  if constexpr (is_half<T>)
    for_chunks<kInRegisters>(n, visit);
  else
    visit(0, n);
}

// A row of n pairs (PairRows::at), turned. A: the dtype of cosines and sines.
template <class T, class A>
struct Halves {
  using C = Compute<T>;

  FASTACT_HD static void turn(char* const* at, int64_t n, C, C) {
    const A *const cosines = pointer<A>(at[Data::kCos]), *const sines = pointer<A>(at[Data::kSin]);
    const T *const of_a = pointer<T>(at[Data::kA]), *const of_b = pointer<T>(at[Data::kB]);
    T *const to_a = pointer<T>(at[Data::kOutA]), *const to_b = pointer<T>(at[Data::kOutB]);
    for_pairs<T>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      Wide<A, kInRegisters> wide_cos, wide_sin;
      Wide<T, kInRegisters> wide_a, wide_b, made_a, made_b;
      const C *cos = wide_cos.read(cosines + i, m), *sin = wide_sin.read(sines + i, m);
      const C *a = wide_a.read(of_a + i, m), *b = wide_b.read(of_b + i, m);
      C *const out_a = made_a.to(to_a + i), *const out_b = made_b.to(to_b + i);
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) {
        const Turned<C> made = turned(a[k], b[k], cos[k], sin[k], -sin[k]);
        out_a[k] = made.a, out_b[k] = made.b;
      }
      made_a.finish(to_a + i, m), made_b.finish(to_b + i, m);
    });
  }
};

template <class T, class A>
struct Neighbours {
  using C = Compute<T>;

  FASTACT_HD static void turn(char* const* at, int64_t n, C there, C back) {
    const A *const cosines = pointer<A>(at[Data::kCos]), *const sines = pointer<A>(at[Data::kSin]);
    const T* const of_x = pointer<T>(at[Data::kA]);
    T* const to = pointer<T>(at[Data::kOutA]);
    for_pairs<T>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
      Wide<A, kInRegisters> wide_cos, wide_sin;
      const C *cos = wide_cos.read(cosines + i, m), *sin = wide_sin.read(sines + i, m);
      const auto of_pair = [&](C a, C b, int64_t k) FASTACT_INLINED {
        return turned(a, b, cos[k], there * sin[k], back * sin[k]);
      };
      Wide<T, 2 * kInRegisters> wide, narrowed;
      const C* x = wide.read(of_x + 2 * i, 2 * m);
      C* const out = narrowed.to(to + 2 * i);
#pragma omp simd
      for (int64_t k = 0; k < m; ++k) {
        const Turned<C> made = of_pair(x[2 * k], x[2 * k + 1], k);
        out[2 * k] = made.a, out[2 * k + 1] = made.b;
      }
      narrowed.finish(to + 2 * i, 2 * m);
    });
  }
};

template <class T, class A, template <class, class> class Lie>
void turn(const PairRows& given) {
  PairRows rows = given;
  const Compute<T> there(rows.sign[0]), back(rows.sign[1]);
  if (std::is_same_v<Lie<T, A>, Halves<T, A>> && there < 0)  // to turn back is to turn b, a
    for (const int k : {Data::kA, Data::kOutA})
      std::swap(rows.at[k], rows.at[k + 1]), std::swap(rows.step[k], rows.step[k + 1]);
  for (; rows.rows > 0; --rows.rows) {
    Lie<T, A>::turn(rows.at, rows.pairs, there, back);
    for (int k = 0; k < Data::kArrays; ++k) rows.at[k] += rows.step[k];
  }
}

}  // namespace

#define FASTACT_TURN(T, Lie) {turn<T, T, Lie>, turn<T, Compute<T>, Lie>}
#define FASTACT_TURN_OF(T) {FASTACT_TURN(T, Halves), FASTACT_TURN(T, Neighbours)}

extern const RotaryKernels rotary_kernels;
const RotaryKernels rotary_kernels = {
    {FASTACT_TURN_OF(f16), FASTACT_TURN_OF(bf16), FASTACT_TURN_OF(float), FASTACT_TURN_OF(double)},
};

FASTACT_END_NAMESPACE
