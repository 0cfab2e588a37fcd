// Plans a reduction: which terms go to which output, in blocks that are the same for every layout.
//
// A reduction is what is read (an array, or what another kernel computes: BlockSource), an
// accumulator (reductions/kernels.h), and where the results go (store_results). The kernels define
// the order over a single index r. Here the axes become that index, and the work is divided among
// the threads. A task is a span of neighbouring outputs with all their terms, which are added block
// by block. How a block is read depends on the layout:
//
//   kRows      The terms are contiguous. A block of several outputs is one call, or one call per
//              contiguous piece.
//   kBlocks    They are whole blocks of long rows: several blocks are one call, in the order of
//              memory.
//   kSegments  They lie in segments of 64 elements or more: many outputs are read at once, in the
//              order of memory (SegmentInputs of reduce_inputs.cpp).
//   kColumns   The outputs are contiguous. A lane takes every 32nd row of a tile of columns, eight
//              rows at a time, in bands of 256 rows: nearly in the order of memory.
//   kNarrow    Few columns, or strided ones. 32 dense rows are treated as one row that holds every
//              lane, so that (1M, 3) is read as contiguously as anything. Rows that are not dense
//              are gathered first, some 2048 elements at a time.
//   kSpread    Hardly any terms and many outputs: an output is a column, and each lane has one
//              term.
//
// Where there are few tasks, the terms are cut into chunks as well, whose results meet in a
// workspace. The chunks are a function of the number of terms alone, and every result is merged
// from its chunks in order, whether they met in a workspace or not: the bits depend neither on the
// threads nor on the workspace. Where there are still fewer than a few for each thread, tiles of
// columns are as narrow as it takes for equal shares (share_columns): a column's terms have one
// order, whatever tile it is in. A workspace takes 16 bytes of each number of a result (a sum is
// one, moments are two, moments that skip NaN three) for at least 2048 terms, and never more than
// 48 MiB.
//
// An accumulator with a shift reads the first term of a block before the block (of columns: the
// first row). One that takes two passes reads each block twice, then with the mean as its shift,
// and never goes by segments.
//
// Terms that run backwards are added in the order of their axis, not of memory: they are gathered
// first, as all are that are not contiguous.
//
// Measurements, and what was tried and rejected: docs/design/reductions.md.
#pragma once

#include "common/reductions/call.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/threads.h"
#include "cpu/reductions/kernels.h"

namespace fastact {

constexpr int64_t kMostColumns = 1024;  // columns a task, whoever makes them, at most
constexpr int64_t kMostOutputs = 256;   // outputs a task where they are not columns, at most
constexpr int64_t kMostSegments = 64;   // where they have segments: the lanes of sums fill 16 KiB

struct KernelTable;
struct Reducer;
struct Rescaled;

// The accumulator, and the dtype of the terms.
struct TermKernels {
  const ReduceTable* table;
  const Accumulator* accumulator;
  const ReduceKernels* kernels;  // the accumulator's, for the dtype that is read
  int dtype;
  int64_t item;
};

// The terms of an array: where they lie, and how a block of them is read. Reductions whose terms
// another kernel computes set the layout alone.
struct ArrayTerms {
  enum Layout { kRows, kBlocks, kSegments, kColumns, kNarrow, kSpread };

  const char* x;
  Layout layout;
  // The terms, or the rows of kNarrow, are contiguous, at least in pieces worth reading in place;
  // those rows may run backwards.
  bool is_dense = false;
  int64_t ahead = 0;                // bytes from a term to one that is prefetched; 0: none is
  const int64_t* listed = nullptr;  // where the terms lie, if no axes say it
};

// The tasks: how outputs and terms are cut, and where the results of chunks meet.
struct TaskGrid {
  Axes outputs, terms;        // innermost last
  int64_t row;                // columns: outputs that are contiguous in x; else all of them
  int64_t tile;               // outputs a task, at most
  int64_t tasks;              // all tiles
  int64_t chunk_blocks;       // blocks a chunk
  int64_t chunks;             // of each output
  double* partial = nullptr;  // [chunks][values, errors][sets][outputs]; null: chunks are no tasks
};

// An output has too few terms; its weights are none.
enum Degenerate : int { kTooFew = 1, kNoWeights = 2 };

// The results: where they go, and what becomes of them before.
struct ResultArrays {
  char* y;  // the sum, or the mean; null: not wanted
  int y_dtype;
  int64_t y_item;
  bool is_y_aligned;
  bool accumulate = false;  // y IN/OUT
  double divisor = 1;       // of the sum
  double initial = -0.0;    // what is added to the sum then
  // Each of these may be null, too.
  char* low;     // what the mean lost when it was rounded
  char* second;  // what `of_m2` says
  char* count;   // how many terms were not NaN
  OfM2 of_m2 = kNothing;
  double correction;
  bool skips = false;            // what does not count
  int* is_degenerate = nullptr;  // OUT: the bits of Degenerate; null: not asked
};

// A reduction: its plan.
struct Reducer : TermKernels, ArrayTerms, TaskGrid, ResultArrays {
  const Reducer* also = nullptr;  // has the same sums, and stores them in an array of its own
  // Finds the moments of an output once more, whose squares or sums left the range of double
  // (reductions/rescaled.h). Null: none can leave it, or a sum that does is an infinity.
  bool (*rescale)(const Reducer& reducer, int64_t output, Rescaled* to) = nullptr;
};

// Finds them in the array.
bool rescale_array(const Reducer& reducer, int64_t output, Rescaled* to);

// x and y as for plan_reduction; y has strides.
void prepare(Reducer* reducer, const ReduceTable* table, int what, const Operand& x,
             const Operand& y, const bool* reduced, int dtype, int y_dtype, bool accumulate);

// Prepares a sum; and the moments of elements that count once each.
void prepare(Reducer* reducer, const KernelTable& table, const SumCall& call);
void prepare(Reducer* reducer, const KernelTable& table, const MomentsCall& call);

// A part of that: where the results go, once the reducer's output is the call's model.
void set_moments(Reducer* reducer, const MomentsCall& call);

// Parts of `prepare`, for reductions whose terms do not lie in an array: what is accumulated, of
// values of `dtype`; where the results go; the outputs of a task; and how the terms.size terms are
// cut into chunks.
void set_accumulator(Reducer* reducer, const ReduceTable* table, int what, int dtype);
void set_output(Reducer* reducer, char* y, int dtype, bool is_aligned);
void set_tile(Reducer* reducer, int64_t tile);
void cut_terms(Reducer* reducer);
bool is_aligned(const Operand& x, int64_t item);

// to OUT (n) = numbers of any dtype at any address, `stride` bytes apart; n <=
// kPiece.
void widen(const ReduceTable& table, int dtype, const char* from, int64_t stride, int64_t n,
           double* to);

// visit(offset, step, how many) for pieces of terms term .. term + n.
template <class Visit>
void for_terms(const Reducer& r, int64_t term, int64_t n, Visit visit) {
  for (int64_t i = 0; r.listed && i < n; ++i) visit(r.listed[term + i], int64_t{0}, int64_t{1});
  if (r.listed) return;
  for_spans(r.terms, term, n,
            [&](int64_t offset, int64_t, int64_t m) { visit(offset, last_stride(r.terms), m); });
}

// Bytes of scratch with which the terms can be cut too; 0 where that would not help.
int64_t workspace_size(const Reducer* reducer);

// The numbers in which the chunks of a reducer meet whose terms are cut.
int64_t partial_size(const Reducer* reducer);

// The source of the terms: x, or what another kernel computes of its arrays.
struct BlockSource {
  // The results of one block, without errors: terms term .. term + terms of each of the outputs
  // first .. first + n, of one reducer after the other. They stay valid until the next call.
  virtual Results block(int64_t first, int64_t n, int64_t term, int64_t terms) = 0;

 protected:
  ~BlockSource() = default;
};

// Stores the wanted results of outputs first .. first + n, and overwrites `all` on the way; n <=
// kMostColumns.
void store_results(const Reducer& r, int64_t first, int64_t n, const Results& all);

// Stores an output once more, whose squares or sums left the range of double.
void store_rescaled(const Reducer& r, int64_t output, const Rescaled& found);

// y OUT or IN/OUT += sums IN (n <= kMostColumns) of the outputs first .. first + n; errors: null
// for none.
void store_sums(const Reducer& r, int64_t first, int64_t n, const double* sums,
                const double* errors);

// The index-th of `partitions` parts of the work of reductions with terms of their own making. All
// `count` of them have the same tasks, of kMostColumns outputs together, at most.
void reduce_tasks(const Reducer* reducers, int count, BlockSource& source, int64_t index,
                  int64_t partitions);

// The index-th of `partitions` parts of the work.
void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions);

// Gives reductions of one kind the partial results where the workspace has room for them, and then
// each thread its columns, or its outputs with segments. Bits do not depend on it.
void divide_work(Reducer* reducers, int count, char* workspace, int64_t bytes, int threads);

// Merges the chunks of reductions whose parts are done, where their terms were cut.
void merge_chunks(const Reducer* reducers, int count, int threads);

// Divides the work of a reduction, runs all its parts, and merges them.
template <class Plan>
void run_reduction(Plan* plan, void (*partition)(const Plan*, int64_t, int64_t), char* workspace,
                   int64_t bytes, int threads) {
  divide_work(plan, 1, workspace, bytes, threads);
  run_partitions(threads, partition, plan);
  merge_chunks(plan, 1, threads);
}

}  // namespace fastact
