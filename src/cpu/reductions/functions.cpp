// The native functions of reductions (common/reductions/call.h): sums and moments over some axes,
// also by groups of elements, and their gradients; and what repeats an array or a number.
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/reductions/spread_call.h"
#include "cpu/activations/kernels.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/squares.h"
#include "cpu/reductions/weighted.h"

namespace fastact {
namespace {

int64_t sum_workspace(const SumCall& call, const KernelTable* kernels) {
  if (is_empty(call.y) || resolve_threads(size_of(call.x)) == 1) return 0;
  Reducer reducer;
  prepare(&reducer, kernels->reduce, call);
  return workspace_size(&reducer);
}

void sum(const SumCall& call, Execution* execution) {
  const int64_t size = size_of(call.x);
  if (is_empty(call.y)) return;
  if (size == 0) {
    if (!call.accumulate) fill(call.y, 0 + call.initial);
    return;
  }
  const int threads = resolve_threads(size);
  Reducer reducer;
  prepare(&reducer, execution->kernels->reduce, call);
  divide_work(&reducer, 1, execution->workspace, execution->bytes, threads);
  run_reduction(&reducer, threads);
}

void sum_backward(const SumBackwardCall& call, const KernelTable* kernels) noexcept {
  const auto& kernel = kernels->elementwise->term_backward[call.term][call.arrays[0].dtype];
  run_elementwise(kernel[call.accumulate], nullptr, call.accumulate, 3, call.arrays);
}

int64_t square_workspace(const SquareCall& call, const KernelTable* kernels) {
  if (resolve_threads(size_of(call.x)) == 1) return 0;
  SquareGrad square;
  prepare(&square, kernels, call);
  return workspace_size(&square.reducer);
}

void square_value_and_grad(const SquareCall& call, Execution* execution) {
  if (is_empty(call.x)) return fill(call.y, 0);
  const int threads = resolve_threads(size_of(call.x));
  SquareGrad square;
  prepare(&square, execution->kernels, call);
  divide_work(&square.reducer, 1, execution->workspace, execution->bytes, threads);
  run_partitions(threads, square_partition, &square);
  merge_chunks(&square.reducer, 1, threads);
}

void broadcast(const BroadcastCall& call, const KernelTable* kernels) noexcept {
  const auto kernel = kernels->elementwise->added[call.arrays[0].dtype];
  run_elementwise(call.accumulate ? kernel : nullptr, nullptr, call.accumulate, 2, call.arrays);
}

void fill_one(const FillCall& call, const KernelTable*) noexcept {
  memcpy(call.y.data, &call.bits, item_size(call.y.dtype));
}

// Whether elements count more or less than once, or have a dtype that is converted first.
bool needs_weights(const MomentsCall& call) { return call.is_weighted() || call.x().dtype > kF64; }

int64_t moments_workspace(const MomentsCall& call, const KernelTable* kernels) {
  if (resolve_threads(size_of(call.x())) == 1) return 0;
  if (needs_weights(call)) return weighted_workspace(call, kernels);
  Reducer reducer;
  prepare(&reducer, kernels->reduce, call);
  return workspace_size(&reducer);
}

// Runs run(is_degenerate), and warns of results that have no weights, or too few elements.
template <class Run>
void run_and_warn(const MomentsCall& call, Execution* execution, Run run) {
  int is_degenerate = 0;
  run(call.warning || call.inputs[MomentsCall::kWeights].shape ? &is_degenerate : nullptr);
  if (is_degenerate & kNoWeights)
    execution->warn("weights that are negative or not finite; what they are part of is NaN");
  if (is_degenerate & kTooFew && call.warning) execution->warn(call.warning);
}

void moments(const MomentsCall& call, Execution* execution) {
  run_and_warn(call, execution, [&](int* is_degenerate) {
    if (needs_weights(call)) return run_weighted(call, execution, is_degenerate);
    const int threads = resolve_threads(size_of(call.x()));
    Reducer reducer;
    prepare(&reducer, execution->kernels->reduce, call);
    reducer.is_degenerate = is_degenerate;
    divide_work(&reducer, 1, execution->workspace, execution->bytes, threads);
    run_reduction(&reducer, threads);
  });
}

void moments_backward(const MomentsBackwardCall& call, const KernelTable* kernels) noexcept {
  const double parameters[] = {call.share, call.scale};
  const auto& kernel = kernels->elementwise->moments_backward[call.arrays[0].dtype];
  run_elementwise(kernel[call.accumulate], parameters, call.accumulate, 6, call.arrays);
}

void statistic_backward(const StatisticBackwardCall& call, const KernelTable* kernels) noexcept {
  const double parameters[] = {call.skips ? 0.0 : std::nan("")};
  const ElementwiseTable& table = *kernels->elementwise;
  const bool has_mean = call.arrays[StatisticBackwardCall::kMean].shape;
  const auto& kernel =
      (has_mean ? table.deviation_backward : table.slope_backward)[call.arrays[0].dtype];
  run_elementwise(kernel[call.accumulate], parameters, call.accumulate, 6, call.arrays);
}

// Only devices have it: the check refuses arrays on the CPU.
void spread_backward(const SpreadBackwardCall&, Execution*) {}

// Refuses labels that are out of range, by the op's name.
[[noreturn]] void refuse_labels(const char* op, int64_t groups) {
  const std::string allowed =
      groups == 0 ? "-1 alone for no groups"
                  : "groups from 0 to " + std::to_string(groups - 1) + ", or -1 for none";
  throw std::invalid_argument(std::string(op ? op : "fastact._cpu") + ": by must hold " + allowed +
                              "; got another number");
}

void weighted_gradient(const WeightedGradientCall& call, Execution* execution) {
  if (run_weighted_gradient(call, execution->kernels))
    refuse_labels(call.op, groups_of(call.arrays[WeightedGradientCall::kDy]));
}

void grouped(const MomentsCall& call, Execution* execution) {
  run_and_warn(call, execution, [&](int* is_degenerate) {
    if (run_grouped(call, execution, is_degenerate))
      refuse_labels(call.op, groups_of(call.model()));
  });
}

}  // namespace

void add_reductions(std::vector<NativeFunction>* functions) {
  for (const NativeFunction& function : {
           native_function<sum, sum_workspace>(kSumCall),
           native_function<sum_backward>(kSumBackwardCall),
           native_function<square_value_and_grad, square_workspace>(kSquareCall),
           native_function<broadcast>(kBroadcastCall),
           native_function<fill_one>(kFillCall),
           native_function<moments, moments_workspace>(kMomentsCall),
           native_function<moments_backward>(kMomentsBackwardCall),
           native_function<statistic_backward>(kStatisticBackwardCall),
           native_function<spread_backward>(kSpreadBackwardCall),
           native_function<weighted_gradient>(kWeightedGradientCall),
           native_function<weighted_gradient>(kGroupedGradientCall),
           native_function<grouped, grouped_workspace>(kGroupedCall),
       })
    functions->push_back(function);
}

}  // namespace fastact
