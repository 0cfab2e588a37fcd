// The kernels of gated activations, compiled once per instruction set: what stands around the
// activation, whose own kernels run on a chunk (common/gated/gated.h). Of float and of double.
#pragma once

#include <cstdint>

namespace fastact {

// All pointers to n contiguous elements; the output is one of the inputs or disjoint from them.
// A bias that is null is not added.
struct GatedNumbers {
  double limit, offset;
};

struct GatedKernels {
  // gate OUT = min(a IN + bias IN, limit)
  void (*gate[2])(const char* a, const char* bias, char* gate, int64_t n, GatedNumbers numbers);

  // y OUT = value IN (clamp(b IN + bias IN) + offset)
  void (*product[2])(const char* value, const char* b, const char* bias, char* y, int64_t n,
                     GatedNumbers numbers);

  // The gradient that comes to the gate, g OUT = dy IN (clamp(b IN + bias_b IN) + offset), 0 where
  // a IN + bias_a IN is beyond the limit.
  void (*to_gate[2])(const char* dy, const char* a, const char* bias_a, const char* b,
                     const char* bias_b, char* g, int64_t n, GatedNumbers numbers);

  // db OUT = dy IN value IN, 0 where b IN + bias IN is beyond the limits.
  void (*to_b[2])(const char* dy, const char* value, const char* b, const char* bias, char* db,
                  int64_t n, GatedNumbers numbers);
};

}  // namespace fastact
