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

namespace fastact {

// operands: the inputs in order, then the output; each n elements of one dtype, an input equal to
// the output or disjoint from it. parameters: of the op, in the order of its signature. ahead:
// bytes from the elements that are computed to those that are prefetched, of arrays of 4 or 8 bytes
// an element that come from memory; else 0.
using ElementwiseKernel = void (*)(char* const* operands, int64_t n, const double* parameters,
                                   int64_t ahead);

struct ElementwiseTable;
struct BiasKernels;
struct ReduceTable;
struct NormTable;
struct ChannelsLastTable;
struct BatchNormTable;
struct GateTable;
struct GatedKernels;
struct SoftmaxTable;
struct ConvertKernels;
struct CompareKernels;

struct KernelTable {
  const char* isa;
  const ElementwiseTable* elementwise;
  const BiasKernels* bias;
  const ReduceTable* reduce;
  const NormTable* norm;
  const ChannelsLastTable* channels_last;
  const BatchNormTable* batch_norm;
  const GateTable* gate;
  const GatedKernels* gated;
  const SoftmaxTable* softmax;
  const ConvertKernels* convert;
  const CompareKernels* compare;  // for the accuracy check alone
};

// isa.cpp
constexpr int kMaxIsas = 3;
struct IsaList {
  int count;
  const KernelTable* tables[kMaxIsas];  // from the least to the most capable
};
const IsaList& built_isas();
bool cpu_supports(const char* isa);

// What CPUID and XGETBV tell of an x86-64 processor and its operating system.
struct CpuFeatures {
  uint32_t leaf1_ecx, leaf7_ebx, extended_ecx;
  uint64_t xcr0;
};
// The micro-architecture level of the psABI that all of it allows, from 1 to 4.
int x86_level(const CpuFeatures& cpu);

const KernelTable* best_supported_isa();

}  // namespace fastact
