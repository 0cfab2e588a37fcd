#include "iterate.h"

#include <algorithm>
#include <cstdlib>

namespace fastact {
namespace {

constexpr int64_t kStage = 1024;  // elements staged at a time: 3 operands of 8 bytes fill 24 KiB
constexpr int64_t kCut = 64;      // elements: whole cache lines of every dtype
constexpr uintptr_t kLine = 64;   // bytes of a cache line
constexpr int64_t kLongRow = 64;  // from here on a row is worth a call of its own

template <class T>
void gather_row(char* to, const char* from, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) memcpy(to + i * sizeof(T), from + i * stride, sizeof(T));
}
template <class T>
void scatter_row(char* to, const char* from, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) memcpy(to + i * stride, from + i * sizeof(T), sizeof(T));
}

using MoveRow = void (*)(char*, const char*, int64_t, int64_t);

MoveRow gather_for(int64_t item) {
  return item == 2 ? gather_row<uint16_t> : item == 4 ? gather_row<uint32_t> : gather_row<uint64_t>;
}
MoveRow scatter_for(int64_t item) {
  return item == 2   ? scatter_row<uint16_t>
         : item == 4 ? scatter_row<uint32_t>
                     : scatter_row<uint64_t>;
}

// A position in a prepared loop, and the walk along its rows.
struct Cursor {
  const Loop& loop;
  int64_t index[kMaxAxes];

  Cursor(const Loop& l, int64_t element) : loop(l) {
    for (int axis = loop.ndim; axis-- > 0;) {
      index[axis] = element % loop.shape[axis];
      element /= loop.shape[axis];
    }
  }
  int64_t left_in_row() const { return loop.shape[loop.ndim - 1] - index[loop.ndim - 1]; }
  char* at(int operand) const {
    char* p = loop.data[operand];
    for (int axis = 0; axis < loop.ndim; ++axis) p += index[axis] * loop.strides[operand][axis];
    return p;
  }
  void advance(int64_t within_row) {
    index[loop.ndim - 1] += within_row;
    for (int axis = loop.ndim - 1; axis > 0 && index[axis] == loop.shape[axis]; --axis) {
      index[axis] = 0;
      ++index[axis - 1];
    }
  }
};

// Moves n elements of one operand, from `start` on, into or out of a buffer.
template <class Move>
void for_rows(const Loop& loop, const Cursor& start, int operand, int64_t n, Move move) {
  Cursor cursor = start;
  for (int64_t done = 0; done < n;) {
    const int64_t m = std::min(n - done, cursor.left_in_row());
    move(cursor.at(operand), done * loop.item, loop.strides[operand][loop.ndim - 1], m);
    cursor.advance(m);
    done += m;
  }
}

void run_contiguous(const Loop& loop, int64_t first, int64_t n) {
  char* p[kMaxOperands];
  for (int k = 0; k < loop.operands; ++k) p[k] = loop.data[k] + first * loop.item;
  loop.block(p, n, loop.parameters);
}

void run_rows(const Loop& loop, int64_t first, int64_t n) {
  Cursor cursor(loop, first);
  for (int64_t done = 0; done < n;) {
    const int64_t m = std::min(n - done, cursor.left_in_row());
    char* p[kMaxOperands];
    for (int k = 0; k < loop.operands; ++k) p[k] = cursor.at(k);
    loop.block(p, m, loop.parameters);
    cursor.advance(m);
    done += m;
  }
}

void run_staged(const Loop& loop, int64_t first, int64_t n) {
  alignas(64) char stage[kMaxOperands][kStage * sizeof(double)];
  const MoveRow gather = gather_for(loop.item), scatter = scatter_for(loop.item);
  const int output = loop.operands - 1;
  for (int64_t done = 0; done < n; done += kStage) {
    const int64_t m = std::min(n - done, kStage);
    const Cursor cursor(loop, first + done);
    char* p[kMaxOperands];
    for (int k = 0; k < loop.operands; ++k) {
      if (loop.contiguous[k]) {
        p[k] = loop.data[k] + (first + done) * loop.item;
        continue;
      }
      p[k] = stage[k];
      if (k == output && !loop.reads_output) continue;
      for_rows(loop, cursor, k, m, [&](char* row, int64_t offset, int64_t stride, int64_t count) {
        gather(stage[k] + offset, row, stride, count);
      });
    }
    loop.block(p, m, loop.parameters);
    if (loop.contiguous[output]) continue;
    for_rows(loop, cursor, output, m,
             [&](char* row, int64_t offset, int64_t stride, int64_t count) {
               scatter(row, stage[output] + offset, stride, count);
             });
  }
}

bool aligned(const Loop& loop, int operand) {
  auto bits = reinterpret_cast<uintptr_t>(loop.data[operand]);
  for (int axis = 0; axis < loop.ndim; ++axis) bits |= uintptr_t(loop.strides[operand][axis]);
  return bits % uintptr_t(loop.item) == 0;
}

// Takes the axes longer than 1, turned so that the output runs forwards.
void take_axes(Loop* loop, const Operand* arrays) {
  const int output = loop->operands - 1;
  loop->ndim = 0;
  for (int axis = 0; axis < arrays[output].ndim; ++axis) {
    const int64_t length = arrays[output].shape[axis];
    if (length == 1) continue;
    const int to = loop->ndim++;
    loop->shape[to] = length;
    for (int k = 0; k < loop->operands; ++k) {
      const Operand& a = arrays[k];
      int64_t stride = loop->item;
      if (a.strides)
        stride = a.strides[axis] * a.stride_unit;
      else
        for (int inner = axis + 1; inner < a.ndim; ++inner) stride *= a.shape[inner];
      loop->strides[k][to] = stride;
    }
    if (loop->strides[output][to] >= 0) continue;
    for (int k = 0; k < loop->operands; ++k) {
      loop->data[k] += (length - 1) * loop->strides[k][to];
      loop->strides[k][to] = -loop->strides[k][to];
    }
  }
}

// The output's largest stride outermost; axes keep their order where it does not tell them apart.
void sort_axes(Loop* loop) {
  const int output = loop->operands - 1;
  for (int i = 1; i < loop->ndim; ++i)
    for (int j = i; j > 0 && loop->strides[output][j - 1] < loop->strides[output][j]; --j) {
      std::swap(loop->shape[j - 1], loop->shape[j]);
      for (int k = 0; k < loop->operands; ++k)
        std::swap(loop->strides[k][j - 1], loop->strides[k][j]);
    }
}

// Merges each axis into the one outside it where every operand steps through both as through one.
void merge_axes(Loop* loop) {
  int outer = 0;
  for (int axis = 1; axis < loop->ndim; ++axis) {
    bool merge = true;
    for (int k = 0; k < loop->operands; ++k)
      merge &= loop->strides[k][outer] == loop->strides[k][axis] * loop->shape[axis];
    if (merge) {
      loop->shape[outer] *= loop->shape[axis];
    } else {
      loop->shape[++outer] = loop->shape[axis];
    }
    for (int k = 0; k < loop->operands; ++k) loop->strides[k][outer] = loop->strides[k][axis];
  }
  loop->ndim = std::min(loop->ndim, outer + 1);
}

void run_block(const Loop& loop, int64_t first, int64_t n) {
  if (loop.all_contiguous)
    run_contiguous(loop, first, n);
  else if (loop.rows_contiguous)
    run_rows(loop, first, n);
  else
    run_staged(loop, first, n);
}

}  // namespace

void prepare(Loop* loop, Block block, const double* parameters, int dtype, bool reads_output,
             int operands, const Operand* arrays) {
  loop->block = block;
  loop->parameters = parameters;
  loop->item = item_size(dtype);
  loop->operands = operands;
  loop->reads_output = reads_output;
  const int output = operands - 1;
  loop->size = 1;
  for (int axis = 0; axis < arrays[output].ndim; ++axis) loop->size *= arrays[output].shape[axis];
  for (int k = 0; k < operands; ++k) loop->data[k] = arrays[k].data;
  take_axes(loop, arrays);
  sort_axes(loop);
  merge_axes(loop);
  if (loop->ndim == 0) {  // one element: an axis of length 1 serves every case below
    loop->ndim = 1;
    loop->shape[0] = 1;
    for (int k = 0; k < operands; ++k) loop->strides[k][0] = loop->item;
  }

  loop->all_contiguous = loop->rows_contiguous = true;
  for (int k = 0; k < operands; ++k) {
    const bool unit = loop->strides[k][loop->ndim - 1] == loop->item && aligned(*loop, k);
    // Contiguous as a whole: each axis steps over exactly the axes inside it.
    loop->contiguous[k] = unit;
    int64_t expected = loop->item;
    for (int axis = loop->ndim; axis-- > 0; expected *= loop->shape[axis])
      loop->contiguous[k] &= loop->strides[k][axis] == expected;
    loop->rows_contiguous &= unit;
    loop->all_contiguous &= loop->contiguous[k];
  }
  loop->rows_contiguous &= loop->shape[loop->ndim - 1] >= kLongRow;
  const auto past_line = reinterpret_cast<uintptr_t>(loop->data[output]) % kLine;
  loop->head = loop->all_contiguous ? int64_t((kLine - past_line) % kLine) / loop->item : 0;
}

void run_share(const Loop* loop, int64_t index, int64_t shares) {
  // Cut where the output crosses a cache line, as the blocks inside are.
  const auto cut = [&](int64_t i) {
    const int64_t even = loop->size / shares * i / kCut * kCut + loop->head;
    return i == 0 ? 0 : i == shares ? loop->size : std::min(even, loop->size);
  };
  const int64_t end = cut(index + 1);
  for (int64_t first = cut(index); first < end;) {
    const int64_t n = std::min(kBlock + (first == 0 ? loop->head : 0), end - first);
    run_block(*loop, first, n);
    first += n;
  }
}

}  // namespace fastact
