// Gated activations, for arrays on a GPU.
#include "cuda/gated/gated.h"

#include "cuda/binding/bindings.h"

namespace fastact {

void add_gated(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<GatedCall>(
      kGatedForward, [](auto element, const GatedCall& call, cudaStream_t stream) {
        gated_forward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<GatedCall>(
      kGatedBackward,
      [](auto element, const GatedCall& call) { return gated_workspace<decltype(element)>(call); },
      [](auto element, const GatedCall& call, void* workspace, cudaStream_t stream) {
        gated_backward<decltype(element)>(call, workspace, stream);
      }));
}

}  // namespace fastact
