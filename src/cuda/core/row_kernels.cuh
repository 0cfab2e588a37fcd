// The forward kernels over rows, of any op: y = f(x; the row's statistic).
//
// A row that a block holds takes one kernel. A longer one takes three: the statistics of its
// chunks, one kernel that merges them, and y, from the last chunk on, which may be in the
// second-level cache still. Where the device has clusters, norms take one kernel for it too: the
// blocks of a cluster hold its chunks and give each other their statistics. Chunks and the order in
// which they merge are the same, so are bits. How rows are laid over threads, read and folded:
// held_rows.cuh.
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
//   kChunkNumbers, store_chunk(found, s, put)  put(k, number) of a chunk's statistic, of the s-th row
//   OfChunks                            the functor that finds it
//   Applied                             the functor that applies a row's statistic to columns
//   kRowNumbers, merge(rows, from, lane, width)  merges the chunks of a row, from(i) being the i-th
//                                       of their numbers, by lanes of a warp
//   finish_merged(rows, row, merged, to, &total)  stores a row's numbers, by one thread
//   resume(rows, part, from, &row)      gives Made of these
// and for clusters (kClusters of the rows, and of the op)
//   store_merged(rows, row, merged)     stores the statistics that a caller asks for
//   made_of(merged), is_as_read(found)  Made; whether find left the vectors as they were read
#pragma once

#include <cstdlib>

#include "cuda/core/held_rows.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

inline int tried(const char* name, int otherwise) {
  const char* const given = std::getenv(name);
  return given ? std::atoi(given) : otherwise;
}

constexpr int kMergeThreads = 256;  // of a block that merges chunks, one row for each warp

// The numbers that one kernel leaves for the next.
struct ChunkNumbers {
  double* chunks;  // of the first: rows x chunks x kChunkNumbers
  double* rows;    // of the second: rows x kRowNumbers
  int64_t ahead;   // trial: whole rows that a block brings near, so many blocks on
};

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
  if constexpr (of == kWholeRows && Rows::kClusters && vecs == kMostVecs<T>) {
    if constexpr (Op::kClusters) {
      const int64_t ahead = int64_t(blockIdx.x) + numbers.ahead;
      if (numbers.ahead > 0 && threadIdx.x == 0 && ahead < int64_t(gridDim.x)) {
        RowPart there{};
        there.row = ahead;
        op.bring_near(rows, there);
      }
    }
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

// Chunks of a row that a cluster takes, at most: two for each block.
constexpr int kMostOfCluster = 16, kMostClustered = 2 * kMostOfCluster;

// A thread's part of a chunk whose block is all of it.
template <class T, class Rows>
FASTACT_DEVICE RowPart chunk_part(const Rows& rows, int64_t row, int chunk) {
  const int64_t begin = chunk * rows.chunks.size;
  RowPart part{};
  part.row = row, part.chunk = chunk;
  part.lane = int(threadIdx.x), part.lanes = kRowThreads, part.columns = 1;
  part.first = begin + part.lane;
  const int64_t all = smaller(rows.chunks.size, vecs_of<T>(rows) - begin);
  part.count = count_of<kMostVecs<T>>(all, part.lane, kRowThreads);
  return part;
}

// Rows in chunks, a cluster of `size` blocks for each: block k has the chunks k, k + size, .. The
// last of them stays in its registers, and others (are_many) it reads again, from the second-level
// cache. A block brings near what the block `ahead` rows on reads: this one's registers are full,
// and memory would idle while it folds and waits for its cluster.
template <class T, bool are_many, class Op, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kBlocksOf<T, Rows>))
void clustered_rows(FASTACT_GRID_CONSTANT const Rows rows, const Op op, const int size,
                    const int64_t ahead) {
  constexpr int kVecs = kMostVecs<T>, kNumbers = Op::kChunkNumbers;
  const Mailbox<kMostClustered * kNumbers> of_chunks;
  FASTACT_SHARED(double, of_row, Op::kRowNumbers);
  of_chunks.open(int(rows.chunks.count) * kNumbers);
  const auto row = [] { return int64_t(cluster_index()); };
  int chunk = block_of_cluster();
  typename Op::template Row<kVecs> held;
  bool is_held = false;
#pragma unroll 1
  for (;; chunk += size) {
    if (ahead > 0 && threadIdx.x == 0 && row() + ahead < rows.count)
      op.bring_near(rows, chunk_part<T>(rows, row() + ahead, chunk));
    const RowPart part = chunk_part<T>(rows, row(), chunk);
    int fold_index = 0;
    op.take(rows, part, held, false);
    const auto found = op.find(rows, part, held, true, fold_index);
    is_held = op.is_as_read(found);
    if (!are_many || chunk < size) of_chunks.all_are_open();
    if (int(threadIdx.x) < size)
      op.store_chunk(found, 0, [&](int k, double number) {
        of_chunks.send(chunk * kNumbers + k, number, int(threadIdx.x));
      });
    if (!are_many || chunk + size >= int(rows.chunks.count)) break;
    __syncthreads();  // the next folds begin with the first buffer again
  }
  if (threadIdx.x < kWarp) {
    of_chunks.wait();
    const int width = int(rows.chunks.count) <= 4 ? 4 : kWarp;
    const auto merged =
        op.merge(rows, [&](int64_t i) { return of_chunks[i]; }, int(threadIdx.x), width);
    if (threadIdx.x == 0) {
      op.numbers_of(merged, [&](int k, double number) { of_row[k] = number; });
      if (block_of_cluster() == 0) op.store_merged(rows, row(), merged);
    }
  }
  __syncthreads();
  const auto made = op.made_of([&](int k) { return double(of_row[k]); });
#pragma unroll 1
  for (;; is_held = false) {
    const RowPart part = chunk_part<T>(rows, row(), chunk);
    if (!is_held) op.take(rows, part, held, true);
    op.put(rows, part, held, made);
    if (!are_many || chunk < size) break;
    chunk -= size;
  }
}

// Queues clustered_rows where the device and the rows allow it.
template <class T, class Op, class Rows>
bool run_clusters(const Rows& rows, const Op& op, cudaStream_t stream) {
  static const int wanted = tried("FASTACT_TRY_CLUSTER", 16);
  static const int ahead = tried("FASTACT_TRY_AHEAD", 264);
  if (wanted <= 1) return false;
  const auto run = [&](auto kernel, int turns) {
    const int64_t size = ceil_div(rows.chunks.count, turns);
    if (size > std::min(wanted, kMostOfCluster)) return false;
    const uint32_t sizes = cluster_sizes(reinterpret_cast<const void*>(kernel), kRowThreads);
    if (!(sizes >> size & 1)) return false;
    launch(kernel, {rows.count * size, kRowThreads, 1, 1, 0, int(size)}, stream, rows, op,
           int(size), ahead / size);
    return true;
  };
  return run(clustered_rows<T, false, Op, Rows>, 1) || run(clustered_rows<T, true, Op, Rows>, 2);
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
  static const int ahead = tried("FASTACT_TRY_AHEAD_WHOLE", 0);  // percent of resident blocks
  ChunkNumbers numbers{static_cast<double*>(workspace), nullptr, 0};
  if (rows.teams == 1) numbers.ahead = 132 * (1024 / shape.threads) * ahead / 100;
  numbers.rows = numbers.chunks + rows.count * rows.chunks.count * Op::kChunkNumbers;
  const auto run = [&](auto kernel, const auto& with, RowPhase phase) {
    launch(kernel, shape, stream, rows, with, numbers, phase);
  };
  if (rows.chunks.count == 1) {
    run(forward_rows<T, vecs, kWhole, Op, Rows>, op, kWholeRows);
    return shape.blocks;
  }
  if constexpr (Rows::kClusters) {
    if constexpr (Op::kClusters)
      if (run_clusters<T>(rows, op, stream)) return 0;
  }
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
