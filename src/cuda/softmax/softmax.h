// softmax, log_softmax, logsumexp and cross_entropy for the bindings; core/api.h states the
// conventions.
#pragma once

#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

enum SoftmaxKind : int { kSoftmax, kLogSoftmax, kLogSumExp, kSoftmaxKinds };
enum LossReduction : int { kNone, kMean, kSum, kLossReductions };

// The arrays of a call, of one rank, with stride 0 (or length 1) where they repeat; those without
// data are not there. x, dy and y are of one shape and dtype; numbers have length 1 inside a row.
enum SoftmaxRole : int {
  kX,       // IN: x, the logits, or (backward) what softmax gave
  kDy,      // IN: dy, or the probabilities of cross_entropy's target
  kY,       // OUT: y, or the gradient of x
  kMask,    // IN: booleans, or what is added
  kWeight,  // IN: of the classes
  kLse,     // OUT forward, IN backward: log(sum(exp(z))), of the compute type
  kNumber,  // OUT: logsumexp's result, or the losses; IN backward: their gradients
  kTarget,  // IN: indices of classes
  kSoftmaxRoles
};

struct SoftmaxCall {
  Operand arrays[kSoftmaxRoles];
  int dtypes[kSoftmaxRoles];
  const bool* reduced;  // one flag per axis: is inside a row
  int kind;
  double scale;
  bool accumulate;

  // Of cross_entropy.
  int axis;
  int64_t ignore_index;
  double label_smoothing;
  int reduction;
  char* loss;       // OUT, of x's dtype
  double* divisor;  // OUT forward, IN backward (null: 1)
};

// z = scale x + mask. y OUT = exp(z - lse) or z - lse, with lse = log(sum(exp(z))) over a row,
// which goes to number OUT and lse OUT where they are there. y may be x. x is not empty. workspace:
// as many bytes as softmax_workspace asks for, of forward and backward, aligned to 16.
template <class T>
int64_t softmax_workspace(const SoftmaxCall& call);
template <class T>
void softmax_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream);

// y (dx) OUT, or IN/OUT with accumulate, from dy IN and x (softmax's y) IN, of which it may be one.
template <class T>
void softmax_backward(const SoftmaxCall& call, void* workspace, cudaStream_t stream);

// y (dx) OUT = scale number IN exp(z - lse IN).
template <class T>
void logsumexp_backward(const SoftmaxCall& call, cudaStream_t stream);

// lse OUT, and number (the losses) OUT or loss OUT and divisor OUT.
template <class T>
int64_t cross_entropy_workspace(const SoftmaxCall& call);
template <class T>
void cross_entropy_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream);

// y (dlogits) OUT, which may be x, from number (dloss) IN, x IN and lse IN.
template <class T>
void cross_entropy_backward(const SoftmaxCall& call, cudaStream_t stream);

// number OUT = lse OUT = -infinity: of rows without elements.
template <class T>
void fill_logsumexp(const SoftmaxCall& call, cudaStream_t stream);

FASTACT_END_NAMESPACE
