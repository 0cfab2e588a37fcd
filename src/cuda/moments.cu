// Mean and m2 over any axes: rows, columns, the whole array.
//
// The same walks as of a sum (reductions.cu): the same axes, packs, windows, chunks and tiles, and
// so the same freedom of the result from addresses, from the number of rows and from the device.
// What differs is what a thread keeps (moment_sums.cuh), and that a chunk leaves three numbers,
// mean, m2 and count, which finish_moments merges by Chan's formula, a warp an output.
//
//   moment_rows      a row belongs to 1 to 32 lanes, or to a block; longer ones are cut
//   moment_columns   a block is tx packs of columns by 256 / tx rows, which meet in shared memory
//
// Bytes moved: x once; the parts are below 1 % of it.
//
// In double an element costs a conversion, a subtraction, an addition and an fma. At 4.8 TB/s an
// H200 has 6 instructions in double for an element of 16 bits, and 12 for one of float32, so that
// memory stays what is waited for. Where all lanes of four packs count, none asks whether it does:
// sm_90 takes 8.1 instructions for an element of bfloat16 in aligned rows and 11.1 in misaligned
// ones, where it took 15.1 and 27.8 when each lane chose between its value and 0.
//
// Backward is a map over five operands, of which four repeat themselves along the reduced axes.
#include "map.cuh"
#include "moment_kernels.cuh"
#include "moments.h"
#include "sum_plan.cuh"

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
  if (plan.chunks == 1) return;
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

}  // namespace

template <class T>
int64_t moments_workspace(const Operand& x, const Operand& result, const bool* reduced) {
  if (is_empty(x)) return 0;
  const Reduction plan = plan_reduction(x, result, reduced, sizeof(T));
  const int64_t chunks = plan.inner_reduced ? plan_rows<T>(plan, nullptr).chunks
                                            : plan_columns<T>(plan, nullptr).chunks;
  return chunks > 1 ? kNumbers * plan.outputs() * chunks * int64_t(sizeof(double)) : 0;
}

template <class T>
void moments(const Operand& x, const MomentOutputs& outputs, const bool* reduced, void* workspace,
             cudaStream_t stream) {
  const Operand& model = model_of(outputs);
  const Reduction plan = plan_reduction(x, model, reduced, sizeof(T));
  const int64_t turned = plan.y - model.data;
  const auto data = [&](const Operand& y) { return y.data ? y.data + turned : nullptr; };
  const MomentResults to{data(outputs.mean), data(outputs.low), data(outputs.second),
                         outputs.divisor, outputs.dtype == kF64};
  auto* partials = static_cast<double*>(workspace);
  if (plan.inner_reduced) {
    static constexpr void (*kKernels[3])(RowSums, MomentResults) = {
        moment_rows<kAligned, T>, moment_rows<kDense, T>, moment_rows<kAnyhow, T>};
    const RowSums sums = plan_rows<T>(plan, partials);
    run_moments<T>(sums, to, plan.outputs(), 1, ceil_div(sums.tasks, kThreads / sums.group),
                   kKernels, stream);
  } else {
    static constexpr void (*kKernels[3])(ColumnSums, MomentResults) = {
        moment_columns<kAligned, T>, moment_columns<kDense, T>, moment_columns<kAnyhow, T>};
    const ColumnSums sums = plan_columns<T>(plan, partials);
    run_moments<T>(sums, to, plan.outputs(), plan.inner, sums.kept.size * sums.chunks * sums.tiles,
                   kKernels, stream);
  }
}

template <class T>
void moments_backward(const Operand (&arrays)[6], double share, double scale, bool accumulate,
                      cudaStream_t stream) {
  Walk walk;
  // The map's inputs in the order of MomentsBackward.
  plan_walk(&walk, sizeof(T), 6, arrays);
  MomentsBackward<T> f{};
  f.share = Compute<T>(share);
  f.scale = Compute<T>(scale);
  run_strided<T, 5, true>(walk, accumulate, f, stream);
}

using Storage = FASTACT_STORAGE;
template int64_t moments_workspace<Storage>(const Operand&, const Operand&, const bool*);
template void moments<Storage>(const Operand&, const MomentOutputs&, const bool*, void*,
                               cudaStream_t);
template void moments_backward<Storage>(const Operand (&)[6], double, double, bool, cudaStream_t);

FASTACT_END_NAMESPACE
