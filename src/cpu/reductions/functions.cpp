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
#include "cpu/reductions/summing_pass.h"
#include "cpu/reductions/weighted.h"

namespace fastact {
namespace {

int64_t sum_workspace(const SumCall& call, const KernelTable* kernels) {
  return planned_workspace<Reducer>(call, call.x, kernels);
}

void sum(const SumCall& call, Execution* execution) {
  if (is_empty(call.y)) return;
  if (!is_empty(call.x))
    reduce_planned(reduce_partition, call, call.x, execution);
  else if (!call.accumulate)
    fill(call.y, 0 + call.initial);
}

void sum_backward(const SumBackwardCall& call, const KernelTable* kernels) noexcept {
  const auto& kernel = kernels->elementwise->term_backward[call.term][call.arrays[0].dtype];
  run_elementwise(kernel[call.accumulate], nullptr, call.accumulate, 3, call.arrays);
}

// The sum of the squares of all elements, and its gradient 2 x, in one pass.
struct SquareGrad {
  enum { kX, kGrad };

  FusedPlan plan;
  ChannelSums sums;  // of one channel
};

struct Squares : Chunks {
  static constexpr int kSums = 1, kSummed[] = {SquareGrad::kGrad};
  static constexpr bool kTakesRows = false;
  const ChannelSums& sums;
  const char* made[kSums];
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char wide[kPiece * sizeof(float)];
  alignas(64) char grad[kPiece * sizeof(double)];

  explicit Squares(const SquareGrad& a) : Chunks(a.plan), sums(a.sums) {}

  void compute(int64_t phase, double* const* lanes) {
    const char* from = made[0] = reader.load_stored(SquareGrad::kX, x);
    if (lanes) sums.each[0].kernels->add_terms(from, count, phase, 0, 0, *lanes);
    if (s.dtype != s.compute_dtype) {
      reader.to_compute(SquareGrad::kX, from, wide, count);
      from = wide;
    }
    char* const to = reader.target(SquareGrad::kGrad, grad, false);
    s.kernels->plus[plan.is_double](from, from, to, count);
    reader.finish(SquareGrad::kGrad, to, grad, false);
  }
};

int64_t square_workspace(const SquareCall& call, const KernelTable*) {
  return channel_workspace(call.x, -1);
}

void square_value_and_grad(const SquareCall& call, Execution* execution) {
  if (is_empty(call.x)) return fill(call.y, 0);
  const KernelTable& table = *execution->kernels;
  const Operand arrays[] = {call.x, call.grad};
  SquareGrad square;
  square.plan.accumulate = false;
  plan_pass(&square.plan, table.convert, call.x.dtype, 2, arrays, SquareGrad::kX, -1, true);
  add_sum(&square.sums, square.plan, table.reduce, {call.y.data, 0, call.y.dtype}, false);
  set_accumulator(square.sums.each, table.reduce, kSquare, call.x.dtype);
  run_with_sums(run_summing_pass<Squares, SquareGrad>, &square, execution->workspace,
                execution->bytes, size_of(call.x));
}

void broadcast(const BroadcastCall& call, const KernelTable* kernels) noexcept {
  const auto kernel = kernels->elementwise->added[call.arrays[0].dtype];
  run_elementwise(call.accumulate ? kernel : nullptr, nullptr, call.accumulate, 2, call.arrays);
}

void fill_one(const FillCall& call, const KernelTable*) noexcept {
  memcpy(call.y.data, &call.bits, item_size(call.y.dtype));
}

// Warns of results that have no weights, or too few elements. Returns what `run` does.
bool run_and_warn(const MomentsCall& call, Execution* execution,
                  bool (*run)(const MomentsCall&, Execution*, int* is_degenerate)) {
  int is_degenerate = 0;
  const bool looks = call.warning || call.inputs[MomentsCall::kWeights].shape;
  const bool has_wrong_label = run(call, execution, looks ? &is_degenerate : nullptr);
  if (is_degenerate & kNoWeights)
    execution->warn("weights that are negative or not finite; what they are part of is NaN");
  if (is_degenerate & kTooFew && call.warning) execution->warn(call.warning);
  return has_wrong_label;
}

void moments(const MomentsCall& call, Execution* execution) {
  run_and_warn(call, execution, run_moments);
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
  if (run_and_warn(call, execution, run_grouped)) refuse_labels(call.op, groups_of(call.model()));
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
