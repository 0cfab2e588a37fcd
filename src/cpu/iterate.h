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
//      in the first-level cache. No copy of an input is ever made.
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
// Tried and rejected, on 16M float32 of mish forward with two threads (ordinary stores 5.7 to
// 7 ms, memcpy of the same bytes 4.4 to 4.9): computing into a buffer of 0.5 to 16 KiB and
// streaming it past the caches (6.5 to 11 ms, and no better than even when every line is aligned);
// prefetching the next 2 to 16 KiB of every operand (9 to 12 ms).
#pragma once

#include "../common/walk.h"
#include "blocks.h"

namespace fastact {

constexpr int64_t kBlock = 4096;  // elements a call of a block function

struct Loop : Walk {
  Block block;
  const double* parameters;
  int64_t head;  // elements before the output's first cache line boundary, if contiguous
  bool reads_output;
  bool whole, rows;  // contiguous as a whole, or at least row by row
};

// Moves n elements of `item` bytes between rows and a dense buffer, whatever their alignment.
using MoveRow = void (*)(char* to, const char* from, int64_t stride, int64_t n);
MoveRow gather_for(int64_t item);   // stride is of `from`
MoveRow scatter_for(int64_t item);  // stride is of `to`

// All operands have the same shape and dtype (checked by the caller).
void prepare(Loop* loop, Block block, const double* parameters, int dtype, bool reads_output,
             int operands, const Operand* arrays);

// The index-th of `shares` equal parts of a prepared loop, block by block. Parts are cut in
// elements and not in blocks: 50 000 float32 are 13 blocks, of which one of two threads would get 7
// (12.9 us, and 11.8 by equal parts). What an element becomes does not depend on where the cuts
// are.
void run_share(const Loop* loop, int64_t index, int64_t shares);

}  // namespace fastact
