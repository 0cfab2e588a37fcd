// cross_entropy: the loss of rows of logits, and its gradient, without the probabilities.
//
// Forward, one pass over the logits: the peak of each row (statistic.cuh), from which lse and the
// loss follow. Where label smoothing or a target of probabilities gives each class a share in the
// loss, the sums of the shares are taken in the same pass. A reduction adds up the losses of each
// block, then those of all blocks in a fixed order: no atomics.
//
//   Bytes moved: the logits (and probabilities) once; a row's lse.
//
// Backward, one pass: dz = factor (exp(z - lse) sum(a w) - a w). Where classes have shares, their
// sum is taken first, which reads probabilities twice.
//
//   Bytes moved: logits and dlogits once; probabilities twice.
//
// An index that names no class gives NaN in its row: the host can't know it, and nothing waits.
#include "cuda/softmax/cross_entropy.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Whether classes other than the target's have a share in the loss.
bool has_shares(const SoftmaxCall& call) {
  return call.arrays[kDy].data || call.label_smoothing != 0;
}

// Bytes of the peaks of chunks.
template <class T>
int64_t peak_bytes(const SoftmaxPlan& plan) {
  return chunk_bytes<LossOf<T, true>>(plan.rows.count, most_of<T>(plan).chunks);
}

}  // namespace

template <class T>
int64_t cross_entropy_workspace(const SoftmaxCall& call) {
  const SoftmaxPlan plan = plan_softmax<T>(call);
  if (call.reduction == kNone) return peak_bytes<T>(plan);
  return peak_bytes<T>(plan) + 2 * most_of<T>(plan).blocks * int64_t(sizeof(double));
}

template <class T>
void cross_entropy_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  const bool reduces = call.reduction != kNone;
  double* totals = nullptr;
  int64_t blocks = 0, count = 0;
  if (!is_empty(call.arrays[kX])) {
    SoftmaxPlan plan = plan_softmax<T>(call);
    if (has_shares(call)) plan.be_slow();
    count = plan.rows.count;
    if (reduces) totals = static_cast<double*>(workspace) + peak_bytes<T>(plan) / 8;
    with_constant(has_shares(call), [&](auto shares) {
      LossOf<T, decltype(shares)::value> kind;
      kind.totals = totals;
      blocks = run_kind<T>(plan, kind, workspace, stream);
    });
  }
  if (!reduces) return;
  launch(finish_loss<T>, {1, kRowThreads}, stream, totals, blocks, call.reduction == kMean,
         call.arrays[kDy].data ? double(count) : -1.0, call.loss, call.divisor);
}

template <class T>
void cross_entropy_backward(const SoftmaxCall& call, cudaStream_t stream) {
  SoftmaxPlan plan = plan_softmax<T>(call);
  with_constant(has_shares(call), [&](auto shares) {
    constexpr bool kShares = decltype(shares)::value;
    if (kShares) plan.be_slow(), plan.take_whole_rows();
    for_layout<T, !kShares>(plan, [&](auto rows, const Shape& shape, auto vecs) {
      launch(cross_entropy_gradients<T, decltype(vecs)::value, kShares, decltype(rows)>, shape,
             stream, rows);
    });
  });
}

using Storage = FASTACT_STORAGE;
template int64_t cross_entropy_workspace<Storage>(const SoftmaxCall&);
template void cross_entropy_forward<Storage>(const SoftmaxCall&, void*, cudaStream_t);
template void cross_entropy_backward<Storage>(const SoftmaxCall&, cudaStream_t);

FASTACT_END_NAMESPACE
