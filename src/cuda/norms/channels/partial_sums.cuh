// What the sums of a call take (norms/channels/reduction_inputs.cuh): how its terms are cut, which
// kernel walks them.
#pragma once

#include "cuda/norms/channels/reduction_inputs.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kChunkPacks = 2048;  // of a channel
constexpr int64_t kChunkRows = 64;
constexpr int64_t kChunkTerms = 8192;
constexpr int64_t kManyTasks = 1024;
constexpr int64_t kMostChunks = 1024;
constexpr int64_t kWarpPacks = 256;  // of a channel that a warp takes

void cut(Tasks* tasks, int64_t n, int64_t least) {
  tasks->size = std::max<int64_t>(least, ceil_div(n, kMostChunks));
  tasks->count = std::max<int64_t>(1, ceil_div(n, tasks->size));
}

// Arrays as cells see them: examples x outer x channels x inner, or not dense.
struct CellLayout {
  bool dense;
  int64_t examples, channels, outer, inner;  // outer: of an example
};

template <class T>
Lines plan_lines(const CellLayout& layout, Tasks* tasks) {
  Lines lines{};
  lines.piece_packs = ceil_div(layout.inner, Pack<T>::kSize);
  lines.packs = lines.piece_packs * layout.outer;
  lines.group = lines.packs <= kWarpPacks ? kWarp : kThreads;
  lines.step_pieces = lines.group / lines.piece_packs;
  lines.step = lines.group % lines.piece_packs;
  cut(tasks, lines.packs, kChunkPacks);
  return lines;
}

template <class T>
Columns plan_columns(const CellLayout& layout, Tasks* tasks) {
  Columns shape{};
  static_cast<ChannelRows&>(shape) = rows_of<T>(layout.channels, layout.outer, kThreads);
  shape.examples = layout.examples;
  shape.terms = layout.outer * layout.channels;
  const int64_t most = std::max<int64_t>(1, kManyTasks / shape.tiles);
  cut(tasks, shape.rows,
      std::max<int64_t>(kChunkRows * std::max(1, shape.ty / 8), shape.rows / most));
  return shape;
}

// Partials of a cell, at most, whatever the layout of dy.
template <class T>
int64_t most_chunks(const CellLayout& layout) {
  Tasks tasks{};
  cut(&tasks, layout.outer * layout.inner, kChunkTerms);
  int64_t most = tasks.count;
  if (layout.inner > 1)
    plan_lines<T>(layout, &tasks);
  else
    plan_columns<T>(layout, &tasks);
  return std::max(most, tasks.count);
}

// Queues the sums of every cell; the chunks of each, which lie in `partials`. has_lines: there may
// be some, so that their kernels are wanted.
template <class T, bool has_lines = true>
int64_t run_sums(const Operand& dy, const Operand& x, const CellLayout& layout, const bool* of_cell,
                 const Cells<T>& cells, const ChosenActivation& activation, bool is_identity,
                 double* partials, cudaStream_t stream) {
  Tasks tasks{};
  tasks.partials = partials;
  tasks.cells = layout.examples * layout.channels;
  const auto blocks = [](int64_t n) { return std::min(n, kMaxBlocks); };
  if (!layout.dense) {
    Anywhere arrays{dy.data, x.data, {0, 1, {}, {}, {}}, {0, 1, {}, {}, {}}};
    for (int i = 0; i < x.ndim; ++i)
      if (x.shape[i] > 1)
        (of_cell[i] ? arrays.cells : arrays.terms)
            .append(x.shape[i], byte_stride(dy, i, sizeof(T)), byte_stride(x, i, sizeof(T)));
    cut(&tasks, arrays.terms.size, kChunkTerms);
    launch(is_identity ? sums_of_any<T, true> : sums_of_any<T, false>,
           {blocks(tasks.cells * tasks.count), kThreads}, stream, arrays, cells, activation, tasks);
    return tasks.count;
  }
  Gradients<T> arrays{reinterpret_cast<const T*>(dy.data), reinterpret_cast<const T*>(x.data),
                      tasks.cells * layout.outer * layout.inner, false};
  const auto bits = reinterpret_cast<uintptr_t>(dy.data) | reinterpret_cast<uintptr_t>(x.data);
  if constexpr (has_lines) {
    if (layout.inner > 1) {
      const Lines lines = plan_lines<T>(layout, &tasks);
      const bool one_line = layout.outer * layout.channels == 1;
      arrays.aligned = bits % kPackBytes == 0 && (one_line || layout.inner % Pack<T>::kSize == 0);
      const int64_t all = ceil_div(layout.channels * tasks.count, kThreads / lines.group);
      launch(is_identity ? sums_of_lines<T, true> : sums_of_lines<T, false>,
             {blocks(all), kThreads}, stream, arrays, cells, activation, tasks, lines);
      return tasks.count;
    }
  }
  const Columns shape = plan_columns<T>(layout, &tasks);
  arrays.aligned = bits % kPackBytes == 0 && shape.width % Pack<T>::kSize == 0 &&
                   (shape.examples == 1 || shape.terms % Pack<T>::kSize == 0);
  launch(is_identity ? sums_of_columns<T, true> : sums_of_columns<T, false>,
         {blocks(shape.examples * tasks.count * shape.tiles), kThreads}, stream, arrays, cells,
         activation, tasks, shape);
  return tasks.count;
}

// The sum of a cell's partials, to every lane of a warp; k: 0 of p, 1 of p (x - mean).
FASTACT_DEVICE double total_of(const double* partials, int64_t cells, int64_t chunks, int k,
                               int64_t cell) {
  double sum = 0;
  for (int64_t i = int(threadIdx.x) % kWarp; i < chunks; i += kWarp)
    sum += load(partials + (k * cells + cell) * chunks + i);
  return warp_sum(sum);
}

}  // namespace
FASTACT_END_NAMESPACE
