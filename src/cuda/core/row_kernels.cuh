// The forward kernels over rows, of any op: y = f(x; the row's statistic).
//
// A row that a block holds takes one kernel. A longer one takes three: the statistics of its
// chunks, one kernel that merges them, and y, from the last chunk on, which may be in the
// second-level cache still. Where the device has clusters, norms without a residual take one kernel
// for rows of up to 16 chunks too: the blocks of a cluster hold a row and give each other the
// statistics of its chunks. Chunks and the order in which they merge are the same, so are bits. How
// rows are laid over threads, read and folded: held_rows.cuh.
//
// Whole aligned vectors have a kernel for each phase, so that no kernel tests the phase at run
// time; so have columns with a y, to save registers. Other rows have one kernel for all phases,
// which calls the functions that read and write.
//
// An op is a functor:
//   Row<vecs>                           a thread's part of a row
//   Made<n>                             the numbers from which y of n rows follows
//   kIsLarge                            whether registers leave room for one block alone
//   Slow, slow()                        the functor of slow rows, which may be for several ops
//   kAddsUp, totals                     whether blocks add up two numbers of their rows
//   kMayWrite, writes(rows)             whether there is a y
//   take(rows, part, &row, again)       reads x; again: for rows whose chunks are merged
//   find(rows, part, &row, in_chunk, &folds)  gives all threads the statistic of a row or a chunk
//   finish(rows, part, found, &total)   gives Made of it; one lane stores numbers
//   put(rows, part, row, made)          writes y
// and for rows in chunks
//   kChunkNumbers, store_chunk(found, s, put)  gives put(k, number) the numbers of a chunk's
//                                       statistic, of the s-th row
//   OfChunks                            the functor that finds it
//   Applied                             the functor that applies a row's statistic to columns
//   kRowNumbers, merge(rows, from, lane, width)  merges the chunks of a row, from(i) being the i-th
//                                       of their numbers, by lanes of a warp
//   finish_merged(rows, row, merged, to, &total)  stores a row's numbers, by one thread
//   resume(rows, part, from, &row)      gives Made of these
// and where kClusters of the rows and of the op are set
//   reads_once(rows)                    whether x alone is read, so that both are worth it
//   bring_near(rows, row)               reads x of a row into the second-level cache
//   numbers_of(merged, put)             gives put(k, number) what made_of asks for
//   store_merged(rows, row, merged)     stores the statistics that a caller asks for
//   made_of(from)                       Made, from(k) being the k-th number
//   is_as_read(found)                   whether find left the vectors as they were read
#pragma once

#include "cuda/core/cluster.cuh"
#include "cuda/core/held_rows.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kMergeThreads = 256;  // of a block that merges chunks, one row for each warp

// The numbers that one kernel leaves for the next.
struct ChunkNumbers {
  double* chunks;  // of the first: rows x chunks x kChunkNumbers
  double* rows;    // of the second: rows x kRowNumbers
  int64_t ahead;   // whole rows: a block brings near the row of the block so many on; 0: none
};

// Rows of 16 bits whose norms have a block each, one kernel: how many threads on the block is whose
// row a block brings near. It is half of what an H200 runs at a time. bfloat16 (4096, 16384) took
// 76.8 us and takes 71.4, and 73.1 with all that run at a time; in float32 nothing is gained, and
// (2048, 16384) loses 2 %.
constexpr int64_t kThreadsAhead = 132 * 1024 / 2;

// Adds up the totals of a block's threads and stores them.
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

template <class Op, class Rows>
constexpr bool may_cluster() {
  if constexpr (Rows::kClusters) return Op::kClusters;
  return false;
}
template <class T, class Op, class Rows>
constexpr bool brings_near = sizeof(T) == 2 && may_cluster<Op, Rows>();

enum RowPhase { kWholeRows, kFindChunks, kApplyChunks, kAnyPhase };

template <class T, int vecs, RowPhase of, class Op, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (Op::kIsLarge ? 1 : kBlocksOf<T, Rows>))
void forward_rows(FASTACT_GRID_CONSTANT const Rows rows, const Op op, const ChunkNumbers numbers,
                  const RowPhase given) {
  const RowPhase phase = of == kAnyPhase ? given : of;
  int fold_index = 0;
  const RowPart part = row_part<T, vecs, of != kWholeRows>(rows, phase == kApplyChunks);
  typename Op::template Row<vecs> row;
  typename Op::template Made<kRowsOfVec<T, Rows>> made{};
  double total[2] = {};
  if constexpr (of == kWholeRows && brings_near<T, Op, Rows> && vecs == kMostVecs<T>) {
    const int64_t ahead = int64_t(blockIdx.x) + numbers.ahead;
    if (numbers.ahead > 0 && threadIdx.x == 0 && ahead < int64_t(gridDim.x))
      op.bring_near(rows, ahead);
  }
  op.take(rows, part, row, phase == kApplyChunks);
  if (Op::kMayWrite && phase == kApplyChunks) {
    made = op.resume(rows, part, numbers.rows, row);
  } else {
    const auto found = op.find(rows, part, row, phase == kFindChunks, fold_index);
    if (phase == kFindChunks) {
#pragma unroll
      for (int s = 0; s < kRowsOfVec<T, Rows>; ++s) {
        if (part.lane > 0 || s >= part.columns) break;
        const int64_t chunk = (part.row + s) * rows.chunks.count + part.chunk;
        double* const to = numbers.chunks + chunk * Op::kChunkNumbers;
        op.store_chunk(found, s, [&](int k, double number) { store(to + k, number); });
      }
    } else if (!part.idle && (op.writes(rows) || part.lane == 0)) {
      made = op.finish(rows, part, found, total);
    }
  }
  if (phase != kFindChunks && op.writes(rows)) op.put(rows, part, row, made);
  if (phase == kWholeRows) add_up(op, total, fold_index);
}

template <class Op, class Rows>
FASTACT_KERNEL(kMergeThreads)
void merge_chunks(FASTACT_GRID_CONSTANT const Rows rows, const Op op, const ChunkNumbers numbers) {
  int fold_index = 0;
  const int64_t row = int64_t(blockIdx.x) * (kMergeThreads / kWarp) + int(threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  const bool idle = row >= rows.count;
  const double* const chunks =
      numbers.chunks + (idle ? 0 : row) * rows.chunks.count * Op::kChunkNumbers;
  const auto merged = op.merge(rows, [&](int64_t i) { return load(chunks + i); }, lane, kWarp);
  double total[2] = {};
  if (!idle && lane == 0)
    op.finish_merged(rows, row, merged, numbers.rows + row * Op::kRowNumbers, total);
  add_up(op, total, fold_index);
}

constexpr int kMostOfCluster = 16;  // blocks; each has one chunk

// A thread's part of a chunk that this block has.
template <class T, class Rows>
FASTACT_DEVICE RowPart clustered_part(const Rows& rows) {
  RowPart part{};
  part.row = cluster_index(), part.chunk = block_of_cluster();
  part.lane = int(threadIdx.x), part.lanes = kRowThreads, part.columns = 1;
  const int64_t begin = part.chunk * rows.chunks.size;
  const int64_t all = smaller(rows.chunks.size, vecs_of<T>(rows) - begin);
  part.first = begin + part.lane;
  part.count = count_of<kMostVecs<T>>(all, part.lane, kRowThreads);
  return part;
}

// Rows in chunks, a cluster for each: its k-th block has the k-th chunk, which stays in registers.
template <class T, class Op, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kBlocksOf<T, Rows>))
void clustered_rows(FASTACT_GRID_CONSTANT const Rows rows, const Op op) {
  constexpr int kVecs = kMostVecs<T>, kNumbers = Op::kChunkNumbers;
  const Mailboxes<kMostOfCluster * kNumbers> of_chunks{};
  FASTACT_SHARED(double, of_row, Op::kRowNumbers);
  const int size = int(rows.chunks.count);
  of_chunks.open();
  if (threadIdx.x == 0) of_chunks.expect(0, size * kNumbers);
  typename Op::template Row<kVecs> held;
  const RowPart read = clustered_part<T>(rows);
  int fold_index = 0;
  op.take(rows, read, held, false);
  const auto found = op.find(rows, read, held, true, fold_index);
  of_chunks.all_are_open();
  if (int(threadIdx.x) < size)
    op.store_chunk(found, 0, [&](int k, double number) {
      of_chunks.send(0, block_of_cluster() * kNumbers + k, number, int(threadIdx.x));
    });
  if (threadIdx.x < kWarp) {
    of_chunks.wait(0);
    const int width = size <= 4 ? 4 : kWarp;
    const auto merged = op.merge(
        rows, [&](int64_t i) { return of_chunks.get(0, int(i)); }, int(threadIdx.x), width);
    if (threadIdx.x == 0) {
      op.numbers_of(merged, [&](int k, double number) { of_row[k] = number; });
      if (block_of_cluster() == 0) op.store_merged(rows, cluster_index(), merged);
    }
  }
  __syncthreads();
  const auto made = op.made_of([&](int k) { return double(of_row[k]); });
  const RowPart part = clustered_part<T>(rows);  // anew: it was in registers while that was found
  if (!op.is_as_read(found)) op.take(rows, part, held, true);
  op.put(rows, part, held, made);
}

// Queues clustered_rows where the device and the rows allow it.
template <class T, class Op, class Rows>
bool run_clusters(const Rows& rows, const Op& op, cudaStream_t stream) {
  const int64_t size = rows.chunks.count;
  if (size > kMostOfCluster || !op.reads_once(rows)) return false;
  const auto kernel = clustered_rows<T, Op, Rows>;
  const Shape shape{rows.count * size, kRowThreads, 1, 1, 0, int(size)};
  if (!has_room_for_clusters(reinterpret_cast<const void*>(kernel), shape)) return false;
  launch(kernel, shape, stream, rows, op);
  return true;
}

// Bytes of the numbers of chunks and of rows in chunks.
template <class Op>
int64_t chunk_bytes(int64_t rows, int64_t chunks) {
  const int64_t numbers = chunks > 1 ? chunks * Op::kChunkNumbers + Op::kRowNumbers : 0;
  return rows * numbers * int64_t(sizeof(double));
}

// The phase that a kernel is for: its own, or any.
template <class Op, class Rows>
constexpr RowPhase phase_of(RowPhase own) {
  return Rows::kQuick || (Rows::kColumns && Op::kMayWrite) ? own : kAnyPhase;
}

// Queues the kernels of an op. shape: for rows, or for their chunks. Returns how many blocks have
// totals.
template <class T, int vecs, class Op, class Rows>
int64_t run_forward(const Rows& rows, const Op& op, const Shape& shape, void* workspace,
                    cudaStream_t stream) {
  constexpr int kMost = kMostVecs<T>;
  using OfChunks = typename Op::OfChunks;
  using Applied = std::conditional_t<Rows::kColumns, typename Op::Applied, Op>;
  constexpr RowPhase kWhole = phase_of<Op, Rows>(kWholeRows),
                     kFind = phase_of<OfChunks, Rows>(kFindChunks),
                     kApply = phase_of<Applied, Rows>(kApplyChunks);
  ChunkNumbers numbers{static_cast<double*>(workspace), nullptr, 0};
  if constexpr (brings_near<T, Op, Rows>)
    if (rows.teams == 1 && op.reads_once(rows)) numbers.ahead = kThreadsAhead / shape.threads;
  numbers.rows = numbers.chunks + rows.count * rows.chunks.count * Op::kChunkNumbers;
  const auto run = [&](auto kernel, const auto& with, RowPhase phase) {
    launch(kernel, shape, stream, rows, with, numbers, phase);
  };
  if (rows.chunks.count == 1) {
    run(forward_rows<T, vecs, kWhole, Op, Rows>, op, kWholeRows);
    return shape.blocks;
  }
  if constexpr (may_cluster<Op, Rows>())
    if (run_clusters<T>(rows, op, stream)) return 0;
  run(forward_rows<T, kMost, kFind, OfChunks, Rows>, OfChunks{}, kFindChunks);
  using Slow = typename Rows::Slow;  // one kernel for whole vectors and others
  const int64_t blocks = ceil_div(rows.count, kMergeThreads / kWarp);
  launch(merge_chunks<typename Op::Slow, Slow>, {blocks, kMergeThreads}, stream, Slow(rows),
         op.slow(), numbers);
  if constexpr (Op::kMayWrite)
    if (op.writes(rows))
      run(forward_rows<T, kMost, kApply, Applied, Rows>, Applied{}, kApplyChunks);
  return blocks;
}

}  // namespace
FASTACT_END_NAMESPACE
