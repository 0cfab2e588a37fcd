// The native functions of reductions (common/reductions/call.h): sums and moments over some axes,
// also by groups of elements, and their gradients; and what repeats an array or a number.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/reductions/spread_call.h"
#include "cpu/activations/kernels.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"
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
struct SquareGrad : Reducer {
  enum { kX, kGrad };

  StridedOperands operands;
};

struct Squares : BlockSource {
  const StridedOperands& s;
  const Reducer& r;
  ChunkReader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char wide[kPiece * sizeof(float)];
  alignas(64) char grad[kPiece * sizeof(double)];
  OpenBlock open;
  double sum;

  explicit Squares(const SquareGrad& a) : s(a.operands), r(a), reader(a.operands) {}

  Results block(int64_t, int64_t, int64_t term, int64_t terms) override {
    std::fill_n(open.lanes, kLanes, -0.0);
    for (int64_t done = 0, n; done < terms; done += n) {
      n = std::min(kPiece, terms - done);
      reader.go(0, term + done, n);
      const char* from = reader.load_stored(SquareGrad::kX, x);
      r.kernels->add_terms(from, n, done, 0, 0, open.lanes);
      if (s.dtype != s.compute_dtype) {
        reader.to_compute(SquareGrad::kX, from, wide, n);
        from = wide;
      }
      char* to = reader.direct(SquareGrad::kGrad);
      s.kernels->plus[s.compute_item == sizeof(double)](from, from, to ? to : grad, n);
      if (!to) reader.store(SquareGrad::kGrad, grad, false);
    }
    r.kernels->end_terms(open.lanes, terms, 0, &sum, 1);
    return {&sum, nullptr, 1};
  }
};

void prepare(SquareGrad* square, const KernelTable& table, const SquareCall& call) {
  const int dtype = call.x.dtype, dtypes[] = {dtype, dtype};
  const Operand arrays[] = {call.x, call.grad};
  plan_operands(&square->operands, table.convert, 2, arrays, dtypes, SquareGrad::kX, -1, true);
  Reducer* r = square;
  set_accumulator(r, table.reduce, kSquare, dtype);
  r->terms.size = square->operands.size();
  set_output(r, call.y.data, dtype,
             reinterpret_cast<uintptr_t>(call.y.data) % uintptr_t(item_size(dtype)) == 0);
  r->layout = Reducer::kRows;
  r->row = r->tile = r->tasks = 1;
  cut_terms(r);
}

void square_partition(const SquareGrad* square, int64_t index, int64_t partitions) {
  Squares squares(*square);
  reduce_tasks(square, 1, squares, index, partitions);
}

int64_t square_workspace(const SquareCall& call, const KernelTable* kernels) {
  return planned_workspace<SquareGrad>(call, call.x, kernels);
}

void square_value_and_grad(const SquareCall& call, Execution* execution) {
  if (is_empty(call.x)) return fill(call.y, 0);
  reduce_planned(square_partition, call, call.x, execution);
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
  return needs_weights(call) ? weighted_workspace(call, kernels)
                             : planned_workspace<Reducer>(call, call.x(), kernels);
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
    needs_weights(call)
        ? run_weighted(call, execution, is_degenerate)
        : reduce_planned(reduce_partition, call, call.x(), execution, is_degenerate);
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
