// The plan of gated activations, and what is done to a chunk (gated.h).
#include "cpu/gated/gated.h"

#include "cpu/activations/kernels.h"

namespace fastact {
namespace {

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

  // As the reader's, of operand k in its own dtype.
  char* target(int k, char* buffer) {
    char* stored = reader.stored(k);
    return stored ? stored : buffer;
  }
  void finish(int k, const char* at, const char* buffer) {
    if (at == buffer) reader.scatter(k, buffer);
  }
};

struct GatedForward : GatedChunks {
  using GatedChunks::GatedChunks;

  void compute() {
    const char* a = reader.load(Gated::kA, a_buffer);
    const char* b = reader.load_stored(Gated::kB, b_buffer);
    find_value(gate_of(a, along(bias_a, gated.bias_a)));
    char* y = target(Gated::kY, a_buffer);
    gated.kernels->product[s.dtype](value, b, along(bias_b, gated.bias_b), y, count, gated.numbers);
    finish(Gated::kY, y, a_buffer);
  }
};

struct GatedBackward : GatedChunks {
  static constexpr int kSums = 2, kSummed[] = {Gated::kOutA, Gated::kOutB};
  static constexpr bool kTakesRows = false;
  const ChannelSums& sums = gated.sums;
  const char* made[kSums];
  alignas(64) char dy_buffer[kPiece * sizeof(double)];
  alignas(64) char g[kPiece * sizeof(double)];  // what comes to the gate, then da
  const bool needs_a, needs_b;
  const bool needs_wide_b;  // for its sum, or to be added to what is there

  explicit GatedBackward(const Gated& given)
      : GatedChunks(given),
        needs_a(given.sums.count || s.data[Gated::kOutA]),
        needs_b(given.sums.count || s.data[Gated::kOutB]),
        needs_wide_b(given.sums.count || given.plan.accumulate) {}

  void compute() {
    const char* dy = reader.load_stored(Gated::kDy, dy_buffer);
    const char* a = reader.load(Gated::kA, a_buffer);
    const char* b = reader.load_stored(Gated::kB, b_buffer);
    const char* along_a = along(bias_a, gated.bias_a);
    const char* along_b = along(bias_b, gated.bias_b);
    const char* gate = gate_of(a, along_a);
    if (needs_b) find_value(gate);
    if (needs_a)
      gated.kernels->to_gate[s.dtype](dy, a, along_a, b, along_b, g, count, gated.numbers);
    if (needs_b) {
      char* const buffer = needs_wide_b ? value : dy_buffer;
      char* db = needs_wide_b ? reader.target(Gated::kOutB, buffer, plan.accumulate)
                              : target(Gated::kOutB, buffer);
      gated.kernels->to_b[s.dtype][needs_wide_b](dy, value, b, along_b, db, count, gated.numbers);
      needs_wide_b ? reader.finish(Gated::kOutB, db, buffer, plan.accumulate)
                   : finish(Gated::kOutB, db, buffer);
      made[1] = db;
    }
    if (needs_a) {
      char* da = reader.target(Gated::kOutA, g, plan.accumulate);
      char* const operands[] = {g, const_cast<char*>(gate), da};
      gated.slope(operands, count, gated.parameters, 0);
      reader.finish(Gated::kOutA, da, g, plan.accumulate);
      made[0] = da;
    }
  }

  void compute(int64_t phase, double* const* lanes) {
    compute();
    if (!lanes) return;
    for (int k = 0; k < kSums; ++k)
      sums.each[k].kernels->add_terms(made[k], count, phase, 0, lanes[k]);
  }
};

}  // namespace

void prepare(Gated* gated, const KernelTable* table, int activation, int dtype,
             const Operand* arrays, const Operand* biases, int bias_dtype, int axis, bool sums) {
  const bool has_bias = biases[0].data;
  const int leader = arrays[Gated::kOutA].data   ? Gated::kOutA
                     : arrays[Gated::kOutB].data ? Gated::kOutB
                                                 : Gated::kA;
  plan_pass(&gated->plan, table->convert, dtype, Gated::kOutB + 1, arrays, leader,
            has_bias ? axis : -1, sums);
  const StridedOperands& s = gated->plan.operands;
  gated->kernels = table->gated;
  gated->value = table->elementwise->forward[activation][s.compute_dtype];
  gated->slope = table->elementwise->backward[activation][s.compute_dtype][false];
  gated->bias_a = gated->bias_b = ChannelArray{nullptr, 0, dtype};
  if (has_bias) {
    gated->bias_a = along_channels(gated->plan, biases[0], bias_dtype);
    gated->bias_b = along_channels(gated->plan, biases[1], bias_dtype);
  }
  // db is written before the slope at the gate is computed.
  const bool is_overwritten = s.data[Gated::kOutB] && s.data[Gated::kOutB] == s.data[Gated::kA];
  gated->has_gate =
      has_bias || gated->numbers.limit < std::numeric_limits<double>::infinity() || is_overwritten;
}

void prepare_sums(Gated* gated, const ReduceTable* table, const Operand* dbiases) {
  const FusedPlan& plan = gated->plan;
  for (int k = 0; k < GatedBackward::kSums; ++k)
    add_sum(&gated->sums, plan, table, along_channels(plan, dbiases[k], gated->bias_a.dtype),
            plan.accumulate);
}

void gated_forward_partition(const Gated* gated, int64_t index, int64_t partitions) {
  run_pass<GatedForward>(gated->plan, *gated, index, partitions);
}

void gated_backward_partition(const Gated* gated, int64_t index, int64_t partitions) {
  if (gated->sums.count)
    run_summing_pass<GatedBackward>(gated->sums, *gated, index, partitions);
  else
    run_pass<GatedBackward>(gated->plan, *gated, index, partitions);
}

}  // namespace fastact
