// Rotary position embedding, for arrays on a GPU.
#include "common/rotary/rotary.h"

#include "cuda/binding/bindings.h"

FASTACT_BEGIN_NAMESPACE

template <class T>
void rotary(const RotaryCall& call, cudaStream_t stream);  // rotary/rotary.cu

FASTACT_END_NAMESPACE

namespace fastact {

void add_rotary(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<RotaryCall>(
      kRotary, [](auto element, const RotaryCall& call, cudaStream_t stream) {
        rotary<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
