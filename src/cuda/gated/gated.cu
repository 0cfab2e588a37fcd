// Gated activations: y = f(min(a', limit)) (clamp(b', -limit, limit) + offset), a' = a + bias_a,
// b' = b + bias_b, and their gradients, in one pass over memory each (common/gated/gated.h has the
// formulas).
//
// Rows of aligned vectors without biases, dense or halves of packed ones: the map of
// core/row_map.cuh, with an activation that is compiled in if it is a common one
// (activations/fixed.cuh). All others: the map of core/strided_map.cuh, with an activation that is
// chosen at run time, by one call a vector (docs/design/cuda.md, "Gated activations"). There the
// sums of the biases' gradients are added in the same pass, at most kMaxChunks partial sums a
// channel, and one finishing kernel each adds these.
//
// Bytes moved: a, b and y once; dy, a, b, da and db once.
#include "cuda/core/native_function.h"
#include "cuda/gated/functors.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Runs F, a functor over rows of vectors. False where the operands, inputs and then outputs, are no
// such rows.
template <template <class, class> class F, class T, int inputs, int outputs>
bool run_gated_rows(const GatedCall& function, const ElementwisePlan& plan, bool accumulate,
                    cudaStream_t stream) {
  const PlannedRows<T, inputs + outputs> rows(plan);
  if (!rows.fit) return false;
  const auto run = [&](const auto& activation) {
    using Activation = std::decay_t<decltype(activation)>;
    RowMap<F<T, Activation>> map{};
    std::copy(plan.data, plan.data + inputs, map.in);
    std::copy(plan.data + inputs, plan.data + inputs + outputs, map.out);
    std::copy(rows.pitch, rows.pitch + inputs, map.in_pitch);
    std::copy(rows.pitch + inputs, rows.pitch + inputs + outputs, map.out_pitch);
    map.accumulate = accumulate;
    run_rows<T>(map, rows, F<T, Activation>{{}, Gated<T, Activation>(function, activation)},
                stream);
  };
  if (has_limit(function))
    run(chosen_activation(function.which, function.parameters));
  else
    with_common_activation<T>(function.which, function.parameters, run);
  return true;
}

// The channel as one array more, where biases ask for it: its "address" is the channel.
IndexOperand channel_of(const GatedCall& call) {
  OneAxis axis(call.axis);
  axis.flag[call.axis] = call.bias[0].shape;
  return {call.data[GatedCall::kA], axis.flag};
}

GatedBiases biases_of(const GatedCall& call) {
  return {{vector_of(call.bias[0]), vector_of(call.bias[1])}};
}

void finish_biases(const GatedCall& call, const double* partials, int64_t chunks,
                   cudaStream_t stream) {
  const int64_t channels = call.data[GatedCall::kA].shape[call.axis];
  for (int k = 0; k < 2; ++k)
    finish_numbers({partials + k * channels * chunks, vector_of(call.dbias[k]), call.accumulate,
                    channels, chunks},
                   stream);
}

}  // namespace

template <class T>
void gated_forward(const GatedCall& call, cudaStream_t stream) {
  const Operand &a = call.data[GatedCall::kA], &b = call.data[GatedCall::kB],
                &y = call.data[GatedCall::kY];
  if (is_empty(a)) return;
  ElementwisePlan plan;
  if (!call.bias[0].shape) {
    const Operand operands[] = {a, b, y};
    plan_elementwise(&plan, sizeof(T), 3, operands);
    if (run_gated_rows<GatedForward, T, 2, 1>(call, plan, false, stream)) return;
  }
  const IndexOperand channel = channel_of(call);
  const Operand operands[] = {a, b, channel.operand, y};
  plan_elementwise(&plan, sizeof(T), 4, operands);
  run_strided_map<T>(plan, false, GatedForward<T>{biases_of(call), Gated<T>(call)}, stream);
}

template <class T>
int64_t gated_workspace(const GatedCall& call) {
  const Operand& a = call.data[GatedCall::kA];
  if (!call.dbias[0].shape || is_empty(a)) return 0;
  const int64_t channels = a.shape[call.axis];
  return 2 * channels * most_chunks<T>(channels, size_of(a)) * int64_t(sizeof(double));
}

template <class T>
void gated_backward(const GatedCall& call, void* workspace, cudaStream_t stream) {
  const Operand &dy = call.data[GatedCall::kDy], &a = call.data[GatedCall::kA],
                &b = call.data[GatedCall::kB], &da = call.data[GatedCall::kOutA],
                &db = call.data[GatedCall::kOutB];
  if (is_empty(a)) {
    if (call.dbias[0].shape && !is_empty(call.dbias[0])) finish_biases(call, nullptr, 0, stream);
    return;
  }
  ElementwisePlan plan;
  if (!call.bias[0].shape) {
    const Operand operands[] = {dy, a, b, da, db};
    plan_elementwise(&plan, sizeof(T), 5, operands, da.shape ? 3 : 4);
    if (run_gated_rows<GatedBackward, T, 3, 2>(call, plan, call.accumulate, stream)) return;
  }
  const IndexOperand channel = channel_of(call);
  const Operand operands[] = {dy, a, b, channel.operand, da, db};
  const int leader = da.shape ? 4 : db.shape ? 5 : 1;
  plan_elementwise(&plan, sizeof(T), 6, operands, leader);
  const GatedBackward<T> f{biases_of(call), Gated<T>(call)};
  if (!call.dbias[0].shape) return run_strided_map<T>(plan, call.accumulate, f, stream);
  auto* const partials = static_cast<double*>(workspace);
  const int64_t chunks = run_channel_sums<T>(&plan, a.shape[call.axis], call.accumulate,
                                             GatedSums<T>{f}, partials, stream);
  finish_biases(call, partials, chunks, stream);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<gated_forward<Storage>> forward_call(kGatedForward);
const NativeFunction<gated_workspace<Storage>, gated_backward<Storage>> backward_call(
    kGatedBackward);

FASTACT_END_NAMESPACE
