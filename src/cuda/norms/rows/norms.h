// The norms over rows (common/norms/norms.h) for the bindings; core/api.h states the conventions.
#pragma once

#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// One call. All arrays are of one rank, with stride 0 (or length 1) where they repeat; those
// without data are not there.
struct NormCall {
  enum Forward : int { kX, kResidual, kTotal, kY };
  enum Backward : int { kDy, kIn, kDTotal, kDx };

  Operand data[4];         // of x's shape and dtype
  Operand mean, rstd;      // of the compute type: OUT forward, IN backward; mean null: rms_norm
  Operand weight, bias;    // IN
  Operand dweight, dbias;  // OUT, or IN/OUT with accumulate; of the dtypes of weight and bias
  int weight_dtype, bias_dtype;
  const bool* reduced;        // one flag per axis: is inside a row
  const bool* of_parameter;   // one flag per axis: weight and bias have it
  int which;                  // the activation
  const double* parameters;   // its
  double eps, weight_offset;  // the weight is weight + weight_offset
  bool is_centred, accumulate;
  bool casts;  // of 16-bit data, what lies between the steps is rounded (common/norms/norms.h)
};

// y OUT = f((x IN - mean) rstd weight + bias), mean OUT and rstd OUT. With a residual IN, total OUT
// = x + residual, rounded, is normalised in x's place. Of x, residual, total and y, each is another
// or disjoint from it, but y is not total. x is not empty.
// workspace: as many bytes as norm_forward_workspace asks for, aligned to 16.
template <class T>
int64_t norm_forward_workspace(const NormCall& call);
template <class T>
void norm_forward(const NormCall& call, void* workspace, cudaStream_t stream);

// dx OUT, dweight OUT and dbias OUT from dy IN, x IN, mean IN, rstd IN; dtotal IN is added to dx,
// which may be dy, x or dtotal. Of an empty x: sums of nothing. workspace: as above.
template <class T>
int64_t norm_backward_workspace(const NormCall& call);
template <class T>
void norm_backward(const NormCall& call, void* workspace, cudaStream_t stream);

// statistic OUT = NaN, of the compute type T: of rows without elements.
template <class T>
void fill_with_nan(const Operand& statistic, cudaStream_t stream);

FASTACT_END_NAMESPACE
