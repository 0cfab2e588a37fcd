// group_norm and instance_norm of arrays whose channels come last (NHWC).
#pragma once

#include "common/norms/call.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// Whether the functions below take a call of arrays of `item` bytes per element: its channels lie
// inside its pixels, and it has nothing that the norms with channels lack (a residual, a norm
// without a mean). lead: NormCall::kX or kIn.
inline bool is_norm_columns(const NormCall& call, int lead, int64_t item) {
  const bool is_forward = lead == NormCall::kX;
  if (!is_centred(call.norm) || call.data[2].data ||
      (is_forward && call.data[NormCall::kResidual].data))
    return false;
  const Operand& x = call.data[lead];
  int64_t channel = 0, pixel = 0;  // the longest step of a channel, the shortest of a pixel
  int kind = 0;                    // examples, then groups, then the axes inside a group
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] == 1) continue;
    int64_t step = byte_stride(x, i, item);
    step = step < 0 ? -step : step;
    if (call.of_parameter[i]) {
      channel = step > channel ? step : channel;
    } else if (call.reduced[i]) {
      pixel = pixel == 0 || step < pixel ? step : pixel;
      continue;
    }
    const int here = call.of_parameter[i] + call.reduced[i];
    if (here < kind) return false;
    kind = here;
  }
  return channel > 0 && channel < pixel;
}

// These do what norm_forward and norm_backward do, with workspaces; x is not empty.
template <class T>
int64_t norm_columns_workspace(const NormCall& call, int lead);
template <class T>
void norm_columns_forward(const NormCall& call, void* workspace, cudaStream_t stream);
template <class T>
void norm_columns_backward(const NormCall& call, void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
