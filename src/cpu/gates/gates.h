// Recurrent gates: forward and backward in one pass over memory each (common/gates.h).
//
// Packed arrays (..., G H) hold G gates of H columns side by side, in an order of the caller's: a
// gate is the same array from another column on, and nothing is ever gathered to be taken apart.
// All axes but the last are rows, each array with strides of its own, so that a step of a sequence,
// or a gate slice, is read where it lies. The kernels (gates/kernels.h) run over rows of columns;
// arrays of 16 bits, strided columns, what is added to, and short rows, which are joined, pass
// through buffers of kGatePiece elements that stay in the first-level cache.
//
// Both biases are added up once a thread and tile of columns, and are one row in the kernels; where
// there is none, it is a row of -0, which changes nothing it is added to.
//
// dbias is the sum over all rows, in the order and with the bits of bias_grad
// (reductions/kernels.h): of gradients before they are rounded, which are found in the second-level
// cache. A unit of work is then a tile of columns, all its gates, over a chunk of the rows
// (gates/bias_grad.cpp), or where there is one block of rows and many threads, some of its rows.
// But where a row is more than such a tile, and its gradients more than the cache, the tile's rows
// are pages apart, and those of a power of two share their place in the cache: gradients of float
// and double are then stored by whole rows first, and summed in a second pass as bias_grad would.
//
// float32 on two AVX-512 threads, as torch eager's chain of operations under no_grad takes times
// that (docs/results/bench.md):
//   lstm, rows x H           (256, 64)   (64, 512)   (256, 1024)   (16384, 1024)
//     forward                6.5         6.5         3.9           11.8
//     backward with dbias    7.3         4.2         2.9           6.5
//   gru
//     forward                5.6         7.0         4.4           13.5
//     backward with dbias    6.3         3.9         3.2           7.7
//
// The floor of forward in the caches is arithmetic: the five activations of an lstm's element alone
// take 5 x 4.3 = 21.5 ns for 16 of them. What made the difference: tanh(c), which waits for all of
// c's chain, in a second loop over 256 columns that the first-level cache still holds (27.6 -> 23.3
// ns for 16 elements).
//
// backward with dbias in two passes, as a ratio to without, one thread: (256, 1024) 2.3 -> 1.3,
// (2048, 1024) 1.8 -> 1.2, (256, 512) 2.3 -> 1.1 (of the first, 1.0 ms of 1.3 went to the kernel,
// which takes 0.55 ms by whole rows).
//
// Threads share one block of rows, all columns of them, rather than take tiles of columns, whose
// borders are cache lines that two threads write to: each gate has its own in each row, wherever an
// array begins between lines, as malloc's large ones do. Which rows, decides how many lanes the
// last thread fetches from the others (Parts in gates/bias_grad.cpp). Two threads of an EPYC (Zen
// 4), float32, against tiles of columns, in us, medians of two runs:
//             (64, 256)         (64, 512)          (256, 256)
//   lstm      36-42 -> 28-29    80-90 -> 44-48     97-104 -> 72-86
//   gru       35-38 -> 28       136-138 -> 55-69   105-109 -> 73-83
// By runs of 1, 2, 4 and 16 rows, the best of five: (64, 512) 46, 33, 33, 44; of 1, 4, 8 and 16:
// (256, 64) 40, 29, 25, 19.
//
// Tried and rejected: the quotients of two activations by one division, with Markstein's correction
// (35 ns for 16 elements against 27.6).
#pragma once

#include "common/gates/gates.h"
#include "cpu/core/kernel_table.h"
#include "cpu/gates/kernels.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

constexpr int kMostGates = 4;

// Gates that a packed array of a kind holds, and one of those that are kept.
int gates_of(int kind);
int saved_gates_of(int kind);

// What one call is about; arrays without data are not there.
struct GateArrays {
  Operand gates, recurrent, state, cell, hidden, cell_gradient;  // slots of gates/kernels.h
  Operand gates_out, recurrent_out, state_out;
  Operand bias, recurrent_bias;
  int bias_dtype, recurrent_bias_dtype;
  const int* gate_order;  // of each gate of the kernels in packed arrays
};

struct Gates {
  // One gate of an array, or a state; strides in bytes, those of rows in the batch's axes.
  struct GateOperand {
    char* data;
    int64_t column;
    int64_t step[kMaxAxes];
    bool is_dense, is_direct;  // a row's columns lie side by side; and need no conversion
  };
  // One gate of a bias, or of both, in the row of the kernels.
  struct Bias {
    const char* data[2];
    int64_t stride[2];
    int dtype[2];
  };

  const ConvertKernels* kernels;
  GateKernel kernel;
  int kind, dtype, compute_dtype;
  int64_t item, compute_item;  // bytes of an element, and of one in the compute type
  bool backward, accumulate;
  int64_t rows, columns;
  int axes;  // of the batch, merged, outermost first
  int64_t length[kMaxAxes];
  GateOperand operands[kGateOperands];
  Bias bias[kMostGates];
  int biases;      // rows of bias: gates, and q of gru
  bool moves;      // something passes through buffers
  bool lacks;      // something has a buffer as its stand-in
  bool is_joined;  // rows are short

  // Backward, if a gradient of a bias is wanted.
  Reducer sums[2];  // of dbias, of drecurrent_bias; y null: not wanted
  // One block of rows, whose lanes many threads share, and which meet in a workspace: parts of it
  // (0: it is not shared), and lanes of a part that lie side by side.
  int64_t parts, part_lanes;
  int64_t tile;  // columns a unit
  int64_t tiles;
  int gate_order[kMostGates];
};

// backward: else forward. recomputes: backward has what forward has.
// arrays: state leads; every one has its shape but for the last axis of packed ones.
void prepare(Gates* gates, const KernelTable* table, int kind, int dtype, bool backward,
             bool recomputes, bool accumulate, const GateArrays& arrays);

// After `prepare`: gradients of the biases, which have their dtypes; without data: not wanted.
void prepare_gate_sums(Gates* gates, const ReduceTable* table, const Operand* sums,
                       const int* dtypes);

// Whether the biases' gradients are to be summed of those that were stored, in a pass of its own:
// units of some columns only would go through rows that are too far apart.
bool gate_sums_apart(int kind, int dtype, int64_t rows, int64_t columns, int threads);

// Bytes of scratch with which so many threads can share sums; 0 where that would not help.
int64_t gate_workspace_size(int kind, int dtype, int64_t rows, int64_t columns, int threads);
// After prepare_gate_sums: cuts the sums for so many threads, or for as many as `bytes` of
// workspace are enough for: whoever sized it may have counted other threads. Whether it is used,
// and merge_gate_sums is to follow; the bits are the same if not.
bool use_workspace(Gates* gates, char* workspace, int64_t bytes, int threads);

// The index-th of `partitions` parts of the work.
void gate_partition(const Gates* gates, int64_t index, int64_t partitions);
void gate_sum_partition(const Gates* gates, int64_t index, int64_t partitions);
// Once all parts of the latter are done: what they left in the workspace, if there is one.
void merge_gate_sums(const Gates* gates);

}  // namespace fastact
