// The passes of batch_norm over its arrays, a share of each: chunk by chunk (batch_norm.h).
#include <algorithm>

#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/norms/channels/batch_norm.h"

namespace fastact {
namespace {

constexpr int64_t kCut = 64;        // elements: whole cache lines of every dtype
constexpr int64_t kNear = 2 << 20;  // bytes of x that stay in a cache
// Where both passes go by channels:
constexpr int64_t kUnit = 128 << 10;   // bytes of x that are near the second time
constexpr int64_t kRunOfLines = 2048;  // elements of lines side by side, at least
constexpr int64_t kUnitsOfShare = 4;   // of which a share is better even

// One thread's chunks.
struct Chunks {
  const BatchNorm& norm;
  const Streams& s;
  Reader reader;
  const char* coefficients[kCoefficients];
  int used = 0;           // coefficients, the first of them
  const int64_t longest;  // elements of a chunk
  const int64_t at_once;  // rows of a chunk
  const bool is_near;     // they go by together, else one after the other
  const bool is_short;    // lines share a chunk
  bool is_row = false;
  int64_t row_count = 1;  // of a chunk, where they go by together
  alignas(64) char x_buffer[kPiece * sizeof(double)];
  alignas(64) char dy_buffer[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char out[kPiece * sizeof(double)];
  alignas(64) char spread[kCoefficients][kPiece * sizeof(double)];

  explicit Chunks(const BatchNorm& n)
      : norm(n),
        s(n.streams),
        reader(n.streams),
        longest(longest_of(n)),
        at_once(most_rows(n)),
        is_near(n.streams.size() * n.streams.item <= kNear),
        is_short(n.streams.columns.size < shortest_of(n)) {}

  // Of a row that has a call of its own.
  static int64_t shortest_of(const BatchNorm& n) {
    return n.streams.is_channel_line ? kLeastLine : kShortLine;
  }

  // What needs no buffer is as long as it likes.
  static bool is_plain(const BatchNorm& n) {
    const Streams& s = n.streams;
    bool is_plain = n.is_identity && !n.accumulate;
    for (int k = 0; k <= BatchNorm::kOut; ++k)
      if (s.data[k]) is_plain &= s.is_direct[k] && s.is_flat[k];
    return is_plain;
  }

  static bool are_flat(const Streams& s) {
    bool are = true;
    for (int k = 0; k <= BatchNorm::kOut; ++k) are &= !s.data[k] || s.is_flat[k];
    return are;
  }

  static int64_t longest_of(const BatchNorm& n) {
    const int64_t columns = n.streams.columns.size;
    return is_plain(n) ? std::max(columns, kRowsAtOnce * kTile) : kPiece;
  }

  // Whole rows of a chunk: eight of one set of coefficients, or lines of channels side by side.
  static int64_t most_rows(const BatchNorm& n) {
    const int64_t columns = n.streams.columns.size;
    if (columns < shortest_of(n) || (n.streams.is_channel_line && !are_flat(n.streams))) return 1;
    const int64_t rows = std::max<int64_t>(longest_of(n) / columns, 1);
    return n.streams.is_channel_line ? rows : std::min(rows, kRowsAtOnce);
  }

  const char* coefficient(int k, int64_t channel) const {
    return norm.coefficients + (k * norm.pitch + channel) * s.wide;
  }

  // n elements from (line, column) on, and the coefficients that go with them.
  void go(int64_t line, int64_t column, int64_t n) {
    reader.go(line, column, n);
    is_row = !s.is_channel_line || is_short;
    row_count = at_once > 1 && column == 0 ? std::max<int64_t>(n / s.columns.size, 1) : 1;
    if (!s.is_channel_line)
      for (int k = 0; k < used; ++k) coefficients[k] = coefficient(k, column);
    else if (!is_row)
      for (int k = 0; k < used; ++k) coefficients[k] = coefficient(k, line % norm.channels);
    else
      spread_over(line, column, n);
  }

  void spread_over(int64_t line, int64_t column, int64_t n) {
    for (int k = 0; k < used; ++k) coefficients[k] = spread[k];
    for (int64_t done = 0; done < n; ++line, column = 0) {
      const int64_t m = std::min(n - done, s.columns.size - column);
      for (int k = 0; k < used; ++k) {
        const char* value = coefficient(k, line % norm.channels);
        if (s.wide == sizeof(float))
          std::fill_n(reinterpret_cast<float*>(spread[k]) + done, m,
                      *reinterpret_cast<const float*>(value));
        else
          std::fill_n(reinterpret_cast<double*>(spread[k]) + done, m,
                      *reinterpret_cast<const double*>(value));
      }
      done += m;
    }
  }

  // The longest chunk from `column` of a line on.
  int64_t most(int64_t line, int64_t column, int64_t left) const {
    const int64_t columns = s.columns.size;
    if (is_short) return std::min(kPiece, left);
    if (at_once > 1 && column == 0 && left >= columns) {
      const int64_t rows = std::min(at_once, left / columns);
      return columns *
             (s.is_channel_line ? std::min(rows, norm.channels - line % norm.channels) : rows);
    }
    return std::min({longest, left, columns - column});
  }

  // Of one row of a chunk.
  int64_t width_of(int64_t n) const { return row_count > 1 ? s.columns.size : n; }

  // Visits the rows of a chunk: from which element on, how many. Together they take their
  // coefficients once, but beyond the caches the hardware's prefetcher does not follow eight.
  template <class Visit>
  void for_rows(int64_t n, Visit visit) const {
    if (is_near || row_count == 1 || s.is_channel_line) return visit(0, row_count);
    for (int64_t at = 0, width = s.columns.size; at < n; at += width) visit(at * s.wide, 1);
  }

  void normalise(const char* x, char* to, int64_t n) {
    if (row_count > 1)
      for_rows(n, [&](int64_t at, int64_t rows) {
        norm.blocks->normalise_rows[is_row](x + at, coefficients, to + at, rows, s.columns.size);
      });
    else
      norm.blocks->normalise[is_row](x, coefficients, to, n);
  }

  void forward(int64_t n) {
    char* y = reader.direct(BatchNorm::kOut);
    char* to = y ? y : z;
    normalise(reader.load(BatchNorm::kX, x_buffer), to, n);
    char* const operands[] = {to, to};
    if (!norm.is_identity) norm.activation(operands, n, norm.parameters);
    if (!y) reader.store(BatchNorm::kOut, z, false);
  }

  // p = dy f'(z).
  const char* gradient_of_z(const char* x, int64_t n) {
    const char* dy = reader.load(BatchNorm::kDy, dy_buffer);
    if (norm.is_identity) return dy;
    normalise(x, z, n);
    char* const operands[] = {const_cast<char*>(dy), z, z};
    norm.activation(operands, n, norm.parameters);
    return z;
  }

  void backward(int64_t n) {
    const char* x =
        norm.is_training || !norm.is_identity ? reader.load(BatchNorm::kX, x_buffer) : nullptr;
    const char* p = gradient_of_z(x, n);
    char* dx = norm.accumulate ? nullptr : reader.direct(BatchNorm::kOut);
    char* to = dx ? dx : out;
    const int64_t m = width_of(n);
    if (norm.is_training && row_count > 1)
      for_rows(n, [&](int64_t at, int64_t rows) {
        norm.blocks->gradient_rows[is_row](p + at, x + at, coefficients, to + at, rows, m);
      });
    else if (norm.is_training)
      norm.blocks->gradient[is_row](p, x, coefficients, to, n);
    else if (row_count > 1 && !is_row)
      norm.blocks->scale_rows(p, coefficients, to, row_count, m);
    else
      for (int64_t at = 0; at < n; at += m)
        norm.blocks->scale[is_row](p + at * s.wide, coefficients, to + at * s.wide, m);
    if (!dx) reader.store(BatchNorm::kOut, out, norm.accumulate);
  }

  // Visits elements first .. end as chunks.
  template <class Visit>
  void for_chunks(int64_t first, int64_t end, Visit visit) {
    const int64_t columns = s.columns.size;
    int64_t line = first / columns, column = first % columns;
    for (int64_t n; first < end; first += n) {
      n = most(line, column, end - first);
      go(line, column, n);
      visit(n);
      line += (column + n) / columns;
      column = (column + n) % columns;
    }
  }

  template <class Visit>
  void for_share(int64_t index, int64_t shares, Visit visit) {
    const int64_t size = s.size();
    const int64_t step = at_once > 1 && !s.is_channel_line ? s.columns.size : kCut;
    const auto cut = [&](int64_t i) {
      return i == shares ? size : size / shares * i / step * step;
    };
    for_chunks(cut(index), cut(index + 1), visit);
  }

  // All chunks of channels first .. first + n, where channels are lines.
  template <class Visit>
  void for_channels(int64_t first, int64_t n, Visit visit) {
    const int64_t columns = s.columns.size;
    for (int64_t line = first; line < s.lines.size; line += norm.channels)
      for_chunks(line * columns, (line + n) * columns, visit);
  }
};

// One thread's sums of p and p (x - mean).
struct Sums : Chunks {
  const bool is_whole;  // dy and x lie in one piece and are summed as they are
  explicit Sums(const BatchNorm& n)
      : Chunks(n), is_whole(n.is_identity && is_piece(BatchNorm::kDy) && is_piece(BatchNorm::kX)) {}

  bool is_piece(int k) const { return s.is_direct[k] && s.is_flat[k]; }
  alignas(64) char lanes[2 * kPiece * sizeof(double)];
  alignas(64) double wide_lanes[2 * kPiece];

  // Short lines, of n / columns channels: to [2] of each.
  void add_short(int64_t n, double* to) {
    const char* x = reader.load(BatchNorm::kX, x_buffer);
    const char* p = gradient_of_z(x, n);
    const char* one[kCoefficients];
    const int64_t columns = s.columns.size;
    for (int64_t done = 0; done < n; done += columns, to += 2) {
      for (int k = 0; k < used; ++k) one[k] = coefficients[k] + done * s.wide;
      norm.blocks->add_line(p + done * s.wide, x + done * s.wide, one, columns, to);
    }
  }

  // Chunk `chunk` of a tile of channels, where they are lines; short lines go together.
  void lines(int64_t chunk, int64_t first, int64_t n) {
    const int64_t outer = s.lines.size / norm.channels, pieces = outer * norm.cuts;
    const int64_t begin = pieces * chunk / norm.chunks, end = pieces * (chunk + 1) / norm.chunks;
    double* to = norm.partial + 2 * chunk * norm.channels + first;
    if (!is_short && is_whole && norm.cuts == 1) {
      go(begin * norm.channels + first, 0, s.columns.size);
      return norm.blocks->add_channels(reader.direct(BatchNorm::kDy), reader.direct(BatchNorm::kX),
                                       coefficients, n, end - begin, norm.channels * s.columns.size,
                                       s.columns.size, to, to + norm.channels);
    }
    if (!is_short) {
      for (int64_t k = 0; k < n; ++k) {
        double sums[2];
        long_lines(begin, end, first + k, sums);
        to[k] = sums[0], to[norm.channels + k] = sums[1];
      }
      return;
    }
    double* sums = wide_lanes;
    std::fill(sums, sums + 2 * n, 0.0);
    for (int64_t i = begin; i < end; ++i) {
      go(i * norm.channels + first, 0, n * s.columns.size);
      add_short(n * s.columns.size, sums);
    }
    for (int64_t k = 0; k < n; ++k) to[k] = sums[2 * k], to[norm.channels + k] = sums[2 * k + 1];
  }

  // Pieces begin .. end of one channel. Its lanes take line after line, and meet at the end.
  void long_lines(int64_t begin, int64_t end, int64_t channel, double* sums) {
    const int64_t columns = s.columns.size;
    std::fill(wide_lanes, wide_lanes + 2 * kLanes, 0.0);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t line = i / norm.cuts * norm.channels + channel, cut = i % norm.cuts;
      const int64_t last = columns * (cut + 1) / norm.cuts;
      for (int64_t column = columns * cut / norm.cuts, m; column < last; column += m) {
        m = std::min(kPiece, last - column);  // whole groups of lanes: no cut that the bits see
        go(line, column, m);
        const char* x = reader.load(BatchNorm::kX, x_buffer);
        norm.blocks->add_piece(gradient_of_z(x, m), x, coefficients, m, wide_lanes);
      }
    }
    norm.blocks->fold_lanes(wide_lanes, sums);
  }

  // Chunk `chunk` of lines, n columns of them; few columns: several lines are one row.
  void rows(int64_t chunk, int64_t first, int64_t n) {
    const int64_t begin = s.lines.size * chunk / norm.chunks;
    const int64_t end = s.lines.size * (chunk + 1) / norm.chunks;
    const int64_t joined = norm.channels < kShortLine ? kPiece / norm.channels : 1;
    const int64_t width = joined * n;
    std::fill(lanes, lanes + 2 * width * s.wide, 0);
    std::fill(wide_lanes, wide_lanes + 2 * width, 0.0);
    int terms = 0;
    const bool is_all = n == s.columns.size && at_once > 1;
    for (int64_t line = begin, step; line < end; line += step) {
      step = is_all ? std::min<int64_t>(at_once, kTermsOfLane - terms) : joined;
      const int64_t m = std::min(step, end - line) * n;
      go(line, first, m);
      const char* x = reader.load(BatchNorm::kX, x_buffer);
      const char* p = gradient_of_z(x, m);
      for_rows(m, [&](int64_t at, int64_t count) {
        norm.blocks->add_rows(p + at, x + at, coefficients, count, width_of(m), lanes, width);
      });
      terms += int(row_count);
      if (terms == kTermsOfLane) {
        norm.blocks->flush(lanes, wide_lanes, 2 * width);
        terms = 0;
      }
    }
    norm.blocks->flush(lanes, wide_lanes, 2 * width);
    for (int s_ = 0; s_ < 2; ++s_) {
      double* to = norm.partial + (2 * chunk + s_) * norm.channels + first;
      const double* from = wide_lanes + s_ * width;
      std::copy(from, from + n, to);
      for (int64_t j = 1; j < joined; ++j)
        for (int64_t k = 0; k < n; ++k) to[k] += from[j * n + k];
    }
  }
};

int64_t tile_of(const BatchNorm& norm) {
  const int64_t columns = norm.streams.columns.size;
  if (!norm.streams.is_channel_line) return norm.channels < kShortLine ? norm.channels : kTile;
  return columns < kLeastLine ? std::min(kPiece / columns, norm.channels) : 1;
}

// Channels, in whole tiles, whose sums are taken before their dx.
int64_t channels_at_once(const BatchNorm& norm) {
  const int64_t tile = tile_of(norm), bytes = norm.count * norm.streams.item;
  return std::max<int64_t>(kUnit / (bytes * tile), 1) * tile;
}

// The coefficients that each of the two passes back goes by.
int sums_use(const BatchNorm& norm) { return norm.is_identity ? kLow + 1 : kOffset + 1; }
int gradient_uses(const BatchNorm& norm) { return norm.is_training ? kCoefficients : kOffset + 1; }

}  // namespace

bool goes_by_channels(const BatchNorm& norm, int64_t shares) {
  const Streams& s = norm.streams;
  const int64_t units = ceil_div(norm.channels, tile_of(norm));
  return s.is_channel_line && !s.is_channel_turned &&
         (units % shares == 0 || units >= kUnitsOfShare * shares) && norm.count * s.item <= kUnit &&
         channels_at_once(norm) * s.columns.size >= kRunOfLines;
}

void batch_backward_share(const BatchNorm* norm, int64_t index, int64_t shares) {
  const int64_t tile = tile_of(*norm), units = ceil_div(norm->channels, tile),
                most = channels_at_once(*norm);
  const int64_t last = std::min(units * (index + 1) / shares * tile, norm->channels);
  with_frame<Sums>(*norm, [&](Sums& sums) {
    for (int64_t first = units * index / shares * tile, end; first < last; first = end) {
      end = std::min(first + most, last);
      sums.used = sums_use(*norm);
      const int64_t step = sums.is_short ? tile : end - first;
      for (int64_t chunk = 0; chunk < norm->chunks; ++chunk)
        for (int64_t channel = first; channel < end; channel += step)
          sums.lines(chunk, channel, std::min(step, end - channel));
      merge_batch_sums(*norm, first, end - first);
      make_slopes(*norm, first, end - first);
      sums.used = gradient_uses(*norm);
      sums.for_channels(first, end - first, [&](int64_t n) { sums.backward(n); });
    }
  });
}

void batch_forward_share(const BatchNorm* norm, int64_t index, int64_t shares) {
  with_frame<Chunks>(*norm, [&](Chunks& chunks) {
    chunks.used = kOffset + 1;
    chunks.for_share(index, shares, [&](int64_t n) { chunks.forward(n); });
  });
}

void batch_gradient_share(const BatchNorm* norm, int64_t index, int64_t shares) {
  with_frame<Chunks>(*norm, [&](Chunks& chunks) {
    chunks.used = gradient_uses(*norm);
    chunks.for_share(index, shares, [&](int64_t n) { chunks.backward(n); });
  });
}

void batch_sums_share(const BatchNorm* norm, int64_t index, int64_t shares) {
  with_frame<Sums>(*norm, [&](Sums& sums) {
    sums.used = sums_use(*norm);
    const int64_t tile = tile_of(*norm), tiles = ceil_div(norm->channels, tile);
    const int64_t units = tiles * norm->chunks;
    for (int64_t i = units * index / shares; i < units * (index + 1) / shares; ++i) {
      const int64_t chunk = i / tiles, first = i % tiles * tile;
      const int64_t n = std::min(tile, norm->channels - first);
      norm->streams.is_channel_line ? sums.lines(chunk, first, n) : sums.rows(chunk, first, n);
    }
  });
}

}  // namespace fastact
