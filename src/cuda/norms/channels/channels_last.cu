// group_norm and instance_norm of arrays whose channels come last (common/norms/norms.h has the
// formulas).
//
// An example is a matrix of pixels by channels. Group by group it would be read in short, scattered
// segments; so it is read as it lies in memory, all groups at once, by the kernels of batch_norm
// (strips.cuh), with a channel of one example in place of a channel:
//
//   forward    the moments of chunks of each channel of each example; then the map y = f(z), whose
//              blocks merge those of the groups of their own channels
//   backward   the sums of p = dy f'(z) and of p (x - mean) of the same; then the map dx, whose
//              blocks merge them, and a kernel for dweight and dbias, a warp a channel
//
// Bytes moved: forward x twice and y once; backward dy and x twice and dx once. Besides, for each
// channel of each example, 16 bytes for each chunk of its pixels, written once and read by each of
// its chunks' blocks, or else merged apart.
#include "cuda/norms/channels/channels_last.h"
#include "cuda/norms/channels/strip_backward.cuh"

FASTACT_BEGIN_NAMESPACE
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

StripLayout layout_of(const ColumnShape& shape, bool dense) {
  return {dense, shape.examples, shape.channels(), shape.pixels, 1};
}

// Of arrays by group, or by channel. counts: the axes that they have.
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
// Or of their gradients.
Pair parameters_of(const NormCall& call, const Operand& weight, const Operand& bias,
                   const Operand& x) {
  return pair_of(weight, call.weight.dtype, bias, call.bias.dtype, x,
                 [&](int i) { return call.of_parameter[i]; });
}

Groups groups_of(const ColumnShape& shape) {
  return {shape.group_size, double(shape.group_size * shape.pixels)};
}

template <class T>
int64_t workspace_for(const ColumnShape& shape) {
  return part_bytes<T>(shape.examples, shape.channels(), shape.pixels);
}

}  // namespace

template <class T>
int64_t norm_columns_forward_workspace(const NormCall& call) {
  return workspace_for<T>(shape_of(call, call.data[NormCall::kX]));
}

template <class T>
void norm_columns_forward(const NormCall& call, void* workspace, cudaStream_t stream) {
  const Operand &x = call.data[NormCall::kX], &y = call.data[NormCall::kY];
  const ColumnShape shape = shape_of(call, x);
  ForwardCall made{};
  made.groups = groups_of(shape);
  made.saved = statistics_of<T>(call, x);
  made.parameters = parameters_of(call, call.weight, call.bias, x);
  made.eps = call.eps;
  made.activation = chosen_activation(call.which, call.parameters);
  const Operand dense[] = {x, y}, arrays[] = {x, {}, y};
  with_strips<T, false>(arrays, layout_of(shape, is_dense(dense, 2, shape, sizeof(T))),
                        shape.of_coef, false, [&](auto way, const auto& s) {
                          queue_forward<T, way()>(s, made, true, static_cast<double*>(workspace),
                                                  stream);
                        });
}

template <class T>
int64_t norm_columns_backward_workspace(const NormCall& call) {
  return workspace_for<T>(shape_of(call, call.data[NormCall::kIn]));
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
  made.of_statistics = true;
  made.accumulates = call.accumulate;
  made.activation = chosen_activation(call.which, call.parameters);
  const Operand dense[] = {dy, dx.data ? dx : x, x}, arrays[] = {x, dy, dx};
  with_strips<T, false>(arrays, layout_of(shape, is_dense(dense, 3, shape, sizeof(T))),
                        shape.of_coef, call.accumulate, [&](auto way, const auto& s) {
                          queue_backward<T, true, way()>(s, made, static_cast<double*>(workspace),
                                                         stream);
                        });
}

using Storage = FASTACT_STORAGE;
template int64_t norm_columns_forward_workspace<Storage>(const NormCall&);
template void norm_columns_forward<Storage>(const NormCall&, void*, cudaStream_t);
template int64_t norm_columns_backward_workspace<Storage>(const NormCall&);
template void norm_columns_backward<Storage>(const NormCall&, void*, cudaStream_t);

FASTACT_END_NAMESPACE
