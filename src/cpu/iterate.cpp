#include "iterate.h"

#include <algorithm>
#include <cstdlib>

namespace fastact {
namespace {

constexpr int64_t kStage = 1024;  // elements staged at a time: 3 operands of 8 bytes fill 24 KiB
constexpr int64_t kCut = 64;      // elements: whole cache lines of every dtype
constexpr uintptr_t kLine = 64;   // bytes of a cache line
constexpr int kAhead = 4;         // lines of the next row that are fetched during this one
constexpr int64_t kLongRow = 64;  // from here on a row is worth a call of its own

template <class T>
void gather_row(char* to, const char* from, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) memcpy(to + i * sizeof(T), from + i * stride, sizeof(T));
}
template <class T>
void scatter_row(char* to, const char* from, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) memcpy(to + i * stride, from + i * sizeof(T), sizeof(T));
}

}  // namespace

MoveRow gather_for(int64_t item) {
  return item == 2 ? gather_row<uint16_t> : item == 4 ? gather_row<uint32_t> : gather_row<uint64_t>;
}
MoveRow scatter_for(int64_t item) {
  return item == 2   ? scatter_row<uint16_t>
         : item == 4 ? scatter_row<uint32_t>
                     : scatter_row<uint64_t>;
}

namespace {

// A position in a prepared loop, and the walk along its rows.
class Cursor {
 public:
  Cursor(const Loop& l, int64_t element) : loop(l), last(l.ndim - 1) {
    for (int axis = loop.ndim; axis-- > 0;) {
      index[axis] = element % loop.shape[axis];
      element /= loop.shape[axis];
    }
    for (int k = 0; k < loop.operands; ++k) find_row(k);
  }

  int64_t left_in_row() const { return loop.shape[last] - index[last]; }
  char* at(int k) const { return row[k] + index[last] * loop.strides[k][last]; }

  void advance(int64_t within_row) {
    index[last] += within_row;
    if (index[last] < loop.shape[last] || last == 0) return;
    index[last] = 0;
    if (++index[last - 1] < loop.shape[last - 1]) {  // as nearly always
      for (int k = 0; k < loop.operands; ++k) row[k] += loop.strides[k][last - 1];
      return;
    }
    for (int axis = last - 1; axis > 0 && index[axis] == loop.shape[axis]; --axis) {
      index[axis] = 0;
      ++index[axis - 1];
    }
    for (int k = 0; k < loop.operands; ++k) find_row(k);
  }

 private:
  void find_row(int k) {
    row[k] = loop.data[k];
    for (int axis = 0; axis < last; ++axis) row[k] += index[axis] * loop.strides[k][axis];
  }

  const Loop& loop;
  int last;
  int64_t index[kMaxAxes];
  char* row[kMaxOperands];  // where the row begins
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
    cursor.advance(m);
    for (int k = 0; k < loop.operands; ++k)
      for (int line = 0; line < kAhead; ++line) __builtin_prefetch(cursor.at(k) + line * kLine);
    loop.block(p, m, loop.parameters);
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
        if (stride == loop.item)
          memcpy(stage[k] + offset, row, count * loop.item);
        else
          gather(stage[k] + offset, row, stride, count);
      });
    }
    loop.block(p, m, loop.parameters);
    if (loop.contiguous[output]) continue;
    for_rows(loop, cursor, output, m,
             [&](char* row, int64_t offset, int64_t stride, int64_t count) {
               if (stride == loop.item)
                 memcpy(row, stage[output] + offset, count * loop.item);
               else
                 scatter(row, stage[output] + offset, stride, count);
             });
  }
}

void run_block(const Loop& loop, int64_t first, int64_t n) {
  if (loop.whole)
    run_contiguous(loop, first, n);
  else if (loop.rows)
    run_rows(loop, first, n);
  else
    run_staged(loop, first, n);
}

}  // namespace

void prepare(Loop* loop, Block block, const double* parameters, int dtype, bool reads_output,
             int operands, const Operand* arrays) {
  plan_walk(loop, item_size(dtype), operands, arrays);
  loop->block = block;
  loop->parameters = parameters;
  loop->reads_output = reads_output;
  loop->whole = loop->all_contiguous();
  loop->rows = loop->shape[loop->ndim - 1] >= kLongRow;
  for (int k = 0; k < operands; ++k)
    loop->rows &=
        loop->strides[k][loop->ndim - 1] == loop->item && rows_aligned(*loop, k, loop->item);
  const auto past_line = reinterpret_cast<uintptr_t>(loop->data[operands - 1]) % kLine;
  loop->head = loop->whole ? int64_t((kLine - past_line) % kLine) / loop->item : 0;
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
