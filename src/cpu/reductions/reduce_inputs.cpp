// The inputs of a reduction: reads the blocks of an array x in each layout (reduce.h).
#include <algorithm>
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/reduce.h"

namespace fastact {
namespace {

constexpr int64_t kGathered = 2048;  // elements gathered at a time
// and bytes of them: a band of kNarrowTile columns of 16 bits, or kGathered of any dtype
constexpr int64_t kStage = kFloatBand * kNarrowTile * sizeof(uint16_t);
static_assert(kStage >= kGathered * int64_t(sizeof(double)));

// An element at any address.
template <class T>
struct __attribute__((packed, may_alias)) Loose {
  T bits;
};

template <class T>
void reverse(char* to, const char* from, int64_t n) {
  auto* const made = reinterpret_cast<Loose<T>*>(to);
  const auto* const x = reinterpret_cast<const Loose<T>*>(from);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) made[i].bits = x[-i].bits;
}

// to OUT = n elements of `item` bytes, `step` bytes apart.
void copy(char* to, const char* from, int64_t item, int64_t step, int64_t n) {
  if (step == item)
    memcpy(to, from, n * item);
  else if (step == -item)
    item == sizeof(uint16_t)   ? reverse<uint16_t>(to, from, n)
    : item == sizeof(uint32_t) ? reverse<uint32_t>(to, from, n)
                               : reverse<uint64_t>(to, from, n);
  else
    gather_for(item)(to, from, step, n);
}

struct ArrayInputs : BlockSource {
  // No power of two, by which sets of lanes, beside rows that are one apart, would share places in
  // the cache.
  static constexpr int64_t kPitch = kLanes * kTile + 72;
  const Reducer& r;
  const Accumulator& a;
  const int passes;
  const bool is_far;
  const bool has_dense_rows;  // that touch each other, of few columns
  // The pass that is under way.
  const Accumulator* pass;
  const ReduceKernels* kernels;
  alignas(64) double lanes[kMostSets * kPitch];  // and the results of a block
  alignas(64) double shift[kLanes * kNarrowTile];
  alignas(64) double later[kTile];       // a later term of each output
  bool lost[kTile];                      // outputs for which no shift was found
  double made[kMostSets][kBlocksAhead];  // results of whole blocks of rows, [block][output]
  int64_t made_first = 0, made_begin = 0, made_end = 0;  // their output and terms
  alignas(64) char stage[kStage];
  int64_t offsets[kReduceBlock];

  explicit ArrayInputs(const Reducer& reducer)
      : r(reducer),
        a(*reducer.accumulator),
        passes(a.passes[reducer.dtype]),
        is_far(r.outputs.size * r.terms.size * r.item > kFarReduction),
        has_dense_rows(r.layout == Reducer::kNarrow && r.is_dense) {}

  Results block(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    if (r.layout == Reducer::kBlocks && terms == kReduceBlock) return row_blocks(first, n, term);
    if (r.layout == Reducer::kRows || r.layout == Reducer::kBlocks)
      rows(first, n, term, terms);
    else
      columns(first, n, term, terms);
    return {lanes, nullptr, kPitch};
  }

  // shift OUT: what a block of n columns counts from. read(i, to): term i of each of them.
  template <class Read>
  void find_shifts(int64_t terms, int64_t n, Read read) {
    if (!a.has_shift) return;
    read(0, shift);
    const auto is_missing = [](double x) { return !(x - x == 0); };
    for (int64_t i = 1; a.retries && i < std::min(terms, kShiftTerms); ++i) {
      if (std::none_of(shift, shift + n, is_missing)) break;
      read(i, later);
      for (int64_t k = 0; k < n; ++k)
        if (is_missing(shift[k])) shift[k] = later[k];
    }
  }

  // Remembers where it is missing.
  bool has_lost_shifts(int64_t n) {
    bool any = false;
    for (int64_t k = 0; k < n; ++k) any |= lost[k] = !(shift[k] - shift[k] == 0);
    return any;
  }

  void begin_pass(bool is_last) {
    pass = is_last ? &a : &r.table->first_passes[a.retries];
    kernels = &pass->kernels[r.dtype];
  }

  // The passes over one block of n columns, the first with `shift` as it stands. add: adds the
  // terms to lanes, and returns how many lanes there are.
  template <class Add>
  void settle(int64_t terms, int64_t n, Add add) {
    const int all_passes = a.retries && has_lost_shifts(n) ? 2 : passes;
    for (int i = 0; i < all_passes; ++i) {
      for (int64_t k = 0; i > 0 && k < n; ++k)
        if (passes > 1 || lost[k]) shift[k] = lanes[k];
      if (a.has_shift) r.table->make_finite(shift, n);
      begin_pass(i + 1 == all_passes);
      const int64_t count = add();
      for (int s = 0; s < pass->sets && count > 1; ++s) r.table->fold(lanes + s * kPitch, count, n);
      if (a.settle) pass->settle(shift, lanes, kPitch, terms, n, lanes, kPitch);
    }
  }

  void rows(int64_t first, int64_t n, int64_t term, int64_t terms) {
    int64_t at[kMostOutputs];
    offsets_of(r.outputs, first, n, at);
    if (r.is_dense)
      return r.kernels->blocks(r.x + term * r.item, at, n, terms, r.ahead, lanes, kPitch);
    const int64_t step = last_stride(r.terms), start = 0;
    for (int64_t k = 0; k < n; ++k) {
      char* to = stage;
      for_spans(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t m) {
        copy(to, r.x + at[k] + offset, r.item, step, m);
        to += m * r.item;
      });
      r.kernels->blocks(stage, &start, 1, terms, 0, lanes + k, kPitch);
    }
  }

  // One of the blocks of long rows. It makes them of several blocks of a row after the other, as
  // they lie, so that the memory is not left to wait for what happens between two blocks.
  Results row_blocks(int64_t first, int64_t n, int64_t term) {
    if (first != made_first || term < made_begin || term >= made_end) make_blocks(first, n, term);
    return {made[0] + (term - made_begin) / kReduceBlock * n, nullptr, kBlocksAhead};
  }

  void make_blocks(int64_t first, int64_t n, int64_t term) {
    const int64_t task = (r.partial ? r.chunk_blocks : r.chunk_blocks * r.chunks) * kReduceBlock;
    const int64_t end = std::min((term / task + 1) * task, r.terms.size);
    const int64_t blocks = std::min((end - term) / kReduceBlock, kBlocksAhead / n);
    const int64_t step = last_stride(r.terms);
    int64_t rows[kBlocksAhead], at[kBlocksAhead];
    offsets_of(r.outputs, first, n, rows);
    for (int64_t k = 0; k < n; ++k)
      for (int64_t b = 0; b < blocks; ++b)
        at[k * blocks + b] = rows[k] + (term + b * kReduceBlock) * step;
    r.kernels->blocks(r.x, at, n * blocks, kReduceBlock, r.ahead, lanes, kPitch);
    for (int s = 0; s < a.sets; ++s)
      for (int64_t k = 0; k < n; ++k)
        for (int64_t b = 0; b < blocks; ++b)
          made[s][b * n + k] = lanes[s * kPitch + k * blocks + b];
    made_first = first, made_begin = term, made_end = term + blocks * kReduceBlock;
  }

  // visit(address, outputs before, how many) for the spans of n outputs.
  template <class Visit>
  void for_outputs(int64_t first, int64_t n, Visit visit) const {
    int64_t done = 0;
    for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t m) {
      visit(r.x + offset, done, m);
      done += m;
    });
  }

  // Where the rows touch each other, row `term` of n columns from `first` on, or, where they run
  // backwards, its last column.
  const char* dense_row(int64_t first, int64_t n, int64_t term) const {
    int64_t at;
    offsets_of(r.outputs, first, 1, &at);
    return r.x + at + term * last_stride(r.terms) + (r.is_backward ? (n - 1) * r.item : 0);
  }

  // stage OUT [rows][n]: the block's rows from `row` on, which begins with row `term`.
  void gather(int64_t first, int64_t n, int64_t term, int64_t row, int64_t rows) {
    if (has_dense_rows)
      return copy(stage, dense_row(first, n, term + row), r.item, r.is_backward ? -r.item : r.item,
                  rows * n);
    for_outputs(first, n, [&](const char* x, int64_t done, int64_t m) {
      for (int64_t i = 0; i < rows; ++i)
        copy(stage + (i * n + done) * r.item, x + offsets[row + i], r.item, last_stride(r.outputs),
             m);
    });
  }

  // Adds up n columns. Those of dense rows that run backwards are read from the last to the first.
  void columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    if (r.listed)
      std::copy_n(r.listed + term, terms, offsets);
    else if (!has_dense_rows)
      offsets_of(r.terms, term, terms, offsets);
    find_shifts(terms, n, [&](int64_t i, double* to) {
      gather(first, n, term, i, 1);
      r.table->widen[r.dtype](stage, r.item, n, to);
    });
    settle(terms, n, [&] {
      if (r.layout == Reducer::kNarrow && (has_dense_rows || terms > kFewTerms))
        return narrow_columns(first, n, term, terms), terms;
      if (r.layout == Reducer::kColumns && terms > kFewTerms) {
        for_outputs(first, n, [&](const char* x, int64_t, int64_t) {
          kernels->block_of_rows(x, offsets, terms, n, shift, lanes, kPitch, is_far);
        });
        return terms;
      }
      few_terms(first, n, term, terms);
      return int64_t{1};
    });
    for (int s = 0; s < a.sets && has_dense_rows && r.is_backward; ++s)
      std::reverse(lanes + s * kPitch, lanes + s * kPitch + n);
  }

  void few_terms(int64_t first, int64_t n, int64_t term, int64_t terms) {
    if (r.layout == Reducer::kNarrow) {
      int64_t rows[kFewTerms];
      for (int64_t i = 0; i < terms; ++i) rows[i] = i * n * r.item;
      gather(first, n, term, 0, terms);
      return kernels->few_rows[terms - 1](stage, rows, n, shift, lanes, kPitch);
    }
    const bool are_short = r.layout == Reducer::kShortRows;
    const auto few = (are_short ? kernels->short_rows : kernels->few_rows)[terms - 1];
    const int64_t low = are_short && r.is_backward ? (1 - terms) * r.item : 0;
    for_outputs(first, n, [&](const char* x, int64_t done, int64_t m) {
      few(x + low, offsets, m, shift + done, lanes + done, kPitch);
    });
  }

  // Dense rows where they lie, others after some have been gathered.
  void narrow_columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    for (int64_t done = n; a.has_shift && done < kLanes * n; done *= 2)
      std::copy(shift, shift + done, shift + done);
    if (has_dense_rows && !r.is_backward) return dense(dense_row(first, n, term), n, terms, true);
    const int64_t many = kGathered / n / kLanes * kLanes;
    const int64_t most =
        r.item == sizeof(uint16_t) ? std::max(many / kFloatBand, int64_t{1}) * kFloatBand : many;
    for (int64_t done = 0, m; done < terms; done += m) {
      m = std::min(most, terms - done);
      gather(first, n, term, done, m);
      dense(stage, n, m, done == 0);
    }
  }

  void add_rows(const char* x, const int64_t* at, int64_t rows, int64_t width, double* to,
                bool fresh) {
    kernels->add_rows(x, at, 1, rows, width, shift, to, kPitch, fresh);
  }

  // Dense rows of n columns: kLanes of them are one row that holds every lane. The first `rest`
  // lanes have a term more than the others.
  void dense(const char* x, int64_t n, int64_t terms, bool fresh) {
    const int64_t whole = terms / kLanes, rest = terms % kLanes * n;
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i * kLanes < terms; ++i) at[i] = i * kLanes * n * r.item;
    if (rest) add_rows(x, at, whole + 1, rest, lanes, fresh);
    if (whole) add_rows(x + rest * r.item, at, whole, kLanes * n - rest, lanes + rest, fresh);
  }
};

}  // namespace

void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions) {
  const Reducer& r = *reducer;
  if (r.layout == Reducer::kSegments) return reduce_segmented(r, index, partitions);
  with_frame<ArrayInputs>(
      r, [&](ArrayInputs& inputs) { reduce_tasks(reducer, 1, inputs, index, partitions); });
}

}  // namespace fastact
