// batch_norm and norm_apply for the bindings.
#pragma once

#include "common/norms/channel_call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// Bytes of scratch for the functions below, aligned to 16.
template <class T>
int64_t batch_norm_scratch(const Operand& x, int axis);

// Calls that were checked (common/norms/channel_call.h). For an empty x forward saves the given
// statistics, or NaN in training; backward's sums are 0.
template <class T>
void batch_norm_forward(const BatchForward& call, void* scratch, cudaStream_t stream);
template <class T>
void batch_norm_backward(const BatchBackward& call, void* scratch, cudaStream_t stream);

FASTACT_END_NAMESPACE
