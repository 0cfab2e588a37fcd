// Prefetches of what comes next; compiled once per instruction set, with the kernels that use them.
//
// A kernel that reads a chunk, computes, and then reads the next one leaves the memory idle while
// it computes: the hardware's prefetcher stops at the end of a page, which is a chunk of float.
#pragma once

#include "common/core/macros.h"
#include "cpu/core/next_chunk.h"
#include "cpu/core/tuning.h"

FASTACT_BEGIN_NAMESPACE

// Some bytes, to be read or written soon.
FASTACT_HD void prefetch_range(const char* at, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += kCacheLine) __builtin_prefetch(at + byte, 0, 2);
}

// Prefetches kPrefetchStep elements.
FASTACT_HD void prefetch_next(const NextChunk& next, int64_t element) {
  for (const char* at : next.at)
    if (at) prefetch_range(at + element * next.item, kPrefetchStep * next.item);
}

FASTACT_END_NAMESPACE
