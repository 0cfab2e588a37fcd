// The kernels of bias_act, compiled once per instruction set: the activation of a sum, and the same
// backward with the sum of its results, in one loop each. 16 bits are converted in registers,
// forward and where backward takes several rows; else, and where arrays are strided, they pass
// through buffers (core/chunk_reader.h). And the kernels of dropout.
#pragma once

#include <cstdint>

#include "common/bias/call.h"
#include "cpu/reductions/kernels.h"

namespace fastact {

// All pointers to n contiguous elements, of the dtype that the kernel is chosen by; the output is
// one of the others or disjoint from them. The summands are not rounded yet. bias: of the
// compute type, `period` values, a multiple of kLanes, which come round again, and kLanes more; or
// n. The fewer, the better is x prefetched (docs/design/bias.md). ahead: bytes from each operand to
// the elements of the next call, which are prefetched while these are computed: segments of a
// channel and rows of a tile end before the hardware's own prefetcher has followed them. 0: nothing
// is prefetched.
struct BiasKernels {
  // y OUT = f(x IN + bias IN), or f(x IN, bias IN). Null: of 16 bits, without AVX-512, or of a
  // parameter of channels.
  void (*forward[kBiasFunctions][kDTypes])(const char* x, const char* bias, int64_t period, char* y,
                                           int64_t n, int64_t ahead, const double* parameters);

  // dx OUT = dy IN f'(x IN + bias IN), or dy IN times the derivative of f(x IN, bias IN) by x, of
  // float and of double; then terms OUT = dy times the one by the bias: they stay in the caches,
  // and are not prefetched. lanes IN/OUT (kLanes): dx, or the terms, are added to them, the first
  // onto lane `phase` (reductions/kernels.h); null: they are not.
  void (*backward[kBiasFunctions][2])(const char* dy, const char* x, const char* bias,
                                      int64_t period, char* dx, char* terms, int64_t n,
                                      int64_t ahead, const double* parameters, int64_t phase,
                                      double* lanes);

  // For 16 bits, else null: dx OUT of an activation, of several rows of one lane, with the bias IN
  // (n); lane IN/OUT (n): the rows are added to it, one after the other. fresh: it is written, not
  // read.
  void (*backward_rows[kActivations][2])(const char* const* dy, const char* const* x,
                                         const char* bias, char* const* dx, int64_t rows, int64_t n,
                                         const double* parameters, double* lane, bool fresh);

  // y OUT = what dropout makes of x IN; [1]: and residual IN, which else is not read. index: of the
  // first element, with the offset; or of each IN (n), where x is of float or of double.
  void (*drop[kDTypes][2])(const char* x, const char* residual, char* y, int64_t n, uint64_t index,
                           const Dropout& of);
  void (*drop_at[2][2])(const char* x, const char* residual, char* y, int64_t n,
                        const uint64_t* indices, const Dropout& of);
};

}  // namespace fastact
