// Gated activations: y = f(min(a', limit)) (clamp(b', -limit, limit) + offset), a' = a + bias_a,
// b' = b + bias_b, and their gradients, in one pass over memory each (common/gated/gated.h has the
// formulas).
//
// Rows of aligned vectors without biases, dense or halves of packed ones: the map of
// core/row_map.cuh, with an activation that is compiled in if it is a common one
// (activations/fixed.cuh). All others: the kernels of strided.cuh, with an activation that is
// chosen at run time, by one call a vector (docs/design/cuda.md, "Gated activations").
//
// The sums of the biases' gradients are added by block in the same pass, and by one finishing
// kernel each, in an order that depends on shape and dtype, and on which axis is the innermost one
// in memory. At most kMaxChunks partial sums per channel.
//
// Bytes moved: a, b and y once; dy, a, b, da and db once.
#include "cuda/core/native_function.h"
#include "cuda/gated/strided.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Whether the base is a multiple of a vector's size, and each stride but the last one.
bool rows_at_vectors(const ElementwisePlan& plan, int k) {
  return rows_aligned(plan, k, kVecBytes);
}

Access access_of(const ElementwisePlan& plan, int k) {
  if (!plan.data[k]) return kAbsent;
  const bool dense = plan.strides[k][plan.ndim - 1] == plan.item;
  return dense && rows_at_vectors(plan, k) ? kByVector : kByElement;
}

// Whether arrays k and k + 1 are the even and odd elements of one, and in which order.
bool are_pair(const ElementwisePlan& plan, int k, bool* odd_first) {
  if (!plan.data[k] || !plan.data[k + 1]) return false;
  bool pair = plan.strides[k][plan.ndim - 1] == 2 * plan.item;
  for (int axis = 0; axis < plan.ndim; ++axis)
    pair &= plan.strides[k][axis] == plan.strides[k + 1][axis];
  const int even = plan.data[k + 1] < plan.data[k] ? k + 1 : k;
  pair &= plan.data[even] + plan.item == plan.data[2 * k + 1 - even] && rows_at_vectors(plan, even);
  *odd_first = pair && even != k;
  return pair;
}

// Makes an axis the innermost one.
void move_last(ElementwisePlan* plan, int axis) {
  std::rotate(plan->shape + axis, plan->shape + axis + 1, plan->shape + plan->ndim);
  for (int k = 0; k < plan->operands; ++k)
    std::rotate(plan->strides[k] + axis, plan->strides[k] + axis + 1,
                plan->strides[k] + plan->ndim);
}

// first: a's number among the arrays; b is the next.
template <class T, int inputs, int outputs>
GatedMap<inputs, outputs> map_of(const ElementwisePlan& plan, int first, bool accumulate) {
  constexpr int kSize = Vec<T>::kSize, kArrays = inputs + 1 + outputs;
  const int last = plan.ndim - 1;
  GatedMap<inputs, outputs> map{};
  map.ndim = plan.ndim;
  map.accumulate = accumulate;
  map.task_size = kSize;
  map.columns = plan.shape[last];
  map.rows = plan.size / plan.shape[last];
  std::copy(plan.shape, plan.shape + plan.ndim, map.shape);
  map.shape[last] = ceil_div(map.columns, kSize);
  map.tasks = map.rows * map.shape[last];
  map.vecs = Divisor(map.shape[last], map.tasks);
  map.is_near = plan.ndim <= 2 && map.vecs.factor != 0;
  const auto near = [&](int64_t stride) {
    map.is_near &= stride >= 0 && stride < int64_t(1) << 31;
    return uint32_t(stride);
  };
  bool by_vectors = map.columns % kSize == 0;
  for (int k = 0; k < kArrays; ++k) {
    std::copy(plan.strides[k], plan.strides[k] + plan.ndim, map.strides[k]);
    map.step[k] = plan.strides[k][last];
    map.strides[k][last] *= kSize;
    map.access[k] = access_of(plan, k);
    map.pitch[k] = near(last == 0 ? 0 : plan.strides[k][0]);
    map.advance[k] = near(map.strides[k][last]);
    by_vectors &= k == inputs || map.access[k] == kByVector;
    if (k <= inputs)
      map.in[k] = plan.data[k];
    else
      map.out[k - inputs - 1] = plan.data[k];
  }
  map.is_plain = map.is_near && by_vectors;
  if (are_pair(plan, first, &map.odd_first[0])) map.access[first] = kByPair;
  if (outputs == 2 && are_pair(plan, inputs + 1, &map.odd_first[1]))
    map.access[inputs + 1] = kByPair;
  return map;
}

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
    run_rows<T>(map, rows, F<T, Activation>{Gated<T, Activation>(function, activation)}, stream);
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

// The plan of the sums for so many channels of so many elements each. Where channels do not come
// last, threads lie along the elements of one channel, unless it is too short to fill a block.
template <class T>
Columns divide(int64_t channels, int64_t rows, bool channels_last, SumTasks* tasks) {
  const int64_t vecs = ceil_div(channels, Vec<T>::kSize);
  const int beside = channels_last ? kWarp : kSumThreads / power_of_two_from(rows, kSumThreads);
  Columns shape{};
  shape.width = shape.channels = channels;
  shape.rows = rows, shape.elements = rows * channels;
  shape.tx = power_of_two_from(vecs, std::min(beside, kWarp));
  shape.ty = kSumThreads / shape.tx;
  shape.tiles = ceil_div(vecs, shape.tx);
  cut_rows(shape, tasks);
  return shape;
}

void finish_biases(const GatedCall& call, const double* partials, int64_t chunks,
                   cudaStream_t stream) {
  const int64_t channels = call.data[GatedCall::kA].shape[call.axis];
  for (int k = 0; k < 2; ++k) {
    const NumberVector dbias = vector_of(call.dbias[k]);
    for_dtype(dbias.dtype, [&](auto element) {
      finish_partials<decltype(element)>(partials + k * channels * chunks, channels, chunks,
                                         dbias.data, dbias.stride, call.accumulate, stream);
    });
  }
}

template <class T>
void backward_with_sums(ElementwisePlan* plan, const GatedCall& call, double* partials,
                        cudaStream_t stream) {
  constexpr int kChannel = 3;
  const int64_t channels = call.data[GatedCall::kA].shape[call.axis];
  // The channels' axis, if there are several channels. No other axis counts channels, so it was
  // merged with none.
  int axis = plan->ndim;
  for (int i = 0; i < plan->ndim; ++i)
    if (channels > 1 && plan->strides[kChannel][i] != 0) axis = i;
  const bool channels_last = axis == plan->ndim - 1;
  if (axis == plan->ndim) {
    plan->shape[axis] = 1;
    for (int k = 0; k < plan->operands; ++k) plan->strides[k][axis] = 0;
    ++plan->ndim;
  } else {
    move_last(plan, axis);
  }
  const auto map = map_of<T, 3, 2>(*plan, 1, call.accumulate);
  SumTasks tasks{};
  const Columns shape = divide<T>(channels, map.rows, channels_last, &tasks);
  tasks.coefs = channels, tasks.partials = partials;
  tasks.first = reinterpret_cast<intptr_t>(map.in[kChannel]), tasks.step = map.step[kChannel];
  launch(sums_of_columns<T, GatedSums<T>>, {blocks_for(shape.tiles * tasks.count), kSumThreads},
         stream, GatedSums<T>{map, biases_of(call), Gated<T>(call)}, tasks, shape);
  finish_biases(call, partials, tasks.count, stream);
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
    if (run_gated_rows<GatedRowsForward, T, 2, 1>(call, plan, false, stream)) return;
  }
  const IndexOperand channel = channel_of(call);
  const Operand operands[] = {a, b, channel.operand, y};
  plan_elementwise(&plan, sizeof(T), 4, operands);
  const auto map = map_of<T, 2, 1>(plan, 0, false);
  launch(gated_forward_strided<T>, {ceil_div(map.tasks, kThreads), kThreads}, stream, map,
         biases_of(call), Gated<T>(call));
}

template <class T>
int64_t gated_workspace(const GatedCall& call) {
  const Operand& a = call.data[GatedCall::kA];
  if (!call.dbias[0].shape || is_empty(a)) return 0;
  int64_t rows = 1;
  for (int i = 0; i < a.ndim; ++i)
    if (i != call.axis) rows *= a.shape[i];
  const int64_t channels = a.shape[call.axis];
  SumTasks last{}, other{};
  divide<T>(channels, rows, true, &last);
  divide<T>(channels, rows, false, &other);
  return 2 * channels * std::max(last.count, other.count) * int64_t(sizeof(double));
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
    if (run_gated_rows<GatedRowsBackward, T, 3, 2>(call, plan, call.accumulate, stream)) return;
  }
  const IndexOperand channel = channel_of(call);
  const Operand operands[] = {dy, a, b, channel.operand, da, db};
  const int leader = da.shape ? 4 : db.shape ? 5 : 1;
  plan_elementwise(&plan, sizeof(T), 6, operands, leader);
  if (call.dbias[0].shape)
    return backward_with_sums<T>(&plan, call, static_cast<double*>(workspace), stream);
  const auto map = map_of<T, 3, 2>(plan, 1, call.accumulate);
  launch(gated_backward_strided<T>, {ceil_div(map.tasks, kThreads), kThreads}, stream, map,
         biases_of(call), Gated<T>(call));
}

using Storage = FASTACT_STORAGE;
const NativeFunction<gated_forward<Storage>> forward_call(kGatedForward);
const NativeFunction<gated_workspace<Storage>, gated_backward<Storage>> backward_call(
    kGatedBackward);

FASTACT_END_NAMESPACE
