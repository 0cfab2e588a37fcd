// Sums whose terms lie in segments, as those of a channel in NCHW: many outputs at once, in the
// order of memory.
//
// A segment is a contiguous piece of the terms of one output. The next segment in memory belongs to
// the next output; the next segment of the same output lies far away. Blocks are independent of
// segments: a block ends wherever it has its kReduceBlock terms. To sum output by output, or block
// by block, would mean to jump after every 8 KiB, and the hardware's prefetcher would start anew
// each time. Instead, each output keeps the lanes of its unfinished block, and whole segments are
// read one after the other. The order of addition is that of all sums.
#pragma once

#include "cpu/reductions/reduce.h"

namespace fastact {

constexpr int64_t kSegmentedOutputs = 64;  // outputs at once: their lanes fill 16 KiB
constexpr int64_t kMostEnds = 8;           // blocks that end within a piece, at most
constexpr int64_t kSegmentPiece = kMostEnds * kReduceBlock;  // terms of a segment at once

// Visits the index-th of `partitions` parts of the work of a reduction with segments, as first
// output, number of outputs (<= kSegmentedOutputs), first chunk and its end.
template <class Visit>
void for_segmented_tasks(const Reducer& r, int64_t index, int64_t partitions, Visit visit) {
  const int64_t outputs = r.outputs.size, chunks = r.partial ? r.chunks : 1;
  const int64_t end = outputs * chunks * (index + 1) / partitions;
  for (int64_t i = outputs * chunks * index / partitions, n; i < end; i += n) {
    const int64_t chunk = i / outputs, first = i % outputs;
    const int64_t whole = outputs <= kSegmentedOutputs && first == 0 ? (end - i) / outputs : 0;
    if (whole > 0) {
      n = whole * outputs;
      visit(0, outputs, chunk, r.partial ? chunk + whole : r.chunks);
    } else {
      n = std::min({kSegmentedOutputs, outputs - first, end - i});
      visit(first, n, chunk, r.partial ? chunk + 1 : r.chunks);
    }
  }
}

// The segments of the outputs first .. first + n, of their chunks begin .. end:
//   add(k, x, m, at)     m terms at x of output k, whose block holds `at` of them already
//   end(e, block)        block number `block` is complete: the e-th that ended in what was added
//   rest(block, terms)   the last block, where it is shorter
template <class Add, class End, class Rest>
void for_segments(const Reducer& r, int64_t first, int64_t n, int64_t begin, int64_t end, Add add,
                  End end_block, Rest rest) {
  int64_t at[kSegmentedOutputs];
  offsets_of(r.outputs, first, n, at);
  const int64_t chunk_terms = r.chunk_blocks * kReduceBlock;
  int64_t term = begin * chunk_terms;
  const int64_t last = std::min(end * chunk_terms, r.terms.size);
  for_spans(r.terms, term, last - term, [&](int64_t offset, int64_t, int64_t length) {
    for (int64_t done = 0, m; done < length; done += m, term += m) {
      m = std::min(kSegmentPiece, length - done);
      const int64_t block = term / kReduceBlock, held = term % kReduceBlock;
      for (int64_t k = 0; k < n; ++k) add(k, r.x + at[k] + offset + done * r.item, m, held);
      for (int64_t e = 0; e < (held + m) / kReduceBlock; ++e) end_block(e, block + e);
    }
  });
  if (last % kReduceBlock > 0) rest(last / kReduceBlock, last % kReduceBlock);
}

}  // namespace fastact
