// The element-wise kernels, compiled once per instruction set as core/kernel_table.h: the
// activations and a few other loops over operands of one shape.
#pragma once

#include "common/activations/list.h"
#include "common/core/operand.h"
#include "common/reductions/terms.h"
#include "cpu/core/kernel_table.h"

namespace fastact {

struct ElementwiseTable {
  ElementwiseKernel forward[kActivations][kDTypes];  // x IN, y OUT
  // dy IN, x IN, dx OUT; [1]: dx IN/OUT, added to. For fused ops, which have x at hand.
  ElementwiseKernel backward[kActivations][kDTypes][2];
  // `backward` of the op itself, which has y IN in the place of x where it is differentiated by y.
  ElementwiseKernel backward_by_saved[kActivations][kDTypes][2];
  // dy IN, saved IN, ddx IN, dsaved OUT; [1]: dsaved IN/OUT, added to. Of the op itself.
  ElementwiseKernel second[kActivations][kDTypes][2];
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
};

}  // namespace fastact
