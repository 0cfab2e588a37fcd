// Rows: the loops of their kernels, and how these are launched.
//
// A family over rows reads each row by vectors of 16 bytes. Vector q of a row belongs to lane
// q % lanes, whatever the memory layout. The lanes of a short row are 1 to 32 threads of a warp, so
// that several rows share a block; those of a longer row are a block of up to kRowThreads, which
// hold the row in registers (held_rows.cuh). Rows that are longer still are cut into chunks, one
// block each: a statistic of each chunk, one kernel that merges them, and then what is made of it.
// The order of every addition is a function of the row's length and dtype alone, so the bits depend
// on neither the device nor the number of rows.
#pragma once

#include "cuda/core/device.h"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Parts of rows: chunks of `size` vectors.
struct RowChunks {
  int64_t size, count;
};

// Calls body(partition, task) for each chunk, which a block has.
template <class T, class Rows, class Body>
FASTACT_DEVICE void for_each_chunk(const Rows& rows, const RowChunks& chunks, Body body) {
  for (int64_t task = blockIdx.x; task < rows.count * chunks.count; task += gridDim.x) {
    const int64_t row = quotient(task, chunks.count),
                  begin = (task - row * chunks.count) * chunks.size;
    body(partition_of(row, begin, smaller(begin + chunks.size, vecs_of<T>(rows)), int(threadIdx.x),
                      rows.lanes, false),
         task);
  }
}

// Queues a kernel with as much dynamic shared memory as it needs, at most shared_of(kernel).most.
template <class... Parameters, class... Arguments>
void launch_with_shared(void (*kernel)(Parameters...), const Shape& shape, cudaStream_t stream,
                        const Arguments&... arguments) {
  if (shape.shared > shared_of(kernel).unasked) allow_shared(reinterpret_cast<const void*>(kernel));
  launch(kernel, shape, stream, arguments...);
}

}  // namespace
FASTACT_END_NAMESPACE
