// The inputs of a sum: reads the blocks of an array x in each layout (reduce.h).
#include <algorithm>
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/reduce.h"

namespace fastact {
namespace {

constexpr int64_t kOutputs = 256;    // outputs a task, where they are not columns, at most
constexpr int64_t kGathered = 2048;  // elements gathered at a time

struct ArrayInputs : BlockSums {
  const Reducer& r;
  alignas(64) double lanes[kLanes * kTile];
  alignas(64) double own_sums[kTile];
  alignas(64) char stage[kGathered * sizeof(double)];
  int64_t offsets[kReduceBlock];

  explicit ArrayInputs(const Reducer& reducer) : r(reducer) {}

  const double* sums(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    switch (r.layout) {
      case Reducer::kRows:
        return rows(first, n, term, terms);
      case Reducer::kSpread:
        return spread(first, n, terms);
      default:
        return columns(first, n, term, terms);
    }
  }

  const double* rows(int64_t first, int64_t n, int64_t term, int64_t terms) {
    int64_t at[kOutputs];
    offsets_of(r.outputs, first, n, at);
    if (r.has_dense_terms) {
      r.kernels->sum_blocks(r.x + term * r.item, at, n, terms, own_sums);
    } else if (r.is_backward) {
      r.kernels->sum_blocks_backward(r.x - term * r.item, at, n, terms, own_sums);
    } else {
      for (int64_t k = 0; k < n; ++k) gathered_row(r.x + at[k], term, terms, &own_sums[k]);
    }
    return own_sums;
  }

  void gathered_row(const char* x, int64_t term, int64_t terms, double* sum) {
    const MoveRow gather = gather_for(r.item);
    const int64_t step = last_stride(r.terms), start = 0;
    char* to = stage;
    for_spans(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t m) {
      if (step == r.item)
        memcpy(to, x + offset, m * r.item);
      else
        gather(to, x + offset, step, m);
      to += m * r.item;
    });
    r.kernels->sum_blocks(stage, &start, 1, terms, sum);
  }

  const double* spread(int64_t first, int64_t n, int64_t terms) {
    const int64_t step = last_stride(r.outputs);
    int64_t done = 0;
    if (r.has_dense_terms) {
      const int64_t low = r.is_backward ? (1 - terms) * r.item : 0;
      for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t m) {
        r.kernels->sum_short[terms - 1](r.x + low + offset, nullptr, m, own_sums + done);
        done += m;
      });
      return own_sums;
    }
    offsets_of(r.terms, 0, terms, offsets);
    for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t m) {
      for (int64_t i = 0; i < terms; ++i)
        r.kernels->spread(r.x + offset + offsets[i], step, m, lanes + i * n + done);
      done += m;
    });
    r.table->fold(lanes, terms, n);
    return lanes;
  }

  const double* columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const char* x = r.x;
    for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t) { x += offset; });
    if (r.layout == Reducer::kNarrow && r.has_dense_rows) {
      r.is_backward ? dense_backward(x - term * n * r.item, n, terms)
                    : dense(x + term * n * r.item, n, terms, true);
    } else {
      offsets_of(r.terms, term, terms, offsets);
      if (r.layout == Reducer::kColumns && terms <= kFewTerms) {
        r.kernels->sum_rows[terms - 1](x, offsets, n, own_sums);
        return own_sums;
      }
      r.layout == Reducer::kNarrow ? gathered(x, n, terms) : in_place(x, n, terms);
    }
    r.table->fold(lanes, terms, n);
    return lanes;
  }

  void in_place(const char* x, int64_t n, int64_t terms) {
    for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, terms); ++lane)
      r.kernels->add_rows(x, offsets + lane, kLanes, ceil_div(terms - lane, kLanes), n,
                          lanes + lane * n, true);
  }

  void gathered(const char* x, int64_t n, int64_t terms) {
    const MoveRow gather = gather_for(r.item);
    const int64_t rows = kGathered / n / kLanes * kLanes, step = last_stride(r.outputs);
    for (int64_t done = 0; done < terms; done += rows) {
      const int64_t m = std::min(rows, terms - done);
      for (int64_t i = 0; i < m; ++i)
        gather(stage + i * n * r.item, x + offsets[done + i], step, n);
      dense(stage, n, m, done == 0);
    }
  }

  // Dense rows of n columns: kLanes of them are one row that holds every lane.
  void dense(const char* x, int64_t n, int64_t terms, bool fresh) {
    const int64_t whole = terms / kLanes, rest = terms % kLanes;
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i < whole; ++i) at[i] = i * kLanes * n * r.item;
    if (whole) r.kernels->add_rows(x, at, 1, whole, kLanes * n, lanes, fresh);
    const int64_t end = 0;
    if (rest)
      r.kernels->add_rows(x + whole * kLanes * n * r.item, &end, 1, 1, rest * n, lanes,
                          fresh && whole == 0);
  }

  // The same of rows of which each touches the one before: in memory lane 31 comes first. What is
  // read so is reversed once a block.
  void dense_backward(const char* x, int64_t n, int64_t terms) {
    const int64_t whole = terms / kLanes, rest = terms % kLanes, row = n * r.item;
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i < whole; ++i) at[i] = -(i * kLanes + kLanes - 1) * row;
    if (whole)
      r.kernels->add_rows(x, at, 1, whole, kLanes * n, lanes, true);
    else
      std::fill(lanes, lanes + kLanes * n, -0.0);
    const int64_t end = -(terms - 1) * row;
    if (rest) r.kernels->add_rows(x, &end, 1, 1, rest * n, lanes + (kLanes - rest) * n, false);
    reverse_lanes(lanes, n);
  }
};

}  // namespace

void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions) {
  if (reducer->has_segments) return reduce_segmented(*reducer, index, partitions);
  with_frame<ArrayInputs>(
      *reducer, [&](ArrayInputs& inputs) { reduce_tasks(reducer, 1, inputs, index, partitions); });
}

}  // namespace fastact
