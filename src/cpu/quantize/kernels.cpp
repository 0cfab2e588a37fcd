// The kernels of quantize/quantize.h.
#include "cpu/quantize/quantize.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kAtOnce = 64;  // of a constant length a loop has no rest

// block(x) for all of them, so many at a time; behind the last ones there are zeros.
template <class C, class Block>
FASTACT_HD void for_blocks(const char* from, int64_t n, Block block) {
  const C* const x = reinterpret_cast<const C*>(from);
  for (int64_t i = 0; i < n; i += kAtOnce) {
    const int64_t m = n - i < kAtOnce ? n - i : kAtOnce;
    C padded[kAtOnce];
    if (m < kAtOnce) memset(padded, 0, sizeof padded), memcpy(padded, x + i, m * sizeof(C));
    block(m < kAtOnce ? padded : x + i, i, m);
  }
}

template <class C>
double peak(const char* from, int64_t n) {
  using Bits = typename BitsOf<C>::type;
  Bits most[kAtOnce] = {};
  for_blocks<C>(from, n, [&](const C* x, int64_t, int64_t) FASTACT_INLINED {
#pragma omp simd
    for (int64_t i = 0; i < kAtOnce; ++i) {
      const Bits magnitude = finite_magnitude(x[i]);
      most[i] = magnitude > most[i] ? magnitude : most[i];
    }
  });
  Bits all = 0;
#pragma omp simd reduction(max : all)
  for (int64_t i = 0; i < kAtOnce; ++i) all = most[i] > all ? most[i] : all;
  return double(bit_cast<C>(all));
}

template <class C>
void encode(const char* from, int64_t n, double given, int format, char* to) {
  const C scale = C(given);
  for_blocks<C>(from, n, [&](const C* x, int64_t begin, int64_t m) FASTACT_INLINED {
    int8_t codes[kAtOnce];
    if (format == kInt8Codes) {
#pragma omp simd
      for (int64_t i = 0; i < kAtOnce; ++i) codes[i] = int8_of(quotient_of(x[i], scale));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < kAtOnce; ++i) codes[i] = e4m3_of(quotient_of(x[i], scale));
    }
    if (m == kAtOnce)
      memcpy(to + begin, codes, kAtOnce);
    else
      memcpy(to + begin, codes, size_t(m));
  });
}

}  // namespace

extern const QuantizeKernels quantize_kernels;
const QuantizeKernels quantize_kernels = {{peak<float>, peak<double>},
                                          {encode<float>, encode<double>}};

FASTACT_END_NAMESPACE
