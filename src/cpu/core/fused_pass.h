// The fused element-wise engine: a pass reads several arrays of one shape and arrays with one
// element a channel, and writes some of the former. bias_act and gated activations are such passes;
// so is each of their gradients, which also adds up what it writes (reductions/summing_pass.h).
//
// The arrays are read chunk by chunk in the compute type (core/chunk_reader.h). An op says what it
// does to a chunk: a class with Chunks as its base and a function `compute`. A channel array (a
// bias) is converted once a thread and repeated, so that chunks of short rows ((1M, 3), channels
// last) find theirs at any column. Where the channels are rows (NCHW) it is spread over a chunk.
#pragma once

#include <algorithm>

#include "cpu/core/chunk_reader.h"
#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"

namespace fastact {

// The plan of every such pass.
struct FusedPlan {
  StridedOperands operands;
  bool accumulate;   // what is written is added to
  bool is_double;    // the compute type
  int64_t channels;  // 1 without channel arrays
};

// arrays, leader: as for plan_operands. channel: the axis of the channel arrays, or -1.
// sums: whether there will be any.
void plan_pass(FusedPlan* plan, const ConvertKernels* kernels, int dtype, int count,
               const Operand* arrays, int leader, int channel, bool sums);

// A caller's array along the channel axis, which is its own `axis`, as the plan meets it.
ChannelArray along_channels(const FusedPlan& plan, const Operand& a, int dtype, int axis = 0);

// A channel array in the compute type, wherever a chunk needs it.
class ChannelValues {
 public:
  ChannelValues(const FusedPlan& plan, const ChannelArray& array);

  // Values of n columns from one on; they begin anew after the last channel (not if they are many).
  const char* values_at(int64_t first, int64_t n);
  // Spread over n elements from (row, column) on, as many as their rows have columns.
  const char* spread(int64_t row, int64_t column, int64_t n);

 private:
  void read(int64_t first, int64_t n);

  const FusedPlan& plan;
  const ChannelArray array;
  bool is_direct = false, is_repeated = false;
  int64_t read_first = -1, read_count = 0;    // what `values` holds
  int64_t spread_row = -1, spread_count = 0;  // whose value `spread_` begins with, and how often
  alignas(64) char values[2 * kPiece * sizeof(double)];
  alignas(64) char spread_[kPiece * sizeof(double)];
};

// One thread's chunks.
struct Chunks {
  const FusedPlan& plan;
  const StridedOperands& s;
  ChunkReader reader;
  int64_t at_row = 0, at_column = 0, count = 0;
  int64_t ahead = 0;  // bytes from this chunk to the next one; 0: it is not prefetched. Of an
                      // array, not of a buffer
  const bool prefetches;

  explicit Chunks(const FusedPlan& p)
      : plan(p), s(p.operands), reader(p.operands), prefetches(prefetches_next_chunk()) {}

  void go(int64_t row, int64_t column, int64_t n, int64_t elements_ahead) {
    at_row = row, at_column = column, count = n;
    if (prefetches) ahead = elements_ahead * s.item;
    reader.go(row, column, n);
  }

  // One value an element of the chunk.
  const char* values_of(ChannelValues& channels) {
    return s.is_channel_outer ? channels.spread(at_row, at_column, count)
                              : channels.values_at(at_column, count);
  }

  // Whether all operands lie in one piece, so that a chunk may go on across the end of a row.
  bool are_all_flat() const {
    bool all = true;
    for (int k = 0; k < s.count; ++k) all &= !s.data[k] || s.is_flat[k];
    return all;
  }

  // Whether operand k can be written directly, and added up from there.
  bool is_written_through(int k) const { return !plan.accumulate && s.data[k] && s.is_direct[k]; }
};

// Op::compute() computes a chunk.
template <class Op>
struct Pass : Op {
  using Op::Op;

  void run(int64_t first, int64_t end) {
    const int64_t columns = this->s.columns.size;
    // Long rows of one channel are worth a chunk of their own: its value is not spread.
    const int64_t longest = this->s.is_channel_outer ? kPiece / 4 : kPiece;
    const bool joins = columns < kShortRow || (columns < longest && this->are_all_flat());
    int64_t row = first / columns, column = first % columns;
    for (int64_t n; first < end; first += n) {
      n = std::min(kPiece, end - first);
      if (!joins) n = std::min(n, columns - column);
      this->go(row, column, n, n);
      this->compute();
      row += (column + n) / columns;
      column = (column + n) % columns;
    }
  }
};

// The index-th of `partitions` parts of a pass without sums. Job: what the op is made of, with a
// FusedPlan `plan`.
template <class Op, class Job>
void run_pass(const Job* job, int64_t index, int64_t partitions) {
  const int64_t size = job->plan.operands.size();
  with_frame<Pass<Op>>(*job, [&](Pass<Op>& pass) {
    pass.run(begin_of_part(size, index, partitions), begin_of_part(size, index + 1, partitions));
  });
}

}  // namespace fastact
