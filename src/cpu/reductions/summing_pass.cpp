// The sums of a fused pass (summing_pass.h).
#include "cpu/reductions/summing_pass.h"

#include <algorithm>

namespace fastact {

void add_sum(ChannelSums* sums, const FusedPlan& plan, const ReduceTable* table,
             const ChannelArray& result, bool accumulate) {
  Reducer* r = &sums->each[sums->count++];
  const StridedOperands& s = plan.operands;
  const int64_t channels = plan.channels, item = item_size(result.dtype);
  set_accumulator(r, table, kItself, s.compute_dtype);
  r->outputs = r->terms = Axes();
  r->outputs.append(channels, 0, result.stride);
  r->terms.size = s.size() / channels;
  r->accumulate = accumulate;
  const auto bits = reinterpret_cast<uintptr_t>(result.data) | uintptr_t(result.stride);
  set_output(r, result.data, result.dtype, bits % uintptr_t(item) == 0);
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
    each->tasks = ceil_div(channels, each->tile);
    cut_terms(each);
  }
}

int64_t channel_workspace(const ArrayArgument& x, int axis) {
  const int64_t size = size_of(x);
  if (size == 0 || resolve_threads(size) == 1) return 0;
  const int64_t channels = x.shape[axis];
  Reducer r;
  r.terms.size = size / channels;
  cut_terms(&r);
  const bool enough = ceil_div(channels, kMostColumns) >= kFewTasks || r.chunks == 1;
  return enough ? 0 : r.chunks * channels * 2 * int64_t(sizeof(double));
}

}  // namespace fastact
