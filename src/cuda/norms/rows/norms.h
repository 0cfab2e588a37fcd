// The norms over rows (common/norms/norms.h) for the bindings; core/api.h states the conventions.
#pragma once

#include "common/norms/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// A call that was checked (common/norms/call.h). For an empty x statistics are NaN and gradients of
// parameters 0. workspace: aligned to 16 bytes, and as large as the ..._workspace function says.
template <class T>
int64_t norm_forward_workspace(const NormCall& call);
template <class T>
void norm_forward(const NormCall& call, void* workspace, cudaStream_t stream);

template <class T>
int64_t norm_backward_workspace(const NormCall& call);
template <class T>
void norm_backward(const NormCall& call, void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
