// Rows: the loops of their kernels, and how these are launched.
//
// A family over rows reads each row by vectors of 16 bytes. Vector q of a row belongs to lane
// q % lanes, whatever the memory layout. The lanes of a short row are 1 to 32 threads of a warp, so
// that several rows share a block; those of a longer row are a block of up to kRowThreads. Rows of
// more than `split` vectors are cut into chunks, one block each: a statistic of each chunk, one
// kernel that merges them, a warp a row, and then what is made of it. The order of every addition
// is a function of the row's length and dtype alone, so the bits depend on neither the device nor
// the number of rows.
//
// What a thread has read it caches in shared memory, in slots of its own: it reads back only what
// it has written itself, and needs no barrier for that. Vectors beyond the capacity of shared
// memory are read again from global memory: more traffic, the same bits.
#pragma once

#include "cuda/core/device.h"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kWarpRow = 256;   // vectors, at most, of a row that one warp takes
constexpr int64_t kWideRow = 2048;  // vectors from which on a block has kRowThreads

// Parts of rows: chunks of `size` vectors.
struct RowChunks {
  int64_t size, count;
};

// Calls body(partition, idle) for each row that a thread has a part of. An idle thread takes part
// in shuffles and barriers and has no row.
template <class T, class Rows, class Body>
FASTACT_DEVICE void for_each_row(const Rows& rows, Body body) {
  for (int64_t first = int64_t(blockIdx.x) * rows.teams; first < rows.count;
       first += int64_t(gridDim.x) * rows.teams) {
    const int64_t row = first + int(threadIdx.x) / rows.lanes;
    const bool idle = row >= rows.count;
    body(partition_of(row, 0, vecs_of<T>(rows), int(threadIdx.x) % rows.lanes, rows.lanes, idle),
         idle);
  }
}

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

// The lanes of rows, and the threads of a block.
template <class Rows>
int set_lanes(Rows* rows, int64_t vecs, int lanes) {
  const int threads = lanes <= kWarp ? kThreadsOfNarrow : lanes;
  rows->lanes = lanes;
  rows->teams = threads / lanes;
  rows->per_lane = int(ceil_div(vecs, lanes));
  return threads;
}

}  // namespace
FASTACT_END_NAMESPACE
