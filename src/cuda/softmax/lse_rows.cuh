// logsumexp and cross_entropy of long rows of 16 bits in whole aligned vectors: nothing is written
// that needs a second pass, so a row of any length goes by in rounds, and a block has a row.
#pragma once

#include "cuda/softmax/forward.cuh"
#include "cuda/softmax/running_peak.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Vectors of a round; the next round is on its way while one is computed.
constexpr int kLseVecs = 4;

// Threads of a row: folds and the row's numbers cost as much as several rounds.
inline int lse_lanes(int64_t vecs) {
  return power_of_two_from(ceil_div(vecs, 4 * kLseVecs), kRowThreads);
}

template <class T>
FASTACT_KERNEL_OF(kRowThreads, 2)
void lse_of_rows(FASTACT_GRID_CONSTANT const SoftmaxQuick rows, const KindOf<T, kNoY> op) {
  using C = Compute<T>;
  constexpr int vecs = kLseVecs;
  RowPart part{};
  part.row = blockIdx.x, part.lane = int(threadIdx.x), part.lanes = rows.lanes;
  const int64_t all = vecs_of<T>(rows);
  const auto enter = [&](int64_t first) {
    part.first = first;
    const int64_t here = all - first;
    part.count = here > (vecs - 1) * part.lanes ? vecs
                 : here > 0                     ? int(quotient(here - 1, part.lanes)) + 1
                                                : 0;
  };
  RunningPeak<T, true, 1> peak(rows);
  Words next[vecs];
  enter(part.lane);
  take_vecs<T>(rows, kX, part, T{}, next);
#pragma unroll 1
  while (part.count > 0) {
    Words x[vecs];
    const int count = part.count;
#pragma unroll
    for (int i = 0; i < vecs; ++i) x[i] = next[i];
    enter(part.first + vecs * part.lanes);
    if (part.count > 0) take_vecs<T>(rows, kX, part, T{}, next);
    peak.add(count, x);
  }
  int fold_index = 0;
  C max[1] = {peak.top[0]};
  fold(rows, max, fold_index, [](C a, C b) { return larger(a, b); }, -infinity<C>());
  const C m = reference_top(max[0]);
  peak.refer_to(0, m);
  const bool is_top = peak.top[0] == m;
  double sums[2] = {peak.sum[0] + (is_top ? 0.0 : peak.top_beside(0, m)), double(is_top)};
  fold_sums(rows, sums, fold_index);
  if (part.lane > 0) return;
  const RowSums of{double(max[0]), sums[0], sums[1], 0, 0};
  const Level<C> level = level_of<T>(of, terms_beside<T>(m, C(rows.up)), false, rows.up, true);
  double total[2] = {};
  op.end(rows, part.row, of, level, total);
  if (!op.totals) return;
  for (int k = 0; k < 2; ++k) store(op.totals + 2 * part.row + k, total[k]);
}

}  // namespace
FASTACT_END_NAMESPACE
