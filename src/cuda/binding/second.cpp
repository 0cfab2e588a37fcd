// Second derivatives of rows, for arrays on a GPU.
#include "common/second/second.h"

#include "cuda/binding/bindings.h"

FASTACT_BEGIN_NAMESPACE

template <class T>
void second_rows(const SecondCall& call, cudaStream_t stream);  // second/second.cu

FASTACT_END_NAMESPACE

namespace fastact {

void add_second(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<SecondCall>(
      kSecond, [](auto element, const SecondCall& call, cudaStream_t stream) {
        second_rows<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
