// The plan of a reduction, its tasks, and the way from the results of blocks to the arrays. How the
// blocks of an array are read is in reduce_inputs.cpp.
#include "cpu/reductions/reduce.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/core/threads.h"
#include "cpu/reductions/rescaled.h"

namespace fastact {
namespace {

constexpr int64_t kLongRow = 512;         // contiguous terms worth a call of their own
constexpr int64_t kShortestSegment = 64;  // and worth one that carries lanes on
// terms of a row that ends amid a block, below which it gains nothing to read blocks ahead
constexpr int64_t kLongTail = 8 * kReduceBlock;
constexpr int64_t kLongRun = 16 * kTermsAhead;  // bytes of a piece that are worth prefetches where
                                                // it does not touch the next one
constexpr int64_t kLeastTile = 64;              // columns a task, however many threads there are
constexpr int64_t kTwoPassTile = 256;  // of rows that are read twice: 2 KiB of a float64 row

int64_t output_stride(const Reducer& r) {
  return r.outputs.count ? r.outputs.y[r.outputs.count - 1] : 0;
}

// The terms of chunks 0 .. chunk.
int64_t terms_until(const Reducer& r, int64_t chunk) {
  return std::min((chunk + 1) * r.chunk_blocks * kReduceBlock, r.terms.size);
}

// to OUT (n outputs)
void copy_results(const Reducer& r, const Results& from, const Results& to, int64_t n) {
  for (int s = 0; s < r.accumulator->sets; ++s) {
    std::copy_n(from.values + s * from.pitch, n, to.values + s * to.pitch);
    if (from.errors)
      std::copy_n(from.errors + s * from.pitch, n, to.errors + s * to.pitch);
    else
      std::fill_n(to.errors + s * to.pitch, n, 0.0);
  }
}

// to, of n outputs: the result of the chunks before `chunk` takes in one chunk more.
void add_chunk(const Reducer& r, const Results& one, int64_t chunk, const Results& to, int64_t n) {
  const int64_t before = terms_until(r, chunk - 1);
  r.accumulator->merge(one, terms_until(r, chunk) - before, to, before, n);
}

// The place where a chunk's results from output `first` on meet the others.
Results partial_of(const Reducer& r, int64_t chunk, int64_t first) {
  const int64_t outputs = r.outputs.size, values = r.accumulator->sets * outputs;
  double* at = r.partial + 2 * chunk * values + first;
  return {at, at + values, outputs};
}

// Outputs first .. first + n of an array with the strides of r.y = hi + lo (null: 0), rounded;
// n <= kMostColumns.
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
  alignas(64) char stage[kMostColumns * sizeof(double)];
  finish(hi, lo, stage, n);
  for_spans(r.outputs, first, n, [&](int64_t, int64_t at, int64_t m) {
    move_elements(r.y_item, y + at, step, stage + done * r.y_item, r.y_item, m);
    done += m;
  });
}

// Whether some of n numbers may be less than `least`, or not finite: one look at all.
bool may_be_far(const Reducer& r, const double* x, int64_t n, double least) {
  if (!r.rescale) return false;
  double smallest = 1, sum = 0;
#pragma omp simd reduction(min : smallest) reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    smallest = x[i] < smallest ? x[i] : smallest;
    sum += x[i];
  }
  return smallest < least || !is_finite(sum);
}

// far IN/OUT (count), of n columns: without those that have nothing but zeros, which are read row
// by row. Column by column each would take a cache line of every row.
int64_t drop_zeros(const Reducer& r, int64_t first, int64_t n, int64_t* far, int64_t count) {
  if (r.rescale != rescale_array || r.layout != Reducer::kColumns) return count;
  alignas(64) double row[kMostColumns];
  uint64_t bits[kMostColumns] = {};
  for_terms(r, 0, r.terms.size, [&](int64_t offset, int64_t step, int64_t m) {
    for (int64_t i = 0; i < m; ++i, offset += step) {
      double* to = row;
      for_spans(r.outputs, first, n, [&](int64_t at, int64_t, int64_t columns) {
        r.table->widen[r.dtype](r.x + at + offset, r.item, columns, to);
        to += columns;
      });
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) bits[k] |= bit_cast<uint64_t>(row[k]);
    }
  });
  return std::remove_if(far, far + count, [&](int64_t k) { return bits[k] << 1 == 0; }) - far;
}

bool has_moments(const Reducer& r) {
  return r.accumulator == &r.table->accumulators[kMoments] ||
         r.accumulator == &r.table->accumulators[kValidMoments];
}

// A mean, or a total.
double mean_of(const Reducer& r, const Rescaled& found) {
  return found.mean * (r.of_m2 == kTotal ? found.count : 1.0) * found.up;
}

// Notes that an output has too few terms, or no weights.
void note_count(const Reducer& r, double count, double enough) {
  if (count > enough) return;
  const int what = count != count ? kNoWeights : kTooFew;
  __atomic_fetch_or(r.is_degenerate, what, __ATOMIC_RELAXED);
}

// up: what the values were divided by.
void store_moments_as_found(const Reducer& r, int64_t first, int64_t n, const Results& all,
                            double up = 1) {
  double *mean = all.values, *mean_low = all.errors;
  double *m2 = mean + all.pitch, *m2_low = mean_low + all.pitch;
  double* const counts = r.accumulator->retries ? m2 + all.pitch : nullptr;
  for (int64_t i = 0; i < n && counts; ++i) counts[i] += m2_low[all.pitch + i];
  const auto count = [&](int64_t i) { return counts ? counts[i] : double(r.terms.size); };
  for (int64_t i = 0; i < n && counts; ++i)
    if (counts[i] == 0) mean[i] = std::nan("");
  const double enough = r.second && r.of_m2 != kM2 ? std::max(r.correction, 0.0) : 0.0;
  for (int64_t i = 0; i < n && r.is_degenerate; ++i) note_count(r, count(i), enough);
  if (r.y) store_outputs(r, r.y, first, n, mean, mean_low);
  if (r.low) {
    alignas(64) char rounded[kMostColumns * sizeof(double)];
    alignas(64) double whole[kMostColumns];
    r.table->finish[r.y_dtype](mean, mean_low, rounded, n);
    r.table->widen[r.y_dtype](rounded, r.y_item, n, whole);
    for (int64_t i = 0; i < n; ++i)
      mean_low[i] = finite_or_zero((mean[i] - whole[i]) + mean_low[i]);
    store_outputs(r, r.low, first, n, mean_low, nullptr);
  }
  if (r.count) {
    for (int64_t i = 0; i < n; ++i) mean_low[i] = count(i);
    store_outputs(r, r.count, first, n, mean_low, nullptr);
  }
  if (!r.second) return;
  for (int64_t i = 0; i < n; ++i)
    m2[i] = second_moment(r.of_m2, m2[i] + m2_low[i], count(i), r.correction, r.skips, up);
  store_outputs(r, r.second, first, n, m2, nullptr);
}

constexpr int64_t kFewFar = 4;  // columns that are worth no pass over all of them

// store(), and those of n outputs once more for which `is_far` holds.
template <class IsFar, class Store>
FASTACT_RARE void store_far(const Reducer& r, int64_t first, int64_t n, IsFar is_far, Store store) {
  int64_t far[kMostColumns], count = 0;
  for (int64_t i = 0; i < n; ++i)
    if (is_far(i)) far[count++] = i;
  if (count > kFewFar && has_moments(r)) count = drop_zeros(r, first, n, far, count);
  store();
  for (int64_t k = 0; k < count; ++k) {
    Rescaled found;
    if (r.rescale(r, first + far[k], &found)) store_rescaled(r, first + far[k], found);
  }
}

void store_moments(const Reducer& r, int64_t first, int64_t n, const Results& all) {
  const double *mean = all.values, *m2 = mean + all.pitch;
  const double* const counts = r.accumulator->retries ? m2 + all.pitch : nullptr;
  const auto store = [&] { store_moments_as_found(r, first, n, all); };
  if (!may_be_far(r, m2, n, Range<double>::kLeast)) return store();
  const auto is_far = [=](int64_t i) {
    return is_far_moment(mean[i], m2[i]) && !(counts && counts[i] == 0);
  };
  store_far(r, first, n, is_far, store);
}

// A compensated sum as one number. (-0 + 0 would be 0.)
double total_of(double sum, double low) { return low != 0 ? sum + low : sum; }
void add_errors(const Results& all, int64_t n) {
  for (int64_t i = 0; i < n && all.errors; ++i)
    all.values[i] = total_of(all.values[i], all.errors[i]);
}

// The mean alone, or the sum: of terms that have a count of their own, or over the divisor.
void store_means(const Reducer& r, int64_t first, int64_t n, const Results& all) {
  double* const sum = all.values;
  double* const count = r.accumulator->sets > 1 ? sum + all.pitch : nullptr;
  add_errors(all, n);
  if (count) {
    add_errors({count, all.errors ? all.errors + all.pitch : nullptr, 0}, n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) count[i] = std::abs(count[i]);
    const bool has_few = r.of_m2 == kTotal || !r.table->divide(sum, count, 0, n);
    for (int64_t i = 0; i < n && has_few && r.is_degenerate; ++i) note_count(r, count[i], 0);
  } else {
    r.table->divide(sum, nullptr, r.divisor, n);
  }
  const auto store = [&] { store_sums(r, first, n, sum, nullptr); };
  const auto is_far = [=](int64_t i) { return !is_finite(sum[i]) && !(count && count[i] == 0); };
  may_be_far(r, sum, n, -kMostDouble) ? store_far(r, first, n, is_far, store) : store();
  if (r.count && count) store_outputs(r, r.count, first, n, count, nullptr);
}

// A task: some outputs over some chunks, from the results of their blocks to y. Of several
// reducers, one after the other.
struct BlockMerger {
  const Reducer* reducers;
  const int count;
  const Reducer& r;  // the first: they have the same terms
  const int sets;
  static constexpr int64_t kAll = std::max(kMostColumns, kMostSets* kTile);
  alignas(64) double memory[2][2][kAll];

  explicit BlockMerger(const std::pair<const Reducer*, int>& given)
      : reducers(given.first), count(given.second), r(*reducers), sets(r.accumulator->sets) {}

  // Several sets share the columns: outputs of an array are kTile a task, at most.
  Results local(int i) { return {memory[i][0], memory[i][1], sets == 1 ? kMostColumns : kTile}; }

  // to OUT (count n): one chunk.
  void chunk(BlockSource& source, int64_t first, int64_t n, int64_t index, const Results& to) {
    const int64_t begin = index * r.chunk_blocks * kReduceBlock, end = terms_until(r, index);
    for (int64_t term = begin, terms; term < end; term += terms) {
      terms = std::min(kReduceBlock, end - term);
      const Results block = source.block(first, n, term, terms);
      if (term == begin)
        copy_results(r, block, to, count * n);
      else
        r.accumulator->merge(block, terms, to, term - begin, count * n);
    }
  }

  void one_chunk(BlockSource& source, int64_t first, int64_t n, int64_t index) {
    const Results all = local(0);
    chunk(source, first, n, index, all);
    for (int k = 0; k < count; ++k)
      copy_results(r, of(all, k * n), partial_of(reducers[k], index, first), n);
  }

  void all_chunks(BlockSource& source, int64_t first, int64_t n) {
    if (r.terms.size <= kReduceBlock && !r.accumulator->has_shift)  // sums without errors
      return store(first, n, source.block(first, n, 0, r.terms.size));
    const Results all = local(0), one = local(1);
    chunk(source, first, n, 0, all);
    for (int64_t c = 1; c < r.chunks; ++c) {
      chunk(source, first, n, c, one);
      add_chunk(r, one, c, all, count * n);
    }
    store(first, n, all);
  }

  void store(int64_t first, int64_t n, const Results& all) {
    for (int k = 0; k < count; ++k) store_results(reducers[k], first, n, of(all, k * n));
  }

  static Results of(const Results& all, int64_t i) {
    return {all.values + i, all.errors ? all.errors + i : nullptr, all.pitch};
  }
};

// Spans that are too short for a call of their own take those of the longest axis instead.
void lengthen_spans(Axes* axes) {
  constexpr int64_t kLongSpan = 16;
  const int last = axes->count - 1;
  if (last < 1 || axes->length[last] >= kLongSpan) return;
  const int64_t longest = std::max_element(axes->length, axes->length + axes->count) - axes->length;
  std::swap(axes->length[longest], axes->length[last]);
  std::swap(axes->x[longest], axes->x[last]);
  std::swap(axes->y[longest], axes->y[last]);
}

// Lets rows that touch each other and run backwards be one run of memory, by turning their columns
// round as well.
void read_backwards(Reducer* r) {
  const int last = r->outputs.count - 1;
  for (int64_t* strides : {r->outputs.x, r->outputs.y}) strides[last] = -strides[last];
  r->x -= (r->row - 1) * r->outputs.x[last];
  r->y -= (r->row - 1) * r->outputs.y[last];
}

}  // namespace

bool is_aligned(const Operand& x, int64_t item) {
  auto bits = reinterpret_cast<uintptr_t>(x.data);
  for (int axis = 0; axis < x.ndim; ++axis)
    if (x.shape[axis] > 1) bits |= uintptr_t(byte_stride(x, axis, item));
  return bits % uintptr_t(item) == 0;
}

bool rescale_array(const Reducer& r, int64_t output, Rescaled* to) {
  int64_t at;
  offsets_of(r.outputs, output, 1, &at);
  return rescale(
      r.terms.size, true,
      [&](int64_t term, int64_t n, double* x, double* weights) {
        double* to_x = x;
        for_terms(r, term, n, [&](int64_t offset, int64_t step, int64_t m) {
          move_elements(r.item, reinterpret_cast<char*>(to_x), r.item, r.x + at + offset, step, m);
          to_x += m;
        });
        for (int64_t i = 0; i < n; ++i) {
          const bool counts = !(r.skips && x[i] != x[i]);
          weights[i] = counts, x[i] = counts ? x[i] : 0.0;
        }
      },
      to);
}

void widen(const ReduceTable& table, int dtype, const char* from, int64_t stride, int64_t n,
           double* to) {
  const int64_t item = item_size(dtype);
  if (stride == 0 && n > 1) {  // one number, a gradient's of a row
    widen(table, dtype, from, item, 1, to);
    std::fill_n(to + 1, n - 1, *to);
    return;
  }
  if (((reinterpret_cast<uintptr_t>(from) | uintptr_t(stride)) & uintptr_t(item - 1)) == 0)
    return table.widen[dtype](from, stride, n, to);
  alignas(64) char packed[kPiece * sizeof(double)];
  move_elements(item, packed, item, from, stride, n);
  table.widen[dtype](packed, item, n, to);
}

void store_sums(const Reducer& r, int64_t first, int64_t n, const double* sums,
                const double* errors) {
  if (!r.y) return;
  const bool is_alone = bit_cast<uint64_t>(r.initial) == bit_cast<uint64_t>(-0.0);
  if (!r.accumulate && is_alone) return store_outputs(r, r.y, first, n, sums, errors);
  // One sum more: of what y holds, or of the initial number.
  alignas(64) double held[kMostColumns], held_errors[kMostColumns];
  int64_t done = 0;
  std::fill_n(held, n, r.initial);
  if (r.accumulate)
    for_spans(r.outputs, first, n, [&](int64_t, int64_t y, int64_t m) {
      widen(*r.table, r.y_dtype, r.y + y, output_stride(r), m, held + done);
      done += m;
    });
  std::fill(held_errors, held_errors + n, 0.0);
  const Results from = {const_cast<double*>(sums), const_cast<double*>(errors), 0};
  r.table->accumulators[kItself].merge(from, 0, {held, held_errors, 0}, 0, n);
  store_outputs(r, r.y, first, n, held, held_errors);
}

void store_rescaled(const Reducer& r, int64_t output, const Rescaled& found) {
  double values[] = {mean_of(r, found), found.m2, found.count};
  double errors[] = {found.mean_low * found.up, 0, 0};
  if (!has_moments(r)) return store_sums(r, output, 1, values, nullptr);
  Reducer others = r;
  others.count = nullptr;  // that stands
  store_moments_as_found(others, output, 1, {values, errors, 1}, found.up);
}

void store_results(const Reducer& r, int64_t first, int64_t n, const Results& all) {
  if (r.also) store_results(*r.also, first, n, all);
  if (has_moments(r))
    store_moments(r, first, n, all);
  else if (r.accumulator == &r.table->accumulators[kValidMean] || r.divisor != 1 || r.rescale)
    store_means(r, first, n, all);
  else
    store_sums(r, first, n, all.values, all.errors);
}

void set_accumulator(Reducer* r, const ReduceTable* table, int what, int dtype) {
  r->table = table;
  r->accumulator = &table->accumulators[what];
  r->kernels = &r->accumulator->kernels[dtype];
  r->dtype = dtype;
  r->item = item_size(dtype);
}

void set_output(Reducer* r, char* y, int dtype, bool is_aligned_y) {
  r->y = y;
  r->y_dtype = dtype;
  r->y_item = item_size(dtype);
  r->is_y_aligned = is_aligned_y;
}

void set_tile(Reducer* r, int64_t tile) {
  r->tile = tile;
  r->tasks = r->outputs.size / r->row * ceil_div(r->row, tile);
}

void cut_terms(Reducer* r) {
  r->chunk_blocks = blocks_a_chunk(r->terms.size);
  r->chunks = ceil_div(r->terms.size, r->chunk_blocks * kReduceBlock);
}

void prepare(Reducer* r, const ReduceTable* table, int what, const Operand& x, const Operand& y,
             const bool* reduced, int dtype, int y_dtype, bool accumulate) {
  const int64_t item = item_size(dtype);
  const Reduction plan = plan_reduction(x, y, reduced, item, true);
  set_accumulator(r, table, what, dtype);
  r->accumulate = accumulate;
  r->x = plan.x;
  r->outputs = plan.kept;
  set_output(r, plan.y, y_dtype, is_aligned(y, item_size(y_dtype)));
  r->terms = plan.reduced;
  r->rescale = dtype == kF64 ? rescale_array : nullptr;
  (plan.inner_reduced ? r->terms : r->outputs)
      .append(plan.inner, plan.inner_x, plan.inner_reduced ? 0 : plan.inner_y);
  const bool is_unit = plan.has_unit_inner && is_aligned(x, item);
  const bool is_joined = r->terms.size > kLanes && plan.has_dense_rows;
  const bool is_wide = is_unit && !plan.inner_reduced &&
                       (plan.inner > kNarrowTile || (plan.inner == kNarrowTile && !is_joined));

  // Enough tasks for many threads before they grow to what is best for one; but none smaller than
  // a block.
  const int64_t even = std::max(ceil_div(r->outputs.size, kFewTasks), kReduceBlock / r->terms.size);
  r->row = r->outputs.size;
  const bool is_one_run = plan.inner_reduced && r->terms.count == 1 && is_aligned(x, item) &&
                          std::abs(plan.inner_x) == item;
  if (r->terms.size <= (is_one_run ? kFewTerms : kLanes) && !is_wide && is_aligned(x, item)) {
    r->layout = Reducer::kSpread;
    r->tile = std::clamp<int64_t>(even, 16, kMostOutputs);
    lengthen_spans(&r->outputs);
    // Sums of so few terms fold to the same bits from either end.
    if (is_one_run && !is_unit && !r->accumulator->has_shift)
      r->terms.x[0] = item, r->x -= (r->terms.size - 1) * item;
    r->is_dense = is_one_run && last_stride(r->terms) == item &&
                  last_stride(r->outputs) == r->terms.size * item;
  } else if (plan.inner_reduced) {
    // In a block the tile's outputs follow each other, so that short pieces share cache lines.
    const bool is_long = r->terms.size > kReduceBlock && plan.inner >= kReduceBlock / 4;
    const bool has_segments = is_unit && r->terms.count > 1 && plan.inner >= kShortestSegment;
    const bool is_one_pass = r->accumulator->passes[dtype] == 1 && !r->accumulator->retries;
    r->is_dense = is_unit && (r->terms.count == 1 || plan.inner >= kLongRow);
    const bool is_whole = r->terms.size % kReduceBlock == 0;
    const bool is_read_ahead =
        is_long && is_unit && is_one_run && (is_whole || r->terms.size >= kLongTail);
    r->layout = is_read_ahead                 ? Reducer::kBlocks
                : has_segments && is_one_pass ? Reducer::kSegments
                                              : Reducer::kRows;
    r->tile = is_long || has_segments ? 1 : std::clamp<int64_t>(even, 1, 64);
    // Several rows of whole blocks are read ahead, but no fewer tasks made.
    if (is_read_ahead && is_whole)
      r->tile = std::clamp<int64_t>(kBlocksAhead * kReduceBlock / r->terms.size, 1,
                                    std::max<int64_t>(r->outputs.size / kFewTasks, 1));
    // Pieces that are short and do not touch would be left before what is prefetched is reached.
    const bool is_run = last_stride(r->outputs) == plan.inner * plan.inner_x;
    const bool is_far = r->outputs.size * r->terms.size * item > kFarTerms;
    if (is_far && (is_run || plan.inner * item >= kLongRun) && prefetches_next_chunk())
      r->ahead = kTermsAhead;
  } else {
    r->layout = is_wide ? Reducer::kColumns : Reducer::kNarrow;
    r->row = plan.inner;
    r->is_dense = is_unit && plan.has_dense_rows && plan.reduced.count == 1;
    const int64_t widest = r->accumulator->passes[dtype] > 1 ? kTwoPassTile : kTile;
    const int64_t most = is_wide ? widest : kNarrowTile;
    const int64_t tiles = ceil_div(plan.inner, most);
    r->tile =
        tiles == 1 ? plan.inner : std::min(most, (ceil_div(plan.inner, tiles) + 15) / 16 * 16);
    r->is_dense &= r->tile == plan.inner;
    if (!is_wide && r->is_dense && last_stride(r->terms) < 0) read_backwards(r);
  }
  set_tile(r, r->tile);
  cut_terms(r);
}

void prepare(Reducer* r, const KernelTable& table, const SumCall& call) {
  prepare(r, table.reduce, call.term, call.x, call.y, call.axes, call.x.dtype, call.y.dtype,
          call.accumulate);
  r->divisor = call.divisor, r->initial = call.initial;
  if (call.divisor == 1) r->rescale = nullptr;
}

void set_moments(Reducer* r, const MomentsCall& call) {
  char** const outputs[MomentsCall::kResults] = {&r->y, &r->low, &r->second, &r->count};
  const int64_t origin_shift = r->y - call.model().data;
  for (int k = 0; k < MomentsCall::kResults; ++k) {
    char* const data = call.results[k].data;
    *outputs[k] = data ? data + origin_shift : nullptr;
    r->is_y_aligned &= reinterpret_cast<uintptr_t>(data) % uintptr_t(r->y_item) == 0;
  }
  r->of_m2 = OfM2(call.of_m2);
  if (call.of_m2 == kTotal) r->initial = call.initial;
  r->correction = call.correction;
  r->skips = call.skips;
}

void prepare(Reducer* r, const KernelTable& table, const MomentsCall& call) {
  const ArrayArgument &x = call.x(), &y = call.model();
  const Accumulation of_valid = call.of_m2 == kNothing ? kValidMean : kValidMoments;
  prepare(r, table.reduce, call.skips ? of_valid : kMoments, x, y, call.axes, x.dtype, y.dtype,
          false);
  set_moments(r, call);
}

int64_t workspace_size(const Reducer* r) {
  if (r->tasks >= kFewTasks || r->chunks == 1) return 0;
  return partial_size(r) * int64_t(sizeof(double));
}

int64_t partial_size(const Reducer* r) {
  return r->chunks * r->outputs.size * 2 * r->accumulator->sets;
}

namespace {

// Makes tiles of columns narrower where so many threads would not get the same share of them.
// After it is settled whether the terms are cut; all `count` reducers have the same tasks, and then
// more of them.
void share_columns(Reducer* reducers, int count, int threads) {
  const Reducer& r = *reducers;
  const int64_t tiles = ceil_div(r.row, r.tile), rows = r.outputs.size / r.row;
  const int64_t pieces = rows * (r.partial ? r.chunks : 1);  // that are cut into tiles
  if (r.layout != Reducer::kColumns || pieces * tiles >= kTasksPerPartition * threads) return;
  // Every thread gets as many of these tiles of each piece.
  const int64_t equal = threads / std::gcd(pieces, int64_t(threads));
  const int64_t columns = ceil_div(r.row, ceil_div(tiles, equal) * equal);
  const int64_t tile = std::max(ceil_div(columns, 16) * 16, kLeastTile);
  if (tile >= r.tile) return;
  for (int k = 0; k < count; ++k) set_tile(&reducers[k], tile);
}

// The index-th of `partitions` parts of merging the chunks.
void merge_partition(const Reducer* reducer, int64_t index, int64_t partitions) {
  const Reducer& r = *reducer;
  const int64_t end = r.outputs.size * (index + 1) / partitions;
  for (int64_t first = r.outputs.size * index / partitions; first < end; first += kTile) {
    const int64_t n = std::min(kTile, end - first);
    const Results all = partial_of(r, 0, first);
    for (int64_t c = 1; c < r.chunks; ++c) add_chunk(r, partial_of(r, c, first), c, all, n);
    store_results(r, first, n, all);
  }
}

}  // namespace

void reduce_tasks(const Reducer* reducers, int count, BlockSource& source, int64_t index,
                  int64_t partitions) {
  const Reducer& r = *reducers;
  const int64_t tiles = ceil_div(r.row, r.tile), chunks = r.partial ? r.chunks : 1;
  const int64_t tasks = r.tasks * chunks;
  with_frame<BlockMerger>(std::pair(reducers, count), [&](BlockMerger& merger) {
    for (int64_t i = tasks * index / partitions; i < tasks * (index + 1) / partitions; ++i) {
      // In memory's order: the tiles of a row, the chunks, the rows.
      const int64_t row = i / (tiles * chunks), within = i % (tiles * chunks);
      const bool is_tile_inner = r.layout == Reducer::kColumns;
      const int64_t tile = is_tile_inner ? within % tiles : within / chunks;
      const int64_t first = row * r.row + tile * r.tile,
                    n = std::min(r.tile, r.row - tile * r.tile);
      if (r.partial)
        merger.one_chunk(source, first, n, is_tile_inner ? within / tiles : within % chunks);
      else
        merger.all_chunks(source, first, n);
    }
  });
}

void divide_work(Reducer* reducers, int count, char* workspace, int64_t bytes, int threads) {
  const int64_t needed = workspace_size(reducers);
  if (threads > 1 && needed > 0 && count * needed <= bytes)
    for (int k = 0; k < count; ++k)
      reducers[k].partial = reinterpret_cast<double*>(workspace + k * needed);
  share_columns(reducers, count, threads);
  if (reducers->layout != Reducer::kSegments) return;
  const int64_t each = ceil_div(reducers->row, reducers->partial ? 1 : threads);
  set_tile(reducers, ceil_div(each, ceil_div(each, kMostSegments)));
}

void merge_chunks(const Reducer* reducers, int count, int threads) {
  for (int k = 0; k < count; ++k)
    if (reducers[k].partial)
      run_partitions(threads_for(partial_size(&reducers[k]), threads), merge_partition,
                     &reducers[k]);
}

}  // namespace fastact
