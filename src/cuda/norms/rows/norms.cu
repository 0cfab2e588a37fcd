// layer_norm, rms_norm, group_norm, instance_norm, and the first two with a residual.
//
// A normalization row is a set of elements that share a mean and a standard deviation: a row of
// layer_norm, a group of group_norm, a channel of an example of instance_norm. plan.cuh sorts the
// axes of the arrays into rows and the elements of a row. Arrays whose channels come last go to
// norms/channels/channels_last.cu instead.
//
// core/rows.cuh says how the kernels take rows: by vectors of 16 bytes, some lanes of a warp or a
// block a row, long ones in chunks.
//
// Forward, three passes over one row, which registers hold (forward.cuh):
//   1. read x (and add the residual); a mean near enough (rms_norm leaves that out)
//   2. the distances from it and their squares
//   3. y = f(z)
// Two folds over the threads of a row. Rows of more than kHeldRow vectors are cut into chunks:
// moments of the chunks, one kernel that merges them, then y.
//
//   Bytes moved: x, residual, total and y once; beyond kHeldRow vectors, pass 3 reads again.
//
// Backward. A block takes one group of parameters and one chunk of the batch, in tiles of up to
// four rows:
//   1. x and dy are read into the shared-memory cache
//   2. p = dy f'(z) replaces dy there, in the compute type; the row's sums of g = p w and g xhat
//   3. dx, and for each column the sums of p xhat and of p: in the compute type for kSumRows rows,
//      beyond that in double
// Short rows of many groups (instance_norm of a few elements) share a block.
// Where a run of elements shares a parameter (group_norm, instance_norm), its sums are taken row by
// row. The partial sums of the chunks, at most kMostSums bytes, are added in the order of the
// chunks by one finishing kernel.
//
//   Bytes moved: dy, x (dtotal) and dx once, and the partial sums.
//
// Rows of more than kLongRow vectors, whose x, dy and column sums do not fit shared memory
// together, go to split_row.cuh.
//
//   Bytes moved: dy and x twice, dx once; column sums of each part of the batch (kLongRows rows or
//   more): 32 bytes per element of a row, written and read again.
//
// Whole vectors of a quick row (plan.cuh) have kernels of their own forward, and backward loops,
// without the tests that misaligned or partial vectors need. Arrays of any other strides go element
// by element in the same order, hence with the same bits; backward reads them three times.
//
// Instruction counts and rejected alternatives: docs/design/cuda.md, "Norms over rows".
#include "cuda/core/device.h"
#include "cuda/norms/channels/channels_last.h"
#include "cuda/norms/rows/forward.cuh"
#include "cuda/norms/rows/split_row.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kLongRow = 2048;       // vectors of a row that one block takes backward
constexpr int64_t kLongChunk = 1024;     // vectors of a part of a longer one
constexpr int64_t kLongRows = 4;         // at least, of the batch in a part of it
constexpr int64_t kLongTasks = 512;      // parts of a batch of such rows: what an H200 runs at once
constexpr int64_t kMostSums = 16 << 20;  // bytes of partials
constexpr int64_t kMostChunks = 256;     // of the batch
constexpr int64_t kManyTasks = 1024;
constexpr int64_t kSumsOfAll = 23 << 10;  // bytes of column sums for which every device has room
constexpr int kMostTile = 4;

template <class T>
int64_t row_vecs(const NormPlan& plan) {
  return ceil_div(plan.rows.length, Vec<T>::kSize);
}

template <class T>
NormPlan plan_forward(const NormCall& call, NormChunks* chunks, int* vecs_of_thread) {
  const bool outputs[4] = {false, false, call.data[NormCall::kTotal].data != nullptr, true};
  NormPlan plan = plan_norm<T>(call, NormCall::kX, outputs);
  const int64_t vecs = row_vecs<T>(plan);
  chunks->size = std::min(vecs, kHeldRow<T>);
  chunks->count = ceil_div(vecs, chunks->size);
  const RowShape shape = row_shape<T>(chunks->size);
  plan.rows.lanes = shape.lanes, plan.rows.teams = shape.threads / shape.lanes;
  plan.threads = shape.threads;
  *vecs_of_thread = shape.vecs;
  return plan;
}

// Runs visit(rows) with the rows as the forward kernels take them.
template <class T, class Visit>
void for_forward_layout(const NormPlan& plan, Visit visit) {
  const NormRows& rows = plan.rows;
  if (!plan.is_dense) return visit(plan.rows);
  if (!rows.quick || rows.which != k_identity || rows.length % Vec<T>::kSize != 0)
    return visit(NormRows(rows));
  NormQuick quick;
  static_cast<NormRows&>(quick) = rows;
  visit(quick);
}

// Lanes and chunks do not depend on the strides, on which no bit depends then.
template <class T>
NormPlan plan_backward(const NormCall& call, NormBackward* backward) {
  const bool outputs[4] = {false, false, false, true};
  NormPlan plan = plan_norm<T>(call, NormCall::kIn, outputs);
  const NormRows& rows = plan.rows;
  const int64_t vecs = row_vecs<T>(plan);
  const bool has_parameters = call.weight.data || call.bias.data;
  const bool has_sums = call.dweight.data || call.dbias.data;
  const bool by_runs = has_parameters && rows.run > 1;
  const int most_lanes = vecs < kWideRow ? kThreadsOfNarrow : kRowThreads;
  if (by_runs || vecs > 2 * kWarp)
    plan.threads =
        set_lanes(&plan.rows, vecs, std::max(2 * kWarp, power_of_two_from(vecs, most_lanes)));
  else
    plan.threads = set_lanes(&plan.rows, vecs, power_of_two_from(vecs, kWarp));

  *backward = {};
  backward->is_long = !by_runs && vecs > kLongRow;
  backward->has_runs = has_sums && by_runs;
  backward->has_columns = has_sums && !by_runs;
  const int64_t run_vecs = rows.run / Vec<T>::kSize + 1;
  backward->run_lanes = run_vecs > 2 * kWarp ? plan.threads : power_of_two_from(run_vecs, kWarp);
  backward->padded = ceil_div(rows.params, 8) * 8;
  // Groups beside each other leave a group as many teams as it has rows, so that its sums are added
  // in the same order.
  backward->beside = std::min(rows.teams / power_of_two_from(rows.batch, rows.teams),
                              power_of_two_from(rows.groups, rows.teams));
  backward->blocks = ceil_div(rows.groups, backward->beside);

  if (backward->is_long) {
    const int64_t tiles = ceil_div(vecs, kColumnThreads) * rows.groups;
    backward->size = std::max(kLongRows, ceil_div(rows.batch, ceil_div(kLongTasks, tiles)));
    backward->count = ceil_div(rows.batch, backward->size);
    return plan;
  }
  // Chunks of the batch. Without sums a chunk is as short as it may be: most blocks.
  const int64_t bytes = 2 * rows.groups * backward->padded * int64_t(sizeof(double));
  const int64_t chunks =
      std::max<int64_t>(1, std::min({kMostSums / bytes, kManyTasks / rows.groups, kMostChunks}));
  const int64_t least = int64_t(rows.teams / backward->beside) * (by_runs ? 1 : kMostTile);
  backward->size = std::max(least, has_sums ? ceil_div(rows.batch, chunks) : int64_t(1));
  // No more blocks than a grid has, whatever the batch.
  backward->size = std::max(backward->size, ceil_div(rows.count, kMaxBlocks / 2));
  backward->count = ceil_div(rows.batch, backward->size);
  return plan;
}

// Bytes of a thread for the sums of its columns.
template <class T>
int64_t bytes_of_sums(const NormPlan& plan) {
  return plan.rows.per_lane * 2 * Vec<T>::kSize * int64_t(sizeof(Compute<T>));
}

int64_t partial_bytes(const NormPlan& plan, const NormBackward& backward) {
  if (!backward.has_columns && !backward.has_runs) return 0;
  return 2 * backward.count * plan.rows.groups * backward.padded * int64_t(sizeof(double));
}

// Scratch memory for column sums that do not fit the shared memory of every device.
template <class T>
int64_t spilled_bytes(const NormPlan& plan, const NormBackward& backward) {
  const int64_t block = bytes_of_sums<T>(plan) * plan.threads;
  if (!backward.has_columns || backward.is_long || block <= kSumsOfAll) return 0;
  return backward.count * plan.rows.groups * block;
}

// Allots shared memory: first to the sums of the columns, then to rows.
template <class T>
int allot_shared(const SharedMemory& shared, NormPlan* plan, NormBackward* backward,
                 bool identity) {
  const int planes = kPlanes<T>;
  const int slots = 1 + (identity ? 1 : planes);
  const int stats = int(4 * sizeof(Compute<T>)) / kVecBytes;
  const int per_lane = plan->rows.per_lane;
  const int64_t slot = int64_t(kVecBytes) * plan->threads;
  const auto bytes_of = [&](int tile, int resident, int sums) {
    return (tile * resident * slots + sums * 2 * planes) * slot +
           int64_t(tile) * plan->rows.teams * stats * kVecBytes;
  };
  const int64_t all = shared.most;
  int sums = backward->has_columns ? per_lane : 0;
  int tile = backward->has_runs || !plan->is_dense ? 1 : kMostTile;
  int resident = plan->is_dense ? per_lane : 0;
  while (tile > 1 && bytes_of(tile, resident, sums) > shared.half()) tile /= 2;
  if (bytes_of(tile, resident, sums) > all) {
    const int64_t left = all - bytes_of(tile, 0, 0);
    sums = int(std::min<int64_t>(sums, left / (2 * planes * slot)));
    resident = int(std::min<int64_t>(resident, (all - bytes_of(tile, 0, sums)) / (slots * slot)));
  }
  backward->tile = tile;
  backward->sums_resident = sums;
  plan->rows.resident = resident;
  return int(bytes_of(tile, resident, sums));
}

// Chunks of long rows; their sums lie behind the partial sums of the columns.
template <class T>
NormLong long_of(const NormPlan& plan, const NormBackward& backward, void* workspace) {
  NormLong parts{kLongChunk, ceil_div(row_vecs<T>(plan), kLongChunk), nullptr, nullptr};
  parts.chunk_sums =
      static_cast<double*>(workspace) + partial_bytes(plan, backward) / sizeof(double);
  parts.means = parts.chunk_sums + 2 * plan.rows.count * parts.count;
  return parts;
}

template <class T>
int64_t long_bytes(const NormPlan& plan, const NormBackward& backward) {
  if (!backward.is_long) return 0;
  const int64_t chunks = ceil_div(row_vecs<T>(plan), kLongChunk);
  return 2 * plan.rows.count * (chunks + 1) * int64_t(sizeof(double));
}

template <class T, bool identity, class Rows>
void launch_long(const Rows& rows, const NormBackward& backward, const NormLong& parts,
                 cudaStream_t stream) {
  if (rows.data[kDx]) {
    launch(norm_long_sums<T, identity, Rows>,
           {blocks_for(rows.count * parts.count), kRowSumThreads}, stream, rows, parts);
    launch(norm_long_means<T>, warps_for(rows.count, 256), stream, rows, parts);
  }
  const int64_t tiles = ceil_div(ceil_div(rows.length, Vec<T>::kSize), kColumnThreads);
  launch(norm_long_gradients<T, identity, Rows>,
         {backward.count * rows.groups * tiles, kColumnThreads}, stream, rows, backward, parts);
}

template <class T>
void finish_gradients(const NormPlan& plan, const NormBackward& backward, const NormCall& call,
                      cudaStream_t stream) {
  for (int which = 0; which < 2; ++which) {
    const Operand& to = which == 0 ? call.dweight : call.dbias;
    if (!to.data) continue;
    NormGradient gradient{};
    gradient.count = backward.count;
    gradient.groups = plan.rows.groups;
    gradient.padded = backward.padded;
    gradient.params = plan.rows.params;
    gradient.partials =
        backward.partials + which * gradient.count * gradient.groups * gradient.padded;
    gradient.to = plan.param_data[which];
    gradient.dtype = which == 0 ? call.weight_dtype : call.bias_dtype;
    gradient.accumulate = call.accumulate;
    gradient.axes = plan.param_axes[which];
    launch(norm_parameters<T>, {blocks_for(ceil_div(plan.param_count(), kWarp)), 256}, stream,
           gradient);
  }
}

// The gradients of an empty x: zero, or nothing added.
template <class T>
void clear_gradients(const NormCall& call, cudaStream_t stream) {
  for (int which = 0; which < 2; ++which) {
    const Operand& to = which == 0 ? call.dweight : call.dbias;
    if (!to.data || is_empty(to)) continue;
    NormGradient gradient{};
    gradient.to = to.data;
    gradient.dtype = which == 0 ? call.weight_dtype : call.bias_dtype;
    gradient.accumulate = call.accumulate;
    gradient.axes = axes_of(to, item_size(gradient.dtype));
    gradient.groups = 1, gradient.params = gradient.axes.size;
    launch(norm_parameters<T>, {blocks_for(ceil_div(gradient.params, kWarp)), 256}, stream,
           gradient);
  }
}

// Runs visit(rows, identity) with the rows, dense or not, and whether the activation is the
// identity: a constant, true for dense ones alone.
template <class Visit>
void for_layout(const NormPlan& plan, bool identity, Visit visit) {
  if (!plan.is_dense)
    visit(plan.rows, std::false_type());
  else if (identity)
    visit(static_cast<const NormRows&>(plan.rows), std::true_type());
  else
    visit(static_cast<const NormRows&>(plan.rows), std::false_type());
}

}  // namespace

template <class T>
int64_t norm_forward_workspace(const NormCall& call) {
  if (is_norm_columns(call, NormCall::kX, sizeof(T)))
    return norm_columns_forward_workspace<T>(call);
  NormChunks chunks;
  int vecs;
  const NormPlan plan = plan_forward<T>(call, &chunks, &vecs);
  return chunks.count > 1 ? plan.rows.count * (chunks.count + 1) * 2 * int64_t(sizeof(double)) : 0;
}

template <class T>
void norm_forward(const NormCall& call, void* workspace, cudaStream_t stream) {
  if (is_norm_columns(call, NormCall::kX, sizeof(T)))
    return norm_columns_forward<T>(call, workspace, stream);
  NormChunks chunks;
  int vecs;
  const NormPlan plan = plan_forward<T>(call, &chunks, &vecs);
  const int64_t row_count = plan.rows.count;
  chunks.moments = static_cast<double*>(workspace);
  chunks.statistics = chunks.moments + 2 * row_count * chunks.count;
  for_forward_layout<T>(plan, [&](auto rows) {
    using Rows = decltype(rows);
    if (chunks.count == 1)
      return with_vecs<T>(vecs, [&](auto vecs_of_thread) {
        launch(norm_forward_rows<T, decltype(vecs_of_thread)::value, Rows>,
               {ceil_div(row_count, rows.teams), plan.threads}, stream, rows);
      });
    const Shape shape{blocks_for(row_count * chunks.count), plan.threads};
    launch(norm_moments<T, Rows>, shape, stream, rows, chunks);
    launch(norm_merge<T, Rows>, warps_for(row_count, kThreadsOfNarrow), stream, rows, chunks);
    launch(norm_apply_chunks<T, Rows>, shape, stream, rows, chunks);
  });
}

template <class T>
int64_t norm_backward_workspace(const NormCall& call) {
  if (is_empty(call.data[NormCall::kIn])) return 0;
  if (is_norm_columns(call, NormCall::kIn, sizeof(T)))
    return norm_columns_backward_workspace<T>(call);
  NormBackward backward;
  const NormPlan plan = plan_backward<T>(call, &backward);
  return partial_bytes(plan, backward) + spilled_bytes<T>(plan, backward) +
         long_bytes<T>(plan, backward);
}

template <class T>
void norm_backward(const NormCall& call, void* workspace, cudaStream_t stream) {
  if (is_empty(call.data[NormCall::kIn])) return clear_gradients<T>(call, stream);
  if (is_norm_columns(call, NormCall::kIn, sizeof(T)))
    return norm_columns_backward<T>(call, workspace, stream);
  NormBackward backward;
  NormPlan plan = plan_backward<T>(call, &backward);
  backward.partials = static_cast<double*>(workspace);
  backward.spilled = static_cast<char*>(workspace) + partial_bytes(plan, backward);
  const bool identity = call.which == k_identity;
  if (backward.is_long) {
    const NormLong parts = long_of<T>(plan, backward, workspace);
    for_layout(plan, identity, [&](const auto& rows, auto is_identity) {
      launch_long<T, decltype(is_identity)::value>(rows, backward, parts, stream);
    });
    return finish_gradients<T>(plan, backward, call, stream);
  }
  const int64_t blocks = backward.count * backward.blocks;
  for_layout(plan, identity, [&](auto rows, auto is_identity) {
    const auto kernel = norm_backward_rows<T, decltype(is_identity)::value, decltype(rows)>;
    const int shared =
        allot_shared<T>(shared_of(kernel), &plan, &backward, identity && plan.is_dense);
    rows.resident = plan.rows.resident;
    launch_with_shared(kernel, {blocks, plan.threads, 1, 1, shared}, stream, rows, backward);
  });
  finish_gradients<T>(plan, backward, call, stream);
}

template <class T>
void fill_with_nan(const Operand& statistic, cudaStream_t stream) {
  const Axes to = axes_of(statistic, sizeof(Compute<T>));
  launch(fill_nan<Compute<T>>, {blocks_for(ceil_div(to.size, 256)), 256}, stream, to,
         reinterpret_cast<Compute<T>*>(statistic.data));
}

using Storage = FASTACT_STORAGE;
template int64_t norm_forward_workspace<Storage>(const NormCall&);
template void norm_forward<Storage>(const NormCall&, void*, cudaStream_t);
template int64_t norm_backward_workspace<Storage>(const NormCall&);
template void norm_backward<Storage>(const NormCall&, void*, cudaStream_t);
template void fill_with_nan<Storage>(const Operand&, cudaStream_t);

FASTACT_END_NAMESPACE
