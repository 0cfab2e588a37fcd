// Codes and scales (common/quantize/quantize.h) of rows: the elements that share a scale. A row is
// read twice where both are made, the second time from the cache.
#pragma once

#include "common/quantize/quantize.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"

namespace fastact {

// Compiled once per instruction set. All pointers to n contiguous elements; [1]: x is double.
struct QuantizeKernels {
  // The greatest of the finite |x IN|.
  double (*peak[2])(const char* x, int64_t n);
  // codes OUT = x IN by a scale. format: CodeFormat.
  void (*encode[2])(const char* x, int64_t n, double scale, int format, char* codes);
};

struct Quantize {
  enum Operand : int { kX, kScale, kCodes, kOperands };

  StridedOperands operands;
  const QuantizeKernels* kernels;
  int format;
  bool finds_scale, has_codes;  // neither: peaks
};

// The plans of calls that are not empty, and a thread's partition of them.
void prepare(Quantize* quantize, const KernelTable* table, const QuantizeCall& call,
             bool finds_scale);
void quantize_partition(const Quantize* quantize, int64_t index, int64_t partitions);

struct Widen {
  StridedOperands operands;  // by WidenCall::Data
};
void prepare(Widen* widen, const KernelTable* table, const WidenCall& call);
void widen_partition(const Widen* widen, int64_t index, int64_t partitions);

}  // namespace fastact
