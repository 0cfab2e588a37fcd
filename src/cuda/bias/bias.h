// bias_act and dropout for the bindings; core/api.h states the conventions.
#pragma once

#include "common/bias/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// A call that was checked (common/bias/call.h). workspace: aligned to 16 bytes, and as large as the
// ..._workspace function says.
template <class T>
void bias_act_forward(const BiasCall& call, cudaStream_t stream);
template <class T>
int64_t bias_act_workspace(const BiasCall& call);
template <class T>
void bias_act_backward(const BiasCall& call, void* workspace, cudaStream_t stream);
template <class T>
void dropout(const DropoutCall& call, cudaStream_t stream);

FASTACT_END_NAMESPACE
