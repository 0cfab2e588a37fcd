// batch_norm: z = (x - mean) rstd w + b for each channel, y = f(z), and the gradients.
//
//   forward, training    the moments of each channel (reductions/moments.cu); a small kernel that
//                        makes a channel's coefficients of them (coefficients.cuh), updates the
//                        running statistics and saves mean and rstd; then the map y = f(z)
//                        (apply.cuh)
//   forward, inference   the same without the moments
//   backward             the sums of p = dy f'(z) and of p (x - mean) of each channel
//                        (reduction_inputs.cuh); a small kernel for dweight, dbias and the
//                        coefficients of dx; then the map dx
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
#include "cuda/norms/channels/reduction_inputs.cuh"
#include "cuda/reductions/moments.h"

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
  NumberVector running, spread;
  bool is_rstd;
  double eps, momentum, unbiased;  // unbiased: by which var grows
  NumberVector weight, bias;
  NumberVector saved_mean, saved_rstd;  // OUT
  NumberVector sum_p, sum_p_xhat;       // IN: for the coefficients of dx
  double count;
};

// The coefficients of each channel; one thread per channel.
template <class T>
FASTACT_KERNEL(kChannelThreads)
void make_coefficients(const Coefficients<T> coefs, FASTACT_GRID_CONSTANT const ChannelSources of) {
  const int64_t channel = int64_t(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (channel >= coefs.channels) return;
  double mean, rstd;
  if (of.mean) {
    const double var = load(of.var + channel);
    mean = load(of.mean + channel);
    rstd = 1.0 / __builtin_sqrt(var + of.eps);
    const auto move = [&](const NumberVector& to, double now) {
      const double before = number_at(to, channel, 0.0);
      put_number(to, channel, (1 - of.momentum) * before + of.momentum * now);
    };
    move(of.running, mean);
    move(of.spread, var * of.unbiased);
  } else {
    mean = number_at(of.running, channel, 0.0);
    rstd = number_at(of.spread, channel, 1.0);
    if (!of.is_rstd) rstd = 1.0 / __builtin_sqrt(rstd + of.eps);
  }
  set_forward_coefs(coefs, channel, mean, rstd, number_at(of.weight, channel, 1.0),
                    number_at(of.bias, channel, 0.0));
  put_number(of.saved_mean, channel, mean);
  put_number(of.saved_rstd, channel, rstd);
  if (!of.sum_p.data) return;
  set_backward_coefs(coefs, channel, number_at(of.sum_p, channel, 0.0) / of.count,
                     number_at(of.sum_p_xhat, channel, 0.0) / of.count * rstd);
}

template <class T>
void queue_coefficients(const Coefficients<T>& coefs, const ChannelSources& of,
                        cudaStream_t stream) {
  launch(make_coefficients<T>, {ceil_div(coefs.channels, kChannelThreads), kChannelThreads}, stream,
         coefs, of);
}

// dweight, dbias and the coefficients of dx, from the partial sums; one warp per channel.
template <class T>
FASTACT_KERNEL(kChannelThreads)
void finish_batch_sums(const Coefficients<T> coefs, const double* partials, const int64_t chunks,
                       const double count, const NumberVector rstd, const NumberVector dweight,
                       const NumberVector dbias, const bool accumulate) {
  for_each_of_warps(coefs.channels, [&](int64_t channel, int lane, bool idle) {
    if (idle) return;  // a whole warp
    const auto total = [&](int k) {
      return sum_of_partials(partials + (k * coefs.channels + channel) * chunks, chunks);
    };
    const double p = total(0), r = number_at(rstd, channel, 1.0), p_xhat = total(1) * r;
    if (lane > 0) return;
    put_number(dbias, channel, p, accumulate);
    put_number(dweight, channel, p_xhat, accumulate);
    set_backward_coefs(coefs, channel, p / count, p_xhat * (r / count));
  });
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
  const int64_t count = count_of(call.x, axis);

  ChannelSources of{};
  of.running = call.mean;
  of.spread = call.spread;
  of.weight = call.weight;
  of.bias = call.bias;
  of.saved_mean = call.saved_mean;
  of.saved_rstd = call.saved_rstd;
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
    moments<T>(call.x, {result(scratch.mean), {}, result(scratch.var), {}, kF64, kVariance},
               reduced, workspace, stream);
    of.mean = scratch.mean;
    of.var = scratch.var;
    of.momentum = call.momentum;
    of.unbiased = double(count) / double(count - 1);
  }
  queue_coefficients(scratch.coefs, of, stream);

  apply_forward(arrays, layout.dense, OneAxis(axis).flag, scratch.coefs,
                chosen_activation(call.which, call.parameters), stream);
}

template <class T>
void batch_norm_save(const BatchForward& call, cudaStream_t stream) {
  const int64_t channels = call.x.shape[call.axis];
  if (!call.saved_mean.data || channels == 0) return;
  launch(save_of_nothing<T>, {ceil_div(channels, kChannelThreads), kChannelThreads}, stream,
         channels, call.mean, call.spread, call.by_moments, call.eps, call.saved_mean,
         call.saved_rstd);
}

template <class T>
void batch_norm_backward(const BatchBackward& call, void* memory, cudaStream_t stream) {
  const int axis = call.axis;
  const bool has_dx = call.dx.data;
  const Operand arrays[] = {call.dy, call.x, has_dx ? call.dx : call.x};
  const ChannelLayout layout = channel_layout(layout_of(arrays, 3, axis, sizeof(T)));
  const Scratch<T> scratch = scratch_of<T>(call.x, axis, layout, memory);
  const ChosenActivation activation = chosen_activation(call.which, call.parameters);
  const OneAxis of_coef(axis);

  ChannelSources of{};
  of.running = call.mean;
  of.spread = call.rstd;
  of.is_rstd = true;
  of.weight = call.weight;
  of.bias = call.bias;
  of.sum_p = call.sum_p;
  of.sum_p_xhat = call.sum_p_xhat;
  of.count = call.count;
  queue_coefficients(scratch.coefs, of, stream);

  if (!call.sum_p.data && (call.is_training || call.dweight.data || call.dbias.data)) {
    const ChannelLayout of_inputs = channel_layout(layout_of(arrays, 2, axis, sizeof(T)));
    const int64_t chunks = run_norm_sums(call.dy, call.x, of_inputs, of_coef.flag, scratch.coefs,
                                         activation, scratch.partials, stream);
    launch(finish_batch_sums<T>, warps_for(layout.channels, kChannelThreads), stream, scratch.coefs,
           scratch.partials, chunks, double(count_of(call.x, axis)), of.spread, call.dweight,
           call.dbias, call.accumulate);
  }
  if (!has_dx) return;
  const auto apply_dx =
      call.is_training ? apply_backward<T, kOfChannels> : apply_backward<T, kGiven>;
  apply_dx(arrays, layout.dense, of_coef.flag, scratch.coefs, activation, call.accumulate, stream);
}

using Storage = FASTACT_STORAGE;
template int64_t batch_norm_scratch<Storage>(const Operand&, int);
template void batch_norm_forward<Storage>(const BatchForward&, void*, void*, cudaStream_t);
template void batch_norm_save<Storage>(const BatchForward&, cudaStream_t);
template void batch_norm_backward<Storage>(const BatchBackward&, void*, cudaStream_t);

FASTACT_END_NAMESPACE
