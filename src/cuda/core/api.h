// The interface of the kernels to the bindings: host functions that check nothing and queue their
// work on a stream of the current device. Each .cu is compiled once for each storage type
// (FASTACT_STORAGE), which keeps the build parallel and the object files small.
#pragma once

#include <algorithm>

#include "common/core/call.h"
#include "common/reductions/terms.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Numbers along one axis, in a dtype of their own: parameters, their gradients, or statistics, one
// a channel. Without data: there are none.
struct NumberVector {
  char* data = nullptr;
  int64_t stride = 0;  // bytes
  int dtype = kF64;
};

// An array of one axis, or none.
inline NumberVector vector_of(const ArrayArgument& a) {
  return {a.data, a.shape ? byte_stride(a, 0, item_size(a.dtype)) : 0, a.dtype};
}

// arrays: the inputs in order, then the output; of one shape, dtype and device, not empty.

// y OUT = x IN, or y IN/OUT += x
template <class T>
void broadcast(const Operand (&arrays)[2], bool accumulate, cudaStream_t stream);

// y OUT = sum of a term of x IN over the axes for which `reduced` says so, / divisor, or y IN/OUT
// += of the same; y has length 1 there and is not empty, which x may be. workspace: as many bytes
// as sum_workspace asks for, aligned to 16.
template <class T>
int64_t sum_workspace(Term term, const Operand& x, const Operand& y, const bool* reduced);
template <class T>
void sum(Term term, const Operand& x, const Operand& y, const bool* reduced, double divisor,
         void* workspace, bool accumulate, cudaStream_t stream);

// y OUT (one element) = the sum of x^2, grad OUT = 2 x, of x IN as a whole. workspace: as for sum.
template <class T>
void square_value_and_grad(const Operand& x, const Operand& y, const Operand& grad, void* workspace,
                           cudaStream_t stream);

// dx OUT = dy IN times the term's derivative at x IN, or dx IN/OUT += of the same
template <class T>
void sum_backward(Term term, const Operand (&arrays)[3], bool accumulate, cudaStream_t stream);

// y OUT (outputs, `stride` bytes apart) = the sums of partials IN (outputs x chunks), or y IN/OUT
// +=.
template <class T>
void finish_partials(const double* partials, int64_t outputs, int64_t chunks, char* y,
                     int64_t stride, bool accumulate, cudaStream_t stream);

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
