// Walking a reduction: which terms go to which output, in blocks that every layout shares.
//
// The kernels (reductions/kernels.h) define the order of addition over one index r; here the axes
// become that index, and the work is cut for the threads. A unit of work is a run of neighbouring
// outputs over all their terms, walked block by block; what a block costs depends on the layout:
//
//   kRows      terms contiguous: each output's block in one call, or piece by piece, or, in lines
//              of 64 elements and more, many outputs at once in memory's order
//              (reductions/segmented.h)
//   kColumns   outputs contiguous: a lane takes every 32nd row of a tile of columns, eight at once
//   kNarrow    few columns, or strided ones: 32 dense rows are one row that holds every lane, so
//              that (1M, 3) is read as contiguously as anything; rows that are not dense are
//              gathered first, some 2048 elements at a time
//   kSpread    hardly any terms, many outputs: an output is a column, and a lane one term of each
//
// Where units are few, the terms are cut into chunks as well, whose sums meet in a workspace. The
// chunks are a function of the number of terms alone, and every sum is the sum of its chunks in
// order whether they met there or not: the bits know nothing of threads and workspaces. A workspace
// takes 16 bytes for at least 2048 terms, and never more than 16 MiB.
//
// Terms that run backwards are met in the order of their axis, not of memory, which costs nothing
// where all of them do (kRows and kNarrow from their end, lanes turned once a block). Of float32 in
// the caches on one thread, as a ratio to the same array run through forwards, which would have
// other bits: (1024, 1024)[:, ::-1] over axis 1 1.2 (the prefetcher meets rows that go up and terms
// that go down), over both, gathered, 1.8; [::-1] over both 1.0 to 1.3.
//
// float32 on two AVX-512 threads, as a ratio to a copy of the same array (reading alone: 0.42):
//   (8192, 4096)      axis 0 0.53, axis 1 0.47, all 0.44      NCHW (32, 64, 56, 56)  0.51
//   (1M, 3)           axis 0 0.32, axis 1 0.72                NHWC (32, 56, 56, 64)  0.55
//   (3, 1M)           axis 0 0.72, axis 1 0.50                (128, 6, 24, 24)       0.85
// (1M, 3) over axis 1 and (3, 1M) over axis 0 write a third of what they read, which is 0.67 of the
// copy's bytes; the last is small enough (1.8 MB) for the second-level cache, where the threads'
// start counts too.
//
// In us, float32 on Zen 4, one and two threads, output by output and block by block with prefetches
// of our own; in lines, without them (reductions/segmented.h, simd/accumulators.h); and torch in
// the latter run:
//   NCHW (32, 64, 56, 56)   1632, 555    508, 338    864, 645 (of other runs: 1266, 308)
//   (128, 6, 24, 24)          49, 29      31, 18      31, 19
//   (8, 256, 14, 14)          55, 41      45, 24      32, 18
//   NHWC (32, 56, 56, 64)   1615, 617    827, 533    743, 699 (as rows of 32 joined ones: kNarrow)
// All figures vary by a fifth from run to run; 25 MB are nearly all of the third-level cache.
//
// Tried and rejected, on (8192, 4096) axis 0: one or four rows of columns at once (0.91 and 0.74
// where eight took 0.58); leaving prefetches to the hardware (0.58); tiles of 1024 columns (8 %
// slower). On contiguous terms prefetches of ours hurt, whatever the distance: of 25 MB one thread
// then adds up 28 to 46 GB/s, not 50, and two 53 to 85, not 94 (512 to 8192 bytes ahead).
#pragma once

#include "cpu/core/span_iterator.h"
#include "cpu/reductions/kernels.h"

namespace fastact {

constexpr int64_t kTile = 512;          // columns a unit: 2 KiB of a float32 row
constexpr int64_t kNarrowTile = 64;     // columns up to which rows are joined
constexpr int64_t kMostColumns = 1024;  // columns a unit, whoever makes them, at most
constexpr int64_t kMostOutputs = 256;   // outputs a unit where they are not columns, at most
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
  int64_t tile;          // outputs a unit, at most
  int64_t tasks;         // all tiles
  int64_t chunk_blocks;  // blocks a chunk
  int64_t chunks;        // of each output
  double* partial;       // [chunks][hi, lo][outputs], or null: chunks are not units of their own
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

// Where terms come from: x, or what another kernel makes of its arrays on the way.
struct BlockSums {
  // The sums of one block: terms term .. term + terms of each of the outputs first .. first + n.
  // They stay valid until the next call.
  virtual const double* sums(int64_t first, int64_t n, int64_t term, int64_t terms) = 0;

 protected:
  ~BlockSums() = default;
};

// Visits the units of the index-th of `partitions` parts, as first output, number of outputs, and
// chunk (where chunks are units of their own), in memory's order: the tiles of a row, the chunks,
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

// The index-th of `partitions` parts of the work of a reduction with terms of its own making.
void reduce_tasks(const Reducer& reducer, BlockSums& source, int64_t index, int64_t partitions);

// The index-th of `partitions` parts of the work; once they are all done, of merging the chunks,
// for which there is work only with a workspace.
void reduce_partition(const Reducer* reducer, int64_t index, int64_t partitions);
void merge_partition(const Reducer* reducer, int64_t index, int64_t partitions);

// As reduce_partition, of a reduction that has lines.
void reduce_segmented(const Reducer& reducer, int64_t index, int64_t partitions);

}  // namespace fastact
