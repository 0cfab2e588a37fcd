// Mean and m2 over any axes: rows, columns, the whole array.
//
// Elements are visited as for a sum (reductions.cu): the same axes, vectors, windows, chunks and
// tiles, and so the same independence of addresses, of the number of rows and of the device. What
// differs is what a thread accumulates (shifted_moments.cuh), and that a chunk leaves three
// numbers, mean, m2 and count, which finish_moments merges by Chan's formula, one warp per output.
//
//   moment_rows      a row belongs to 1 to 32 lanes, or to a block; longer ones are cut
//   moment_columns   a block is tx vectors of columns by 256 / tx rows, added in shared memory
//
// Bytes moved: x once; the partial moments are below 1 % of it. In double an element costs a
// conversion, a subtraction, an addition and an fma: docs/design/cuda.md, "Reductions".
//
// Backward is a map over five operands, of which four repeat along the reduced axes. 16-bit data
// have a kernel of their own, moments_backward_narrow: a mean in two 16-bit parts would have 17 or
// 22 bits, so it comes in double instead, without a low part.
#include "cuda/core/elementwise.cuh"
#include "cuda/reductions/moment_kernels.cuh"
#include "cuda/reductions/moments.h"
#include "cuda/reductions/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kNumbers = 3;  // of a part

const Operand& model_of(const MomentOutputs& outputs) {
  return outputs.mean.data ? outputs.mean : outputs.second;
}

// Queues the kernel for an access, and the finishing one where there are parts.
template <class T, class Plan>
void run_moments(const Plan& plan, const MomentResults& to, int64_t outputs, int64_t inner,
                 int64_t blocks, void (*const (&kernels)[3])(Plan, MomentResults),
                 cudaStream_t stream) {
  launch(kernels[plan.access], {std::min(blocks, kMaxBlocks), kThreads}, stream, plan, to);
  if (plan.chunks.count == 1) return;
  const int64_t finishers = std::min(ceil_div(outputs, kThreads / kWarp), kMaxBlocks);
  launch(finish_moments<T>, {finishers, kThreads}, stream, plan, to, outputs, inner);
}

// dx = share dmean + scale dsecond ((x - mean) - low)
template <class T>
struct MomentsBackward : Lanewise<MomentsBackward<T>, T, 5> {
  Compute<T> share, scale;
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[5]) const {
    return madd(scale * in[1], (in[2] - in[3]) - in[4], share * in[0]);
  }
};

// The same of 16-bit data, with the mean in double as the map's last input; dx += with accumulate.
template <class T>
FASTACT_KERNEL(kMapThreads)
void moments_backward_narrow(FASTACT_GRID_CONSTANT const StridedMap<4> map, const float share,
                             const float scale) {
  enum { kDMean, kDSecond, kX, kMean, kDx };
  const int64_t index = int64_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (index >= map.tasks) return;
  int64_t at[kDx + 1];
  if (map.tasks <= int64_t(0xffffffff))
    locate(map, uint32_t(index), at);
  else
    locate(map, index, at);
  T* out = reinterpret_cast<T*>(map.out[0] + at[kDx]);
  const double* mean = reinterpret_cast<const double*>(map.in[kMean] + at[kMean]);
  const auto gradient = [&](float dmean, float dsecond, float x, double of_x) {
    return madd(scale * dsecond, float(double(x) - of_x), share * dmean);
  };
  if (map.task_size == 1) {
    const auto element = [&](int k) {
      return widen(load(reinterpret_cast<const T*>(map.in[k] + at[k])));
    };
    float value = gradient(element(kDMean), element(kDSecond), element(kX), load(mean));
    if (map.accumulate) value = widen(load(out)) + value;
    return store(out, narrow<T>(value));
  }
  Wide<T> in[kMean];
#pragma unroll
  for (int k = 0; k < kMean; ++k) {
    in[k] = widen_vec(load_or_repeat(reinterpret_cast<const T*>(map.in[k] + at[k]),
                                     map.strides[k][map.ndim - 1] == 0));
  }
  const bool is_one = map.strides[kMean][map.ndim - 1] == 0;
  const double first = load(mean);
  Wide<T> before{}, result;
  if (map.accumulate) before = widen_vec(load_vec(out));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    const double of_x = is_one || j == 0 ? first : load(mean + j);
    result.lane[j] = gradient(in[kDMean].lane[j], in[kDSecond].lane[j], in[kX].lane[j], of_x);
    if (map.accumulate) result.lane[j] = before.lane[j] + result.lane[j];
  }
  store_vec(out, narrow_vec<T>(result));
}

}  // namespace

template <class T>
int64_t moments_workspace(const Operand& x, const Operand& result, const bool* reduced) {
  if (is_empty(x)) return 0;
  const Reduction plan = plan_reduction(x, result, reduced, sizeof(T), false);
  const int64_t chunks = plan.inner_reduced ? plan_rows<T>(plan, nullptr).chunks.count
                                            : plan_columns<T>(plan, nullptr).chunks.count;
  return chunks > 1 ? kNumbers * plan.outputs() * chunks * int64_t(sizeof(double)) : 0;
}

template <class T>
void moments(const Operand& x, const MomentOutputs& outputs, const bool* reduced, void* workspace,
             cudaStream_t stream) {
  const Operand& model = model_of(outputs);
  const Reduction plan = plan_reduction(x, model, reduced, sizeof(T), false);
  const int64_t y_offset = plan.y - model.data;
  const auto data = [&](const Operand& y) { return y.data ? y.data + y_offset : nullptr; };
  const MomentResults to{data(outputs.mean), data(outputs.low), data(outputs.second),
                         outputs.divisor, outputs.dtype == kF64};
  auto* partials = static_cast<double*>(workspace);
  if (plan.inner_reduced) {
    static constexpr void (*kKernels[3])(RowSums, MomentResults) = {
        moment_rows<kAligned, T>, moment_rows<kDense, T>, moment_rows<kAnyhow, T>};
    const RowSums sums = plan_rows<T>(plan, partials);
    run_moments<T>(sums, to, plan.outputs(), 1, ceil_div(sums.tasks, kThreads / sums.team),
                   kKernels, stream);
  } else {
    static constexpr void (*kKernels[3])(ColumnSums, MomentResults) = {
        moment_columns<kAligned, T>, moment_columns<kDense, T>, moment_columns<kAnyhow, T>};
    const ColumnSums sums = plan_columns<T>(plan, partials);
    run_moments<T>(sums, to, plan.outputs(), plan.inner,
                   sums.kept.size * sums.chunks.count * sums.tiles, kKernels, stream);
  }
}

template <class T>
void moments_backward(const Operand (&arrays)[6], double share, double scale, bool accumulate,
                      cudaStream_t stream) {
  ElementwisePlan plan;
  if constexpr (sizeof(T) == 2) {
    const Operand without_low[] = {arrays[0], arrays[1], arrays[2], arrays[3], arrays[5]};
    plan_elementwise(&plan, sizeof(T), 5, without_low);
    const auto map = strided_map<T, 4>(plan, accumulate, 3);
    launch(moments_backward_narrow<T>, {ceil_div(map.tasks, kMapThreads), kMapThreads}, stream, map,
           float(share), float(scale));
  } else {
    // The map's inputs in the order of MomentsBackward.
    plan_elementwise(&plan, sizeof(T), 6, arrays);
    MomentsBackward<T> f{};
    f.share = Compute<T>(share);
    f.scale = Compute<T>(scale);
    run_strided<T, 5, true>(plan, accumulate, f, stream);
  }
}

using Storage = FASTACT_STORAGE;
template int64_t moments_workspace<Storage>(const Operand&, const Operand&, const bool*);
template void moments<Storage>(const Operand&, const MomentOutputs&, const bool*, void*,
                               cudaStream_t);
template void moments_backward<Storage>(const Operand (&)[6], double, double, bool, cudaStream_t);

FASTACT_END_NAMESPACE
