// The serial loops over one block, compiled once per instruction set (FASTACT_ISA).
//
// One loop an arity, the functor passed in; storage is widened and narrowed inside the loop, so
// that 16-bit data makes no temporary. GCC vectorises all of them (-fopt-info-vec says so) and
// makes the loop's tail with the same IEEE operations: an element's bits do not depend on its
// position.
//
// The streaming copy is the one place with intrinsics. An output larger than the last-level
// cache should not be read before it is written, which an ordinary store does (16M float32 on
// two cores of a Xeon: 3.2 ms for a copy by streaming stores, 3.9 by memcpy, 5.3 by ordinary
// stores), and GCC has no portable way to ask for it.
#include "blocks.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE
namespace {

// y[i] = f(x[i])
template <class T, class F>
void map1(const T* x, T* y, int64_t n, F f) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(f(widen(x[i])));
}

// dx[i] = dy[i] f'(x[i]), or dx[i] += of the same
template <bool accumulate, class T, class F>
void map2(const T* dy, const T* x, T* dx, int64_t n, F f) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Compute<T> product = widen(dy[i]) * f(widen(x[i]));
    dx[i] = narrow<T>(accumulate ? widen(dx[i]) + product : product);
  }
}

template <class T, template <class> class A>
void forward(char* const* operands, int64_t n, const double* parameters) {
  const A<Compute<T>> a(parameters);
  map1(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<T*>(operands[1]), n,
       [&](Compute<T> x) { return a.forward(x); });
}

template <class T, template <class> class A, bool accumulate>
void backward(char* const* operands, int64_t n, const double* parameters) {
  const A<Compute<T>> a(parameters);
  map2<accumulate>(reinterpret_cast<const T*>(operands[0]),
                   reinterpret_cast<const T*>(operands[1]), reinterpret_cast<T*>(operands[2]), n,
                   [&](Compute<T> x) { return a.derivative(x); });
}

template <class T>
void exponential(char* const* operands, int64_t n, const double*) {
  map1(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<T*>(operands[1]), n,
       [](T x) { return exp_scaled<0>(x).high; });
}

void stream(void* destination, const void* source, size_t bytes) {
#if defined(__AVX512F__)
  auto* to = static_cast<__m512i*>(destination);
  auto* from = static_cast<const __m512i*>(source);
  for (size_t i = 0; i < bytes / 64; ++i) _mm512_stream_si512(to + i, _mm512_loadu_si512(from + i));
#elif defined(__AVX__)
  auto* to = static_cast<__m256i*>(destination);
  auto* from = static_cast<const __m256i*>(source);
  for (size_t i = 0; i < bytes / 32; ++i) _mm256_stream_si256(to + i, _mm256_loadu_si256(from + i));
#elif defined(__SSE2__)
  auto* to = static_cast<__m128i*>(destination);
  auto* from = static_cast<const __m128i*>(source);
  for (size_t i = 0; i < bytes / 16; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
#else
  memcpy(destination, source, bytes);
#endif
#if defined(__SSE2__)
  _mm_sfence();  // streamed lines are visible to other threads before what follows
#endif
}

}  // namespace

#define FASTACT_FORWARD(name, A) \
  {forward<f16, A>, forward<bf16, A>, forward<float, A>, forward<double, A>},
#define FASTACT_BACKWARD(name, A)                        \
  {{backward<f16, A, false>, backward<f16, A, true>},    \
   {backward<bf16, A, false>, backward<bf16, A, true>},  \
   {backward<float, A, false>, backward<float, A, true>}, \
   {backward<double, A, false>, backward<double, A, true>}},
#define FASTACT_QUOTE_(text) #text
#define FASTACT_QUOTE(text) FASTACT_QUOTE_(text)

extern const BlockTable table;
const BlockTable table = {
    FASTACT_QUOTE(FASTACT_ISA),
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD)},
    stream,
    {exponential<float>, exponential<double>},
};

FASTACT_END_NAMESPACE
