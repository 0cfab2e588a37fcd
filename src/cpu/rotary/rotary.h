// Rotary position embedding in one pass (common/rotary/rotary.h): all pairs of a row are read, and
// both elements of each are written.
//
// Rows are what the pairs' axis leaves. Where it is dense in all arrays, as halves or by
// neighbours, a kernel takes many rows at once, converts 16 bits itself and, of results too big for
// the caches, stores past these. All else passes through buffers (core/chunk_reader.h).
#pragma once

#include "common/rotary/rotary.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"

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

struct Rotary {
  StridedOperands operands;  // by RotaryCall::Data
  const RotaryKernels* kernels;
  Turn* const* direct;                // [1]: by angles of the compute type; null: through buffers
  int64_t table_rows, table_step[2];  // as RotaryOperands has them
  bool turns_back, accumulate, bypasses_caches;
};

// The plan of a call that is not empty.
void prepare(Rotary* rotary, const KernelTable* table, const RotaryCall& call);
// Whether the table has a row for each position.
bool has_valid_positions(const RotaryCall& call);
void rotary_partition(const Rotary* rotary, int64_t index, int64_t partitions);

}  // namespace fastact
