// What the kernels offer to the bindings: host functions that check nothing more and queue their
// work on a stream of the current device. Each .cu is compiled once for each storage type
// (FASTACT_STORAGE), which is what keeps the build parallel and its files small.
#pragma once

#include "../common/operand.h"
#include "launch.cuh"

FASTACT_BEGIN_NAMESPACE

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

// y OUT = x IN, or y IN/OUT += x
template <class T>
void broadcast(const Operand (&arrays)[2], bool accumulate, cudaStream_t stream);

// y OUT = sum of x IN over the axes for which `reduced` says so; y has length 1 there and is not
// empty, which x may be.
// workspace: as many bytes as sum_workspace asks for, aligned to 16.
template <class T>
int64_t sum_workspace(const Operand& x, const Operand& y, const bool* reduced);
template <class T>
void sum(const Operand& x, const Operand& y, const bool* reduced, void* workspace,
         cudaStream_t stream);

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
