// bias_act and dropout, for arrays on a GPU.
#include "cuda/bias/bias.h"

#include "cuda/binding/bindings.h"

namespace fastact {

void add_bias(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<BiasCall>(
      kBiasForward, [](auto element, const BiasCall& call, cudaStream_t stream) {
        bias_act_forward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<BiasCall>(
      kBiasBackward,
      [](auto element, const BiasCall& call) {
        return bias_act_workspace<decltype(element)>(call);
      },
      [](auto element, const BiasCall& call, void* workspace, cudaStream_t stream) {
        bias_act_backward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<DropoutCall>(
      kDropout, [](auto element, const DropoutCall& call, cudaStream_t stream) {
        dropout<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
