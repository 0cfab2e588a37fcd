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
#include "cpu/core/tuning.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE

// Vectors as wide as the instruction set has them: the one instruction of this kind that GCC 12 has
// no other word for.
#if defined(__AVX512F__)
typedef __m512i Streamed;
inline void stream(char* to, Streamed v) {
  _mm512_stream_si512(reinterpret_cast<Streamed*>(to), v);
}
#elif defined(__AVX__)
typedef __m256i Streamed;
inline void stream(char* to, Streamed v) {
  _mm256_stream_si256(reinterpret_cast<Streamed*>(to), v);
}
#elif defined(__SSE2__)
typedef __m128i Streamed;
inline void stream(char* to, Streamed v) { _mm_stream_si128(reinterpret_cast<Streamed*>(to), v); }
#endif

// to OUT, a cache line at its beginning, = from IN.
inline void stream_line(const char* from, char* to) {
#if defined(__SSE2__)
#pragma GCC unroll 4
  for (int64_t k = 0; k < kCacheLine; k += int64_t(sizeof(Streamed))) {
    Streamed v;
    memcpy(&v, from + k, sizeof v);
    stream(to + k, v);
  }
#else
  memcpy(to, from, kCacheLine);
#endif
}

// to OUT (bytes) = from IN (bytes). Whoever lets others read it has to fence first: these stores
// are not ordered with any that follow.
inline void store_nontemporal(const char* from, char* to, int64_t bytes) {
  int64_t done = 0;
  const int64_t head = int64_t(-reinterpret_cast<uintptr_t>(to) % kCacheLine);
  if (head + kCacheLine <= bytes) {
    memcpy(to, from, head);
    for (done = head; done + kCacheLine <= bytes; done += kCacheLine)
      stream_line(from + done, to + done);
  }
  memcpy(to + done, from + done, bytes - done);
}

FASTACT_END_NAMESPACE
