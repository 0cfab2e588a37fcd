// Numbers that decide how fast the CPU's kernels are: the sizes of caches, how far ahead they
// prefetch, how much they take at a time, and from which size on another way of working is the
// faster one.
//
// All of them were measured; the pages of docs/design say how, and what else was tried. Results do
// not depend on them, unless a line says so: what bits depend on stands with the order that it
// defines (reductions/kernels.h, softmax/kernels.h). A length that one function alone
// needs stands there.
#pragma once

#include <cstdint>

namespace fastact {

// Caches, in bytes. ------------------------------------------------------------------------------

constexpr int64_t kCacheLine = 64;

// A second-level cache, of 1 MiB, still has this much of what was just written (bias.md, gates.md).
constexpr int64_t kL2Bytes = 3 << 18;

// An array up to this size stays in the caches between two passes over it, and is not prefetched
// (norms.md, softmax.md).
constexpr int64_t kNear = 2 << 20;

// This limit is for rows of channels that go by eight at a time: it and the output fit into the
// second-level cache. In the next one the hardware's prefetcher does not follow them (norms.md).
constexpr int64_t kNearRows = 512 << 10;

// Rows of norms backward that pass 2 takes together: their x and dy, and the same where no gradient
// of a parameter is wanted (norms.md).
constexpr int64_t kNormBandBytes = 2 << 20;
constexpr int64_t kSmallNormBand = 512 << 10;

// A norm's row of this size is read by the hardware's prefetcher alone.
constexpr int64_t kFarRow = 128 << 10;

// A batch norm whose passes both go channel by channel finds a channel of this size near.
constexpr int64_t kNearChannel = 128 << 10;

// A thread's exponentials of softmax.
constexpr int64_t kTileBytes = 256 << 10;

// From here on an output is written past the caches, on AMD's processors alone: they write memory a
// quarter faster without reading it first; Intel's take up to half as long again (norms.md).
constexpr int64_t kNontemporalBytes = 32 << 20;

// From here on memory is worth asking for huge pages, as NumPy does: its first touch is otherwise
// dominated by page faults.
constexpr int64_t kBigMemory = int64_t{4} << 20;

// Prefetches, in bytes. --------------------------------------------------------------------------

// How far ahead kernels prefetch contiguous elements.
constexpr int64_t kAhead = 2048;
constexpr int64_t kTermsAhead = 3 << 10;  // terms of a sum

// The size of an array from which that pays: of element-wise kernels, of sums over columns, and of
// sums over contiguous terms (activations.md, reductions.md).
constexpr int64_t kFarElements = 1 << 20;
constexpr int64_t kFarReduction = 1 << 20;
constexpr int64_t kFarTerms = 2 << 20;

// An output that is computed through buffers: from which size on it is prefetched, and how far. The
// hardware's prefetcher alone brought it in at half the rate of a plain loop (runtime.md).
constexpr int64_t kFarOutput = 24 << 20;
constexpr int64_t kOutputAhead = 4096;

constexpr int kLinesAhead = 4;         // cache lines of the next row of an iterator
constexpr int64_t kPrefetchStep = 64;  // elements between two batches of prefetches
constexpr int64_t kBlocksAhead = 128;  // blocks of long rows that one call of a sum reads, at most

// Elements at a time. ----------------------------------------------------------------------------

// Partial sums of a sum. The bits of all results depend on it: reductions/kernels.h has the order
// in which a sum adds its terms.
constexpr int kLanes = 32;

constexpr int64_t kBlock = 4096;     // one call of an element-wise kernel
constexpr int64_t kBuffered = 1024;  // an iterator's buffer: 3 operands of 8 bytes fill 24 KiB
constexpr int64_t kPiece = 1024;  // a chunk of a ChunkReader: of double, five buffers fill 40 KiB
constexpr int64_t kChunk = 128;   // 16-bit data that a kernel converts (simd/vector.h)
// Elements that are converted, mapped and rounded in registers: as many as leave room for a few
// coefficients of each.
constexpr int64_t kInRegisters = 32;
constexpr int64_t kGatePiece = 256;  // of a gate: of float, 25 buffers fill 25 KiB

// Rows and columns, in elements. -----------------------------------------------------------------

constexpr int64_t kIteratorRow = 64;  // from here on an iterator calls a kernel row by row
constexpr int64_t kGatheredRow = 16;  // below, an iterator gathers columns rather than rows
constexpr int64_t kShortRow = 64;     // columns: below, rows share a chunk wherever they lie
constexpr int64_t kTile = 512;        // columns a task of a sum: 2 KiB of a float32 row
constexpr int64_t kNarrowTile = 64;   // columns up to which the rows of a sum are joined

// Tasks. -----------------------------------------------------------------------------------------

// Elements that each thread must have before a second one pays (runtime.md).
constexpr int64_t kGrain = 8192;

constexpr int64_t kFewTasks = 32;          // below, the terms of a sum are cut too
constexpr int64_t kTasksPerPartition = 4;  // from here on uneven shares of the work matter little

}  // namespace fastact
