// The inputs of a reduction: they read the blocks of an array x in each layout (reduce.h).
#include <algorithm>

#include "common/reductions/moments.h"
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
constexpr int64_t kMostEnds = 8;  // blocks that end within a piece of a segment, at most

struct ArrayInputs : BlockSource {
  // No power of two, by which sets of lanes, beside rows that are one apart, would share places in
  // the cache.
  static constexpr int64_t kPitch = kLanes * kTile + 72;
  const Reducer& r;
  const Accumulator& a;
  const int passes;
  const bool is_far;
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
        is_far(r.outputs.size * r.terms.size * r.item > kFarReduction) {}

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

  // The passes over one block of n columns, the first with `shift` as it stands. add: adds the
  // terms to lanes, and returns how many lanes there are.
  template <class Add>
  void settle(int64_t terms, int64_t n, Add add) {
    const int all_passes = a.retries && has_lost_shifts(n) ? 2 : passes;
    for (int i = 0; i < all_passes; ++i) {
      for (int64_t k = 0; i > 0 && k < n; ++k)
        if (passes > 1 || lost[k]) shift[k] = lanes[k];
      for (int64_t k = 0; k < n && a.has_shift; ++k) shift[k] = finite_or_zero(shift[k]);
      const int64_t count = add();
      for (int s = 0; s < a.sets && count > 1; ++s) r.table->fold(lanes + s * kPitch, count, n);
      if (a.settle) a.settle(shift, lanes, kPitch, terms, n, lanes, kPitch);
    }
  }

  void rows(int64_t first, int64_t n, int64_t term, int64_t terms) {
    int64_t at[kMostOutputs];
    offsets_of(r.outputs, first, n, at);
    if (r.is_dense && r.terms.count == 1)
      return r.kernels->blocks(r.x + term * r.item, at, n, terms, r.ahead, lanes, kPitch);
    for (int64_t k = 0; k < n; ++k)
      r.is_dense ? pieces(r.x + at[k], term, terms, lanes + k)
                 : gathered_row(r.x + at[k], term, terms, lanes + k);
  }

  // Adds up the pieces of one output, for an accumulator that does not go by segments.
  void pieces(const char* x, int64_t term, int64_t terms, double* results) {
    OpenBlock block;
    std::fill_n(block.lanes, a.sets * kLanes, -0.0);
    offsets_of(r.terms, term, std::min(terms, kShiftTerms), offsets);
    find_shifts(terms, 1, [&](int64_t i, double* to) {
      r.table->widen[r.dtype](x + offsets[i], r.item, 1, to);
    });
    const int all_passes = a.retries && has_lost_shifts(1) ? 2 : passes;
    for (int i = 0; i < all_passes; ++i, *shift = *results) {
      *shift = finite_or_zero(*shift);
      int64_t done = 0;
      for_spans(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t m) {
        r.kernels->add_terms(x + offset, m, done, *shift, 0, block.lanes);
        done += m;
      });
      r.kernels->end_terms(block.lanes, terms, *shift, results, kPitch);
    }
  }

  void gathered_row(const char* x, int64_t term, int64_t terms, double* results) {
    const int64_t step = last_stride(r.terms), start = 0;
    char* to = stage;
    for_spans(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t m) {
      move_elements(r.item, to, r.item, x + offset, step, m);
      to += m * r.item;
    });
    r.kernels->blocks(stage, &start, 1, terms, 0, results, kPitch);
  }

  // Outputs that are columns: neighbours, or where they have hardly any terms those of several
  // axes.
  void columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const bool is_wide = r.layout == Reducer::kColumns, is_narrow = r.layout == Reducer::kNarrow;
    const bool is_short = r.layout == Reducer::kSpread && r.is_dense;
    const int64_t step = last_stride(r.outputs);
    const auto for_outputs = [&](auto visit) {
      int64_t done = 0;
      for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t m) {
        visit(r.x + offset, done, m);
        done += m;
      });
    };
    const int64_t known = r.is_dense ? std::min(terms, a.has_shift ? kShiftTerms : 1) : terms;
    if (r.listed)
      std::copy_n(r.listed + term, terms, offsets);
    else
      offsets_of(r.terms, term, is_wide ? terms : known, offsets);
    find_shifts(terms, n, [&](int64_t i, double* to) {
      for_outputs([&](const char* x, int64_t done, int64_t m) {
        widen(*r.table, r.dtype, x + offsets[i], step, m, to + done);
      });
    });
    const bool is_folded = is_short || (is_wide && terms <= kFewTerms);
    settle(terms, n, [&] {
      for_outputs([&](const char* x, int64_t done, int64_t m) {
        if (is_folded)
          (is_short ? r.kernels->short_rows : r.kernels->few_rows)[terms - 1](
              x, offsets, m, shift + done, lanes + done, kPitch);
        else if (is_wide)
          wide(x, n, terms);
        else if (is_narrow)
          narrow(x, n, terms);
        else
          for (int64_t i = 0; i < terms; ++i)
            r.kernels->spread(x + offsets[i], step, m, shift + done, lanes + i * n + done, kPitch);
      });
      return is_folded ? int64_t{1} : terms;
    });
  }

  // Adds rows in bands, so that memory is read nearly in its own order: a lane takes all its rows
  // of a band at once.
  void wide(const char* x, int64_t n, int64_t terms) {
    constexpr int64_t kLanesAhead = 2;
    for (int64_t band = 0; band < terms; band += kFloatBand) {
      const int64_t height = std::min(kFloatBand, terms - band);
      for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, height); ++lane) {
        const int64_t first = band + lane, ahead = lane + kLanesAhead;
        const int64_t next = ahead < kLanes ? band + ahead : band + kFloatBand + ahead - kLanes;
        const int64_t beyond = is_far && next < terms ? offsets[next] - offsets[first] : 0;
        r.kernels->add_rows(x, offsets + first, kLanes, ceil_div(height - lane, kLanes), n, shift,
                            lanes + lane * n, kPitch, band == 0, beyond);
      }
    }
  }

  void narrow(const char* x, int64_t n, int64_t terms) {
    for (int64_t done = n; a.has_shift && done < kLanes * n; done *= 2)
      std::copy(shift, shift + done, shift + done);
    if (r.is_dense && last_stride(r.terms) > 0)
      dense(x + offsets[0], n, terms, true);
    else
      gathered(x, n, terms);
  }

  void add_rows(const char* x, const int64_t* at, int64_t rows, int64_t width, double* to,
                bool fresh) {
    r.kernels->add_rows(x, at, 1, rows, width, shift, to, kPitch, fresh, 0);
  }

  void gathered(const char* x, int64_t n, int64_t terms) {
    const int64_t step = last_stride(r.outputs), many = kGathered / n / kLanes * kLanes;
    const int64_t most =
        r.item == sizeof(uint16_t) ? std::max(many / kFloatBand, int64_t{1}) * kFloatBand : many;
    for (int64_t done = 0, m; done < terms; done += m) {
      m = std::min(most, terms - done);
      if (r.is_dense)
        move_elements(r.item, stage, r.item, x + offsets[0] + done * last_stride(r.terms), step,
                      m * n);
      for (int64_t i = 0; i < m && !r.is_dense; ++i)
        move_elements(r.item, stage + i * n * r.item, r.item, x + offsets[done + i], step, n);
      dense(stage, n, m, done == 0);
    }
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

// Reductions of which several blocks are read at once, in the order of memory: long rows, and terms
// that lie in segments, as a channel's do in NCHW.
//
// A segment is a contiguous piece of the terms of one output. The next segment in memory belongs to
// the next output; the next segment of the same output lies far away. Blocks are independent of
// segments: a block ends wherever it has its kReduceBlock terms. To go output by output, or block
// by block, would mean to jump after every 8 KiB, and the hardware's prefetcher would start anew
// each time. Instead, each output keeps the lanes of its unfinished block, and whole segments are
// read one after the other. Terms are added in the order of all reductions.
//
// Many blocks of a long row are one call, so that the memory is not left to wait for what happens
// between two of them.
struct SegmentInputs : BlockSource {
  static constexpr int64_t kPitch = kMostEnds * kMostSegments;
  static_assert(kPitch >= kBlocksAhead);
  const Reducer& r;
  OpenBlock open[kMostSegments];
  // The results of blocks that lie ahead, [block][output], and those of rows, [output][block].
  alignas(64) double made[kMostSets][kPitch];
  double of_rows[kMostSets][kBlocksAhead];
  int64_t from[kBlocksAhead];             // where the latter begin
  int64_t at[kMostSegments], first = -1;  // the outputs,
  int64_t begin = 0, end = 0, next = 0;   // the terms of these blocks, and the next ones to read

  explicit SegmentInputs(const Reducer& reducer) : r(reducer) {}

  Results block(int64_t output, int64_t n, int64_t term, int64_t terms) override {
    if (output != first || term < begin || term > end) start(output, n, term);
    const int64_t chunk = (r.partial ? r.chunk_blocks : r.chunk_blocks * r.chunks) * kReduceBlock;
    const int64_t last = std::min((term / chunk + 1) * chunk, r.terms.size);
    while (term >= end && next < last)
      r.layout == Reducer::kBlocks ? read_rows(n, last) : read_segments(n, last);
    if (term >= end) end_blocks(n, terms);
    return {made[0] + (term - begin) / kReduceBlock * n, nullptr, kPitch};
  }

 private:
  void start(int64_t output, int64_t n, int64_t term) {
    offsets_of(r.outputs, output, n, at);
    first = output, begin = end = next = term;
    for (int64_t k = 0; k < n && r.layout == Reducer::kSegments; ++k)
      std::fill_n(open[k].lanes, r.accumulator->sets * kLanes, -0.0);
  }

  // Whole blocks, or the last one.
  void read_rows(int64_t n, int64_t last) {
    const int64_t terms = std::min(kReduceBlock, last - next);
    const int64_t blocks = std::min((last - next) / terms, kBlocksAhead / n);
    const int64_t step = last_stride(r.terms);
    for (int64_t k = 0; k < n; ++k)
      for (int64_t b = 0; b < blocks; ++b)
        from[k * blocks + b] = at[k] + (next + b * kReduceBlock) * step;
    r.kernels->blocks(r.x, from, n * blocks, terms, r.ahead, of_rows[0], kBlocksAhead);
    for (int s = 0; s < r.accumulator->sets; ++s)
      for (int64_t k = 0; k < n; ++k)
        for (int64_t b = 0; b < blocks; ++b) made[s][b * n + k] = of_rows[s][k * blocks + b];
    begin = next;
    end = next += blocks * terms;
  }

  // A piece of a segment of each output.
  void read_segments(int64_t n, int64_t last) {
    const int64_t length = r.terms.length[r.terms.count - 1], held = next % kReduceBlock;
    const int64_t m = std::min({kMostEnds * kReduceBlock, length - next % length, last - next});
    int64_t offset;
    offsets_of(r.terms, next, 1, &offset);
    for (int64_t k = 0; k < n; ++k)
      add_terms(r.x + at[k] + offset, m, held, n, &open[k], made[0] + k);
    begin = next - held;
    next += m;
    end = next - next % kReduceBlock;
  }

  // Adds contiguous terms to a block that has `held` of them. The results of blocks that end go to
  // `to`, one `n` after the other.
  void add_terms(const char* x, int64_t terms, int64_t held, int64_t n, OpenBlock* block,
                 double* to) const {
    const int64_t start = 0;
    for (int64_t m; terms > 0; terms -= m, x += m * r.item, held = (held + m) % kReduceBlock) {
      m = std::min(terms, kReduceBlock - held);
      if (m == kReduceBlock) {
        r.kernels->blocks(x, &start, 1, m, r.ahead, to, kPitch);
        to += n;
        continue;
      }
      if (held == 0 && r.accumulator->has_shift) {
        r.table->widen[r.dtype](x, r.item, 1, &block->shift);
        block->shift = finite_or_zero(block->shift);
      }
      r.kernels->add_terms(x, m, held, block->shift, r.ahead, block->lanes);
      if (held + m < kReduceBlock) continue;
      r.kernels->end_terms(block->lanes, kReduceBlock, block->shift, to, kPitch);
      to += n;
    }
  }

  // Ends the last block of each output, which has no more than these terms.
  void end_blocks(int64_t n, int64_t terms) {
    for (int64_t k = 0; k < n; ++k)
      r.kernels->end_terms(open[k].lanes, terms, open[k].shift, made[0] + k, kPitch);
    begin = end;
  }
};

}  // namespace

void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions) {
  const Reducer& r = *reducer;
  const auto run = [&](BlockSource& inputs) {
    reduce_tasks(reducer, 1, inputs, index, partitions);
  };
  if (r.layout == Reducer::kBlocks || r.layout == Reducer::kSegments)
    with_frame<SegmentInputs>(r, run);
  else
    with_frame<ArrayInputs>(r, run);
}

}  // namespace fastact
