// batch_norm and norm_apply for the bindings.
#pragma once

#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// Bytes of scratch for the functions below, aligned to 16.
template <class T>
int64_t batch_norm_scratch(const Operand& x, int axis);

// y OUT = f((x IN - mean) rstd weight IN + bias IN); vectors have a number for each channel.
struct BatchForward {
  Operand x, y;
  // moments: by the batch's own; else by `mean`, and by `spread`, a variance or an rstd.
  bool by_moments, is_rstd;
  NumberVector mean, spread;            // IN; by_moments: IN/OUT, which move towards the batch's
  NumberVector weight, bias;            // IN
  NumberVector saved_mean, saved_rstd;  // OUT
  int axis, which;
  const double* parameters;
  double momentum, eps;
};
// x is not empty; where it is, for want of a batch, what follows saves the given statistics, or NaN
// for moments of nothing.
template <class T>
void batch_norm_forward(const BatchForward& call, void* scratch, cudaStream_t stream);

template <class T>
void batch_norm_save(const BatchForward& call, cudaStream_t stream);

// dx OUT, dweight OUT, dbias OUT, or IN/OUT += of the same; each of them or none. x is not empty.
struct BatchBackward {
  Operand dy, x, dx;
  NumberVector mean, rstd, weight, bias;  // IN
  NumberVector sum_p, sum_p_xhat;         // IN, of `count` values a channel; or none: computed
  NumberVector dweight, dbias;
  double count;
  int axis, which;
  const double* parameters;
  bool is_training, accumulate;
};
template <class T>
void batch_norm_backward(const BatchBackward& call, void* scratch, cudaStream_t stream);

FASTACT_END_NAMESPACE
