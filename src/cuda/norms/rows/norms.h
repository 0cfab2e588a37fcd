// The norms over rows (common/norms/norms.h) for the bindings; core/api.h states the conventions.
#pragma once

#include "common/norms/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// A call that was checked (common/norms/call.h). Of an empty x: NaN forward, backward sums of
// nothing. workspace: as many bytes as the function before asks for, aligned to 16.
template <class T>
int64_t norm_forward_workspace(const NormCall& call);
template <class T>
void norm_forward(const NormCall& call, void* workspace, cudaStream_t stream);

template <class T>
int64_t norm_backward_workspace(const NormCall& call);
template <class T>
void norm_backward(const NormCall& call, void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
