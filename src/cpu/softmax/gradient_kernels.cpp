// SoftmaxGradients of softmax/kernels.h.
#include "cpu/simd/map_span.h"
#include "cpu/simd/mixed.h"
#include "cpu/softmax/gradients.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, class Kind>
void sum(RowsIn a, RowsIn b, int64_t m, int64_t n, double* sums) {
  for (int64_t j = 0; j < m; ++j) {
    const T* dy = in<T>(a.at + j * a.stride);
    if constexpr (Kind::kSumsProducts) {
      const T* y = in<T>(b.at + j * b.stride);
      const double found = sum_of(dy, n, Products<T>{y});
      sums[j] += found == found ? found : sum_of_parts(dy, y, n);
    } else {
      sums[j] += sum_of(dy, n, Terms<T>{});
    }
  }
}

template <class T, class Kind>
FASTACT_MIXED void gradient(RowsIn of_dy, RowsIn of_y, int64_t m, int64_t n, const double* sums,
                            double scale_, const NextRows& next, RowsOut of_dx) {
  using C = Compute<T>;
  const C scale = C(scale_);
  for (int64_t j = 0; j < m; ++j) {
    const T *dy = in<T>(of_dy.at + j * of_dy.stride), *y = in<T>(of_y.at + j * of_y.stride);
    T* const dx = out<T>(of_dx.at + j * of_dx.stride);
    const C sum = C(sums[j]);
    const auto of = [=](C v, C w) FASTACT_INLINED { return gradient_of<Kind>(v, w, sum, scale); };
    if constexpr (is_half<T>) {
      if (n >= kInRegisters)
        map_span<kInRegisters>(dy, y, dx, n, of);
      else
        map_indexed<kInRegisters>(dy, y, dx, n,
                                  [=](int64_t, C v, C w) FASTACT_INLINED { return of(v, w); });
    } else {
      each(dx, n, [=](int64_t i) FASTACT_INLINED { return of(dy[i], y[i]); }, next.of(j));
    }
  }
}

template <class T>
constexpr SoftmaxGradients gradients_of() {
  SoftmaxGradients made{};
#define FASTACT_ENTRY(number, Kind, name) \
  made.sum[number] = sum<T, Kind>, made.gradient[number] = gradient<T, Kind>;
  FASTACT_SOFTMAX_MAPS(FASTACT_ENTRY)
#undef FASTACT_ENTRY
  return made;
}

}  // namespace

const SoftmaxGradients softmax_gradients[] = {gradients_of<f16>(), gradients_of<bf16>(),
                                              gradients_of<float>(), gradients_of<double>()};

FASTACT_END_NAMESPACE
