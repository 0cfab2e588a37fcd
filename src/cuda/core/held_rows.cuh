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

// Numbers of the lanes of a row folded into one, given to all of them. neutral: to merge.
// The lanes are a power of two within a warp, or the whole block; all threads take part.
// fold_index: the number of the fold, whose parity picks one of two buffers, so that one barrier a
// fold is enough: who writes to a buffer again has met all others at the barrier of the fold
// between.
template <class N, int n, class Merge>
FASTACT_DEVICE void fold_lanes(N (&value)[n], int lanes, int& fold_index, Merge merge,
                               N neutral = N(0)) {
  constexpr int kMostWarps = kRowThreads / kWarp;
  FASTACT_SHARED(N, of_warps, 2 * n * kMostWarps);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    if (step >= lanes) continue;
#pragma unroll
    for (int k = 0; k < n; ++k)
      value[k] = merge(value[k], __shfl_xor_sync(kAllLanes, value[k], step));
  }
  if (lanes <= kWarp) return;
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int from = (fold_index++ & 1) * n * kMostWarps;
#pragma unroll
  for (int k = 0; k < n; ++k)
    if (lane == 0) of_warps[from + k * kMostWarps + warp] = value[k];
  __syncthreads();
  const int other = lane % kMostWarps;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const N of_other = other < lanes / kWarp ? N(of_warps[from + k * kMostWarps + other]) : neutral;
    value[k] = warp_fold(of_other, merge, kMostWarps);
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
