// The plan of a reduction, its tasks, and the way from the sums of blocks to the results. How the
// blocks of an array are read is in reduce_inputs.cpp.
#include "cpu/reductions/reduce.h"

#include <algorithm>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

constexpr int64_t kLongRow = 512;         // contiguous terms worth a call of their own
constexpr int64_t kShortestSegment = 64;  // and worth one that carries lanes on

int64_t output_stride(const Reducer& r) {
  return r.outputs.count ? r.outputs.y[r.outputs.count - 1] : 0;
}

// A task: some outputs over some chunks, from the sums of their blocks to y. Of several reducers,
// one after the other.
struct SumMerger {
  const Reducer* reducers;
  const int count;
  const Reducer& r;  // the first: they have the same terms
  alignas(64) double hi[kMostColumns], lo[kMostColumns];
  alignas(64) double chunk_hi[kMostColumns], chunk_lo[kMostColumns];

  struct Given {
    const Reducer* reducers;
    int count;
  };
  explicit SumMerger(const Given& given)
      : reducers(given.reducers), count(given.count), r(*given.reducers) {}

  // (to, errors) OUT (count n): one chunk. What comes first is copied: merged into nothing, it is
  // the same.
  void chunk(BlockSums& source, int64_t first, int64_t n, int64_t index, double* to,
             double* errors) {
    const int64_t begin = index * r.chunk_blocks * kReduceBlock, all = count * n;
    const int64_t end = std::min(begin + r.chunk_blocks * kReduceBlock, r.terms.size);
    for (int64_t term = begin; term < end; term += kReduceBlock) {
      const double* sums = source.sums(first, n, term, std::min(kReduceBlock, end - term));
      if (term > begin) {
        r.table->merge(sums, nullptr, to, errors, all);
      } else {
        std::copy(sums, sums + all, to);
        std::fill(errors, errors + all, 0.0);
      }
    }
  }

  void one_chunk(BlockSums& source, int64_t first, int64_t n, int64_t index) {
    chunk(source, first, n, index, hi, lo);
    for (int k = 0; k < count; ++k) {
      double* to = partial_of(reducers[k], index, first);
      std::copy(hi + k * n, hi + (k + 1) * n, to);
      std::copy(lo + k * n, lo + (k + 1) * n, to + r.outputs.size);
    }
  }

  void all_chunks(BlockSums& source, int64_t first, int64_t n) {
    if (r.terms.size <= kReduceBlock) {
      store(first, n, source.sums(first, n, 0, r.terms.size), nullptr);
      return;
    }
    chunk(source, first, n, 0, hi, lo);
    for (int64_t c = 1; c < r.chunks; ++c) {
      chunk(source, first, n, c, chunk_hi, chunk_lo);
      r.table->merge(chunk_hi, chunk_lo, hi, lo, count * n);
    }
    store(first, n, hi, lo);
  }

  void store(int64_t first, int64_t n, const double* sums, const double* errors) {
    for (int k = 0; k < count; ++k)
      store_sums(reducers[k], first, n, sums + k * n, errors ? errors + k * n : nullptr);
  }
};

bool is_aligned(const Operand& x, int64_t item) {
  auto bits = reinterpret_cast<uintptr_t>(x.data);
  for (int axis = 0; axis < x.ndim; ++axis)
    if (x.shape[axis] > 1) bits |= uintptr_t(byte_stride(x, axis, item));
  return bits % uintptr_t(item) == 0;
}

void move_longest_last(Axes* axes) {
  const int last = axes->count - 1;
  if (last < 1) return;
  const int64_t longest = std::max_element(axes->length, axes->length + axes->count) - axes->length;
  if (axes->length[longest] == axes->length[last]) return;
  std::swap(axes->length[longest], axes->length[last]);
  std::swap(axes->x[longest], axes->x[last]);
  std::swap(axes->y[longest], axes->y[last]);
}

}  // namespace

void store_outputs(const Reducer& r, char* y, int64_t first, int64_t n, const double* hi,
                   const double* lo) {
  const auto finish = r.table->finish[r.y_dtype];
  const int64_t step = output_stride(r);
  int64_t done = 0;
  if (step == r.y_item && r.is_y_aligned) {
    for_spans(r.outputs, first, n, [&](int64_t, int64_t at, int64_t m) {
      finish(hi + done, lo ? lo + done : nullptr, y + at, m);
      done += m;
    });
    return;
  }
  const MoveRow scatter = scatter_for(r.y_item);
  alignas(64) char stage[kMostColumns * sizeof(double)];
  finish(hi, lo, stage, n);
  for_spans(r.outputs, first, n, [&](int64_t, int64_t at, int64_t m) {
    scatter(y + at, stage + done * r.y_item, step, m);
    done += m;
  });
}

void store_sums(const Reducer& r, int64_t first, int64_t n, const double* sums,
                const double* errors) {
  if (!r.accumulate) return store_outputs(r, r.y, first, n, sums, errors);
  // One sum more: of what y holds.
  alignas(64) double held[kMostColumns], held_errors[kMostColumns];
  alignas(64) char stage[kMostColumns * sizeof(double)];
  const MoveRow gather = gather_for(r.y_item);
  const int64_t step = output_stride(r);
  int64_t done = 0;
  for_spans(r.outputs, first, n, [&](int64_t, int64_t y, int64_t m) {
    gather(stage + done * r.y_item, r.y + y, step, m);
    done += m;
  });
  r.table->kernels[0][r.y_dtype].spread(stage, r.y_item, n, held);
  std::fill(held_errors, held_errors + n, 0.0);
  r.table->merge(sums, errors, held, held_errors, n);
  store_outputs(r, r.y, first, n, held, held_errors);
}

void set_output(Reducer* r, char* y, int dtype, bool is_aligned_y) {
  r->y = y;
  r->y_dtype = dtype;
  r->y_item = item_size(dtype);
  r->is_y_aligned = is_aligned_y;
}

void cut_terms(Reducer* r) {
  r->chunk_blocks = blocks_a_chunk(r->terms.size);
  r->chunks = ceil_div(r->terms.size, r->chunk_blocks * kReduceBlock);
}

void prepare(Reducer* r, const ReduceTable* table, const ReduceKernels* kernels, const Operand& x,
             const Operand& y, const bool* reduced, int dtype, int y_dtype, bool accumulate) {
  const int64_t item = item_size(dtype);
  const Reduction plan = plan_reduction(x, y, reduced, item, true);
  r->table = table;
  r->kernels = kernels;
  r->dtype = dtype;
  r->item = item;
  r->accumulate = accumulate;
  r->x = plan.x;
  r->outputs = plan.kept;
  set_output(r, plan.y, y_dtype, is_aligned(y, item_size(y_dtype)));
  r->terms = plan.reduced;
  r->partial = nullptr;
  r->has_segments = false;
  (plan.inner_reduced ? r->terms : r->outputs)
      .append(plan.inner, plan.inner_x, plan.inner_reduced ? 0 : plan.inner_y);
  const bool is_unit = plan.has_unit_inner && is_aligned(x, item);
  const bool is_joined = r->terms.size > kLanes && plan.has_dense_rows;
  const bool is_wide = is_unit && !plan.inner_reduced &&
                       (plan.inner > kNarrowTile || (plan.inner == kNarrowTile && !is_joined));

  // Enough tasks for many threads before they grow to what is best for one.
  const int64_t even = ceil_div(r->outputs.size, kFewTasks);
  r->row = r->outputs.size;
  const bool is_reversed = plan.inner_reduced && plan.inner_x == -item && is_aligned(x, item);
  const bool is_dense = (is_unit || is_reversed) && plan.inner_reduced && r->terms.count == 1;
  r->is_backward = is_reversed && is_dense;
  if (r->terms.size <= (is_dense ? kFewTerms : kLanes) && !is_wide && is_aligned(x, item)) {
    r->layout = Reducer::kSpread;
    r->tile = std::clamp<int64_t>(even, 16, kMostOutputs);
    move_longest_last(&r->outputs);
    // So few terms fold to the same bits from either end.
    const bool is_same = r->terms.size <= 4 || r->terms.size == 8;
    r->has_dense_terms =
        is_dense && (is_unit || is_same) && last_stride(r->outputs) == r->terms.size * item;
  } else if (plan.inner_reduced) {
    r->layout = Reducer::kRows;
    // In a block the tile's outputs follow each other, so that short pieces share cache lines.
    const bool is_long = r->terms.size > kReduceBlock && plan.inner >= kReduceBlock / 4;
    r->has_segments = is_unit && r->terms.count > 1 && plan.inner >= kShortestSegment;
    r->tile = is_long || r->has_segments ? 1 : std::clamp<int64_t>(even, 1, 64);
    r->has_dense_terms = is_unit && (r->terms.count == 1 || plan.inner >= kLongRow);
  } else {
    r->layout = is_wide ? Reducer::kColumns : Reducer::kNarrow;
    r->row = plan.inner;
    r->has_dense_rows = is_unit && plan.has_dense_rows && plan.reduced.count == 1;
    const int64_t most = is_wide ? kTile : kNarrowTile;
    const int64_t tiles = ceil_div(plan.inner, most);
    r->tile =
        tiles == 1 ? plan.inner : std::min(most, (ceil_div(plan.inner, tiles) + 15) / 16 * 16);
    r->has_dense_rows &= r->tile == plan.inner;
    r->is_backward = r->has_dense_rows && last_stride(r->terms) < 0;
  }
  r->tasks = r->outputs.size / r->row * ceil_div(r->row, r->tile);
  cut_terms(r);
}

int64_t workspace_size(const Reducer* r) {
  if (r->tasks >= kFewTasks || r->chunks == 1) return 0;
  return r->chunks * r->outputs.size * 2 * int64_t(sizeof(double));
}

void reduce_tasks(const Reducer* reducers, int count, BlockSums& source, int64_t index,
                  int64_t partitions) {
  with_frame<SumMerger>(SumMerger::Given{reducers, count}, [&](SumMerger& merger) {
    for_tasks(*reducers, index, partitions, [&](int64_t first, int64_t n, int64_t chunk) {
      if (reducers->partial)
        merger.one_chunk(source, first, n, chunk);
      else
        merger.all_chunks(source, first, n);
    });
  });
}

void merge_partition(const Reducer* reducer, int64_t index, int64_t partitions) {
  const Reducer& r = *reducer;
  const int64_t end = r.outputs.size * (index + 1) / partitions;
  for (int64_t first = r.outputs.size * index / partitions; first < end; first += kTile) {
    const int64_t n = std::min(kTile, end - first);
    double *hi = partial_of(r, 0, first), *lo = hi + r.outputs.size;
    for (int64_t c = 1; c < r.chunks; ++c) {
      const double* part = partial_of(r, c, first);
      r.table->merge(part, part + r.outputs.size, hi, lo, n);
    }
    store_sums(r, first, n, hi, lo);
  }
}

}  // namespace fastact
