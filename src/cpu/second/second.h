// Second derivatives of rows (common/second/second.h), one row after the other: its sums chunk by
// chunk, and then, from the cache, what it gives.
#pragma once

#include "common/second/second.h"

namespace fastact {

constexpr int kSecondLanes = 16;  // of each sum
constexpr int kMostSecondSums = 5;

// Chunks of the operands in the compute type.
struct SecondChunk {
  const char* in[4];  // saved, ddx, dy, weight or exp(saved)
  char* out[3];       // ddy, dsaved, terms, each one of `in` or disjoint from all
};

// Compiled once per instruction set; of the compute type, by kind.
struct SecondKernels {
  // lanes IN/OUT += the terms of n elements, of each sum on kSecondLanes.
  void (*sum[2][kSecondKinds])(const SecondChunk& chunk, int64_t n, const SecondRow& row,
                               double* lanes);
  void (*make[2][kSecondKinds])(const SecondChunk& chunk, int64_t n, const SecondRow& row);
};

}  // namespace fastact
