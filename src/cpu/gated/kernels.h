// The kernels of gated activations, compiled once per instruction set: what stands around the
// activation, whose own kernels run on a chunk (common/gated/gated.h).
//
// b, dy and the results are of the arrays' dtype, so that 16-bit ones are converted where they are
// computed; a, the gate and the activation's value are of the type that is computed in ("wide").
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

struct GatedNumbers {
  double limit, offset;
};

// All pointers to n contiguous elements; the output is one of the inputs or disjoint from them.
// bias: wide, or null for none.
struct GatedKernels {
  // gate OUT (wide) = min(a IN (wide) + bias IN, limit); of float and of double.
  void (*gate[2])(const char* a, const char* bias, char* gate, int64_t n, GatedNumbers numbers);

  // y OUT = value IN (wide) (clamp(b IN + bias IN) + offset)
  void (*product[kDTypes])(const char* value, const char* b, const char* bias, char* y, int64_t n,
                           GatedNumbers numbers);

  // The gradient that comes to the gate, g OUT (wide) = dy IN (clamp(b IN + bias_b IN) + offset), 0
  // where a IN (wide) + bias_a IN is beyond the limit.
  void (*to_gate[kDTypes])(const char* dy, const char* a, const char* bias_a, const char* b,
                           const char* bias_b, char* g, int64_t n, GatedNumbers numbers);

  // db OUT = dy IN value IN (wide), 0 where b IN + bias IN is beyond the limits; [1]: db is wide.
  void (*to_b[kDTypes][2])(const char* dy, const char* value, const char* b, const char* bias,
                           char* db, int64_t n, GatedNumbers numbers);
};

}  // namespace fastact
