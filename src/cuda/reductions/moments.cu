// Mean and m2 over any axes: rows, columns, the whole array.
//
// Elements are visited as for a sum (reductions.cu): the same axes, vectors, windows, chunks and
// tiles, and so the same independence of addresses, of the number of rows and of the device. What
// differs is what a thread accumulates (shifted_moments.cuh), and that a chunk leaves three
// numbers, mean, m2 and count, which finish_chunks merges about the mean of all.
//
//   reduce_segments, reduce_short_rows, reduce_rows, reduce_few_rows   as they are of sums
//   moment_columns   a block is tx vectors of columns by 256 / tx rows, added in shared memory
//   weighted_moments elements that are weighted or masked, by any strides (weighted_kernels.cuh)
//
// Bytes moved: x once; the partial moments are below 1 % of it. In double an element costs a
// conversion, a subtraction, an addition and an fma: docs/design/cuda.md, "Reductions".
//
// Backward (gradients.cuh) takes a mean in two parts, of 16-bit data in double: two parts of 16
// bits would have 17 or 22 of them.
#include "cuda/reductions/gradients.cuh"
#include "cuda/reductions/moment_kernels.cuh"
#include "cuda/reductions/moments.h"
#include "cuda/reductions/plan.cuh"
#include "cuda/reductions/weighted_kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

const Operand& model_of(const MomentOutputs& outputs) {
  return outputs.mean.data ? outputs.mean : outputs.second.data ? outputs.second : outputs.count;
}

// Where they go, so many bytes on.
MomentResults results_of(const MomentOutputs& outputs, int64_t y_offset) {
  const auto data = [&](const Operand& y) { return y.data ? y.data + y_offset : nullptr; };
  return {data(outputs.mean), data(outputs.low),  data(outputs.second), data(outputs.count),
          outputs.of_m2,      outputs.correction, outputs.skips,        outputs.dtype == kF64};
}

}  // namespace

template <class T>
void statistic_backward(const Operand (&arrays)[6], bool skips, bool accumulate,
                        cudaStream_t stream) {
  const auto& [dy, slope, x, mean, low, dx] = arrays;
  const Compute<T> of_nan = skips ? Compute<T>(0) : Compute<T>(__builtin_nanf(""));
  const StatisticGradient<T, true> f{of_nan};
  if (!mean.data)
    run_gradient<T>({dy, slope, x, dx}, accumulate, StatisticGradient<T, false>{of_nan}, stream);
  else if constexpr (kCentre<T> == 1)
    run_gradient<T>({dy, slope, mean, x, dx}, accumulate, f, stream);
  else
    run_gradient<T>({dy, slope, mean, low, x, dx}, accumulate, f, stream);
}

template <class T>
int64_t moments_workspace(const Operand& x, const Operand& result, const bool* reduced) {
  return is_empty(x) ? 0 : chunk_bytes<T, MomentResults>(x, result, reduced);
}

template <class T>
void moments(const Operand& x, const MomentOutputs& outputs, const bool* reduced, void* workspace,
             cudaStream_t stream) {
  const Operand& model = model_of(outputs);
  const Reduction plan = plan_reduction(x, model, reduced, sizeof(T), false);
  const MomentResults to = results_of(outputs, plan.y - model.data);
  if (outputs.skips)
    reduce<T, MomentKernels<T, true>>(plan, to, workspace, false, stream);
  else
    reduce<T, MomentKernels<T, false>>(plan, to, workspace, false, stream);
}

template <class T>
void moments_backward(const Operand (&arrays)[6], double share, double scale, bool accumulate,
                      cudaStream_t stream) {
  const auto& [dmean, dsecond, x, mean, low, dx] = arrays;
  const MomentsGradient<T> f{Compute<T>(share), Compute<T>(scale)};
  if constexpr (kCentre<T> == 1)
    run_gradient<T>({dmean, dsecond, mean, x, dx}, accumulate, f, stream);
  else
    run_gradient<T>({dmean, dsecond, mean, low, x, dx}, accumulate, f, stream);
}

namespace {

constexpr int64_t kLongTerms = 256;        // worth all threads of a block
constexpr int64_t kWeightedChunk = 16384;  // terms of a block, of one output
constexpr int64_t kWeightedRows = 2048;    // or of several

template <class T>
WeightedSums plan_weighted(const Operand& x, const Weights& weights, const Operand& y, int y_dtype,
                           const bool* reduced, double* partials, int64_t* y_offset) {
  enum { kX, kY, kWeights, kWhere, kArrays };
  const Operand arrays[kArrays] = {x, y, weights.weights, weights.where};
  const int64_t items[kArrays] = {sizeof(T), item_size(y_dtype), item_size(weights.dtype), 1};
  char* data[kArrays] = {x.data, y.data, weights.weights.data, weights.where.data};
  Axis<kArrays> axes[kMaxAxes];
  int count = find_axes(axes, x, kArrays, arrays, items, [&](int i) { return int(reduced[i]); });
  sort_axes(axes, count, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  int kept = 0;
  for (; kept < count && !axes[kept].kind; ++kept)
    if (axes[kept].stride[kX] < 0) reverse_axis(&axes[kept], kArrays, data);
  order_axes(axes, kept, kX);
  order_axes(axes + kept, count - kept, kX);
  count = merge_axes(axes, count);

  WeightedSums sums{};
  sums.axes = count;
  sums.outputs = sums.terms = 1;
  int64_t step[2] = {};  // of the innermost output, and of the innermost term
  for (int i = 0; i < count; ++i) {
    const Axis<kArrays>& axis = axes[i];
    sums.kept_axes += !axis.kind;
    (axis.kind ? sums.terms : sums.outputs) *= sums.length[i] = axis.length;
    for (int k = 0; k < kArrays; ++k) sums.stride[k][i] = axis.stride[k];
    step[axis.kind] = std::abs(axis.stride[kX]);
  }
  *y_offset = data[kY] - y.data;
  sums.x = data[kX], sums.weights = data[kWeights], sums.where = data[kWhere];
  sums.weights_dtype = weights.dtype;
  sums.partials = partials;
  const bool is_by_output = sums.terms >= kLongTerms && (sums.outputs == 1 || step[1] <= step[0]);
  sums.tx = is_by_output ? 1 : power_of_two_from(sums.outputs, kWarp);
  sums.ty = kThreads / sums.tx;
  sums.tiles = ceil_div(sums.outputs, sums.tx);
  cut(&sums.chunks, sums.terms, is_by_output ? kWeightedChunk : kWeightedRows);
  return sums;
}

}  // namespace

template <class T>
int64_t weighted_workspace(const Operand& x, const Weights& weights, const Operand& result,
                           const bool* reduced) {
  if (is_empty(x)) return 0;
  int64_t y_offset;
  const WeightedSums sums = plan_weighted<T>(x, weights, result, kF64, reduced, nullptr, &y_offset);
  const int64_t numbers = MomentResults::kNumbers * sums.outputs * sums.chunks.count;
  return sums.chunks.count > 1 ? numbers * int64_t(sizeof(double)) : 0;
}

template <class T>
void weighted_moments(const Operand& x, const Weights& weights, const MomentOutputs& outputs,
                      const bool* reduced, void* workspace, cudaStream_t stream) {
  int64_t y_offset;
  WeightedSums sums = plan_weighted<T>(x, weights, model_of(outputs), outputs.dtype, reduced,
                                       static_cast<double*>(workspace), &y_offset);
  sums.skips = outputs.skips;
  const MomentResults to = results_of(outputs, y_offset);
  launch(weighted_blocks<T>, {blocks_for(sums.tiles * sums.chunks.count), kThreads}, stream, sums,
         to);
  if (sums.chunks.count == 1) return;
  Sums chunks{};  // of outputs by all of their axes
  for (int i = 0; i < sums.kept_axes; ++i)
    chunks.kept.append(sums.length[i], 0, sums.stride[WeightedSums::kY][i]);
  chunks.chunks = sums.chunks;
  chunks.partials = sums.partials;
  finish<T>(chunks, to, sums.outputs, 1, stream);
}

template <class T>
void weighted_gradient(const WeightedArrays& operands, const int (&dtypes)[7], bool of_weights,
                       bool skips, bool accumulate, cudaStream_t stream) {
  constexpr int kCount = GradientArrays::kCount;
  GradientArrays arrays{};
  int64_t items[kCount];
  for (int k = 0; k < kCount; ++k) {
    arrays.data[k] = operands[k].data;
    arrays.dtypes[k] = dtypes[k];
    items[k] = item_size(dtypes[k]);
  }
  arrays.mean = operands[kCount].data;
  Axis<kCount> axes[kMaxAxes];
  int count = find_axes(axes, operands[0], kCount, operands, items, [](int) { return 0; });
  order_axes(axes, count, 0);
  count = merge_axes(axes, count);
  arrays.axes = count;
  arrays.size = 1;
  for (int i = 0; i < count; ++i) {
    arrays.size *= arrays.length[i] = axes[i].length;
    for (int k = 0; k < kCount; ++k) arrays.stride[k][i] = axes[i].stride[k];
  }
  arrays.of_weights = of_weights, arrays.skips = skips, arrays.accumulate = accumulate;
  launch(gradient_elements<T>, {blocks_for(ceil_div(arrays.size, kThreads)), kThreads}, stream,
         arrays);
}

using Storage = FASTACT_STORAGE;
template int64_t moments_workspace<Storage>(const Operand&, const Operand&, const bool*);
template void moments<Storage>(const Operand&, const MomentOutputs&, const bool*, void*,
                               cudaStream_t);
template void statistic_backward<Storage>(const Operand (&)[6], bool, bool, cudaStream_t);
template int64_t weighted_workspace<Storage>(const Operand&, const Weights&, const Operand&,
                                             const bool*);
template void weighted_moments<Storage>(const Operand&, const Weights&, const MomentOutputs&,
                                        const bool*, void*, cudaStream_t);
template void weighted_gradient<Storage>(const WeightedArrays&, const int (&)[7], bool, bool, bool,
                                         cudaStream_t);
template void moments_backward<Storage>(const Operand (&)[6], double, double, bool, cudaStream_t);

FASTACT_END_NAMESPACE
