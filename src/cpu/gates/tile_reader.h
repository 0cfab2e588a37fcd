// Reads tiles of rows and columns for the passes over recurrent gates, through buffers where
// operands need them (gates.h).
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/core/chunk_reader.h"
#include "cpu/core/span_iterator.h"
#include "cpu/gates/gates.h"

namespace fastact {

inline bool is_gate_output(bool backward, int index) {
  return index >= kGateOut || (!backward && (index == kHidden || index == kCell));
}

// One thread's rows and columns.
class GateTiles {
 public:
  // sums: 16-bit gradients are wanted as they are before they are rounded.
  explicit GateTiles(const Gates& gates, bool sums = false) : g(gates), has_sums(sums) {
    if (g.backward && g.kind == kLstm && !g.operands[kCellGradient].data)
      memset(buffers[kCellGradient], 0, sizeof buffers[0]);
  }

  int64_t most_columns() const {
    const bool is_buffered = g.converting ? has_sums : g.moves || g.lacks;
    return is_buffered ? kGatePiece : kColumns;
  }

  // Rows first .. first + n, of all columns from `column` on to `end`.
  void run(int64_t first, int64_t n, int64_t column, int64_t end) {
    for (int64_t m; column < end; column += m) {
      m = std::min(most_columns(), end - column);
      if (g.converting && m > kGateStep) m -= m % kGateStep;
      for (int64_t done = 0; done < n;) done += tile(first + done, n - done, column, m);
    }
  }

  // The longest span of rows, n at most, that is done at once. What was made of it can be found by
  // `made`, until the next one.
  int64_t tile(int64_t row, int64_t n, int64_t column, int64_t columns) {
    const bool converts = g.converting && columns % kGateStep == 0, moves = g.moves && !converts;
    if (g.rows.count) {
      const int last = g.rows.count - 1;
      n = std::min(n, (g.rows.divide(row, last) + 1) * g.rows.length[last] - row);
    }
    if (moves || (converts && has_sums))
      n = std::min(n, std::max<int64_t>(1, kGatePiece / columns));
    make_bias(column, columns, g.is_joined ? n : 1);
    GateRows rows;
    const int shift = __builtin_ctzll(uint64_t(g.item));  // a division takes longer than the rest
    for (int index = 0; index < kStates; ++index) {
      const GateOperand& s = g.operands[index];
      rows.data[index] = converts && is_gate_output(g.backward, index) ? unwanted : buffers[index];
      rows.step[index] = moves ? columns : 0;
      rows.made[index] = has_sums ? reinterpret_cast<float*>(buffers[index]) : nullptr;
      if (!s.data) continue;
      at[index] = s.data + g.rows.offset(s.array, row) + column * s.column;
      if (converts || is_direct(index)) {
        rows.data[index] = at[index];
        rows.step[index] = g.row_step(s) >> shift;
      } else if (!is_gate_output(g.backward, index)) {
        load(index, n, columns);
      }
    }
    for (int k = 0; k < g.biases; ++k)
      rows.data[kGateBias + k] = bias_row[k], rows.step[kGateBias + k] = 0;
    if (g.is_joined)
      g.kernel(rows, 1, n * columns);
    else
      (converts ? g.converting : g.kernel)(rows, n, columns);
    if (!moves) return n;
    for (int index = 0; index < kStates; ++index)
      if (g.operands[index].data && is_gate_output(g.backward, index) && !is_direct(index))
        store(index, n, columns);
    return n;
  }

  bool is_direct(int index) const {
    return g.operands[index].is_direct && !g.is_joined &&
           !(g.accumulate && is_gate_output(g.backward, index));
  }
  // The compute type's values of an output that is not direct, or not wanted.
  const char* made(int index) const { return buffers[index]; }

 private:
  static constexpr int64_t kColumns = kPiece;    // columns of a tile, at most
  static constexpr int kStates = kStateOut + 1;  // operands

  void load(int index, int64_t n, int64_t columns) {
    const GateOperand& s = g.operands[index];
    for (int64_t row = 0; row < n; ++row)
      read_strided(*g.kernels, g.dtype, g.compute_dtype, at[index] + row * g.row_step(s), s.column,
                   columns, buffers[index] + row * columns * g.compute_item);
  }

  void store(int index, int64_t n, int64_t columns) {
    const GateOperand& s = g.operands[index];
    for (int64_t row = 0; row < n; ++row)
      write_strided(*g.kernels, g.dtype, buffers[index] + row * columns * g.compute_item,
                    at[index] + row * g.row_step(s), s.column, columns, g.accumulate);
  }

  // The biases of these columns (kPiece at most) in the compute type, `times` times.
  void make_bias(int64_t column, int64_t columns, int64_t times) {
    if (column == bias_column && columns == bias_columns && times <= bias_times) return;
    bias_column = column, bias_columns = columns, bias_times = times;
    char* none = nullptr;  // the row that stands for all biases that are not there
    for (int k = 0; k < g.biases; ++k) {
      const bool is_double = g.compute_dtype == kF64;
      int found = 0;
      for (const ChannelArray& b : g.bias[k]) {
        if (!b.data) continue;
        char* to = found++ ? stage : bias[k];
        read_strided(*g.kernels, b.dtype, g.compute_dtype, b.data + column * b.stride, b.stride,
                     columns, to);
        if (to == stage) g.kernels->plus[is_double](bias[k], stage, bias[k], columns);
      }
      bias_row[k] = found || !none ? bias[k] : none;
      if (bias_row[k] == none) continue;
      if (!found) none = bias[k];
      if (!found && is_double) std::fill_n(reinterpret_cast<double*>(bias[k]), columns, -0.0);
      if (!found && !is_double) std::fill_n(reinterpret_cast<float*>(bias[k]), columns, -0.0f);
      for (int64_t i = 1; i < times; ++i)
        memcpy(bias[k] + i * columns * g.compute_item, bias[k], columns * g.compute_item);
    }
  }

  const Gates& g;
  const bool has_sums;
  char* at[kStates];  // where the tile begins
  int64_t bias_column = -1, bias_columns = 0, bias_times = 0;
  alignas(64) char buffers[kStates][kGatePiece * sizeof(double)];
  alignas(64) char unwanted[kGatePiece * sizeof(double)];  // outputs of 16 bits
  static_assert(kColumns * sizeof(uint16_t) <= sizeof unwanted, "a row of them");
  char* bias_row[kMostGates];
  alignas(64) char bias[kMostGates][kColumns * sizeof(double)];
  alignas(64) char stage[kColumns * sizeof(double)];
};

}  // namespace fastact
