// The kernels of codes (common/quantize/quantize.h), compiled once per instruction set.
#pragma once

#include "common/quantize/quantize.h"

namespace fastact {

// All pointers to n contiguous elements; [1]: x is double.
struct QuantizeKernels {
  // The greatest of the finite |x IN|.
  double (*peak[2])(const char* x, int64_t n);
  // codes OUT = x IN by a scale. format: CodeFormat.
  void (*encode[2])(const char* x, int64_t n, double scale, int format, char* codes);
  // y OUT = codes IN by a scale.
  void (*decode[2])(const char* codes, int64_t n, double scale, int format, char* y);
};

}  // namespace fastact
