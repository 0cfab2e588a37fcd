// bias_act: y = f(x + bias + residual), and in one pass dx = dy f'(x + bias + residual) and dbias,
// the sum of dx over all axes but the bias's. f is any activation. And dropout
// (common/bias/dropout.h).
//
// All are fused passes (core/fused_pass.h). Forward, f(x + bias) is one loop (bias/kernels.h); with
// a residual the sum is computed first, and f of it in place. Backward, dy f' is stored and, before
// it is rounded, added to the lanes of its channel (reductions/kernels.h).
//
// These passes also serve y = f(x, w), w one number a channel (common/bias/channel_functions.h),
// whose dw is the sum of other terms than dx.
//
// Measurements, and what was tried and rejected: docs/design/bias.md.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/bias/call.h"
#include "cpu/activations/kernels.h"
#include "cpu/bias/dropper.h"
#include "cpu/bias/kernels.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/summing_pass.h"
#include "cpu/simd/convert_kernels.h"

namespace fastact {
namespace {

struct BiasAct {
  FusedPlan plan;  // of the operands in the order of BiasCall; plan.accumulate: dx is added to
  ChannelSums sums;
  ChannelArray bias;
  int activation;  // or a channel function
  const double* parameters;
  const BiasKernels* kernels;
  ElementwiseKernel kernel;  // the activation alone, of the compute type: for sums with a residual

  bool takes_parameter() const { return activation >= kActivations; }
};

struct DropoutPass {
  FusedPlan plan;  // of the operands in the order of DropoutCall, and the elements' indices
  Dropout drop;
  const BiasKernels* kernels;
};

// From the operands to f(z), or to dy f'(z); of f(x, w) w stands where else the bias does.
struct BiasChunks : Chunks {
  const BiasAct& act;
  ChannelValues bias;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char residual[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];

  explicit BiasChunks(const BiasAct& a) : Chunks(a.plan), act(a), bias(a.plan, a.bias) {}

  // to = x + bias + residual
  void add_all(const char* from, char* to) {
    s.kernels->add[plan.is_double](from, values_of(bias),
                                   reader.load(BiasCall::kResidual, residual), to, count);
  }

  // The bias of a chunk, as the kernels take it.
  struct Bias {
    const char* at;
    int64_t period;
  };
  Bias bias_of_chunk() {
    if (!s.is_channel_outer) return {values_of(bias), period};
    if (at_column + count > s.columns.size) return {values_of(bias), kPiece};
    return {bias.spread(at_row, at_column, std::min<int64_t>(count, 2 * kLanes)), kLanes};
  }

  // Rows of channels begin anew at a multiple of kLanes; as many as a chunk never do.
  const int64_t period = std::min(std::lcm(plan.channels, int64_t(kLanes)), kPiece);
  const bool has_residual = s.data[BiasCall::kResidual];
  // 16-bit data is converted in registers where it lies in one piece; else it passes
  // through buffers.
  const bool may_convert = s.item < s.compute_item && !has_residual && !plan.accumulate &&
                           act.kernels->forward[act.activation][s.dtype];
};

struct BiasForward : BiasChunks {
  using BiasChunks::BiasChunks;

  void compute() {
    const char* from = reader.stored(BiasCall::kX);
    char* to = reader.stored(BiasCall::kOut);
    const bool is_stored = may_convert && from && to;
    if (!is_stored) {
      from = reader.load(BiasCall::kX, x);
      to = reader.target(BiasCall::kOut, z, false);
    }
    if (has_residual) {
      add_all(from, to);
      char* const operands[] = {to, to};
      if (act.activation != k_identity) act.kernel(operands, count, act.parameters, 0);
    } else {
      const Bias b = bias_of_chunk();
      act.kernels->forward[act.activation][is_stored ? s.dtype : s.compute_dtype](
          from, b.at, b.period, to, count, from == x ? 0 : ahead, act.parameters);
    }
    reader.finish(BiasCall::kOut, to, z, false);
  }
};

struct BiasBackward : BiasChunks {
  static constexpr int kSums = 1, kSummed[] = {BiasCall::kOut};
  static constexpr bool kTakesRows = true;
  const ChannelSums& sums = act.sums;
  const char* made[kSums];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char product[kPiece * sizeof(double)];

  using BiasChunks::BiasChunks;

  void compute(int64_t phase, double* const* lanes) {
    const char* gradient = reader.load(BiasCall::kDy, dy);
    if (copy_halves()) {
      if (lanes) sums.each[0].kernels->add_terms(gradient, count, phase, 0, 0, *lanes);
      made[0] = gradient;
      return;
    }
    char* to = reader.target(BiasCall::kOut, product, plan.accumulate);
    if (act.activation == k_identity || !has_residual) {
      // The identity's loop reads dy alone: a copy that adds up what it has at hand.
      const char* from = act.activation == k_identity ? gradient : reader.load(BiasCall::kX, x);
      const Bias b = bias_of_chunk();
      act.kernels->backward[act.activation][plan.is_double](
          gradient, from, b.at, b.period, to, z, count, gradient == dy ? 0 : ahead, act.parameters,
          phase % kLanes, lanes ? *lanes : nullptr);
    } else {
      add_all(reader.load(BiasCall::kX, x), z);
      char* const operands[] = {const_cast<char*>(gradient), z, to};
      act.kernel(operands, count, act.parameters, 0);
      if (lanes) sums.each[0].kernels->add_terms(to, count, phase, 0, 0, *lanes);
    }
    reader.finish(BiasCall::kOut, to, product, plan.accumulate);
    made[0] = act.takes_parameter() ? z : to;
  }

  // The terms of a parameter are not what is written.
  bool is_written_through(int k) const {
    return !act.takes_parameter() && Chunks::is_written_through(k);
  }

  // The identity's dx is dy: its 16 bits are copied where they lie in one piece.
  bool copy_halves() const {
    if (act.activation != k_identity || s.item == s.compute_item || plan.accumulate) return false;
    const char* const from = reader.stored(BiasCall::kDy);
    char* const to = reader.stored(BiasCall::kOut);
    if (!from || !to) return false;
    if (from != to) memcpy(to, from, count * s.item);
    return true;
  }

  bool takes_rows() const {
    bool all = may_convert;
    for (int k : {BiasCall::kDy, BiasCall::kX, BiasCall::kOut}) all &= s.has_unit_stride[k];
    return all;
  }

  void compute_rows(int64_t row, int64_t row_count, int64_t column, int64_t n, double* const* lane,
                    bool fresh) {
    char* at[BiasCall::kOut + 1][kMostRows];
    for (int k : {BiasCall::kDy, BiasCall::kX, BiasCall::kOut})
      for (int64_t i = 0; i < row_count; ++i)
        at[k][i] = s.row(k, row + i * kLanes) + column * s.item;
    act.kernels->backward_rows[act.activation][s.dtype](
        at[BiasCall::kDy], at[BiasCall::kX], bias.values_at(column, n), at[BiasCall::kOut],
        row_count, n, act.parameters, lane[0], fresh);
  }
};

constexpr int kIndex = DropoutCall::kOut + 1;  // the operand of the elements' numbers

struct DropoutChunks : Chunks {
  Dropper dropper;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char residual[kPiece * sizeof(double)];
  alignas(64) char y[kPiece * sizeof(double)];

  explicit DropoutChunks(const DropoutPass& p)
      : Chunks(p.plan), dropper(s, *p.kernels, p.drop, kIndex) {}

  void compute() {
    const bool has_residual = s.data[DropoutCall::kResidual];
    const char* from = reader.stored(DropoutCall::kX);
    const char* other = reader.stored(DropoutCall::kResidual);
    char* to = plan.accumulate ? nullptr : reader.stored(DropoutCall::kOut);
    if (reader.stored(kIndex) && from && to && (other || !has_residual))
      return dropper.drop(reader, s.dtype, from, other, to, count);
    from = reader.load(DropoutCall::kX, x);
    other = has_residual ? reader.load(DropoutCall::kResidual, residual) : nullptr;
    to = reader.target(DropoutCall::kOut, y, plan.accumulate);
    dropper.drop(reader, s.compute_dtype, from, other, to, count);
    reader.finish(DropoutCall::kOut, to, y, plan.accumulate);
  }
};

// Plans a call that is not empty.
void prepare(DropoutPass* pass, const KernelTable* table, const DropoutCall& call) {
  const ArrayArgument& y = call.data[DropoutCall::kOut];
  Operand arrays[kIndex + 1];
  std::copy_n(call.data, kIndex, arrays);
  arrays[kIndex] = numbers_of(y, y.dtype);
  pass->plan.accumulate = call.accumulate;
  pass->drop = dropout_of(call);
  pass->kernels = table->bias;
  plan_pass(&pass->plan, table->convert, y.dtype, kIndex + 1, arrays, DropoutCall::kOut, -1, false);
}

void prepare(BiasAct* act, const KernelTable* table, const BiasCall& call, bool backward) {
  constexpr int kOperands = BiasCall::kOut + 1;
  const int dtype = call.data[BiasCall::kX].dtype;
  Operand arrays[kOperands];
  std::copy_n(call.data, kOperands, arrays);
  act->activation = call.which;
  act->parameters = call.parameters;
  act->plan.accumulate = call.accumulate_dx;
  plan_pass(&act->plan, table->convert, dtype, kOperands, arrays, BiasCall::kOut, call.axis,
            backward);
  const int compute = act->plan.operands.compute_dtype;
  act->kernels = table->bias;
  if (!act->takes_parameter())
    act->kernel = backward ? table->elementwise->backward[act->activation][compute][false]
                           : table->elementwise->forward[act->activation][compute];
  act->bias = along_channels(act->plan, call.bias, call.bias.dtype);
  if (backward)
    add_sum(&act->sums, act->plan, table->reduce,
            along_channels(act->plan, call.dbias, call.dbias.dtype), call.accumulate_dbias);
}

void dropout(const DropoutCall& call, const KernelTable* kernels) noexcept {
  run_planned(run_pass<DropoutChunks, DropoutPass>, size_of(call.data[DropoutCall::kX]), call,
              kernels);
}

void bias_forward(const BiasCall& call, const KernelTable* kernels) noexcept {
  run_planned(run_pass<BiasForward, BiasAct>, size_of(call.data[BiasCall::kX]), call, kernels,
              false);
}

int64_t backward_workspace(const BiasCall& call, const KernelTable*) {
  return channel_workspace(call.data[BiasCall::kX], call.axis);
}

void bias_backward(const BiasCall& call, Execution* execution) {
  const int64_t size = size_of(call.data[BiasCall::kX]);
  if (size == 0) {
    if (!call.accumulate_dbias) fill(call.dbias, 0);
    return;
  }
  BiasAct act;
  prepare(&act, execution->kernels, call, true);
  run_with_sums(run_summing_pass<BiasBackward, BiasAct>, &act, execution->workspace,
                execution->bytes, size);
}

}  // namespace

void add_bias(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<bias_forward>(kBiasForward));
  functions->push_back(native_function<bias_backward, backward_workspace>(kBiasBackward));
  functions->push_back(native_function<dropout>(kDropout));
}

}  // namespace fastact
