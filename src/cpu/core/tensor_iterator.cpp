#include "cpu/core/tensor_iterator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cpu/core/chunk_reader.h"
#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/threads.h"

namespace fastact {
namespace {

// Turns elements round, a vector at a time: to IN/OUT, from IN of n elements, the first of them the
// last in memory.
template <class T>
void reverse_row(char* to, const char* from, int64_t n) {
  constexpr int64_t kBytes = 16, kCount = kBytes / sizeof(T);
  typedef T Several __attribute__((vector_size(kBytes)));
  typedef uint32_t Words __attribute__((vector_size(kBytes)));
#pragma GCC unroll 4
  for (; n >= kCount; n -= kCount, to += kBytes, from -= kBytes) {
    Several v, reversed;
    memcpy(&v, from - kBytes + sizeof(T), kBytes);
    if constexpr (sizeof(T) == sizeof(uint16_t)) {  // GCC would insert them one by one
      const Words w = (Words)v, pairs = {w[3], w[2], w[1], w[0]};
      reversed = (Several)(pairs << 16 | pairs >> 16);
    } else {
      for (int i = 0; i < kCount; ++i) reversed[i] = v[kCount - 1 - i];
    }
    memcpy(to, &reversed, kBytes);
  }
  for (; n > 0; --n, to += sizeof(T), from -= sizeof(T)) memcpy(to, from, sizeof(T));
}

// Every second element: of packed arrays whose halves are interleaved. Two vectors at a time, but
// for the last ones, behind which nothing may be read.
template <class T>
void gather_pairs(char* to, const char* from, int64_t n) {
  constexpr int64_t kBytes = 16, kCount = kBytes / sizeof(T);
  typedef T Several __attribute__((vector_size(kBytes)));
#pragma GCC unroll 4
  for (; n > kCount; n -= kCount, to += kBytes, from += 2 * kBytes) {
    Several low, high, even;
    memcpy(&low, from, kBytes);
    memcpy(&high, from + kBytes, kBytes);
#if defined(__clang__)
    for (int i = 0; i < kCount / 2; ++i) even[i] = low[2 * i], even[kCount / 2 + i] = high[2 * i];
#else
    Several mask;  // a constant; of the loop above GCC makes insertions, one by one
    for (int i = 0; i < kCount; ++i) mask[i] = T(2 * i);
    even = __builtin_shuffle(low, high, mask);
#endif
    memcpy(to, &even, kBytes);
  }
  for (; n > 0; --n, to += sizeof(T), from += 2 * sizeof(T)) memcpy(to, from, sizeof(T));
}

template <class T>
__attribute__((noinline)) void move_strided(char* to, int64_t to_stride, const char* from,
                                            int64_t from_stride, int64_t n) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < n; ++i, to += to_stride, from += from_stride) memcpy(to, from, sizeof(T));
}

template <class T>
void move_row(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t n) {
  constexpr int64_t kItem = sizeof(T);
  if (to_stride == kItem && from_stride == kItem) {
    memcpy(to, from, n * kItem);
  } else if (to_stride == kItem && from_stride == -kItem) {
    reverse_row<T>(to, from, n);
  } else if (to_stride == -kItem && from_stride == kItem) {
    reverse_row<T>(to - (n - 1) * kItem, from + (n - 1) * kItem, n);
  } else if (to_stride == kItem && from_stride == 2 * kItem) {
    gather_pairs<T>(to, from, n);
  } else if (to_stride == kItem && from_stride == 0) {
    T value;
    memcpy(&value, from, kItem);
    for (int64_t i = 0; i < n; ++i) memcpy(to + i * kItem, &value, kItem);
  } else {
    move_strided<T>(to, to_stride, from, from_stride, n);
  }
}

// Bytes from a row to the next one, and from a column to the next one.
struct Steps {
  int64_t row, column;
};

// Rows side by side, of one element each, by vectors that begin where the row before ends: they may
// end behind their own row, but not behind the last one.

// A vector of kBytes for each row, which is no longer than that. How many rows are done: the last
// ones lack the room.
template <class T, int64_t kBytes>
int64_t repeat_in_vectors(char* to, const char* from, int64_t stride, int64_t rows, int64_t bytes) {
  typedef T Several __attribute__((vector_size(kBytes)));
  const int64_t whole = rows - (kBytes - 1) / bytes;
  for (int64_t i = 0; i < whole; ++i, to += bytes, from += stride) {
    T value;
    memcpy(&value, from, sizeof(T));
    const Several several = Several{} + value;
    memcpy(to, &several, kBytes);
  }
  return std::max<int64_t>(whole, 0);
}

// Rows of three, as points and colours are, of neighbours in memory: four rows are three vectors,
// where four elements are one. How many are done.
template <class T>
int64_t repeat_thrice(char* to, const char* from, int64_t rows) {
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4, from += sizeof(Four), to += 3 * sizeof(Four)) {
    Four each;
    memcpy(&each, from, sizeof each);
    const Four first = __builtin_shuffle(each, Four{0, 0, 0, 1});
    const Four second = __builtin_shuffle(each, Four{1, 1, 2, 2});
    const Four third = __builtin_shuffle(each, Four{2, 3, 3, 3});
    memcpy(to, &first, sizeof first);
    memcpy(to + sizeof(Four), &second, sizeof second);
    memcpy(to + 2 * sizeof(Four), &third, sizeof third);
  }
  return i;
}

// A pattern longer than kPattern bytes is copied from what has been written, up to kRepeated bytes
// at a time: memcpy has the best vectors.
template <class T>
void repeat_elements(char* to, const char* from, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int64_t kBytes = 16, kPattern = 2048, kRepeated = 32768;
  typedef T Several __attribute__((vector_size(kBytes)));
  const int64_t bytes = columns * int64_t(sizeof(T)), first = std::min(bytes, kPattern);
  const char* const end = to + rows * bytes;
  constexpr bool kFourInVector = 4 * sizeof(T) <= kBytes;
  int64_t i = 0;
  if (kFourInVector && columns == 3 && stride == int64_t(sizeof(T)))
    i = repeat_thrice<T>(to, from, rows);
  else if (bytes <= kBytes / 2)
    i = repeat_in_vectors<T, kBytes / 2>(to, from, stride, rows, bytes);
  else if (bytes <= kBytes)
    i = repeat_in_vectors<T, kBytes>(to, from, stride, rows, bytes);
  else if (bytes <= 2 * kBytes)
    i = repeat_in_vectors<T, 2 * kBytes>(to, from, stride, rows, bytes);
  to += i * bytes, from += i * stride;
  for (; i < rows; ++i, to += bytes, from += stride) {
    T value;
    memcpy(&value, from, sizeof(T));
    const Several several = Several{} + value;
    int64_t done = 0;
    const int64_t room = end - to, whole = std::min(first, room - 4 * kBytes + 1);
    for (; done < whole; done += 4 * kBytes)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) memcpy(to + done + k * kBytes, &several, kBytes);
    for (; done < first && room >= done + kBytes; done += kBytes)
      memcpy(to + done, &several, kBytes);
    for (; done < first; done += sizeof(T)) memcpy(to + done, &value, sizeof(T));
    for (int64_t n; done < bytes; done += n) {
      n = std::min({done, kRepeated, bytes - done});
      memcpy(to + done, to, n);
    }
  }
}

// Short rows column by column: a loop over three elements is mostly its own start and end.
template <class T>
void move_tile_of(char* to, Steps to_steps, const char* from, Steps from_steps, int64_t rows,
                  int64_t columns) {
  if (from_steps.column == 0 && to_steps.column == int64_t(sizeof(T)) &&
      (rows == 1 || to_steps.row == columns * to_steps.column))
    return repeat_elements<T>(to, from, from_steps.row, rows, columns);
  if (columns < kGatheredRow && rows > columns) {
    std::swap(rows, columns);
    std::swap(to_steps.row, to_steps.column);
    std::swap(from_steps.row, from_steps.column);
  }
  for (int64_t i = 0; i < rows; ++i)
    move_row<T>(to + i * to_steps.row, to_steps.column, from + i * from_steps.row,
                from_steps.column, columns);
}
void move_tile(int64_t item, char* to, Steps to_steps, const char* from, Steps from_steps,
               int64_t rows, int64_t columns) {
  const auto move = item == 2   ? move_tile_of<uint16_t>
                    : item == 4 ? move_tile_of<uint32_t>
                                : move_tile_of<uint64_t>;
  move(to, to_steps, from, from_steps, rows, columns);
}

// Where a row of an operand begins.
char* row_of(const TensorIterator& it, int k, int64_t row) {
  char* at = it.data[k];
  for (int axis = it.ndim - 2; axis > 0; row /= it.shape[axis--])
    at += row % it.shape[axis] * it.strides[k][axis];
  return it.ndim > 1 ? at + row * it.strides[k][0] : at;
}

// Visits n elements of one operand as tiles: where they begin, how many elements were before them,
// rows, columns.
template <class Move>
void for_tiles(const TensorIterator& it, int k, int64_t first, int64_t n, Move move) {
  const int last = it.ndim - 1;
  const int64_t length = it.shape[last], side_by_side = last > 0 ? it.shape[last - 1] : 1;
  int64_t row = first / length, column = first % length;
  for (int64_t done = 0, rows, m; done < n; done += rows * m, row += rows, column = 0) {
    const bool is_whole = column == 0 && n - done >= length;
    rows = is_whole ? std::min((n - done) / length, side_by_side - row % side_by_side) : 1;
    m = std::min(n - done, length - column);
    move(row_of(it, k, row) + column * it.strides[k][last], done, rows, m);
  }
}

void run_kernel(const TensorIterator& it, char* const* operands, int64_t n) {
  if (it.kernel) return it.kernel(operands, n, it.parameters, it.ahead);
  memmove(operands[1], operands[0], n * it.item);  // the same bits, whatever a NaN carries
}

// What is contiguous as a whole is one row.
void run_rows(const TensorIterator& it, int64_t first, int64_t n) {
  const int64_t length = it.shape[it.ndim - 1];
  int64_t row = first / length, column = first % length;
  char *p[kMaxOperands], *next[kMaxOperands];
  for (int k = 0; k < it.operands; ++k) next[k] = row_of(it, k, row) + column * it.item;
  for (int64_t m; n > 0; n -= m, column = 0) {
    m = std::min(n, length - column);
    ++row;
    for (int k = 0; k < it.operands; ++k) {
      p[k] = next[k], next[k] = row_of(it, k, row);
      for (int line = 0; line < kLinesAhead; ++line)
        __builtin_prefetch(next[k] + line * kCacheLine);
    }
    run_kernel(it, p, m);
  }
}

// The third of the ways: through one thread's buffers.
class BufferedIterator {
 public:
  explicit BufferedIterator(const TensorIterator& l) : it(l), output(l.operands - 1) {
    bool repeats = false;
    for (int k = 0; k <= output; ++k) {
      is_dense[k] = l.strides[k][l.ndim - 1] == l.items[k] && rows_aligned(l, k, l.items[k]);
      repeats |= l.strides[k][l.ndim - 1] == 0 || l.period[k] != 0;
    }
    prefetches = repeats && l.item >= 4 && l.size * l.item >= kFarOutput && prefetches_next_chunk();
  }

  void run(int64_t first, int64_t n) {
    if (!it.kernel && it.contiguous[output] && it.period[0] == 0)
      return gather(0, first, n, it.data[output] + first * it.item);
    for (int64_t done = 0; done < n; done += kBuffered)
      chunk(first + done, std::min(kBuffered, n - done));
  }

 private:
  void chunk(int64_t first, int64_t n) {
    char* p[kMaxOperands];
    for (int k = 0; k < output; ++k) p[k] = input(k, first, n);
    char* to = it.data[output] + first * it.item;
    if (it.contiguous[output]) {
      p[output] = to;
      if (prefetches) prefetch_bytes(to + kOutputAhead, n * it.item);
      run_kernel(it, p, n);
    } else {
      p[output] = buffer[output];
      if (it.reads_output) gather(output, first, n, buffer[output]);
      run_kernel(it, p, n);
      for_tiles(it, output, first, n, [&](char* at, int64_t done, int64_t rows, int64_t columns) {
        move_tile(it.item, at, steps(output), p[output] + done * it.item, dense(output, columns),
                  rows, columns);
      });
    }
  }

  // Operand k from `first` on: where it lies, or in its buffer. An operand that repeats itself is
  // gathered once, and so often that n elements follow each one of the first period.
  char* input(int k, int64_t first, int64_t n) {
    if (it.contiguous[k]) return it.data[k] + first * it.item;
    const int64_t period = it.period[k];
    if (period == 0) {
      const int64_t step = it.strides[k][it.ndim - 1], column = first % length;
      const bool is_in_row = length - column >= n && (is_dense[k] || step == 0);
      char* const at = is_in_row ? row_of(it, k, first / length) + column * step : nullptr;
      if (is_in_row && is_dense[k]) return at;
      if (is_in_row && at == value[k] && n <= times[k]) return buffer[k];
      gather(k, first, n, buffer[k]);
      value[k] = at, times[k] = n;
      return buffer[k];
    }
    if (!is_filled[k]) {
      gather(k, 0, period, buffer[k]);
      const int64_t end = (period + std::min(kBuffered, it.size)) * it.items[k];
      for (int64_t done = period * it.items[k]; done < end; done *= 2)
        memcpy(buffer[k] + done, buffer[k], std::min(done, end - done));
      is_filled[k] = true;
    }
    return buffer[k] + first % period * it.items[k];
  }

  void gather(int k, int64_t first, int64_t n, char* to) {
    for_tiles(it, k, first, n, [&](char* at, int64_t done, int64_t rows, int64_t columns) {
      move_tile(it.items[k], to + done * it.items[k], dense(k, columns), at, steps(k), rows,
                columns);
    });
  }

  Steps dense(int k, int64_t columns) const { return {columns * it.items[k], it.items[k]}; }
  Steps steps(int k) const {
    const int last = it.ndim - 1;
    return {last > 0 ? it.strides[k][last - 1] : 0, it.strides[k][last]};
  }

  const TensorIterator& it;
  const int output;
  const int64_t length = it.shape[it.ndim - 1];  // of a row
  bool prefetches;                               // the output, where it is contiguous
  bool is_dense[kMaxOperands];                   // along its rows
  bool is_filled[kMaxOperands] = {};             // with periods
  const char* value[kMaxOperands] = {};          // the one element that a buffer repeats
  int64_t times[kMaxOperands];
  alignas(64) char buffer[kMaxOperands][2 * kBuffered * sizeof(double)];
};

// The elements after which operand k begins anew, if a buffer holds them; else 0.
int64_t period_of(const TensorIterator& it, int k) {
  int outer = 0;
  while (outer < it.ndim && it.strides[k][outer] == 0) ++outer;
  int64_t period = 1;
  for (int axis = outer; axis < it.ndim; ++axis) period *= it.shape[axis];
  return outer > 0 && period <= kBuffered ? period : 0;
}

}  // namespace

void move_elements(int64_t item, char* to, int64_t to_stride, const char* from, int64_t from_stride,
                   int64_t n) {
  const auto move = item == 1   ? move_row<uint8_t>
                    : item == 2 ? move_row<uint16_t>
                    : item == 4 ? move_row<uint32_t>
                                : move_row<uint64_t>;
  move(to, to_stride, from, from_stride, n);
}

bool& computes_parts() {
  static thread_local bool value = false;
  return value;
}

void prepare(TensorIterator* it, ElementwiseKernel kernel, const double* parameters, int dtype,
             bool reads_output, int operands, const Operand* arrays) {
  plan_elementwise(it, item_size(dtype), operands, arrays);
  it->kernel = kernel;
  it->parameters = parameters;
  it->reads_output = reads_output;
  it->whole = it->all_contiguous();
  it->rows = it->shape[it->ndim - 1] >= kIteratorRow;
  for (int k = 0; k < operands; ++k)
    it->rows &= it->strides[k][it->ndim - 1] == it->item && rows_aligned(*it, k, it->item);
  const auto past_line = reinterpret_cast<uintptr_t>(it->data[operands - 1]) % kCacheLine;
  for (int k = 0; k < operands; ++k) {
    it->items[k] = it->item;
    it->period[k] = period_of(*it, k);
    it->rows &= it->period[k] == 0;
  }
  const bool is_far = it->item >= 4 && (it->size * it->item >= kFarElements || computes_parts()) &&
                      prefetches_next_chunk();
  it->ahead = it->whole && is_far ? kAhead : 0;
  it->head = it->whole ? int64_t((kCacheLine - past_line) % kCacheLine) / it->item : 0;
}

void run_partition(const TensorIterator* it, int64_t index, int64_t partitions) {
  // Cut where the output crosses a cache line, as the blocks inside are.
  const auto cut = [&](int64_t i) {
    return i == 0 ? 0 : std::min(begin_of_part(it->size, i, partitions) + it->head, it->size);
  };
  const int64_t first = cut(index), end = cut(index + 1);
  if (!(it->whole || it->rows))
    return with_frame<BufferedIterator>(
        *it, [&](BufferedIterator& stage) { stage.run(first, end - first); });
  for (int64_t at = first; at < end;) {
    const int64_t n = std::min(kBlock + (at == 0 ? it->head : 0), end - at);
    run_rows(*it, at, n);
    at += n;
  }
}

void run_elementwise(ElementwiseKernel kernel, const double* parameters, bool reads_output,
                     int count, const ArrayArgument* arrays) {
  TensorIterator it;
  Operand operands[kMaxOperands] = {};
  int dtypes[kMaxOperands];
  int found = 0;
  const ArrayArgument& output = arrays[count - 1];
  if (is_empty(output)) return;
  for (int k = 0; k < count; ++k)
    if (arrays[k].shape) dtypes[found] = arrays[k].dtype, operands[found++] = arrays[k];
  prepare(&it, kernel, parameters, output.dtype, reads_output, found, operands);
  for (int k = 0; k < found; ++k) it.items[k] = item_size(dtypes[k]);
  run_partitions(resolve_threads(it.size), run_partition, &it);
}

void fill(const ArrayArgument& y, double value) {
  if (!y.data) return;
  double element;  // room for one of any dtype
  store_as(y.dtype, reinterpret_cast<char*>(&element), value);
  const int64_t strides[kMaxAxes] = {};
  ArrayArgument arrays[] = {y, y};
  arrays[0].data = reinterpret_cast<char*>(&element), arrays[0].strides = strides;
  run_elementwise(nullptr, nullptr, false, 2, arrays);
}

}  // namespace fastact
