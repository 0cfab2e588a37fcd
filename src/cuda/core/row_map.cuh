// The map over rows of vectors, for what belongs to columns: y = f(x0, x1, ...; the column's bias),
// with sums over the rows on request. Arrays that lie otherwise take core/strided_map.cuh.
//
// All arrays are rows of whole, aligned vectors at pitches of their own: dense ones, or halves of
// packed ones. A block is a tile of columns over a chunk of the rows. A thread has one vector of
// columns. It reads the columns' bias once for all of its rows, and has kUnroll rows in flight.
// Offsets have 32 bits but for one product a row; only the block's number is divided.
//
// An op is a functor:
//   kInputs, kOutputs, kMade, kSums, kUnroll, kBlocks
//                                                  arrays; what is made, the outputs first; sums of
//                                                  the last of these, before they are rounded; rows
//                                                  in flight; blocks a multiprocessor has at least
//   auto keep(int64_t column)                      what a thread keeps of the vector at `column`
//   void vec(const Wide<T> (&in)[kInputs], const bool (&has)[kInputs], const auto& kept,
//            Wide<T> (&made)[kMade])               has: whether an input is there
// Inputs and outputs that are null are skipped.
//
// Sums: each lane adds in double, a tree adds up the threads of a column, or of the segment that a
// channel has, and a block leaves one partial sum for each of its channels. The chunks
// follow from the shape alone, and so do the bits. Why not in float32: docs/design/cuda.md, "Rows
// of vectors".
//
// Bytes moved: inputs and outputs, once.
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/elementwise.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kRowMapThreads = 256;
// Blocks that add up sums, at most, but for very wide rows: what an H200 has at once, three blocks
// a multiprocessor, four times. A last round of few blocks would leave most of it idle.
constexpr int64_t kRowMapTasks = 4 * 3 * 132;
constexpr int64_t kRowMapRows = 8;  // rows of a thread that adds up sums, at least

// The place of sums: kSums x channels x of_channel. Either each column is a channel, and a row has
// all channels `times` times. Or a channel is a segment of many vectors, in whole tiles, whose sums
// are added up.
struct RowSums {
  double* partials;
  Divisor channels;
  int64_t times, of_channel;  // of_channel: partial sums of one
  uint32_t segment;
  Divisor tiles_of_segment;
};

template <class F>
struct RowMap {
  const char* in[F::kInputs];
  char* out[F::kOutputs];
  uint32_t in_pitch[F::kInputs], out_pitch[F::kOutputs];  // bytes from row to row
  uint32_t rows, chunk;                                   // in all, and of a chunk
  uint32_t vecs, vecs_of_last;                            // of a row, and of the last one
  Divisor tiles;
  bool accumulate;  // outputs are added to
  RowSums sums;
};

template <class T, class F>
FASTACT_KERNEL_OF(kRowMapThreads, F::kBlocks)
void map_rows(FASTACT_GRID_CONSTANT const RowMap<F> map, FASTACT_GRID_CONSTANT const F f) {
  constexpr int kSize = Vec<T>::kSize, kUnroll = F::kUnroll;
  const uint32_t chunk = uint32_t(map.tiles(blockIdx.x));
  const uint32_t index = blockIdx.x - chunk * uint32_t(map.tiles.by), step = blockDim.y;
  uint32_t tile = index * blockDim.x, last = map.vecs;
  if (F::kSums > 0 && map.sums.segment > 0) {
    const uint32_t segment = uint32_t(map.sums.tiles_of_segment(index));
    last = (segment + 1) * map.sums.segment;
    tile = segment * map.sums.segment +
           (index - segment * uint32_t(map.sums.tiles_of_segment.by)) * blockDim.x;
  }
  const uint32_t vec = tile + threadIdx.x;
  uint32_t row = chunk * map.chunk + threadIdx.y;
  uint32_t end = map.rows - (vec >= map.vecs_of_last);
  if (vec >= last) end = 0;
  if (end > (chunk + 1) * map.chunk) end = (chunk + 1) * map.chunk;

  bool has[F::kInputs];
#pragma unroll
  for (int k = 0; k < F::kInputs; ++k) has[k] = map.in[k];
  Words in[kUnroll][F::kInputs];
  const auto read = [&] {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t at = row + u * step;
      if (at >= end) break;
#pragma unroll
      for (int k = 0; k < F::kInputs; ++k)
        if (has[k])
          in[u][k] = bit_cast<Words>(load_vec(reinterpret_cast<const T*>(
              map.in[k] + uint64_t(vec) * kVecBytes + uint64_t(at) * map.in_pitch[k])));
    }
  };
  read();
  const auto kept = f.keep(int64_t(vec) * kSize);
  double sum[F::kSums > 0 ? F::kSums : 1][kSize] = {};
  while (row < end) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t at = row + u * step;
      if (at >= end) break;
      Wide<T> wide[F::kInputs], made[F::kMade];
#pragma unroll
      for (int k = 0; k < F::kInputs; ++k) wide[k] = widen_words<T>(in[u][k]);
      f.vec(wide, has, kept, made);
#pragma unroll
      for (int k = 0; k < F::kSums; ++k)
#pragma unroll
        for (int j = 0; j < kSize; ++j) sum[k][j] += double(made[F::kMade - F::kSums + k].lane[j]);
#pragma unroll
      for (int k = 0; k < F::kOutputs; ++k) {
        if (F::kOutputs > 1 && !map.out[k]) continue;
        T* const to = reinterpret_cast<T*>(map.out[k] + uint64_t(vec) * kVecBytes +
                                           uint64_t(at) * map.out_pitch[k]);
        if (map.accumulate) accumulate_onto(load_vec(to), made[k]);
        store_vec(to, narrow_vec<T>(made[k]));
      }
    }
    row += kUnroll * step;
    read();
  }

  if constexpr (F::kSums > 0) {
    FASTACT_SHARED(double, buffer, (kFoldBuffer<kRowMapThreads, kSize>));
    const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
    const int threads = int(blockDim.x * blockDim.y);
    const int columns = int(smaller(blockDim.x, last - tile)) * kSize;
#pragma unroll
    for (int k = 0; k < F::kSums; ++k) {
      double* const partials = map.sums.partials + k * map.sums.channels.by * map.sums.of_channel;
      if (map.sums.segment > 0) {
        double all[1] = {};
#pragma unroll
        for (int j = 0; j < kSize; ++j) all[0] += sum[k][j];
        const auto folded = fold_rows(buffer, all, 0, thread, 1, threads);
        const int64_t of_chunk = map.sums.tiles_of_segment.by;
        int place = int(index);
        forget(place);  // the segment is found again, instead of a register through the rows
        const int64_t channel = map.sums.tiles_of_segment(place);
        if (thread == 0)
          store(partials + channel * map.sums.of_channel + chunk * of_chunk + place -
                    channel * of_chunk,
                folded.sum(buffer, 0));
      } else {
        const auto folded = fold_rows(buffer, sum[k], int(threadIdx.x), int(threadIdx.y),
                                      int(blockDim.x), int(blockDim.y));
        for (int c = thread; c < columns; c += threads) {
          const int64_t column = int64_t(tile) * kSize + c, time = map.sums.channels(column);
          store(partials + (column - time * map.sums.channels.by) * map.sums.of_channel +
                    chunk * map.sums.times + time,
                folded.sum(buffer, c));
        }
      }
      __syncthreads();
    }
  }
}

// Arrays as rows of vectors. `times` rows of so many elements are joined so that they make whole
// vectors; the last row may be shorter.
template <class T>
struct RowsOfVectors {
  int64_t times = 1, vecs, rows, vecs_of_last;
  bool fit;

  RowsOfVectors(int64_t width, int64_t elements) {
    constexpr int64_t kSize = Vec<T>::kSize, kMost = int64_t(1) << 31;
    while (width * times % kSize != 0) times *= 2;
    vecs = width * times / kSize;
    rows = ceil_div(elements / kSize, vecs);
    vecs_of_last = elements / kSize - (rows - 1) * vecs;
    fit = elements % kSize == 0 && vecs * kVecBytes < kMost && rows < kMost;
  }
  uint32_t pitch() const { return uint32_t(vecs * kVecBytes); }
};

// Operands of a plan, which may be absent, as rows of vectors at their own pitches: contiguous ones
// as rows of kRowMapThreads vectors, others by their outer axis.
template <class T, int operands>
struct PlannedRows : RowsOfVectors<T> {
  uint32_t pitch[operands];

  explicit PlannedRows(const ElementwisePlan& plan)
      : RowsOfVectors<T>(
            plan.all_contiguous() ? kRowMapThreads * Vec<T>::kSize : plan.shape[plan.ndim - 1],
            plan.size) {
    const bool whole = plan.all_contiguous();
    this->fit &= whole || (plan.ndim == 2 && this->times == 1);
    for (int k = 0; k < operands; ++k) {
      const int64_t stride = whole ? RowsOfVectors<T>::pitch() : plan.strides[k][0];
      pitch[k] = uint32_t(stride);
      if (!plan.data[k]) continue;
      this->fit &= stride >= 0 && stride < int64_t(1) << 31 && rows_aligned(plan, k, kVecBytes) &&
                   plan.strides[k][plan.ndim - 1] == plan.item;
    }
  }
};

// Threads of a block, tiles of columns, rows of a chunk, chunks, and partial sums of a channel.
struct RowGrid {
  int tx, ty;
  int64_t tiles, chunk, chunks, partials;
};

// Without sums each thread has `unroll` rows; with sums it has many, in chunks that follow from the
// shape. segment: the vectors of a channel, where it has many.
template <class T>
RowGrid row_grid(const RowsOfVectors<T>& of, int unroll, bool sums, int64_t segment) {
  RowGrid grid;
  const int64_t width = segment > 0 ? segment : of.vecs;
  const int64_t tiles = ceil_div(width, sums && segment == 0 ? kWarp : kRowMapThreads);
  grid.tiles = tiles * (of.vecs / width);
  grid.tx = int(ceil_div(width, tiles));
  grid.ty = kRowMapThreads / grid.tx;
  grid.chunk = grid.ty * (sums ? kRowMapRows : unroll);
  const int64_t of_chunk = segment > 0 ? tiles : of.times;
  if (sums) {
    const int64_t most = std::min(kRowMapTasks / grid.tiles, kMaxChunks / of_chunk);
    grid.chunk = std::max(grid.chunk, ceil_div(of.rows, std::max<int64_t>(1, most)));
  }
  grid.chunks = ceil_div(of.rows, grid.chunk);
  grid.partials = grid.chunks * of_chunk;
  return grid;
}

// Queues a map whose arrays, and of sums `partials`, `channels` and `segment`, are filled in.
// Returns the number of partial sums of each channel.
template <class T, class F>
int64_t run_rows(RowMap<F> map, const RowsOfVectors<T>& of, const F& f, cudaStream_t stream) {
  const RowGrid grid = row_grid(of, F::kUnroll, F::kSums > 0, map.sums.segment);
  map.rows = uint32_t(of.rows), map.chunk = uint32_t(grid.chunk);
  map.vecs = uint32_t(of.vecs), map.vecs_of_last = uint32_t(of.vecs_of_last);
  const int64_t blocks = grid.tiles * grid.chunks;
  map.tiles = Divisor(grid.tiles, blocks);
  map.sums.times = of.times, map.sums.of_channel = grid.partials;
  if (map.sums.segment > 0)
    map.sums.tiles_of_segment = Divisor(grid.partials / grid.chunks, grid.tiles);
  launch(map_rows<T, F>, {blocks, grid.tx, grid.ty}, stream, map, f);
  return grid.partials;
}

}  // namespace
FASTACT_END_NAMESPACE
