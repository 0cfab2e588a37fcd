// The sums of p = dy f'(z) and of p (x - mean) over the elements of each channel (of each example,
// where channels-last norms call).
//
//   sums_of_segments   dense, channels in segments of `inner` elements: a task is a chunk of the
//                      vectors of one channel; its team of threads is a warp where a channel is
//                      short, else a block
//   sums_of_columns    dense, channels last: a task is a tile of channels over a chunk of rows,
//                      added in shared memory by a tree; rows that are no whole number of vectors
//                      are folded, as many as make one
//   sums_of_any        any strides: a task is a chunk of the elements of one channel
//
// Two vectors of each array are in flight, or one around a call of an activation. The inputs of the
// sums are rounded to the compute type and added in double. Partial sums lie [2][coefs][chunks].
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/layout.cuh"
#include "cuda/norms/channels/coef_index.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;

struct Tasks {
  int64_t size, count;  // of a chunk (in vectors, rows or elements); chunks of a channel
  int64_t coefs;
  double* partials;  // OUT

  FASTACT_DEVICE void put(int64_t coef, int64_t chunk, double p, double p_x) const {
    store(partials + coef * count + chunk, p);
    store(partials + (coefs + coef) * count + chunk, p_x);
  }
};

template <class T>
struct Gradients {
  const T *dy, *x;  // IN, dense
  int64_t n;        // elements
  bool aligned;     // every vector is a multiple of 16 bytes
};

// A vector of both arrays, and how many of its lanes count.
template <class T>
struct Both {
  Vec<T> dy, x;
  int valid;
};

// `valid` elements, and anything in the lanes after them.
template <class T>
FASTACT_DEVICE Vec<T> get_vec(const Gradients<T>& arrays, const T* p, int64_t index, int valid) {
  if (has_window(p + index, p, p + arrays.n)) return cut_window(p + index);
  return load_some(p + index, valid);
}

// p and p (x - mean) of a vector, zeros from lane `valid` on unless it is full; coef_at(k, j): of
// lane j.
template <class T, bool is_identity, bool is_full, class CoefAt>
FASTACT_DEVICE void reduction_inputs(const ChosenActivation& activation, const Both<T>& both,
                                     const CoefAt& coef_at, Wide<T>& p, Wide<T>& p_x) {
  if constexpr (is_identity) {
    p = widen_vec(both.dy);
  } else {
    p = widen_vec(both.x);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      p.lane[j] = batch_normalised(p.lane[j], coef_at(kHigh, j), coef_at(kLow, j),
                                   coef_at(kScale, j), coef_at(kOffset, j));
    p = slope_at<T>(activation.which, activation.parameters, p);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) p.lane[j] = widen(both.dy.lane[j]) * p.lane[j];
  }
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    const Compute<T> from_mean =
        centred(widen(both.x.lane[j]), coef_at(kHigh, j), coef_at(kLow, j));
    p_x.lane[j] = p.lane[j] * from_mean;
    if (!is_full && j >= both.valid) p_x.lane[j] = p.lane[j] = 0;
  }
}

// Visits the vectors at `index`, in their order: take(full, both), full a constant that says
// whether all lanes count. Where all lanes of aligned vectors do, all loads come before the first
// use.
template <bool is_identity>
constexpr int kVecsInFlight = is_identity ? 2 : 1;  // a call leaves few registers
template <int kTogether, class T, class Take>
FASTACT_DEVICE void take_vecs(const Gradients<T>& arrays, const int64_t (&index)[kTogether],
                              const int (&valid)[kTogether], const Take& take) {
  bool whole = arrays.aligned;
#pragma unroll
  for (int u = 0; u < kTogether; ++u) whole &= valid[u] >= Vec<T>::kSize;
  if (whole) {
    Both<T> both[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      both[u] = {load_vec(arrays.dy + index[u]), load_vec(arrays.x + index[u]), Vec<T>::kSize};
#pragma unroll
    for (int u = 0; u < kTogether; ++u) take(std::true_type(), both[u]);
    return;
  }
#pragma unroll
  for (int u = 0; u < kTogether; ++u)
    if (valid[u] > 0)
      take(std::false_type(), Both<T>{get_vec(arrays, arrays.dy, index[u], valid[u]),
                                      get_vec(arrays, arrays.x, index[u], valid[u]), valid[u]});
}

template <class T>
FASTACT_DEVICE double lane_sum(const Wide<T>& wide) {
  double sum[2] = {};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) sum[j % 2] += double(wide.lane[j]);
  return sum[0] + sum[1];
}

struct Segments {
  int64_t segment_vecs;  // of one segment
  int64_t vecs;          // of a channel
  int team;              // threads of a task
  int64_t step_segments, step;
};

template <class T, bool is_identity>
FASTACT_KERNEL_OF(kThreads, (is_identity || sizeof(T) < sizeof(double) ? 3 : 2))
void sums_of_segments(const Gradients<T> arrays, const Coefficients<T> coefs,
                      FASTACT_GRID_CONSTANT const ChosenActivation activation, const Tasks tasks,
                      const Segments segments) {
  constexpr int kSize = Vec<T>::kSize;
  const int here = kThreads / segments.team, lane = int(threadIdx.x) % segments.team;
  const int64_t all = coefs.channels * tasks.count;
  for (int64_t first = int64_t(blockIdx.x) * here; first < all;
       first += int64_t(gridDim.x) * here) {
    const int64_t task = first + int(threadIdx.x) / segments.team;
    const bool idle = task >= all;  // yet it takes part in shuffles and barriers
    const int64_t channel = idle ? 0 : task / tasks.count;
    const int64_t chunk = idle ? 0 : task - channel * tasks.count;
    const int64_t end = idle ? 0 : smaller((chunk + 1) * tasks.size, segments.vecs);
    [[maybe_unused]] CoefSet<T, kBit<kHigh> | kBit<kLow>> coef;
    if constexpr (is_identity) coef.load_from(coefs, channel);
    const auto coef_at = [&](int k, int) {
      if constexpr (is_identity) return coef.n[k];
      return load(coefs.at(k, channel));  // around a call registers are short
    };

    double sum = 0, sum_x = 0;
    int64_t q = chunk * tasks.size + lane;
    const int64_t segment = q / segments.segment_vecs;
    int64_t within = q - segment * segments.segment_vecs;
    int64_t at = (segment * coefs.channels + channel) * coefs.inner + within * kSize;
    const int64_t stride = coefs.channels * coefs.inner;
    const int64_t step = segments.step_segments * stride + segments.step * kSize;
    const int64_t wrap = stride - segments.segment_vecs * kSize;
    while (q < end) {
      constexpr int kTogether = kVecsInFlight<is_identity>;
      int64_t index[kTogether];
      int valid[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        index[u] = at;
        const int64_t left = coefs.inner - within * kSize;
        valid[u] = q < end ? int(smaller(left, kSize)) : 0;
        q += segments.team;
        at += step;
        within += segments.step;
        if (within >= segments.segment_vecs) within -= segments.segment_vecs, at += wrap;
      }
      take_vecs(arrays, index, valid, [&](auto full, const Both<T>& both) {
        Wide<T> p, p_x;
        reduction_inputs<T, is_identity, decltype(full)::value>(activation, both, coef_at, p, p_x);
        sum += lane_sum(p);
        sum_x += lane_sum(p_x);
      });
    }
    if (segments.team == kThreads) {
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
  int64_t elements;  // of an example
  int64_t examples;
};

template <class T, bool is_identity>
FASTACT_KERNEL_OF(kThreads, 2)
void sums_of_columns(const Gradients<T> arrays, const Coefficients<T> coefs,
                     FASTACT_GRID_CONSTANT const ChosenActivation activation, const Tasks tasks,
                     const Columns shape) {
  constexpr int kSize = Vec<T>::kSize, kCoefs = is_identity ? 2 : 4;
  FASTACT_SHARED(double, buffer, kThreads* kSize);
  FASTACT_SHARED(Compute<T>, staged, kCoefs * kSize * kWarp);  // [kCoefs][kSize][tx]
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
        const bool has_coef = column + j < shape.width;
        const int64_t coef = example * coefs.channels + (column + j) % coefs.channels;
#pragma unroll
        for (int k = 0; k < kCoefs; ++k)
          staged[(k * kSize + j) * kWarp + tx] = has_coef ? load(coefs.at(k, coef)) : Compute<T>(0);
      }
    }
    __syncthreads();
    const auto coef_at = [&](int k, int j) {
      return Compute<T>(staged[(k * kSize + j) * kWarp + tx]);
    };

    double sum[kSize] = {}, sum_x[kSize] = {};
    if (is_there) {
      const int64_t base = example * shape.elements;
      const int width = int(smaller(shape.width - column, kSize));
      int64_t row = begin + ty, in_example = row * shape.width + column;
      const int64_t step = shape.ty * shape.width;
      while (row < end) {
        constexpr int kTogether = kVecsInFlight<is_identity>;
        int64_t index[kTogether];
        int valid[kTogether];
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          // The last row may be a part of a folded one.
          index[u] = base + in_example;
          valid[u] = row < end ? int(smaller(width, shape.elements - in_example)) : 0;
          row += shape.ty;
          in_example += step;
        }
        take_vecs(arrays, index, valid, [&](auto full, const Both<T>& both) {
          Wide<T> p, p_x;
          reduction_inputs<T, is_identity, decltype(full)::value>(activation, both, coef_at, p,
                                                                  p_x);
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            sum[j] += double(p.lane[j]);
            sum_x[j] += double(p_x.lane[j]);
          }
        });
      }
    }
    const int columns = int(smaller(shape.tx * kSize, shape.width - here));
    const int outputs = int(smaller(columns, coefs.channels));
    const int mine = int(threadIdx.x);  // a column
    double total[2] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      fold_rows(buffer, k == 0 ? sum : sum_x, tx, ty, shape.tx, shape.ty);
      if (mine < outputs)
        for (int at = mine; at < columns; at += outputs) total[k] += double(buffer[at]);
      __syncthreads();
    }
    if (mine < outputs)
      tasks.put(example * coefs.channels + here + mine, chunk, total[0], total[1]);
  }
}

struct AnyStrides {
  const char *dy, *x;       // IN
  PairAxes coefs, reduced;  // a: of dy, b: of x
};

template <class T, bool is_identity>
FASTACT_KERNEL_OF(kThreads, 2)
void sums_of_any(FASTACT_GRID_CONSTANT const AnyStrides arrays, const Coefficients<T> coefs,
                 FASTACT_GRID_CONSTANT const ChosenActivation activation, const Tasks tasks) {
  using C = Compute<T>;
  for (int64_t task = blockIdx.x; task < tasks.coefs * tasks.count; task += gridDim.x) {
    const int64_t coef = task / tasks.count, chunk = task - coef * tasks.count;
    const int64_t end = smaller((chunk + 1) * tasks.size, arrays.reduced.size);
    const PairOffset base = offset_of(arrays.coefs, coef);
    double sum = 0, sum_x = 0;
    for (int64_t i = chunk * tasks.size + threadIdx.x; i < end; i += kThreads) {
      const PairOffset at = offset_of(arrays.reduced, i, base);
      const C x = widen(load(reinterpret_cast<const T*>(arrays.x + at.b)));
      C p = widen(load(reinterpret_cast<const T*>(arrays.dy + at.a)));
      with_coef<kHigh, kLow, kScale, kOffset>(coefs, coef, [&](int, const C(&n)[4]) {
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
    if (threadIdx.x == 0) tasks.put(coef, chunk, sum, sum_x);
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
