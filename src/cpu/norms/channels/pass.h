// A thread's pass over the arrays of a norm of channels, piece by piece: batch_norm
// (channels/batch_norm.h), and groups of channels that come last (channels/groups.cpp).
//
// A piece is some rows of the plan (core/chunk_reader.h) and some of their columns. Where the
// channels are the columns, several pixels of few channels are joined to one row: a pixel is then
// shorter than a vector. Pieces are computed in the compute type, in buffers that stay in the
// first-level cache, with the activation's kernel on them. Where nothing lies between the arrays
// and the kernels, no buffer is used, and 16 bits are converted in registers.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/core/scratch.h"
#include "cpu/norms/channels/kernels.h"

namespace fastact {

constexpr int64_t kLongPiece = 4096;  // elements of a piece that needs no buffer, about
constexpr int64_t kEven = 16;         // a row of joined pixels is best a multiple of

// Pixels of `channels` channels that are joined to one row of at most so many columns, if they are
// few.
inline int64_t joined_pixels(int64_t channels, int64_t columns) {
  const int64_t most = columns / channels, even = kEven / std::gcd(kEven, channels);
  return most < even ? std::max<int64_t>(most, 1) : most / even * even;
}
// So many are joined where sums are made: their order depends on it.
inline int64_t joined_pixels(int64_t channels) {
  return channels < kShortRow ? joined_pixels(channels, kPiece / kRowsAtOnce) : 1;
}

// Rows are channels that are too short for a loop each.
inline bool has_short_rows(const StridedOperands& s) {
  return s.is_channel_outer && s.columns.size < kLeastSegment;
}

// The coefficients of channels side by side, of the compute type: number k of channel i is element
// k * pitch + i.
struct Coefficients {
  char* at;
  int64_t pitch;
  bool is_double;

  // Fills those from `begin` to `end` by fill_rows(row), where row(k) are the numbers k, and
  // repeats each of n channels up to the size-th.
  template <class Fill>
  void fill(int begin, int end, int64_t n, int64_t size, Fill fill_rows) const {
    const auto fill_all = [&](auto* first) {
      const auto row = [=](int k) { return first + k * pitch; };
      fill_rows(row);
      for (int k = begin; k < end; ++k)
        for (int64_t i = n; i < size; ++i) row(k)[i] = row(k)[i - n];
    };
    is_double ? fill_all(reinterpret_cast<double*>(at)) : fill_all(reinterpret_cast<float*>(at));
  }
};

// Some rows from one on, and n columns of each, from one on. Rows of joined pixels are longer than
// those of the plan, of which `row` is the first.
struct ChannelPiece {
  int64_t row, rows, column, n;
};

// Job: BatchNorm or Norm.
template <class Job>
struct ChannelPass {
  // The numbers of the operands that a pass has; -1: it has none.
  struct Operands {
    int dy, x, out;
  };

  const Job& norm;
  const StridedOperands& s;
  const Operands of;
  const bool is_stored;  // all is read and written where it lies, else in the compute type
  const bool needs_buffer;
  const bool is_column;   // coefficients are one an element, else one a row
  const bool goes_apart;  // rows of columns: the hardware's prefetcher does not follow many
  const int dtype;        // the kernels'
  const ChannelFormula& formula;
  const Coefficients numbers;
  const int64_t channel_rows;  // after so many rows the channels begin anew
  ChunkReader reader;
  const char* coefficients[kCoefficients];  // of a piece
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char made[kPiece * sizeof(double)];

  // near: bytes of an operand up to which rows of columns go together.
  template <class FormulaOf>
  ChannelPass(const Job& job, const Operands& operands, int64_t near, const Coefficients& all,
              FormulaOf formula_of)
      : norm(job),
        s(job.operands),
        of(operands),
        is_stored(lies_stored()),
        needs_buffer(!norm.is_identity || !is_plain(of.dy) || !is_plain(of.x) ||
                     (adds() || !is_plain(of.out))),
        is_column(!s.is_channel_outer),
        goes_apart(s.size() * s.item > near && s.dtype == s.compute_dtype),
        dtype(is_stored ? s.dtype : s.compute_dtype),
        formula(formula_of(dtype)),
        numbers(all),
        channel_rows(is_column      ? INT64_MAX
                     : s.rows.count ? s.rows.length[s.rows.count - 1]
                                    : 1),
        reader(s) {}

  bool is_there(int k) const { return k >= 0 && s.data[k]; }
  bool adds() const { return norm.accumulate && of.out >= 0; }
  bool lies_stored() const {
    bool is = norm.is_identity && !adds() && !has_short_rows(s);  // they are converted together
    for (const int k : {of.dy, of.x, of.out})
      is &= !is_there(k) || (s.is_flat[k] && s.dtypes[k] == s.dtype);
    return is;
  }

  // Whether the kernels take an operand where it lies.
  bool is_plain(int k) const {
    return is_stored || !is_there(k) || (s.is_flat[k] && s.is_direct[k]);
  }
  StridedRows plain(int k, const ChannelPiece& c) const {
    return {s.data[k] + (c.row * s.columns.size + c.column) * s.item,
            std::max(c.n, s.columns.size)};
  }

  // Visits what the reader takes at a time, where it then is: from which element of the piece on.
  template <class Visit>
  void for_spans(const ChannelPiece& c, Visit visit) {
    if (is_whole(c)) {
      reader.go(c.row, c.column, c.rows * c.n);
      return visit(0);
    }
    for (int64_t r = 0; r < c.rows; ++r) {
      reader.go(c.row + r, c.column, c.n);
      visit(r * c.n);
    }
  }
  bool is_whole(const ChannelPiece& c) const { return c.rows == 1 || c.n >= s.columns.size; }

  // An operand as the kernels take it, in `buffer` (kPiece) unless it need not be copied.
  StridedRows load(int k, const ChannelPiece& c, char* buffer) {
    if (is_plain(k)) return plain(k, c);
    char* first = buffer;
    for_spans(c, [&](int64_t at) {
      char* const to = buffer + at * s.compute_item;
      const char* const from = reader.load(k, to);
      if (from == to) return;
      if (is_whole(c))
        first = const_cast<char*>(from);
      else
        memcpy(to, from, c.n * s.compute_item);
    });
    return {first, c.n};
  }
  // The place where the output is made; `finish` stores it where that is the buffer.
  StridedRows target(const ChannelPiece& c, char* buffer) {
    if (!norm.accumulate && is_plain(of.out)) return plain(of.out, c);
    if (!is_whole(c)) return {buffer, c.n};
    reader.go(c.row, c.column, c.rows * c.n);
    return {reader.target(of.out, buffer, norm.accumulate), c.n};
  }
  void finish(const ChannelPiece& c, const StridedRows& at, const char* buffer) {
    if (at.first != buffer) return;
    for_spans(c, [&](int64_t first) {
      reader.store(of.out, buffer + first * s.compute_item, norm.accumulate);
    });
  }

  // Finds the coefficients of a piece that begins at a channel.
  void set_coefficients(int64_t channel) {
    for (int k = 0; k < kCoefficients; ++k)
      coefficients[k] = numbers.at + (k * numbers.pitch + channel) * s.compute_item;
  }

  void map(const ChannelMap (&by)[2], StridedRows a, StridedRows b, StridedRows to,
           const ChannelPiece& c) const {
    by[is_column](a, b, coefficients, to, c.rows, c.n, goes_apart);
  }

  // Runs the activation's kernel over operands of a piece: at once where their rows touch.
  template <int count>
  void activate(const ChannelPiece& c, const StridedRows (&rows)[count]) const {
    bool touch = true;
    for (const StridedRows& each : rows) touch &= c.rows == 1 || each.pitch == c.n;
    const int64_t calls = touch ? 1 : c.rows;
    for (int64_t r = 0; r < calls; ++r) {
      char* operands[count];
      for (int k = 0; k < count; ++k)
        operands[k] = rows[k].first + r * rows[k].pitch * s.compute_item;
      norm.activation(operands, c.rows * c.n / calls, norm.parameters, 0);
    }
  }

  // The steps of a piece, whose coefficients are set.
  void forward(const ChannelPiece& c) {
    const StridedRows from = load(of.x, c, x), to = target(c, z);
    map(formula.normalise, from, from, to, c);
    if (!norm.is_identity) activate(c, {to, to});
    finish(c, to, z);
  }
  // p = dy f'(z) of the rows of x, in `to` where it has to be computed.
  StridedRows p_of(const ChannelPiece& c, StridedRows of_x, StridedRows to) {
    const StridedRows gradient = load(of.dy, c, dy), of_z{z, c.n};
    if (norm.is_identity) return gradient;
    map(formula.normalise, of_x, of_x, of_z, c);
    activate(c, {gradient, of_z, to});
    return to;
  }
  void make_gradient(const ChannelPiece& c, const ChannelMap (&by)[2], StridedRows p,
                     StridedRows of_x) {
    const StridedRows to = target(c, made);
    map(by, p, of_x, to, c);
    finish(c, to, made);
  }

  // Visits pieces of some columns, `joined` pixels a row, as many rows as are worth a call: of a
  // buffer, or a multiple of `least`. No two rows of a piece are one channel.
  template <class Visit>
  void for_pieces(const ChannelPiece& all, int64_t joined, int64_t least, Visit visit) const {
    const int64_t n = joined * all.n, rows = all.rows / joined, rest = all.rows % joined;
    const int64_t width = needs_buffer ? std::min(n, kPiece / least) : n;
    const int64_t fit = needs_buffer ? kPiece / width : std::max(kLongPiece / width, kRowsAtOnce);
    const int64_t step = fit / least * least;
    for (int64_t r = 0, m; r < rows; r += m) {
      m = std::min({step, rows - r, channel_rows - (all.row + r) % channel_rows});
      for (int64_t column = 0; column < n; column += width)
        visit(ChannelPiece{all.row + r * joined, m, all.column + column,
                           std::min(width, n - column)});
    }
    if (rest) visit(ChannelPiece{all.row + rows * joined, 1, all.column, rest * all.n});
  }

  // sums OUT [2]: of each column of `all`, of p and of what the formula adds up besides.
  // p_and_x(piece, p OUT, x OUT) sets the coefficients too. A row of joined pixels is no longer
  // than kTile.
  template <class Fetch>
  void add_columns(const ChannelPiece& all, int64_t joined, bool apart, double (*sums)[kTile],
                   Fetch p_and_x) const {
    for (int k = 0; k < 2; ++k) std::fill_n(sums[k], joined * all.n, 0.0);
    for_pieces(all, joined, kRowsAtOnce, [&](const ChannelPiece& c) {
      StridedRows p, of_x;
      p_and_x(c, &p, &of_x);
      const int64_t at = c.column - all.column;
      formula.add_rows(p, of_x, coefficients, c.rows, c.n, apart, sums[0] + at, sums[1] + at);
    });
    for (int k = 0; k < 2; ++k)
      for (int64_t i = all.n; i < joined * all.n; ++i) sums[k][i % all.n] += sums[k][i];
  }
};

}  // namespace fastact
