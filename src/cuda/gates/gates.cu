// Recurrent gates: forward and backward in one pass over memory each (common/gates/gates.h has the
// formulas).
//
// A thread takes neighbouring columns of a row, the same columns of every gate: a gate of a packed
// array is the same array from another column on. It reads what those columns need, activates,
// writes, and goes on to a row further down. A block is a tile of columns, up to 32 threads wide,
// over a chunk of the rows; the sum of both biases is in its shared memory. All loads of a row are
// issued before the first of them is used. Arrays may be absent (a recurrent projection, dc, gates
// that need not be saved, gradients that nobody wants): a branch that all threads of a launch take
// alike.
//
// Bytes moved, in arrays of the state's size, biases and partial sums aside; the smaller number is
// without the optional arrays:
//   lstm    forward 4 gates, 4 recurrent, c' -> h, c, 4 saved     15 (7)
//           backward 4 saved, c', c, dh, dc -> 4 gates, dc'       13; recomputed 16
//   gru     forward 3, 3, h' -> h, 4 saved 12 (8)                 backward 13, recomputed 15
//   reset   5 (3); 5, recomputed 6        blend  8 (4); 7, recomputed 9
//
// dbias is summed in registers, in double, of gradients before they are rounded. A block's rows are
// added in shared memory by a tree, the chunks by one finishing kernel for both biases. The chunks
// depend on shape and dtype alone: some kManyBlocks blocks in all if each thread has kRowsOfThread
// rows, and fewer rows where that leaves less than kFewBlocks. The partial sums are at most saved
// gates x columns x kManyBlocks / tiles doubles.
//
// Vectors have 16 bytes, of 16-bit data backward 8: the sums of eight columns by four gates do not
// fit the registers. A call with an array that such vectors cannot read (odd lengths, misaligned or
// strided columns, rows that are not all at one pitch) goes by single columns, where neighbouring
// threads read neighbouring elements.
// Double, which has two columns a vector, always goes so. Both ways give a thread the same rows and
// use the same formulas, hence the same bits.
//
// Occupancy, instruction counts and rejected alternatives: docs/design/cuda.md, "Gates".
#include <algorithm>

#include "cuda/core/native_function.h"
#include "cuda/gates/kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Runs visit(Kind{}) for the kind of a call.
template <class T, class Visit>
auto for_kind(int kind, Visit visit) {
  switch (kind) {
#define FASTACT_CASE(name, Kind) \
  case k##Kind:                  \
    return visit(Kind<Compute<T>, kApproximate<T>>{});
    FASTACT_GATE_KINDS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  throw std::invalid_argument("fastact: unknown kind of gates");
}

template <class T>
constexpr bool kByVectors = sizeof(T) < sizeof(double);
constexpr int64_t kManyBlocks = 1024;
constexpr int64_t kFewBlocks = 128;
constexpr int64_t kRowsOfThread = 4;

// Cuts a call into blocks, by shape and dtype alone. Vectors and single columns differ in tx and
// tiles only, so sums over rows are the same for both.
template <class T, bool backward>
void plan_grid(GateTask* task, int64_t rows, int64_t columns) {
  const int64_t vecs = ceil_div(columns, kLanes<T, true, backward>);
  task->rows = rows;
  task->columns = columns;
  task->tiles = ceil_div(vecs, kWarp);
  task->tx = int(ceil_div(vecs, task->tiles));
  task->ty = std::min(kGateThreads<true> / task->tx, kMostRows);
  // Chunks of the rows: enough of them to fill a device, whichever it is, and no more.
  const int64_t least = ceil_div(rows, task->ty);  // a row per thread
  int64_t chunks = std::min(ceil_div(rows, kRowsOfThread * task->ty),
                            std::max<int64_t>(1, kManyBlocks / task->tiles));
  chunks = std::min(std::max(chunks, ceil_div(kFewBlocks, task->tiles)), least);
  task->chunk = ceil_div(least, chunks) * task->ty;
  task->chunks = ceil_div(rows, task->chunk);
}

void take_single_columns(GateTask* task) {
  const int64_t most = kGateThreads<false> / task->ty;
  task->tiles = ceil_div(task->columns, most);
  task->tx = int(ceil_div(task->columns, task->tiles));
}

// Counts the rows of a state that is not empty.
int64_t rows_of(const Operand& state) { return size_of(state) / state.shape[state.ndim - 1]; }

// The arrays of a call by their roles.
struct GateArrays {
  Operand role[kGateRoles];
  explicit GateArrays(const GatesCall& call) {
    std::copy(call.role, call.role + kGateRoles, role);
    if (call.kept.shape) role[kGates] = call.kept;
  }
};

// Merges axes of the batch where every array steps through them as through one.
void merge_batch(GateTask* task, const GateArrays& arrays, int64_t item) {
  Operand batch = arrays.role[kState];
  --batch.ndim;
  int64_t items[kGateRoles];
  std::fill(items, items + kGateRoles, item);
  Axis<kGateRoles> axes[kMaxAxes];
  const int found = find_axes(axes, batch, kGateRoles, arrays.role, items, [](int) { return 0; });
  fill_table(&task->batch, axes, 0, merge_axes(axes, found));
}

// Whether a thread can take its columns of every array as a vector: they lie together, at a
// multiple of the vector's size, in rows at one pitch. If so, fills in the pitches.
bool is_vectorized(GateTask* task, const GateArrays& arrays, int64_t item, int lanes) {
  constexpr int64_t kMost = int64_t(1) << 31;
  if (task->batch.count > 1 || task->rows >= kMost || task->columns * kMostGates * item >= kMost)
    return false;
  auto bits = uintptr_t(task->columns * item);
  for (int role = 0; role < kGateRoles; ++role) {
    if (!arrays.role[role].data) continue;
    const int64_t pitch = task->batch.stride[role][0];
    if (task->column[role] != item || pitch < 0 || pitch >= kMost) return false;
    task->pitch[role] = uint32_t(pitch);
    bits |= reinterpret_cast<uintptr_t>(arrays.role[role].data) | uintptr_t(pitch);
  }
  return bits % uintptr_t(lanes * item) == 0;
}

template <class T, bool backward>
GateTask describe(const GatesCall& call, const GateArrays& arrays) {
  constexpr int64_t kItem = sizeof(T);
  const Operand& state = arrays.role[kState];
  GateTask task{};
  plan_grid<T, backward>(&task, rows_of(state), state.shape[state.ndim - 1]);
  for (int role = 0; role < kGateRoles; ++role) {
    const Operand& array = arrays.role[role];
    task.data[role] = array.data;
    if (array.data) task.column[role] = byte_stride(array, state.ndim - 1, kItem);
  }
  for (int k = 0; k < kMostGates; ++k) task.gate[k] = call.places.at[k] * task.columns;
  for (int k = 0; k < 2; ++k) task.bias[k] = vector_of(call.bias[k]);
  merge_batch(&task, arrays, kItem);
  return task;
}

Shape shape_of(const GateTask& task) { return {task.tiles * task.chunks, task.tx * task.ty}; }

}  // namespace

template <class T>
void gates_forward(const GatesCall& call, cudaStream_t stream) {
  if (is_empty(call.role[kState])) return;
  const GateArrays arrays(call);
  GateTask task = describe<T, false>(call, arrays);
  const bool vectorized =
      kByVectors<T> && is_vectorized(&task, arrays, sizeof(T), kLanes<T, true, false>);
  if (!vectorized) take_single_columns(&task);
  for_kind<T>(call.kind, [&](auto of) {
    using Kind = decltype(of);
    launch(vectorized ? gates_forward_kernel<Kind, T, kByVectors<T>>
                      : gates_forward_kernel<Kind, T, false>,
           shape_of(task), stream, task);
  });
}

template <class T>
int64_t gates_workspace(const GatesCall& call) {
  const Operand& state = call.role[kState];
  if (is_empty(state) || !(call.bias_gradient[0].data || call.bias_gradient[1].data)) return 0;
  GateTask task{};
  plan_grid<T, true>(&task, rows_of(state), state.shape[state.ndim - 1]);
  const int64_t saved = kSavedOf[call.kind];
  return task.chunks > 1 ? saved * task.columns * task.chunks * int64_t(sizeof(double)) : 0;
}

template <class T>
void gates_backward(const GatesCall& call, void* workspace, cudaStream_t stream) {
  for_kind<T>(call.kind, [&](auto of) {
    using Kind = decltype(of);
    const Operand& state = call.role[kState];
    GateSums sums{};
    sums.columns = state.shape[state.ndim - 1];
    sums.partials = static_cast<double*>(workspace);
    sums.gates = Kind::kGates;
    sums.saved = Kind::kSaved;
    for (int k = 0; k < kMostGates; ++k) sums.gate[k] = call.places.at[k] * sums.columns;
    for (int k = 0; k < 2; ++k) sums.to[k] = vector_of(call.bias_gradient[k]);
    sums.accumulate = call.accumulate;
    sums.is_wanted = sums.to[0].data || sums.to[1].data;
    const auto finish_biases = [&] {
      finish(FinishGates<T>{sums, sums.saved * sums.columns, sums.chunks}, stream);
    };
    if (is_empty(state)) {  // sums of nothing
      if (sums.is_wanted && sums.columns > 0) finish_biases();
      return;
    }
    const GateArrays arrays(call);
    GateTask task = describe<T, true>(call, arrays);
    task.accumulate = call.accumulate;
    const bool vectorized =
        kByVectors<T> && is_vectorized(&task, arrays, sizeof(T), kLanes<T, true, true>);
    if (!vectorized) take_single_columns(&task);
    sums.chunks = task.chunks;
    constexpr auto kKernels = [] {
      using Kernel = void (*)(GateTask, GateSums);
      struct {
        Kernel of[2][2];
      } all = {{{gates_backward_kernel<Kind, T, false, false>,
                 gates_backward_kernel<Kind, T, false, true>},
                {gates_backward_kernel<Kind, T, kByVectors<T>, false>,
                 gates_backward_kernel<Kind, T, kByVectors<T>, true>}}};
      return all;
    }();
    launch(kKernels.of[vectorized][call.recomputes()], shape_of(task), stream, task, sums);
    if (sums.is_wanted && sums.chunks > 1) finish_biases();
  });
}

using Storage = FASTACT_STORAGE;
const NativeFunction<gates_forward<Storage>> forward_call(kGatesForward);
const NativeFunction<gates_workspace<Storage>, gates_backward<Storage>> backward_call(
    kGatesBackward);

FASTACT_END_NAMESPACE
