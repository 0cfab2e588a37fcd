// Activations, for arrays on a GPU.
#include "cuda/activations/activations.h"

#include "cuda/binding/bindings.h"

namespace fastact {

void add_activations(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<ActivationCall>(
      kActivationForward, [](auto element, const ActivationCall& call, cudaStream_t stream) {
        activation_forward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<ActivationCall>(
      kActivationBackward, [](auto element, const ActivationCall& call, cudaStream_t stream) {
        activation_backward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<ActivationCall>(
      kActivationSecond, [](auto element, const ActivationCall& call, cudaStream_t stream) {
        activation_second<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
