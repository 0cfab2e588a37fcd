// Walking strided operands in blocks of contiguous elements.
//
// A block function wants contiguous data; an array may have any strides, zero and negative ones
// included. The loop over an array is prepared once (Loop) and then run over ranges of elements,
// each range by whichever thread; element i means the same for every thread, so nothing that a
// caller can see depends on how the range was cut.
//
// Preparing merges and sorts the axes (common/walk.h). Running then picks the first of
//   1. all operands contiguous: the block function reads and writes the arrays themselves;
//   2. rows contiguous in every operand and not short: the same, row by row;
//   3. anything else: each strided operand passes through a buffer of kStage elements that stays
//      in the first-level cache. No copy of an input is ever made. What a broadcast repeats, a few
//      elements again and again or one value many times, stays in its buffer.
//
// NumPy's big arrays begin 16 bytes past a cache line: every 64-byte access of theirs straddles
// two. Blocks therefore begin where the output crosses a line, and the few elements before that go
// with the first block (1M float32: 262 us without, 207 us with).
//
// A row that does not follow the one before it is new to the hardware's prefetcher: while a row is
// computed, the first lines of the next one are fetched. (4096, 768) of 1024 columns, float32, in
// the shared cache, against the speed of a contiguous array: mish 0.91 (without: 0.81), relu 0.77
// (0.75), where NumPy's copy of the same view has 0.87; rows of 64: mish 0.86, relu 0.73, copy
// 0.75.
//
// The gradient of a sum, float32, two threads, time before and after there were periods, values
// that stay, fills and tiles: (1M, 3) axis 0 1914 and 261 us, axis 1 2379 and 844; (3, 1M) axis 1
// 705 and 292; (32, 64, 56, 56) all but axis 1 1510 and 724; (128, 6, 24, 24) the same 89 and 45.
//
// Tried and rejected: streaming stores, through a buffer of 128 to 512 elements with the next
// inputs fetched meanwhile. Where the last cache (480 MB) holds the arrays, 16M float32: relu 0.88,
// tanh and mish 1.0 times the time; but a copy over the output then takes 1.6 times the time, for
// it is no longer in the cache, and new memory, which the system has just cleared there, 1.5 times.
// Beyond that cache, 64M: relu 0.7 to 0.96, mish 0.96 to 1.3. Computing into a buffer and `rep
// movsb` from there: 1.2 times the time.
#pragma once

#include "common/core/elementwise_plan.h"
#include "cpu/core/kernel_table.h"

namespace fastact {

constexpr int64_t kBlock = 4096;  // elements a call of a block function

struct TensorIterator : Walk {
  ElementwiseKernel kernel;
  const double* parameters;
  int64_t head;  // elements before the output's first cache line boundary, if contiguous
  bool reads_output;
  int64_t items[kMaxOperands];   // bytes an element; the walk's but for an operand of another dtype
  int64_t period[kMaxOperands];  // elements after which an operand begins anew, if few; else 0
  bool whole, rows;              // contiguous as a whole, or at least row by row
};

// Moves n elements of `item` bytes between rows and a dense buffer, whatever their alignment.
using MoveRow = void (*)(char* to, const char* from, int64_t stride, int64_t n);
MoveRow gather_for(int64_t item);   // stride is of `from`
MoveRow scatter_for(int64_t item);  // stride is of `to`

// All operands have the same shape and dtype (checked by the caller). An input of another dtype,
// which cannot be contiguous as one of `dtype` is, gets its item size in `items` afterwards.
void prepare(TensorIterator* it, ElementwiseKernel kernel, const double* parameters, int dtype,
             bool reads_output, int operands, const Operand* arrays);

// The index-th of `partitions` equal parts of a prepared loop, block by block. Parts are cut in
// elements and not in blocks: 50 000 float32 are 13 blocks, of which one of two threads would get 7
// (12.9 us, and 11.8 by equal parts). What an element becomes does not depend on where the cuts
// are.
void run_partition(const TensorIterator* it, int64_t index, int64_t partitions);

}  // namespace fastact
