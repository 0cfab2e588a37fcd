// Recurrent gates for the bindings; core/api.h states the conventions.
#pragma once

#include "common/gates/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

using namespace gate_roles;

// A call that was checked (common/gates/call.h). workspace: as many bytes as the function before
// asks for, aligned to 16.
template <class T>
void gates_forward(const GatesCall& call, cudaStream_t stream);
template <class T>
int64_t gates_workspace(const GatesCall& call);
template <class T>
void gates_backward(const GatesCall& call, void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
