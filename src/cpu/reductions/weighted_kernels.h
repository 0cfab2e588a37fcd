// The kernels of weighted and masked statistics and of their gradients, compiled once per
// instruction set as core/kernel_table.h. common/reductions/weights.h defines weights.
// The sums have the lanes of reductions/kernels.h, with two terms an element. Which elements and
// weights are read where they lie, in their dtype, and which have been staged in double, says
// weighted.h.
#pragma once

#include <cstdint>

#include "common/core/operand.h"
#include "common/reductions/pairs.h"
#include "common/reductions/terms.h"

namespace fastact {

// The terms that an element adds to the lanes of two sums: w x and w; w d and w; w d and w d^2,
// with d = x - centre.
enum WeightedTerms { kProducts, kAboutCentre, kSquares, kWeightedTerms };

// Rows of contiguous numbers, row i at `at` + offsets[i * step]; what lies `ahead` bytes on is
// prefetched, unless that is 0.
struct WeightedRows {
  const char* at;
  const int64_t* offsets;
  int64_t ahead;
};
// first, second IN/OUT (columns), or OUT if `fresh`: the lanes of both sums, onto which `rows` rows
// are added, one after the other. centre IN (columns), of kProducts null. Returns whether a weight
// has a sign, of kernels that do not look at weights.
using AddWeighted = bool (*)(const WeightedRows& x, const WeightedRows& weights, int64_t step,
                             int64_t rows, int64_t columns, const double* centre, double* first,
                             double* second, bool fresh);

// The gradients. With respect to x: of a sum of a term, kTermByX + Term, or of a mean, whose term
// is x itself; of mean and variance or deviation at once. With respect to the weights: of a mean.
enum WeightedGradientOf {
  kTermByX,
  kBothByX = kTermByX + kTerms,
  kMeanByWeights,
  kWeightedGradients
};
using WeightedGradientKernel = void (*)(const double* dy, const double* slope, const double* x,
                                        const double* weights, const double* mean,
                                        const double* of_mean, double* to, int64_t n);

using PairGradients = void (*)(const char* dy, const char* x, const char* t, char* dx, char* dt,
                               int64_t n);

struct WeightingKernels {
  // kProducts, of elements of a dtype with weights of the same one. But for double all are added as
  // if they counted: where a weight has a sign, or a sum is no number or -0, they are added anew,
  // by [1]: with weights in double.
  AddWeighted add[kDTypes][2];
  // Takes elements and weights in double; [1]: NaNs do not count.
  AddWeighted add_staged[kWeightedTerms][2];

  // weights IN/OUT (n) become 0 where `where` IN (n) is 0.
  void (*mask)(double* weights, const double* where, int64_t n);
  // Takes n elements with their weights: weights IN/OUT become 0 where x does not count, and so
  // does x IN/OUT.
  void (*choose)(double* x, double* weights, bool skips, int64_t n);
  // Terms of a pair (common/reductions/pairs.h; null: of the product), of x and t (n). x IN/OUT
  // becomes its term; [1]: both have been of fewer bits.
  void (*pair_terms[kPairs][2])(double* x, const double* t, int64_t n);
  // dx, dt OUT in the compute type, by dy, x and t IN (n) of a dtype; float32 in double.
  PairGradients pair_gradients[kPairs][kDTypes];
  // [..][accumulate]: to OUT, or IN/OUT +=, = the gradient, of x and weights as `choose` left them:
  // of ones, for the gradient by the weights. What a gradient has no part in may be any numbers:
  // mean and of_mean, and x where the term is x itself. Without a part of the mean's, of_mean is
  // -0.
  WeightedGradientKernel gradient[kWeightedGradients][2];
};

}  // namespace fastact
