// The backward over dense arrays: by channels whose elements lie together, or by rows of channels.
#pragma once

#include "cuda/bias/fused.cuh"
#include "cuda/core/layout.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
struct Dense {
  const T *dy, *x, *residual;  // IN; residual may be null
  T* dx;                       // OUT, or IN/OUT with accumulate; it may be dy or x
  int64_t n;                   // elements
  // Windows may read what neighbours hold: not so where dx is an input, which they overwrite.
  bool windows;
};

// dx of the `valid` elements [index, index + Vec<T>::kSize), those beyond being 0.
template <class T>
FASTACT_DEVICE Wide<T> gradient(const Dense<T>& arrays, const Fused& fused, int64_t index,
                                int valid, const Wide<T>& bias, bool aligned, bool accumulate) {
  const bool whole = valid >= Vec<T>::kSize;
  const auto get = [&](const T* p) {
    if (aligned && whole) return load_vec(p + index);
    if (arrays.windows && whole) return load_window(p + index, p, p + arrays.n);
    return load_some(p + index, valid);
  };
  const Wide<T> dy = widen_vec(get(arrays.dy));
  Wide<T> z = widen_vec(get(arrays.x));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += bias.lane[j];
  if (arrays.residual) {
    const Wide<T> residual = widen_vec(get(arrays.residual));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += residual.lane[j];
  }
  Wide<T> dx = slope_at<T>(fused.which, fused.parameters, z);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) dx.lane[j] = j < valid ? dy.lane[j] * dx.lane[j] : 0;

  Wide<T> result = dx;
  if (accumulate) {
    const Wide<T> before = widen_vec(aligned && whole ? load_vec(arrays.dx + index)
                                                      : load_some(arrays.dx + index, valid));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) result.lane[j] = before.lane[j] + dx.lane[j];
  }
  const Vec<T> narrow = narrow_vec<T>(result);
  if (aligned && whole)
    store_vec(arrays.dx + index, narrow);
  else
    store_some(arrays.dx + index, narrow, valid);
  return dx;
}

// inner > 1: segments of `inner` elements of one channel.
template <class T>
FASTACT_KERNEL(kThreads)
void backward_channels(const Dense<T> arrays, FASTACT_GRID_CONSTANT const Fused fused,
                       const Chunks chunks, const int64_t segment_vecs, const int64_t vecs,
                       const bool aligned) {
  constexpr int kSize = Vec<T>::kSize;
  for (int64_t task = blockIdx.x; task < fused.channels * chunks.count; task += gridDim.x) {
    const int64_t channel = task / chunks.count, begin = (task % chunks.count) * chunks.size;
    const int64_t end = smaller(begin + chunks.size, vecs);
    Wide<T> bias;
    const Compute<T> one = bias_of<T>(fused, channel);
#pragma unroll
    for (int j = 0; j < kSize; ++j) bias.lane[j] = one;

    double total = 0;
    int64_t q = begin + threadIdx.x;
    int64_t segment = q / segment_vecs, within = q - segment * segment_vecs;
    const int64_t step_segments = kThreads / segment_vecs, step = kThreads % segment_vecs;
    for (; q < end; q += kThreads) {
      const int64_t element = within * kSize;
      const int64_t index = (segment * fused.channels + channel) * fused.inner + element;
      const int valid = int(smaller(fused.inner - element, kSize));
      const Wide<T> dx = gradient(arrays, fused, index, valid, bias, aligned, chunks.accumulate);
      double sum = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum += double(dx.lane[j]);
      total += sum;
      segment += step_segments;
      within += step;
      if (within >= segment_vecs) within -= segment_vecs, ++segment;
    }
    total = block_sum<kThreads>(total);
    if (threadIdx.x == 0) store(chunks.partials + task, total);
    __syncthreads();
  }
}

// inner = 1: rows of channels, by tiles.
template <class T>
FASTACT_KERNEL_OF(kThreads, 3)
void backward_rows(const Dense<T> arrays, FASTACT_GRID_CONSTANT const Fused fused,
                   const Chunks chunks, const ChannelRows shape, const bool aligned) {
  constexpr int kSize = Vec<T>::kSize;
  FASTACT_SHARED(double, buffer, kThreads* kSize);
  const int tx = int(threadIdx.x) % shape.tx, ty = int(threadIdx.x) / shape.tx;
  for (int64_t task = blockIdx.x; task < shape.tiles * chunks.count; task += gridDim.x) {
    const int64_t chunk = task / shape.tiles, tile = task - chunk * shape.tiles;
    const int64_t column = (tile * shape.tx + tx) * kSize;
    const int64_t end = smaller((chunk + 1) * chunks.size, shape.rows);
    double total[kSize] = {};
    if (column < shape.width && ty < shape.ty) {
      Wide<T> bias{};
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (column + j < shape.width)
          bias.lane[j] = bias_of<T>(fused, (column + j) % fused.channels);
      for (int64_t row = chunk * chunks.size + ty; row < end; row += shape.ty) {
        const int64_t index = row * shape.width + column;
        const int64_t left = smaller(shape.width - column, arrays.n - index);
        if (left <= 0) break;
        const Wide<T> dx = gradient(arrays, fused, index, int(smaller(left, kSize)), bias, aligned,
                                    chunks.accumulate);
#pragma unroll
        for (int j = 0; j < kSize; ++j) total[j] += double(dx.lane[j]);
      }
    }
    fold_rows(buffer, total, tx, ty, shape.tx, shape.ty);

    const int64_t here = tile * shape.tx * kSize;
    const int columns = int(smaller(shape.tx * kSize, shape.width - here));
    const int outputs = int(smaller(columns, fused.channels));
    for (int c = int(threadIdx.x); c < outputs; c += kThreads) {
      double sum = 0;
      for (int at = c; at < columns; at += outputs) sum += double(buffer[at]);
      store(chunks.partials + (here + c) * chunks.count + chunk, sum);
    }
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
