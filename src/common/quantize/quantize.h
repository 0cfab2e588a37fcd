// Results in 8 bits: codes. A code stands for code * scale.
//
// A code is x / scale, rounded to int8 or to float8 (P. Micikevicius et al., "FP8 Formats for Deep
// Learning", https://arxiv.org/abs/2209.05433): e4m3 has 4 bits of exponent, 3 of mantissa, and no
// infinities; e5m2 is the upper half of a float16. The quotient is rounded to the compute type,
// then to the code, half to even; what lies outside of a code's range, infinity as well, becomes
// its end. Of NaN the code is NaN, 0x7f, and 0 in int8, which has none.
//
// A scale that is found is max |x| / top over the elements that share it, those that are no finite
// numbers left out; top is 127, 448 or 57344. It is no less than the least normal number, so that
// x / scale is never 0 / 0: of zeros alone it is that number. A scale of bytes is e8m0 (OCP
// Microscaling Formats Specification 1.0): 2^(byte - 127), the greatest power of two in max |x|
// over the one in top, and no less than 2^-127.
#pragma once

#include "common/core/call.h"
#include "common/core/dtypes.h"

namespace fastact {

enum CodeFormat : int { kInt8Codes, kE4m3Codes, kE5m2Codes, kCodeFormats };

struct QuantizeCall {
  ArrayArgument x, scale;
  ArrayArgument codes;  // bytes, which a View knows as bool
  AxisFlags reduced;    // along which elements share a scale
  int format;
};

inline const char* problem_of_quantize(const void* given) {
  const QuantizeCall& call = *static_cast<const QuantizeCall*>(given);
  const int computed = call.x.dtype == kF64 ? kF64 : kF32;
  const bool is_known = call.scale.dtype == kBool || call.scale.dtype == computed;
  return is_known ? nullptr : "scale must have the type in which x is computed, or be bytes";
}

// scale OUT = the scales of x IN, codes OUT = x in these.
constexpr Field kQuantizeFields[] = {
    fields::in<&QuantizeCall::x>("x"),
    fields::axes<&QuantizeCall::reduced>("reduced", "x"),
    fields::out<&QuantizeCall::scale>("scale").reduced("x", "reduced").any_dtype(),
    fields::out<&QuantizeCall::codes>("codes").same_shape("x").mask().optional(),
    fields::in<&QuantizeCall::format>("format").below(kCodeFormats),
};
// codes OUT = x IN by scale IN, whose numbers are positive.
constexpr Field kEncodeFields[] = {
    fields::in<&QuantizeCall::x>("x"),
    fields::axes<&QuantizeCall::reduced>("reduced", "x"),
    fields::in<&QuantizeCall::scale>("scale").reduced("x", "reduced").any_dtype(),
    fields::out<&QuantizeCall::codes>("codes").same_shape("x").mask(),
    fields::in<&QuantizeCall::format>("format").below(kCodeFormats),
};
// peak IN/OUT = the greatest of itself and of the finite |x| IN.
constexpr Field kPeakFields[] = {
    fields::in<&QuantizeCall::x>("x"),
    fields::axes<&QuantizeCall::reduced>("reduced", "x"),
    fields::in_out<&QuantizeCall::scale>("peak").reduced("x", "reduced").compute_type("x"),
};

// y OUT = codes IN times scale IN.
constexpr Field kDecodeFields[] = {
    fields::out<&QuantizeCall::x>("y"),
    fields::axes<&QuantizeCall::reduced>("reduced", "y"),
    fields::in<&QuantizeCall::scale>("scale").reduced("y", "reduced").compute_type("y"),
    fields::in<&QuantizeCall::codes>("codes").same_shape("y").mask(),
    fields::in<&QuantizeCall::format>("format").below(kCodeFormats),
};

struct WidenCall {
  enum Data : int { kX, kResidual, kTotal, kY, kArrays };
  ArrayArgument data[kArrays];
};

inline const char* problem_of_widen(const void* given) {
  const WidenCall& call = *static_cast<const WidenCall*>(given);
  return !call.data[WidenCall::kResidual].shape == !call.data[WidenCall::kTotal].shape
             ? nullptr
             : "residual and total must both be arrays, or neither";
}

// y OUT = x IN in the compute type; with a residual IN, y = total OUT = x + residual, rounded.
constexpr Field kWidenFields[] = {
    fields::in<&WidenCall::data, WidenCall::kX>("x"),
    fields::in<&WidenCall::data, WidenCall::kResidual>("residual").like("x").optional(),
    fields::out<&WidenCall::data, WidenCall::kTotal>("total").like("x").optional(),
    fields::out<&WidenCall::data, WidenCall::kY>("y").same_shape("x").compute_type("x"),
};

constexpr CallTable kQuantize =
    table_of_call<QuantizeCall>("quantize", kQuantizeFields, problem_of_quantize);
constexpr CallTable kEncode =
    table_of_call<QuantizeCall>("encode", kEncodeFields, problem_of_quantize);
constexpr CallTable kPeak = table_of_call<QuantizeCall>("peak", kPeakFields);
constexpr CallTable kDecode = table_of_call<QuantizeCall>("decode", kDecodeFields);
constexpr CallTable kWiden = table_of_call<WidenCall>("widen", kWidenFields, problem_of_widen);

}  // namespace fastact

FASTACT_BEGIN_NAMESPACE

// The integers as which a type's magnitudes sort, and some of them.
template <class C>
struct BitsOf;
template <>
struct BitsOf<float> {
  using type = int32_t;
  static constexpr type kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kLeastNormal = 0x00800000;
};
template <>
struct BitsOf<double> {
  using type = int64_t;
  static constexpr type kMagnitude = 0x7fffffffffffffff;
  static constexpr type kInfinity = 0x7ff0000000000000, kLeastNormal = 0x0010000000000000;
};

// |x|, and 0 where that is no finite number: as bits, which are compared faster.
template <class C>
FASTACT_HD typename BitsOf<C>::type finite_magnitude(C x) {
  using Bits = typename BitsOf<C>::type;
  const Bits magnitude = bit_cast<Bits>(x) & BitsOf<C>::kMagnitude;
  return magnitude < BitsOf<C>::kInfinity ? magnitude : 0;
}

// The number that is rounded to a code, in float; a double is rounded to odd before, which does not
// change the code.
FASTACT_HD float quotient_of(float x, float scale) { return x / scale; }
FASTACT_HD float quotient_of(double x, double scale) { return round_to_odd(x / scale); }

// A format knows its greatest number kTop, the power of two in that, and the number of a code. It
// makes codes, in the last byte, of quotients; or of
// numbers whose quotient(x) is exact up to the greatest of them, kEnd times the scale, which has
// the last code. The ends of the range are compared as integers, as which magnitudes sort: vectors
// do that faster.
struct Undivided {
  FASTACT_HD float operator()(float x) const { return x; }
};

struct Int8 {
  static constexpr float kTop = 127, kEnd = 128;
  static constexpr int kExponent = 6;

  // The sum's last places are the integer's, to which the addition rounds.
  template <class Quotient = Undivided>
  static FASTACT_HD int32_t code(float x, float greatest = kEnd, Quotient quotient = {}) {
    const int32_t bits = bit_cast<int32_t>(x), magnitude = bits & 0x7fffffff;
    const int32_t most = bit_cast<int32_t>(greatest), held = magnitude < most ? magnitude : most;
    const float signed_ = bit_cast<float>(held | (bits & INT32_MIN));
    int32_t sum = bit_cast<int32_t>(quotient(signed_) + 0x1.8p23f);
    sum = sum < 0x4b40007f ? sum : 0x4b40007f;
    return magnitude > 0x7f800000 ? 0 : sum;
  }

  static FASTACT_HD float number(int32_t code) { return float(code); }
};

// So many bits of mantissa; 2^(least - 127), the least normal number; and the greatest one.
template <int mantissa, int least, int greatest_number>
struct Float8 {
  static constexpr float kTop = greatest_number, kEnd = kTop;
  static constexpr int kExponent = mantissa == 3 ? 8 : 15;
  static constexpr int32_t kLeast = least << 23, kShift = 23 - mantissa;

  // The sum's last place is that of codes: 2^-mantissa of the power of two in y, and no less than
  // that of the least normal number. So its last bits are a leading 1, but for subnormal numbers,
  // and the mantissa; the leading 1 more is another power. The greatest number is the last code
  // before infinity, if there is one, and NaN.
  template <class Quotient = Undivided>
  static FASTACT_HD int32_t code(float x, float greatest = kEnd, Quotient quotient = {}) {
    constexpr int32_t kToNan = 0x7f - kTopCode;
    const int32_t bits = bit_cast<int32_t>(x), magnitude = bits & 0x7fffffff;
    const int32_t most = bit_cast<int32_t>(greatest), held = magnitude < most ? magnitude : most;
    const float y = quotient(bit_cast<float>(held));
    int32_t power = bit_cast<int32_t>(y) & 0x7f800000;
    power = power > kLeast ? power : kLeast;
    const int32_t sum = bit_cast<int32_t>(y + bit_cast<float>(power + (kShift << 23)));
    const int32_t code = sum + ((power - kLeast) >> kShift) + (magnitude > 0x7f800000 ? kToNan : 0);
    return (code & 0x7f) | (bits >> 24 & 0x80);
  }

  // Bits become those of a float; a subnormal number is 1 + mantissa but for the 1.
  static FASTACT_HD float number(int32_t code) {
    const int32_t magnitude = code & 0x7f, bits = (magnitude << kShift) + kLeast;
    const float subnormal = bit_cast<float>(bits) - bit_cast<float>(kLeast);
    int32_t found = magnitude >> mantissa ? bits - (1 << 23) : bit_cast<int32_t>(subnormal);
    found = magnitude > kTopCode ? 0x7f800000 | magnitude << kShift : found;
    return bit_cast<float>(found | (code & INT32_MIN));
  }

 private:
  static constexpr int32_t kTopCode = mantissa == 3 ? 0x7e : 0x7b;
};
using E4m3 = Float8<3, 121, 448>;
using E5m2 = Float8<2, 113, 57344>;

template <class Visit>
FASTACT_HD auto with_format(int format, const Visit& visit) {
  if (format == kInt8Codes) return visit(Int8{});
  return format == kE4m3Codes ? visit(E4m3{}) : visit(E5m2{});
}

template <class C>
FASTACT_HD C scale_of(C peak, int format) {
  const C scale = peak / with_format(format, [](auto kind) { return C(kind.kTop); });
  const C least = bit_cast<C>(BitsOf<C>::kLeastNormal);
  return scale > least ? scale : least;
}

// The byte of a scale, and its number.
template <class C>
FASTACT_HD int exponent_of(C peak, int format) {
  const int biased = int(bit_cast<typename BitsOf<C>::type>(peak) / BitsOf<C>::kLeastNormal);
  const int found = biased - (sizeof(C) == 8 ? 1023 - 127 : 0) -
                    with_format(format, [](auto kind) { return kind.kExponent; });
  return found < 0 ? 0 : found > 254 ? 254 : found;
}
FASTACT_HD float power_of(int exponent) {
  return exponent ? bit_cast<float>(exponent << 23) : 0x1p-127f;
}

FASTACT_END_NAMESPACE
