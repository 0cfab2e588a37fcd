// softmax, log_softmax and logsumexp over any axes, and cross_entropy.
//
// plan.cuh sorts the axes into rows and the elements of a row; core/held_rows.cuh lays rows over
// threads, and statistic.cuh finds the numbers of each row. Forward a row is in registers:
//   1. x is read, m = max(z)
//   2. the terms exp(z - m), which take the place of z where they are written, and their sum
//   3. y = term / sum, or z - m - log(sum)
// Rows that no block holds are cut into chunks, one block each. One kernel finds the peaks of the
// chunks, one merges them, and one writes y, from the last chunk on, which may be in the
// second-level cache still.
//
//   Bytes moved: x (mask) and y once; x twice for rows in chunks, but for logsumexp.
//
// Columns: where the elements of a row are a step apart and neighbouring rows touch, a thread has
// vectors of neighbouring rows. Long columns are a block's as a whole (long_columns.cuh). Where
// blocks would be too few, or a mask or shares of classes are given, they go by chunks, as rows do:
// eight vectors side by side, and up to 64 threads for the elements of a column. Sums are taken in
// another order than for rows, so the same values in another layout may differ in the last bit.
//
// Backward: dy and y are in registers, and dx follows from their sum. Columns and chunks as above;
// rows in chunks read dy and y twice. logsumexp: element by element, from lse.
//
// cross_entropy: the loss of rows of logits, and its gradient, without the probabilities.
//
// Forward, one pass over the logits: the peak of each row (statistic.cuh), from which lse and the
// loss follow. Where label smoothing or a target of probabilities gives each class a share in the
// loss, the sums of the shares are taken in the same pass. A reduction adds up the losses of each
// block, and then all blocks' sums in a fixed order: no atomics.
//
//   Bytes moved: the logits (and probabilities) once; a row's lse.
//
// Backward, one pass: dz = factor (exp(z - lse) sum(a w) - a w). Where classes have shares, their
// sum is taken first, which reads probabilities twice.
//
//   Bytes moved: logits and dlogits once; probabilities twice.
//
// An index that names no class gives NaN in its row: the host can't know it, and nothing waits.
#include "cuda/core/native_function.h"
#include "cuda/softmax/long_columns.cuh"
#include "cuda/softmax/lse_gradients.cuh"
#include "cuda/softmax/lse_rows.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Queues the kernels of a kind; returns how many blocks have totals. workspace: for peaks and
// levels.
template <class T, int kind>
int64_t run_kind(const SoftmaxPlan& plan, double* totals, void* workspace, cudaStream_t stream) {
  const LongShape of_long = plan.long_shape<T>(true);
  int64_t blocks = plan.rows.shares ? 0 : plan.long_blocks(of_long);
  if (blocks > 0) {
    launch_long<T, kMostVecs<T>, 1>(forward_long_columns<T, kind>, plan, of_long, kind != kNoY,
                                    stream, KindOf<T, kind>{totals});
    return blocks;
  }
  for_layout<T>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    using Rows = decltype(rows);
    // For float32 the way of held_rows.cuh is faster: 50.0 us for 55.6 over 32 000 classes.
    if constexpr (Rows::kQuick && kind == kNoY && sizeof(T) == 2) {
      if (rows.lanes > kWarp) {
        const int lanes = lse_lanes(vecs_of<T>(rows));
        rows.lay({kLseVecs, lanes, lanes}, {vecs_of<T>(rows), 1});
        blocks = rows.count;
        return launch(lse_of_rows<T>, {blocks, lanes}, stream, rows, KindOf<T, kNoY>{totals});
      }
    }
    const auto run = [&](auto op) {
      op.totals = totals;
      blocks = run_forward<T, decltype(vecs)::value>(rows, op, shape, workspace, stream);
    };
    if constexpr (Rows::kQuick || Rows::kColumns)
      if (!rows.shares) return run(KindOf<T, kind>{});
    // Two blocks of columns have too few registers for shares.
    if constexpr (!Rows::kQuick) run(KindOf<T, Rows::kColumns ? kNoY : kAnyKind, true>{});
  });
  return blocks;
}

// Queues the kernels of a kind. workspace: of sums.
template <class T, int kind>
void run_backward(const SoftmaxPlan& plan, void* workspace, cudaStream_t stream) {
  const LongShape of_long = plan.long_shape<T>(false);
  if (plan.long_blocks(of_long) > 0)
    return launch_long<T, 4, 2>(backward_long_columns<T, kind>, plan, of_long, true, stream);
  double* const sums = static_cast<double*>(workspace);
  for_layout<T>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    using Rows = decltype(rows);
    // Kernels are apart as forward (core/row_kernels.cuh); one for all columns would spill for 16
    // bits alone.
    constexpr bool kApart = Rows::kQuick || (Rows::kColumns && sizeof(T) == 2);
    constexpr RowPhase kWhole = kApart ? kWholeRows : kAnyPhase,
                       kFind = kApart ? kFindChunks : kAnyPhase,
                       kApply = kApart ? kApplyChunks : kAnyPhase;
    constexpr int kFixed = Rows::kQuick ? kind : kAnyKind, kMost = kMostVecs<T>;
    constexpr int kVecs = decltype(vecs)::value;
    const auto run = [&](auto kernel, RowPhase phase) {
      launch(kernel, shape, stream, rows, sums, phase);
    };
    if (rows.chunks.count == 1)
      return run(softmax_backward_rows<T, kVecs, kWhole, kFixed, Rows>, kWholeRows);
    run(softmax_backward_rows<T, kMost, kFind, kFixed, Rows>, kFindChunks);
    run(softmax_backward_rows<T, kMost, kApply, kFixed, Rows>, kApplyChunks);
  });
}

// dsink OUT = total IN, or += of it.
template <class T>
FASTACT_KERNEL(256)
void round_sinks(FASTACT_GRID_CONSTANT const Axes axes, const char* total, char* dsink,
                 bool accumulate) {
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i >= axes.size) return;
  const Offset at = locate(axes, i);
  put(reinterpret_cast<T*>(dsink + at.y), load(reinterpret_cast<const double*>(total + at.x)),
      accumulate);
}

// Fills results of rows without elements: writes -infinity to number and lse, 0 to rest, and 1 to
// the sinks' share.
template <class T>
void fill_of_nothing(const SoftmaxCall& call, cudaStream_t stream) {
  const double share = call.kind == kLogSumExp ? 0.0 : 1.0;
  for (const int role : {kLse, kNumber, kShare}) {
    const ArrayArgument& number = call.arrays[role];
    if (!number.data || is_empty(number)) continue;
    const Axes to = axes_of(number, item_size(number.dtype));
    fill_numbers<T>(to, number.data, number.dtype, role == kShare ? share : -HUGE_VAL, stream);
  }
}

}  // namespace

template <class T>
int64_t softmax_workspace(const SoftmaxCall& call) {
  if (is_empty(call.arrays[kX])) return 0;
  const SoftmaxPlan plan = plan_softmax<T>(call);
  return chunk_bytes<KindOf<T, kAnyKind>>(plan.rows.count, most_of<T>(plan).chunks);
}

template <class T>
void softmax_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  if (is_empty(call.arrays[kX])) return fill_of_nothing<T>(call, stream);
  SoftmaxPlan plan = plan_softmax<T>(call);
  stay_in_range<T>(&plan.rows);
  with_softmax_kind(call.kind, [&](auto kind) {
    run_kind<T, (kind.kHasY ? kNumberOf<decltype(kind)> : kNoY)>(plan, nullptr, workspace, stream);
  });
}

template <class T>
void softmax_backward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  if (is_empty(call.arrays[kX])) return;
  const SoftmaxPlan plan = plan_softmax<T>(call);
  with_softmax_map(call.kind, [&](auto kind) {
    run_backward<T, kNumberOf<decltype(kind)>>(plan, workspace, stream);
  });
}

// Queues the kernel of logsumexp's gradients or of cross_entropy's.
template <class T, int kind>
void run_lse_gradients(const SoftmaxPlan& plan, cudaStream_t stream) {
  for_layout<T>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    using Rows = decltype(rows);
    constexpr bool kIsFixed = Rows::kQuick || Rows::kColumns;
    constexpr int kVecs = decltype(vecs)::value, kFixed = kIsFixed ? kind : kAnyKind;
    if constexpr (kIsFixed) {
      if (!rows.shares) {
        Shape here = shape;
        if (Rows::kColumns && rows.chunks.count > 1) {
          const int64_t groups = shape.blocks / rows.chunks.count;
          const int64_t more = std::clamp<int64_t>(shape.blocks / 1024, 1, kLseChunks);
          rows.chunks.size *= more;
          rows.chunks.count = ceil_div(rows.length, rows.chunks.size);
          here.blocks = groups * rows.chunks.count;
        }
        return launch(lse_gradients<T, kVecs, kFixed, false, Rows>, here, stream, rows);
      }
    }
    if constexpr (!kIsFixed || (Rows::kColumns && kind == kLoss))
      launch(lse_gradients<T, kVecs, kFixed, true, Rows>, shape, stream, rows);
  });
}

template <class T>
void softmax_sink(const SinkCall& call, cudaStream_t stream) {
  if (is_empty(call.dsink)) return;
  Axes axes;
  for (int i = 0; i < call.dsink.ndim; ++i)
    axes.append(call.dsink.shape[i], byte_stride(call.total, i, sizeof(double)),
                byte_stride(call.dsink, i, sizeof(T)));
  launch(round_sinks<T>, {blocks_for(ceil_div(axes.size, 256)), 256}, stream, axes, call.total.data,
         call.dsink.data, call.accumulate);
}

template <class T>
void logsumexp_backward(const SoftmaxCall& call, cudaStream_t stream) {
  if (is_empty(call.arrays[kX])) return;
  SoftmaxPlan plan = plan_softmax<T>(call);
  plan.rows.kind = kLogSumExp;
  run_lse_gradients<T, kLogSumExp>(plan, stream);
}

template <class T>
int64_t cross_entropy_workspace(const SoftmaxCall& call) {
  if (is_empty(call.arrays[kX])) return 0;
  const SoftmaxPlan plan = plan_softmax<T>(call.of_logits());
  const int64_t totals = call.reduction == kNone ? 0 : 2 * most_of<T>(plan).blocks;
  return softmax_workspace<T>(call.of_logits()) + totals * int64_t(sizeof(double));
}

template <class T>
void cross_entropy_forward(const SoftmaxCall& call, void* workspace, cudaStream_t stream) {
  const bool reduces = call.reduction != kNone;
  double* totals = nullptr;
  int64_t blocks = 0, count = 0;
  if (!is_empty(call.arrays[kX])) {
    SoftmaxPlan plan = plan_softmax<T>(call.of_logits());
    plan.be_loss(call.has_shares());
    count = plan.rows.count;
    if (reduces)
      totals = static_cast<double*>(workspace) + softmax_workspace<T>(call.of_logits()) / 8;
    blocks = run_kind<T, kNoY>(plan, totals, workspace, stream);
  }
  if (!reduces) return;
  const double by = call.arrays[kDy].data ? double(count) : -1.0;
  finish(FinishLoss<T>{totals, call.reduction == kMean, by, call.loss.data,
                       reinterpret_cast<double*>(call.divisor.data), 1, blocks},
         stream, kMostFinishThreads);
}

template <class T>
void cross_entropy_backward(const SoftmaxCall& call, cudaStream_t stream) {
  if (is_empty(call.arrays[kX])) return;
  SoftmaxPlan plan = plan_softmax<T>(call.of_logits());
  plan.be_loss(call.has_shares());
  if (plan.rows.shares) plan.take_whole_rows();
  run_lse_gradients<T, kLoss>(plan, stream);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<softmax_workspace<Storage>, softmax_forward<Storage>> forward_call(
    kSoftmaxForward);
const NativeFunction<softmax_workspace<Storage>, softmax_backward<Storage>> backward_call(
    kSoftmaxBackward);
const NativeFunction<softmax_sink<Storage>> sink_call(kSoftmaxSink);
const NativeFunction<logsumexp_backward<Storage>> logsumexp_call(kLogSumExpBackward);
const NativeFunction<cross_entropy_workspace<Storage>, cross_entropy_forward<Storage>> loss_call(
    kCrossEntropyForward);
const NativeFunction<cross_entropy_backward<Storage>> loss_gradient_call(kCrossEntropyBackward);

FASTACT_END_NAMESPACE
