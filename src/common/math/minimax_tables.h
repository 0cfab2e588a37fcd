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

// The same by even and odd powers: a chain half as long, for one multiplication more. Where an
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

// normal_tail: numerator and denominator of g(t) = exp(t^2/2) (1 - Phi(t)), half the scaled
// complementary error function of t / sqrt(2), for 0 <= t <= 14.5 (float) and 39 (double). All
// coefficients are positive: nothing cancels. Error 2^-25.9, 2^-55.8.
FASTACT_HD float normal_tail_top(float t) {
  return horner(t, 0x1p-1f, 0x1.c0d0c2p-2f, 0x1.774492p-3f, 0x1.4cdedap-5f, 0x1.0dc51ep-8f);
}
FASTACT_HD double normal_tail_top(double t) {
  return horner(t, 0x1p-1, 0x1.a7e8999d01dcap-1, 0x1.5bfa49a56bde1p-1, 0x1.6df311554a8aap-2,
                0x1.0e7584db77bdcp-3, 0x1.243af18d0b55ap-5, 0x1.d2e21dd886d8cp-8,
                0x1.109c4892aec3bp-10, 0x1.bf1b196ef8015p-14, 0x1.d44819e9f3fd5p-18,
                0x1.e197028c420c7p-23);
}
FASTACT_HD float normal_tail_bottom(float t) {
  return horner(t, 0x1p0f, 0x1.acaa92p0f, 0x1.33d788p0f, 0x1.e0bdb2p-2f, 0x1.a137b8p-4f,
                0x1.521a48p-7f);
}
FASTACT_HD double normal_tail_bottom(double t) {
  return horner(t, 0x1p0, 0x1.3a15619dd1c7ap1, 0x1.68975b2fbp1, 0x1.0032e8c560bfdp1,
                0x1.f5da2045ceb98p-1, 0x1.64b6f40776f7p-2, 0x1.78ca43ba99c0dp-4,
                0x1.28ef64517ae29p-6, 0x1.57f58bdc27813p-9, 0x1.18c57fe13fe1cp-12,
                0x1.2573b67bb0b8ep-16, 0x1.2dcaad1f6879dp-21);
}

// g(t), roughly, for 16-bit data on a GPU, as w times a polynomial in w = 1 / (1 + 0.3 t), for
// 0 <= t <= 14.5. Error 2^-18.2 up to t = 4.3, where float16 has all its bits, half of that beside
// the root of gelu's derivative, and ten times as much far out.
FASTACT_HD float normal_tail_of(float w) {
  return horner(w, 0x1.ec642ep-4f, 0x1.cb575ap-4f, 0x1.34ed7ep-3f, -0x1.e63ab8p-6f, 0x1.d1c292p-3f,
                -0x1.4b8bd6p-4f);
}

// normal_near: 1 - Phi(t) as a polynomial in 1 - t, for 0 <= t <= 1.5: around a point so far
// out that little cancels there, and so near that 1 - t is hardly rounded. Error 2^-25.0, 2^-52.3.
FASTACT_HD float normal_near(float s) {
  return horner(s, 0x1.44ed0cp-3f, 0x1.ef8e6p-3f, 0x1.ef8e3ep-4f, -0x1.7e68f4p-20f, -0x1.4a5a94p-6f,
                -0x1.07a88ap-8f, 0x1.078b7cp-9f, 0x1.86c4c2p-11f, -0x1.c0f75p-14f, -0x1.30559p-14f);
}
FASTACT_HD double normal_near(double s) {
  return horner(s, 0x1.44ed0bb7cb20bp-3, 0x1.ef8e58e331739p-3, 0x1.ef8e58e331725p-4,
                -0x1.27120cf103d07p-48, -0x1.4a5ee5ecca988p-6, -0x1.084beb23aec3fp-8,
                0x1.084beb22fc3bap-9, 0x1.92bcd3f403cc2p-11, -0x1.f76c078014c34p-14,
                -0x1.712d13dd1e2ap-14, 0x1.f52c221ab506cp-20, 0x1.eeac5354e632bp-18,
                0x1.fbe9bcc9aa101p-22, -0x1.038af103c926ep-21, -0x1.1c1e6c5e36df8p-24,
                0x1.be34ba21d8493p-26, 0x1.86c3b76d2ff8bp-28, -0x1.d7ee2e660a77bp-30);
}

// normal_far: numerator and denominator of r(t) = 1/sqrt(2 pi), as rounded, - t g(t), for 1.5 <= t
// <= 14.5 (float) and 39 (double). There r is at most 0.29 of t g, so that its errors count little.
// Error 2^-30.3, 2^-55.2 of t g.
FASTACT_HD float normal_far_top(float t) {
  return horner(t, 0x1.9941bp-2f, 0x1.0e54a8p-2f, 0x1.4a1cd2p-4f, 0x1.bc10d6p-7f);
}
FASTACT_HD double normal_far_top(double t) {
  return horner(t, 0x1.98845d30fb03ep-2, 0x1.da2c8c85810adp-2, 0x1.152c34f63a0dfp-2,
                0x1.9b5301bd497e7p-4, 0x1.9efbbe96ec1ebp-6, 0x1.1dd3b8e2763a9p-8,
                0x1.f9534953d845ep-12, 0x1.d9e37f7d31d23p-16);
}
FASTACT_HD float normal_far_bottom(float t) {
  return horner(t, 0x1p0f, 0x1.ec8ba2p0f, 0x1.9797f4p0f, 0x1.877c54p-1f, 0x1.9dafbep-3f,
                0x1.16460ap-5f);
}
FASTACT_HD double normal_far_bottom(double t) {
  return horner(t, 0x1p0, 0x1.34ff2ec61fe1p1, 0x1.5a1d6d7bccd18p1, 0x1.da75202413dd8p0,
                0x1.b930b2dcf40bfp-1, 0x1.22e89d9e1a297p-2, 0x1.12e55c3de10dep-4,
                0x1.6d30f30a78378p-7, 0x1.3caa6af03b4afp-10, 0x1.28f736e1434e4p-14);
}

FASTACT_END_NAMESPACE
