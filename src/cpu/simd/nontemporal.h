// Stores that bypass the caches; compiled once per instruction set, with the kernels that use them.
//
// An ordinary store first reads the cache line that it writes to. For an array that will have left
// the cache before it is read again, that is half of all the traffic for nothing. Such a result is
// computed into a buffer that stays in the first-level cache, and the buffer is then stored in
// whole cache lines.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/core/macros.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE

// to OUT (bytes) = from IN (bytes). Whoever lets others read it has to fence first: these stores
// are not ordered with any that follow.
inline void store_nontemporal(const char* from, char* to, int64_t bytes) {
  int64_t done = 0;
#if defined(__SSE2__)  // the one instruction of this kind that GCC 12 has no other word for
  constexpr int64_t kLineBytes = 64, kStore = sizeof(__m128i);
  const int64_t head = int64_t(-reinterpret_cast<uintptr_t>(to) % kLineBytes);
  if (head + kLineBytes <= bytes) {
    memcpy(to, from, head);
    for (done = head; done + kLineBytes <= bytes; done += kLineBytes)
      for (int64_t k = done; k < done + kLineBytes; k += kStore)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + k),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k)));
  }
#endif
  memcpy(to + done, from + done, bytes - done);
}

FASTACT_END_NAMESPACE
