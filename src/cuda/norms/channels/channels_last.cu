// group_norm and instance_norm of arrays whose channels come last (common/norms/norms.h has the
// formulas).
//
// An example is a matrix of pixels by channels. Group by group it would be read in short, scattered
// segments; so it is read as it lies in memory, all groups at once, by the kernels of batch_norm,
// with a channel of one example in place of a channel (coefficients.cuh):
//
//   forward    the moments of each channel of each example (reductions/moments.cu); one warp per
//              group merges them and makes the coefficients; then the map y = f(z)
//   backward   the sums of p = dy f'(z) and of p (x - mean) of each channel of each example
//              (reduction_inputs.cuh); from them the means of g and g xhat of each group; their
//              sums over the examples (reductions/reductions.cu), which are dweight and dbias; then
//              the map dx
//
// Arrays that are not dense in the order example, pixel, channel go element by element.
//
// Bytes moved: forward x twice and y once; backward dy and x twice and dx once. Besides, for each
// channel of each example, 32 bytes of coefficients (64 for float64) and 16 to 24 bytes for each
// chunk of its pixels: below 1 % with thousands of pixels, as much as x with eight.
#include "cuda/norms/channels/apply.cuh"
#include "cuda/norms/channels/channels_last.h"
#include "cuda/norms/channels/channels_last_rows.cuh"
#include "cuda/norms/channels/reduction_inputs.cuh"
#include "cuda/reductions/moments.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The axes of a call by what they are.
struct ColumnShape {
  int64_t examples = 1, groups = 1, group_size = 1, pixels = 1;  // groups: of an example
  bool of_coef[kMaxAxes] = {}, of_pixel[kMaxAxes] = {};
  int64_t channels() const { return groups * group_size; }
  int64_t coefs() const { return examples * channels(); }
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
  const Operand& last = arrays[count - 1];
  int64_t channel = item;
  for (int i = last.ndim - 1; i >= 0; --i) {
    if (last.shape[i] == 1) continue;
    const int64_t stride = byte_stride(last, i, item);
    if (stride <= 0) return false;
    int64_t inside = item;
    for (int k = 0; k < last.ndim; ++k)
      if (last.shape[k] != 1 && byte_stride(last, k, item) < stride) inside *= last.shape[k];
    for (int k = 0; k < count; ++k)
      if (byte_stride(arrays[k], i, item) != inside) return false;
  }
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
Coefficients<T> coefs_at(void* memory, const ColumnShape& shape) {
  Coefficients<T> coefs{};
  coefs.data = static_cast<Compute<T>*>(memory);
  coefs.arrange(shape.coefs(), false);
  coefs.channels = shape.channels();
  coefs.inner = 1;
  coefs.example = shape.channels() * shape.pixels;
  return coefs;
}

ChannelLayout layout_of(const ColumnShape& shape, bool dense) {
  return {dense, shape.examples, shape.channels(), shape.pixels, 1};
}

// The moments of each channel of each example, as arrays of double with x's axes.
struct ChannelMoments {
  int64_t shape[kMaxAxes], strides[kMaxAxes];
  ChannelMoments(const Operand& x, const ColumnShape& of) {
    const IndexOperand coefs(x, of.of_coef);
    for (int i = 0; i < x.ndim; ++i) {
      shape[i] = of.of_coef[i] ? x.shape[i] : 1;
      strides[i] = coefs.stride[i] * int64_t(sizeof(double));
    }
  }
  Operand of(void* data, int ndim) const {
    return {static_cast<char*>(data), ndim, shape, strides, 1};
  }
};

int64_t padded(int64_t bytes) { return ceil_div(bytes, kVecBytes) * kVecBytes; }

Pair pair_of(const Operand& a, int a_dtype, const Operand& b, int b_dtype, const Operand& x,
             const bool* reduced, const bool* of_parameter, bool by_group) {
  Pair pair{{a.data, 1, a_dtype}, {b.data, 1, b_dtype}, {}};
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] == 1 || !(by_group ? !reduced[i] : of_parameter[i])) continue;
    const auto stride = [&](const Operand& of, int dtype) {
      return of.data && of.shape[i] > 1 ? byte_stride(of, i, item_size(dtype)) : 0;
    };
    pair.axes.append(x.shape[i], stride(a, a_dtype), stride(b, b_dtype));
  }
  return pair;
}

Groups groups_of(const ColumnShape& shape, double eps) {
  return {shape.examples * shape.groups, shape.group_size, shape.channels(), shape.pixels, eps};
}

template <class T>
constexpr int kComputeType = sizeof(Compute<T>) == 8 ? kF64 : kF32;

Pair statistics_of(const NormCall& call, const Operand& x, int dtype) {
  return pair_of(call.mean, dtype, call.rstd, dtype, x, call.reduced, call.of_parameter, true);
}
Pair parameters_of(const NormCall& call, const Operand& x) {
  return pair_of(call.weight, call.weight_dtype, call.bias, call.bias_dtype, x, call.reduced,
                 call.of_parameter, false);
}

// The sums of backward, one behind the other in scratch memory:
//
//   [p, p xhat][examples][channels]   totals, of each channel of each example
//   [p, p xhat][channels]             of each channel over the examples
//   partial sums                      of whichever of the two is being added up
struct BackwardSums {
  int64_t shape[3], shape_of_channels[3];

  explicit BackwardSums(const ColumnShape& of)
      : shape{2, of.examples, of.channels()}, shape_of_channels{2, 1, of.channels()} {}

  int64_t count() const { return 2 * shape[1] * shape[2]; }
  double* of_channels(double* totals) const { return totals + count(); }
  double* partials(double* totals) const { return of_channels(totals) + 2 * shape[2]; }
  // most_chunks: of a channel of an example.
  int64_t bytes(int64_t most_chunks) const {
    const int64_t over_examples = sum_workspace<double>(
        kItself, operand(nullptr, shape), operand(nullptr, shape_of_channels), kExamples);
    return (count() + 2 * shape[2]) * kItem +
           std::max(count() * most_chunks * kItem, over_examples);
  }
  void add_examples(double* totals, cudaStream_t stream) const {
    sum<double>(kItself, operand(totals, shape), operand(of_channels(totals), shape_of_channels),
                kExamples, 1.0, partials(totals), false, stream);
  }

 private:
  static constexpr int64_t kItem = sizeof(double);
  static constexpr bool kExamples[] = {false, true, false};
  static Operand operand(double* data, const int64_t (&shape)[3]) {
    return {reinterpret_cast<char*>(data), 3, shape, nullptr, kItem};
  }
};

int64_t group_blocks(const Groups& groups) { return ceil_div(groups.count, kGroupThreads / kWarp); }

}  // namespace

template <class T>
int64_t norm_columns_forward_workspace(const NormCall& call) {
  const Operand& x = call.data[NormCall::kX];
  const ColumnShape shape = shape_of(call, x);
  const ChannelMoments results(x, shape);
  return Coefficients<T>::bytes(shape.coefs()) +
         padded(2 * shape.coefs() * int64_t(sizeof(double))) +
         moments_workspace<T>(x, results.of(nullptr, x.ndim), shape.of_pixel);
}

template <class T>
void norm_columns_forward(const NormCall& call, void* workspace, cudaStream_t stream) {
  const Operand &x = call.data[NormCall::kX], &y = call.data[NormCall::kY];
  const ColumnShape shape = shape_of(call, x);
  const Coefficients<T> coefs = coefs_at<T>(workspace, shape);
  auto* mean = reinterpret_cast<double*>(static_cast<char*>(workspace) +
                                         Coefficients<T>::bytes(shape.coefs()));
  double* m2 = mean + shape.coefs();
  char* rest = reinterpret_cast<char*>(mean) + padded(2 * shape.coefs() * int64_t(sizeof(double)));

  const ChannelMoments results(x, shape);
  moments<T>(x, {results.of(mean, x.ndim), {}, results.of(m2, x.ndim), {}, kF64, kM2},
             shape.of_pixel, rest, stream);
  const Groups groups = groups_of(shape, call.eps);
  launch(group_statistics<T>, {group_blocks(groups), kGroupThreads}, stream, coefs, mean, m2,
         groups, statistics_of(call, x, kComputeType<T>), parameters_of(call, x));

  const Operand arrays[] = {x, y};
  apply_forward(arrays, is_dense(arrays, 2, shape, sizeof(T)), shape.of_coef, coefs,
                chosen_activation(call.which, call.parameters), stream);
}

template <class T>
int64_t norm_columns_backward_workspace(const NormCall& call) {
  const ColumnShape shape = shape_of(call, call.data[NormCall::kIn]);
  const int64_t chunks = most_chunks<T>(layout_of(shape, false));
  return Coefficients<T>::bytes(shape.coefs()) + BackwardSums(shape).bytes(chunks);
}

template <class T>
void norm_columns_backward(const NormCall& call, void* workspace, cudaStream_t stream) {
  const Operand &dy = call.data[NormCall::kDy], &x = call.data[NormCall::kIn],
                &dx = call.data[NormCall::kDx];
  const ColumnShape shape = shape_of(call, x);
  const Coefficients<T> coefs = coefs_at<T>(workspace, shape);
  const BackwardSums sums(shape);
  auto* totals = reinterpret_cast<double*>(static_cast<char*>(workspace) +
                                           Coefficients<T>::bytes(shape.coefs()));
  double* partials = sums.partials(totals);
  const Groups groups = groups_of(shape, 0);
  launch(read_statistics<T>, {ceil_div(shape.coefs(), kGroupThreads), kGroupThreads}, stream, coefs,
         groups, statistics_of(call, x, kComputeType<T>), parameters_of(call, x));

  const Operand arrays[] = {dy, x, dx.data ? dx : x};
  const ChosenActivation activation = chosen_activation(call.which, call.parameters);
  const int64_t chunks =
      run_norm_sums<T, false>(dy, x, layout_of(shape, is_dense(arrays, 2, shape, sizeof(T))),
                              shape.of_coef, coefs, activation, partials, stream);
  if (chunks > 1)
    finish_partials<double>(partials, sums.count(), chunks, reinterpret_cast<char*>(totals),
                            sizeof(double), false, stream);
  launch(finish_groups<T>, {group_blocks(groups), kGroupThreads}, stream, coefs,
         chunks > 1 ? totals : partials, totals, groups);
  if (call.dweight.data || call.dbias.data) {
    sums.add_examples(totals, stream);
    launch(put_parameters<T>, {ceil_div(groups.channels, kGroupThreads), kGroupThreads}, stream,
           sums.of_channels(totals), groups.channels,
           pair_of(call.dweight, call.weight_dtype, call.dbias, call.bias_dtype, x, call.reduced,
                   call.of_parameter, false),
           call.accumulate);
  }
  if (!dx.data) return;
  apply_backward<T, kOfGroups>(arrays, is_dense(arrays, 3, shape, sizeof(T)), shape.of_coef, coefs,
                               activation, call.accumulate, stream);
}

using Storage = FASTACT_STORAGE;
template int64_t norm_columns_forward_workspace<Storage>(const NormCall&);
template void norm_columns_forward<Storage>(const NormCall&, void*, cudaStream_t);
template int64_t norm_columns_backward_workspace<Storage>(const NormCall&);
template void norm_columns_backward<Storage>(const NormCall&, void*, cudaStream_t);

FASTACT_END_NAMESPACE
