// Polynomials and quotients of polynomials behind the elementary functions of math/elementary.h.
//
// Each minimises the worst relative error of its result, by `python tools/minimax.py NAME
// float|double`, which prints these coefficients and the error. The error named here is the
// approximation's with rounded coefficients, before any rounding of its evaluation.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

// c + x (c1 + x (c2 + ...))
template <class T>
FASTACT_HD T horner(T, T c) {
  return c;
}
template <class T, class... Rest>
FASTACT_HD T horner(T x, T c, Rest... rest) {
  return madd(horner(x, T(rest)...), x, c);
}

// Goes by even and odd powers: a chain half as long, for one multiplication more. Where an
// element is one long chain the processor runs out of room to overlap elements. The two halves may
// cancel: log1p would lose 1 ULP by it (2 without FMA).
template <class T>
FASTACT_HD T every_second(T, T c) {
  return c;
}
template <class T>
FASTACT_HD T every_second(T, T c, T) {
  return c;
}
template <class T, class... Rest>
FASTACT_HD T every_second(T z, T c, T, Rest... rest) {
  return madd(every_second(z, T(rest)...), z, c);
}
template <class T, class... Rest>
FASTACT_HD T even_odd(T x, T c, Rest... rest) {
  const T z = x * x;
  return madd(every_second(z, T(rest)...), x, every_second(z, c, T(rest)...));
}

template <bool split, class T, class... Rest>
FASTACT_HD T polynomial(T x, T c, Rest... rest) {
  return split ? even_odd(x, c, rest...) : horner(x, c, rest...);
}

// log1p: q(u) of log1p(u) = u + u^2 q(u) for 0 <= u <= 1. Error 2^-27.5, 2^-56.5.
FASTACT_HD float log1p_quotient(float u) {
  return horner(u, -0x1.ffffd2p-2f, 0x1.554ddp-2f, -0x1.ff23e6p-3f, 0x1.934b54p-3f, -0x1.3a435ep-3f,
                0x1.b4ae08p-4f, -0x1.d6b08cp-5f, 0x1.4917cep-6f, -0x1.af49cep-9f);
}
FASTACT_HD double log1p_quotient(double u) {
  return horner(
      u, -0x1.fffffffffff9fp-2, 0x1.5555555551051p-2, -0x1.fffffffdd49d5p-3, 0x1.99999951fa529p-3,
      -0x1.55554fbe5c3abp-3, 0x1.2491fed98fb85p-3, -0x1.fffa8bcdffa1p-4, 0x1.c6f6a83a3c3efp-4,
      -0x1.98d296dbce983p-4, 0x1.712df6fd1eb45p-4, -0x1.4b0223e242f4fp-4, 0x1.202dfa76b03e8p-4,
      -0x1.d71174cea9603p-5, 0x1.5a8958a260b5p-5, -0x1.b632dc2a41d2dp-6, 0x1.c57f84d146b4ep-7,
      -0x1.6b4ef7989744bp-8, 0x1.a25cd06a31254p-10, -0x1.31f9970ae49e3p-12, 0x1.a907ca3e9c67fp-16);
}

// log1p_low: the same for 0 <= u <= exp(-2), where a result of at least 1 - log(2) is added to
// log1p(u). Error 2^-29.1, 2^-55.3 of that sum.
FASTACT_HD float log1p_low_quotient(float u) {
  return horner(u, -0x1.fffe8ep-2f, 0x1.550434p-2f, -0x1.f3b508p-3f, 0x1.3372c6p-3f);
}
FASTACT_HD double log1p_low_quotient(double u) {
  return horner(u, -0x1.fffffffffc652p-2, 0x1.555555527ca87p-2, -0x1.fffffe40a49edp-3,
                0x1.99995136d2623p-3, -0x1.554e5f541c50ep-3, 0x1.2426c1e360ac4p-3,
                -0x1.f7b8294cbc564p-4, 0x1.93cc8cac96a14p-4, -0x1.b853e888585f8p-5);
}

// tanhshrink: q(x^2) of x - tanh(x) = x^3 (c + q(x^2)), c = 1/3 as rounded, for |x| <= 1. Error
// 2^-25.5, 2^-53.8.
FASTACT_HD float tanhshrink_quotient(float z) {
  return horner(z, -0x1.91df88p-27f, -0x1.1110f2p-3f, 0x1.ba117ep-5f, -0x1.65a7eap-6f,
                0x1.1d03bp-7f, -0x1.a4576ap-9f, 0x1.e43c72p-11f, -0x1.2b85bp-13f);
}
FASTACT_HD double tanhshrink_quotient(double z) {
  return horner(
      z, 0x1.fbdf10b129cb2p-57, -0x1.11111111110bap-3, 0x1.ba1ba1ba14573p-5, -0x1.664f4880d3639p-6,
      0x1.226e35199d2c9p-7, -0x1.d6d3c53c18a9p-9, 0x1.7da2bdeb4fb9ep-10, -0x1.3551af7a3ef57p-11,
      0x1.f521260423d74p-13, -0x1.94985c67b8bfap-14, 0x1.4209c9430280fp-15, -0x1.ea1cdd84b6ad3p-17,
      0x1.4ebdcbeef76b6p-18, -0x1.724203e214824p-20, 0x1.1ac48fbf0d4ffp-22, -0x1.b040890a4047p-26);
}

// logcosh: q(x^2) of log(cosh(x)) = x^2 q(x^2) for |x| <= 1. Error 2^-27.0, 2^-56.5.
FASTACT_HD float logcosh_quotient(float z) {
  return horner(z, 0x1p-1f, -0x1.555516p-4f, 0x1.6c02bcp-6f, -0x1.b7f9d8p-8f, 0x1.10f5d2p-9f,
                -0x1.25d03p-11f, 0x1.7088e6p-14f);
}
FASTACT_HD double logcosh_quotient(double z) {
  return horner(z, 0x1p-1, -0x1.55555555554f1p-4, 0x1.6c16c16c0db69p-6, -0x1.ba1ba1b588ab8p-8,
                0x1.1ea5d305bbe7p-9, -0x1.833d859aca8a2p-11, 0x1.0d0a3036be933p-12,
                -0x1.7d8f9990c3136p-14, 0x1.127e5f4160f17p-15, -0x1.8ce19d70958f6p-17,
                0x1.19615fa4b61e3p-18, -0x1.71bb693ff98bfp-20, 0x1.9615df63d92e5p-22,
                -0x1.3b9257897e467p-24, 0x1.f261eb0fdea42p-28);
}

// half_exp: p(r) of exp(-r/2) = 1 + r p(r) for |r| <= ln(2). Error 2^-28.2, 2^-55.3 of exp.
FASTACT_HD float half_exp_quotient(float r) {
  return horner(r, -0x1p-1f, 0x1.fffffcp-4f, -0x1.55548cp-6f, 0x1.555858p-9f, -0x1.123de6p-12f,
                0x1.6ac7f4p-16f);
}
FASTACT_HD double half_exp_quotient(double r) {
  return horner(r, -0x1.0000000000003p-1, 0x1.0000000000006p-3, -0x1.5555555554642p-6,
                0x1.55555555518eap-9, -0x1.11111113b5eedp-12, 0x1.6c16c1815e7e8p-16,
                -0x1.a019f58b42bc5p-20, 0x1.a0199fc9171c8p-24, -0x1.71f64e94a0cfbp-28,
                0x1.28a98ff64842ap-32, -0x1.8bde6cfe6c47p-37);
}

// g(t), roughly, for 16-bit data on a GPU, as w times a polynomial in w = 1 / (1 + 0.3 t), for
// 0 <= t <= 14.5. Error 2^-18.2 up to t = 4.3, where float16 has all its bits, half of that beside
// the root of gelu's derivative, and ten times as much far out.
FASTACT_HD float normal_tail_of(float w) {
  return horner(w, 0x1.ec642ep-4f, 0x1.cb575ap-4f, 0x1.34ed7ep-3f, -0x1.e63ab8p-6f, 0x1.d1c292p-3f,
                -0x1.4b8bd6p-4f);
}

// normal_near: p(t^2) of Phi(t) = 1/2 + t p(t^2) for 0 <= t <= kNormalNear. Error 2^-27.1, 2^-55.6
// of 1 - Phi(t).
template <class T>
constexpr T kNormalNear = sizeof(T) == sizeof(float) ? T(0.5625) : T(0.8);
FASTACT_HD float normal_near(float z) {
  return horner(z, 0x1.98845p-2f, -0x1.105646p-4f, 0x1.4628b8p-7f, -0x1.21d85ep-10f);
}
FASTACT_HD double normal_near(double z) {
  return horner(z, 0x1.9884533d4364dp-2, -0x1.1058377e2ca2ep-4, 0x1.46d042972d099p-7,
                -0x1.37403f556bbffp-10, 0x1.e42b04525157ep-14, -0x1.3ce7e605494e5p-17,
                0x1.65619af33e5a9p-21, -0x1.5e9286ef55bc8p-25, 0x1.0be0f2e89acd3p-29);
}

// normal_far: `times`, a power of two, times p(z) of t (1 - Phi(t)) = exp(-t^2/2) p(z), for t from
// kNormalNear to 13.3 (float) and 37.7 (double). z is (t - kNormalMiddle) / (t + kNormalShift):
// from a point in the middle terms hardly cancel on either side. Error 2^-24.9, 2^-54.4.
template <class T>
constexpr T kNormalMiddle = sizeof(T) == sizeof(float) ? T(1.1875) : T(1.25);
template <class T>
constexpr T kNormalShift = sizeof(T) == sizeof(float) ? T(3) : T(3.5);
template <class T, class... C>
FASTACT_HD T horner_times(T times, T x, C... c) {
  return horner(x, times * c...);
}
FASTACT_HD float normal_far(float z, float times) {
  return horner_times(times, z, 0x1.213a3p-2f, 0x1.aab878p-2f, -0x1.2e09b4p-1f, 0x1.8dd5f6p-2f,
                      -0x1.05f55p-4f, -0x1.e3e188p-5f, 0x1.7e42cap-7f, 0x1.63b99ap-6f,
                      -0x1.2cf6a6p-7f);
}
FASTACT_HD double normal_far(double z, double times) {
  return horner_times(times, z, 0x1.275f8ac61c57p-2, 0x1.c2a0a913c09ap-2, -0x1.7e3025fcfe6b4p-1,
                      0x1.5dc8a6af4a8dp-1, -0x1.3ed1b284a2f9ep-2, 0x1.1b38e13545f5dp-10,
                      0x1.dffecb073f82ap-5, -0x1.c2813b5574e82p-9, -0x1.c0f43b6e0fa48p-7,
                      -0x1.197a980ffaf4cp-10, 0x1.b96850dd5cfb2p-9, 0x1.42d2c83620407p-10,
                      -0x1.166d454d7fa59p-11, -0x1.17ff0224660bfp-11, -0x1.d0a601c268991p-12,
                      0x1.2c35e24a9e964p-10, -0x1.a447e7bb7535ep-10, 0x1.f48a911ecf2f5p-10,
                      -0x1.6a15bf9ac5b33p-10, 0x1.0fea2505b774ep-11, -0x1.4be790ce1409p-14);
}

// normal_slope: p(v) of gelu'(-t) = exp(-t^2/2) (t + s) p(t / (t + s)), s = kSlopeShift, for t to
// 13.3 (float) and 37.7 (double). Error 2^-25.4, 2^-54.4 absolutely, and far out 2^-9, 2^-24
// relative to the result.
template <class T>
constexpr T kSlopeShift = sizeof(T) == sizeof(float) ? T(3.5) : T(5);
FASTACT_HD float normal_slope(float v) {
  return horner(v, 0x1.24924ap-3f, -0x1.e1a912p-1f, 0x1.c005e6p-1f, -0x1.825732p-1f, 0x1.32eb62p-2f,
                0x1.d62baep-6f, -0x1.b55eeap-5f);
}
FASTACT_HD double normal_slope(double v) {
  return horner(
      v, 0x1.9999999999999p-4, -0x1.cbb7867076932p-1, 0x1.3ffffffffe32dp+0, -0x1.0989d6b4e61c5p+1,
      0x1.34ec528c66d94p+1, -0x1.e89d69b449aa8p+0, 0x1.c6f9f8039ab69p-1, -0x1.45bca4ba893f6p-4,
      -0x1.3a7f16c04728ep-3, 0x1.90bbaf6e126a4p-5, 0x1.f5ee89e38d778p-6, -0x1.2215a9aca59f1p-7,
      -0x1.035a123854b29p-6, 0x1.0f636a69cc6dbp-7, 0x1.0e3cfaac522dp-10, -0x1.18982a2bd4006p-10);
}

FASTACT_END_NAMESPACE
