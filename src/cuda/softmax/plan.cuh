// The plan of a softmax, made on the host: from axes to rows and their elements.
//
// Four layouts are told apart:
//
//   quick     rows of whole aligned vectors: no tests at run time
//   rows      the elements of a row are neighbours in memory            read by vectors along a row
//   columns   the elements of a row are a step apart, and neighbouring  read by vectors across rows
//             rows are neighbours in memory (softmax over an outer axis)
//   strided   anything else                                             element by element, as rows
#pragma once

#include "common/activations/tanh.h"
#include "common/softmax/call.h"
#include "common/softmax/loss.h"
#include "cuda/core/row_kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

using namespace softmax_roles;

constexpr int kChunkLanes = 256;  // threads of a chunk of a row that no block holds
constexpr int kData = 3;          // the first roles, which have x's shape and dtype

// Of long columns (long_columns.cuh): threads of a block; blocks, at least, below which chunks of
// columns keep more multiprocessors busy; and strips at most and at least.
constexpr int kLongThreads = 256;
constexpr int64_t kLongBlocks = 64;
constexpr int kLongStrip = 8, kShortStrip = 4;

// strip: vectors of columns side by side, which a block has as a whole; share: blocks of a
// multiprocessor that its shared memory is for.
struct LongShape {
  int strip, share;
};
// Gradients of logsumexp and cross_entropy over columns in chunks: the numbers of a row cost a
// thread as much as several vectors, so a block has up to so many chunks.
constexpr int64_t kLseChunks = 4;

// Kinds beside SoftmaxKind: cross_entropy; and for kernels: all kinds without a y, or any kind.
constexpr int kLoss = kSoftmaxKinds, kNoY = -2, kAnyKind = -1;

// Numbers that cross_entropy alone takes.
struct LossNumbers {
  LabelSmoothing smoothing;
  double z_loss;
  int64_t ignore_index;
  const double* divisor;
};

struct SoftmaxDTypes {
  int mask, weight, number, target, sink;
};

// The rows of the mask, not for strided arrays, and of the sinks: lengths of axes, and bytes.
struct RepeatedRows {
  int64_t length[kRowAxes], mask[kRowAxes], sink[kRowAxes];
};

// The parameters of the kernels.
struct SoftmaxRows : RowArrays<kSoftmaxRoles> {
  using Slow = SoftmaxRows;

  int64_t step[kSoftmaxRoles];  // bytes from element to element; not of strided arrays
  SoftmaxDTypes dtypes;
  int repeated_axes;  // that count rows, for what repeats along some of them
  RepeatedRows by_axis;
  int64_t inner;     // columns: neighbouring rows; a pitch is from `inner` rows to the next `inner`
  bool is_reversed;  // the first element is the last class

  int kind;     // kLoss: of cross_entropy
  bool shares;  // classes other than the target's have a share in the loss
  double scale;
  // Forward: z is scaled down by a power of two, so that it is in range for any x; `up` scales
  // differences up again.
  double scale_down, down, up;
  bool accumulate, has_cap;
  // No call has both, and parameters of kernels have 4 KiB.
  union {
    LossNumbers loss = {};
    SoftCap<float> cap;  // has_cap: of x, in the compute type
    SoftCap<double> cap_of_double;
  };
};

// Quick rows, without tests at run time. Their kernels make no calls, which would spill registers.
struct SoftmaxQuick : SoftmaxRows {
  static constexpr bool kQuick = true, kWhole = true;
};

struct SoftmaxStrided : SoftmaxRows {
  using Slow = SoftmaxStrided;
  static constexpr bool kDense = false;
  RowTable<kSoftmaxRoles> table;
};

struct SoftmaxColumns : SoftmaxRows {
  using Slow = SoftmaxColumns;
  static constexpr bool kColumns = true;
};

enum SoftmaxLayout { kQuickLayout, kRowLayout, kColumnLayout, kStridedLayout };

struct SoftmaxPlan {
  SoftmaxStrided rows;
  SoftmaxLayout layout;
  bool may_be_columns;  // with other arrays beside x
  RowShape shape;
  int64_t blocks;     // for each row, some columns, or a chunk of one of these
  int64_t long_vecs;  // vectors of long columns side by side; 0: there are none

  const SoftmaxRows& dense() const { return rows; }
  template <class Rows>
  Rows as() const {
    Rows made{};
    static_cast<SoftmaxRows&>(made) = rows;
    return made;
  }

  // 0: columns go by chunks.
  int64_t long_blocks(const LongShape& of) const {
    const int64_t count = ceil_div(long_vecs, of.strip);
    return count < kLongBlocks ? 0 : count;
  }
  // Strips of 128 bytes are whole lines of the second-level cache, and one block keeps more of its
  // columns for the second pass. Forward, 16 bits compute more for each byte that they read, and a
  // second block goes on computing while one waits: an H200 took 61 us for 65, logsumexp 35 for 42.
  // Few columns have narrow strips, for more blocks.
  template <class T>
  LongShape long_shape(bool is_forward) const {
    const LongShape wide{kLongStrip, 1}, narrow{kShortStrip, 2};
    const bool is_narrow = (sizeof(T) == 2 && is_forward) || long_blocks(wide) == 0;
    return is_narrow ? narrow : wide;
  }

  // With shares there is no quick kernel, and blocks take rows of any length as a whole.
  void be_loss(bool shares) {
    rows.kind = kLoss, rows.shares = shares;
    if (shares && layout == kQuickLayout) layout = kRowLayout;
  }
  void take_whole_rows() {
    blocks /= rows.chunks.count;
    rows.chunks.count = 1;
  }
};

// The shape of the blocks for rows of so many vectors, which are cut into chunks where no block
// holds them. A fold costs as much as several vectors, so threads have more vectors than in
// row_shape.
template <class T>
RowShape softmax_shape(int64_t vecs, Chunks* chunks) {
  constexpr int kMost = kMostVecs<T>;
  constexpr int64_t kChunk = kChunkLanes * kMost;
  *chunks = {vecs, 1};
  if (vecs > kHeldRow<T>) {
    *chunks = {kChunk, ceil_div(vecs, kChunk)};
    return {kMost, kChunkLanes, kChunkLanes};
  }
  if (vecs > kMost * kWarp)
    return vecs % (kMost * kWarp) == 0 ? RowShape{kMost, int(vecs / kMost), int(vecs / kMost)}
                                       : row_shape<T>(vecs);
  const int of_thread = vecs <= 4 * kStripVecs ? 4 : kMost;
  const int lanes = power_of_two_from(ceil_div(vecs, of_thread), kWarp);
  return {of_thread, lanes, of_thread > 4 ? kThreadsOfNarrow / 2 : kThreadsOfNarrow};
}
// The shape for columns of so many elements.
template <class T>
RowShape column_shape(int64_t length, Chunks* chunks) {
  constexpr int kMost = kMostVecs<T>;
  constexpr int64_t kChunk = kColumnLanes * kMost;
  const int lanes = power_of_two_from(ceil_div(length, kMost), kColumnLanes);
  *chunks = {length, 1};
  if (length > kChunk) *chunks = {kChunk, ceil_div(length, kChunk)};
  return {kMost, lanes, kThreadsOfNarrow};
}

template <class T>
SoftmaxPlan plan_softmax(const SoftmaxCall& call) {
  SoftmaxPlan plan{};
  SoftmaxRows& rows = plan.rows;
  int64_t item[kSoftmaxRoles];
  Operand arrays[kSoftmaxRoles];
  std::copy(call.arrays, call.arrays + kSoftmaxRoles, arrays);
  for (int k = 0; k < kSoftmaxRoles; ++k)
    item[k] = call.arrays[k].data ? item_size(call.arrays[k].dtype) : int64_t(sizeof(T));
  const RowAxes<kSoftmaxRoles> axes(arrays, item, kX, true,
                                    [&](int i) { return call.reduced[i] ? 1 : 0; });
  const int row_axes = axes.end_of(0), count = axes.count;
  rows.count = axes.size_of(0), rows.length = axes.size_of(1);
  axes.fill(&plan.rows.table, row_axes);
  for (int i = 0; i < call.arrays[kX].ndim; ++i)
    if (call.reduced[i]) rows.is_reversed |= byte_stride(call.arrays[kX], i, sizeof(T)) < 0;
  rows.repeated_axes = row_axes;
  for (int i = 0; i < row_axes; ++i) {
    rows.by_axis.length[i] = axes.axes[i].length;
    rows.by_axis.mask[i] = axes.axes[i].stride[kMask];
    rows.by_axis.sink[i] = axes.axes[i].stride[kSink];
  }

  // Columns: the innermost axis of rows steps by one element in all data.
  bool is_dense = true, is_columns = row_axes > 0;
  rows.inner = row_axes > 0 ? axes.axes[row_axes - 1].length : 1;
  int64_t column_pitch[kSoftmaxRoles] = {};
  for (int k = 0; k < kSoftmaxRoles; ++k) {
    rows.data[k] = axes.data[k];
    if (!rows.data[k]) continue;
    const auto address = reinterpret_cast<uintptr_t>(rows.data[k]);
    const bool is_linear = axes.is_linear(row_axes, count, k, &rows.step[k]);
    if (k < kData || k == kWeight || k == kMask) is_dense &= is_linear, is_columns &= is_linear;
    if (k == kMask || k == kWeight || k == kSink) continue;
    const bool is_even = axes.is_linear(0, row_axes, k, &rows.pitch[k]);
    is_dense &= is_even;
    if (k >= kData) {
      is_columns &= is_even;
      continue;
    }
    rows.repeated[k] = k != kY && axes.repeats(k);
    if (rows.length > 1) is_dense &= rows.repeated[k] || rows.step[k] == item[k];
    is_columns &= axes.is_linear(0, row_axes - 1, k, &column_pitch[k]);
    is_columns &=
        rows.repeated[k] || (row_axes > 0 && axes.axes[row_axes - 1].stride[k] == item[k]);
    rows.windows[k] = !call.arrays[kY].data || call.arrays[kY].data != call.arrays[k].data;
    rows.fast[k] = !rows.repeated[k] && (address | uintptr_t(rows.pitch[k])) % kVecBytes == 0;
  }
  // Rows of one element go by columns where they can, because a row is no vector.
  if (is_columns && rows.length == 1) is_dense = false;
  plan.may_be_columns = is_columns;
  plan.layout = is_dense ? kRowLayout : is_columns ? kColumnLayout : kStridedLayout;
  const double cap = call.cap();
  rows.has_cap = cap != 0;
  const bool has_sink = rows.data[kSink] || (rows.data[kShare] && !rows.data[kLse]);
  bool is_quick = is_dense && rows.length % Vec<T>::kSize == 0 && !rows.data[kMask] &&
                  !rows.data[kWeight] && !has_sink && !call.accumulate && !rows.has_cap;
  for (int k = 0; k < kData; ++k) is_quick &= !rows.data[k] || rows.fast[k];
  if (is_quick) plan.layout = kQuickLayout;
  Chunks chunks;
  int64_t vecs = rows.count;
  if (plan.layout == kColumnLayout) {
    for (int k = 0; k < kData; ++k) {
      rows.pitch[k] = column_pitch[k];
      const auto address = reinterpret_cast<uintptr_t>(rows.data[k]);
      rows.fast[k] =
          rows.data[k] && !rows.repeated[k] &&
          (address | uintptr_t(rows.pitch[k]) | uintptr_t(rows.step[k])) % kVecBytes == 0;
    }
    plan.shape = column_shape<T>(rows.length, &chunks);
    vecs = ceil_div(rows.inner, Vec<T>::kSize) * (rows.count / rows.inner);
    plan.long_vecs = chunks.count > 1 && !rows.data[kMask] && !has_sink && !rows.has_cap ? vecs : 0;
  } else {
    plan.shape = softmax_shape<T>(ceil_div(rows.length, Vec<T>::kSize), &chunks);
  }
  rows.lay(plan.shape, chunks);
  plan.blocks = ceil_div(vecs, rows.teams) * chunks.count;
  rows.dtypes = {call.arrays[kMask].dtype, call.arrays[kWeight].dtype, call.arrays[kNumber].dtype,
                 call.arrays[kTarget].dtype, call.arrays[kSink].dtype};
  rows.kind = call.kind;
  rows.scale = rows.scale_down = call.scale;
  rows.down = rows.up = 1;
  rows.accumulate = call.accumulate;
  if (!rows.has_cap)
    rows.loss = {LabelSmoothing::of(call.label_smoothing, rows.length), call.z_loss,
                 call.ignore_index, reinterpret_cast<const double*>(call.divisor.data)};
  else if constexpr (sizeof(T) == 8)
    rows.cap_of_double = SoftCap<double>(&cap);
  else
    rows.cap = SoftCap<float>(&cap);
  return plan;
}

// The most that a call may have, whatever arrays there are beside x: chunks of a row (0 where
// blocks hold rows), and blocks that add up several rows.
struct Most {
  int64_t chunks, blocks;
};
template <class T>
Most most_of(const SoftmaxPlan& plan) {
  Chunks chunks{0, 1};
  Most most{0, 0};
  const auto include = [&](const RowShape& shape) {
    if (chunks.count > 1) most.chunks = std::max(most.chunks, chunks.count);
    most.blocks = std::max(most.blocks, ceil_div(plan.rows.count, shape.threads / shape.lanes));
  };
  include(softmax_shape<T>(ceil_div(plan.rows.length, Vec<T>::kSize), &chunks));
  if (plan.may_be_columns) {
    include(column_shape<T>(plan.rows.length, &chunks));
    most.blocks = std::max(most.blocks, ceil_div(plan.rows.count, kShortStrip));
  }
  return most;
}

// Scales z = scale x + mask down into the range of T's compute type: |scale| down to 1; with a mask
// of numbers, scale and mask each down to a half.
template <class T>
void stay_in_range(SoftmaxRows* rows) {
  constexpr double kMost = sizeof(T) == 8 ? 0x1p1022 : 0x1p126;
  const double most = rows->data[kMask] && rows->dtypes.mask != kBool ? 0.5 : 1.0;
  double scale = rows->scale < 0 ? -rows->scale : rows->scale;
  while ((scale > most || rows->down > most) && rows->up < kMost)
    scale *= 0.5, rows->scale_down *= 0.5, rows->down *= 0.5, rows->up *= 2;
}

// Runs visit(rows, shape, vecs) with the rows of the plan's layout and the vectors of a thread.
template <class T, class Visit>
void for_layout(const SoftmaxPlan& plan, Visit visit) {
  const Shape shape{plan.blocks, plan.shape.threads};
  const std::integral_constant<int, kMostVecs<T>> most;
  if (plan.layout == kColumnLayout) return visit(plan.as<SoftmaxColumns>(), shape, most);
  if (plan.layout == kStridedLayout) return visit(plan.rows, shape, most);
  if (plan.layout == kRowLayout) return visit(plan.dense(), shape, most);
  const auto rows = plan.as<SoftmaxQuick>();
  if (plan.shape.vecs == kMostVecs<T>) return visit(rows, shape, most);
  visit(rows, shape, std::integral_constant<int, 4>());
}

}  // namespace
FASTACT_END_NAMESPACE
