// softmax, log_softmax, logsumexp and cross_entropy, for arrays on a GPU.
#include "cuda/softmax/softmax.h"

#include "cuda/binding/bindings.h"

namespace fastact {

void add_softmax(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<SoftmaxCall>(
      kSoftmaxForward,
      [](auto element, const SoftmaxCall& call) {
        return softmax_workspace<decltype(element)>(call);
      },
      [](auto element, const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
        softmax_forward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<SoftmaxCall>(
      kSoftmaxBackward,
      [](auto element, const SoftmaxCall& call) {
        return softmax_workspace<decltype(element)>(call);
      },
      [](auto element, const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
        softmax_backward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<SinkCall>(
      kSoftmaxSink, [](auto element, const SinkCall& call, cudaStream_t stream) {
        softmax_sink<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<SoftmaxCall>(
      kLogSumExpBackward, [](auto element, const SoftmaxCall& call, cudaStream_t stream) {
        logsumexp_backward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<SoftmaxCall>(
      kCrossEntropyForward,
      [](auto element, const SoftmaxCall& call) {
        return cross_entropy_workspace<decltype(element)>(call);
      },
      [](auto element, const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
        cross_entropy_forward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<SoftmaxCall>(
      kCrossEntropyBackward, [](auto element, const SoftmaxCall& call, cudaStream_t stream) {
        cross_entropy_backward<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
