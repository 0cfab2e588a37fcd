// The sum of the squares of all elements, and its gradient 2 x, in one pass.
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

struct SquareGrad {
  enum { kX, kGrad };

  StridedOperands operands;
  Reducer reducer;  // of the value
};

void prepare(SquareGrad* square, const KernelTable* table, const SquareCall& call);

// The index-th of `partitions` parts. After all of them: merge_partition of the reducer.
void square_partition(const SquareGrad* square, int64_t index, int64_t partitions);

}  // namespace fastact
