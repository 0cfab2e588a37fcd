// Reductions whose terms lie in segments, as a channel's do in NCHW: many outputs at once, in
// the order of memory.
//
// A segment is a contiguous piece of the terms of one output. The next segment in memory belongs to
// the next output; the next segment of the same output lies far away. Blocks are independent of
// segments: a block ends wherever it has its kReduceBlock terms. To go output by output, or block
// by block, would mean to jump after every 8 KiB, and the hardware's prefetcher would start anew
// each time. Instead, each output keeps the lanes of its unfinished block, and whole segments are
// read one after the other. Terms are added in the order of all reductions.
#include <algorithm>

#include "cpu/core/scratch.h"
#include "cpu/reductions/reduce.h"

namespace fastact {
namespace {

constexpr int64_t kAtOnce = 64;   // outputs: the lanes of their sums fill 16 KiB
constexpr int64_t kMostEnds = 8;  // blocks that end within a piece, at most
constexpr int64_t kSegmentPiece = kMostEnds * kReduceBlock;  // terms of a segment at once

struct Segments {
  static constexpr int64_t kPitch = kMostEnds * kAtOnce;
  const Reducer& r;
  OpenBlock open[kAtOnce];
  alignas(64) double blocks[kMostSets][kPitch];
  alignas(64) double memory[2][2][kMostSets][kAtOnce];
  double shift[kAtOnce];

  explicit Segments(const Reducer& reducer) : r(reducer) {}

  // Outputs first .. first + n, of their chunks begin .. end.
  void run(int64_t first, int64_t n, int64_t begin, int64_t end) {
    int64_t at[kAtOnce];
    offsets_of(r.outputs, first, n, at);
    for (int64_t k = 0; k < n; ++k)
      std::fill_n(open[k].lanes[0], r.accumulator->sets * kLanes, -0.0);
    const int64_t chunk_terms = r.chunk_blocks * kReduceBlock;
    int64_t term = begin * chunk_terms;
    const int64_t last = std::min(end * chunk_terms, r.terms.size);
    for_spans(r.terms, term, last - term, [&](int64_t offset, int64_t, int64_t length) {
      for (int64_t done = 0, m; done < length; done += m, term += m) {
        m = std::min(kSegmentPiece, length - done);
        const int64_t block = term / kReduceBlock, held = term % kReduceBlock;
        for (int64_t k = 0; k < n; ++k)
          r.kernels->add_segment(r.x + at[k] + offset + done * r.item, m, held, r.ahead, &open[k],
                                 blocks[0] + k, kPitch, n);
        for (int64_t e = 0; e < (held + m) / kReduceBlock; ++e)
          add(first, n, block + e, kReduceBlock, e * n);
      }
    });
    if (const int64_t rest = last % kReduceBlock) {
      settle(n, rest);
      add(first, n, last / kReduceBlock, rest, 0);
    }
    if (!r.partial) store_results(r, first, n, local(0));
  }

  Results local(int i) { return {memory[i][0][0], memory[i][1][0], kAtOnce}; }

  // The results of blocks that have no more than these terms.
  void settle(int64_t n, int64_t terms) {
    const Accumulator& a = *r.accumulator;
    for (int64_t k = 0; k < n && r.kernels->end_segment; ++k)
      r.kernels->end_segment(&open[k], terms);
    for (int s = 0; s < a.sets; ++s)
      r.table->fold_each(open->lanes[s], sizeof(OpenBlock) / sizeof(double), n, blocks[s]);
    if (!a.settle) return;
    for (int64_t k = 0; k < n; ++k) shift[k] = open[k].shift;
    a.settle(shift, blocks[0], kPitch, terms, n, blocks[0], kPitch);
  }

  // The results of block `block`, of so many terms.
  void add(int64_t first, int64_t n, int64_t block, int64_t terms, int64_t from) {
    const int64_t chunk = block / r.chunk_blocks, within = block % r.chunk_blocks;
    const Results to = r.partial ? partial_of(r, chunk, first) : local(chunk > 0 ? 1 : 0);
    add_block(r, {blocks[0] + from, nullptr, kPitch}, terms, to, within * kReduceBlock, n);
    const bool is_end =
        within == r.chunk_blocks - 1 || block * kReduceBlock + terms == r.terms.size;
    if (is_end && chunk > 0 && !r.partial) add_chunk(r, to, chunk, local(0), n);
  }
};

}  // namespace

void reduce_segmented(const Reducer& r, int64_t index, int64_t partitions) {
  with_frame<Segments>(r, [&](Segments& segments) {
    const int64_t outputs = r.outputs.size, chunks = r.partial ? r.chunks : 1;
    const int64_t end = outputs * chunks * (index + 1) / partitions;
    for (int64_t i = outputs * chunks * index / partitions, n; i < end; i += n) {
      const int64_t chunk = i / outputs, first = i % outputs;
      const int64_t whole = outputs <= kAtOnce && first == 0 ? (end - i) / outputs : 0;
      if (whole > 0) {
        n = whole * outputs;
        segments.run(0, outputs, chunk, r.partial ? chunk + whole : r.chunks);
      } else {
        n = std::min({kAtOnce, outputs - first, end - i});
        segments.run(first, n, chunk, r.partial ? chunk + 1 : r.chunks);
      }
    }
  });
}

}  // namespace fastact
