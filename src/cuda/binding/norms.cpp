// The norms, for arrays on a GPU.
#include "cuda/norms/rows/norms.h"

#include "cuda/binding/bindings.h"
#include "cuda/norms/channels/batch_norm.h"

namespace fastact {
namespace {

// Scratch of any call of batch_norm or norm_apply.
constexpr auto kScratchOf = [](auto element, const auto& call) {
  return batch_norm_scratch<decltype(element)>(call.x, call.axis);
};

}  // namespace

void add_norms(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<NormCall>(
      kNormForward,
      [](auto element, const NormCall& call) {
        return norm_forward_workspace<decltype(element)>(call);
      },
      [](auto element, const NormCall& call, void* workspace, cudaStream_t stream) {
        norm_forward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<NormCall>(
      kNormBackward,
      [](auto element, const NormCall& call) {
        return norm_backward_workspace<decltype(element)>(call);
      },
      [](auto element, const NormCall& call, void* workspace, cudaStream_t stream) {
        norm_backward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<BatchForward>(
      kBatchNormForward, kScratchOf,
      [](auto element, const BatchForward& call, void* scratch, cudaStream_t stream) {
        batch_norm_forward<decltype(element)>(call, scratch, stream);
      }));
  calls->push_back(device_call<BatchForward>(
      kNormApply, kScratchOf,
      [](auto element, BatchForward call, void* scratch, cudaStream_t stream) {
        call.is_rstd = true;
        batch_norm_forward<decltype(element)>(call, scratch, stream);
      }));
  calls->push_back(device_call<BatchBackward>(
      kBatchNormBackward, kScratchOf,
      [](auto element, const BatchBackward& call, void* scratch, cudaStream_t stream) {
        batch_norm_backward<decltype(element)>(call, scratch, stream);
      }));
}

}  // namespace fastact
