// The table of functions that is compiled once per instruction set.
//
// A block function runs one serial loop over n contiguous elements. Everything above it - threads,
// strides, Python - is compiled once and calls through this table; a block of some 4096 elements
// amortises the indirect call.
#pragma once

#include <cstdint>

#include "../common/activations.h"
#include "../common/operand.h"
#include "pipeline_blocks.h"
#include "reduce_blocks.h"

namespace fastact {

// operands: the inputs in order, then the output; each n elements of one dtype, an input equal to
// the output or disjoint from it. parameters: of the op, in the order of its signature.
using Block = void (*)(char* const* operands, int64_t n, const double* parameters);

struct BlockTable {
  const char* isa;
  Block forward[kActivations][kDTypes];      // x IN, y OUT
  Block backward[kActivations][kDTypes][2];  // dy IN, x IN, dx OUT; [1]: dx IN/OUT, added to
  Block identity[kDTypes][2];                // x IN, y OUT; [1]: y IN/OUT, added to
  Block square_backward[kDTypes][2];         // dy IN, x IN, dx OUT; [1]: dx IN/OUT, added to
  Block exp[2];  // x IN, exp(x) OUT for float and double: for the tests of math.h
  const ReduceTable* reduce;
  const PipelineBlocks* pipeline;
};

// isa.cpp
constexpr int kMaxIsas = 3;
struct IsaList {
  int count;
  const BlockTable* tables[kMaxIsas];  // from the least to the most capable
};
const IsaList& built_isas();
bool cpu_supports(const char* isa);
const BlockTable* best_supported_isa();

}  // namespace fastact
