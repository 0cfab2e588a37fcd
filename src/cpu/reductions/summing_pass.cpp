// The sums of a fused pass (summing_pass.h).
#include "cpu/reductions/summing_pass.h"

#include <algorithm>

namespace fastact {

void set_channels(Reducer* r, const ChannelArray& to, int64_t channels, bool accumulate) {
  r->accumulate = accumulate;
  r->outputs.append(channels, 0, to.stride);
  const auto bits = reinterpret_cast<uintptr_t>(to.data) | uintptr_t(to.stride);
  set_output(r, to.data, to.dtype, bits % uintptr_t(item_size(to.dtype)) == 0);
}

void add_sum(ChannelSums* sums, const FusedPlan& plan, const ReduceTable* table,
             const ChannelArray& result, bool accumulate) {
  Reducer* r = &sums->each[sums->count++];
  const StridedOperands& s = plan.operands;
  const int64_t channels = plan.channels;
  set_accumulator(r, table, kItself, s.compute_dtype);
  set_channels(r, result, channels, accumulate);
  r->terms.size = s.size() / channels;
  r->row = channels;
  // All sums of a pass have the same tasks, and share the columns of one.
  for (int k = 0; k < sums->count; ++k) {
    Reducer* each = &sums->each[k];
    const int64_t most = kMostColumns / sums->count;
    if (s.is_channel_outer) {
      each->layout = Reducer::kRows;
      each->tile = std::clamp<int64_t>(ceil_div(channels, kFewTasks), 1, 64);
    } else {
      each->layout = Reducer::kColumns;
      const int64_t tiles = channels <= kShortRow ? 1 : ceil_div(channels, most);
      each->tile =
          tiles == 1 ? channels : std::min(most, ceil_div(ceil_div(channels, tiles), 16) * 16);
    }
    set_tile(each, each->tile);
    cut_terms(each);
  }
}

int64_t channel_workspace(const ArrayArgument& x, int axis) {
  const int64_t size = size_of(x);
  if (size == 0 || resolve_threads(size) == 1) return 0;
  const int64_t channels = axis < 0 ? 1 : x.shape[axis];
  const int64_t terms = size / channels;
  const int64_t chunks = ceil_div(terms, blocks_a_chunk(terms) * kReduceBlock);
  const bool enough = ceil_div(channels, kMostColumns) >= kFewTasks || chunks == 1;
  return enough ? 0 : chunks * channels * 2 * int64_t(sizeof(double));
}

}  // namespace fastact
