// Activations for the bindings; core/api.h states the conventions.
#pragma once

#include "common/activations/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// A call that was checked (common/activations/call.h).
template <class T>
void activation_forward(const ActivationCall& call, cudaStream_t stream);
template <class T>
void activation_backward(const ActivationCall& call, cudaStream_t stream);
template <class T>
void activation_second(const ActivationCall& call, cudaStream_t stream);

FASTACT_END_NAMESPACE
