// Norms with channels: batch_norm and norm_apply, and group_norm and instance_norm of arrays whose
// channels come last.
//
// batch_norm: z = (x - mean) rstd w + b for each channel, y = f(z), and the gradients.
//
//   forward, training    one kernel, which reads x once, if a block holds a channel in registers.
//                        Else one kernel finds the moments of chunks of channels. The next one maps
//                        y = f(z); its blocks first merge the chunks of their own channels, update
//                        the running statistics and save mean and rstd. Where chunks are many, a
//                        kernel between the two merges them
//   forward, inference   the map alone
//   backward             likewise one kernel. Else one kernel finds the sums of p = dy f'(z) and of
//                        p (x - mean) of chunks, and a map merges them to dweight, dbias and the
//                        coefficients of dx. With given statistics the first kernel writes dx too,
//                        and a small one finishes the sums
//
// strips.cuh says which threads have which elements. Bytes moved, for arrays beyond the caches:
// forward x twice and y once, or each once where a block holds a channel; backward dy and x twice
// and dx once, or each once, as by given statistics. Parts are below 1 %.
//
// Channels last (common/norms/norms.h has the formulas): an example is a matrix of pixels by
// channels. Group by group it would be read in short, scattered segments; so it is read as it lies
// in memory, all groups at once, by the same kernels. They take each channel of each example for a
// channel. Backward, one kernel more adds up dweight and dbias. Parts are 16 bytes for each channel
// of each example and chunk of its pixels.
//
// Instances: identity, and any other activation through the call of activate.cuh. Launches and
// instructions: docs/design/cuda.md, "batch_norm and channels last".
#include "common/norms/channel_call.h"
#include "cuda/core/layout.cuh"
#include "cuda/core/native_function.h"
#include "cuda/norms/channels/channels_last.h"
#include "cuda/norms/channels/strip_backward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kChannelThreads = 256;

// The layout of arrays, the last one x or laid out like x.
template <class T>
StripLayout layout_around(const Operand* arrays, int count, int axis) {
  const Layout of = layout_of(arrays, count, axis, sizeof(T));
  if (of.channels == 1) return {of.dense, 1, 1, 1, of.outer * of.inner};  // one segment
  return {of.dense, 1, of.channels, of.outer, of.inner};
}

Pair pair_of(const ArrayArgument& first, const ArrayArgument& second, int axis, int64_t channels) {
  const NumberVector a = vector_of(first, axis), b = vector_of(second, axis);
  Pair pair{a.data, b.data, a.dtype, b.dtype, {}};
  pair.table.count = 1;
  pair.table.length[0] = channels;
  pair.table.stride[0][0] = a.stride, pair.table.stride[1][0] = b.stride;
  return pair;
}

// Queues a call, forward or backward, over strips of its arrays. of: the call's activation.
template <class T, class Call, class Of>
void run_strips(const Call& call, const Operand (&arrays)[kStripRoles], const StripLayout& layout,
                const bool* counts, bool accumulate, const Of& of, void* workspace,
                cudaStream_t stream) {
  with_strips<T>(arrays, layout, counts, accumulate, [&](auto way, const auto& s) {
    with_norm_activation<T>(of.which, of.parameters, [&](const auto& activation) {
      queue_strips<T, way()>(s, call, activation, static_cast<double*>(workspace), stream);
    });
  });
}

// Writes mean and rstd of each channel: the running ones, or NaN; a thread for each channel.
template <class T>
FASTACT_KERNEL(kChannelThreads)
void save_of_nothing(const int64_t channels, const NumberVector mean, const NumberVector var,
                     const bool by_moments, const double eps, const NumberVector saved_mean,
                     const NumberVector saved_rstd) {
  const int64_t channel = int64_t(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (channel >= channels) return;
  const double nan = __builtin_nan("");
  put_number(saved_mean, channel, by_moments ? nan : number_at(mean, channel, 0.0));
  const double rstd = 1.0 / __builtin_sqrt(number_at(var, channel, 1.0) + eps);
  put_number(saved_rstd, channel, by_moments ? nan : rstd);
}

template <class T>
void forward_of_nothing(const BatchForward& call, cudaStream_t stream) {
  const int axis = call.axis;
  const int64_t channels = call.x.shape[axis];
  if (!call.saved_mean.shape || channels == 0) return;
  launch(save_of_nothing<T>, {ceil_div(channels, kChannelThreads), kChannelThreads}, stream,
         channels, vector_of(call.mean, axis), vector_of(call.spread, axis), call.is_training,
         call.eps, vector_of(call.saved_mean, axis), vector_of(call.saved_rstd, axis));
}

// Sums over no elements.
void set_to_zero(const ArrayArgument& to, const BatchBackward& call, cudaStream_t stream) {
  const NumberVector vector = vector_of(to, call.axis);
  const int64_t channels = call.x.shape[call.axis];
  if (!vector.data || channels == 0 || call.accumulate) return;
  finish_numbers({nullptr, vector, false, channels, 0}, stream);
}

}  // namespace

template <class T, class Call>
int64_t batch_norm_workspace(const Call& call) {
  if (is_empty(call.x)) return 0;
  return part_bytes<T>(1, call.x.shape[call.axis], size_of(call.x) / call.x.shape[call.axis], 1);
}

template <class T>
void batch_norm_forward(const BatchForward& call, void* scratch, cudaStream_t stream) {
  if (is_empty(call.x)) return forward_of_nothing<T>(call, stream);
  const int axis = call.axis;
  const int64_t channels = call.x.shape[axis], count = size_of(call.x) / channels;
  const Operand dense[] = {call.x, call.y}, arrays[] = {call.x, {}, call.y};
  ForwardCall made{};
  made.groups = {Divisor(1, channels), double(count)};
  made.saved = pair_of(call.saved_mean, call.saved_rstd, axis, channels);
  made.parameters = pair_of(call.weight, call.bias, axis, channels);
  made.by_moments = call.is_training;
  made.running = vector_of(call.mean, axis), made.spread = vector_of(call.spread, axis);
  made.is_rstd = call.is_rstd;
  made.eps = call.eps, made.momentum = call.momentum;
  made.unbiased = double(count) / double(count - 1);
  run_strips<T>(made, arrays, layout_around<T>(dense, 2, axis), OneAxis(axis).flag, false, call,
                scratch, stream);
}

template <class T>
void norm_apply(const BatchForward& call, void* scratch, cudaStream_t stream) {
  BatchForward by_rstd = call;
  by_rstd.is_rstd = true;
  batch_norm_forward<T>(by_rstd, scratch, stream);
}

template <class T>
void batch_norm_backward(const BatchBackward& call, void* scratch, cudaStream_t stream) {
  if (is_empty(call.x)) {
    set_to_zero(call.dweight, call, stream);
    return set_to_zero(call.dbias, call, stream);
  }
  const int axis = call.axis;
  const int64_t channels = call.x.shape[axis];
  const Operand dense[] = {call.dy, call.dx.data ? call.dx : call.x, call.x};
  const Operand arrays[] = {call.x, call.dy, call.dx};
  BackwardCall made{};
  made.channels = Divisor(channels, channels);
  made.groups = {Divisor(1, channels), double(size_of(call.x) / channels)};
  made.statistics = pair_of(call.mean, call.rstd, axis, channels);
  made.parameters = pair_of(call.weight, call.bias, axis, channels);
  made.gradients = pair_of(call.dweight, call.dbias, axis, channels);
  made.sum_p = vector_of(call.sum_p, axis), made.sum_p_xhat = vector_of(call.sum_p_xhat, axis);
  made.count = call.count;
  made.of_statistics = call.is_training;
  made.accumulates = call.accumulate;
  if (!call.dx.data && !call.dweight.data && !call.dbias.data) return;
  run_strips<T>(made, arrays, layout_around<T>(dense, 3, axis), OneAxis(axis).flag, call.accumulate,
                call, scratch, stream);
}

namespace {

// The axes of a call by what they are.
struct ColumnShape {
  int64_t examples = 1, groups = 1, group_size = 1, pixels = 1;  // groups: of an example
  bool of_coef[kMaxAxes] = {}, of_pixel[kMaxAxes] = {};
  int64_t channels() const { return groups * group_size; }
};

ColumnShape shape_of(const NormCall& call, const Operand& x) {
  ColumnShape shape;
  for (int i = 0; i < x.ndim; ++i) {
    const int64_t n = x.shape[i];
    shape.of_pixel[i] = call.reduced[i] && !call.of_parameter[i];
    shape.of_coef[i] = !shape.of_pixel[i];
    if (shape.of_pixel[i])
      shape.pixels *= n;
    else if (call.reduced[i])
      shape.group_size *= n;
    else
      (call.of_parameter[i] ? shape.groups : shape.examples) *= n;
  }
  return shape;
}

// Whether arrays lie without gaps in the order example, pixel, channel, channels and
// examples in the order of the coefficient index.
bool is_dense(const Operand* arrays, int count, const ColumnShape& shape, int64_t item) {
  if (!layout_of(arrays, count, 0, item).dense) return false;
  const Operand& last = arrays[count - 1];
  int64_t channel = item;
  // Channels inside pixels inside examples; of either the last axis innermost, as the coefficient
  // index counts.
  for (int i = last.ndim - 1; i >= 0; --i)
    if (last.shape[i] > 1 && shape.of_coef[i]) {
      if (byte_stride(last, i, item) != channel) return false;
      channel *= last.shape[i];
      if (channel == item * shape.channels()) channel *= shape.pixels;
    }
  return true;
}

template <class T>
StripLayout layout_of(const ColumnShape& shape, bool dense) {
  return {dense, shape.examples, shape.channels(), shape.pixels, 1, kExampleRounds<T>};
}

// A pair of arrays with numbers by group, or by channel. counts: the axes that they have.
template <class Counts>
Pair pair_of(const Operand& a, int a_dtype, const Operand& b, int b_dtype, const Operand& x,
             const Counts& counts) {
  const Operand arrays[] = {a, b};
  const int64_t items[] = {item_size(a_dtype), item_size(b_dtype)};
  Axis<2> axes[kMaxAxes];
  int count = 0;
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] == 1 || !counts(i)) continue;
    Axis<2>& axis = axes[count++];
    axis = {x.shape[i], {}, 0};
    for (int k = 0; k < 2; ++k)
      if (arrays[k].data && arrays[k].shape[i] > 1)
        axis.stride[k] = byte_stride(arrays[k], i, items[k]);
  }
  count = merge_axes(axes, count);
  Pair pair{a.data, b.data, a_dtype, b_dtype, {}};
  fill_table(&pair.table, axes, 0, count);
  return pair;
}

template <class T>
Pair statistics_of(const NormCall& call, const Operand& x) {
  constexpr int kType = sizeof(Compute<T>) == 8 ? kF64 : kF32;
  return pair_of(call.mean, kType, call.rstd, kType, x, [&](int i) { return !call.reduced[i]; });
}
// Weight and bias, or their gradients.
Pair parameters_of(const NormCall& call, const Operand& weight, const Operand& bias,
                   const Operand& x) {
  return pair_of(weight, call.weight.dtype, bias, call.bias.dtype, x,
                 [&](int i) { return call.of_parameter[i]; });
}

Groups groups_of(const ColumnShape& shape) {
  return {Divisor(shape.group_size, shape.examples * shape.channels()),
          double(shape.group_size * shape.pixels)};
}

}  // namespace

template <class T>
int64_t norm_columns_workspace(const NormCall& call, int lead) {
  const ColumnShape shape = shape_of(call, call.data[lead]);
  return part_bytes<T>(shape.examples, shape.channels(), shape.pixels, kExampleRounds<T>);
}

template <class T>
void norm_columns_forward(const NormCall& call, void* workspace, cudaStream_t stream) {
  const Operand &x = call.data[NormCall::kX], &y = call.data[NormCall::kY];
  const ColumnShape shape = shape_of(call, x);
  ForwardCall made{};
  made.by_moments = true;
  made.groups = groups_of(shape);
  made.saved = statistics_of<T>(call, x);
  made.parameters = parameters_of(call, call.weight, call.bias, x);
  made.eps = call.eps;
  const Operand dense[] = {x, y}, arrays[] = {x, {}, y};
  run_strips<T>(made, arrays, layout_of<T>(shape, is_dense(dense, 2, shape, sizeof(T))),
                shape.of_coef, false, call, workspace, stream);
}

template <class T>
void norm_columns_backward(const NormCall& call, void* workspace, cudaStream_t stream) {
  const Operand &dy = call.data[NormCall::kDy], &x = call.data[NormCall::kIn],
                &dx = call.data[NormCall::kDx];
  const ColumnShape shape = shape_of(call, x);
  BackwardCall made{};
  made.groups = groups_of(shape);
  made.statistics = statistics_of<T>(call, x);
  made.parameters = parameters_of(call, call.weight, call.bias, x);
  made.gradients = parameters_of(call, call.dweight, call.dbias, x);
  made.channels = Divisor(shape.channels(), shape.examples * shape.channels());
  made.of_groups = made.of_statistics = true;
  made.accumulates = call.accumulate;
  const Operand dense[] = {dy, dx.data ? dx : x, x}, arrays[] = {x, dy, dx};
  run_strips<T>(made, arrays, layout_of<T>(shape, is_dense(dense, 3, shape, sizeof(T))),
                shape.of_coef, call.accumulate, call, workspace, stream);
}

using Storage = FASTACT_STORAGE;
template int64_t norm_columns_workspace<Storage>(const NormCall&, int);
template void norm_columns_forward<Storage>(const NormCall&, void*, cudaStream_t);
template void norm_columns_backward<Storage>(const NormCall&, void*, cudaStream_t);
const NativeFunction<batch_norm_workspace<Storage, BatchForward>, batch_norm_forward<Storage>>
    forward_call(kBatchNormForward);
const NativeFunction<batch_norm_workspace<Storage, BatchForward>, norm_apply<Storage>> apply_call(
    kNormApply);
const NativeFunction<batch_norm_workspace<Storage, BatchBackward>, batch_norm_backward<Storage>>
    backward_call(kBatchNormBackward);

FASTACT_END_NAMESPACE
