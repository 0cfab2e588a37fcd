// Sums by channel, over all other axes: the engine of the gradients of biases.
//
// A functor says what is added. It reads its operands a vector at a time, may write a result on the
// way (dx, whose sum is a bias's gradient), and gives the terms. They are added in double.
//
//   kArrays, kSums                    operands, and sums of each channel
//   kTogether                         vectors in flight
//   kBlocks                           least blocks on a multiprocessor, of the kernels below
//   kByRow                            columns: `index` counts rows instead of elements
//   kNumbers, number(k, coef)         the numbers of a channel, as its bias
//   of_columns(staged, column)        (k, lane) -> a number of a vector of channels, from shared
//                                     memory
//   vecs(index, valid, numbers, add)  add(terms) for each vector that is there, in their order
//   element(at, numbers, terms)       one element
//
// A functor may leave out what its kernels do not ask for.
//
//   sums_of_columns    dense, channels last: a task is a tile of channels over a chunk of rows,
//                      added in shared memory by a tree; where a row is no whole number of vectors,
//                      several rows that are one are joined
//   sums_of_any        all other arrays: a task is a chunk of the elements of one channel
//
// A task of one channel has a team of threads: a block where the channel is long, or else as many
// lanes of a warp as it has elements, so that short channels share a block.
//
// A coefficient index counts channels. Partial sums lie [kSums][coefs][chunks]; their order depends
// on the shape and on the order of the axes in memory alone.
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/layout.cuh"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kSumThreads = 256;
constexpr int64_t kSumRows = 64;        // rows of a chunk of columns
constexpr int64_t kSumElements = 8192;  // of a chunk of one channel
constexpr int64_t kSumTasks = 1024;     // of columns
constexpr int64_t kWarpItems = 256;     // elements of a channel, at most, for one warp

// Arrays of a functor, as run_channel_sums fills them in.
template <int arrays>
struct SumArrays {
  char* data[arrays];
  int64_t n;     // elements
  bool aligned;  // every vector is a multiple of 16 bytes
};

struct SumTasks {
  int64_t size, count;  // of a chunk, in rows or elements; chunks of a channel
  int64_t coefs;
  double* partials;             // OUT
  int64_t first = 0, step = 1;  // the coefficient indices of columns, where they are not 0, 1, ...

  template <int sums>
  FASTACT_DEVICE void put(int64_t coef, int64_t chunk, const double (&sum)[sums]) const {
#pragma unroll
    for (int k = 0; k < sums; ++k)
      store(partials + (k * coefs + first + coef * step) * count + chunk, sum[k]);
  }
};

// How many threads a task takes whose channel has so many elements.
inline int team_of(int64_t items) {
  return items > kWarpItems ? kSumThreads : power_of_two_from(items, kWarp);
}

// A chunk [begin, end) of a channel's elements. An idle team has none, yet it takes part
// in shuffles and barriers.
struct ChannelTask {
  bool idle;
  int64_t coef, chunk, begin, end;
};

// Calls visit(task, lane) for the tasks of channels, each of so many elements.
template <class Visit>
FASTACT_DEVICE void for_each_task(const SumTasks& tasks, int team, int64_t items,
                                  const Visit& visit) {
  const int here = kSumThreads / team, lane = int(threadIdx.x) % team;
  const int64_t all = tasks.coefs * tasks.count;
  for (int64_t first = int64_t(blockIdx.x) * here; first < all;
       first += int64_t(gridDim.x) * here) {
    const int64_t task = first + int(threadIdx.x) / team;
    const bool idle = task >= all;
    const int64_t coef = idle ? 0 : task / tasks.count;
    const int64_t chunk = idle ? 0 : task - coef * tasks.count;
    const int64_t begin = chunk * tasks.size;
    visit(ChannelTask{idle, coef, chunk, begin, idle ? 0 : smaller(begin + tasks.size, items)},
          lane);
  }
}

// Adds up the sums of a team and writes them as the sums of its task.
template <int sums>
FASTACT_DEVICE void put_of_team(const SumTasks& tasks, const ChannelTask& task, int team, int lane,
                                double (&sum)[sums]) {
#pragma unroll
  for (int k = 0; k < sums; ++k) {
    if (team == kSumThreads) {
      sum[k] = block_sum<kSumThreads>(sum[k]);
      __syncthreads();
    } else {
      sum[k] = warp_sum(sum[k], team);
    }
  }
  if (lane == 0 && !task.idle) tasks.put(task.coef, task.chunk, sum);
}

struct Columns : ChannelRows {
  int64_t channels;
  int64_t elements;
};

template <class T, class F>
FASTACT_KERNEL_OF(kSumThreads, (F::kBlocks[0]))
void sums_of_columns(FASTACT_GRID_CONSTANT const F f, const SumTasks tasks, const Columns shape) {
  constexpr int kSize = Vec<T>::kSize;
  FASTACT_SHARED(double, buffer, (kFoldBuffer<kSumThreads, kSize>));
  FASTACT_SHARED(Compute<T>, staged, F::kNumbers > 0 ? F::kNumbers * kSize * kWarp : 1);
  const int tx = int(threadIdx.x) % shape.tx, ty = int(threadIdx.x) / shape.tx;
  const int64_t all = tasks.count * shape.tiles;
  for (int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const int64_t tile = task % shape.tiles;
    const int64_t chunk = task / shape.tiles;
    const int64_t here = tile * shape.tx * kSize, column = here + tx * kSize;
    const int64_t begin = chunk * tasks.size, end = smaller(begin + tasks.size, shape.rows);
    const bool is_there = column < shape.width && ty < shape.ty;
    if constexpr (F::kNumbers > 0) {  // [number][lane][tx]
      if (is_there && ty == 0) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const bool has_coef = column + j < shape.width;
          const int64_t coef = (column + j) % shape.channels;
#pragma unroll
          for (int k = 0; k < F::kNumbers; ++k)
            staged[(k * kSize + j) * kWarp + tx] = has_coef ? f.number(k, coef) : Compute<T>(0);
        }
      }
      __syncthreads();
    }

    double sum[F::kSums][kSize] = {};
    if (is_there) {
      const auto numbers = f.of_columns(
          [&](int k, int j) { return Compute<T>(staged[(k * kSize + j) * kWarp + tx]); }, column);
      const int width = int(smaller(shape.width - column, kSize));
      int64_t row = begin + ty, element = row * shape.width + column;
      const int64_t step = shape.ty * shape.width;
      while (row < end) {
        int64_t index[F::kTogether];
        int valid[F::kTogether];
#pragma unroll
        for (int u = 0; u < F::kTogether; ++u) {
          // The last rows may be too few to be joined.
          index[u] = F::kByRow ? row : element;
          valid[u] = row < end ? int(smaller(width, shape.elements - element)) : 0;
          row += shape.ty;
          element += step;
        }
        f.vecs(index, valid, numbers, [&](const Wide<T>(&terms)[F::kSums]) {
#pragma unroll
          for (int j = 0; j < kSize; ++j)
#pragma unroll
            for (int k = 0; k < F::kSums; ++k) sum[k][j] += double(terms[k].lane[j]);
        });
      }
    }
    const int columns = int(smaller(shape.tx * kSize, shape.width - here));
    const int outputs = int(smaller(columns, shape.channels));
    const int mine = int(threadIdx.x);  // a column
    double total[F::kSums] = {};
#pragma unroll
    for (int k = 0; k < F::kSums; ++k) {
      const auto folded = fold_rows(buffer, sum[k], tx, ty, shape.tx, shape.ty);
      if (mine < outputs)
        for (int at = mine; at < columns; at += outputs) total[k] += folded.sum(buffer, at);
      __syncthreads();
    }
    if (mine < outputs) tasks.put(here + mine, chunk, total);
  }
}

// "Rows" of the table are coefficients.
template <class T, class F>
FASTACT_KERNEL_OF(kSumThreads, (F::kBlocks[1]))
void sums_of_any(FASTACT_GRID_CONSTANT const F f, FASTACT_GRID_CONSTANT const SumTasks tasks,
                 FASTACT_GRID_CONSTANT const RowTable<F::kArrays, kMaxAxes> axes,
                 const int64_t length, const int team) {
  for_each_task(tasks, team, length, [&](const ChannelTask& task, int lane) {
    const auto numbers = [&](int k, int) { return f.number(k, task.coef); };
    int64_t base[F::kArrays] = {};
    offset_all(axes, task.coef, 0, axes.row_axes, base);
    double sum[F::kSums] = {};
    for (int64_t i = task.begin + lane; i < task.end; i += team) {
      int64_t at[F::kArrays];
#pragma unroll
      for (int k = 0; k < F::kArrays; ++k) at[k] = base[k];
      offset_all(axes, i, axes.row_axes, axes.count, at);
      Compute<T> terms[F::kSums];
      f.element(at, numbers, terms);
#pragma unroll
      for (int k = 0; k < F::kSums; ++k) sum[k] += double(terms[k]);
    }
    put_of_team(tasks, task, team, lane, sum);
  });
}

// Cuts the rows of columns.
inline void cut_rows(const ChannelRows& shape, SumTasks* tasks) {
  const int64_t most = std::max<int64_t>(1, kSumTasks / shape.tiles);
  cut(tasks, shape.rows, std::max(kSumRows * std::max(1, shape.ty / 8), shape.rows / most));
}

template <class T>
Columns plan_columns(const Layout& layout, SumTasks* tasks) {
  const Columns shape{rows_of<T>(layout.channels, layout.outer, kSumThreads), layout.channels,
                      layout.outer * layout.channels};
  cut_rows(shape, tasks);
  return shape;
}

// The most chunks of a channel that any layout of the other arrays makes.
template <class T>
int64_t most_chunks(const Layout& layout) {
  SumTasks tasks{};
  cut(&tasks, layout.outer * layout.inner, kSumElements);
  const int64_t most = tasks.count;
  if (layout.inner == 1) plan_columns<T>(layout, &tasks);
  return std::max(most, tasks.count);
}

// Queues the sums of every channel, and returns the number of chunks of each in `partials`.
// arrays: the functor's, all of the last one's shape, null where one is absent. f.arrays is filled
// from them. of_coef: the axes that count coefficients.
template <class T, class F>
int64_t run_channel_sums(F f, const Operand* const (&arrays)[F::kArrays], const Layout& layout,
                         const bool* of_coef, double* partials, cudaStream_t stream) {
  SumTasks tasks{};
  tasks.partials = partials;
  tasks.coefs = layout.channels;
  const Operand& x = *arrays[F::kArrays - 1];
  uintptr_t bits = 0;
  for (int k = 0; k < F::kArrays; ++k) {
    f.arrays.data[k] = arrays[k] ? arrays[k]->data : nullptr;
    bits |= reinterpret_cast<uintptr_t>(f.arrays.data[k]);
  }
  if (!layout.dense || layout.inner > 1) {
    RowTable<F::kArrays, kMaxAxes> axes{};
    int64_t length = 1;
    for (const bool counts : {true, false}) {
      for (int i = 0; i < x.ndim; ++i) {
        if (x.shape[i] == 1 || of_coef[i] != counts) continue;
        for (int k = 0; k < F::kArrays; ++k)
          if (arrays[k]) axes.stride[k][axes.count] = byte_stride(*arrays[k], i, sizeof(T));
        axes.length[axes.count++] = x.shape[i];
        if (!counts) length *= x.shape[i];
      }
      if (counts) axes.row_axes = axes.count;
    }
    cut(&tasks, length, kSumElements);
    const int team = team_of(length);
    const Shape shape{blocks_for(ceil_div(tasks.coefs * tasks.count, kSumThreads / team)),
                      kSumThreads};
    launch(sums_of_any<T, F>, shape, stream, f, tasks, axes, length, team);
    return tasks.count;
  }
  f.arrays.n = tasks.coefs * layout.outer * layout.inner;
  const Columns shape = plan_columns<T>(layout, &tasks);
  f.arrays.aligned = bits % kVecBytes == 0 && shape.width % Vec<T>::kSize == 0;
  launch(sums_of_columns<T, F>, {blocks_for(tasks.count * shape.tiles), kSumThreads}, stream, f,
         tasks, shape);
  return tasks.count;
}

}  // namespace
FASTACT_END_NAMESPACE
