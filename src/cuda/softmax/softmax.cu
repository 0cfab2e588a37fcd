// softmax, log_softmax and logsumexp over any axes.
//
// plan.cuh sorts the axes into rows and the elements of a row; core/rows.cuh says how the kernels
// take rows, and statistic.cuh what they find out about each. Forward, three passes over one row:
//   1. read x, m = max(z); z is cached in shared memory (of unmasked 16-bit data x)
//   2. the terms exp(z - m) from the cache, and their sum; of wide data they take z's place
//   3. y = term / sum, or z - m - log(sum)
// Rows of more than kSoftmaxSplit vectors are cut into chunks, one block each: peaks of the chunks,
// one kernel that merges them, then y.
//
//   Bytes moved: x (mask) and y once; of rows in chunks x twice, but for logsumexp.
//
// Columns: where the elements of a row are a step apart and neighbouring rows touch, a thread has a
// vector of neighbouring rows and goes down their elements; up to 32 threads share them. The sums
// are taken in another order than those of rows, so the same values in another layout may differ in
// the last bit.
//
// Backward: dy and y are read once, cached, and dx follows from their sum. Columns and chunks as
// above; rows in chunks read dy and y twice. logsumexp: element by element, from lse.
#include "cuda/softmax/backward.cuh"
#include "cuda/softmax/forward.cuh"

FASTACT_BEGIN_NAMESPACE
template <class T>
int64_t softmax_workspace(const SoftmaxCall& call) {
  // Chunks depend on the length alone, whatever the other arrays are.
  const SoftmaxPlan plan = plan_softmax<T>(call);
  const int64_t vecs = ceil_div(plan.rows.length, Vec<T>::kSize);
  if (vecs <= kSoftmaxSplit) return 0;
  const int64_t chunks = ceil_div(vecs, kSoftmaxChunk);
  return plan.rows.count * (chunks * kPeakFields + kLevelFields) * int64_t(sizeof(double));
}

template <class T>
void softmax_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  SoftmaxPlan plan = plan_softmax<T>(call);
  stay_in_range<T>(&plan.rows);
  with_constant(call.arrays[kMask].data, [&](auto is_masked) {
    constexpr bool kMasked = decltype(is_masked)::value;
    constexpr int kSlots = kCacheSlots<T, kMasked>;
    for_layout(plan, [&](auto rows, Shape shape) {
      using Rows = decltype(rows);
      if constexpr (!Rows::kColumns) {
        if (plan.chunks.count > 1) {
          SoftmaxChunks chunks{plan.chunks, static_cast<double*>(workspace), nullptr};
          chunks.levels = chunks.peaks + rows.count * chunks.count * kPeakFields;
          shape.blocks = blocks_for(rows.count * chunks.count);
          launch_softmax(softmax_peaks<T, kMasked, Rows>, shape, kSlots, stream, rows, chunks);
          launch(softmax_merge<T, Rows>, warps_for(rows.count, 256), stream, rows, chunks);
          if (call.kind == kLogSumExp) return;
          launch(softmax_apply<T, kMasked, Rows>, shape, stream, rows, chunks);
          return;
        }
      }
      launch_softmax(softmax_forward_rows<T, kMasked, Rows>, shape, kSlots, stream, rows);
    });
  });
}

template <class T>
void softmax_backward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  const SoftmaxPlan plan = plan_softmax<T>(call);
  for_layout(plan, [&](auto rows, Shape shape) {
    using Rows = decltype(rows);
    if constexpr (!Rows::kColumns) {
      if (plan.chunks.count > 1) {
        const GradientChunks chunks{plan.chunks, static_cast<double*>(workspace)};
        shape.blocks = blocks_for(rows.count * chunks.count);
        launch(softmax_gradient_sums<T, Rows>, shape, stream, rows, chunks);
        launch(softmax_gradients<T, Rows>, shape, stream, rows, chunks);
        return;
      }
    }
    launch_softmax(softmax_backward_rows<T, Rows>, shape, 2, stream, rows);
  });
}

template <class T>
void logsumexp_backward(const SoftmaxCall& call, cudaStream_t stream) {
  const SoftmaxPlan plan = plan_softmax<T>(call);
  with_constant(call.arrays[kMask].data, [&](auto is_masked) {
    for_layout(plan, [&](auto rows, Shape shape) {
      if (plan.chunks.count > 1) shape.blocks = blocks_for(rows.count * plan.chunks.count);
      launch(logsumexp_gradient_rows<T, decltype(is_masked)::value, decltype(rows)>, shape, stream,
             rows, plan.chunks);
    });
  });
}

template <class T>
void fill_logsumexp(const SoftmaxCall& call, cudaStream_t stream) {
  for (const int role : {kLse, kNumber}) {
    const Operand& number = call.arrays[role];
    if (!number.data || is_empty(number)) continue;
    const Axes to = axes_of(number, item_size(call.dtypes[role]));
    launch(fill_numbers<T>, {blocks_for(ceil_div(to.size, 256)), 256}, stream, to, number.data,
           call.dtypes[role]);
  }
}

using Storage = FASTACT_STORAGE;
template int64_t softmax_workspace<Storage>(const SoftmaxCall&);
template void softmax_forward<Storage>(const SoftmaxCall&, void*, cudaStream_t);
template void softmax_backward<Storage>(const SoftmaxCall&, void*, cudaStream_t);
template void logsumexp_backward<Storage>(const SoftmaxCall&, cudaStream_t);
template void fill_logsumexp<Storage>(const SoftmaxCall&, cudaStream_t);

FASTACT_END_NAMESPACE
