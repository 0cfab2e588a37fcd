// batch_norm: z = (x - mean) rstd w + b for each channel, y = f(z), and the gradients.
//
//   forward, training    the moments of each channel (reductions/moments.cu); a small kernel that
//                        makes a channel's coefficients of them (coefficients.cuh), updates the
//                        running statistics and saves mean and rstd; then the map y = f(z)
//                        (apply.cuh)
//   forward, inference   the same without the moments
//   backward             the sums of p = dy f'(z) and of p (x - mean) of each channel
//                        (partial_sums.cuh); a small kernel for dweight, dbias and the coefficients
//                        of dx; then the map dx
//
// Threads: in a map a thread has one or two vectors of each input. In NCHW the coefficients of a
// channel lie together, and come by one or two loads that do not wait for the vector; with channels
// last a thread loads one vector of each coefficient, from the first-level cache (coef_index.cuh).
// In the small kernels a channel is a thread's, in the finishing kernel of backward a warp's.
//
// Bytes moved, for arrays beyond the caches: forward x twice and y once; backward dy and x twice
// and dx once. The coefficients are below 1 %.
//
// Instances: identity, and any other activation through the call of activate.cuh. Why a channel is
// not cached in shared memory between the two reads: docs/design/cuda.md, "batch_norm and channels
// last".
#include "cuda/norms/channels/apply.cuh"
#include "cuda/norms/channels/batch_norm.h"
#include "cuda/norms/channels/partial_sums.cuh"
#include "cuda/reductions/moments.h"

FASTACT_BEGIN_NAMESPACE
namespace {

ChannelArray channels_of(const ChannelOperand& from, int axis) {
  const Operand& a = from.operand;
  if (!a.data) return {nullptr, 0, 0};
  return {a.data, byte_stride(a, a.ndim == 1 ? 0 : axis, item_size(from.dtype)), from.dtype};
}

// A single channel is one segment.
ChannelLayout channel_layout(const Layout& layout) {
  if (layout.channels == 1) return {layout.dense, 1, 1, 1, layout.outer * layout.inner};
  return {layout.dense, 1, layout.channels, layout.outer, layout.inner};
}

// Scratch: mean and variance, or the partial sums of p and p (x - mean); and the coefficients.
template <class T>
struct Scratch {
  double *mean, *var, *partials;
  Coefficients<T> coefs;
};

template <class T>
int64_t doubles_of(const ChannelLayout& layout) {
  return (2 + 2 * most_chunks<T>(layout)) * ceil_div(layout.channels, 2) * 2;
}

// Only the order of x's axes counts here, which determines channels and segments.
template <class T>
ChannelLayout layout_of_x(const Operand& x, int axis) {
  return channel_layout(layout_of(&x, 1, axis, sizeof(T)));
}

template <class T>
Scratch<T> scratch_of(const Operand& x, int axis, const ChannelLayout& layout, void* memory) {
  const ChannelLayout of_x = layout_of_x<T>(x, axis);
  Scratch<T> made{};
  made.mean = static_cast<double*>(memory);
  made.var = made.mean + of_x.channels;
  made.partials = made.mean + 2 * of_x.channels;
  made.coefs.data = reinterpret_cast<Compute<T>*>(made.mean + doubles_of<T>(of_x));
  made.coefs.arrange(of_x.channels, of_x.inner > 1);
  made.coefs.channels = layout.channels;
  made.coefs.inner = layout.inner;
  return made;
}

struct ChannelSources {
  const double *mean, *var;  // IN: of the batch; null: given by `running` and `spread`
  ChannelArray running, spread;
  bool is_rstd;
  double eps, momentum, unbiased;  // unbiased: by which var grows
  ChannelArray weight, bias;
  ChannelArray saved_mean, saved_rstd;  // OUT
  ChannelArray sum_p, sum_p_xhat;       // IN: for the coefficients of dx
  double count;
};

// The coefficients of each channel; one thread per channel.
template <class T>
FASTACT_KERNEL(kThreads)
void make_coefficients(const Coefficients<T> coefs, FASTACT_GRID_CONSTANT const ChannelSources of) {
  const int64_t channel = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= coefs.channels) return;
  double mean, rstd;
  if (of.mean) {
    const double var = load(of.var + channel);
    mean = load(of.mean + channel);
    rstd = 1.0 / __builtin_sqrt(var + of.eps);
    const auto move = [&](const ChannelArray& to, double now) {
      const double before = read_channel(to, channel, 0.0);
      write_channel(to, channel, (1 - of.momentum) * before + of.momentum * now, false);
    };
    move(of.running, mean);
    move(of.spread, var * of.unbiased);
  } else {
    mean = read_channel(of.running, channel, 0.0);
    rstd = read_channel(of.spread, channel, 1.0);
    if (!of.is_rstd) rstd = 1.0 / __builtin_sqrt(rstd + of.eps);
  }
  set_forward_coefs(coefs, channel, mean, rstd, read_channel(of.weight, channel, 1.0),
                    read_channel(of.bias, channel, 0.0));
  write_channel(of.saved_mean, channel, mean, false);
  write_channel(of.saved_rstd, channel, rstd, false);
  if (!of.sum_p.data) return;
  set_backward_coefs(coefs, channel, read_channel(of.sum_p, channel, 0.0) / of.count,
                     read_channel(of.sum_p_xhat, channel, 0.0) / of.count * rstd);
}

template <class T>
void queue_coefficients(const Coefficients<T>& coefs, const ChannelSources& of,
                        cudaStream_t stream) {
  launch(make_coefficients<T>, {ceil_div(coefs.channels, kThreads), kThreads}, stream, coefs, of);
}

// dweight, dbias and the coefficients of dx, from the partial sums; one warp per channel.
template <class T>
FASTACT_KERNEL(kThreads)
void finish_batch_sums(const Coefficients<T> coefs, const double* partials, const int64_t chunks,
                       const double count, const ChannelArray rstd, const ChannelArray dweight,
                       const ChannelArray dbias, const bool accumulate) {
  const int64_t channel = int64_t(blockIdx.x) * (kThreads / kWarp) + int(threadIdx.x) / kWarp;
  if (channel >= coefs.channels) return;  // a whole warp
  const double p = total_of(partials, coefs.channels, chunks, 0, channel);
  const double r = read_channel(rstd, channel, 1.0);
  const double p_xhat = total_of(partials, coefs.channels, chunks, 1, channel) * r;
  if (threadIdx.x % kWarp > 0) return;
  write_channel(dbias, channel, p, accumulate);
  write_channel(dweight, channel, p_xhat, accumulate);
  set_backward_coefs(coefs, channel, p / count, p_xhat * (r / count));
}

// mean and rstd OUT of each channel, from running ones; one thread per channel.
template <class T>
FASTACT_KERNEL(kThreads)
void save_running(const int64_t channels, const ChannelArray mean, const ChannelArray var,
                  const double eps, const ChannelArray saved_mean, const ChannelArray saved_rstd) {
  const int64_t channel = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= channels) return;
  write_channel(saved_mean, channel, read_channel(mean, channel, 0.0), false);
  const double rstd = 1.0 / __builtin_sqrt(read_channel(var, channel, 1.0) + eps);
  write_channel(saved_rstd, channel, rstd, false);
}

struct OfCoef {
  bool axis[kMaxAxes] = {};
  explicit OfCoef(int channel) { axis[channel] = true; }
};

ChosenActivation chosen_activation(int which, const double* parameters) {
  ChosenActivation made{which, {}};
  std::copy(parameters, parameters + kMaxParameters, made.parameters);
  return made;
}

}  // namespace

template <class T>
int64_t batch_norm_scratch(const Operand& x, int axis) {
  if (is_empty(x)) return 0;
  const ChannelLayout layout = layout_of_x<T>(x, axis);
  return doubles_of<T>(layout) * int64_t(sizeof(double)) + Coefficients<T>::bytes(layout.channels);
}

template <class T>
void batch_norm_forward(const BatchForward& call, void* memory, void* workspace,
                        cudaStream_t stream) {
  const int axis = call.axis;
  const Operand arrays[] = {call.x, call.y};
  const ChannelLayout layout = channel_layout(layout_of(arrays, 2, axis, sizeof(T)));
  const Scratch<T> scratch = scratch_of<T>(call.x, axis, layout, memory);
  int64_t count = 1;
  for (int i = 0; i < call.x.ndim; ++i)
    if (i != axis) count *= call.x.shape[i];

  ChannelSources of{};
  of.running = channels_of(call.mean, axis);
  of.spread = channels_of(call.spread, axis);
  of.weight = channels_of(call.weight, axis);
  of.bias = channels_of(call.bias, axis);
  of.saved_mean = channels_of(call.saved_mean, axis);
  of.saved_rstd = channels_of(call.saved_rstd, axis);
  of.is_rstd = call.is_rstd;
  of.eps = call.eps;
  if (call.by_moments) {
    int64_t shape[kMaxAxes], strides[kMaxAxes];
    bool reduced[kMaxAxes];
    for (int i = 0; i < call.x.ndim; ++i) {
      reduced[i] = i != axis;
      shape[i] = reduced[i] ? 1 : call.x.shape[i];
      strides[i] = sizeof(double);
    }
    const auto result = [&](double* data) {
      return Operand{reinterpret_cast<char*>(data), call.x.ndim, shape, strides, 1};
    };
    moments<T>(call.x, {result(scratch.mean), {}, result(scratch.var), kF64, double(count)},
               reduced, workspace, stream);
    of.mean = scratch.mean;
    of.var = scratch.var;
    of.momentum = call.momentum;
    of.unbiased = double(count) / double(count - 1);
  }
  queue_coefficients(scratch.coefs, of, stream);

  const ChosenActivation activation = chosen_activation(call.which, call.parameters);
  const OfCoef of_coef(axis);
  if (call.which == k_identity)
    apply<T, 1, false>(arrays, layout.dense, of_coef.axis, false,
                       NormForward<T, true>{{scratch.coefs, {}, {}, {}}, activation}, stream);
  else
    apply<T, 1, false>(arrays, layout.dense, of_coef.axis, false,
                       NormForward<T, false>{{scratch.coefs, {}, {}, {}}, activation}, stream);
}

template <class T>
void batch_norm_save(const BatchForward& call, cudaStream_t stream) {
  const int64_t channels = call.x.shape[call.axis];
  if (!call.saved_mean.operand.data || channels == 0) return;
  launch(save_running<T>, {ceil_div(channels, kThreads), kThreads}, stream, channels,
         channels_of(call.mean, call.axis), channels_of(call.spread, call.axis), call.eps,
         channels_of(call.saved_mean, call.axis), channels_of(call.saved_rstd, call.axis));
}

template <class T>
void batch_norm_backward(const BatchBackward& call, void* memory, cudaStream_t stream) {
  const int axis = call.axis;
  const bool has_dx = call.dx.data;
  const Operand arrays[] = {call.dy, call.x, has_dx ? call.dx : call.x};
  const ChannelLayout layout = channel_layout(layout_of(arrays, 3, axis, sizeof(T)));
  const Scratch<T> scratch = scratch_of<T>(call.x, axis, layout, memory);
  const ChosenActivation activation = chosen_activation(call.which, call.parameters);
  const bool is_identity = call.which == k_identity;
  const OfCoef of_coef(axis);

  ChannelSources of{};
  of.running = channels_of(call.mean, axis);
  of.spread = channels_of(call.rstd, axis);
  of.is_rstd = true;
  of.weight = channels_of(call.weight, axis);
  of.bias = channels_of(call.bias, axis);
  of.sum_p = channels_of(call.sum_p, axis);
  of.sum_p_xhat = channels_of(call.sum_p_xhat, axis);
  of.count = call.count;
  queue_coefficients(scratch.coefs, of, stream);

  if (!call.sum_p.operand.data &&
      (call.is_training || call.dweight.operand.data || call.dbias.operand.data)) {
    const ChannelLayout of_inputs = channel_layout(layout_of(arrays, 2, axis, sizeof(T)));
    Coefficients<T> coefs = scratch.coefs;
    coefs.inner = of_inputs.inner;
    const int64_t chunks = run_sums<T>(call.dy, call.x, of_inputs, of_coef.axis, coefs, activation,
                                       is_identity, scratch.partials, stream);
    int64_t count = 1;
    for (int i = 0; i < call.x.ndim; ++i)
      if (i != axis) count *= call.x.shape[i];
    launch(finish_batch_sums<T>, {ceil_div(layout.channels, kThreads / kWarp), kThreads}, stream,
           coefs, scratch.partials, chunks, double(count), of.spread,
           channels_of(call.dweight, axis), channels_of(call.dbias, axis), call.accumulate);
  }
  if (!has_dx) return;
  const auto run = [&](auto f) {
    f.coef_index.coefs = scratch.coefs;
    f.activation = activation;
    apply<T, 2, true>(arrays, layout.dense, of_coef.axis, call.accumulate, f, stream);
  };
  if (!call.is_training && is_identity)
    run(NormBackward<T, kGiven, true>{});
  else if (!call.is_training)
    run(NormBackward<T, kGiven, false>{});
  else if (is_identity)
    run(NormBackward<T, kOfChannels, true>{});
  else
    run(NormBackward<T, kOfChannels, false>{});
}

using Storage = FASTACT_STORAGE;
template int64_t batch_norm_scratch<Storage>(const Operand&, int);
template void batch_norm_forward<Storage>(const BatchForward&, void*, void*, cudaStream_t);
template void batch_norm_save<Storage>(const BatchForward&, cudaStream_t);
template void batch_norm_backward<Storage>(const BatchBackward&, void*, cudaStream_t);

FASTACT_END_NAMESPACE
