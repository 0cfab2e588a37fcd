// batch_norm: z = (x - mean) rstd w + b for each channel, y = f(z), and the gradients.
//
//   forward, training    a channel that a block holds in registers: one kernel, which reads x once.
//                        Else the moments of chunks of channels, and a map y = f(z) whose blocks
//                        merge those of their own channels, update the running statistics and save
//                        mean and rstd; between them a kernel that merges where chunks are many
//   forward, inference   the map
//   backward             the same: one kernel, or the sums of p = dy f'(z) and of p (x - mean) of
//                        chunks, and a map that merges them to dweight, dbias and the coefficients
//                        of dx. By given statistics dx is made as the sums are, and the sums are
//                        finished by a small kernel
//
// strips.cuh says which threads have which elements. Bytes moved, for arrays beyond the caches:
// forward x twice and y once, or each once where a block holds a channel; backward dy and x twice
// and dx once, or each once, as by given statistics. Parts are below 1 %.
//
// Instances: identity, and any other activation through the call of activate.cuh. Launches and
// instructions: docs/design/cuda.md, "batch_norm and channels last".
#include "cuda/core/layout.cuh"
#include "cuda/norms/channels/batch_norm.h"
#include "cuda/norms/channels/strip_backward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kChannelThreads = 256;

// Elements of a channel.
int64_t count_of(const Operand& x, int axis) {
  int64_t count = 1;
  for (int i = 0; i < x.ndim; ++i)
    if (i != axis) count *= x.shape[i];
  return count;
}

// Of arrays of which the last is x or has its shape; a single channel is one segment.
template <class T>
StripLayout layout_around(const Operand* arrays, int count, int axis) {
  const Layout of = layout_of(arrays, count, axis, sizeof(T));
  if (of.channels == 1) return {of.dense, 1, 1, 1, of.outer * of.inner};
  return {of.dense, 1, of.channels, of.outer, of.inner};
}

// An array with a number for each channel: along its only axis, or along `axis`.
NumberVector channels_of(const ArrayArgument& a, int axis) {
  if (!a.shape) return {};
  return {a.data, byte_stride(a, a.ndim == 1 ? 0 : axis, item_size(a.dtype)), a.dtype};
}

Pair pair_of(const ArrayArgument& first, const ArrayArgument& second, int axis, int64_t channels) {
  const NumberVector a = channels_of(first, axis), b = channels_of(second, axis);
  Pair pair{a.data, b.data, a.dtype, b.dtype, {}};
  pair.table.count = 1;
  pair.table.length[0] = channels;
  pair.table.stride[0][0] = a.stride, pair.table.stride[1][0] = b.stride;
  return pair;
}

// mean and rstd OUT of each channel, from running ones, or NaN; one thread per channel.
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
         channels, channels_of(call.mean, axis), channels_of(call.spread, axis), call.is_training,
         call.eps, channels_of(call.saved_mean, axis), channels_of(call.saved_rstd, axis));
}

// The sums of nothing.
void set_to_zero(const ArrayArgument& to, const BatchBackward& call, cudaStream_t stream) {
  const NumberVector vector = channels_of(to, call.axis);
  const int64_t channels = call.x.shape[call.axis];
  if (!vector.data || channels == 0 || call.accumulate) return;
  for_dtype(vector.dtype, [&](auto element) {
    finish_partials<decltype(element)>(nullptr, channels, 0, vector.data, vector.stride, false,
                                       stream);
  });
}

}  // namespace

template <class T>
int64_t batch_norm_scratch(const Operand& x, int axis) {
  if (is_empty(x)) return 0;
  return part_bytes<T>(1, x.shape[axis], count_of(x, axis));
}

template <class T>
void batch_norm_forward(const BatchForward& call, void* scratch, cudaStream_t stream) {
  if (is_empty(call.x)) return forward_of_nothing<T>(call, stream);
  const int axis = call.axis;
  const int64_t channels = call.x.shape[axis], count = count_of(call.x, axis);
  const Operand dense[] = {call.x, call.y}, arrays[] = {call.x, {}, call.y};
  ForwardCall made{};
  made.groups = {1, double(count)};
  made.saved = pair_of(call.saved_mean, call.saved_rstd, axis, channels);
  made.parameters = pair_of(call.weight, call.bias, axis, channels);
  made.running = channels_of(call.mean, axis), made.spread = channels_of(call.spread, axis);
  made.is_rstd = call.is_rstd;
  made.eps = call.eps, made.momentum = call.momentum;
  made.unbiased = double(count) / double(count - 1);
  made.activation = chosen_activation(call.which, call.parameters);
  with_strips<T, true>(arrays, layout_around<T>(dense, 2, axis), OneAxis(axis).flag, false,
                       [&](auto way, const auto& s) {
                         queue_forward<T, way()>(s, made, call.is_training,
                                                 static_cast<double*>(scratch), stream);
                       });
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
  made.groups = {1, double(count_of(call.x, axis))};
  made.statistics = pair_of(call.mean, call.rstd, axis, channels);
  made.parameters = pair_of(call.weight, call.bias, axis, channels);
  made.gradients = pair_of(call.dweight, call.dbias, axis, channels);
  made.sum_p = channels_of(call.sum_p, axis), made.sum_p_xhat = channels_of(call.sum_p_xhat, axis);
  made.count = call.count;
  made.of_statistics = call.is_training;
  made.accumulates = call.accumulate;
  made.activation = chosen_activation(call.which, call.parameters);
  if (!call.dx.data && !call.dweight.data && !call.dbias.data) return;
  with_strips<T, true>(arrays, layout_around<T>(dense, 3, axis), OneAxis(axis).flag,
                       call.accumulate, [&](auto way, const auto& s) {
                         queue_backward<T, false, way()>(s, made, static_cast<double*>(scratch),
                                                         stream);
                       });
}

using Storage = FASTACT_STORAGE;
template int64_t batch_norm_scratch<Storage>(const Operand&, int);
template void batch_norm_forward<Storage>(const BatchForward&, void*, cudaStream_t);
template void batch_norm_backward<Storage>(const BatchBackward&, void*, cudaStream_t);

FASTACT_END_NAMESPACE
