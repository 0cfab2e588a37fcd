// Sums, moments and statistics, for arrays on a GPU; and the calls that repeat a number or an
// array.
#include "cuda/binding/bindings.h"
#include "cuda/reductions/moments.h"

namespace fastact {
namespace {

// Fills elements of any dtype that a View has, by the size of an element.
DeviceCall fill_call() {
  const auto run = [](const void* given, int, int device, void*, int64_t, void* stream) {
    const FillCall& call = *static_cast<const FillCall*>(given);
    const DeviceGuard guard(device);
    fill(call.y.data, item_size(call.y.dtype), call.bits, static_cast<cudaStream_t>(stream));
  };
  return {kFillCall.name, kFillCall.size, [](const void*, int, int) { return int64_t(0); }, run};
}

}  // namespace

void add_reductions(std::vector<DeviceCall>* calls) {
  calls->push_back(device_call<SumCall>(
      kSumCall,
      [](auto element, const SumCall& call) { return sum_workspace<decltype(element)>(call); },
      [](auto element, const SumCall& call, void* workspace, cudaStream_t stream) {
        sum<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<SumBackwardCall>(
      kSumBackwardCall, [](auto element, const SumBackwardCall& call, cudaStream_t stream) {
        sum_backward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<SquareCall>(
      kSquareCall,
      [](auto element, const SquareCall& call) {
        return square_workspace<decltype(element)>(call);
      },
      [](auto element, const SquareCall& call, void* workspace, cudaStream_t stream) {
        square_value_and_grad<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<BroadcastCall>(
      kBroadcastCall, [](auto element, const BroadcastCall& call, cudaStream_t stream) {
        broadcast<decltype(element)>(call, stream);
      }));
  calls->push_back(fill_call());
  calls->push_back(device_call<MomentsCall>(
      kMomentsCall,
      [](auto element, const MomentsCall& call) {
        return moments_workspace<decltype(element)>(call);
      },
      [](auto element, const MomentsCall& call, void* workspace, cudaStream_t stream) {
        moments<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<MomentsBackwardCall>(
      kMomentsBackwardCall, [](auto element, const MomentsBackwardCall& call, cudaStream_t stream) {
        moments_backward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<StatisticBackwardCall>(
      kStatisticBackwardCall,
      [](auto element, const StatisticBackwardCall& call, cudaStream_t stream) {
        statistic_backward<decltype(element)>(call, stream);
      }));
  calls->push_back(device_call<SpreadBackwardCall>(
      kSpreadBackwardCall,
      [](auto element, const SpreadBackwardCall& call) {
        return spread_workspace<decltype(element)>(call);
      },
      [](auto element, const SpreadBackwardCall& call, void* workspace, cudaStream_t stream) {
        spread_backward<decltype(element)>(call, workspace, stream);
      }));
  calls->push_back(device_call<WeightedGradientCall>(
      kWeightedGradientCall,
      [](auto element, const WeightedGradientCall& call, cudaStream_t stream) {
        weighted_gradient<decltype(element)>(call, stream);
      }));
}

}  // namespace fastact
