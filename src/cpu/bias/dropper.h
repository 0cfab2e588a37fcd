// Dropout of the elements at which a ChunkReader is, by their numbers.
#pragma once

#include "common/bias/dropout.h"
#include "cpu/bias/kernels.h"
#include "cpu/core/chunk_reader.h"

namespace fastact {

// Stands for an array whose elements are their own numbers, in C order, of another one's shape and
// of a dtype's size. It has no memory: element i is at (i + 1) items.
inline Operand numbers_of(const Operand& like, int dtype) {
  return {reinterpret_cast<char*>(item_size(dtype)), like.ndim, like.shape, nullptr, 0};
}

struct Dropper {
  const StridedOperands& s;
  const BiasKernels& kernels;
  const Dropout& of;
  const int k;  // the operand that `numbers_of` made
  alignas(64) uint64_t indices[kPiece];

  Dropper(const StridedOperands& operands, const BiasKernels& table, const Dropout& dropout,
          int numbers)
      : s(operands), kernels(table), of(dropout), k(numbers) {}

  // y OUT (n) = what dropout makes of x IN, and residual IN, unless it is null, added; they are of
  // a dtype, of 16 bits only where `stored` of the numbers is not null.
  void drop(const ChunkReader& reader, int dtype, const char* x, const char* residual, char* y,
            int64_t n) {
    if (const char* const first = reader.stored(k))
      return kernels.drop[dtype][residual != nullptr](x, residual, y, n, index_at(first), of);
    uint64_t* to = indices;
    reader.for_tiles(k, [&](const char* from, Steps steps, int64_t, int64_t rows, int64_t columns) {
      const uint64_t step = uint64_t(steps.column / s.item);
      for (int64_t j = 0; j < rows; ++j, to += columns) {
        const uint64_t start = index_at(from + j * steps.row);
        for (int64_t i = 0; i < columns; ++i) to[i] = start + uint64_t(i) * step;
      }
    });
    kernels.drop_at[dtype == kF64][residual != nullptr](x, residual, y, n, indices, of);
  }

 private:
  uint64_t index_at(const char* address) const {
    return uint64_t(reinterpret_cast<uintptr_t>(address)) / uint64_t(s.item) - 1 + of.offset;
  }
};

}  // namespace fastact
