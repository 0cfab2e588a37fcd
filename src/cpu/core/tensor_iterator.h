// Iterates over strided operands in blocks of contiguous elements.
//
// A kernel wants contiguous data; an array may have any strides, zero and negative ones included.
// An iterator is prepared once for the arrays of a call. It is then run over ranges of elements,
// each range by any thread. Element i means the same to every thread, so that no result depends on
// how the ranges were cut.
//
// Preparing merges and sorts the axes (plan_operands of core/chunk_reader.h). Running takes the
// first of these ways that applies:
//   1. all operands are contiguous: the kernel reads and writes the arrays themselves;
//   2. all operands have contiguous rows that are not short: the same, one row at a time;
//   3. otherwise what is not in one piece passes through a buffer of kBuffered elements that stays
//      in the first-level cache. An input is never copied as a whole. What a broadcast repeats (a
//      few elements again and again, or one value many times) is gathered once and stays in its
//      buffer. A plain copy to a contiguous output needs no buffer.
//
// Blocks begin where the output crosses a cache line, and the few elements before that go with the
// first block: large NumPy arrays begin 16 bytes past a cache line, so that otherwise every 64-byte
// access would touch two. While a row is computed, the first cache lines of the next row are
// prefetched, since the hardware's prefetcher starts anew with each row.
//
// Measurements, and what was tried and rejected: docs/design/runtime.md.
#pragma once

#include "common/core/call.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"

namespace fastact {

// Moves rows of elements of `item` bytes, whatever their alignment: to or from a dense buffer, as a
// rule. move_elements moves n elements, which are one row.
void move_tile(int64_t item, char* to, Steps to_steps, const char* from, Steps from_steps,
               int64_t rows, int64_t columns);
inline void move_elements(int64_t item, char* to, int64_t to_stride, const char* from,
                          int64_t from_stride, int64_t n) {
  move_tile(item, to, {0, to_stride}, from, {0, from_stride}, 1, n);
}

// IN/OUT: whether this thread computes a far array in parts, which are not near for being small
// (binding/native_loop.pyx).
bool& computes_parts();

// Runs a kernel, or copies (null), over the arrays of a call, on as many threads as it is worth.
// arrays (count): each one of the shape of the last, which is written, or none. reads_output: the
// kernel adds to what stands there.
void run_elementwise(ElementwiseKernel kernel, const double* parameters, bool reads_output,
                     int count, const ArrayArgument* arrays);

// y OUT, or none, = one value, rounded to its dtype.
void fill(const ArrayArgument& y, double value);

}  // namespace fastact
