// Mean and m2 over any axes: rows, columns, the whole array.
//
// Elements are visited as for a sum (reductions.cu): the same axes, vectors, windows, chunks and
// tiles, and so the same independence of addresses, of the number of rows and of the device. What
// differs is what a thread accumulates (shifted_moments.cuh), and that a chunk leaves three
// numbers, mean, m2 and count, which finish_chunks merges by Chan's formula, one warp per output.
//
//   reduce_rows      a row belongs to 1 to 32 lanes, or to a block; longer ones are cut
//   moment_columns   a block is tx vectors of columns by 256 / tx rows, added in shared memory
//
// Bytes moved: x once; the partial moments are below 1 % of it. In double an element costs a
// conversion, a subtraction, an addition and an fma: docs/design/cuda.md, "Reductions".
//
// Backward is a map over five operands, of which four repeat along the reduced axes. Of 16-bit data
// a mean in two 16-bit parts would have 17 or 22 bits, so it comes in double instead, without a low
// part.
#include "cuda/core/elementwise.cuh"
#include "cuda/reductions/moment_kernels.cuh"
#include "cuda/reductions/moments.h"
#include "cuda/reductions/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

const Operand& model_of(const MomentOutputs& outputs) {
  return outputs.mean.data ? outputs.mean : outputs.second.data ? outputs.second : outputs.count;
}

// dx = share dmean + scale dsecond ((x - mean) - low)
template <class T>
struct MomentsBackward : Lanewise<MomentsBackward<T>, T, 5> {
  Compute<T> share, scale;
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[5]) const {
    return madd(scale * in[1], (in[2] - in[3]) - in[4], share * in[0]);
  }
};

// The same of 16-bit data; the index is the address of the mean, in double. is_one: it is the same
// for all elements of a vector.
template <class T>
struct MomentsBackwardNarrow {
  static constexpr Indexed kIndexed = kIndexedVectors;
  float share, scale;
  bool is_one;

  FASTACT_DEVICE float gradient(float dmean, float dsecond, float x, double mean) const {
    return madd(scale * dsecond, float(double(x) - mean), share * dmean);
  }
  FASTACT_DEVICE float at(const float (&in)[3], int64_t address) const {
    return gradient(in[0], in[1], in[2], load(reinterpret_cast<const double*>(address)));
  }
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[3], int64_t address) const {
    const auto* mean = reinterpret_cast<const double*>(address);
    const double first = load(mean);
    Wide<T> dx;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      dx.lane[j] = gradient(in[0].lane[j], in[1].lane[j], in[2].lane[j],
                            is_one || j == 0 ? first : load(mean + j));
    return dx;
  }
};

// dx = slope dy ((x - mean) - low), or slope dy; of_nan where x is NaN.
template <class T, bool has_mean>
struct StatisticBackward : Lanewise<StatisticBackward<T, has_mean>, T, has_mean ? 5 : 3> {
  Compute<T> of_nan;
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[has_mean ? 5 : 3]) const {
    const Compute<T> product = in[1] * in[0], x = in[2];
    if constexpr (has_mean)
      return x == x ? product * ((x - in[3]) - in[4]) : of_nan;
    else
      return x == x ? product : of_nan;
  }
};

// The same of 16-bit data; the index is the address of the slope, in double, and the mean lies
// `to_mean` bytes on. is_one: they are the same for all elements of a vector.
template <class T, bool has_mean>
struct StatisticBackwardNarrow {
  static constexpr Indexed kIndexed = kIndexedVectors;
  int64_t to_mean;
  float of_nan;
  bool is_one;

  FASTACT_DEVICE float at(const float (&in)[2], int64_t address) const {
    const float x = in[1];
    double product = load(reinterpret_cast<const double*>(address)) * double(in[0]);
    if (has_mean) product *= double(x) - load(reinterpret_cast<const double*>(address + to_mean));
    return x == x ? float(product) : of_nan;
  }
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[2], int64_t address) const {
    Wide<T> dx;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      dx.lane[j] = at({in[0].lane[j], in[1].lane[j]}, is_one ? address : address + 8 * j);
    return dx;
  }
};

template <class T, bool has_mean>
void run_statistic_backward(const Operand (&arrays)[6], bool skips, bool accumulate,
                            cudaStream_t stream) {
  const auto of_nan = skips ? 0.0f : __builtin_nanf("");
  ElementwisePlan plan;
  if constexpr (sizeof(T) == 2) {
    const Operand some[] = {arrays[0], arrays[2], arrays[1], arrays[5]};
    plan_elementwise(&plan, sizeof(T), 4, some);
    const bool is_one = plan.strides[2][plan.ndim - 1] == 0;
    const StatisticBackwardNarrow<T, has_mean> f{has_mean ? arrays[3].data - arrays[1].data : 0,
                                                 of_nan, is_one};
    run_strided<T, 2, true>(plan, accumulate, f, stream);
  } else {
    StatisticBackward<T, has_mean> f{};
    f.of_nan = of_nan;
    if constexpr (has_mean) {
      plan_elementwise(&plan, sizeof(T), 6, arrays);
      run_strided<T, 5, true>(plan, accumulate, f, stream);
    } else {
      const Operand some[] = {arrays[0], arrays[1], arrays[2], arrays[5]};
      plan_elementwise(&plan, sizeof(T), 4, some);
      run_strided<T, 3, true>(plan, accumulate, f, stream);
    }
  }
}

}  // namespace

template <class T>
void statistic_backward(const Operand (&arrays)[6], bool skips, bool accumulate,
                        cudaStream_t stream) {
  if (arrays[3].data)
    run_statistic_backward<T, true>(arrays, skips, accumulate, stream);
  else
    run_statistic_backward<T, false>(arrays, skips, accumulate, stream);
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
  const int64_t y_offset = plan.y - model.data;
  const auto data = [&](const Operand& y) { return y.data ? y.data + y_offset : nullptr; };
  const MomentResults to{data(outputs.mean),  data(outputs.low),    data(outputs.second),
                         data(outputs.count), outputs.of_m2,        outputs.correction,
                         outputs.skips,       outputs.dtype == kF64};
  if (outputs.skips)
    reduce<T, MomentKernels<T, true>>(plan, to, workspace, false, stream);
  else
    reduce<T, MomentKernels<T, false>>(plan, to, workspace, false, stream);
}

template <class T>
void moments_backward(const Operand (&arrays)[6], double share, double scale, bool accumulate,
                      cudaStream_t stream) {
  ElementwisePlan plan;
  if constexpr (sizeof(T) == 2) {
    const Operand without_low[] = {arrays[0], arrays[1], arrays[2], arrays[3], arrays[5]};
    plan_elementwise(&plan, sizeof(T), 5, without_low);
    const bool is_one = plan.strides[3][plan.ndim - 1] == 0;
    const MomentsBackwardNarrow<T> f{float(share), float(scale), is_one};
    run_strided<T, 3, true>(plan, accumulate, f, stream);
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
template void statistic_backward<Storage>(const Operand (&)[6], bool, bool, cudaStream_t);
template void moments_backward<Storage>(const Operand (&)[6], double, double, bool, cudaStream_t);

FASTACT_END_NAMESPACE
