// The kernels of rotary position embedding (common/rotary/rotary.h), compiled once per instruction
// set: they turn the pairs of many rows.
#pragma once

#include "common/core/operand.h"
#include "common/rotary/rotary.h"

namespace fastact {

// Rows of pairs: of each array but the positions (RotaryCall::Data) where it begins, and how many
// bytes further the next row does.
struct PairRows {
  char* at[RotaryCall::kArrays];
  int64_t step[RotaryCall::kArrays];
  int64_t rows, pairs;
  double sign[2];  // of sines, in what a and in what b becomes: numbers that no compiler knows
};

typedef void Turn(const PairRows& rows);

// Compiled once per instruction set.
struct RotaryKernels {
  // out_a OUT, out_b OUT = a IN, b IN, turned by cos IN and sin IN: of a dtype. Each array is
  // contiguous, or [1], a and b are neighbours, as results are; [..][1]: cos and sin are of the
  // compute type. out_a is a or disjoint from all, and so is out_b of b.
  Turn* turn[kDTypes][2][2];
};

}  // namespace fastact
