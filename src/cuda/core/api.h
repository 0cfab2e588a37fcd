// The interface of the kernels to the bindings: host functions that check nothing and queue their
// work on a stream of the current device. Each .cu is compiled once for each storage type
// (FASTACT_STORAGE), which keeps the build parallel and the object files small.
#pragma once

#include <algorithm>

#include "common/reductions/call.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Numbers along one axis, in a dtype of their own: parameters, their gradients, or statistics, one
// a channel. Without data: there are none.
struct NumberVector {
  char* data = nullptr;
  int64_t stride = 0;  // bytes
  int dtype = kF64;
};

// arrays: the inputs in order, then the output; of one shape, dtype and device, not empty.
// parameters: of the op, in the order of its signature.

// y OUT = f(x IN)
template <class T>
void activation_forward(int which, const Operand (&arrays)[2], const double* parameters,
                        cudaStream_t stream);

// dx OUT = dy IN * f'(x IN), or dx IN/OUT += of the same
template <class T>
void activation_backward(int which, const Operand (&arrays)[3], const double* parameters,
                         bool accumulate, cudaStream_t stream);

// Calls that were checked (common/reductions/call.h); any array may be empty. workspace: as many
// bytes as the function before asks for, aligned to 16.
template <class T>
void broadcast(const BroadcastCall& call, cudaStream_t stream);

template <class T>
int64_t sum_workspace(const SumCall& call);
template <class T>
void sum(const SumCall& call, void* workspace, cudaStream_t stream);

template <class T>
int64_t square_workspace(const SquareCall& call);
template <class T>
void square_value_and_grad(const SquareCall& call, void* workspace, cudaStream_t stream);

template <class T>
void sum_backward(const SumBackwardCall& call, cudaStream_t stream);

// y OUT (outputs, `stride` bytes apart) = the sums of partials IN (outputs x chunks), or y IN/OUT
// +=.
template <class T>
void finish_partials(const double* partials, int64_t outputs, int64_t chunks, char* y,
                     int64_t stride, bool accumulate, cudaStream_t stream);

// y OUT = f(x IN + bias IN + residual IN); residual may be null. bias runs along `axis`; its dtype
// is T's or a wider one.
template <class T>
void bias_act_forward(int which, const Operand& x, const Operand& bias, int bias_dtype,
                      const Operand* residual, const Operand& y, int axis, const double* parameters,
                      cudaStream_t stream);

// dx OUT = dy IN * f'(x IN + bias IN + residual IN), and dbias OUT = its sum over all other axes,
// or, each as its flag says, IN/OUT += of the same. workspace: as many bytes as bias_act_workspace
// asks for.
template <class T>
int64_t bias_act_workspace(const Operand& x, int axis);
template <class T>
void bias_act_backward(int which, const Operand& dy, const Operand& x, const Operand& bias,
                       int bias_dtype, const Operand* residual, const Operand& dx,
                       const Operand& dbias, int axis, const double* parameters, bool accumulate_dx,
                       bool accumulate_dbias, void* workspace, cudaStream_t stream);

// Runs visit(T{}) for the storage type of a dtype.
template <class Visit>
auto for_dtype(int dtype, Visit visit) {
  switch (dtype) {
    case kF16:
      return visit(f16{});
    case kBF16:
      return visit(bf16{});
    case kF32:
      return visit(float{});
    case kF64:
      return visit(double{});
  }
  throw std::invalid_argument("fastact: unknown dtype");
}

FASTACT_END_NAMESPACE
