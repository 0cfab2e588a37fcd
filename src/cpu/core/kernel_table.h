// The table of kernels, which is compiled once per instruction set.
//
// A kernel here is a function that runs one serial loop over n contiguous elements. Everything
// above it (threads, strides, Python) is compiled once and calls kernels through this table. A call
// covers some 4096 elements, so that the indirect call costs next to nothing.
#pragma once

#include <cstdint>

#include "common/activations/list.h"
#include "common/core/operand.h"
#include "cpu/gated/kernels.h"
#include "cpu/gates/kernels.h"
#include "cpu/norms/channels/batch_norm_kernels.h"
#include "cpu/norms/channels/channels_last_kernels.h"
#include "cpu/norms/rows/kernels.h"
#include "cpu/reductions/kernels.h"
#include "cpu/simd/convert_kernels.h"
#include "cpu/softmax/kernels.h"
#include "cpu/testing/compare_kernels.h"

namespace fastact {

// operands: the inputs in order, then the output; each n elements of one dtype, an input equal to
// the output or disjoint from it. parameters: of the op, in the order of its signature. ahead:
// bytes from the elements that are computed to those that are prefetched, of arrays of 4 or 8 bytes
// an element that come from memory; else 0.
using ElementwiseKernel = void (*)(char* const* operands, int64_t n, const double* parameters,
                                   int64_t ahead);

// The functions of math/elementary.h that have a bound, for its tests. X(name, bound, value at x)
#define FASTACT_ELEMENTARIES(X)                        \
  X(exp, kExpUlp, exp_scaled<0>(x).value())            \
  X(expm1, kExpm1Ulp, exp_scaled<0>(x).minus_one())    \
  X(log1p_of_unit, kLog1pUlp, log1p_of_unit(x))        \
  X(sigmoid_of, kSigmoidUlp, sigmoid_of(x))            \
  X(tanh_of_magnitude, kTanhUlp, tanh_of_magnitude(x)) \
  X(normal_tail, kNormalTailUlp, (normal_tail<0>(x).exp) * normal_tail<0>(x).g)

#define FASTACT_ONE(name, bound, value) +1
constexpr int kElementaries = 0 FASTACT_ELEMENTARIES(FASTACT_ONE);
#undef FASTACT_ONE
#define FASTACT_NAME(name, bound, value) #name,
constexpr const char* kElementaryNames[] = {FASTACT_ELEMENTARIES(FASTACT_NAME)};
#undef FASTACT_NAME
#define FASTACT_BOUND(name, bound, value) bound,
constexpr double kElementaryUlps[] = {FASTACT_ELEMENTARIES(FASTACT_BOUND)};
#undef FASTACT_BOUND

struct KernelTable {
  const char* isa;
  ElementwiseKernel forward[kActivations][kDTypes];  // x IN, y OUT
  // dy IN, x IN, dx OUT; [1]: dx IN/OUT, added to. For fused ops, which have x at hand.
  ElementwiseKernel backward[kActivations][kDTypes][2];
  ElementwiseKernel added[kDTypes];  // x IN, y IN/OUT: y += x
  // dy IN, x IN, dx OUT; [1]: dx IN/OUT, added to. Of sums' terms.
  ElementwiseKernel term_backward[kTerms][kDTypes][2];
  // x, mean, mean's low part, dmean, dsecond IN, dx OUT; [1]: dx IN/OUT, added to. Of 16-bit data
  // the mean is double and has no low part.
  ElementwiseKernel moments_backward[kDTypes][2];
  // x, dy, slope, and of deviations mean and its low part IN, dx OUT; [1]: dx IN/OUT, added to. Of
  // 16-bit data slope and mean are double, and the mean has no low part.
  ElementwiseKernel slope_backward[kDTypes][2];
  ElementwiseKernel deviation_backward[kDTypes][2];
  ElementwiseKernel elementary[kElementaries]
                              [2];  // x IN, f(x) OUT for float and double: for tests alone
  const ReduceTable* reduce;
  const NormTable* norm;
  const ChannelsLastTable* channels_last;
  const BatchNormTable* batch_norm;
  const GateTable* gate;
  const GatedKernels* gated;
  const SoftmaxTable* softmax;
  const ConvertKernels* convert;
  const CompareKernel* compare;  // for the accuracy check alone
  // `backward` of the op itself, which has y IN in the place of x where it is differentiated by y.
  ElementwiseKernel backward_by_saved[kActivations][kDTypes][2];
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
