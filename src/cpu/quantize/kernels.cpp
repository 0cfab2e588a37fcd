// The kernels of quantize/kernels.h.
#include "cpu/quantize/kernels.h"

#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kAtOnce = 64;  // of a constant length a loop has no rest

// block(x) for all of them, so many at a time; behind the last ones there are zeros.
template <class C, class Block>
FASTACT_HD void for_blocks(const char* from, int64_t n, Block block) {
  const C* const x = pointer<C>(from);
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

// codes OUT = the last bytes of code(x IN).
template <class C, class Code>
FASTACT_HD void encode_by(const char* from, int64_t n, char* to, Code code) {
  for_blocks<C>(from, n, [&](const C* x, int64_t begin, int64_t m) FASTACT_INLINED {
    int32_t wide[kAtOnce];  // in one loop GCC makes bytes of all that a condition chooses from
    int8_t codes[kAtOnce];
#pragma omp simd
    for (int64_t i = 0; i < kAtOnce; ++i) wide[i] = code(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < kAtOnce; ++i) codes[i] = int8_t(wide[i]);
    if (m == kAtOnce)
      memcpy(to + begin, codes, kAtOnce);
    else
      memcpy(to + begin, codes, size_t(m));
  });
}

template <class C>
void encode(const char* from, int64_t n, double given, int format, char* to) {
  const C scale = C(given);
  with_format(format, [&](auto kind) {
    encode_by<C>(from, n, to,
                 [=](C x) FASTACT_INLINED { return kind.code(quotient_of(x, scale)); });
  });
}

#if defined(FASTACT_FMA)
// x / scale by four operations, for a division takes longer than all else. The first two give a
// neighbour of the quotient, if not the quotient: they err by 2^-47 of it before they are rounded.
// The rest of x then is exact, and with it the last operation rounds as a division does (P. W.
// Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM J.
// Res. Dev. 34, 1990), if nothing leaves the range of normal numbers: of scales from 2^-60 to 2^60
// all does that makes a code other than 0.
struct Quotient {
  float scale, inverse, rest;  // rest: what the inverse lacks

  explicit Quotient(float s) : scale(s), inverse(1 / s), rest(madd(-s, inverse, 1.0f) * inverse) {}

  FASTACT_HD float operator()(float x) const {
    const float near = madd(x, inverse, x * rest);
    return madd(madd(-near, scale, x), inverse, near);
  }
};

void encode_floats(const char* from, int64_t n, double given, int format, char* to) {
  if (!(given >= 0x1p-60 && given <= 0x1p60)) return encode<float>(from, n, given, format, to);
  const float scale = float(given);
  const Quotient quotient(scale);
  with_format(format, [&](auto kind) {
    const float end = kind.kEnd * scale;
    encode_by<float>(from, n, to,
                     [=](float x) FASTACT_INLINED { return kind.code(x, end, quotient); });
  });
}
#else
constexpr auto encode_floats = encode<float>;
#endif

template <class C>
void decode(const char* codes, int64_t n, double given, int format, char* to) {
  const C scale = C(given);
  C* const y = pointer<C>(to);
  with_format(format, [&](auto kind) {
    for (int64_t i = 0; i < n; i += kAtOnce) {
      const int64_t m = n - i < kAtOnce ? n - i : kAtOnce;
      int32_t wide[kAtOnce];  // as above
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) wide[j] = int8_t(codes[i + j]);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) y[i + j] = C(kind.number(wide[j])) * scale;
    }
  });
}

}  // namespace

extern const QuantizeKernels quantize_kernels;
const QuantizeKernels quantize_kernels = {
    {peak<float>, peak<double>}, {encode_floats, encode<double>}, {decode<float>, decode<double>}};

FASTACT_END_NAMESPACE
