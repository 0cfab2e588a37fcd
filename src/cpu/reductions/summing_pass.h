// A fused pass (core/fused_pass.h) that also adds up what it writes, over all axes but the
// channels.
//
// The sums take the values of the chunks before these are rounded. They add the terms of the first
// array that is written in the order of reductions/reduce.h: for float32 and float64 they have the
// bits of a sum over the result.
#pragma once

#include "common/core/call.h"
#include "cpu/core/fused_pass.h"
#include "cpu/core/threads.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

constexpr int kMostSums = 2;      // of a pass
constexpr int64_t kMostRows = 8;  // of a lane at once

struct ChannelSums {
  Reducer each[kMostSums];  // the first `count` of them
  int count = 0;
};

// Sets the output of sums, one of each channel: the array, which is added to with accumulate.
void set_channels(Reducer* sums, const ChannelArray& to, int64_t channels, bool accumulate);

// One more sum: result OUT, or IN/OUT with accumulate, one element a channel.
void add_sum(ChannelSums* sums, const FusedPlan& plan, const ReduceTable* table,
             const ChannelArray& result, bool accumulate);

// Bytes of scratch with which one sum of each channel along an axis of x (-1: of all elements) can
// be divided among the threads that x is worth; at most.
int64_t channel_workspace(const ArrayArgument& x, int axis);

// Runs all partitions of a pass over `size` elements, whose `sums` share the workspace, if any.
template <class Job>
void run_with_sums(void (*partition)(const Job*, int64_t, int64_t), Job* job, char* workspace,
                   int64_t bytes, int64_t size) {
  ChannelSums& sums = job->sums;
  const int threads = resolve_threads(size);
  if (sums.count) divide_work(sums.each, sums.count, workspace, bytes, threads);
  run_partitions(threads, partition, job);
  merge_chunks(sums.each, sums.count, threads);
}

// A pass with sums of Op::kSums operands that are written. Op::compute(phase, lanes) computes a
// chunk. lanes: of each sum, to which it adds the values as the terms from `phase` on of a block;
// null, of several channels alone: it leaves the values of sum k at made[k], in the compute type,
// in the operand Op::kSummed[k] where that is written through, or in a buffer. Op::kTakesRows:
// where Op::takes_rows(), Op::compute_rows(row, count, column, n, lane, fresh) computes n columns
// of `count` rows of one lane, which are kLanes apart, and adds them to it (n numbers of each sum),
// one row after the other; fresh: the lane is written, not read.
template <class Op>
struct SummingPass : Op, BlockSource {
  static constexpr int kSums = Op::kSums;
  static constexpr int64_t kMost = kMostColumns / kSums;
  static constexpr int64_t kL2Share = kL2Bytes / kSums;

  alignas(64) double lanes[kSums][kLanes * kMost];
  alignas(64) double totals[kMostColumns];

  using Op::go, Op::made, Op::plan, Op::s, Op::sums;
  using Op::Op;

  const ReduceKernels& kernels() const { return *sums.each[0].kernels; }
  const ReduceTable& table() const { return *sums.each[0].table; }

  Results block(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    if (s.is_channel_outer) {
      channel_rows(first, n, term, terms);
      return {totals, nullptr, 0};
    }
    columns(first, n, term, terms);
    for (int k = 0; k < kSums; ++k) table().fold(lanes[k], terms, n);
    if (kSums == 1) return {lanes[0], nullptr, 0};
    for (int k = 0; k < kSums; ++k) std::copy(lanes[k], lanes[k] + n, totals + k * n);
    return {totals, nullptr, 0};
  }

 private:
  // A channel's terms are columns of its rows. Its neighbours' rows are next to them.
  void channel_rows(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const int64_t columns = s.columns.size;
    for (int k = 0; k < kSums; ++k) std::fill(lanes[k], lanes[k] + n * kLanes, -0.0);
    for (int64_t done = 0; done < terms;) {
      const int64_t outer = (term + done) / columns, column = (term + done) % columns;
      const int64_t m = std::min(terms - done, columns - column);
      const int64_t row = outer * plan.channels + first;
      if (m == columns && columns < kShortRow && n > 1) {
        short_rows(row, n, done);
      } else {
        const int64_t on = column + m < columns ? m : plan.channels * columns - column;
        for (int64_t i = 0; i < n; ++i)
          long_row(row + i, column, m, done, i, i + 1 < n ? columns : on - i * columns);
      }
      done += m;
    }
    for (int k = 0; k < kSums; ++k)
      for (int64_t i = 0; i < n; ++i)
        kernels().end_terms(lanes[k] + i * kLanes, terms, 0, totals + k * n + i, 0);
  }

  // next: elements from its start to the start of whichever row is next.
  void long_row(int64_t row, int64_t column, int64_t m, int64_t phase, int64_t output,
                int64_t next) {
    double* to[kSums];
    for (int k = 0; k < kSums; ++k) to[k] = lanes[k] + output * kLanes;
    for (int64_t done = 0, k; done < m; done += k) {
      k = std::min(kPiece, m - done);
      go(row, column + done, k, done + k < m ? k : next - done);
      this->compute(phase + done, to);
    }
  }

  void short_rows(int64_t row, int64_t n, int64_t phase) {
    const int64_t columns = s.columns.size, most = kPiece / columns;
    for (int64_t done = 0, m; done < n; done += m) {
      m = std::min(most, n - done);
      go(row + done, 0, m * columns, m * columns);
      this->compute(0, nullptr);
      for (int k = 0; k < kSums; ++k)
        for (int64_t i = 0; i < m; ++i)
          kernels().add_terms(made[k] + i * columns * s.compute_item, columns, phase, 0, 0,
                              lanes[k] + (done + i) * kLanes);
    }
  }

  // The j-th of m rows, or lanes, that are visited. Every other tile begins amid them: neighbours
  // share a cache line in each row, and threads that came to it at the same time would take it from
  // each other.
  static int64_t turned(int64_t j, int64_t m, bool turns) { return turns ? (j + m / 2) % m : j; }

  bool reads_back() const {
    bool all = true;
    for (int k : Op::kSummed) all &= this->is_written_through(k);
    return all;
  }

  // Columns of a tile, a band of rows after the other, nearly in the order of memory. Rows of few
  // channels are joined to longer ones, which hold several lanes. Where what is written holds what
  // is added up, it is read again from the second-level cache, several rows of a lane at once:
  // lanes are not read and written for every one. An op that takes rows adds these up itself.
  void columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    int64_t joined = plan.channels <= kShortRow ? kLanes : 1;
    while (joined * n > kPiece) joined /= 2;
    bool takes_rows = false, is_read_back = reads_back();
    if constexpr (Op::kTakesRows) takes_rows = plan.channels > kShortRow && Op::takes_rows();
    for (int k : Op::kSummed) is_read_back &= joined == 1 || s.is_flat[k];
    const int64_t width = joined * n, every = kLanes / joined, whole = terms / joined;
    const bool turns = first / sums.each[0].tile % 2;
    const int64_t fit = kL2Share / (kLanes * n * s.compute_item);
    const int64_t deep = takes_rows     ? kMostRows
                         : is_read_back ? std::clamp<int64_t>(fit, 1, kMostRows * joined)
                                        : 0;
    const int64_t band = std::max<int64_t>(deep, 1) * every;
    int64_t at[kSums][kMostRows * kLanes] = {};
    for (int64_t done = 0, m; done * joined < terms; done += m) {
      m = done < whole ? std::min(band, whole - done) : 1;
      const int64_t many = done < whole ? width : terms % joined * n;
      const auto add = [&](const char* const* from, int64_t i, int64_t rows) {
        for (int k = 0; k < kSums; ++k)
          kernels().add_rows(from[k], at[k] + i, every, rows, many, nullptr,
                             lanes[k] + ((done + i) & (every - 1)) * width, 0, done + i < every, 0);
      };
      const char* start[kSums] = {};
      for (int64_t j = 0; !takes_rows && j < m; ++j) {
        const int64_t i = turned(j, m, turns);
        go(term + (done + i) * joined, first, many, joined > 1 ? many : s.columns.size);
        this->compute(0, nullptr);
        if (j == 0 || !deep) std::copy(made, made + kSums, start);
        for (int k = 0; k < kSums; ++k) at[k][i] = made[k] - start[k];
        if (!deep) add(start, i, 1);
      }
      const int64_t groups = std::min(m, every);  // of rows that are one lane's, or some lanes'
      for (int64_t j = 0; deep && j < groups; ++j) {
        const int64_t i = turned(j, groups, turns), rows = ceil_div(m - i, every);
        if (!takes_rows) add(start, i, rows);
        if constexpr (Op::kTakesRows) {
          double* to[kSums];
          for (int k = 0; k < kSums; ++k) to[k] = lanes[k] + i * n;
          if (takes_rows) Op::compute_rows(term + done + i, rows, first, n, to, done == 0);
        }
      }
    }
  }
};

// The index-th of `partitions` parts of a pass with sums. After all of them: merge_chunks.
template <class Op, class Job>
void run_summing_pass(const Job* job, int64_t index, int64_t partitions) {
  with_frame<SummingPass<Op>>(*job, [&](SummingPass<Op>& pass) {
    reduce_tasks(job->sums.each, Op::kSums, pass, index, partitions);
  });
}

}  // namespace fastact
