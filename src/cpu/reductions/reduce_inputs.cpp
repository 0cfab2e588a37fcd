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
  alignas(64) double later[kTile];  // a later term of each output
  bool lost[kTile];                 // outputs for which no shift was found
  alignas(64) char stage[kStage];
  int64_t offsets[kReduceBlock];

  explicit ArrayInputs(const Reducer& reducer)
      : r(reducer),
        a(*reducer.accumulator),
        passes(a.passes[reducer.dtype]),
        is_far(r.outputs.size * r.terms.size * r.item > kFarReduction),
        has_dense_rows(r.layout == Reducer::kNarrow && r.is_dense) {}

  Results block(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    r.layout == Reducer::kRows ? rows(first, n, term, terms) : columns(first, n, term, terms);
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

  // to OUT = n terms, `step` bytes apart.
  void copy(char* to, const char* from, int64_t step, int64_t n) const {
    if (step == -r.item && reinterpret_cast<uintptr_t>(from) % uintptr_t(r.item) == 0)
      r.table->reverse[r.dtype](from, n, to);
    else
      gather_for(r.item)(to, from, step, n);
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
        copy(to, r.x + at[k] + offset, step, m);
        to += m * r.item;
      });
      r.kernels->blocks(stage, &start, 1, terms, 0, lanes + k, kPitch);
    }
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

  void columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const bool is_narrow = r.layout == Reducer::kNarrow;
    const int64_t step = last_stride(r.outputs);
    if (r.listed)
      std::copy_n(r.listed + term, terms, offsets);
    else if (!has_dense_rows)
      offsets_of(r.terms, term, terms, offsets);
    find_shifts(terms, n, [&](int64_t i, double* to) {
      if (is_narrow) gather(first, n, term, i, 1);
      if (is_narrow) return r.table->widen[r.dtype](stage, r.item, n, to);
      for_outputs(first, n, [&](const char* x, int64_t done, int64_t m) {
        r.table->widen[r.dtype](x + offsets[i], step, m, to + done);
      });
    });
    const bool is_short = r.layout == Reducer::kSpread && r.is_dense;
    const bool is_folded = is_short || (r.layout == Reducer::kColumns && terms <= kFewTerms);
    const int64_t low = is_short && r.is_backward ? (1 - terms) * r.item : 0;
    settle(terms, n, [&] {
      if (is_narrow) return narrow_columns(first, n, term, terms), terms;
      for_outputs(first, n, [&](const char* x, int64_t done, int64_t m) {
        if (is_folded)
          (is_short ? kernels->short_rows : kernels->few_rows)[terms - 1](
              x + low, offsets, m, shift + done, lanes + done, kPitch);
        else if (r.layout == Reducer::kColumns)
          add_columns(x, n, terms);
        else
          for (int64_t i = 0; i < terms; ++i)
            kernels->spread(x + offsets[i], step, m, shift + done, lanes + i * n + done, kPitch);
      });
      return is_folded ? int64_t{1} : terms;
    });
    for (int s = 0; s < a.sets && has_dense_rows && r.is_backward; ++s)
      std::reverse(lanes + s * kPitch, lanes + s * kPitch + n);
  }

  // Where rows touch each other, row `term` of n columns from `first` on; where they run backwards,
  // its last column.
  const char* dense_row(int64_t first, int64_t n, int64_t term) const {
    int64_t at;
    offsets_of(r.outputs, first, 1, &at);
    return r.x + at + term * last_stride(r.terms) + (r.is_backward ? (n - 1) * r.item : 0);
  }

  // stage OUT [rows][n]: rows of the block that begins with row `term`, from its row `row` on.
  // Those that touch each other and run backwards are read from the last column to the first.
  void gather(int64_t first, int64_t n, int64_t term, int64_t row, int64_t rows) {
    if (has_dense_rows)
      return copy(stage, dense_row(first, n, term + row), r.is_backward ? -r.item : r.item,
                  rows * n);
    for_outputs(first, n, [&](const char* x, int64_t, int64_t) {
      for (int64_t i = 0; i < rows; ++i)
        copy(stage + i * n * r.item, x + offsets[row + i], last_stride(r.outputs), n);
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

  // While a lane takes its rows of a band, those of the next lane but one are prefetched.
  void add_columns(const char* x, int64_t n, int64_t terms) {
    constexpr int64_t kLanesAhead = 2;
    for_lane_rows(terms, 0, false, [&](int64_t term, int64_t rows, int64_t, int64_t lane) {
      const int64_t next =
          term + kLanesAhead + (lane + kLanesAhead < kLanes ? 0 : kFloatBand - kLanes);
      const int64_t beyond = is_far && next < terms ? offsets[next] - offsets[term] : 0;
      kernels->add_far_rows(x, offsets + term, kLanes, rows, n, shift, lanes + lane * n, kPitch,
                            term < kLanes, beyond);
    });
  }

  // Dense rows of n columns: kLanes of them are one row that holds every lane.
  void dense(const char* x, int64_t n, int64_t terms, bool fresh) {
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i * kLanes < terms; ++i) at[i] = i * kLanes * n * r.item;
    for_lane_rows(terms, 0, true, [&](int64_t term, int64_t rows, int64_t width, int64_t lane) {
      kernels->add_rows(x + term * n * r.item, at, 1, rows, width * n, shift, lanes + lane * n,
                        kPitch, fresh);
    });
  }
};

}  // namespace

void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions) {
  const Reducer& r = *reducer;
  if (r.layout == Reducer::kBlocks || r.layout == Reducer::kSegments)
    return reduce_segmented(r, index, partitions);
  with_frame<ArrayInputs>(
      r, [&](ArrayInputs& inputs) { reduce_tasks(reducer, 1, inputs, index, partitions); });
}

}  // namespace fastact
