// The kernels of sums: over rows, over columns, and over partial sums. reductions.cu tells their
// plan.
#pragma once

#include "reduce.cuh"
#include "sums.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;

struct RowSums : Sums {
  int64_t piece_packs;              // of one piece
  int64_t packs;                    // of all pieces
  int64_t tasks;                    // outputs x chunks
  int group;                        // threads of a task: 1 to 32, a power of two, or the block
  int64_t step_pieces, step_packs;  // `group` packs further, as whole pieces and the rest
};

// Visits a lane's share of the packs [begin, end) of a row, kInFlight at a time:
// visit(places, packs).
template <Access access, class T, class Visit>
FASTACT_DEVICE void walk_row(const RowSums& sums, const char* x, int64_t begin, int64_t end,
                             int lane, const Visit& visit) {
  constexpr int kSize = Pack<T>::kSize;
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
    visit(places, packs);
  }
}

// A lane's share of the sum of a row.
template <Access access, class F, class T>
FASTACT_DEVICE double sum_row(const RowSums& sums, const char* x, int64_t begin, int64_t end,
                              int lane) {
  double total[kInFlight] = {};
  walk_row<access, T>(sums, x, begin, end, lane,
                      [&](const Place(&)[kInFlight], const Pack<T>(&packs)[kInFlight]) {
#pragma unroll
                        for (int turn = 0; turn < kInFlight; ++turn)
                          total[turn] += pack_sum<F>(packs[turn]);
                      });
  return (total[0] + total[1]) + (total[2] + total[3]);
}

// A thread's part of a row: its packs [begin, end). An idle one has none, yet it takes part in
// shuffles and barriers.
struct RowTask {
  bool idle;
  int64_t row, chunk, begin, end;
};

// first: the task of the block's first group.
FASTACT_DEVICE RowTask task_of(const RowSums& sums, int64_t first) {
  const int64_t task = first + int(threadIdx.x) / sums.group;
  const bool idle = task >= sums.tasks;
  const int64_t row = idle ? 0 : sums.chunks > 1 ? task / sums.chunks : task;
  const int64_t chunk = idle ? 0 : task - row * sums.chunks;
  const int64_t begin = chunk * sums.chunk;
  return {idle, row, chunk, begin, idle ? 0 : smaller(begin + sums.chunk, sums.packs)};
}

template <Access access, class F, class T>
FASTACT_KERNEL_OF(kThreads, 2)
void sum_rows(FASTACT_GRID_CONSTANT const RowSums sums) {
  const int tasks_here = kThreads / sums.group;
  const int lane = int(threadIdx.x) % sums.group;
  for (int64_t first = int64_t(blockIdx.x) * tasks_here; first < sums.tasks;
       first += int64_t(gridDim.x) * tasks_here) {
    const RowTask task = task_of(sums, first);
    const Offset at = locate(sums.kept, task.row);
    double sum = sum_row<access, F, T>(sums, sums.x + at.x, task.begin, task.end, lane);
    if (sums.group == kThreads) {
      sum = block_sum<kThreads>(sum);
      __syncthreads();
    } else {
      sum = warp_sum(sum, sums.group);
    }
    if (lane == 0 && !task.idle) emit<T>(sums, task.row, task.chunk, at.y, sum);
  }
}

struct ColumnSums : Sums {
  int64_t width;  // elements of a row, or of the rows that are folded into one
  int64_t rows;   // such rows
  int64_t terms;  // elements of all rows, where they touch; else 0
  int64_t tiles;  // of tx packs
  int tx, ty;     // threads of a block
};

// Visits a thread's share of the rows [begin, end) of a pack of columns, kInFlight at a time:
// visit(places, packs).
template <Access access, class T, class Visit>
FASTACT_DEVICE void walk_column(const ColumnSums& sums, const char* x, int64_t column,
                                int64_t begin, int64_t end, const Visit& visit) {
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
    visit(places, packs);
  }
}

// A thread's share of the sums of a pack of columns.
template <Access access, class F, class T>
FASTACT_DEVICE void sum_column(const ColumnSums& sums, const char* x, int64_t column, int64_t begin,
                               int64_t end, double (&total)[Pack<T>::kSize]) {
  walk_column<access, T>(sums, x, column, begin, end,
                         [&](const Place(&)[kInFlight], const Pack<T>(&packs)[kInFlight]) {
#pragma unroll
                           for (int j = 0; j < Pack<T>::kSize; ++j) {
                             const auto term = [&](int turn) {
                               return F()(double(widen(packs[turn].lane[j])));
                             };
                             total[j] += (term(0) + term(1)) + (term(2) + term(3));
                           }
                         });
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

    fold_rows(block, total, tx, ty, sums.tx, sums.ty);

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

}  // namespace
FASTACT_END_NAMESPACE
