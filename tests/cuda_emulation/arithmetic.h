// The arithmetic instructions of a GPU that the host has not, as the PTX ISA documents them: with
// .ftz a subnormal operand is a zero of its sign, and so is a subnormal result.
//
// Documented errors are made: a result that is no number of its type becomes one of the numbers
// around it; a hash of the operand says which one. Exact results are exact.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace fastact::emulation {

template <class T>
T flushed(T x) {
  return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T(0), x) : x;
}

// Numbers 0 to n - 1 without a pattern.
inline int hashed(float x, int n) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return int(uint64_t(bits * 2654435761u) * uint64_t(n) >> 32);
}

// The float that is `steps` above the last one that is not above x: 0 and 1 are x's neighbours.
inline float neighbour(double x, int steps) {
  float y = float(x);
  if (double(y) == x || !std::isfinite(y)) return y;
  if (double(y) > x) y = std::nextafterf(y, -INFINITY);
  for (; steps > 0; --steps) y = std::nextafterf(y, INFINITY);
  for (; steps < 0; ++steps) y = std::nextafterf(y, -INFINITY);
  return y;
}

// rcp.approx.ftz.f32: off by at most 1 ULP.
inline float reciprocal_approx_ftz(float x) {
  return flushed(neighbour(1 / double(flushed(x)), hashed(x, 2)));
}

// The upper half of a double, the lower one zero.
inline double upper_half(double y) {
  uint64_t bits;
  memcpy(&bits, &y, sizeof(bits));
  bits &= ~uint64_t(0) << 32;
  double upper;
  memcpy(&upper, &bits, sizeof(upper));
  return y != y ? y : upper;
}

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: 20 bits.
inline double reciprocal_approx_ftz(double x) { return upper_half(flushed(1 / flushed(x))); }
inline double inverse_root_approx_ftz(double x) { return upper_half(1 / std::sqrt(flushed(x))); }

// ex2.approx.ftz.f32: off by at most 2 ULP.
inline float power_of_two_approx_ftz(float x) {
  return flushed(neighbour(std::exp2(double(flushed(x))), hashed(x, 4) - 1));
}

// min and max: -0 is below +0, and of a NaN and a number it is the number.
template <class T>
T minimum(T a, T b) {
  if (a != a || b != b) return a != a ? b : a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
T maximum(T a, T b) {
  return -minimum(-a, -b);
}

}  // namespace fastact::emulation
