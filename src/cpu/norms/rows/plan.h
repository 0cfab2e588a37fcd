// The norms over units whose elements a thread walks one unit at a time: forward and backward.
//
// A unit (common/norms.h) is a line of StridedOperands (core/chunk_reader.h), its elements are the
// columns, and the work is done chunk by chunk in the compute type, the activation's block function
// on a chunk that lies in the first-level cache: no norm knows any activation.
//
//   forward    pass 1 over the unit: its moments (reductions/moment_kernels.h) or its sum of
//   squares
//              pass 2, from the cache: z = xhat w + b, f in place, stored
//   backward   pass 1: p = dy f'(z), the sums of p w and p w xhat
//              pass 2, from the cache: dx, and the sums of the parameters
//
// How parameters go with the elements of a unit is one of four kinds:
//
//   kOne    one weight and one bias a unit (instance_norm)
//   kRow    one an element (layer_norm, rms_norm): up to 16 units, a band, take pass 2 chunk by
//           chunk, so that a chunk of the parameters' sums stays in the first-level cache for all
//   kRuns   one a run of neighbours (group_norm of NCHW): its two sums serve dx and the parameters
//   kMixed  anything else: the parameters are spread over a chunk, the sums gathered from it
//
// A fifth kind walks all units of an example together, norms/channels/channels_last.h:
//
//   kColumns  channels come last: the channels are the columns, and the lines are pixels
//
// The parameters' sums are of the compute type within a band and double beyond it, of a fixed block
// of units each, merged in the order of the blocks: their bits do not depend on the number of
// threads. A workspace holds a row of sums a block, at most 32 of them and 16 MiB in all (of rows
// past a million elements: one).
//
// float32 on two AVX-512 threads, times as ratios to a copy of x, and in brackets backward as a
// ratio to its three passes, measured beside other work:
//   layer_norm  (4096, 768) 1.2 (2.0)   (64, 65536) 1.5 (2.4)   (8192, 4096) 1.15 (1.26)
//   group_norm (32, 64, 56, 56) 1.7 (1.7)   instance_norm 1.8 (1.7)
// A unit is one thread's: (1, 10M) takes 4.7 (27).
//
// What made the difference beyond a last cache of 32 MiB, in times: backward asks for the next
// units during pass 2 ((4096, 768) 1 -> 0.91 and 0.95 in two runs, instance_norm of
// (32, 64, 56, 56) 1 -> 0.84, group_norm 1 -> 0.89; on another machine, with all arrays in a last
// cache of 480 MiB, (4096, 768) went from 2.2 to 2.3 copies; where x has no more than 2 MiB nobody
// asks), and goes through the units of a block as they lie in memory,
// their runs in one piece (with the asking: instance_norm 1 -> 0.71, group_norm 1 -> 0.79; in the
// caches 1 -> 0.56).
//
// What made the difference, in ratios to a copy: a y of 32 MiB or more goes past the caches
// ((8192, 4096) forward 1.50 -> 1.10; at 16 MiB it loses), vectors aligned to dx (NumPy's big
// arrays begin 16 bytes into a line, so that every vector of 64 bytes touched two: `finish` of 768
// columns gave 2.8 elements a ns and gives 5.5), and sums of a band in the compute type.
//
// Short units, on one thread: forward takes the roots of up to eight together, since each unit's
// two divisions and its root wait for each other (layer_norm (128, 32) 1 -> 0.80, (512, 64) 0.81,
// (32, 10) 0.85), and each of the three parts of the work for all of them in one call: the moments,
// the roots in one vector, the elements. Evenly spaced units are found by a multiplication, and
// empty axes are not copied (with the calls, (128, 32) again 1 -> 0.66 and 0.61 in two runs,
// rms_norm 0.52 and 0.54; alone, backward 0.87). Backward sums up to four whole units a call, whose
// lanes stay in registers, and looks up where they lie once ((128, 32) 0.75, (512, 64) 0.7, (32,
// 10) 0.87); to fold those sums side by side, and to divide them in one vector, changes nothing
// (1.01).
//
// Short runs (kOne, kRuns) that lie in one piece: all of a unit in one call a pass. group_norm of
// 32 groups, two threads, us a call before and after, forward | backward: (8, 256, 14, 14) 163 ->
// 49 | 262 -> 64, (128, 6, 24, 24), 3 groups, 80 -> 47 | 141 -> 77, (2, 2048, 7, 7) 178 -> 23 | 412
// -> 77; instance_norm backward 152 -> 116, 86 -> 73 and 250 -> 182 (forward one run a call gains
// nothing: 55 -> 62 at (128, 6, 24, 24)).
//
// Tried and rejected: a dx that goes past the caches ((8192, 4096) 1.23 -> 1.42, and 1.7 a unit at
// a time: its bursts take turns with reading; measured again, times in three runs, 0.94, 1.06 and
// 0.97, (4096, 768) 0.92 to 0.96, (64, 65536) 0.79, 0.89 and 0.98, but (2048, 1024), which the last
// cache holds, 1.15, and whoever reads dx next reads it from memory); pass 2 of one or two units at
// a time, where rows are 4 KiB apart and share their place in the cache ((64, 65536) 1.39 -> 1.58,
// 1.48; again, two at a time: times 0.92, (8192, 4096) 0.95, but (4096, 768) 1.05 and (2048, 1024)
// 1.15). Times of what else was rejected on two threads, which scatter by some 0.05: lines of y
// asked for with intent to write before pass 1 ((4096, 768) 1 -> 1.06, (64, 65536) 1.02, (8192,
// 4096) 1.11), those of dx a chunk ahead (1.02, 1.00, 1.00), y past the caches from 16 MiB on ((64,
// 65536) 0.96) or from 12 ((4096, 768) 1.24), pass 2 forward of two or four units side by side, so
// that a chunk of the parameters is read once ((64, 65536) 1.05, 1.09), and pass 1 backward of two
// or four (1.02, 1.02; (8192, 4096) 1.00, 1.02). On one thread at (128, 768), elements a ns: sums
// of g and of g xhat in double lanes 4.7 for that pass alone (with lanes of float 9); rows of sums
// for 4 units each (as much memory as x) half the speed of 16.
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/norms/rows/kernels.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

constexpr int64_t kLeastBlock = 16;  // units a row of sums, so that it costs little beside them

// Where one parameter lies.
struct NormParameter {
  const char* data = nullptr;  // null: none
  int dtype = 0;
  bool is_wide = false;         // of the compute type, and aligned
  bool is_direct = false;       // along a unit: side by side as well
  bool is_shared = true;        // by all units
  Axes across_rows, along_row;  // byte strides along the units and along their elements (x)
};

struct Norm {
  enum Forward { kX, kResidual, kSum, kY };  // the operands; those without data are not there
  enum Backward { kDy, kIn, kDSum, kDx };
  enum Kind { kPerRow, kPerElement, kPerSpan, kMixed, kChannelsLast };

  StridedOperands operands;
  const KernelTable* table;
  const NormKernels* kernels;
  ElementwiseKernel activation;  // of the compute type
  const double* parameters;
  bool is_identity;  // of which neither a value nor a derivative need be computed
  bool is_centred;   // else rms_norm
  bool accumulate;
  double eps;

  Kind kind;
  int64_t span;  // elements one after the other that share parameters (kOne, kRuns)
  NormParameter weight, bias;

  char *mean, *rstd;  // of the compute type; null: not there
  Axes row_stats;     // byte strides of mean (x) and rstd (y)

  Axes pixels;  // kColumns: byte strides of what is normalised (x)

  // backward: unit = batch * groups + group; parameter_count are the elements of a parameter.
  int64_t batch, groups, parameters_per_row;
  Axes parameter_index;    // the slot of an element of a unit (x)
  int64_t block, chunks;   // units of the batch in one row of sums, and how many of those
  double* partial;         // [dweight, dbias][chunks][parameter_count]
  Reducer dweight, dbias;  // where they go; y null: skipped
  int64_t parameter_count() const { return groups * parameters_per_row; }
  int64_t rows() const { return operands.rows.size; }
};

// Everything that a call says about its axes: of one rank, that of the arrays.
struct NormArrays {
  const Operand* arrays;  // the operands, in the order of the enum
  int lead;               // whose strides sort the axes: kX or kIn
  const bool* reduced;    // a flag an axis: is inside a unit
  const bool* of_parameter;
  // Of that rank, with stride 0 (or length 1) where they repeat; without data: not there.
  Operand mean, rstd, weight, bias, dweight, dbias;
  int weight_dtype, bias_dtype;
};

// Sets all but activation, parameters, is_identity, is_centred, eps and partial; accumulate is
// read.
void prepare(Norm* norm, const KernelTable* table, int dtype, const NormArrays& arrays);

// Bytes of scratch that the parameters' sums need; 0 where there are none.
int64_t norm_workspace_size(const Norm* norm);

// The index-th of `partitions` parts of either. After all of backward's: merge_norm_partition.
void norm_forward_partition(const Norm* norm, int64_t index, int64_t partitions);
void norm_backward_partition(const Norm* norm, int64_t index, int64_t partitions);
void merge_norm_partition(const Norm* norm, int64_t index, int64_t partitions);

}  // namespace fastact
