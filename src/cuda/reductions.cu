// Sums over any axes: rows, columns, the whole array.
//
// common/reduction.h sorts the axes; what lies innermost decides between two kernels.
//
// sum_rows (the innermost axis is reduced). An output is a row of packs of 16 bytes, gathered from
// one or more pieces. A row of up to 512 packs belongs to 1 to 32 lanes of a warp, so that the
// rows of a narrow array share it; a longer one to a block; one of more than kChunk packs is cut
// into chunks, a block each, whose partial sums finish_sums adds. A lane has four packs in flight
// and four accumulators.
//
// sum_columns (the innermost axis is kept). A block is tx packs of columns wide and 256 / tx rows
// high; a thread adds its pack of columns over every (256 / tx)-th row, four rows at a time, and
// the block folds its rows in shared memory by a tree. Long columns are cut into chunks like
// rows. Where rows are short and touch ((1M, 3)), as many as make a whole number of packs are
// folded into one (three packs hold four rows of three floats): every access is 16 bytes then, and
// a lane always meets the same column.
//
// Everything accumulates in double; results are rounded once. The order of additions is a function
// of the lengths of the reduced axes (and, for column sums, of the innermost one), never of the
// device, of the number of rows or of an address: misaligned rows come by windows (pack.cuh).
// No atomics. Partials: at most kMaxChunks an output.
//
// Bytes moved: x once; the partials are below 1 % of it.
#include "../common/reduction.h"
#include "kernels.h"
#include "map.cuh"
#include "reduce.cuh"
#include "sums.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpRow = 512;   // packs that one warp takes
constexpr int64_t kChunk = 4096;    // packs of a row, 64 KiB
constexpr int64_t kChunkRows = 64;  // rows of a column
constexpr int64_t kManyBlocks = 1024;
constexpr int64_t kMaxChunks = 1024;

struct RowSums : Sums {
  int64_t piece_packs;              // of one piece
  int64_t packs;                    // of all pieces
  int64_t tasks;                    // outputs x chunks
  int group;                        // threads of a task: 1 to 32, a power of two, or the block
  int64_t step_pieces, step_packs;  // `group` packs further, as whole pieces and the rest
};

// A lane's share of the packs [begin, end) of a row.
template <Access access, class F, class T>
FASTACT_DEVICE double sum_row(const RowSums& sums, const char* x, int64_t begin, int64_t end,
                              int lane) {
  constexpr int kSize = Pack<T>::kSize;
  double total[kInFlight] = {};
  int64_t q = begin + lane;
  int64_t piece = sums.pieces.size > 1 ? q / sums.piece_packs : 0;
  int64_t within = q - piece * sums.piece_packs;
  while (q < end) {
    Place places[kInFlight];
#pragma unroll
    for (int turn = 0; turn < kInFlight; ++turn) {
      const bool there = q < end;
      const int64_t element = within * kSize;
      places[turn].p = x + (there ? piece_offset<access>(sums, piece) + element * sums.inner_x : 0);
      places[turn].valid = there ? up_to(sums.inner - element) : 0;
      places[turn].follows = within > 0;
      q += sums.group;
      piece += sums.step_pieces;
      within += sums.step_packs;
      if (within >= sums.piece_packs) within -= sums.piece_packs, ++piece;
    }
    Pack<T> packs[kInFlight];
    read<access>(sums, places, packs);
#pragma unroll
    for (int turn = 0; turn < kInFlight; ++turn) total[turn] += pack_sum<F>(packs[turn]);
  }
  return (total[0] + total[1]) + (total[2] + total[3]);
}

template <Access access, class F, class T>
FASTACT_KERNEL_OF(kThreads, 2)
void sum_rows(FASTACT_GRID_CONSTANT const RowSums sums) {
  const int tasks_here = kThreads / sums.group;
  const int lane = int(threadIdx.x) % sums.group;
  for (int64_t first = int64_t(blockIdx.x) * tasks_here; first < sums.tasks;
       first += int64_t(gridDim.x) * tasks_here) {
    const int64_t task = first + int(threadIdx.x) / sums.group;
    const bool idle = task >= sums.tasks;  // yet it takes part in shuffles and barriers
    const int64_t row = idle ? 0 : sums.chunks > 1 ? task / sums.chunks : task;
    const int64_t chunk = idle ? 0 : task - row * sums.chunks;
    const int64_t begin = chunk * sums.chunk;
    const int64_t end = idle ? 0 : smaller(begin + sums.chunk, sums.packs);
    const Offset at = locate(sums.kept, row);

    double sum = sum_row<access, F, T>(sums, sums.x + at.x, begin, end, lane);
    if (sums.group == kThreads) {
      sum = block_sum<kThreads>(sum);
      __syncthreads();
    } else {
      sum = warp_sum(sum, sums.group);
    }
    if (lane == 0 && !idle) emit<T>(sums, row, chunk, at.y, sum);
  }
}

struct ColumnSums : Sums {
  int64_t width;  // elements of a row, or of the rows that are folded into one
  int64_t rows;   // such rows
  int64_t terms;  // elements of all rows, where they touch; else 0
  int64_t tiles;  // of tx packs
  int tx, ty;     // threads of a block
};

// A thread's share of the rows [begin, end) of a pack of columns.
template <Access access, class F, class T>
FASTACT_DEVICE void sum_column(const ColumnSums& sums, const char* x, int64_t column, int64_t begin,
                               int64_t end, double (&total)[Pack<T>::kSize]) {
  constexpr int kSize = Pack<T>::kSize;
  x += column * sums.inner_x;
  for (int64_t row = begin; row < end;) {
    Place places[kInFlight];
#pragma unroll
    for (int turn = 0; turn < kInFlight; ++turn) {
      const bool there = row < end;
      const int64_t last = sums.terms - row * sums.width;  // elements of a folded row
      const int64_t width = sums.terms > 0 ? smaller(sums.width, last) : sums.width;
      places[turn].p = x + (there ? piece_offset<access>(sums, row) : 0);
      places[turn].valid = there ? up_to(width - column) : 0;
      places[turn].follows = column > 0;
      row += sums.ty;
    }
    Pack<T> packs[kInFlight];
    read<access>(sums, places, packs);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const auto term = [&](int turn) { return F()(double(widen(packs[turn].lane[j]))); };
      total[j] += (term(0) + term(1)) + (term(2) + term(3));
    }
  }
}

template <Access access, class F, class T>
FASTACT_KERNEL_OF(kThreads, 2)
void sum_columns(FASTACT_GRID_CONSTANT const ColumnSums sums) {
  constexpr int kSize = Pack<T>::kSize;
  FASTACT_SHARED(double, block, kThreads* kSize);
  const int tx = int(threadIdx.x) % sums.tx, ty = int(threadIdx.x) / sums.tx;

  const int64_t tasks = sums.kept.size * sums.chunks * sums.tiles;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t tile = task % sums.tiles;
    const int64_t chunk = task / sums.tiles % sums.chunks;
    const int64_t outer = task / sums.tiles / sums.chunks;
    const Offset offset = locate(sums.kept, outer);
    const int64_t column = (tile * sums.tx + tx) * kSize;
    const int64_t end = smaller((chunk + 1) * sums.chunk, sums.rows);

    double total[kSize] = {};
    if (column < sums.width && ty < sums.ty)
      sum_column<access, F, T>(sums, sums.x + offset.x, column, chunk * sums.chunk + ty, end,
                               total);

    fold_rows<T>(block, total, tx, ty, sums.tx, sums.ty);

    // Columns of one output lie `inner` apart in a folded row. Anywhere else there is one.
    const int64_t here = tile * sums.tx * kSize;
    const int columns = int(smaller(sums.tx * kSize, sums.width - here));
    const int outputs = int(smaller(columns, sums.inner));
    for (int c = int(threadIdx.x); c < outputs; c += kThreads) {
      double sum = 0;
      for (int at = c; at < columns; at += outputs) sum += double(block[at]);
      emit<T>(sums, outer * sums.inner + here + c, chunk, offset.y + (here + c) * sums.inner_y,
              sum);
    }
    __syncthreads();
  }
}

// y = the sum of each output's partials, rounded; a warp an output.
template <class T>
FASTACT_KERNEL_OF(kThreads, 2)
void finish_sums(FASTACT_GRID_CONSTANT const Sums sums, const int64_t outputs,
                 const int64_t inner) {
  constexpr int kOutputs = kThreads / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  for (int64_t first = int64_t(blockIdx.x) * kOutputs; first < outputs;
       first += int64_t(gridDim.x) * kOutputs) {
    const int64_t output = first + int(threadIdx.x) / kWarp;
    double sum = 0;
    if (output < outputs)
      for (int64_t i = lane; i < sums.chunks; i += kWarp)
        sum += load(sums.partials + output * sums.chunks + i);
    sum = warp_sum(sum);
    if (lane > 0 || output >= outputs) continue;
    const int64_t outer = output / inner;
    char* y = sums.y + locate(sums.kept, outer).y + (output - outer * inner) * sums.inner_y;
    put(reinterpret_cast<T*>(y), sum, sums.accumulate);
  }
}

Outer outer_of(const Axes& axes) {
  Outer outer{axes.count, axes.size, {}, {}, {}};
  for (int i = 0; i < axes.count; ++i)
    outer.length[i] = axes.length[i], outer.x[i] = axes.x[i], outer.y[i] = axes.y[i];
  return outer;
}

// Cuts n units into as few chunks of `least` units or more as kMaxChunks allows.
void cut(Sums* sums, int64_t n, int64_t least) {
  sums->chunk = std::max(least, ceil_div(n, kMaxChunks));
  sums->chunks = ceil_div(n, sums->chunk);
}

bool has_aligned_base(const Reduction& plan) {
  auto bits = reinterpret_cast<uintptr_t>(plan.x);
  for (int i = 0; i < plan.kept.count; ++i) bits |= uintptr_t(plan.kept.x[i]);
  return bits % kPackBytes == 0;
}

template <class T>
Sums describe(const Reduction& plan, double* partials) {
  Sums sums{};
  sums.x = plan.x;
  sums.y = plan.y;
  sums.kept = outer_of(plan.kept);
  sums.pieces = outer_of(plan.reduced);
  sums.inner = plan.inner;
  sums.inner_x = plan.inner_x;
  sums.inner_y = plan.inner_y;
  sums.packed = plan.has_unit_inner;
  sums.access = kAnyhow;
  sums.partials = partials;
  int64_t reach = plan.inner_x * (plan.inner - 1) + int64_t(sizeof(T));
  for (int i = 0; i < plan.kept.count; ++i) reach += plan.kept.x[i] * (plan.kept.length[i] - 1);
  for (int i = 0; i < plan.reduced.count; ++i)
    reach += plan.reduced.x[i] * (plan.reduced.length[i] - 1);
  const int64_t elements = plan.outputs() * plan.terms();
  if (sums.packed && reach == elements * int64_t(sizeof(T)))
    sums.access = kDense, sums.low = plan.x, sums.high = plan.x + reach;
  bool aligned = sums.packed && has_aligned_base(plan);
  for (int i = 0; i < plan.reduced.count; ++i) aligned &= plan.reduced.x[i] % kPackBytes == 0;
  if (aligned) sums.access = kAligned;
  if (plan.reduced.count > 1) sums.access = kAnyhow;
  return sums;
}

template <class T>
RowSums plan_rows(const Reduction& plan, double* partials) {
  RowSums sums{};
  static_cast<Sums&>(sums) = describe<T>(plan, partials);
  sums.piece_packs = ceil_div(plan.inner, Pack<T>::kSize);
  sums.packs = sums.piece_packs * plan.reduced.size;
  cut(&sums, sums.packs, kChunk);
  sums.tasks = plan.outputs() * sums.chunks;
  sums.group =
      sums.packs > kWarpRow ? kThreads : power_of_two_from(ceil_div(sums.packs, kInFlight), kWarp);
  sums.step_pieces = sums.group / sums.piece_packs;
  sums.step_packs = sums.group % sums.piece_packs;
  return sums;
}

template <class T>
ColumnSums plan_columns(const Reduction& plan, double* partials) {
  constexpr int64_t kSize = Pack<T>::kSize;
  ColumnSums sums{};
  static_cast<Sums&>(sums) = describe<T>(plan, partials);
  sums.width = plan.inner;
  sums.rows = plan.reduced.size;
  if (plan.has_dense_rows && plan.reduced.count == 1 && plan.inner % kSize != 0 &&
      plan.inner <= kWarp) {
    int64_t folded = kSize;
    while (plan.inner * folded / 2 % kSize == 0) folded /= 2;
    sums.terms = plan.terms() * plan.inner;
    sums.width = plan.inner * folded;
    sums.rows = ceil_div(sums.terms, sums.width);
    sums.pieces.x[0] = sums.width * int64_t(sizeof(T));
    if (has_aligned_base(plan)) sums.access = kAligned;
  }
  const int64_t packs = ceil_div(sums.width, kSize);
  sums.tx = sums.terms > 0 ? int(packs) : power_of_two_from(packs, kWarp);
  sums.ty = kThreads / sums.tx;
  sums.tiles = ceil_div(packs, sums.tx);
  // As many chunks as fill a device, whichever it is: at 4096 x 768 whole columns are six blocks.
  const int64_t chunks = std::max<int64_t>(1, kManyBlocks / sums.tiles);
  cut(&sums, sums.rows, std::max(kChunkRows * std::max(1, sums.ty / 8), sums.rows / chunks));
  return sums;
}

bool is_empty(const Operand& a) {
  return std::any_of(a.shape, a.shape + a.ndim, [](int64_t n) { return n == 0; });
}

}  // namespace

template <class T>
int64_t sum_workspace(Term, const Operand& x, const Operand& y, const bool* reduced) {
  if (is_empty(x)) return 0;
  const Reduction plan = plan_reduction(x, y, reduced, sizeof(T));
  const int64_t chunks = plan.inner_reduced ? plan_rows<T>(plan, nullptr).chunks
                                            : plan_columns<T>(plan, nullptr).chunks;
  return chunks > 1 ? plan.outputs() * chunks * int64_t(sizeof(double)) : 0;
}

namespace {

// Queues the kernel for an access, and the finishing one where there are partials.
template <class T, class Plan>
void run_sums(const Plan& plan, int64_t outputs, int64_t inner, int64_t blocks,
              void (*const (&kernels)[3])(Plan), cudaStream_t stream) {
  launch(kernels[plan.access], {std::min(blocks, kMaxBlocks), kThreads}, stream, plan);
  if (plan.chunks == 1) return;
  const int64_t finishers = std::min(ceil_div(outputs, kThreads / kWarp), kMaxBlocks);
  launch(finish_sums<T>, {finishers, kThreads}, stream, plan, outputs, inner);
}

template <class F, class T>
void sum_of(const Operand& x, const Operand& y, const bool* reduced, double* partials,
            bool accumulate, cudaStream_t stream) {
  // Of an empty x nothing is read: y stands in for it, with rows that have no elements.
  const bool empty = is_empty(x);
  const Reduction plan = plan_reduction(empty ? y : x, y, reduced, sizeof(T));
  if (plan.inner_reduced) {
    static constexpr void (*kKernels[3])(RowSums) = {
        sum_rows<kAligned, F, T>, sum_rows<kDense, F, T>, sum_rows<kAnyhow, F, T>};
    RowSums sums = plan_rows<T>(plan, partials);
    if (empty) sums.packs = 0;
    sums.accumulate = accumulate;
    const int64_t blocks = ceil_div(sums.tasks, kThreads / sums.group);
    run_sums<T>(sums, plan.outputs(), 1, blocks, kKernels, stream);
  } else {
    static constexpr void (*kKernels[3])(ColumnSums) = {
        sum_columns<kAligned, F, T>, sum_columns<kDense, F, T>, sum_columns<kAnyhow, F, T>};
    ColumnSums sums = plan_columns<T>(plan, partials);
    if (empty) sums.rows = 0;
    sums.accumulate = accumulate;
    const int64_t blocks = sums.kept.size * sums.chunks * sums.tiles;
    run_sums<T>(sums, plan.outputs(), plan.inner, blocks, kKernels, stream);
  }
}

}  // namespace

template <class T>
void sum(Term term, const Operand& x, const Operand& y, const bool* reduced, void* workspace,
         bool accumulate, cudaStream_t stream) {
  auto* partials = static_cast<double*>(workspace);
  if (term == kSquare)
    sum_of<Square, T>(x, y, reduced, partials, accumulate, stream);
  else
    sum_of<Itself, T>(x, y, reduced, partials, accumulate, stream);
}

namespace {
template <class T>
struct Identity : Lanewise<Identity<T>, T, 1> {
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[1]) const { return in[0]; }
};

// d(x^2)/dx = 2 x
template <class T>
struct SquareBackward : Lanewise<SquareBackward<T>, T, 2> {
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[2]) const {
    return in[0] * (in[1] + in[1]);
  }
};
}  // namespace

template <class T>
void broadcast(const Operand (&arrays)[2], bool accumulate, cudaStream_t stream) {
  Walk walk;
  plan_walk(&walk, sizeof(T), 2, arrays);
  accumulate ? run_map<T, 1, true>(walk, Identity<T>{}, stream)
             : run_map<T, 1, false>(walk, Identity<T>{}, stream);
}

template <class T>
void square_backward(const Operand (&arrays)[3], bool accumulate, cudaStream_t stream) {
  Walk walk;
  plan_walk(&walk, sizeof(T), 3, arrays);
  accumulate ? run_map<T, 2, true>(walk, SquareBackward<T>{}, stream)
             : run_map<T, 2, false>(walk, SquareBackward<T>{}, stream);
}

template <class T>
void finish_partials(const double* partials, int64_t outputs, int64_t chunks, char* y,
                     int64_t stride, bool accumulate, cudaStream_t stream) {
  Sums sums{};
  sums.partials = const_cast<double*>(partials);
  sums.chunks = chunks;
  sums.y = y;
  sums.inner_y = stride;
  sums.accumulate = accumulate;
  const int64_t blocks = std::min(ceil_div(outputs, kThreads / kWarp), kMaxBlocks);
  launch(finish_sums<T>, {blocks, kThreads}, stream, sums, outputs, outputs);
}

using Storage = FASTACT_STORAGE;
template int64_t sum_workspace<Storage>(Term, const Operand&, const Operand&, const bool*);
template void sum<Storage>(Term, const Operand&, const Operand&, const bool*, void*, bool,
                           cudaStream_t);
template void broadcast<Storage>(const Operand (&)[2], bool, cudaStream_t);
template void finish_partials<Storage>(const double*, int64_t, int64_t, char*, int64_t, bool,
                                       cudaStream_t);
template void square_backward<Storage>(const Operand (&)[3], bool, cudaStream_t);

FASTACT_END_NAMESPACE
