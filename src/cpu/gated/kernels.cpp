// The loops of gated/kernels.h. Each is written once, over chunks of the type that is computed in.
#include "cpu/gated/kernels.h"

#include "common/gated/gated.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// A chunk that is read, or written, in the type that is computed in: where it lies, or in a buffer.
template <class T>
struct Wide {
  Compute<T> buffer[kChunk];

  const Compute<T>* read(const T* x, int64_t n) {
    if constexpr (sizeof(T) < sizeof(float)) {
      chunk_to_float(x, buffer, n);
      return buffer;
    } else {
      return x;
    }
  }
  Compute<T>* to(T* y) {
    if constexpr (sizeof(T) < sizeof(float))
      return buffer;
    else
      return y;
  }
  void finish(T* y, int64_t n) {
    if constexpr (sizeof(T) < sizeof(float)) chunk_from_float(buffer, y, n);
  }
};

// chunk(i, m) for each chunk of n elements; all but the last have a length known to the compiler.
template <class Chunk>
FASTACT_HD void for_chunks(int64_t n, Chunk chunk) {
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) chunk(i, kChunk);
  if (i < n) chunk(i, n - i);
}

template <class T>
const T* of(const char* data) {
  return reinterpret_cast<const T*>(data);
}

template <bool has_bias, class T>
FASTACT_HD T biased(const T* x, const T* bias, int64_t i) {
  return has_bias ? x[i] + bias[i] : x[i];
}

template <class C, bool has_bias>
void gate_of(const char* from, const char* along, char* to, int64_t n, GatedNumbers numbers) {
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C *a = of<C>(from), *bias = of<C>(along);
  C* gate = reinterpret_cast<C*>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) gate[i] = gating.gate(biased<has_bias>(a, bias, i));
}

template <class T, bool has_bias>
void product_of(const char* value, const char* from, const char* along, char* to, int64_t n,
                GatedNumbers numbers) {
  using C = Compute<T>;
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C* bias = of<C>(along);
  Wide<T> of_b, of_y;
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const C *b = of_b.read(of<T>(from) + i, m), *t = of<C>(value) + i;
    T* y = reinterpret_cast<T*>(to) + i;
    C* wide = of_y.to(y);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k)
      wide[k] = t[k] * gating.factor(biased<has_bias>(b, bias + i, k));
    of_y.finish(y, m);
  });
}

template <class T, bool has_bias>
void to_gate_of(const char* gradient, const char* from_a, const char* along_a, const char* from_b,
                const char* along_b, char* to, int64_t n, GatedNumbers numbers) {
  using C = Compute<T>;
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C *bias_a = of<C>(along_a), *bias_b = of<C>(along_b);
  Wide<T> of_dy, of_b;
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const C* dy = of_dy.read(of<T>(gradient) + i, m);
    const C *b = of_b.read(of<T>(from_b) + i, m), *a = of<C>(from_a) + i;
    C* g = reinterpret_cast<C*>(to) + i;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k)
      g[k] = gating.to_a(dy[k] * gating.factor(biased<has_bias>(b, bias_b + i, k)),
                         biased<has_bias>(a, bias_a + i, k));
  });
}

// Out: T, or its compute type.
template <class T, class Out, bool has_bias>
void to_b_of(const char* gradient, const char* value, const char* from, const char* along, char* to,
             int64_t n, GatedNumbers numbers) {
  using C = Compute<T>;
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C* bias = of<C>(along);
  Wide<T> of_dy, of_b;
  Wide<Out> of_db;
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const C* dy = of_dy.read(of<T>(gradient) + i, m);
    const C *b = of_b.read(of<T>(from) + i, m), *t = of<C>(value) + i;
    Out* db = reinterpret_cast<Out*>(to) + i;
    C* wide = of_db.to(db);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k)
      wide[k] = gating.to_b(dy[k] * t[k], biased<has_bias>(b, bias + i, k));
    of_db.finish(db, m);
  });
}

template <class C>
void gate(const char* a, const char* bias, char* to, int64_t n, GatedNumbers numbers) {
  (bias ? gate_of<C, true> : gate_of<C, false>)(a, bias, to, n, numbers);
}

template <class T>
void product(const char* value, const char* b, const char* bias, char* y, int64_t n,
             GatedNumbers numbers) {
  (bias ? product_of<T, true> : product_of<T, false>)(value, b, bias, y, n, numbers);
}

template <class T>
void to_gate(const char* dy, const char* a, const char* bias_a, const char* b, const char* bias_b,
             char* g, int64_t n, GatedNumbers numbers) {
  (bias_a ? to_gate_of<T, true> : to_gate_of<T, false>)(dy, a, bias_a, b, bias_b, g, n, numbers);
}

template <class T, class Out>
void to_b(const char* dy, const char* value, const char* b, const char* bias, char* db, int64_t n,
          GatedNumbers numbers) {
  (bias ? to_b_of<T, Out, true> : to_b_of<T, Out, false>)(dy, value, b, bias, db, n, numbers);
}

}  // namespace

extern const GatedKernels gated_kernels;
const GatedKernels gated_kernels = {
    {gate<float>, gate<double>},
    {product<f16>, product<bf16>, product<float>, product<double>},
    {to_gate<f16>, to_gate<bf16>, to_gate<float>, to_gate<double>},
    {{to_b<f16, f16>, to_b<f16, float>},
     {to_b<bf16, bf16>, to_b<bf16, float>},
     {to_b<float, float>, to_b<float, float>},
     {to_b<double, double>, to_b<double, double>}},
};

FASTACT_END_NAMESPACE
