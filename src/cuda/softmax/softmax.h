// softmax, log_softmax, logsumexp and cross_entropy for the bindings; core/api.h states the
// conventions.
#pragma once

#include "common/softmax/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

using namespace softmax_roles;

// A call that was checked (common/softmax/call.h). workspace: aligned to 16 bytes, and as large as
// the ..._workspace function says.
template <class T>
int64_t softmax_workspace(const SoftmaxCall& call);  // of forward and backward
template <class T>
void softmax_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream);
template <class T>
void softmax_backward(const SoftmaxCall& call, void* workspace, cudaStream_t stream);
template <class T>
void softmax_sink(const SinkCall& call, cudaStream_t stream);

template <class T>
void logsumexp_backward(const SoftmaxCall& call, cudaStream_t stream);

template <class T>
int64_t cross_entropy_workspace(const SoftmaxCall& call);
template <class T>
void cross_entropy_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream);
template <class T>
void cross_entropy_backward(const SoftmaxCall& call, cudaStream_t stream);

FASTACT_END_NAMESPACE
