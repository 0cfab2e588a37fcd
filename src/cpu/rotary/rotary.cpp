// Rotary position embedding in one pass (common/rotary/rotary.h): its native function reads all
// pairs of a row, and writes both elements of each.
//
// Rows are what the pairs' axis leaves. Where it is dense in all arrays, as halves or by
// neighbours, a kernel takes many rows at once, converts 16 bits itself and, of results too big for
// the caches, stores past these. All else passes through buffers (core/chunk_reader.h).
#include <string>

#include "cpu/core/chunk_reader.h"
#include "cpu/core/native_function.h"
#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/rotary/kernels.h"

namespace fastact {
namespace {

using Data = RotaryCall;

struct Rotary {
  StridedOperands operands;  // by RotaryCall::Data
  const RotaryKernels* kernels;
  Turn* const* direct;                // [1]: by angles of the compute type; null: through buffers
  int64_t table_rows, table_step[2];  // as RotaryOperands has them
  bool turns_back, accumulate, bypasses_caches;
};

constexpr int kRead[] = {Data::kA, Data::kB, Data::kCos, Data::kSin};
constexpr int kWritten[] = {Data::kOutA, Data::kOutB};

int64_t column_step(const StridedOperands& s, int k) {
  return s.columns.count ? s.columns.stride[k][0] : s.items[k];
}

// Whether pairs are neighbours: every element of b is one behind its a.
bool are_neighbours(const StridedOperands& s, int a, int b) {
  const auto bits = reinterpret_cast<uintptr_t>(s.data[a]);
  bool are =
      s.data[b] == s.data[a] + s.item && bits % uintptr_t(s.item) == 0 &&
      (!s.columns.count || (column_step(s, a) == 2 * s.item && column_step(s, b) == 2 * s.item));
  for (int i = 0; i < s.rows.count; ++i)
    are = are && s.rows.stride[a][i] == s.rows.stride[b][i] && s.rows.stride[a][i] % s.item == 0;
  return are;
}

// The kernels that take the arrays as they lie; null: there are none.
Turn* const* direct_kernels(const Rotary& rotary) {
  const StridedOperands& s = rotary.operands;
  const int angles = s.dtypes[Data::kCos];
  if (rotary.accumulate || (angles != s.dtype && angles != s.compute_dtype)) return nullptr;
  const auto are_dense = [&](std::initializer_list<int> which) {
    return std::all_of(which.begin(), which.end(), [&](int k) { return s.has_unit_stride[k]; });
  };
  if (!are_dense({Data::kCos, Data::kSin})) return nullptr;
  const auto& kernels = rotary.kernels->turn[s.dtype];
  if (are_dense({Data::kA, Data::kB, Data::kOutA, Data::kOutB})) return kernels[0];
  return are_neighbours(s, Data::kA, Data::kB) && are_neighbours(s, Data::kOutA, Data::kOutB)
             ? kernels[1]
             : nullptr;
}

// Whether results are whole cache lines of their own, and too big for the caches. 16 bits take up
// to a third longer past them.
bool leaves_caches(const Rotary& rotary) {
  const StridedOperands& s = rotary.operands;
  if (!rotary.direct || s.item != s.compute_item || s.data[Data::kOutA] == s.data[Data::kA])
    return false;
  const bool is_packed = column_step(s, Data::kOutA) != s.item;
  auto bits = uintptr_t(s.columns.size * s.item * (is_packed ? 2 : 1));
  for (const int k : kWritten) {
    if (k == Data::kOutA || !is_packed) bits |= reinterpret_cast<uintptr_t>(s.data[k]);
    for (int i = 0; i < s.rows.count; ++i) bits |= uintptr_t(s.rows.stride[k][i]);
  }
  return bits % kCacheLine == 0 && exceeds_caches(2 * s.size() * s.item);
}

// Bytes of results that are made before they are stored past the caches. Meanwhile the next
// elements are prefetched: of two halves side by side the hardware's prefetcher loses the thread,
// and they took twice as long and more.
constexpr int64_t kStreamed = 2048;

// One thread's pairs.
struct Pairs {
  const Rotary& rotary;
  const StridedOperands& s;
  ChunkReader reader;
  alignas(64) char buffers[4][kPiece * sizeof(double)];

  explicit Pairs(const Rotary& r) : rotary(r), s(r.operands), reader(r.operands) {}

  // So many rows that neighbour along the last axis of rows, or less than a row.
  void turn(int64_t row, int64_t rows, int64_t column, int64_t n) {
    PairRows of{};
    for (int k = 0; k < Data::kArrays; ++k) {
      if (k == Data::kPositions) continue;
      of.at[k] = s.row(k, row) + column * column_step(s, k);
      of.step[k] = s.rows.count ? s.rows.stride[k][s.rows.count - 1] : 0;
    }
    if (rotary.table_rows) {
      // It was compared, and another thread may have changed it since.
      const int64_t position =
          std::clamp(integer_at(s.dtypes[Data::kPositions], s.row(Data::kPositions, row)),
                     int64_t(0), rotary.table_rows - 1);
      for (int k = 0; k < 2; ++k) of.at[Data::kCos + k] += position * rotary.table_step[k];
    }
    of.sign[0] = rotary.turns_back ? -1 : 1, of.sign[1] = -of.sign[0];
    of.rows = rows, of.pairs = n;
    if (!rotary.direct) return turn_by_buffers(of, row, column, n);
    bool are_wide = s.dtypes[Data::kCos] == s.compute_dtype;
    if (!are_wide && rows > 1 && n <= kPiece && !of.step[Data::kCos] && !of.step[Data::kSin]) {
      for (const int k : {Data::kCos, Data::kSin})  // which the rows share
        s.kernels->to_compute[s.dtypes[k]](of.at[k], buffers[k], n), of.at[k] = buffers[k];
      are_wide = true;
    }
    Turn* const kernel = rotary.direct[are_wide];
    rotary.bypasses_caches ? turn_past_caches(of, kernel) : kernel(of);
  }

  // Results are made in a buffer, from which they are stored: of rows that lie side by side as many
  // as there is room for, else of one row at most.
  void turn_past_caches(const PairRows& of, Turn* kernel) {
    const int64_t m = std::min(of.pairs, kStreamed / (2 * s.item)), bytes = m * s.item;
    const bool are_packed = column_step(s, Data::kOutA) != s.item;
    const bool is_whole = are_packed || of.at[Data::kOutB] == of.at[Data::kOutA] + bytes;
    const bool are_joined = is_whole && m == of.pairs && of.step[Data::kOutA] == 2 * bytes &&
                            of.step[Data::kOutB] == 2 * bytes;
    const int64_t most = are_joined ? kStreamed / (2 * bytes) : 1;
    PairRows piece = of;
    for (int64_t row = 0; row < of.rows; row += piece.rows)
      for (int64_t done = 0; done < of.pairs; done += m) {
        piece.rows = std::min(most, of.rows - row), piece.pairs = std::min(m, of.pairs - done);
        for (int k = 0; k < Data::kArrays; ++k)
          piece.at[k] = of.at[k] + row * of.step[k] + done * column_step(s, k);
        char *const to_a = piece.at[Data::kOutA], *const to_b = piece.at[Data::kOutB];
        char *const a = buffers[0], *const b = a + (are_packed ? s.item : bytes);
        piece.at[Data::kOutA] = a, piece.at[Data::kOutB] = b;
        piece.step[Data::kOutA] = piece.step[Data::kOutB] = 2 * bytes;
        const int64_t half = piece.rows * piece.pairs * s.item;
        prefetch_bytes(piece.at[Data::kA] + kAhead, 2 * half);
        kernel(piece);
        s.kernels->stream(a, to_a, is_whole ? 2 * half : half);
        if (!is_whole) s.kernels->stream(b, to_b, half);
      }
  }

  // A part of a row. Each result may lie in the buffer of its operand.
  void turn_by_buffers(PairRows of, int64_t row, int64_t column, int64_t n) {
    for (int64_t done = 0, m; done < n; done += m) {
      m = std::min(kPiece, n - done);
      reader.go(row, column + done, m);
      PairRows piece = of;
      for (int k = 0; k < 4; ++k)
        piece.at[k] = k < Data::kCos
                          ? const_cast<char*>(reader.load(k, buffers[k]))
                          : (read_angles(k, of.at[k] + done * column_step(s, k), m), buffers[k]);
      for (int k = 0; k < 2; ++k)
        piece.at[kWritten[k]] = reader.target(kWritten[k], buffers[k], rotary.accumulate);
      piece.rows = 1, piece.pairs = m;
      rotary.kernels->turn[s.compute_dtype][0][0](piece);
      for (int k = 0; k < 2; ++k)
        reader.finish(kWritten[k], piece.at[kWritten[k]], buffers[k], rotary.accumulate);
    }
  }

  void read_angles(int k, const char* from, int64_t n) {
    read_strided(*s.kernels, s.dtypes[k], s.compute_dtype, from, column_step(s, k), n, buffers[k]);
  }
};

// The rows of a run that a kernel takes at once: they are along one axis, at one position or none.
int64_t rows_at_once(const Rotary& rotary, int64_t row, int64_t most) {
  const StridedOperands& s = rotary.operands;
  const int last = s.rows.count - 1;
  if (!rotary.direct || last < 0) return 1;
  if (rotary.table_rows && s.rows.stride[Data::kPositions][last] != 0) return 1;
  return std::min(most, s.rows.length[last] - row % s.rows.length[last]);
}

// Plans a call that is not empty.
void prepare(Rotary* rotary, const KernelTable* table, const RotaryCall& call) {
  const RotaryOperands given(call);
  plan_rows(&rotary->operands, table->convert, Data::kArrays, given.arrays, given.dtypes,
            given.pairs, false);
  rotary->kernels = table->rotary;
  rotary->table_rows = given.table_rows;
  std::copy_n(given.table_step, 2, rotary->table_step);
  rotary->turns_back = call.turns_back, rotary->accumulate = call.accumulate;
  rotary->direct = direct_kernels(*rotary);
  rotary->bypasses_caches = leaves_caches(*rotary);
}

// Tells whether the table has a row for each position.
bool has_valid_positions(const RotaryCall& call) {
  const ArrayArgument& positions = call.data[Data::kPositions];
  if (is_empty(positions)) return true;
  OperandAxes axes;
  for (int i = 0; i < positions.ndim; ++i) {
    const int64_t step = byte_stride(positions, i, item_size(positions.dtype));
    const bool repeats = step == 0 || positions.shape[i] == 1;
    if (!repeats) axes.append({positions.shape[i], {step}, 0}, 1);
  }
  bool are_valid = true;
  for (int64_t i = 0; i < axes.size; ++i) {
    const int64_t number = integer_at(positions.dtype, positions.data + axes.offset(0, i));
    are_valid &= number >= 0 && number < call.data[Data::kCos].shape[0];
  }
  return are_valid;
}

void rotary_partition(const Rotary* rotary, int64_t index, int64_t partitions) {
  const StridedOperands& s = rotary->operands;
  with_frame<Pairs>(*rotary, [&](Pairs& pairs) {
    for_rows(s.size(), s.columns.size, index, partitions,
             [&](int64_t row, int64_t rows, int64_t column, int64_t n) {
               for (int64_t end = row + rows; row < end; row += rows) {
                 rows = rows_at_once(*rotary, row, end - row);
                 pairs.turn(row, rows, column, n);
               }
             });
    if (rotary->bypasses_caches) std::atomic_thread_fence(std::memory_order_seq_cst);
  });
}

// A position that the table lacks is taken for its first or its last row.
void turn_unchecked(const RotaryCall& call, const KernelTable* kernels) noexcept {
  const int64_t size = size_of(call.data[Data::kA]);
  if (size == 0) return;
  Rotary rotary;
  prepare(&rotary, kernels, call);
  run_partitions(resolve_threads(2 * size), rotary_partition, &rotary);
}

void turn_checked(const RotaryCall& call, Execution* execution) {
  if (call.data[Data::kPositions].shape && !has_valid_positions(call))
    throw std::invalid_argument(std::string("fastact.") + (call.op ? call.op : "rotary") +
                                ": positions must be from 0 to " +
                                std::to_string(call.data[Data::kCos].shape[0] - 1) +
                                ", rows of cos, got another number");
  turn_unchecked(call, execution->kernels);
}

}  // namespace

void add_rotary(std::vector<NativeFunction>* functions) {
  NativeFunction rotary = native_function<turn_checked>(kRotary);
  rotary.run_part = native_function<turn_unchecked>(kRotary).run_part;
  functions->push_back(rotary);
}

}  // namespace fastact
