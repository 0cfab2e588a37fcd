// The norms over rows, for arrays on a GPU.
#include "cuda/norms/rows/norms.h"

#include "cuda/binding/bindings.h"

namespace fastact {
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
}

}  // namespace fastact
