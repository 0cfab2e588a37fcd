// Iterates over strided operands in blocks of contiguous elements.
//
// A kernel wants contiguous data; an array may have any strides, zero and negative ones included. A
// TensorIterator is prepared once for the arrays of a call. It is then run over ranges of elements,
// each range by any thread. Element i means the same to every thread, so that no result depends on
// how the ranges were cut.
//
// Preparing merges and sorts the axes (common/core/elementwise_plan.h). Running takes the first of
// these ways that applies:
//   1. all operands are contiguous: the kernel reads and writes the arrays themselves;
//   2. all operands have contiguous rows that are not short: the same, one row at a time;
//   3. otherwise each strided operand passes through a buffer of kBuffered elements that stays in
//      the first-level cache. An input is never copied as a whole. What a broadcast repeats (a few
//      elements again and again, or one value many times) is gathered once and stays in its buffer.
//      A plain copy to a contiguous output needs no buffer.
//
// Blocks begin where the output crosses a cache line, and the few elements before that go with the
// first block: large NumPy arrays begin 16 bytes past a cache line, so that otherwise every 64-byte
// access would touch two. While a row is computed, the first cache lines of the next row are
// prefetched, since the hardware's prefetcher starts anew with each row.
//
// Measurements, and what was tried and rejected: docs/design/runtime.md.
#pragma once

#include "common/core/call.h"
#include "common/core/elementwise_plan.h"
#include "cpu/core/kernel_table.h"
#include "cpu/core/tuning.h"

namespace fastact {

struct TensorIterator : ElementwisePlan {
  ElementwiseKernel kernel;  // null: the first of two operands is copied to the second
  const double* parameters;
  int64_t head;  // elements before the output's first cache line boundary, if contiguous
  bool reads_output;
  int64_t ahead;                 // of the kernel's prefetches
  int64_t items[kMaxOperands];   // bytes an element; `item`, but for an operand of another dtype
  int64_t period[kMaxOperands];  // elements after which an operand begins anew, if few; else 0
  bool whole, rows;              // contiguous as a whole, or at least row by row
};

// Moves n elements of `item` bytes, whatever their alignment: to or from a dense buffer, as a rule.
void move_elements(int64_t item, char* to, int64_t to_stride, const char* from, int64_t from_stride,
                   int64_t n);

// IN/OUT: whether this thread computes a far array in parts, which are not near for being small
// (binding/native_loop.pyx).
bool& computes_parts();

// All operands have the same shape and dtype (checked by the caller). An input of another dtype,
// which cannot be contiguous as one of `dtype` is, gets its item size in `items` afterwards.
void prepare(TensorIterator* it, ElementwiseKernel kernel, const double* parameters, int dtype,
             bool reads_output, int operands, const Operand* arrays);

// The index-th of `partitions` equal parts of a prepared iterator, block by block. Parts are cut in
// elements and not in blocks: 50 000 float32 are 13 blocks, of which one of two threads would get
// 7. No result depends on where the cuts are.
void run_partition(const TensorIterator* it, int64_t index, int64_t partitions);

// Runs a kernel, or copies (null), over the arrays of a call, on as many threads as it is worth.
// arrays (count): each one of the shape of the last, which is written, or none. reads_output: the
// kernel adds to what stands there.
void run_elementwise(ElementwiseKernel kernel, const double* parameters, bool reads_output,
                     int count, const ArrayArgument* arrays);

// y OUT, or none, = one value, rounded to its dtype.
void fill(const ArrayArgument& y, double value);

}  // namespace fastact
