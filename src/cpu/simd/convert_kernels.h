// The conversions and additions that fused kernels put around an activation, compiled once per
// instruction set.
//
// A fused kernel works on chunks of the compute type that stay in the first-level cache. Its
// operands are converted to the compute type, its own arithmetic follows, the activation's kernel
// runs on the chunk, and the result is converted back and stored. An activation therefore need not
// know what it is fused with, nor a fused kernel which activation it runs.
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

// The dtype in which a dtype is computed.
inline int compute_dtype(int dtype) { return dtype == kF64 ? kF64 : kF32; }

// All pointers to contiguous elements, of a dtype or ("wide") of its compute type.
struct ConvertKernels {
  // wide OUT (n) = x IN (n), exactly.
  void (*to_compute[kDTypes])(const char* x, char* wide, int64_t n);

  // y OUT (n) = wide IN (n), rounded once; [1]: y IN/OUT += wide, added in the compute type.
  void (*from_compute[kDTypes][2])(const char* wide, char* y, int64_t n);

  // y OUT (n), float = x IN (n), double, rounded.
  void (*round)(const char* x, char* y, int64_t n);

  // z OUT (n) = (x IN (n) + bias IN (n)) + residual IN (n), of float or of double; z is x, residual
  // or neither.
  void (*add[2])(const char* x, const char* bias, const char* residual, char* z, int64_t n);

  // y OUT (n) = x IN (n) + other IN (n), of float or of double; any of them may be one array.
  void (*plus[2])(const char* x, const char* other, char* y, int64_t n);

  // to OUT (bytes) = from IN (bytes), past the caches (convert_kernels.cpp).
  void (*stream)(const char* from, char* to, int64_t bytes);
};

}  // namespace fastact
