// Sums and other folds within a warp and within a block, in an order fixed by the number of
// threads.
#pragma once

#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE

// merge(a, b) over `width` neighbouring lanes, a power of two, given to all of them. Every lane of
// the warp takes part.
template <class T, class Merge>
FASTACT_DEVICE T warp_fold(T value, Merge merge, int width = kWarp) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    if (step < width) value = merge(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
// Folds two values at once, in hardly more steps than one value takes: each half of the lanes
// folds one of them. The lower half of each `width` lanes gets the first value's fold, the upper
// half the second's.
template <class T, class Merge>
FASTACT_DEVICE T warp_fold_halves(const T (&value)[2], Merge merge, int width = kWarp) {
  const bool upper = int(threadIdx.x) & (width / 2);
  const T given = __shfl_xor_sync(kAllLanes, upper ? value[0] : value[1], width / 2);
  return warp_fold(merge(upper ? value[1] : value[0], given), merge, width / 2);
}
// Gives all lanes both of the folds of warp_fold_halves.
template <class T>
FASTACT_DEVICE void share_halves(T half, T (&value)[2], int width = kWarp) {
  const bool upper = int(threadIdx.x) & (width / 2);
  const T other = __shfl_xor_sync(kAllLanes, half, width / 2);
  value[0] = upper ? other : half;
  value[1] = upper ? half : other;
}
template <class T>
FASTACT_DEVICE T warp_sum(T value, int width = kWarp) {
  return warp_fold(value, [](T a, T b) { return a + b; }, width);
}

// The sum over a block of `threads` threads, valid in its first warp. Every thread takes part; the
// caller puts a barrier between two uses.
template <int threads, class T>
FASTACT_DEVICE T block_sum(T value) {
  constexpr int kWarps = threads / kWarp;
  static_assert(kWarps <= kWarp && (kWarps & (kWarps - 1)) == 0, "one warp adds the warps' sums");
  FASTACT_SHARED(T, sums, kWarps);
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = threadIdx.x < kWarps ? T(sums[threadIdx.x]) : T(0);
  return warp_sum(value, kWarps);
}

constexpr int kMostWarps = 16;  // of a team

// Whether a condition holds for any thread of the block; a barrier.
FASTACT_DEVICE bool any_of_block(bool condition) {
  FASTACT_SHARED(int, of_warps, kMostWarps);
  const bool of_warp = __any_sync(kAllLanes, condition);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  bool any = false;
  for (int i = 0; i < int(blockDim.x) / kWarp; ++i) any |= int(of_warps[i]) != 0;
  return any;
}

// All folds of n numbers share one array: inside fold_team each Merge would have an array of its
// own.
template <int n, class N>
FASTACT_DEVICE auto fold_buffer() {
  FASTACT_SHARED(N, of_warps, n);
  return of_warps;
}

// A team's threads are some of a warp, a power of two, or all of a block.
enum TeamIn { kWarpOrBlock, kOneWarp, kOneBlock };

// Folds the numbers of a team's `lanes` threads into one, and gives it to all of them. All threads
// of the block take part. in: a kernel for one kind of team says which kind. Two numbers are folded
// at once, one by each half of a warp's lanes. The numbers of a block's warps are folded as Across,
// in which `neutral` merges without effect; the threads get result(fold).
// fold_index counts the folds. Its parity picks one of two buffers, so that one barrier a fold is
// enough: a thread that writes to a buffer again has met all others at the barrier of the fold in
// between.
template <TeamIn in, class Across, class N, int n, class Merge, class Result>
FASTACT_DEVICE void fold_team(N (&value)[n], int lanes, int& fold_index, Merge merge,
                              Across neutral, Result result) {
  constexpr int kFolds = (n + 1) / 2;
  static_assert(kMostWarps == kWarp / 2, "each half of a warp has a number of every warp");
  const int lane = int(threadIdx.x) % kWarp;
  const int width = in == kOneBlock || (in == kWarpOrBlock && lanes >= kWarp) ? kWarp : lanes;
  if (width == 1) {
#pragma unroll
    for (int k = 0; k < n; ++k) value[k] = result(Across(value[k]));
    return;
  }
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
  Across all[kFolds];
#pragma unroll
  for (int f = 0; f < kFolds; ++f) all[f] = Across(folded[f]);
  if (in == kOneBlock || (in == kWarpOrBlock && lanes > kWarp)) {
    const auto of_warps = fold_buffer<2 * kFolds * kWarp, Across>();
    const int from = (fold_index++ & 1) * kFolds * kWarp;
    const int other = lane % kMostWarps, warp = int(threadIdx.x) / kWarp;
#pragma unroll
    for (int f = 0; f < kFolds; ++f)
      if (other == 0) of_warps[from + f * kWarp + lane + warp] = all[f];
    __syncthreads();
#pragma unroll
    for (int f = 0; f < kFolds; ++f) {
      const Across of_warp =
          other < lanes / kWarp ? Across(of_warps[from + f * kWarp + lane]) : neutral;
      all[f] = warp_fold(of_warp, merge, kMostWarps);
    }
  }
#pragma unroll
  for (int f = 0; f < kFolds; ++f) {
    const N given = result(all[f]);
    N two[2] = {given, given};
    if (2 * f + 1 < n) share_halves(given, two, width);
    value[2 * f] = two[0];
    value[2 * f + 1 < n ? 2 * f + 1 : 2 * f] = two[2 * f + 1 < n];
  }
}

template <class N, int n, class Merge>
FASTACT_DEVICE void fold_team(N (&value)[n], int lanes, int& fold_index, Merge merge,
                              N neutral = N(0)) {
  fold_team<kWarpOrBlock>(value, lanes, fold_index, merge, neutral, [](N all) { return all; });
}
template <class N, int n>
FASTACT_DEVICE void team_sums(N (&value)[n], int lanes, int& fold_index) {
  fold_team(value, lanes, fold_index, [](N a, N b) { return a + b; });
}

// Adds n numbers up as a tree, n a power of two: those from `filled` on are zeros.
template <class N, int n>
FASTACT_DEVICE N tree_sum(N (&part)[n], int filled = n) {
#pragma unroll
  for (int half = n / 2; half > 0; half /= 2)
#pragma unroll
    for (int j = 0; j < half; ++j)
      if (j + half < filled) part[j] += part[j + half];
  return part[0];
}

// Shared memory for fold_rows, in numbers. A lane of the vectors lies in other banks than the next.
constexpr int kBanks = 16;  // of 8 bytes
template <int threads, int kSize>
constexpr int kFoldBuffer = (threads + kBanks / kSize) * kSize;

// The rows of a block that fold_rows leaves: `rows` of them, at most kFoldedRows, by lanes.
constexpr int kFoldedRows = 8;
template <int kSize>
struct FoldedRows {
  int tx, rows, lane_step;

  template <class Shared>
  FASTACT_DEVICE double sum(Shared&& buffer, int column) const {
    const int first = column % kSize * lane_step + column / kSize;
    double part[kFoldedRows];
#pragma unroll
    for (int r = 0; r < kFoldedRows; ++r) part[r] = r < rows ? double(buffer[first + r * tx]) : 0.0;
    return tree_sum(part);
  }
};

// Folds the rows of a block by halves until `most` are left: halve(step) folds the caller's y-th
// row and the one `step` rows on. Gives the number of rows that are left.
template <class Halve>
FASTACT_DEVICE int halve_rows(int y, int rows, int most, const Halve& halve) {
  while (rows > most) {
    const int half = (rows + 1) / 2;
    if (y + half < rows) halve(half);
    __syncthreads();
    rows = half;
  }
  return rows;
}

// Adds up the rows of a block of tx by ty threads, by halves, until few are left: then any thread
// can ask for the sum of a column. `buffer`: kFoldBuffer numbers. Threads beyond ty rows have no
// columns.
template <class Shared, int kSize>
FASTACT_DEVICE FoldedRows<kSize> fold_rows(Shared&& buffer, const double (&total)[kSize], int x,
                                           int y, int tx, int ty) {
  const int mine = y * tx + x, lane_step = tx * ty + kBanks / kSize;
  if (y < ty) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) buffer[j * lane_step + mine] = total[j];
  }
  __syncthreads();
  const int rows = halve_rows(y, ty, kFoldedRows, [&](int half) {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      buffer[j * lane_step + mine] += double(buffer[j * lane_step + mine + half * tx]);
  });
  return {tx, rows, lane_step};
}

FASTACT_END_NAMESPACE
