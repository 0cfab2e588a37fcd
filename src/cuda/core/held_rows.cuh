// Rows in registers: how they are laid over threads, and what their kernels read, write and fold.
//
// A thread reads all of its vectors of a row before it uses the first, so that their latencies
// overlap, and keeps them in registers. The number of its vectors is a template parameter. Nothing
// but the folds of a row's warps goes through shared memory.
#pragma once

#include <type_traits>

#include "cuda/core/rows.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Vectors of a thread, threads of a row, threads of a block.
struct RowShape {
  int vecs, lanes, threads;
};

// A vector in registers: nvcc 13.0 takes eight numbers of 16 bits apart.
struct Held {
  uint32_t word[4];
};
template <class T>
FASTACT_DEVICE Wide<T> widen_held(const Held& held) {
  return widen_vec(bit_cast<Vec<T>>(held));
}

// Vectors of a thread, at most: a vector of 16 bits is eight numbers to compute with.
template <class T>
constexpr int kMostVecs = sizeof(T) == 2 ? 4 : 8;
// Vectors of a row that a block holds.
template <class T>
constexpr int64_t kHeldRow = kMostVecs<T> * kRowThreads;

// How a row of that many vectors is laid over threads. A warp is enough for a short row and needs
// no barrier; many short rows share a block. In a block a thread has four vectors as long as that
// is enough. What was measured: docs/design/cuda.md, "Norms over rows".
template <class T>
RowShape row_shape(int64_t vecs) {
  constexpr int kMost = kMostVecs<T>;
  if (vecs <= 2 * kWarp) return {2, power_of_two_from(ceil_div(vecs, 2), kWarp), 256};
  if (vecs <= 4 * kWarp) return {4, kWarp, 256};
  if (vecs <= kMost * kWarp) return {kMost, kWarp, 128};
  const int of_thread = vecs <= 1024 ? 4 : kMost;
  const int lanes = int(ceil_div(ceil_div(vecs, of_thread), kWarp)) * kWarp;
  return {of_thread, lanes, lanes};
}

// Calls body(partition, idle) for the row that a thread has a part of: the grid is over all rows,
// which memory bounds. An idle thread takes part in shuffles and barriers and has no row. Lanes are
// a power of two within a warp, or the whole block, so that nothing is divided.
template <class T, int vecs, class Rows, class Body>
FASTACT_DEVICE void for_held_row(const Rows& rows, Body body) {
  const bool in_warp = rows.lanes <= kWarp;
  const int thread = int(threadIdx.x), lanes = rows.lanes, of_row = int(vecs_of<T>(rows));
  const int team = in_warp ? thread >> (31 - __clz(lanes)) : 0;
  const int lane = in_warp ? thread & (lanes - 1) : thread;
  const int64_t row = int64_t(blockIdx.x) * rows.teams + team;
  const bool idle = row >= rows.count;
  int count = 0;
#pragma unroll
  for (int i = 0; i < vecs; ++i)
    if (!idle && lane + i * lanes < of_row) count = i + 1;
  body(Partition{row, lane, count, lanes, lane}, idle);
}

// The one array of all folds of as many numbers: in fold_lanes itself each Merge would have
// another.
template <int n, class N>
FASTACT_DEVICE auto fold_buffer() {
  FASTACT_SHARED(N, of_warps, n);
  return of_warps;
}

// Numbers of the lanes of a row folded into one, given to all of them. neutral: to merge.
// The lanes are a power of two within a warp, or the whole block; all threads take part. Two
// numbers are folded at once, by one half of a warp's lanes each.
// fold_index: the number of the fold, whose parity picks one of two buffers, so that one barrier a
// fold is enough: who writes to a buffer again has met all others at the barrier of the fold
// between.
template <class N, int n, class Merge>
FASTACT_DEVICE void fold_lanes(N (&value)[n], int lanes, int& fold_index, Merge merge,
                               N neutral = N(0)) {
  constexpr int kMostWarps = kRowThreads / kWarp, kFolds = (n + 1) / 2;
  static_assert(kMostWarps == kWarp / 2, "each half of a warp has a number of every warp");
  const int lane = int(threadIdx.x) % kWarp, width = lanes < kWarp ? lanes : kWarp;
  if (width == 1) return;
  N folded[kFolds];
#pragma unroll
  for (int f = 0; f < kFolds; ++f) {
    if (2 * f + 1 < n) {
      const N two[2] = {value[2 * f], value[2 * f + 1 < n ? 2 * f + 1 : 0]};
      folded[f] = warp_fold_halves(two, merge, width);
    } else {
      folded[f] = warp_fold(value[2 * f], merge, width);
    }
  }
  if (lanes > kWarp) {
    const auto of_warps = fold_buffer<2 * kFolds * kWarp, N>();
    const int from = (fold_index++ & 1) * kFolds * kWarp;
    const int other = lane % kMostWarps, warp = int(threadIdx.x) / kWarp;
#pragma unroll
    for (int f = 0; f < kFolds; ++f)
      if (other == 0) of_warps[from + f * kWarp + lane + warp] = folded[f];
    __syncthreads();
#pragma unroll
    for (int f = 0; f < kFolds; ++f) {
      const N of_warp = other < lanes / kWarp ? N(of_warps[from + f * kWarp + lane]) : neutral;
      folded[f] = warp_fold(of_warp, merge, kMostWarps);
    }
  }
#pragma unroll
  for (int f = 0; f < kFolds; ++f) {
    value[2 * f] = folded[f];
    if (2 * f + 1 >= n) continue;
    N two[2];
    share_halves(folded[f], two, width);
    value[2 * f] = two[0];
    value[2 * f + 1 < n ? 2 * f + 1 : 0] = two[1];
  }
}

// From the beginning of a quick row, whose length is a 32-bit number, to a thread's i-th vector.
template <class T>
FASTACT_DEVICE int quick_offset(const Partition& partition, int i) {
  return (int(partition.first) + i * partition.lanes) * Vec<T>::kSize;
}

template <class T, class Rows>
FASTACT_DEVICE Vec<T> read_own(const Rows& rows, int role, const Partition& partition, int i) {
  if constexpr (Rows::kQuick)
    return load_vec(row_of<T>(rows, role, partition.row) + quick_offset<T>(partition, i));
  else
    return read<T>(rows, role, partition.row, partition.vec(i), valid_of<T>(rows, partition, i));
}

template <class T, class Rows>
FASTACT_DEVICE void write_own(const Rows& rows, int role, const Partition& partition, int i,
                              const Vec<T>& vec) {
  if constexpr (Rows::kQuick)
    store_vec(row_of<T>(rows, role, partition.row) + quick_offset<T>(partition, i), vec);
  else
    write(rows, role, partition.row, partition.vec(i), valid_of<T>(rows, partition, i), vec);
}

template <int vecs>
FASTACT_DEVICE void forget_row(Held (&x)[vecs]) {
#pragma unroll
  for (int i = 0; i < vecs; ++i) forget(x[i].word);
}

// Runs visit(vecs) with the number of vectors of a thread as a constant.
template <class T, class Visit>
void with_vecs(int vecs, Visit visit) {
  if (vecs == 2) return visit(std::integral_constant<int, 2>());
  if (vecs == 4) return visit(std::integral_constant<int, 4>());
  visit(std::integral_constant<int, kMostVecs<T>>());
}

}  // namespace
FASTACT_END_NAMESPACE
