#include "cpu/core/tensor_iterator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/core/elementwise_plan.h"
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
  } else {
    move_strided<T>(to, to_stride, from, from_stride, n);
  }
}

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
  if (columns == 0) return;
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

// The plan of a call, whose last operand is written.
struct TensorIterator : StridedOperands {
  ElementwiseKernel kernel;  // null: the first of two operands is copied to the second
  const double* parameters;
  bool reads_output;
  bool whole, by_rows;           // contiguous as a whole, or at least row by row
  int64_t ahead;                 // of the kernel's prefetches
  int64_t head;                  // elements before the output's first cache line boundary, if whole
  int64_t period[kMaxOperands];  // elements after which an operand begins anew, if few; else 0

  int output() const { return count - 1; }
  bool exceeds(int64_t bytes) const {  // the output, of elements that kernels prefetch
    return items[output()] >= 4 && size() * items[output()] >= bytes;
  }
  int64_t column_stride(int k) const { return columns.count ? columns.stride[k][0] : items[k]; }
};

void run_kernel(const TensorIterator& it, char* const* operands, int64_t n) {
  if (it.kernel) return it.kernel(operands, n, it.parameters, it.ahead);
  memmove(operands[1], operands[0], n * it.items[1]);  // the same bits, whatever a NaN carries
}

// Operands that are contiguous as a whole are one row.
void run_rows(const TensorIterator& it, int64_t first, int64_t n) {
  const int64_t length = it.columns.size;
  int64_t row = first / length, column = first % length;
  char *p[kMaxOperands], *next[kMaxOperands];
  for (int k = 0; k < it.count; ++k) next[k] = it.row(k, row) + column * it.items[k];
  for (int64_t m; n > 0; n -= m, column = 0) {
    m = std::min(n, length - column);
    ++row;
    for (int k = 0; k < it.count; ++k) {
      p[k] = next[k], next[k] = it.row(k, row);
      prefetch_bytes(next[k], kLinesAhead * kCacheLine);
    }
    run_kernel(it, p, m);
  }
}

// The third of the ways: through one thread's buffers.
class BufferedIterator {
 public:
  explicit BufferedIterator(const TensorIterator& l) : it(l), reader(l) {
    bool repeats = false;
    for (int k = 0; k < l.count; ++k) repeats |= l.column_stride(k) == 0 || l.period[k] != 0;
    prefetches =
        repeats && l.is_flat[l.output()] && l.exceeds(kFarOutput) && prefetches_next_chunk();
  }

  void run(int64_t first, int64_t n) {
    if (!it.kernel && it.is_flat[1] && it.period[0] == 0) {
      go(first, n);
      return copy(0, reader.stored(1));
    }
    for (int64_t done = 0; done < n; done += kBuffered)
      chunk(first + done, std::min(kBuffered, n - done));
  }

 private:
  void go(int64_t first, int64_t n) {
    at = first, count = n;
    row = it.columns.count ? it.columns.divide(first, 0) : first;
    column = first - row * it.columns.size;
    reader.go(row, column, n);
  }
  void copy(int k, char* to) {
    const char* from = reader.load_stored(k, to);
    if (from != to) memmove(to, from, count * it.items[k]);
  }

  void chunk(int64_t first, int64_t n) {
    const int output = it.output();
    char* p[kMaxOperands];
    go(first, n);
    for (int k = 0; k < output; ++k) p[k] = const_cast<char*>(input(k));
    char* const to = p[output] = reader.stored_target(output, buffer[output]);
    if (prefetches) prefetch_bytes(to + kOutputAhead, n * it.items[output]);
    if (to == buffer[output] && it.reads_output) copy(output, to);
    run_kernel(it, p, n);
    reader.finish_stored(output, to, buffer[output]);
  }

  // Operand k of a chunk: where it lies, or in its buffer. An operand that repeats itself is
  // gathered once, and so often that a chunk follows each element of the first period.
  const char* input(int k) {
    const int64_t period = it.period[k], first = at, n = count;
    if (period != 0) {
      if (!is_filled[k]) {
        go(0, period);
        copy(k, buffer[k]);
        go(first, n);
        const int64_t end = (period + std::min(kBuffered, it.size())) * it.items[k];
        for (int64_t done = period * it.items[k]; done < end; done *= 2)
          memcpy(buffer[k] + done, buffer[k], std::min(done, end - done));
        is_filled[k] = true;
      }
      return buffer[k] + first % period * it.items[k];
    }
    const bool is_value = it.column_stride(k) == 0 && it.columns.size - column >= n;
    const char* const one = is_value ? it.row(k, row) : nullptr;
    if (one && one == value[k] && n <= times[k]) return buffer[k];
    value[k] = one, times[k] = n;
    return reader.load_stored(k, buffer[k]);
  }

  const TensorIterator& it;
  ChunkReader reader;
  int64_t at, row, column, count;        // where it is
  bool prefetches;                       // the output, which is contiguous
  bool is_filled[kMaxOperands] = {};     // with periods
  const char* value[kMaxOperands] = {};  // the one element that a buffer repeats
  int64_t times[kMaxOperands];
  alignas(64) char buffer[kMaxOperands][2 * kBuffered * sizeof(double)];
};

// The elements after which operand k begins anew, if a buffer holds them; else 0.
int64_t period_of(const TensorIterator& it, int k) {
  int64_t period = it.size();
  for (const OperandAxes* axes : {&it.rows, &it.columns})
    for (int axis = 0; axis < axes->count; ++axis) {
      if (axes->stride[k][axis] != 0) return period < it.size() && period <= kBuffered ? period : 0;
      period /= axes->length[axis];
    }
  return it.size() > 1;
}

void prepare(TensorIterator* it, int count, const Operand* arrays, const int* dtypes) {
  plan_operands(it, nullptr, count, arrays, dtypes, count - 1, -1, false, true);
  it->whole = true, it->by_rows = it->columns.size >= kIteratorRow;
  for (int k = 0; k < count; ++k) {
    it->period[k] = period_of(*it, k);
    it->whole &= it->is_flat[k];
    it->by_rows &= it->has_unit_stride[k] && it->period[k] == 0;
  }
  const bool is_far = it->exceeds(computes_parts() ? 0 : kFarElements) && prefetches_next_chunk();
  it->ahead = it->whole && is_far ? kAhead : 0;
  const uint64_t to_line = -reinterpret_cast<uintptr_t>(it->data[it->output()]) % kCacheLine;
  it->head = it->whole ? int64_t(to_line) / it->items[it->output()] : 0;
}

// The index-th of `partitions` equal parts of a prepared iterator, block by block. Parts are cut in
// elements and not in blocks: 50 000 float32 are 13 blocks, of which one of two threads would get
// 7. No result depends on where the cuts are.
void run_partition(const TensorIterator* it, int64_t index, int64_t partitions) {
  // Cut where the output crosses a cache line, as the blocks inside are.
  const auto cut = [&](int64_t i) {
    const int64_t size = it->size();
    return i == 0 ? 0 : std::min(begin_of_part(size, i, partitions) + it->head, size);
  };
  const int64_t first = cut(index), end = cut(index + 1);
  if (!(it->whole || it->by_rows))
    return with_frame<BufferedIterator>(
        *it, [&](BufferedIterator& stage) { stage.run(first, end - first); });
  for (int64_t at = first; at < end;) {
    const int64_t n = std::min(kBlock + (at == 0 ? it->head : 0), end - at);
    run_rows(*it, at, n);
    at += n;
  }
}

}  // namespace

void move_tile(int64_t item, char* to, Steps to_steps, const char* from, Steps from_steps,
               int64_t rows, int64_t columns) {
  const auto move = item == 1   ? move_tile_of<uint8_t>
                    : item == 2 ? move_tile_of<uint16_t>
                    : item == 4 ? move_tile_of<uint32_t>
                                : move_tile_of<uint64_t>;
  move(to, to_steps, from, from_steps, rows, columns);
}

bool& computes_parts() {
  static thread_local bool value = false;
  return value;
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
  prepare(&it, found, operands, dtypes);
  it.kernel = kernel, it.parameters = parameters, it.reads_output = reads_output;
  run_partitions(resolve_threads(it.size()), run_partition, &it);
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
