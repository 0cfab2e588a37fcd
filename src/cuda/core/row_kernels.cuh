// The forward kernels over rows, of any op: y = f(x; the row's statistic).
//
// A row that a block holds takes one kernel. A longer one takes three: the statistics of its
// chunks, one kernel that merges them, and y, from the last chunk on, which may be in the
// second-level cache still. How rows are laid over threads, read and folded: held_rows.cuh.
//
// An op is a functor:
//   Row<vecs>, kWrites, kIsLarge                what a thread has of a row; whether there is a y;
//                                               whether registers leave room for one block alone
//   kAddsUp, totals                             whether blocks add up two numbers of their rows
//   take(rows, part, &row)                      reads x
//   find<in_chunks>(rows, part, &row, &folds)   the statistic of a row or a chunk, given to all
//   finish(rows, part, found, &total)           what y follows from; one lane stores numbers
//   put(rows, part, row, made)                  y
// and of rows in chunks
//   kChunkNumbers, store_chunk(part, found, to) a chunk's statistic
//   OfChunks                                    the functor that finds it
//   kRowNumbers, merge(rows, from, lane)        a row's, by a warp
//   finish_merged(rows, row, merged, to, &total)  by one thread
//   apply(rows, part, from)                     y
#pragma once

#include "cuda/core/held_rows.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kMergeThreads = 256;  // of a block that merges chunks, a row a warp

// What passes from kernel to kernel.
struct ChunkNumbers {
  double* chunks;  // of the first: rows x chunks x kChunkNumbers
  double* rows;    // of the second: rows x kRowNumbers
};

// Stores what a block's threads have, added up.
template <class Op>
FASTACT_DEVICE void add_up(const Op& op, double (&total)[2], int& fold_index) {
  if constexpr (Op::kAddsUp) {
    if (!op.totals) return;
    team_sums(total, int(blockDim.x), fold_index);
    if (threadIdx.x > 0) return;
    store(op.totals + 2 * int64_t(blockIdx.x), total[0]);
    store(op.totals + 2 * int64_t(blockIdx.x) + 1, total[1]);
  }
}

template <class T, int vecs, class Op, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (Op::kIsLarge ? 1 : kBlocksOf<T, Rows>))
void forward_rows(FASTACT_GRID_CONSTANT const Rows rows, const Op op) {
  int fold_index = 0;
  const RowPart part = row_part<T, vecs>(rows);
  typename Op::template Row<vecs> row;
  op.take(rows, part, row);
  const auto found = op.template find<false>(rows, part, row, fold_index);
  double total[2] = {};
  if (!part.idle && (Op::kWrites || part.lane == 0)) {
    const auto made = op.finish(rows, part, found, total);
    if constexpr (Op::kWrites) op.put(rows, part, row, made);
  }
  add_up(op, total, fold_index);
}

template <class T, class Op, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (Op::kIsLarge ? 1 : kBlocksOf<T, Rows>))
void find_chunks(FASTACT_GRID_CONSTANT const Rows rows, const Op op, const ChunkNumbers numbers) {
  constexpr int kMost = kMostVecs<T>;
  int fold_index = 0;
  const RowPart part = row_part<T, kMost, true>(rows);
  typename Op::template Row<kMost> row;
  op.take(rows, part, row);
  const auto found = op.template find<true>(rows, part, row, fold_index);
  if (part.lane > 0) return;
#pragma unroll
  for (int s = 0; s < kRowsOfVec<T, Rows>; ++s)
    if (s < part.columns)
      op.store_chunk(
          found, s,
          numbers.chunks + ((part.row + s) * rows.chunks.count + part.chunk) * Op::kChunkNumbers);
}

template <class Op, class Rows>
FASTACT_KERNEL(kMergeThreads)
void merge_chunks(FASTACT_GRID_CONSTANT const Rows rows, const Op op, const ChunkNumbers numbers) {
  int fold_index = 0;
  const int64_t row = int64_t(blockIdx.x) * (kMergeThreads / kWarp) + int(threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  const bool idle = row >= rows.count;
  const auto merged = op.merge(
      rows, numbers.chunks + (idle ? 0 : row) * rows.chunks.count * Op::kChunkNumbers, lane);
  double total[2] = {};
  if (!idle && lane == 0)
    op.finish_merged(rows, row, merged, numbers.rows + row * Op::kRowNumbers, total);
  add_up(op, total, fold_index);
}

template <class T, class Op, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (Op::kIsLarge ? 1 : kBlocksOf<T, Rows>))
void apply_chunks(FASTACT_GRID_CONSTANT const Rows rows, const Op op, const ChunkNumbers numbers) {
  const RowPart part = row_part<T, kMostVecs<T>, true, true>(rows);
  if (!part.idle) op.apply(rows, part, numbers.rows);
}

// Bytes of the numbers of chunks and of rows in chunks.
template <class Op>
int64_t chunk_bytes(int64_t rows, int64_t chunks) {
  const int64_t numbers = chunks > 1 ? chunks * Op::kChunkNumbers + Op::kRowNumbers : 0;
  return rows * numbers * int64_t(sizeof(double));
}

// Queues the kernels of an op. shape: of rows or of their chunks. Gives the blocks that have
// totals.
template <class T, int vecs, class Op, class Rows>
int64_t run_forward(const Rows& rows, const Op& op, const Shape& shape, void* workspace,
                    cudaStream_t stream) {
  if (rows.chunks.count == 1) {
    launch(forward_rows<T, vecs, Op, Rows>, shape, stream, rows, op);
    return shape.blocks;
  }
  ChunkNumbers numbers{static_cast<double*>(workspace), nullptr};
  numbers.rows = numbers.chunks + rows.count * rows.chunks.count * Op::kChunkNumbers;
  using OfChunks = typename Op::OfChunks;
  launch(find_chunks<T, OfChunks, Rows>, shape, stream, rows, OfChunks{}, numbers);
  using Slow = typename Rows::Slow;  // one kernel for whole vectors and others
  const int64_t blocks = ceil_div(rows.count, kMergeThreads / kWarp);
  launch(merge_chunks<Op, Slow>, {blocks, kMergeThreads}, stream, Slow(rows), op, numbers);
  if constexpr (Op::kWrites) launch(apply_chunks<T, Op, Rows>, shape, stream, rows, op, numbers);
  return blocks;
}

}  // namespace
FASTACT_END_NAMESPACE
