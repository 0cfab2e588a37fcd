// Mean and m2 over any axes, and their gradients, for the bindings.
#pragma once

#include "common/reductions/spread_call.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Calls that were checked (common/reductions/call.h). workspace: aligned to 16 bytes, and as large
// as moments_workspace says.
template <class T>
int64_t moments_workspace(const MomentsCall& call);
template <class T>
void moments(const MomentsCall& call, void* workspace, cudaStream_t stream);

// Any array may be empty.
template <class T>
void moments_backward(const MomentsBackwardCall& call, cudaStream_t stream);
template <class T>
void statistic_backward(const StatisticBackwardCall& call, cudaStream_t stream);
template <class T>
int64_t spread_workspace(const SpreadBackwardCall& call);
template <class T>
void spread_backward(const SpreadBackwardCall& call, void* workspace, cudaStream_t stream);
template <class T>
void weighted_gradient(const WeightedGradientCall& call, cudaStream_t stream);

FASTACT_END_NAMESPACE
