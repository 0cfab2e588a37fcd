// The table of functions that is compiled once per instruction set.
//
// A block function runs one serial loop over n contiguous elements. Everything above it - threads,
// strides, Python - is compiled once and calls through this table; a block of some 4096 elements
// amortises the indirect call.
#pragma once

#include <cstdint>

#include "../common/activations.h"
#include "../common/dtypes.h"

namespace fastact {

enum DType : int { kF16, kBF16, kF32, kF64, kDTypes };

inline int64_t item_size(int dtype) {
  constexpr int64_t sizes[kDTypes] = {2, 2, 4, 8};
  return sizes[dtype];
}

#define FASTACT_ENUMERATE(name, Struct) k_##name,
enum Activation : int { FASTACT_ACTIVATIONS(FASTACT_ENUMERATE) kActivations };
#undef FASTACT_ENUMERATE

#define FASTACT_NAME(name, Struct) #name,
constexpr const char* kActivationNames[] = {FASTACT_ACTIVATIONS(FASTACT_NAME)};
#undef FASTACT_NAME

// operands: the inputs in order, then the output; each n elements of one dtype, an input equal to
// the output or disjoint from it. parameters: of the op, in the order of its signature.
using Block = void (*)(char* const* operands, int64_t n, const double* parameters);

struct BlockTable {
  const char* isa;
  Block forward[kActivations][kDTypes];      // x IN, y OUT
  Block backward[kActivations][kDTypes][2];  // dy IN, x IN, dx OUT; [1]: dx IN/OUT, added to
  Block exp[2];  // x IN, exp(x) OUT for float and double: for the tests of math.h
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
