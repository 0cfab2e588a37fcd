// Gated activations, y = f(gate(a)) factor(b), and their gradients in one pass each
// (common/gated/gated.h has the formulas, core/fused_pass.h the pass).
//
// A chunk of a goes through the activation's own kernel into a buffer, and from there times the
// factor into y. Backward takes two calls of the activation on a chunk, f and dy f': that its
// exponential is computed twice costs less than a kernel of its own for each activation would in
// compiling, and past the caches nothing. All of a chunk is read before any of its results is
// written: da and db may be any of the inputs.
//
// Packed arrays are two strided operands: halves are read row by row, interleaved ones are gathered
// chunk by chunk. Measurements: docs/design/gated.md.
#include <algorithm>
#include <limits>

#include "common/gated/call.h"
#include "cpu/activations/kernels.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/gated/kernels.h"
#include "cpu/reductions/summing_pass.h"

namespace fastact {
namespace {

struct Gated {
  FusedPlan plan;  // of the operands in the order of GatedCall; plan.accumulate: they are added to
  ChannelSums sums;
  ChannelArray bias_a, bias_b;  // both or neither
  GatedNumbers numbers;
  const double* parameters;  // of the activation
  const GatedKernels* kernels;
  ElementwiseKernel value, slope;  // f, and dy f', of the compute type
  bool has_gate;                   // it is not a itself, or a is written before it has been read
};

struct GatedChunks : Chunks {
  const Gated& gated;
  ChannelValues bias_a, bias_b;
  alignas(64) char a_buffer[kPiece * sizeof(double)];
  alignas(64) char b_buffer[kPiece * sizeof(double)];
  alignas(64) char gate_buffer[kPiece * sizeof(double)];
  alignas(64) char value[kPiece * sizeof(double)];  // f(gate)

  explicit GatedChunks(const Gated& g)
      : Chunks(g.plan), gated(g), bias_a(g.plan, g.bias_a), bias_b(g.plan, g.bias_b) {}

  const char* along(ChannelValues& bias, const ChannelArray& array) {
    return array.data ? values_of(bias) : nullptr;
  }

  const char* gate_of(const char* a, const char* along_a) {
    if (!gated.has_gate) return a;
    gated.kernels->gate[plan.is_double](a, along_a, gate_buffer, count, gated.numbers);
    return gate_buffer;
  }

  void find_value(const char* gate) {
    char* const operands[] = {const_cast<char*>(gate), value};
    gated.value(operands, count, gated.parameters, 0);
  }
};

struct GatedForward : GatedChunks {
  using GatedChunks::GatedChunks;

  void compute() {
    const char* a = reader.load(GatedCall::kA, a_buffer);
    const char* b = reader.load_stored(GatedCall::kB, b_buffer);
    find_value(gate_of(a, along(bias_a, gated.bias_a)));
    char* y = reader.stored_target(GatedCall::kY, a_buffer);
    gated.kernels->product[s.dtype](value, b, along(bias_b, gated.bias_b), y, count, gated.numbers);
    reader.finish_stored(GatedCall::kY, y, a_buffer);
  }
};

struct GatedBackward : GatedChunks {
  static constexpr int kSums = 2, kSummed[] = {GatedCall::kOutA, GatedCall::kOutB};
  static constexpr bool kTakesRows = false;
  const ChannelSums& sums = gated.sums;
  const char* made[kSums];
  alignas(64) char dy_buffer[kPiece * sizeof(double)];
  alignas(64) char g[kPiece * sizeof(double)];  // what comes to the gate, then da
  const bool needs_a, needs_b;
  const bool needs_wide_b;  // for its sum, or to be added to what is there

  explicit GatedBackward(const Gated& given)
      : GatedChunks(given),
        needs_a(given.sums.count || s.data[GatedCall::kOutA]),
        needs_b(given.sums.count || s.data[GatedCall::kOutB]),
        needs_wide_b(given.sums.count || given.plan.accumulate) {}

  void compute() {
    const char* dy = reader.load_stored(GatedCall::kDy, dy_buffer);
    const char* a = reader.load(GatedCall::kA, a_buffer);
    const char* b = reader.load_stored(GatedCall::kB, b_buffer);
    const char* along_a = along(bias_a, gated.bias_a);
    const char* along_b = along(bias_b, gated.bias_b);
    const char* gate = gate_of(a, along_a);
    if (needs_b) find_value(gate);
    if (needs_a)
      gated.kernels->to_gate[s.dtype](dy, a, along_a, b, along_b, g, count, gated.numbers);
    if (needs_b) {
      char* const buffer = needs_wide_b ? value : dy_buffer;
      char* db = needs_wide_b ? reader.target(GatedCall::kOutB, buffer, plan.accumulate)
                              : reader.stored_target(GatedCall::kOutB, buffer);
      gated.kernels->to_b[s.dtype][needs_wide_b](dy, value, b, along_b, db, count, gated.numbers);
      needs_wide_b ? reader.finish(GatedCall::kOutB, db, buffer, plan.accumulate)
                   : reader.finish_stored(GatedCall::kOutB, db, buffer);
      made[1] = db;
    }
    if (needs_a) {
      char* da = reader.target(GatedCall::kOutA, g, plan.accumulate);
      char* const operands[] = {g, const_cast<char*>(gate), da};
      gated.slope(operands, count, gated.parameters, 0);
      reader.finish(GatedCall::kOutA, da, g, plan.accumulate);
      made[0] = da;
    }
  }

  void compute(int64_t phase, double* const* lanes) {
    compute();
    if (!lanes) return;
    for (int k = 0; k < kSums; ++k)
      sums.each[k].kernels->add_terms(made[k], count, phase, 0, 0, lanes[k]);
  }
};

// Plans a call that is not empty.
void prepare(Gated* gated, const KernelTable* table, const GatedCall& call) {
  constexpr int kOperands = GatedCall::kOutB + 1;
  const int dtype = call.data[GatedCall::kA].dtype;
  Operand arrays[kOperands];
  std::copy_n(call.data, kOperands, arrays);
  const bool has_bias = call.bias[0].data, has_sums = call.dbias[0].data;
  const int leader = arrays[GatedCall::kOutA].data   ? GatedCall::kOutA
                     : arrays[GatedCall::kOutB].data ? GatedCall::kOutB
                                                     : GatedCall::kA;
  gated->plan.accumulate = call.accumulate;
  gated->numbers = {call.limit, call.offset};
  gated->parameters = call.parameters;
  plan_pass(&gated->plan, table->convert, dtype, kOperands, arrays, leader,
            has_bias ? call.axis : -1, has_sums);
  const StridedOperands& s = gated->plan.operands;
  gated->kernels = table->gated;
  gated->value = table->elementwise->forward[call.which][s.compute_dtype];
  gated->slope = table->elementwise->backward[call.which][s.compute_dtype][false];
  gated->bias_a = gated->bias_b = ChannelArray{nullptr, 0, dtype};
  if (has_bias) {
    gated->bias_a = along_channels(gated->plan, call.bias[0], call.bias[0].dtype);
    gated->bias_b = along_channels(gated->plan, call.bias[1], call.bias[1].dtype);
  }
  // db is written before the slope at the gate is computed.
  const bool is_overwritten =
      s.data[GatedCall::kOutB] && s.data[GatedCall::kOutB] == s.data[GatedCall::kA];
  gated->has_gate =
      has_bias || gated->numbers.limit < std::numeric_limits<double>::infinity() || is_overwritten;
  for (int k = 0; has_sums && k < GatedBackward::kSums; ++k)
    add_sum(&gated->sums, gated->plan, table->reduce,
            along_channels(gated->plan, call.dbias[k], call.dbias[k].dtype), call.accumulate);
}

void gated_forward(const GatedCall& call, const KernelTable* kernels) noexcept {
  run_planned(run_pass<GatedForward, Gated>, size_of(call.data[GatedCall::kA]), call, kernels);
}

int64_t backward_workspace(const GatedCall& call, const KernelTable*) {
  return call.dbias[0].shape ? 2 * channel_workspace(call.data[GatedCall::kA], call.axis) : 0;
}

void gated_backward(const GatedCall& call, Execution* execution) {
  const int64_t size = size_of(call.data[GatedCall::kA]);
  if (size == 0) {
    for (int k = 0; k < 2 && !call.accumulate; ++k) fill(call.dbias[k], 0);
    return;
  }
  Gated gated;
  prepare(&gated, execution->kernels, call);
  const auto run =
      gated.sums.count ? run_summing_pass<GatedBackward, Gated> : run_pass<GatedBackward, Gated>;
  run_with_sums(run, &gated, execution->workspace, execution->bytes, size);
}

}  // namespace

void add_gated(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<gated_forward>(kGatedForward));
  functions->push_back(native_function<gated_backward, backward_workspace>(kGatedBackward));
}

}  // namespace fastact
