// Gated activations for the bindings; core/api.h states the conventions.
#pragma once

#include "common/gated/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// A call that was checked (common/gated/call.h). workspace: as many bytes as the function before
// asks for, aligned to 16.
template <class T>
void gated_forward(const GatedCall& call, cudaStream_t stream);
template <class T>
int64_t gated_workspace(const GatedCall& call);
template <class T>
void gated_backward(const GatedCall& call, void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
