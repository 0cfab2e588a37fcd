// softmax, log_softmax and logsumexp over any axes.
//
// plan.cuh sorts the axes into rows and the elements of a row; core/held_rows.cuh says how rows are
// laid over threads, and statistic.cuh what is found out about each. Forward a row is in registers:
//   1. x is read, m = max(z)
//   2. the terms exp(z - m), which take the place of z where they are written, and their sum
//   3. y = term / sum, or z - m - log(sum)
// Rows that no block holds are cut into chunks, one block each: peaks of the chunks, one kernel
// that merges them, then y, from the last chunk on: it may be in the second-level cache still.
//
//   Bytes moved: x (mask) and y once; of rows in chunks x twice, but for logsumexp.
//
// Columns: where the elements of a row are a step apart and neighbouring rows touch, a thread has
// vectors of neighbouring rows. Eight such vectors side by side are 128 bytes of each element; up
// to 64 threads share the elements of a column. The sums are taken in another order than those of
// rows, so the same values in another layout may differ in the last bit.
//
// Backward: dy and y are in registers, and dx follows from their sum. Columns and chunks as above;
// rows in chunks read dy and y twice. logsumexp: element by element, from lse.
#include "cuda/softmax/backward.cuh"
#include "cuda/softmax/forward.cuh"

FASTACT_BEGIN_NAMESPACE
template <class T>
int64_t softmax_workspace(const SoftmaxCall& call) {
  const SoftmaxPlan plan = plan_softmax<T>(call);
  return chunk_bytes<SoftmaxOf<T>>(plan.rows.count, most_of<T>(plan).chunks);
}

template <class T>
void softmax_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  SoftmaxPlan plan = plan_softmax<T>(call);
  stay_in_range<T>(&plan.rows);
  if (call.kind == kSoftmax)
    run_kind<T>(plan, SoftmaxOf<T>{}, workspace, stream);
  else if (call.kind == kLogSoftmax)
    run_kind<T>(plan, LogSoftmaxOf<T>{}, workspace, stream);
  else
    run_kind<T>(plan, LogSumExpOf<T>{}, workspace, stream);
}

template <class T>
void softmax_backward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  const SoftmaxPlan plan = plan_softmax<T>(call);
  if (call.kind == kSoftmax)
    run_backward<T, SoftmaxGradient<T>>(plan, workspace, stream);
  else
    run_backward<T, LogSoftmaxGradient<T>>(plan, workspace, stream);
}

template <class T>
void logsumexp_backward(const SoftmaxCall& call, cudaStream_t stream) {
  const SoftmaxPlan plan = plan_softmax<T>(call);
  for_layout<T>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    launch(logsumexp_gradients<T, decltype(vecs)::value, decltype(rows)>, shape, stream, rows);
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
