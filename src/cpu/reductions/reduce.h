// Plans a reduction: which terms go to which output, in blocks that are the same for every layout.
//
// The kernels (reductions/kernels.h) define the order of addition over a single index r. Here the
// axes become that index, and the work is divided among the threads. A task is a span of
// neighbouring outputs with all their terms, which are added block by block. How a block is read
// depends on the layout:
//
//   kRows      The terms are contiguous. Each output's block is one call, or one call per
//              contiguous piece. Where the pieces are segments of 64 elements or more, many outputs
//              are summed at once, in the order of memory (reductions/segmented.h).
//   kColumns   The outputs are contiguous. A lane takes every 32nd row of a tile of columns, eight
//              rows at a time.
//   kNarrow    Few columns, or strided ones. 32 dense rows are treated as one row that holds every
//              lane, so that (1M, 3) is read as contiguously as anything. Rows that are not dense
//              are gathered first, some 2048 elements at a time.
//   kSpread    Hardly any terms and many outputs: an output is a column, and each lane has one
//              term.
//
// Where there are few tasks, the terms are cut into chunks as well, whose sums meet in a workspace.
// The chunks are a function of the number of terms alone, and every sum is the sum of its chunks in
// order, whether they met in a workspace or not: the bits depend neither on the threads nor on the
// workspace. A workspace takes 16 bytes for at least 2048 terms, and never more than 16 MiB.
//
// Terms that run backwards are added in the order of their axis, not of memory. Where all of them
// run backwards that costs nothing: kRows and kNarrow read from the end and reverse the lanes once
// a block.
//
// Measurements, and what was tried and rejected: docs/design/reductions.md.
#pragma once

#include "cpu/core/span_iterator.h"
#include "cpu/reductions/kernels.h"

namespace fastact {

constexpr int64_t kTile = 512;          // columns a task: 2 KiB of a float32 row
constexpr int64_t kNarrowTile = 64;     // columns up to which rows are joined
constexpr int64_t kMostColumns = 1024;  // columns a task, whoever makes them, at most
constexpr int64_t kMostOutputs = 256;   // outputs a task where they are not columns, at most
constexpr int64_t kFewTasks = 32;       // below, the terms are cut too

struct Reducer {
  enum Layout { kRows, kColumns, kNarrow, kSpread };

  const ReduceTable* table;
  const ReduceKernels* kernels;
  int dtype, y_dtype;
  int64_t item, y_item;
  const char* x;
  char* y;
  bool accumulate;      // y IN/OUT
  Axes outputs, terms;  // innermost last
  Layout layout;
  bool has_dense_terms;  // kRows, kSpread: contiguous, at least in pieces worth reading in place
  bool is_backward;      // kRows: contiguous from their end; kNarrow: so are the dense rows
  bool has_segments;     // kRows: in pieces (reductions/segmented.h)
  bool is_y_aligned;
  bool has_dense_rows;   // kNarrow: as in Reduction
  int64_t row;           // columns: outputs that are contiguous in x; else all of them
  int64_t tile;          // outputs a task, at most
  int64_t tasks;         // all tiles
  int64_t chunk_blocks;  // blocks a chunk
  int64_t chunks;        // of each output
  double* partial;       // [chunks][hi, lo][outputs], or null: chunks are not tasks of their own
};

// x and y as for plan_reduction; y has strides. blocks: one of table's.
void prepare(Reducer* reducer, const ReduceTable* table, const ReduceKernels* kernels,
             const Operand& x, const Operand& y, const bool* reduced, int dtype, int y_dtype,
             bool accumulate);

// Parts of `prepare`, for reductions whose terms do not lie in an array: where the results go, and
// how the terms, of which there are terms.size, are cut into chunks.
void set_output(Reducer* reducer, char* y, int dtype, bool is_aligned);
void cut_terms(Reducer* reducer);

// y OUT or IN/OUT += sums IN (n <= kMostColumns) of the outputs first .. first + n; errors: null
// for none.
void store_sums(const Reducer& reducer, int64_t first, int64_t n, const double* sums,
                const double* errors);

// Where a chunk's sums of the outputs from `output` on meet the others; their errors follow after
// outputs.size of them.
inline double* partial_of(const Reducer& r, int64_t chunk, int64_t output) {
  return r.partial + 2 * chunk * r.outputs.size + output;
}

// lanes IN/OUT [kLanes][n]: the last one first.
inline void reverse_lanes(double* lanes, int64_t n) {
  for (int64_t i = 0; i < kLanes / 2; ++i)
    std::swap_ranges(lanes + i * n, lanes + (i + 1) * n, lanes + (kLanes - 1 - i) * n);
}

// Bytes of scratch with which the terms can be cut too; 0 where that would not help.
int64_t workspace_size(const Reducer* reducer);

// The source of the terms: x, or what another kernel computes of its arrays.
struct BlockSums {
  // The sums of one block: terms term .. term + terms of each of the outputs first .. first + n, of
  // one reducer after the other. They stay valid until the next call.
  virtual const double* sums(int64_t first, int64_t n, int64_t term, int64_t terms) = 0;

 protected:
  ~BlockSums() = default;
};

// Visits the tasks of the index-th of `partitions` parts, as first output, number of outputs, and
// chunk (where chunks are tasks of their own), in memory's order: the tiles of a row, the chunks,
// the rows.
template <class Visit>
void for_tasks(const Reducer& r, int64_t index, int64_t partitions, Visit visit) {
  const int64_t tiles = ceil_div(r.row, r.tile), chunks = r.partial ? r.chunks : 1;
  const bool is_tile_inner = r.layout == Reducer::kColumns;
  const int64_t count = r.tasks * chunks;
  for (int64_t i = count * index / partitions; i < count * (index + 1) / partitions; ++i) {
    const int64_t row = i / (tiles * chunks), within = i % (tiles * chunks);
    const int64_t tile = is_tile_inner ? within % tiles : within / chunks;
    const int64_t chunk = is_tile_inner ? within / tiles : within % chunks;
    visit(row * r.row + tile * r.tile, std::min(r.tile, r.row - tile * r.tile), chunk);
  }
}

// Outputs first .. first + n of an array with the strides of reducer.y = hi + lo (null: 0),
// rounded; n <= kMostColumns.
void store_outputs(const Reducer& r, char* y, int64_t first, int64_t n, const double* hi,
                   const double* lo);

// The index-th of `partitions` parts of the work of reductions with terms of their own making. All
// `count` of them have the same tasks, of kMostColumns outputs together, at most.
void reduce_tasks(const Reducer* reducers, int count, BlockSums& source, int64_t index,
                  int64_t partitions);

// The index-th of `partitions` parts of the work; once they are all done, of merging the chunks,
// for which there is work only with a workspace.
void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions);
void merge_partition(const Reducer* reducer, int64_t index, int64_t partitions);

// As reduce_partition, of a reduction that has segments.
void reduce_segmented(const Reducer& reducer, int64_t index, int64_t partitions);

}  // namespace fastact
