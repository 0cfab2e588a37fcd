// The sums of p = dy f'(z) and of p (x - mean) over the elements of each cell.
//
//   sums_of_lines     dense, the elements of a channel lie in lines of `inner`: a task is a chunk
//                     of one channel's packs, of a warp where a channel is short, else of a block
//   sums_of_columns   dense, channels come last: a task is a tile of channels over a chunk of rows,
//                     which meet in shared memory by a tree; rows that are no whole number of packs
//                     are folded, as many as make one
//   sums_of_any       any strides: a task is a chunk of one cell's elements
//
// Two packs of each array are in flight, four loads, but around a call. Terms are rounded to the
// compute type and added in double. Partials lie [2][cells][chunks].
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/layout.cuh"
#include "cuda/norms/channels/coef_index.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;

struct Tasks {
  int64_t size, count;  // units of a chunk (packs, rows or elements), and chunks of a cell
  int64_t cells;
  double* partials;  // OUT

  FASTACT_DEVICE void put(int64_t cell, int64_t chunk, double p, double p_x) const {
    store(partials + cell * count + chunk, p);
    store(partials + (cells + cell) * count + chunk, p_x);
  }
};

template <class T>
struct Gradients {
  const T *dy, *x;  // IN, dense
  int64_t n;        // elements
  bool aligned;     // every pack is a multiple of 16 bytes
};

// A pack of both arrays, and how many of its lanes count.
template <class T>
struct Both {
  Pack<T> dy, x;
  int valid;
};

// `valid` elements, and anything after them.
template <class T>
FASTACT_DEVICE Pack<T> get_pack(const Gradients<T>& arrays, const T* p, int64_t index, int valid) {
  if (has_window(p + index, p, p + arrays.n)) return cut_window(p + index);
  return load_some(p + index, valid);
}

// p and p (x - mean) of a pack, zeros from lane `valid` on unless it is full; number(k, j): of lane
// j.
template <class T, bool is_identity, bool is_full, class Number>
FASTACT_DEVICE void terms(const ChosenActivation& activation, const Both<T>& both,
                          const Number& number, Wide<T>& p, Wide<T>& p_x) {
  if constexpr (is_identity) {
    p = widen_pack(both.dy);
  } else {
    p = widen_pack(both.x);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j)
      p.lane[j] = batch_normalised(p.lane[j], number(kHigh, j), number(kLow, j), number(kScale, j),
                                   number(kOffset, j));
    p = slope_at<T>(activation.which, activation.parameters, p);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) p.lane[j] = widen(both.dy.lane[j]) * p.lane[j];
  }
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    const Compute<T> from_mean = centred(widen(both.x.lane[j]), number(kHigh, j), number(kLow, j));
    p_x.lane[j] = p.lane[j] * from_mean;
    if (!is_full && j >= both.valid) p_x.lane[j] = p.lane[j] = 0;
  }
}

// Visits the packs at `index`, in their order: take(full, both), full a constant that says whether
// all lanes count. Where all lanes of aligned packs do, all loads come before the first use.
template <bool is_identity>
constexpr int kPacksOf = is_identity ? 2 : 1;  // a call leaves few registers
template <int kTogether, class T, class Take>
FASTACT_DEVICE void take_packs(const Gradients<T>& arrays, const int64_t (&index)[kTogether],
                               const int (&valid)[kTogether], const Take& take) {
  bool whole = arrays.aligned;
#pragma unroll
  for (int turn = 0; turn < kTogether; ++turn) whole &= valid[turn] >= Pack<T>::kSize;
  if (whole) {
    Both<T> both[kTogether];
#pragma unroll
    for (int turn = 0; turn < kTogether; ++turn)
      both[turn] = {load_pack(arrays.dy + index[turn]), load_pack(arrays.x + index[turn]),
                    Pack<T>::kSize};
#pragma unroll
    for (int turn = 0; turn < kTogether; ++turn) take(std::true_type(), both[turn]);
    return;
  }
#pragma unroll
  for (int turn = 0; turn < kTogether; ++turn)
    if (valid[turn] > 0)
      take(std::false_type(),
           Both<T>{get_pack(arrays, arrays.dy, index[turn], valid[turn]),
                   get_pack(arrays, arrays.x, index[turn], valid[turn]), valid[turn]});
}

template <class T>
FASTACT_DEVICE double lane_sum(const Wide<T>& wide) {
  double sum[2] = {};
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) sum[j % 2] += double(wide.lane[j]);
  return sum[0] + sum[1];
}

struct Lines {
  int64_t piece_packs;  // of one line
  int64_t packs;        // of a channel
  int group;            // threads of a task
  int64_t step_pieces, step;
};

template <class T, bool is_identity>
FASTACT_KERNEL_OF(kThreads, (is_identity || sizeof(T) < sizeof(double) ? 3 : 2))
void sums_of_lines(const Gradients<T> arrays, const Cells<T> cells,
                   FASTACT_GRID_CONSTANT const ChosenActivation activation, const Tasks tasks,
                   const Lines lines) {
  constexpr int kSize = Pack<T>::kSize;
  const int here = kThreads / lines.group, lane = int(threadIdx.x) % lines.group;
  const int64_t all = cells.channels * tasks.count;
  for (int64_t first = int64_t(blockIdx.x) * here; first < all;
       first += int64_t(gridDim.x) * here) {
    const int64_t task = first + int(threadIdx.x) / lines.group;
    const bool idle = task >= all;  // yet it takes part in shuffles and barriers
    const int64_t channel = idle ? 0 : task / tasks.count;
    const int64_t chunk = idle ? 0 : task - channel * tasks.count;
    const int64_t end = idle ? 0 : smaller((chunk + 1) * tasks.size, lines.packs);
    [[maybe_unused]] CellSet<T, kBit<kHigh> | kBit<kLow>> cell;
    if constexpr (is_identity) cell.load_from(cells, channel);
    const auto number = [&](int k, int) {
      if constexpr (is_identity) return cell.n[k];
      return load(cells.at(k, channel));  // around a call registers are short
    };

    double sum = 0, sum_x = 0;
    int64_t q = chunk * tasks.size + lane;
    const int64_t piece = q / lines.piece_packs;
    int64_t within = q - piece * lines.piece_packs;
    int64_t at = (piece * cells.channels + channel) * cells.inner + within * kSize;
    const int64_t line = cells.channels * cells.inner;
    const int64_t step = lines.step_pieces * line + lines.step * kSize;
    const int64_t wrap = line - lines.piece_packs * kSize;
    while (q < end) {
      constexpr int kTogether = kPacksOf<is_identity>;
      int64_t index[kTogether];
      int valid[kTogether];
#pragma unroll
      for (int turn = 0; turn < kTogether; ++turn) {
        index[turn] = at;
        const int64_t left = cells.inner - within * kSize;
        valid[turn] = q < end ? int(smaller(left, kSize)) : 0;
        q += lines.group;
        at += step;
        within += lines.step;
        if (within >= lines.piece_packs) within -= lines.piece_packs, at += wrap;
      }
      take_packs(arrays, index, valid, [&](auto full, const Both<T>& both) {
        Wide<T> p, p_x;
        terms<T, is_identity, decltype(full)::value>(activation, both, number, p, p_x);
        sum += lane_sum(p);
        sum_x += lane_sum(p_x);
      });
    }
    if (lines.group == kThreads) {
      sum = block_sum<kThreads>(sum);
      __syncthreads();
      sum_x = block_sum<kThreads>(sum_x);
      __syncthreads();
    } else {
      sum = warp_sum(sum);
      sum_x = warp_sum(sum_x);
    }
    if (lane == 0 && !idle) tasks.put(channel, chunk, sum, sum_x);
  }
}

// Of an example.
struct Columns : ChannelRows {
  int64_t terms;  // elements
  int64_t examples;
};

template <class T, bool is_identity>
FASTACT_KERNEL_OF(kThreads, 2)
void sums_of_columns(const Gradients<T> arrays, const Cells<T> cells,
                     FASTACT_GRID_CONSTANT const ChosenActivation activation, const Tasks tasks,
                     const Columns shape) {
  constexpr int kSize = Pack<T>::kSize, kNumbers = is_identity ? 2 : 4;
  FASTACT_SHARED(double, block, kThreads* kSize);
  FASTACT_SHARED(Compute<T>, numbers, kNumbers * kSize * kWarp);  // a row of lanes for each number
  const int tx = int(threadIdx.x) % shape.tx, ty = int(threadIdx.x) / shape.tx;
  const int64_t all = shape.examples * tasks.count * shape.tiles;
  for (int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const int64_t tile = task % shape.tiles;
    const int64_t chunk = task / shape.tiles % tasks.count;
    const int64_t example = task / shape.tiles / tasks.count;
    const int64_t here = tile * shape.tx * kSize, column = here + tx * kSize;
    const int64_t begin = chunk * tasks.size, end = smaller(begin + tasks.size, shape.rows);
    const bool is_there = column < shape.width && ty < shape.ty;
    if (is_there && ty == 0) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const bool has_cell = column + j < shape.width;
        const int64_t cell = example * cells.channels + (column + j) % cells.channels;
#pragma unroll
        for (int k = 0; k < kNumbers; ++k)
          numbers[(k * kSize + j) * kWarp + tx] =
              has_cell ? load(cells.at(k, cell)) : Compute<T>(0);
      }
    }
    __syncthreads();
    const auto number = [&](int k, int j) {
      return Compute<T>(numbers[(k * kSize + j) * kWarp + tx]);
    };

    double sum[kSize] = {}, sum_x[kSize] = {};
    if (is_there) {
      const int64_t base = example * shape.terms;
      const int width = int(smaller(shape.width - column, kSize));
      int64_t row = begin + ty, in_example = row * shape.width + column;
      const int64_t step = shape.ty * shape.width;
      while (row < end) {
        constexpr int kTogether = kPacksOf<is_identity>;
        int64_t index[kTogether];
        int valid[kTogether];
#pragma unroll
        for (int turn = 0; turn < kTogether; ++turn) {
          // The last row may be a part of a folded one.
          index[turn] = base + in_example;
          valid[turn] = row < end ? int(smaller(width, shape.terms - in_example)) : 0;
          row += shape.ty;
          in_example += step;
        }
        take_packs(arrays, index, valid, [&](auto full, const Both<T>& both) {
          Wide<T> p, p_x;
          terms<T, is_identity, decltype(full)::value>(activation, both, number, p, p_x);
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            sum[j] += double(p.lane[j]);
            sum_x[j] += double(p_x.lane[j]);
          }
        });
      }
    }
    const int columns = int(smaller(shape.tx * kSize, shape.width - here));
    const int outputs = int(smaller(columns, cells.channels));
    const int mine = int(threadIdx.x);  // a column
    double total[2] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      fold_rows(block, k == 0 ? sum : sum_x, tx, ty, shape.tx, shape.ty);
      if (mine < outputs)
        for (int at = mine; at < columns; at += outputs) total[k] += double(block[at]);
      __syncthreads();
    }
    if (mine < outputs)
      tasks.put(example * cells.channels + here + mine, chunk, total[0], total[1]);
  }
}

// Axes of cells or of the terms of one, with the strides of dy and x in bytes.
struct TwoStrides {
  int count;
  int64_t size, length[kMaxAxes], dy[kMaxAxes], x[kMaxAxes];

  void append(int64_t n, int64_t of_dy, int64_t of_x) {
    length[count] = n, dy[count] = of_dy, x[count] = of_x;
    ++count;
    size *= n;
  }
};

FASTACT_DEVICE void step_to(const TwoStrides& axes, int64_t index, int64_t& dy, int64_t& x) {
  for (int axis = axes.count - 1; axis >= 0; --axis) {
    const int64_t rest = quotient(index, axes.length[axis]);
    const int64_t here = index - rest * axes.length[axis];
    dy += here * axes.dy[axis];
    x += here * axes.x[axis];
    index = rest;
  }
}

struct Anywhere {
  const char *dy, *x;  // IN
  TwoStrides cells, terms;
};

template <class T, bool is_identity>
FASTACT_KERNEL_OF(kThreads, 2)
void sums_of_any(FASTACT_GRID_CONSTANT const Anywhere arrays, const Cells<T> cells,
                 FASTACT_GRID_CONSTANT const ChosenActivation activation, const Tasks tasks) {
  using C = Compute<T>;
  for (int64_t task = blockIdx.x; task < tasks.cells * tasks.count; task += gridDim.x) {
    const int64_t cell = task / tasks.count, chunk = task - cell * tasks.count;
    const int64_t end = smaller((chunk + 1) * tasks.size, arrays.terms.size);
    int64_t dy_cell = 0, x_cell = 0;
    step_to(arrays.cells, cell, dy_cell, x_cell);
    double sum = 0, sum_x = 0;
    for (int64_t i = chunk * tasks.size + threadIdx.x; i < end; i += kThreads) {
      int64_t dy_at = dy_cell, x_at = x_cell;
      step_to(arrays.terms, i, dy_at, x_at);
      const C x = widen(load(reinterpret_cast<const T*>(arrays.x + x_at)));
      C p = widen(load(reinterpret_cast<const T*>(arrays.dy + dy_at)));
      with_number<kHigh, kLow, kScale, kOffset>(cells, cell, [&](int, const C(&n)[4]) {
        if constexpr (!is_identity) {
          Wide<T> z{};
          z.lane[0] = batch_normalised(x, n[0], n[1], n[2], n[3]);
          p *= slope_at<T>(activation.which, activation.parameters, z).lane[0];
        }
        sum += double(p);
        sum_x += double(C(p * centred(x, n[0], n[1])));
      });
    }
    sum = block_sum<kThreads>(sum);
    __syncthreads();
    sum_x = block_sum<kThreads>(sum_x);
    if (threadIdx.x == 0) tasks.put(cell, chunk, sum, sum_x);
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
