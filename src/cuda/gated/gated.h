// The interface of gated activations to the bindings; core/api.h states the conventions.
#pragma once

#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// What one call is about; arrays without a shape are not there. Those of several axes have one
// shape and dtype. The biases and their gradients run along `axis`: both or neither, of one dtype.
struct GatedArrays {
  Operand a, b;    // IN
  Operand y;       // forward OUT
  Operand dy;      // backward IN
  Operand da, db;  // backward OUT, or IN/OUT with accumulate
  bool has_bias, has_dbias;
  NumberVector bias[2];   // IN: of a, of b
  NumberVector dbias[2];  // OUT, or IN/OUT with accumulate
  int axis;
};

// The activation, with its parameters, and the clamps: common/gated/gated.h.
struct GatedFunction {
  int which;
  const double* parameters;
  double limit, offset;
};

template <class T>
void gated_forward(const GatedFunction& function, const GatedArrays& arrays, cudaStream_t stream);

// Bytes of scratch for a backward with gradients of biases.
template <class T>
int64_t gated_workspace(const Operand& a, int axis);

// workspace: as many bytes as gated_workspace asks for, where there are gradients of biases. dy may
// be empty: they are sums of nothing then.
template <class T>
void gated_backward(const GatedFunction& function, const GatedArrays& arrays, bool accumulate,
                    void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
