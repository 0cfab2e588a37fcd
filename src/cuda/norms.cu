// The norms over units: layer_norm, rms_norm, group_norm, instance_norm, and with a residual.
//
// Channels that come last are norm_columns.cu's. Of all else norm_plan.cuh sorts the axes into
// units and their elements. A unit is a row of packs of 16 bytes, and pack q of it belongs to lane
// q % lanes, whatever lies where: 1 to 32 lanes of a warp for short rows, which share a block, and
// a block of up to 512 threads for longer ones.
//
// Forward. The row is read once and kept in shared memory in its storage type, where each thread
// looks only at what it put there itself: no barrier but those of the sums, no bank conflict, and
// nothing wide in registers while the activation is called. Three passes over that: the mean (and
// the sum with the residual, which is what is kept), the squares about it, and y. rms_norm leaves
// out one. Packs beyond what shared memory holds are read again: a device with less of it takes
// more traffic and gives the same bits. Rows of more than kSplit packs are cut into chunks, a block
// each: their moments, one merging kernel (all chunks of a row at once, about the first one's
// mean), then y.
//
//   Bytes moved: x, residual, total and y once; from kSplit packs on what is normalised twice.
//
// Backward. A block takes a group of a chunk of the batch. x and dy of a tile of up to four rows
// are read and kept; p = dy f'(z) takes dy's place, in the compute type; the sums of g and g xhat;
// then dx, and the columns' sums of p xhat and p, in the compute type for 16 rows and in double
// beyond. Both are kept as x is. Sums of parameters that run elements share (group_norm,
// instance_norm) are taken unit by unit. The partials of the chunks, at most kMostSums bytes of
// them, meet in one finishing kernel in the order of the chunks.
//
//   Bytes moved: dy, x (dtotal) and dx once, and the partials.
//
// Arrays of any other strides go element by element through the same kernels, in the same order;
// backward reads theirs three times.
//
// Statistics are added up in double: a conversion and an addition an element for float32, and for
// 16-bit data a float sum of a pack (its eight numbers have 8 or 11 bits: mostly exact), with one
// conversion each for the squares. The order is a function of the row's length and dtype alone.
//
// No GPU has run these kernels yet: what is said of speed is what they move. For sm_90 nothing of
// dense arrays spills: 64 registers forward (float64: up to 102), 128 backward.
//
// Tried and rejected: rows in registers across the activation's call (100 to 450 bytes of spills);
// backward in 64 registers (134 to 198 bytes, float32); packs at the ends of rows, misaligned ones
// and parameters in their rarer forms inlined wherever they are read (28 bytes forward, and for
// bfloat16 25 s of compiling instead of 11); tiles of arrays of any strides kept as dense ones are
// (up to 132 bytes).
#include "norm_backward.cuh"
#include "norm_columns.h"
#include "norm_forward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kWarpRow = 256;        // packs, at most, of a row that one warp takes
constexpr int64_t kWideRow = 2048;       // packs from which on a block has 512 threads
constexpr int64_t kSplit = 16384;        // packs of a row that one block takes
constexpr int64_t kChunk = 4096;         // packs of a part of a longer one
constexpr int kStaticShared = 2 << 10;   // bytes, at most, of the kernels' own
constexpr int kSharedOfAll = 46 << 10;   // dynamic bytes that every device has
constexpr int64_t kMostSums = 16 << 20;  // bytes of partials
constexpr int64_t kMostChunks = 256;     // of the batch
constexpr int64_t kManyTasks = 1024;
constexpr int kMostTile = 4;

// Dynamic shared memory that a block may have, in bytes.
int shared_of_device() {
  int device, bytes;
  FASTACT_CUDA_CHECK(cudaGetDevice(&device));
  FASTACT_CUDA_CHECK(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes - kStaticShared;
}

// Queues a kernel with as much dynamic shared memory as it needs.
template <class... Parameters, class... Arguments>
void launch_with_shared(void (*kernel)(Parameters...), const Shape& shape, cudaStream_t stream,
                        const Arguments&... arguments) {
  if (shape.shared > kSharedOfAll)
    FASTACT_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            shape.shared));
  launch(kernel, shape, stream, arguments...);
}

int64_t blocks_for(int64_t tasks) { return std::min(tasks, kMaxBlocks); }

template <class T>
int64_t row_packs(const NormPlan& plan) {
  return ceil_div(plan.rows.row, Pack<T>::kSize);
}

void set_lanes(NormPlan* plan, int64_t packs, int lanes) {
  plan->rows.lanes = lanes;
  plan->threads = lanes <= kWarp ? kThreadsOfNarrow : lanes;
  plan->rows.teams = plan->threads / lanes;
  plan->rows.per_lane = int(ceil_div(packs, lanes));
}

template <class T>
NormPlan plan_forward(const NormCall& call, NormChunks* chunks) {
  const bool outputs[4] = {false, false, call.data[NormCall::kTotal].data != nullptr, true};
  NormPlan plan = plan_norm<T>(call, NormCall::kX, outputs);
  const int64_t packs = row_packs<T>(plan);
  *chunks = {packs, 1, nullptr, nullptr};
  if (packs > kSplit) *chunks = {kChunk, ceil_div(packs, kChunk), nullptr, nullptr};
  if (packs <= kWarpRow)
    set_lanes(&plan, packs, power_of_two_from(ceil_div(packs, kInFlight), kWarp));
  else
    set_lanes(&plan, chunks->size, packs < kWideRow ? kThreadsOfNarrow : kNormThreads);
  return plan;
}

template <class T>
NormPlan plan_backward(const NormCall& call, NormBackward* backward) {
  const bool outputs[4] = {false, false, false, true};
  NormPlan plan = plan_norm<T>(call, NormCall::kIn, outputs);
  const NormRows& rows = plan.rows;
  const int64_t packs = row_packs<T>(plan);
  const bool has_parameters = call.weight.data || call.bias.data;
  const bool has_sums = call.dweight.data || call.dbias.data;
  const bool by_slots = has_parameters && rows.run > 1;
  const int most_lanes = packs < kWideRow ? kThreadsOfNarrow : kNormThreads;
  if (by_slots || packs > 2 * kWarp)
    set_lanes(&plan, packs, std::max(2 * kWarp, power_of_two_from(packs, most_lanes)));
  else
    set_lanes(&plan, packs, power_of_two_from(packs, kWarp));

  *backward = {};
  backward->has_slots = has_sums && by_slots;
  backward->has_columns = has_sums && !by_slots;
  const int64_t run_packs = rows.run / Pack<T>::kSize + 1;
  backward->slot_lanes = run_packs > 2 * kWarp ? plan.threads : power_of_two_from(run_packs, kWarp);
  backward->padded = ceil_div(rows.params, 8) * 8;

  // A chunk of the batch: without sums as many blocks as there may be.
  const int64_t bytes = 2 * rows.groups * backward->padded * int64_t(sizeof(double));
  const int64_t most =
      std::max<int64_t>(1, std::min({kMostSums / bytes, kManyTasks / rows.groups, kMostChunks}));
  const int64_t least = int64_t(plan.rows.teams) * (by_slots ? 1 : kMostTile);
  backward->size = std::max(least, has_sums ? ceil_div(rows.batch, most) : int64_t(1));
  // No more blocks than a grid has, whatever the batch.
  backward->size = std::max(backward->size, ceil_div(rows.units, kMaxBlocks / 2));
  backward->count = ceil_div(rows.batch, backward->size);
  return plan;
}

// Bytes of a thread for the sums of its columns.
template <class T>
int64_t bytes_of_sums(const NormPlan& plan) {
  return plan.rows.per_lane * 2 * Pack<T>::kSize * int64_t(sizeof(Compute<T>));
}

int64_t partial_bytes(const NormPlan& plan, const NormBackward& backward) {
  if (!backward.has_columns && !backward.has_slots) return 0;
  return 2 * backward.count * plan.rows.groups * backward.padded * int64_t(sizeof(double));
}

// Sums that some device may have no shared memory for.
template <class T>
int64_t spilled_bytes(const NormPlan& plan, const NormBackward& backward) {
  const int64_t block = bytes_of_sums<T>(plan) * plan.threads;
  if (!backward.has_columns || block <= kSharedOfAll / 2) return 0;
  return backward.count * plan.rows.groups * block;
}

// Shares out shared memory: first to the sums of the columns, then to rows.
template <class T>
int share_out(NormPlan* plan, NormBackward* backward, bool identity) {
  const int planes = kPlanes<T>;
  const int row = 1 + (identity ? 1 : planes);
  const int facts = int(4 * sizeof(Compute<T>)) / kPackBytes;
  const int per_lane = plan->rows.per_lane;
  const int64_t slot = int64_t(kPackBytes) * plan->threads;
  const auto bytes_of = [&](int tile, int resident, int sums) {
    return (tile * resident * row + sums * 2 * planes) * slot +
           int64_t(tile) * plan->rows.teams * facts * kPackBytes;
  };
  const int64_t all = shared_of_device(), half = (all - kStaticShared) / 2;
  int sums = backward->has_columns ? per_lane : 0;
  int tile = backward->has_slots || !plan->is_dense ? 1 : kMostTile;
  int resident = plan->is_dense ? per_lane : 0;
  while (tile > 1 && bytes_of(tile, resident, sums) > half) tile /= 2;
  if (bytes_of(tile, resident, sums) > all) {
    const int64_t left = all - bytes_of(tile, 0, 0);
    sums = int(std::min<int64_t>(sums, left / (2 * planes * slot)));
    resident = int(std::min<int64_t>(resident, (all - bytes_of(tile, 0, sums)) / (row * slot)));
  }
  backward->tile = tile;
  backward->sums_resident = sums;
  plan->rows.resident = resident;
  return int(bytes_of(tile, resident, sums));
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
    gradient.to = plan.slot_data[which];
    gradient.dtype = which == 0 ? call.weight_dtype : call.bias_dtype;
    gradient.accumulate = call.accumulate;
    gradient.axes = plan.slot_axes;
    std::copy(plan.slot_length, plan.slot_length + kNormAxes, gradient.length);
    std::copy(plan.slot_stride[which], plan.slot_stride[which] + kNormAxes, gradient.stride);
    launch(norm_parameters<T>, {blocks_for(ceil_div(plan.slots(), kWarp)), 256}, stream, gradient);
  }
}

// Sums of nothing, for every element of a parameter.
template <class T>
void clear_gradients(const NormCall& call, cudaStream_t stream) {
  for (int which = 0; which < 2; ++which) {
    const Operand& to = which == 0 ? call.dweight : call.dbias;
    if (!to.data || is_empty(to)) continue;
    NormGradient gradient{};
    gradient.groups = gradient.params = 1;
    gradient.to = to.data;
    gradient.dtype = which == 0 ? call.weight_dtype : call.bias_dtype;
    gradient.accumulate = call.accumulate;
    for (int i = 0; i < to.ndim; ++i) {
      if (to.shape[i] == 1) continue;
      gradient.length[gradient.axes] = to.shape[i];
      gradient.stride[gradient.axes++] = byte_stride(to, i, item_size(gradient.dtype));
      gradient.params *= to.shape[i];
    }
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
  const NormPlan plan = plan_forward<T>(call, &chunks);
  return chunks.count > 1 ? plan.rows.units * (chunks.count + 1) * 2 * int64_t(sizeof(double)) : 0;
}

template <class T>
void norm_forward(const NormCall& call, void* workspace, cudaStream_t stream) {
  if (is_norm_columns(call, NormCall::kX, sizeof(T)))
    return norm_columns_forward<T>(call, workspace, stream);
  NormChunks chunks;
  NormPlan plan = plan_forward<T>(call, &chunks);
  chunks.moments = static_cast<double*>(workspace);
  chunks.statistics = chunks.moments + 2 * plan.rows.units * chunks.count;
  const int64_t slot = int64_t(kPackBytes) * plan.threads;
  plan.rows.resident = int(std::min<int64_t>(plan.rows.per_lane, shared_of_device() / slot));
  const int shared = int(plan.rows.resident * slot);
  const int64_t units = plan.rows.units;
  for_layout(plan, call.which == k_identity, [&](auto rows, auto identity) {
    using Rows = decltype(rows);
    constexpr bool kIdentity = decltype(identity)::value;
    if (chunks.count == 1) {
      launch_with_shared(norm_forward_units<T, kIdentity, Rows>,
                         {blocks_for(ceil_div(units, plan.rows.teams)), plan.threads, 1, 1, shared},
                         stream, rows);
      return;
    }
    const int64_t blocks = blocks_for(units * chunks.count);
    launch_with_shared(norm_moments<T, Rows>, {blocks, plan.threads, 1, 1, shared}, stream, rows,
                       chunks);
    launch(norm_merge<T, Rows>,
           {blocks_for(ceil_div(units, kThreadsOfNarrow / kWarp)), kThreadsOfNarrow}, stream, rows,
           chunks);
    rows.resident = 0;
    launch(norm_apply_chunks<T, kIdentity, Rows>, {blocks, plan.threads}, stream, rows, chunks);
  });
}

template <class T>
int64_t norm_backward_workspace(const NormCall& call) {
  if (is_empty(call.data[NormCall::kIn])) return 0;
  if (is_norm_columns(call, NormCall::kIn, sizeof(T)))
    return norm_columns_backward_workspace<T>(call);
  NormBackward backward;
  const NormPlan plan = plan_backward<T>(call, &backward);
  return partial_bytes(plan, backward) + spilled_bytes<T>(plan, backward);
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
  const int shared = share_out<T>(&plan, &backward, identity && plan.is_dense);
  const int64_t blocks = backward.count * plan.rows.groups;
  for_layout(plan, identity, [&](const auto& rows, auto is_identity) {
    using Rows = std::decay_t<decltype(rows)>;
    launch_with_shared(norm_backward_units<T, decltype(is_identity)::value, Rows>,
                       {blocks, plan.threads, 1, 1, shared}, stream, rows, backward);
  });
  finish_gradients<T>(plan, backward, call, stream);
}

template <class T>
void fill_with_nan(const Operand& statistic, cudaStream_t stream) {
  Outer to{};
  to.size = 1;
  for (int i = 0; i < statistic.ndim; ++i) {
    if (statistic.shape[i] == 1) continue;
    to.length[to.count] = statistic.shape[i];
    to.y[to.count++] = byte_stride(statistic, i, sizeof(Compute<T>));
    to.size *= statistic.shape[i];
  }
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
