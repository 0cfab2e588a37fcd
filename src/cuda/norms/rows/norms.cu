// layer_norm, rms_norm, group_norm, instance_norm, and the first two with a residual.
//
// A normalization row is a set of elements that share a mean and a standard deviation: a row of
// layer_norm, a group of group_norm, a channel of an example of instance_norm. plan.cuh sorts the
// axes of the arrays into rows and the elements of a row. Arrays whose channels come last go to
// norms/channels/channels.cu instead.
//
// core/held_rows.cuh says how the kernels take rows: by vectors of 16 bytes, some lanes of a warp
// or a block a row, long ones in chunks.
//
// Forward (core/row_kernels.cuh), three passes over one row, which registers hold (forward.cuh):
//   1. read x (and add the residual); a mean near enough (rms_norm leaves that out)
//   2. the distances from it and their squares
//   3. y = f(z)
// Two folds over the threads of a row. Rows of more than kHeldRow vectors are cut into chunks:
// moments of the chunks, one kernel that merges them, then y. Up to 16 chunks are one kernel
// instead where the device has clusters and there is no residual.
//
//   Bytes moved: x, residual, total and y once; beyond kHeldRow vectors, pass 3 reads again unless
//   a cluster holds the row.
//
// Backward, two kernels:
//   1. reads x and dy of a row into registers, adds up g = p w and g xhat over the row, writes dx,
//      and adds p xhat and p to the sums of each column, which a team has for the rows of its part
//   2. adds up the sums of the parts, in their order, to dweight and dbias
// There are as many parts as an H200 runs blocks at a time, for any batch and on any device.
//
//   Bytes moved: dy, x (dtotal) and dx once; the parts' sums, two numbers of the compute type for a
//   parameter and part, written and read again.
//
// A row of more than kHeldBackward vectors takes four kernels: the sums of its chunks, the means
// that follow from them, then kernel 1 with given means, in which a block has the same tile of
// columns of several rows, then kernel 2. dy and x are read twice.
//
// Whole vectors of a quick row (plan.cuh) have kernels of their own, without the tests that
// misaligned or partial vectors need. Short rows that are no whole vectors, as planes of 7 x 7, go
// forward through shared memory. Arrays of any other strides go element by element in the same
// order, hence with the same bits.
//
// Where x is dropped, dropout's kernel (cuda/bias) makes the sum before, or the gradient of x
// behind: five arrays move for four, and no kernel here draws.
//
// Instruction counts and rejected alternatives: docs/design/cuda.md, "Norms over rows".
#include <numeric>

#include "common/bias/call.h"
#include "cuda/core/device.h"
#include "cuda/core/native_function.h"
#include "cuda/norms/channels/channels_last.h"
#include "cuda/norms/rows/backward_ahead.cuh"
#include "cuda/norms/rows/forward.cuh"
#include "cuda/norms/rows/gated_backward.cuh"

FASTACT_BEGIN_NAMESPACE

template <class T>
void dropout(const DropoutCall& call, cudaStream_t stream);  // bias/bias.cu

namespace {

constexpr int64_t kSharedOfAll = 46 << 10;  // bytes of shared memory that every device has
constexpr int kTileThreads = 128;           // of a block that has a tile of long rows
constexpr int64_t kLongRows = 4;            // rows of the batch in a part, at least, for long rows

template <class T>
int64_t row_vecs(const NormPlan& plan) {
  return ceil_div(plan.rows.length, Vec<T>::kSize);
}

// Short rows that are no whole vectors: few threads with many vectors each, for what a thread does
// once for its row takes longer than their elements.
constexpr int kTileVecs = 4;
template <class T>
bool has_tile_shape(const NormRows& rows) {
  constexpr int kSize = Vec<T>::kSize;
  return rows.length % kSize != 0 && rows.length <= kTileVecs * kWarp * kSize;
}

template <class T>
NormPlan plan_forward(const NormCall& call) {
  const bool outputs[kDataRoles] = {false, false, call.data[NormCall::kTotal].data != nullptr,
                                    true};
  NormPlan plan = plan_norm<T>(call, NormCall::kX, outputs);
  const int64_t vecs = row_vecs<T>(plan);
  const int64_t size = std::min(vecs, kHeldRow<T>);
  plan.shape = row_shape<T>(size);
  if (has_tile_shape<T>(plan.rows))
    plan.shape = {kTileVecs, power_of_two_from(ceil_div(size, kTileVecs), kWarp), kThreadsOfNarrow};
  plan.rows.lay(plan.shape, {size, ceil_div(vecs, size)});
  return plan;
}

// Whether rows are planes of a few vectors that touch, each with one parameter or several in runs:
// a block copies them to shared memory.
template <class T>
bool are_tiles(const NormPlan& plan) {
  const NormRows& rows = plan.rows;
  bool fit = plan.is_dense && has_tile_shape<T>(rows);
  fit &= !rows.casts && !rows.has_gate() && rows.weight_offset == 0 && !rows.data[kResidual] &&
         !rows.data[kTotal];
  if (rows.data[kWeightRole] || rows.data[kBiasRole]) fit &= rows.run >= Vec<T>::kSize;
  for (const int k : {kX, kY})
    fit &= !rows.repeated[k] && rows.pitch[k] == rows.length * int64_t(sizeof(T)) &&
           reinterpret_cast<uintptr_t>(rows.data[k]) % kVecBytes == 0;
  return fit;
}

// Whether the gate's activation is compiled in, of quick rows. No bias stands beside it.
template <class T>
bool has_fixed_gate(const NormRows& rows) {
  const bool has_runs = rows.run > 1 && rows.data[kWeightRole];
  return rows.which == kFixedGate && !has_runs && !rows.data[kBiasRole] &&
         sizeof(T) < sizeof(double);
}

// Runs visit(norm) with the functor of a norm over rows of a kind.
template <class T, class Rows, class Visit>
void with_gate(const Rows& rows, Visit visit) {
  if (!rows.has_gate()) return visit(NormOf<T>{});
  if constexpr (!Rows::kQuick) {
    visit(NormOf<T, AnyGate>{});
  } else if constexpr (sizeof(T) < sizeof(double) && !Rows::kHasRuns) {
    rows.gate_first ? visit(NormOf<T, FixedGate<true>>{}) : visit(NormOf<T, FixedGate<false>>{});
  }
}

// Runs visit(rows, vecs) with the rows as the forward kernels take them, and the vectors of a
// thread.
template <class T, class Visit>
void for_forward_layout(const NormPlan& plan, Visit visit) {
  const NormRows& rows = plan.rows;
  const std::integral_constant<int, kMostVecs<T>> most;
  if (!plan.is_dense) return visit(plan.rows, most);
  const bool quick_data = rows.quick && rows.length % Vec<T>::kSize == 0;
  const bool is_plain = rows.has_gate() ? has_fixed_gate<T>(rows) : rows.which == k_identity;
  if (!is_plain || (!quick_data && !are_tiles<T>(plan))) return visit(NormRows(rows), most);
  const auto visit_quick = [&](auto quick, auto vecs) {
    static_cast<NormRows&>(quick) = rows;
    visit(quick, vecs);
  };
  if (!quick_data) return visit_quick(NormElements(), std::integral_constant<int, kTileVecs>());
  const bool has_runs = rows.run > 1 && (rows.data[kWeightRole] || rows.data[kBiasRole]);
  with_vecs<T>(plan.shape.vecs, [&](auto vecs) {
    has_runs ? visit_quick(NormRuns(), vecs) : visit_quick(NormQuick(), vecs);
  });
}

// Vectors of a thread, and of a row that a block holds, at most, backward.
template <class T>
constexpr int kMostBackward = sizeof(T) == 4 ? 3 : 2;
template <class T>
constexpr int64_t kHeldBackward = kMostBackward<T> * kRowThreads;

// The shape of the blocks backward, for rows of so many vectors: vectors of a thread, lanes of a
// row, threads of a block. A thread holds its columns' weights and sums besides two rows, so fewer
// vectors fit than forward. One vector a thread is best as long as a row then has at most 512
// threads (256 of 16 bits). A row has at least two lanes, for each folds one of two sums.
template <class T>
RowShape backward_shape(int64_t vecs) {
  if (vecs <= 2 * kWarp) return {2, std::max(2, power_of_two_from(ceil_div(vecs, 2), kWarp)), 256};
  const int most_of_one = sizeof(T) == 2 ? 256 : 512;
  const int of_thread = vecs <= most_of_one ? 1 : vecs <= 2 * kRowThreads ? 2 : 3;
  const int lanes = int(ceil_div(ceil_div(vecs, of_thread), kWarp)) * kWarp;
  return {of_thread, lanes, lanes};
}

// Whether a row's block has a kernel whose next rows wait in shared memory; threads that a
// multiprocessor has then.
template <class T>
constexpr int ahead_threads(int vecs) {
  return vecs == 1 ? kAheadThreads<T, 1> : vecs == 2 ? kAheadThreads<T, 2> : kAheadThreads<T, 4>;
}
template <class T>
bool has_rows_ahead(const RowShape& shape) {
  return sizeof(T) < sizeof(double) && shape.vecs <= 2 && shape.lanes > kWarp &&
         shape.lanes == shape.threads;
}

// Rows that no block holds: the blocks of a cluster, a power of two, and their shape. One block:
// other kernels take them.
struct ClusterShape {
  int blocks;
  RowShape shape;
};
constexpr ClusterShape one_block{1, {kLongVecs, kLongThreads, kLongThreads}};
template <class T>
ClusterShape cluster_shape(int64_t vecs) {
  constexpr int kMost = 8, kVecs = sizeof(T) == 4 ? 4 : 2;
  constexpr int64_t kLargest = kVecs * kRowThreads;
  if (sizeof(T) == sizeof(double) || vecs > kMost * kLargest) return one_block;
  const int blocks = power_of_two_from(ceil_div(vecs, kLargest), kMost);
  const int lanes = int(ceil_div(ceil_div(vecs, kVecs * blocks), kWarp)) * kWarp;
  return {blocks, {kVecs, lanes, lanes}};
}
// How many clusters an H200 runs at a time. The blocks of a cluster are of one group of its
// multiprocessors, and 15 clusters of 8 fit: with 16 the last one has a wave for itself, and rows
// of 65 536 floats took 176 us for 124.
template <class T>
int64_t clusters_of_all(const ClusterShape& cluster) {
  const int of_multiprocessor = std::max(1, kRowThreads / cluster.shape.threads);
  const int multiprocessors = cluster.blocks <= 2 ? 132 : 120;
  return std::max(1, multiprocessors * of_multiprocessor / cluster.blocks);
}

// How many blocks of a shape an H200 runs at a time. They are the parts of the batch, on which the
// order of sums depends; so other devices run as many, in as many waves as it takes.
template <class T>
int64_t blocks_of_all(const RowShape& shape) {
  constexpr int kMultiprocessors = 132;
  const int resident =
      has_rows_ahead<T>(shape) ? ahead_threads<T>(shape.vecs) : resident_threads<T>(shape.vecs);
  return kMultiprocessors * std::max(1, resident / shape.threads);
}

template <class T>
struct BackwardPlan : NormPlan {
  NormSums<Compute<T>> sums;
  int64_t blocks;
  ClusterShape cluster;
  bool is_long;
  // Bytes of scratch memory: the parts' sums, the blocks' sums that shared memory has no room for,
  // the sums of the chunks of long rows, and the means that follow from them.
  int64_t bytes[4];
  int64_t bytes_before(int k) const { return std::accumulate(bytes, bytes + k, int64_t(0)); }
};

// Shared memory of a block for its columns' sums.
template <class T, class Rows>
int64_t shared_bytes(const BackwardPlan<T>& plan) {
  if (!plan.sums.is_wanted) return 0;
  return int64_t(ColumnSums<T, 1, Rows>::kBytes) * plan.sums.vecs * plan.shape.threads;
}
template <class T>
int most_shared() {
  return shared_of(norm_backward_rows<T, kMostBackward<T>, kAnyWay, NormRows>).most;
}

// Lanes and parts do not depend on the strides, so neither do bits.
template <class T>
BackwardPlan<T> plan_backward(const NormCall& call) {
  const bool outputs[kDataRoles] = {false, false, false, true, false, true};
  BackwardPlan<T> plan{};
  static_cast<NormPlan&>(plan) = plan_norm<T>(call, NormCall::kIn, outputs);
  NormRows& rows = plan.rows;
  auto& sums = plan.sums;
  const int64_t vecs = row_vecs<T>(plan);
  sums.is_wanted = call.dweight.data || call.dbias.data;
  // A short run has few lanes, for many of them share a block.
  constexpr int64_t kRunOfLane = 8;  // elements
  sums.run_lanes = power_of_two_from(ceil_div(rows.run, kRunOfLane), kWarp);
  sums.tiles = 1;
  plan.shape = backward_shape<T>(vecs);
  rows.lay(plan.shape, {vecs, 1});
  plan.cluster.blocks = 1;
  plan.is_long = vecs > kHeldBackward<T>;
  if (plan.is_long) {
    plan.cluster = rows.has_gate() ? one_block : cluster_shape<T>(vecs);
    const RowShape& chunk = plan.cluster.shape;
    const int64_t size = chunk.vecs * chunk.lanes;
    sums.tiles = ceil_div(vecs, kTileThreads);
    rows.lay(chunk, {size, ceil_div(vecs, size)});
    plan.shape = {1, chunk.lanes, kTileThreads};
  }

  sums.vecs = plan.shape.vecs;

  // Teams that share a group. Those of a block add up their sums where there is one group.
  const int64_t most = plan.is_long ? ceil_div(rows.batch, kLongRows) : rows.batch;
  int64_t teams = blocks_of_all<T>(plan.shape) * rows.teams / (rows.groups * sums.tiles);
  if (plan.cluster.blocks > 1) teams = clusters_of_all<T>(plan.cluster) / rows.groups;
  teams = std::max<int64_t>(1, teams);
  sums.step = std::max(std::min(teams, most), ceil_div(rows.batch, INT32_MAX));
  if (rows.groups == 1) sums.step = ceil_div(sums.step, rows.teams) * rows.teams;
  plan.blocks = ceil_div(sums.step * rows.groups, rows.teams) * sums.tiles;
  sums.parts = rows.groups == 1 ? sums.step / rows.teams : sums.step;
  if (rows.run > 1) sums.parts *= sums.tiles;
  sums.row_step = sums.step * rows.groups;
  sums.rounds = int(ceil_div(rows.batch, sums.step));
  for (int k = 0; k < kStatEnd; ++k) sums.stride[k] = rows.pitch[k] * sums.row_step;

  const int64_t shared = shared_bytes<T, NormRows>(plan);
  plan.bytes[0] = sums.is_wanted ? sums.parts * 2 * plan.param_count() * sizeof(Compute<T>) : 0;
  plan.bytes[0] = ceil_div(plan.bytes[0], kVecBytes) * kVecBytes;
  plan.bytes[1] = shared > kSharedOfAll ? plan.blocks * shared : 0;
  if (plan.is_long) {
    plan.bytes[2] = 2 * rows.count * plan.rows.chunks.count * int64_t(sizeof(double));
    plan.bytes[3] = 2 * rows.count * int64_t(sizeof(Compute<T>));
  }
  return plan;
}

// Whether the rows are whole aligned vectors with a gate whose activation is compiled in. Their
// kernels count the vectors of an array in 32 bits.
template <class T>
bool is_quickly_gated(const BackwardPlan<T>& plan) {
  const NormRows& rows = plan.rows;
  bool is_quick = plan.is_dense && rows.quick && rows.length % Vec<T>::kSize == 0 &&
                  has_fixed_gate<T>(rows) && !is_centred(rows.norm) &&
                  shared_bytes<T, NormQuick>(plan) <= most_shared<T>();
  for (int k = 0; k < kDataRoles && is_quick; ++k)
    if (rows.data[k])
      is_quick = rows.pitch[k] >= 0 &&
                 (rows.count + 1) * rows.pitch[k] / kVecBytes + vecs_of<T>(rows) < UINT32_MAX;
  return is_quick;
}

// Runs visit(rows) with the rows as the backward kernels take them.
template <class T, class Visit>
void for_backward_layout(const BackwardPlan<T>& plan, Visit visit) {
  const NormRows& rows = plan.rows;
  const auto visit_fixed = [&](auto gated_rows) {
    static_cast<NormRows&>(gated_rows) = rows;
    for (int k = 0; k < kDataRoles; ++k)
      gated_rows.pitch_vecs[k] = uint32_t(rows.pitch[k] / kVecBytes);
    visit(gated_rows);
  };
  if constexpr (sizeof(T) < sizeof(double)) {
    if (rows.has_gate() && is_quickly_gated<T>(plan))
      return rows.gate_first ? visit_fixed(NormQuickGated<true>())
                             : visit_fixed(NormQuickGated<false>());
  }
  if (!plan.is_dense) return visit(plan.rows);
  bool quick = rows.which == k_identity && !rows.casts && !rows.has_gate();
  quick &= !rows.data[kDTotal] || !rows.data[kDx] || rows.pitch[kDTotal] == rows.pitch[kDx];
  quick &= !rows.data[kMeanRole] || rows.pitch[kMeanRole] == rows.pitch[kRstdRole];
  quick &= shared_bytes<T, NormQuick>(plan) <= most_shared<T>();
  bool whole = rows.length % Vec<T>::kSize == 0;
  for (int k = 0; k < kDataRoles; ++k) {
    quick &= !rows.repeated[k];
    whole &= !rows.data[k] || rows.fast[k];
  }
  const auto visit_quick = [&](auto quick_rows) {
    static_cast<NormRows&>(quick_rows) = rows;
    visit(quick_rows);
  };
  if (!quick) return visit(rows);
  whole ? visit_quick(NormQuick()) : visit_quick(NormElements());
}

// Launches the kernel whose next rows wait in shared memory, if there is one for such rows and the
// device has what it needs.
template <class T, int vecs, bool in_clusters>
bool launch_ahead_of(const NormQuick& rows, NormSums<Compute<T>> sums, const BackwardPlan<T>& plan,
                     const RowShape& shape, cudaStream_t stream) {
  const int cluster = in_clusters ? plan.cluster.blocks : 1;
  const bool whole = vecs_of<T>(rows) == int64_t(vecs) * shape.lanes * cluster;
  const auto kernel = whole ? norm_backward_ahead<T, vecs, in_clusters, true>
                            : norm_backward_ahead<T, vecs, in_clusters, false>;
  AheadSteps steps{};
  constexpr int64_t kMost = UINT32_MAX / 2;
  int64_t pitch[kStatEnd];
  for (int k = 0; k < kStatEnd; ++k) {
    pitch[k] = rows.data[k] ? rows.pitch[k] / (k < kDataRoles ? kVecBytes : 1) : 0;
    if (pitch[k] < 0 || pitch[k] > kMost || (k < kDataRoles && pitch[k] > kMost / rows.count))
      return false;
    steps.pitch[k] = unsigned(pitch[k]);
  }
  if (rows.count > kMost || sums.row_step * kMostAhead > kMost) return false;
  steps.count = unsigned(rows.count), steps.row_step = unsigned(sums.row_step);
  const int64_t row = int64_t(2 * vecs) * kVecBytes * shape.threads;
  const int64_t totals = int64_t(ColumnSums<T, vecs, NormQuick>::kBytes) * vecs * shape.threads;
  const SharedMemory shared = shared_of(kernel);
  if (totals + row > shared.most) return false;
  const int beside = std::max(1, kAheadBound<T, vecs, in_clusters> / shape.threads);
  const int64_t room = shared.most / beside - (1 << 10);
  steps.ahead = int(std::min<int64_t>(std::max<int64_t>((room - totals) / row, 1), kMostAhead));
  sums.tiles = cluster;
  const Shape grid{sums.step * rows.groups * cluster, shape.threads, 1, 1,
                   int(totals + steps.ahead * row),   cluster};
  if (in_clusters && !has_room_for_clusters(reinterpret_cast<const void*>(kernel), grid))
    return false;
  launch_with_shared(kernel, grid, stream, rows, sums, steps);
  return true;
}
template <class T, class Rows>
bool launch_ahead(const Rows& rows, const NormSums<Compute<T>>& sums, const BackwardPlan<T>& plan,
                  cudaStream_t stream) {
  if constexpr (std::is_same_v<Rows, NormQuick> && sizeof(T) < sizeof(double)) {
    constexpr int kOfCluster = sizeof(T) == 4 ? 4 : 2;
    if (rows.run > 1 || !sums.is_wanted || !rows.data[kDx]) return false;
    if (plan.cluster.blocks > 1)
      return launch_ahead_of<T, kOfCluster, true>(rows, sums, plan, plan.cluster.shape, stream);
    if (plan.is_long || !has_rows_ahead<T>(plan.shape)) return false;
    return plan.shape.vecs == 1
               ? launch_ahead_of<T, 1, false>(rows, sums, plan, plan.shape, stream)
               : launch_ahead_of<T, 2, false>(rows, sums, plan, plan.shape, stream);
  }
  return false;
}

template <class T, int vecs, MeansBy by, class Rows>
auto backward_kernel() {
  if constexpr (Rows::kHasFixedGate)
    return norm_backward_rows_gated<T, vecs, by, Rows>;
  else
    return norm_backward_rows<T, vecs, by, Rows>;
}
template <class T, class Rows>
void launch_backward(const Rows& rows, NormSums<Compute<T>> sums, const BackwardPlan<T>& plan,
                     cudaStream_t stream) {
  const int64_t shared = shared_bytes<T, Rows>(plan);
  const bool fits = shared <= most_shared<T>();
  if (fits) sums.spilled = nullptr;
  const Shape shape{plan.blocks, plan.shape.threads, 1, 1, fits ? int(shared) : 0};
  const auto go = [&](auto kernel) { launch_with_shared(kernel, shape, stream, rows, sums); };
  constexpr int kMost = kMostBackward<T>;
  if constexpr (!Rows::kQuick) {  // one kernel for all: its calls make the code large
    go(backward_kernel<T, kMost, kAnyWay, Rows>());
  } else {
    if (plan.is_long) return go(backward_kernel<T, 1, kGiven, Rows>());
    if (plan.shape.lanes <= kWarp) return go(backward_kernel<T, 2, kWarpLanes, Rows>());
    if constexpr (Rows::kWhole) {
      if (plan.shape.vecs == 1) return go(backward_kernel<T, 1, kBlockLanes, Rows>());
      if (plan.shape.vecs < kMost) return go(backward_kernel<T, 2, kBlockLanes, Rows>());
    }
    go(backward_kernel<T, kMost, kBlockLanes, Rows>());
  }
}

template <class T>
void finish_gradients(const NormCall& call, NormGradients<Compute<T>>* gradients,
                      cudaStream_t stream) {
  gradients->dtype[0] = call.weight.dtype, gradients->dtype[1] = call.bias.dtype;
  gradients->accumulate = call.accumulate;
  const auto run = [&](auto together, auto kernel) {
    const int64_t blocks = ceil_div(gradients->params, kRowThreads / decltype(together)::value);
    launch(kernel, {blocks_for(blocks), kRowThreads, 1, 2}, stream, *gradients);
  };
  constexpr int kPartsOfThread = 8;
  if (gradients->parts <= kPartsOfThread)
    run(std::integral_constant<int, 1>(), norm_parameters<T, 1>);
  else if (gradients->parts <= 4 * kPartsOfThread)
    run(std::integral_constant<int, 4>(), norm_parameters<T, 4>);
  else
    run(std::integral_constant<int, 16>(), norm_parameters<T, 16>);
}

// The gradients for an empty x: 0, or nothing is added.
template <class T>
void clear_gradients(const NormCall& call, cudaStream_t stream) {
  const auto clear = [&](const Operand& to, int dtype) {
    if (!to.data || is_empty(to) || call.accumulate) return;
    fill_numbers<T>(axes_of(to, item_size(dtype)), to.data, dtype, 0.0, stream);
  };
  clear(call.dweight, call.weight.dtype), clear(call.dbias, call.bias.dtype);
}

// Writes NaN to a statistic, if it is wanted, of rows without elements.
template <class T>
void fill_with_nan(const Operand& statistic, cudaStream_t stream) {
  if (!statistic.data || is_empty(statistic)) return;
  const Axes to = axes_of(statistic, sizeof(Compute<T>));
  fill_numbers<T>(to, statistic.data, kDTypeOf<Compute<T>>, __builtin_nan(""), stream);
}

// Runs dropout's kernel; y OUT, or with `accumulate` IN/OUT. p: the call's own, or 0.
template <class T>
void drop(const NormCall& call, double p, const ArrayArgument& x, const ArrayArgument& residual,
          const ArrayArgument& y, bool accumulate, cudaStream_t stream) {
  dropout<T>({{x, residual, y}, p, call.seed, call.offset, accumulate}, stream);
}

// The forward call of the sum, once it is there.
NormCall of_total(const NormCall& call) {
  NormCall of = call;
  of.p = 0, of.data[NormCall::kX] = call.data[NormCall::kTotal];
  of.data[NormCall::kResidual].shape = of.data[NormCall::kTotal].shape = nullptr;
  of.data[NormCall::kResidual].data = of.data[NormCall::kTotal].data = nullptr;
  return of;
}

// Whether a gradient needs memory until it is dropped: arrays that it is added to can't hold it.
bool needs_gradient(const NormCall& call) { return call.dropped.data && call.accumulate; }
template <class T>
int64_t gradient_begins(const BackwardPlan<T>& plan) {
  return ceil_div(plan.bytes_before(4), kVecBytes) * kVecBytes;
}

}  // namespace

// For an empty x statistics are NaN and gradients of parameters 0.
template <class T>
int64_t norm_forward_workspace(const NormCall& call) {
  if (call.p > 0) return norm_forward_workspace<T>(of_total(call));
  if (is_empty(call.data[NormCall::kX])) return 0;
  if (is_norm_columns(call, NormCall::kX, sizeof(T)))
    return norm_columns_workspace<T>(call, NormCall::kX);
  const NormRows rows = plan_forward<T>(call).rows;
  return chunk_bytes<NormOf<T>>(rows.count, rows.chunks.count);
}

template <class T>
void norm_forward(const NormCall& call, void* workspace, cudaStream_t stream) {
  if (is_empty(call.data[NormCall::kX])) {
    fill_with_nan<T>(call.mean, stream);
    return fill_with_nan<T>(call.rstd, stream);
  }
  if (call.p > 0) {
    drop<T>(call, call.p, call.data[NormCall::kX], call.data[NormCall::kResidual],
            call.data[NormCall::kTotal], false, stream);
    return norm_forward<T>(of_total(call), workspace, stream);
  }
  if (is_norm_columns(call, NormCall::kX, sizeof(T)))
    return norm_columns_forward<T>(call, workspace, stream);
  const NormPlan plan = plan_forward<T>(call);
  const int64_t blocks = ceil_div(plan.rows.count, plan.rows.teams) * plan.rows.chunks.count;
  for_forward_layout<T>(plan, [&](auto rows, auto vecs) {
    constexpr int kVecs = decltype(vecs)::value;
    using Rows = decltype(rows);
    if constexpr (Rows::kByElement) {
      const int64_t shared = rows.teams * rows.length * int64_t(sizeof(T));
      launch(forward_rows<T, kVecs, kWholeRows, NormOf<T>, Rows>,
             {blocks, plan.shape.threads, 1, 1, int(shared)}, stream, rows, NormOf<T>{},
             ChunkNumbers{}, kWholeRows);
    } else {
      with_gate<T>(rows, [&](auto norm) {
        run_forward<T, kVecs>(rows, norm, {blocks, plan.shape.threads}, workspace, stream);
      });
    }
  });
}

template <class T>
int64_t norm_backward_workspace(const NormCall& call) {
  if (is_empty(call.data[NormCall::kIn])) return 0;
  if (!call.dropped.data && is_norm_columns(call, NormCall::kIn, sizeof(T)))
    return norm_columns_workspace<T>(call, NormCall::kIn);
  const BackwardPlan<T> plan = plan_backward<T>(call);
  if (!needs_gradient(call)) return plan.bytes_before(4);
  return gradient_begins(plan) + plan.rows.count * plan.rows.length * int64_t(sizeof(T));
}

template <class T>
void norm_backward(const NormCall& given, void* workspace, cudaStream_t stream) {
  using C = Compute<T>;
  NormCall call = given;
  if (is_empty(call.data[NormCall::kIn])) return clear_gradients<T>(call, stream);
  if (!call.dropped.data && is_norm_columns(call, NormCall::kIn, sizeof(T)))
    return norm_columns_backward<T>(call, workspace, stream);
  ArrayArgument& dx = call.data[NormCall::kDx];
  if (needs_gradient(call)) {
    dx = call.dropped, dx.strides = nullptr;
    dx.data = static_cast<char*>(workspace) + gradient_begins(plan_backward<T>(given));
  } else if (call.dropped.data && !dx.data) {
    dx = call.dropped;
  }
  BackwardPlan<T> plan = plan_backward<T>(call);
  const auto scratch = [&](int k) { return static_cast<char*>(workspace) + plan.bytes_before(k); };
  plan.sums.partials = reinterpret_cast<C*>(scratch(0));
  plan.sums.spilled = reinterpret_cast<double*>(scratch(1));
  const auto of_chunks = reinterpret_cast<double*>(scratch(2));
  const auto means = reinterpret_cast<C*>(scratch(3));
  plan.sums.means = means;
  for_backward_layout<T>(plan, [&](const auto& rows) {
    using Rows = std::decay_t<decltype(rows)>;
    if (launch_ahead<T>(rows, plan.sums, plan, stream)) return;
    if (plan.is_long && rows.writes_dx()) {
      const int64_t count = rows.count * plan.rows.chunks.count;
      launch(norm_long_sums<T, Rows>, {count, rows.lanes}, stream, rows, of_chunks);
      using AnyRows = typename Rows::Slow;
      finish(FinishLongRows<C, AnyRows>{rows, of_chunks, means, rows.count, rows.chunks.count},
             stream);
    }
    launch_backward<T>(rows, plan.sums, plan, stream);
  });
  if (needs_gradient(call) && given.data[NormCall::kDx].data)
    drop<T>(call, 0, dx, {}, given.data[NormCall::kDx], true, stream);
  if (call.dropped.data) drop<T>(call, call.p, dx, {}, call.dropped, call.accumulate, stream);
  if (!plan.sums.is_wanted) return;
  NormGradients<C> gradients{};
  gradients.partials = plan.sums.partials, gradients.parts = plan.sums.parts;
  gradients.params = plan.param_count();
  const Operand* to[] = {&call.dweight, &call.dbias};
  for (int which = 0; which < 2; ++which)
    if (to[which]->data)
      gradients.to[which] = plan.param_data[which], gradients.axes[which] = plan.param_axes[which];
  finish_gradients<T>(call, &gradients, stream);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<norm_forward_workspace<Storage>, norm_forward<Storage>> forward_call(
    kNormForward);
const NativeFunction<norm_backward_workspace<Storage>, norm_backward<Storage>> backward_call(
    kNormBackward);

FASTACT_END_NAMESPACE
