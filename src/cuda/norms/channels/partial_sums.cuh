// The plan of the sums of a call: how the inputs are cut into tasks, and which kernel of
// reduction_inputs.cuh reads them.
#pragma once

#include "cuda/norms/channels/reduction_inputs.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kChunkVecs = 2048;  // of a channel
constexpr int64_t kChunkRows = 64;
constexpr int64_t kChunkElements = 8192;
constexpr int64_t kManyTasks = 1024;
constexpr int64_t kWarpVecs = 256;  // of a channel that a warp takes

// Arrays around their channels: examples x outer x channels x inner, or not dense.
struct ChannelLayout {
  bool dense;
  int64_t examples, channels, outer, inner;  // outer: of an example
};

template <class T>
Segments plan_segments(const ChannelLayout& layout, Tasks* tasks) {
  Segments segments{};
  segments.segment_vecs = ceil_div(layout.inner, Vec<T>::kSize);
  segments.vecs = segments.segment_vecs * layout.outer;
  segments.team = segments.vecs <= kWarpVecs ? kWarp : kThreads;
  segments.step_segments = segments.team / segments.segment_vecs;
  segments.step = segments.team % segments.segment_vecs;
  cut(tasks, segments.vecs, kChunkVecs);
  return segments;
}

template <class T>
Columns plan_columns(const ChannelLayout& layout, Tasks* tasks) {
  Columns shape{};
  static_cast<ChannelRows&>(shape) = rows_of<T>(layout.channels, layout.outer, kThreads);
  shape.examples = layout.examples;
  shape.elements = layout.outer * layout.channels;
  const int64_t most = std::max<int64_t>(1, kManyTasks / shape.tiles);
  cut(tasks, shape.rows,
      std::max<int64_t>(kChunkRows * std::max(1, shape.ty / 8), shape.rows / most));
  return shape;
}

// The most chunks of a channel that any layout of dy makes.
template <class T>
int64_t most_chunks(const ChannelLayout& layout) {
  Tasks tasks{};
  cut(&tasks, layout.outer * layout.inner, kChunkElements);
  int64_t most = tasks.count;
  if (layout.inner > 1)
    plan_segments<T>(layout, &tasks);
  else
    plan_columns<T>(layout, &tasks);
  return std::max(most, tasks.count);
}

// Queues the sums of every channel, and returns the number of chunks of each in `partials`.
// has_segments: channels need not come last, so the kernels of segments are instantiated.
template <class T, bool has_segments = true>
int64_t run_sums(const Operand& dy, const Operand& x, const ChannelLayout& layout,
                 const bool* of_coef, const Coefficients<T>& coefs,
                 const ChosenActivation& activation, bool is_identity, double* partials,
                 cudaStream_t stream) {
  Tasks tasks{};
  tasks.partials = partials;
  tasks.coefs = layout.examples * layout.channels;
  const auto blocks = [](int64_t n) { return std::min(n, kMaxBlocks); };
  if (!layout.dense) {
    AnyStrides arrays{dy.data, x.data, {}, {}};
    for (int i = 0; i < x.ndim; ++i)
      if (x.shape[i] > 1)
        (of_coef[i] ? arrays.coefs : arrays.reduced)
            .append(x.shape[i], byte_stride(dy, i, sizeof(T)), byte_stride(x, i, sizeof(T)));
    cut(&tasks, arrays.reduced.size, kChunkElements);
    launch(is_identity ? sums_of_any<T, true> : sums_of_any<T, false>,
           {blocks(tasks.coefs * tasks.count), kThreads}, stream, arrays, coefs, activation, tasks);
    return tasks.count;
  }
  Gradients<T> arrays{reinterpret_cast<const T*>(dy.data), reinterpret_cast<const T*>(x.data),
                      tasks.coefs * layout.outer * layout.inner, false};
  const auto bits = reinterpret_cast<uintptr_t>(dy.data) | reinterpret_cast<uintptr_t>(x.data);
  if constexpr (has_segments) {
    if (layout.inner > 1) {
      const Segments segments = plan_segments<T>(layout, &tasks);
      const bool one_segment = layout.outer * layout.channels == 1;
      arrays.aligned = bits % kVecBytes == 0 && (one_segment || layout.inner % Vec<T>::kSize == 0);
      const int64_t all = ceil_div(layout.channels * tasks.count, kThreads / segments.team);
      launch(is_identity ? sums_of_segments<T, true> : sums_of_segments<T, false>,
             {blocks(all), kThreads}, stream, arrays, coefs, activation, tasks, segments);
      return tasks.count;
    }
  }
  const Columns shape = plan_columns<T>(layout, &tasks);
  arrays.aligned = bits % kVecBytes == 0 && shape.width % Vec<T>::kSize == 0 &&
                   (shape.examples == 1 || shape.elements % Vec<T>::kSize == 0);
  launch(is_identity ? sums_of_columns<T, true> : sums_of_columns<T, false>,
         {blocks(shape.examples * tasks.count * shape.tiles), kThreads}, stream, arrays, coefs,
         activation, tasks, shape);
  return tasks.count;
}

// The sum of a channel's partial sums, given to every lane of a warp; k: 0 of p, 1 of p (x - mean).
FASTACT_DEVICE double total_of(const double* partials, int64_t coefs, int64_t chunks, int k,
                               int64_t coef) {
  return sum_of_partials(partials + (k * coefs + coef) * chunks, chunks);
}

}  // namespace
FASTACT_END_NAMESPACE
