// Kernels that mix the steps of several vectors: for a chain of dependent steps, of which one
// vector alone leaves the processor waiting (docs/design/activations.md).
//
// The compiler mixes what it sees in one block of code, so that a loop over vectors must be
// unrolled; and AVX-512 alone has the registers.
#pragma once

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#define FASTACT_MIXED __attribute__((optimize("schedule-insns")))
// Writes loops out, up to four times (max-unroll-times, CMakeLists.txt).
#define FASTACT_UNROLLED __attribute__((optimize("unroll-loops")))
#define FASTACT_MIXED_LOOP __attribute__((optimize("schedule-insns", "unroll-loops")))
#else
#define FASTACT_MIXED
#define FASTACT_UNROLLED
#define FASTACT_MIXED_LOOP
#endif
