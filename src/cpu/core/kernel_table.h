// The table of kernels, which is compiled once per instruction set.
//
// A kernel here is a function that runs one serial loop over n contiguous elements. Everything
// above it (threads, strides, Python) is compiled once and calls kernels through this table. A call
// covers some 4096 elements, so that the indirect call costs next to nothing.
//
// Each family declares its own part in its kernels.h, which is included where the part is used:
// core knows the parts by name alone.
#pragma once

#include <cstdint>

#include "common/core/families.h"

namespace fastact {

// operands: the inputs in order, then the output; each n elements of one dtype, an input equal to
// the output or disjoint from it. parameters: of the op, in the order of its signature. ahead:
// bytes from the elements that are computed to those that are prefetched, of arrays of 4 or 8 bytes
// an element that come from memory; else 0.
using ElementwiseKernel = void (*)(char* const* operands, int64_t n, const double* parameters,
                                   int64_t ahead);

// The tables of all families, and of none. quantize: codes of what ops compute.
#define FASTACT_KERNELS(family, kernels) kernels
#define FASTACT_KERNEL_TABLES(X)              \
  FASTACT_FAMILIES(FASTACT_KERNELS, X)        \
  X(convert, ConvertKernels, convert_kernels) \
  X(quantize, QuantizeKernels, quantize_kernels)

#define FASTACT_DECLARE(member, Table, object) struct Table;
#define FASTACT_MEMBER(member, Table, object) const Table* member;
FASTACT_KERNEL_TABLES(FASTACT_DECLARE)

struct KernelTable {
  const char* isa;
  FASTACT_KERNEL_TABLES(FASTACT_MEMBER)
};
#undef FASTACT_DECLARE
#undef FASTACT_MEMBER

// isa.cpp: the tables that were built, from the least to the most capable.
extern const KernelTable* const kBuiltIsas[];
extern const int kBuiltIsaCount;
bool cpu_supports(const char* isa);
const KernelTable* best_supported_isa();

}  // namespace fastact
