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
// Of a long row many blocks are one call, so that the memory is not left to wait for what happens
// between two of them.
#include <algorithm>

#include "common/reductions/moments.h"
#include "cpu/core/scratch.h"
#include "cpu/reductions/reduce.h"

namespace fastact {
namespace {

constexpr int64_t kMostEnds = 8;  // blocks that end within a piece of a segment, at most

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

void reduce_segmented(const Reducer& r, int64_t index, int64_t partitions) {
  with_frame<SegmentInputs>(
      r, [&](SegmentInputs& inputs) { reduce_tasks(&r, 1, inputs, index, partitions); });
}

}  // namespace fastact
