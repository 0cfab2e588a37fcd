// The tiles and pieces of an example, for forward and backward of channels_last.cpp, the
// example, and the channel coefficients of its columns.
#pragma once

#include <cstring>
#include <initializer_list>
#include <numeric>
#include <type_traits>

#include "common/norms/norms.h"
#include "cpu/norms/channels/channels_last_kernels.h"
#include "cpu/norms/rows/params.h"

namespace fastact {

constexpr int64_t kRowPiece = kPiece / kColumnRows;  // elements of a row that go by at a time
constexpr int64_t kFewChannels = 64;                 // below, pixels are joined
constexpr int64_t kLeastColumns = 16;                // of a task: a cache line of float
constexpr int64_t kRowsWorthJoining = 32;  // so many times coefficients are used, at least
constexpr int64_t kEven = 16;              // a row of joined pixels is best a multiple of

// `rows` rows of n elements: those from `column` on of rows that follow each other, or where
// pixels are joined, so many pixels each.
struct RowPiece {
  int64_t row, rows, column, n;
};

// The places of the rows of a piece, of one operand.
template <class Char>
struct PieceRows {
  Char* at[kColumnRows];
  bool is_own;  // in a buffer

  void set(Char* first, const RowPiece& piece, int64_t pitch) {
    for (int64_t r = 0; r < piece.rows; ++r) at[r] = first + r * pitch;
  }
  bool is_dense(const RowPiece& piece, int64_t compute_item) const {
    for (int64_t r = 1; r < piece.rows; ++r)
      if (at[r] != at[r - 1] + piece.n * compute_item) return false;
    return true;
  }
};

// Some groups of one example.
struct GroupTask {
  int64_t example = 0, first_group = 0, groups = 0;
};

// One thread's pass over a task.
struct ChannelsLastPass : GroupTask {
  const Norm& norm;
  const StridedOperands& s;
  const bool is_stored;  // all is read and written where it lies, else in the compute type
  const ChannelsLastKernels& kernels;
  const int64_t channels, group, pixels;
  int64_t joined;                    // pixels of a row; 1: rows are pieces of pixels,
  int64_t most_columns = kRowPiece;  // of at most so many columns
  // Rows are mapped one after the other: the hardware's prefetcher is needed, which does not follow
  // eight. 16 bits lie in a buffer, or go one by one anyway.
  const bool goes_apart;
  NormParameterReader weight, bias;
  ChunkReader reader;
  RowStats stats[kTile];    // of the task's groups
  double mean_g[2][kTile];  // of g and of g xhat
  alignas(64) char coefficients[kColumnCoefficients][kTile * sizeof(double)];

  // arrays: the operands that have an element a column.
  ChannelsLastPass(const Norm& a, std::initializer_list<int> arrays)
      : norm(a),
        s(a.operands),
        is_stored(a.is_identity && !a.accumulate && are_stored(a.operands, arrays)),
        kernels(a.table->channels_last->kernels[is_stored ? s.dtype : s.compute_dtype]),
        channels(a.operands.columns.size),
        group(a.parameters_per_row),
        pixels(a.pixels),
        joined(pixels_of_row(a.operands.columns.size)),
        goes_apart(s.size() * s.item > kNear && s.dtype == s.compute_dtype),
        weight(a, Norm::kWeight, 1.0),
        bias(a, Norm::kBias, -0.0),
        reader(a.operands) {}

  static bool are_stored(const StridedOperands& s, std::initializer_list<int> arrays) {
    return std::all_of(arrays.begin(), arrays.end(), [&](int k) {
      return !s.data[k] || (s.is_flat[k] && s.dtypes[k] == s.dtype);
    });
  }

  static int64_t pixels_of_row(int64_t channels) {
    if (channels >= kFewChannels) return 1;
    return even_pixels(channels, kRowPiece / channels);
  }
  static int64_t even_pixels(int64_t channels, int64_t most) {
    const int64_t even = kEven / std::gcd(kEven, channels);
    return most < even ? most : most / even * even;
  }

  // Rows need not fit the buffers: none is used. Longer ones are faster.
  void use_long_pieces() { most_columns = kTile; }

  // Pixels of a row where, besides, each element is mapped by itself: no order depends on it. Only
  // 16 bits gain.
  int64_t pixels_of_long_row() const {
    const bool is_whole = groups == norm.groups && s.item < s.compute_item;
    const int64_t most = std::min(kTile / channels, pixels / kRowsWorthJoining);
    return is_whole ? std::max(joined, even_pixels(channels, most)) : joined;
  }

  // Visits the tasks of one partition, of `outer` examples or blocks of them.
  template <class Visit>
  void for_tasks(int64_t outer, int64_t index, int64_t partitions, Visit visit) {
    int64_t most = std::clamp<int64_t>(kTile / group, 1, norm.groups);
    if (joined == 1 && outer % partitions != 0 && outer < kTasksPerPartition * partitions)
      most = std::clamp(norm.groups * outer / (kTasksPerPartition * partitions),
                        std::min(ceil_div(kLeastColumns, group), most), most);
    const int64_t parts = ceil_div(norm.groups, most), tasks = outer * parts;
    for (int64_t i = tasks * index / partitions; i < tasks * (index + 1) / partitions; ++i) {
      first_group = i % parts * most;
      groups = std::min(most, norm.groups - first_group);
      visit(i / parts);
    }
  }

  // Visits the task's columns as tiles: of whole groups, or of pieces of one.
  template <class Visit>
  void for_tiles(Visit visit) {
    const int64_t end = (first_group + groups) * group;
    for (int64_t first = first_group * group; first < end; first += kTile)
      visit(first, std::min(kTile, end - first));
  }

  // Visits the columns of a tile as pieces of groups: which of the task's it is, and from where on.
  template <class Visit>
  void for_groups(int64_t first, int64_t n, Visit visit) const {
    int64_t which = first / group, m = std::min((which + 1) * group - first, n);
    which -= first_group;
    for (int64_t at = 0; at < n; at += m, m = std::min(group, n - at), ++which) visit(which, at, m);
  }

  // Visits all pixels of the columns of a tile.
  template <class Visit>
  void for_pieces(int64_t first, int64_t n, Visit visit) const {
    if (joined > 1) {
      const int64_t rows = pixels / joined, rest = pixels % joined, width = joined * channels;
      for (int64_t r = 0; r < rows; r += kColumnRows)
        visit(RowPiece{r * joined, std::min(kColumnRows, rows - r), 0, width});
      if (rest) visit(RowPiece{rows * joined, 1, 0, rest * channels});
      return;
    }
    for (int64_t r = 0; r < pixels; r += kColumnRows)
      for (int64_t column = first; column < first + n; column += most_columns)
        visit(RowPiece{r, std::min(kColumnRows, pixels - r), column,
                       std::min(most_columns, first + n - column)});
  }

  // Whether the rows of a piece are whole pixels, which follow each other.
  bool are_whole(const RowPiece& piece) const { return joined > 1 || piece.n == channels; }

  // Visits what the reader can take at a time: the row's index, or 0 and all rows.
  template <class Visit>
  void for_readable_spans(const RowPiece& piece, Visit visit) {
    const int64_t row = example * pixels + piece.row;
    if (are_whole(piece)) {
      reader.go(row, 0, piece.rows * piece.n);
      visit(0);
      return;
    }
    for (int64_t r = 0; r < piece.rows; ++r) {
      reader.go(row + r, piece.column, piece.n);
      visit(r);
    }
  }

  // Operand k in one piece, of the type that the kernels take: where its rows lie is where the
  // first one does.
  bool is_plain(int k) const { return is_stored || (s.is_flat[k] && s.is_direct[k]); }
  char* plain(int k, const RowPiece& piece) const {
    return s.data[k] + ((example * pixels + piece.row) * channels + piece.column) * s.item;
  }
  int64_t pitch(const RowPiece& piece) const { return (joined > 1 ? piece.n : channels) * s.item; }

  // The rows of operand k in the type that the kernels take, in `buffer` (kPiece) unless they need
  // not be copied.
  void load(int k, const RowPiece& piece, char* buffer, PieceRows<const char>* rows) {
    if (is_plain(k)) return rows->set(plain(k, piece), piece, pitch(piece));
    const int64_t width = piece.n * s.compute_item;
    for_readable_spans(piece, [&](int64_t r) {
      const char* at = reader.load(k, buffer + r * width);
      are_whole(piece) ? rows->set(at, piece, width) : void(rows->at[r] = at);
    });
  }

  // The places where they are written: their own, or in `buffer`, of the compute type.
  void target(int k, const RowPiece& piece, bool accumulate, char* buffer, PieceRows<char>* rows) {
    rows->is_own = accumulate || !is_plain(k);
    if (rows->is_own)
      rows->set(buffer, piece, piece.n * s.compute_item);
    else
      rows->set(plain(k, piece), piece, pitch(piece));
  }
  void store(int k, const RowPiece& piece, bool accumulate, const char* buffer) {
    for_readable_spans(piece, [&](int64_t r) {
      reader.store(k, buffer + r * piece.n * s.compute_item, accumulate);
    });
  }

  // The coefficients of a piece of the tile that begins at column `first`.
  void coefficients_of(const RowPiece& piece, int64_t first, const char** at) const {
    for (int k = 0; k < kColumnCoefficients; ++k)
      at[k] = coefficients[k] + (piece.column - first) * s.compute_item;
  }

  template <class Fill>
  void fill(Fill with) {
    if (s.compute_item == sizeof(double))
      with([&](int k) { return reinterpret_cast<double*>(coefficients[k]); });
    else
      with([&](int k) { return reinterpret_cast<float*>(coefficients[k]); });
  }

  template <class T>
  void repeat(T* row) const {
    for (int64_t i = channels; i < joined * channels; ++i) row[i] = row[i - channels];
  }

  template <class T>
  void set_parameter(NormParameterReader& of, int64_t first, int64_t n, T* row) {
    const T* from = reinterpret_cast<const T*>(of.of_elements(0, first, n));
    if (of.is_there())
      memcpy(row, from, n * sizeof(T));
    else
      std::fill(row, row + n, *from);
    if (joined > 1) repeat(row);
  }

  // Mean, rstd and parameters of a tile.
  void set_statistics(int64_t first, int64_t n) {
    fill([&](auto row) {
      using T = std::decay_t<decltype(*row(0))>;
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        const Centre<T> mean = centre_of<T>(stats[which].mean);
        std::fill_n(row(kColumnHigh) + at, m, mean.high);
        std::fill_n(row(kColumnLow) + at, m, mean.low);
        std::fill_n(row(kColumnRstd) + at, m, T(stats[which].rstd));
      });
      if (joined > 1)
        for (const int k : {kColumnHigh, kColumnLow, kColumnRstd}) repeat(row(k));
      set_parameter(weight, first, n, row(kColumnWeight));
      set_parameter(bias, first, n, row(kColumnBias));
    });
  }

  // Visits where the groups of the task have their mean and rstd.
  template <class Visit>
  void for_saved(Visit visit) const {
    char* const mean = s.row(Norm::kMean, example * pixels);
    char* const rstd = s.row(Norm::kRstd, example * pixels);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t column = (first_group + g) * group;
      visit(g, mean + s.columns.offset(Norm::kMean, column),
            rstd + s.columns.offset(Norm::kRstd, column));
    }
  }
};

// Runs the activation over all rows at once where they are dense, else row by row.
template <class Run>
void for_dense(const RowPiece& piece, bool is_dense, Run run) {
  if (is_dense) return run(0, piece.rows * piece.n);
  for (int64_t r = 0; r < piece.rows; ++r) run(r, piece.n);
}

}  // namespace fastact
