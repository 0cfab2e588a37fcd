// Recurrent gates, for arrays on a GPU.
#include "cuda/gates/gates.h"

#include "cuda/binding/bindings.h"

namespace fastact {

void add_gates(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<GatesCall>(
      kGatesForward, [](auto element, const GatesCall& call, cudaStream_t stream) {
        gates_forward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<GatesCall>(
      kGatesBackward,
      [](auto element, const GatesCall& call) { return gates_workspace<decltype(element)>(call); },
      [](auto element, const GatesCall& call, void* workspace, cudaStream_t stream) {
        gates_backward<decltype(element)>(call, workspace, stream);
      }));
}

}  // namespace fastact
