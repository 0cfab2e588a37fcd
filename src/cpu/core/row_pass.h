// The rows engine: a pass over the rows of a plan (chunk_reader.h), as of softmax, the norms,
// second derivatives and codes.
//
// An op says what a thread does with some rows: a class that is made of the call's plan, with
// RowPass as its base and a function `visit(row, n)` for n of them.
#pragma once

#include <algorithm>

#include "common/core/call.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/scratch.h"

namespace fastact {

struct RowPass {
  const StridedOperands& s;
  ChunkReader reader;
  int64_t width = 1;  // rows that are visited at a time, at most
  int64_t step = 1;   // partitions begin at multiples of it

  explicit RowPass(const StridedOperands& operands) : s(operands), reader(operands) {}

  // visit(column, n) for the pieces of a row, to which the reader goes.
  template <class Visit>
  void for_pieces(int64_t row, Visit visit, int64_t most = kPiece) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(most, s.columns.size - column);
      reader.go(row, column, n);
      visit(column, n);
    }
  }

  // Counts the rows, of n from one on, that can be visited together.
  int64_t together(int64_t /*row*/, int64_t n) const { return n; }
  void end() const { reader.fence(); }  // of a partition
};

// plan_rows of the arrays of a call, the first of which has the shape.
inline void plan_rows(StridedOperands* s, const ConvertKernels* kernels, int count,
                      const ArrayArgument* given, const bool* reduced) {
  Operand arrays[kReaderOperands];
  int dtypes[kReaderOperands];
  for (int k = 0; k < count; ++k) arrays[k] = given[k], dtypes[k] = given[k].dtype;
  plan_rows(s, kernels, count, arrays, dtypes, reduced, false);
}

// The index-th of `partitions` parts of a pass.
template <class Pass, class Plan>
void run_rows(const Plan* plan, int64_t index, int64_t partitions) {
  with_frame<Pass>(*plan, [&](Pass& pass) {
    const int64_t rows = pass.s.rows.size, steps = (rows + pass.step - 1) / pass.step;
    const int64_t end = std::min(steps * (index + 1) / partitions * pass.step, rows);
    for (int64_t row = steps * index / partitions * pass.step, n; row < end; row += n) {
      n = pass.together(row, std::min(pass.width, end - row));
      pass.visit(row, n);
    }
    pass.end();
  });
}

}  // namespace fastact
