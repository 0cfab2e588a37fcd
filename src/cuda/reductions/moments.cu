// Mean and m2 over any axes: rows, columns, the whole array.
//
// Elements are visited as for a sum (reductions.cu): the same axes, vectors, windows, chunks and
// tiles. So bits do not depend on addresses, on the number of rows or on the device either. But a
// thread accumulates sums about a shift (shifted_moments.cuh), and a chunk leaves three numbers,
// mean, m2 and count, which finish_chunks merges about the mean of all.
//
//   reduce_segments, reduce_short_rows, reduce_few_of_row, reduce_rows, reduce_few_rows   the
//                    kernels of sums
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

// Where the results go, so many bytes further on.
MomentResults results_of(const MomentsCall& call, int64_t y_offset) {
  const auto data = [&](MomentsCall::Result k) {
    return call.results[k].data ? call.results[k].data + y_offset : nullptr;
  };
  return {data(MomentsCall::kMean),
          data(MomentsCall::kLow),
          data(MomentsCall::kSecond),
          data(MomentsCall::kCount),
          OfM2(call.of_m2),
          call.correction,
          call.skips,
          call.model().dtype == kF64};
}

}  // namespace

template <class T>
void statistic_backward(const StatisticBackwardCall& call, cudaStream_t stream) {
  const auto& [x, dy, slope, mean, low, dx] = call.arrays;
  const bool accumulate = call.accumulate;
  if (is_empty(x)) return;
  const Compute<T> of_nan = call.skips ? Compute<T>(0) : Compute<T>(__builtin_nanf(""));
  const StatisticGradient<T, true> f{of_nan};
  if (!mean.data)
    run_gradient<T>({dy, slope, x, dx}, accumulate, StatisticGradient<T, false>{of_nan}, stream);
  else if constexpr (kCentre<T> == 1)
    run_gradient<T>({dy, slope, mean, x, dx}, accumulate, f, stream);
  else
    run_gradient<T>({dy, slope, mean, low, x, dx}, accumulate, f, stream);
}

template <class T>
void moments_backward(const MomentsBackwardCall& call, cudaStream_t stream) {
  const auto& [x, mean, low, dmean, dsecond, dx] = call.arrays;
  if (is_empty(x)) return;
  const MomentsGradient<T> f{Compute<T>(call.share), Compute<T>(call.scale)};
  if constexpr (kCentre<T> == 1)
    run_gradient<T>({dmean, dsecond, mean, x, dx}, call.accumulate, f, stream);
  else
    run_gradient<T>({dmean, dsecond, mean, low, x, dx}, call.accumulate, f, stream);
}

namespace {

constexpr int64_t kLongTerms = 256;        // terms of an output that are worth a whole block
constexpr int64_t kWeightedChunk = 16384;  // terms of a chunk, where a block has one output
constexpr int64_t kWeightedRows = 2048;    // the same where it has several

template <class T>
WeightedSums plan_weighted(const MomentsCall& call, double* partials, int64_t* y_offset) {
  enum { kX, kY, kWeights, kWhere, kArrays };
  const ArrayArgument &x = call.x(), &y = call.model();
  const ArrayArgument& weights = call.inputs[MomentsCall::kWeights];
  const ArrayArgument& where = call.inputs[MomentsCall::kWhere];
  const Operand arrays[kArrays] = {x, y, weights, where};
  const int64_t items[kArrays] = {sizeof(T), item_size(y.dtype), item_size(weights.dtype), 1};
  char* data[kArrays] = {x.data, y.data, weights.data, where.data};
  Axis<kArrays> axes[kMaxAxes];
  int count = find_axes(axes, x, kArrays, arrays, items, [&](int i) { return int(call.axes[i]); });
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

template <class T>
int64_t weighted_workspace(const MomentsCall& call) {
  int64_t y_offset;
  const WeightedSums sums = plan_weighted<T>(call, nullptr, &y_offset);
  const int64_t numbers = MomentResults::kNumbers * sums.outputs * sums.chunks.count;
  return sums.chunks.count > 1 ? numbers * int64_t(sizeof(double)) : 0;
}

template <class T>
void weighted_moments(const MomentsCall& call, void* workspace, cudaStream_t stream) {
  int64_t y_offset;
  WeightedSums sums = plan_weighted<T>(call, static_cast<double*>(workspace), &y_offset);
  sums.skips = call.skips;
  const MomentResults to = results_of(call, y_offset);
  launch(weighted_blocks<T>, {blocks_for(sums.tiles * sums.chunks.count), kThreads}, stream, sums,
         to, false);
  if (sums.chunks.count == 1) return;
  Sums chunks{};  // of outputs by all of their axes
  for (int i = 0; i < sums.kept_axes; ++i)
    chunks.kept.append(sums.length[i], 0, sums.stride[WeightedSums::kY][i]);
  chunks.chunks = sums.chunks;
  chunks.partials = sums.partials;
  finish<T>(chunks, to, sums.outputs, 1, stream);
}

// Outputs whose squares left the range of double, anew, of moments that are stored.
template <class T>
void rescale(const MomentsCall& call, cudaStream_t stream) {
  int64_t y_offset;
  WeightedSums sums = plan_weighted<T>(call, nullptr, &y_offset);
  sums.skips = call.skips;
  sums.chunks = {sums.terms, 1};
  launch(weighted_blocks<T>, {blocks_for(sums.tiles), kThreads}, stream, sums,
         results_of(call, y_offset), true);
}

// Whether these depend on the sum of the squares.
bool is_of_squares(OfM2 what) {
  return what == kM2 || what == kSquaresOrRoot || what == kVariance || what == kDeviation ||
         what == kDeviationSlope;
}

}  // namespace

template <class T>
int64_t moments_workspace(const MomentsCall& call) {
  if (call.is_weighted()) return weighted_workspace<T>(call);
  return chunk_bytes<T, MomentResults>(call.x(), call.model(), call.axes);
}

template <class T>
void moments(const MomentsCall& call, void* workspace, cudaStream_t stream) {
  if (call.is_weighted()) return weighted_moments<T>(call, workspace, stream);
  const Operand& model = call.model();
  const Reduction plan = plan_reduction(call.x(), model, call.axes, sizeof(T), false);
  const MomentResults to = results_of(call, plan.y - model.data);
  if (call.skips)
    reduce<T, MomentKernels<T, true>>(plan, to, workspace, false, stream);
  else
    reduce<T, MomentKernels<T, false>>(plan, to, workspace, false, stream);
  if constexpr (sizeof(T) == sizeof(double))
    if (to.second && is_of_squares(to.of_m2)) rescale<T>(call, stream);
}

template <class T>
void weighted_gradient(const WeightedGradientCall& call, cudaStream_t stream) {
  constexpr int kCount = GradientArrays::kCount;
  if (is_empty(call.arrays[0])) return;
  GradientArrays arrays{};
  Operand operands[kCount];
  int64_t items[kCount];
  for (int k = 0; k < kCount; ++k) {
    operands[k] = call.arrays[k];
    arrays.data[k] = operands[k].data;
    arrays.dtypes[k] = call.arrays[k].dtype;
    items[k] = item_size(arrays.dtypes[k]);
  }
  arrays.mean = call.arrays[WeightedGradientCall::kMean].data;
  arrays.of_mean = call.arrays[WeightedGradientCall::kOfMean].data;
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
  arrays.term = call.term, arrays.of_weights = call.of_weights;
  arrays.skips = call.skips, arrays.accumulate = call.accumulate;
  launch(gradient_elements<T>, {blocks_for(ceil_div(arrays.size, kThreads)), kThreads}, stream,
         arrays);
}

using Storage = FASTACT_STORAGE;
template int64_t moments_workspace<Storage>(const MomentsCall&);
template void moments<Storage>(const MomentsCall&, void*, cudaStream_t);
template void moments_backward<Storage>(const MomentsBackwardCall&, cudaStream_t);
template void statistic_backward<Storage>(const StatisticBackwardCall&, cudaStream_t);
template void weighted_gradient<Storage>(const WeightedGradientCall&, cudaStream_t);

FASTACT_END_NAMESPACE
