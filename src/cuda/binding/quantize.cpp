// Codes of 8 bits, for arrays on a GPU.
#include "common/quantize/quantize.h"

#include "cuda/binding/bindings.h"

FASTACT_BEGIN_NAMESPACE

template <class T>
void quantize(const QuantizeCall& call, bool finds_scale, cudaStream_t stream);
template <class T>
void widen_to_compute(const WidenCall& call, cudaStream_t stream);  // both: quantize/quantize.cu

FASTACT_END_NAMESPACE

namespace fastact {

void add_quantize(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<QuantizeCall>(
      kQuantize, [](auto element, const QuantizeCall& call, cudaStream_t stream) {
        quantize<decltype(element)>(call, true, stream);
      }));
  calls->push_back(device_call<QuantizeCall>(
      kEncode, [](auto element, const QuantizeCall& call, cudaStream_t stream) {
        quantize<decltype(element)>(call, false, stream);
      }));
  calls->push_back(device_call<QuantizeCall>(
      kPeak, [](auto element, const QuantizeCall& call, cudaStream_t stream) {
        quantize<decltype(element)>(call, false, stream);
      }));
  calls->push_back(
      device_call<WidenCall>(kWiden, [](auto element, const WidenCall& call, cudaStream_t stream) {
        widen_to_compute<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
