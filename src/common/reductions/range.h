// Numbers whose squares leave the range of the type in which they are computed, and the power of
// two by which they are multiplied then.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

// Mean squares in [kLeast, kMost] met no overflow, and no underflow that matters: a term that
// vanished is below 2^-40 of them, or of an eps from kLeastEps on.
template <class C>
struct Range {
  static constexpr double kLeast = sizeof(C) == 8 ? 0x1p-900 : 0x1p-100;
  static constexpr double kMost = sizeof(C) == 8 ? 0x1p1000 : 0x1p100;
  static constexpr double kLeastEps = kLeast * 0x1p60;
};

// The power of two by which numbers as large as peak come near 1: of 0 and of an infinity, one that
// changes neither. Of double not beyond 2^600, which lets the squares of all numbers and eps be
// represented.
FASTACT_HD float scale_of(float peak) {
  const int exponent = 254 - int(bit_cast<uint32_t>(peak) >> 23);
  return bit_cast<float>(uint32_t(exponent < 1 ? 1 : exponent > 253 ? 253 : exponent) << 23);
}
FASTACT_HD double scale_of(double peak) {
  constexpr int kMost = 1023 + 600;
  const int exponent = 2046 - int(bit_cast<uint64_t>(peak) >> 52);
  return bit_cast<double>(uint64_t(exponent < 1 ? 1 : exponent > kMost ? kMost : exponent) << 52);
}

FASTACT_HD double inverse_power(double power) {
  return bit_cast<double>((uint64_t(2046) << 52) - bit_cast<uint64_t>(power));
}

constexpr double kMostDouble = 0x1.fffffffffffffp1023;

FASTACT_HD bool is_in_range(double square) {
  return (square >= Range<double>::kLeast) & (square <= kMostDouble);
}

// A square that is in range, or else the negative of its root: of `square` times up^2, where up is
// a power of two.
FASTACT_HD double square_or_root(double square, double up) {
  const double whole = square * up * up;
  return is_in_range(whole) || !(square > 0) ? whole : -__builtin_sqrt(square) * up;
}
FASTACT_HD double square_of(double square_or_root) {
  return square_or_root < 0 ? square_or_root * square_or_root : square_or_root;
}

// Factors that bring all numbers whose squares overflow, or vanish, to where they do neither; and
// the square of such numbers times one of these, or times 1.
constexpr double kScaleDown = 0x1p-600, kScaleUp = 0x1p600;
FASTACT_HD double scaled_square(double square_or_root, double scale) {
  const double scaled = square_or_root * scale;
  return square_or_root < 0 ? scaled * scaled : scaled * scale;
}

FASTACT_END_NAMESPACE
