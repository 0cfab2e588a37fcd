// Mean and m2 over any axes, for the bindings and for the norms that stand on them.
#pragma once

#include "common/core/operand.h"
#include "common/reductions/of_m2.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Where moments go. Each without data is not wanted; the others have x's rank, length 1 along each
// reduced axis, and the same strides. dtype: of all of them, x's or double.
struct MomentOutputs {
  Operand mean, low, second, count;  // OUT: the mean; what its rounding lost; what `of_m2` says;
                                     // how many elements
  int dtype;
  OfM2 of_m2 = kM2;
  double correction = 0;
  bool skips = false;  // NaN
};

// x IN is not empty. workspace: as many bytes as moments_workspace asks for, aligned to 16.
template <class T>
int64_t moments_workspace(const Operand& x, const Operand& result, const bool* reduced);
template <class T>
void moments(const Operand& x, const MomentOutputs& outputs, const bool* reduced, void* workspace,
             cudaStream_t stream);

// dx OUT = share dmean + scale (x - mean - low) dsecond, or dx IN/OUT += of the same.
// arrays: dmean, dsecond, x, mean and low IN, dx; all of one shape, not empty. Of 16-bit data mean
// is double, and low is not read.
template <class T>
void moments_backward(const Operand (&arrays)[6], double share, double scale, bool accumulate,
                      cudaStream_t stream);

// dx OUT = slope dy (x - mean - low), or slope dy where there is no mean, or dx IN/OUT += of the
// same; where x is NaN, 0 (skips) or NaN. arrays: dy, slope, x, mean and low IN, dx; all of one
// shape, not empty. Of 16-bit data slope and mean are double, of the same strides, and low is not
// read.
template <class T>
void statistic_backward(const Operand (&arrays)[6], bool skips, bool accumulate,
                        cudaStream_t stream);

// What makes elements count more or less than once: of x's shape, with strides of 0 where they
// repeat; without data: not there. The weights are of any dtype that a View has, the mask of bools.
struct Weights {
  Operand weights, where;
  int dtype;
};

// The same of elements that are weighted or masked; kTotal, too.
template <class T>
int64_t weighted_workspace(const Operand& x, const Weights& weights, const Operand& result,
                           const bool* reduced);
template <class T>
void weighted_moments(const Operand& x, const Weights& weights, const MomentOutputs& outputs,
                      const bool* reduced, void* workspace, cudaStream_t stream);

// The gradient of a statistic with respect to x, or to the weights, as common/reductions/weights.h
// has it. arrays: to OUT, or IN/OUT +=; dy, slope, x, weights, mask, mean IN; all of one shape, not
// empty, each of its dtype; slope and mean of double and of the same strides. Those without data
// are not there.
using WeightedArrays = Operand[7];
template <class T>
void weighted_gradient(const WeightedArrays& arrays, const int (&dtypes)[7], bool of_weights,
                       bool skips, bool accumulate, cudaStream_t stream);

FASTACT_END_NAMESPACE
