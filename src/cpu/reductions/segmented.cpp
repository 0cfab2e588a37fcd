// The sums of segments (segmented.h): each output keeps the lanes of its unfinished block.
#include "cpu/reductions/segmented.h"

#include <algorithm>

namespace fastact {
namespace {

struct SegmentedSums {
  const Reducer& r;
  alignas(64) double lanes[kSegmentedOutputs * kLanes];
  alignas(64) double sums[kMostEnds * kSegmentedOutputs];
  alignas(64) double hi[kSegmentedOutputs], lo[kSegmentedOutputs];
  alignas(64) double chunk_hi[kSegmentedOutputs], chunk_lo[kSegmentedOutputs];

  explicit SegmentedSums(const Reducer& reducer) : r(reducer) {}

  void run(int64_t first, int64_t n, int64_t begin, int64_t end) {
    std::fill(lanes, lanes + n * kLanes, -0.0);
    for_segments(
        r, first, n, begin, end,
        [&](int64_t k, const char* x, int64_t m, int64_t held) {
          r.kernels->add_segment(x, m, held, lanes + k * kLanes, sums + k, n);
        },
        [&](int64_t e, int64_t block) { merge(first, n, block, sums + e * n); },
        [&](int64_t block, int64_t) {
          r.table->fold_each(lanes, kLanes, n, sums);
          merge(first, n, block, sums);
        });
    if (!r.partial) store_sums(r, first, n, hi, lo);
  }

  // The next block's sums. Where they begin a chunk they are copied, as is the first chunk.
  void merge(int64_t first, int64_t n, int64_t block, const double* made) {
    const int64_t chunk = block / r.chunk_blocks, within = block % r.chunk_blocks;
    double* const to = r.partial ? partial_of(r, chunk, first) : chunk > 0 ? chunk_hi : hi;
    double* const errors = r.partial ? to + r.outputs.size : chunk > 0 ? chunk_lo : lo;
    if (within > 0) {
      r.table->merge(made, nullptr, to, errors, n);
    } else {
      std::copy(made, made + n, to);
      std::fill(errors, errors + n, 0.0);
    }
    const bool is_end = within == r.chunk_blocks - 1 || (block + 1) * kReduceBlock >= r.terms.size;
    if (to == chunk_hi && is_end) r.table->merge(chunk_hi, chunk_lo, hi, lo, n);
  }
};

}  // namespace

void reduce_segmented(const Reducer& r, int64_t index, int64_t partitions) {
  SegmentedSums sums(r);
  for_segmented_tasks(r, index, partitions,
                      [&](int64_t first, int64_t n, int64_t begin, int64_t end) {
                        sums.run(first, n, begin, end);
                      });
}

}  // namespace fastact
