// The serial loops over one block, compiled once per instruction set (FASTACT_ISA).
//
// One loop an arity, the functor passed in; storage is widened and narrowed inside the loop, so
// that 16-bit data makes no temporary. GCC vectorises all of them (-fopt-info-vec says so) and
// makes the loop's tail with the same IEEE operations: an element's bits do not depend on its
// position.
#include "blocks.h"

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
  map2<accumulate>(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<const T*>(operands[1]),
                   reinterpret_cast<T*>(operands[2]), n,
                   [&](Compute<T> x) { return a.derivative(x); });
}

template <class T>
void exponential(char* const* operands, int64_t n, const double*) {
  map1(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<T*>(operands[1]), n,
       [](T x) { return exp_scaled<0>(x).value(); });
}

}  // namespace

#define FASTACT_FORWARD(name, A) \
  {forward<f16, A>, forward<bf16, A>, forward<float, A>, forward<double, A>},
#define FASTACT_BACKWARD(name, A)                         \
  {{backward<f16, A, false>, backward<f16, A, true>},     \
   {backward<bf16, A, false>, backward<bf16, A, true>},   \
   {backward<float, A, false>, backward<float, A, true>}, \
   {backward<double, A, false>, backward<double, A, true>}},
#define FASTACT_QUOTE_(text) #text
#define FASTACT_QUOTE(text) FASTACT_QUOTE_(text)

extern const BlockTable table;
const BlockTable table = {
    FASTACT_QUOTE(FASTACT_ISA),
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD)},
    {exponential<float>, exponential<double>},
};

FASTACT_END_NAMESPACE
