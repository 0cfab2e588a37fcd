// The passes of batch_norm over its arrays, chunk by chunk, and a thread's partition of each
// (batch_norm.h). The numbers of the channels are in batch_norm.cpp.
#include <algorithm>

#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/norms/channels/batch_norm.h"

namespace fastact {
namespace {

constexpr int64_t kShortestSpan = 2048;  // elements of rows side by side, at least

// One thread's chunks.
struct BatchNormChunks {
  const BatchNorm& norm;
  const StridedOperands& s;
  ChunkReader reader;
  const bool is_plain;  // all is read and written where it lies, else in the compute type
  const int64_t item;   // bytes of an element, as the kernels take it
  const BatchNormKernels& kernels;
  const char* coefficients[kCoefficients];
  int used = 0;           // coefficients, the first of them
  const int64_t longest;  // elements of a chunk
  const int64_t at_once;  // rows of a chunk
  const bool is_near;     // they go by together, else one after the other
  const bool is_short;    // rows share a chunk
  bool is_row = false;
  int64_t row_count = 1;  // of a chunk, where they go by together
  alignas(64) char x_buffer[kPiece * sizeof(double)];
  alignas(64) char dy_buffer[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char out[kPiece * sizeof(double)];
  alignas(64) char spread[kCoefficients][kPiece * sizeof(double)];

  explicit BatchNormChunks(const BatchNorm& n)
      : BatchNormChunks(n, n.is_identity && !n.accumulate && are_flat(n.operands)) {}
  BatchNormChunks(const BatchNorm& n, bool plain)
      : norm(n),
        s(n.operands),
        reader(n.operands),
        is_plain(plain),
        item(is_plain ? s.item : s.compute_item),
        kernels(n.table->batch_norm->kernels[is_plain ? s.dtype : s.compute_dtype]),
        // Chunks without a buffer are as long as they like.
        longest(is_plain ? std::max(s.columns.size, kRowsAtOnce * kTile) : kPiece),
        at_once(most_rows(n)),
        is_near(s.size() * s.item <= kNearRows || s.dtype != s.compute_dtype),
        is_short(n.operands.columns.size < shortest_of(n)) {}

  // The least length of a row that has a call of its own.
  static int64_t shortest_of(const BatchNorm& n) {
    return n.operands.is_channel_outer ? kLeastSegment : kShortRow;
  }

  static bool are_flat(const StridedOperands& s) {
    bool are = true;
    for (int k = 0; k <= BatchNorm::kOut; ++k) are &= !s.data[k] || s.is_flat[k];
    return are;
  }

  // Whole rows of a chunk: of one set of coefficients, or of channels side by side.
  int64_t most_rows(const BatchNorm& n) const {
    const int64_t columns = s.columns.size;
    if (columns < shortest_of(n) || (s.is_channel_outer && !are_flat(s))) return 1;
    return std::max<int64_t>(longest / columns, 1);
  }

  const char* coefficient(int k, int64_t channel) const {
    return norm.coefficients + (k * norm.pitch + channel) * s.compute_item;
  }

  // n elements from (row, column) on, and the coefficients that go with them.
  void go(int64_t row, int64_t column, int64_t n) {
    reader.go(row, column, n);
    is_row = !s.is_channel_outer || is_short;
    row_count = at_once > 1 && column == 0 ? std::max<int64_t>(n / s.columns.size, 1) : 1;
    if (!s.is_channel_outer)
      for (int k = 0; k < used; ++k) coefficients[k] = coefficient(k, column);
    else if (!is_row)
      for (int k = 0; k < used; ++k) coefficients[k] = coefficient(k, row % norm.channels);
    else
      for (int k = 0; k < used; ++k) {
        coefficients[k] = spread[k];
        spread_over_rows(s, norm.channels, row, column, n, spread[k],
                         [&](int64_t channel) { return coefficient(k, channel); });
      }
  }

  // The longest chunk from `column` of a row on.
  int64_t most(int64_t row, int64_t column, int64_t left) const {
    const int64_t columns = s.columns.size;
    if (is_short) return std::min(kPiece, left);
    if (at_once > 1 && column == 0 && left >= columns) {
      const int64_t rows = std::min(at_once, left / columns);
      return columns *
             (s.is_channel_outer ? std::min(rows, norm.channels - row % norm.channels) : rows);
    }
    return std::min({longest, left, columns - column});
  }

  // The elements of one row of a chunk.
  int64_t width_of(int64_t n) const { return row_count > 1 ? s.columns.size : n; }

  // Visits the rows of a chunk: from which element on, how many. Together they take their
  // coefficients once, but beyond the caches the hardware's prefetcher does not follow eight. 16
  // bits lie in a buffer, or are mapped row by row in one call.
  template <class Visit>
  void for_rows(int64_t n, Visit visit) const {
    if (is_near || row_count == 1 || s.is_channel_outer) return visit(0, row_count);
    for (int64_t at = 0, width = s.columns.size; at < n; at += width) visit(at * item, 1);
  }

  void map(const BatchNormMap& of, const char* a, const char* b, char* to, int64_t n) {
    if (row_count == 1 && !is_row) return of.chunk(a, b, coefficients, to, n);
    for_rows(n, [&](int64_t at, int64_t rows) {
      of.rows[is_row](a + at, b + at, coefficients, to + at, rows, width_of(n));
    });
  }

  const char* read(int k, char* buffer) {
    return is_plain ? reader.stored(k) : reader.load(k, buffer);
  }
  // The place where an output is made; null: in a buffer.
  char* target(int k) const {
    if (is_plain) return reader.stored(k);
    return norm.accumulate ? nullptr : reader.direct(k);
  }

  void normalise(const char* x, char* to, int64_t n) { map(kernels.normalise, x, x, to, n); }

  void forward(int64_t n) {
    char* y = target(BatchNorm::kOut);
    char* to = y ? y : z;
    normalise(read(BatchNorm::kX, x_buffer), to, n);
    char* const operands[] = {to, to};
    if (!norm.is_identity) norm.activation(operands, n, norm.parameters, 0);
    if (!y) reader.store(BatchNorm::kOut, z, false);
  }

  // p = dy f'(z).
  const char* gradient_of_z(const char* x, int64_t n) {
    const char* dy = read(BatchNorm::kDy, dy_buffer);
    if (norm.is_identity) return dy;
    normalise(x, z, n);
    char* const operands[] = {const_cast<char*>(dy), z, z};
    norm.activation(operands, n, norm.parameters, 0);
    return z;
  }

  void backward(int64_t n) {
    const char* x = norm.is_training || !norm.is_identity ? read(BatchNorm::kX, x_buffer) : nullptr;
    const char* p = gradient_of_z(x, n);
    char* dx = target(BatchNorm::kOut);
    char* to = dx ? dx : out;
    if (norm.is_training)
      map(kernels.gradient, p, x, to, n);
    else
      map(kernels.scale, p, p, to, n);
    if (!dx) reader.store(BatchNorm::kOut, out, norm.accumulate);
  }

  // Visits elements first .. end as chunks.
  template <class Visit>
  void for_chunks(int64_t first, int64_t end, Visit visit) {
    const int64_t columns = s.columns.size;
    int64_t row = first / columns, column = first % columns;
    for (int64_t n; first < end; first += n) {
      n = most(row, column, end - first);
      go(row, column, n);
      visit(n);
      row += (column + n) / columns;
      column = (column + n) % columns;
    }
  }

  template <class Visit>
  void for_partition(int64_t index, int64_t partitions, Visit visit) {
    const auto begin = [&](int64_t i) {
      return at_once > 1 && !s.is_channel_outer
                 ? begin_of_part(s.size(), i, partitions, s.columns.size)
                 : begin_of_part(s.size(), i, partitions);
    };
    for_chunks(begin(index), begin(index + 1), visit);
  }

  // All chunks of channels first .. first + n, where channels are rows.
  template <class Visit>
  void for_channels(int64_t first, int64_t n, Visit visit) {
    const int64_t columns = s.columns.size;
    for (int64_t row = first; row < s.rows.size; row += norm.channels)
      for_chunks(row * columns, (row + n) * columns, visit);
  }
};

// One thread's sums of p and p (x - mean).
struct BatchNormSums : BatchNormChunks {
  explicit BatchNormSums(const BatchNorm& n)
      : BatchNormChunks(n, n.is_identity && n.operands.is_flat[BatchNorm::kDy] &&
                               n.operands.is_flat[BatchNorm::kX]) {}

  alignas(64) char lanes[2 * kPiece * sizeof(double)];
  alignas(64) double double_lanes[2 * kPiece];

  // Short rows, of n / columns channels: to [2] of each.
  void add_short(int64_t n, double* to) {
    const char* x = read(BatchNorm::kX, x_buffer);
    const char* p = gradient_of_z(x, n);
    const char* one[kCoefficients];
    const int64_t columns = s.columns.size;
    for (int64_t done = 0; done < n; done += columns, to += 2) {
      for (int k = 0; k < used; ++k) one[k] = coefficients[k] + done * s.compute_item;
      kernels.add_segment(p + done * item, x + done * item, one, columns, to);
    }
  }

  // Chunk `chunk` of a tile of channels, where they are rows; short rows go together.
  void segments(int64_t chunk, int64_t first, int64_t n) {
    const int64_t outer = s.rows.size / norm.channels, pieces = outer * norm.cuts;
    const int64_t begin = pieces * chunk / norm.chunks, end = pieces * (chunk + 1) / norm.chunks;
    double* to = norm.partial + 2 * chunk * norm.channels + first;
    if (!is_short && is_plain && norm.cuts == 1) {
      go(begin * norm.channels + first, 0, s.columns.size);
      return kernels.add_channels(reader.stored(BatchNorm::kDy), reader.stored(BatchNorm::kX),
                                  coefficients, n, end - begin, norm.channels * s.columns.size,
                                  s.columns.size, to, to + norm.channels);
    }
    if (!is_short) {
      for (int64_t k = 0; k < n; ++k) {
        double sums[2];
        long_segments(begin, end, first + k, sums);
        to[k] = sums[0], to[norm.channels + k] = sums[1];
      }
      return;
    }
    double* sums = double_lanes;
    std::fill(sums, sums + 2 * n, 0.0);
    for (int64_t i = begin; i < end; ++i) {
      go(i * norm.channels + first, 0, n * s.columns.size);
      add_short(n * s.columns.size, sums);
    }
    for (int64_t k = 0; k < n; ++k) to[k] = sums[2 * k], to[norm.channels + k] = sums[2 * k + 1];
  }

  // Pieces begin .. end of one channel. Its lanes take row after row, and meet at the end.
  void long_segments(int64_t begin, int64_t end, int64_t channel, double* sums) {
    const int64_t columns = s.columns.size;
    std::fill(double_lanes, double_lanes + 2 * kLanes, 0.0);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / norm.cuts * norm.channels + channel, cut = i % norm.cuts;
      const int64_t last = columns * (cut + 1) / norm.cuts;
      for (int64_t column = columns * cut / norm.cuts, m; column < last; column += m) {
        m = std::min(kPiece, last - column);  // whole groups of lanes: no cut that the bits see
        go(row, column, m);
        const char* x = read(BatchNorm::kX, x_buffer);
        kernels.add_piece(gradient_of_z(x, m), x, coefficients, m, double_lanes);
      }
    }
    norm.table->reduce->fold_each(double_lanes, kLanes, 2, sums);
  }

  // Chunk `chunk` of rows, n columns of them; few columns: several rows are joined to one.
  void rows(int64_t chunk, int64_t first, int64_t n) {
    const int64_t begin = s.rows.size * chunk / norm.chunks;
    const int64_t end = s.rows.size * (chunk + 1) / norm.chunks;
    const int64_t joined = norm.channels < kShortRow ? kPiece / norm.channels : 1;
    const int64_t width = joined * n;
    std::fill(lanes, lanes + 2 * width * s.compute_item, 0);
    std::fill(double_lanes, double_lanes + 2 * width, 0.0);
    int terms = 0;
    const bool is_all = n == s.columns.size && at_once > 1;
    for (int64_t row = begin, step; row < end; row += step) {
      step = is_all ? std::min<int64_t>(at_once, kTermsOfLane - terms) : joined;
      const int64_t m = std::min(step, end - row) * n;
      go(row, first, m);
      const char* x = read(BatchNorm::kX, x_buffer);
      const char* p = gradient_of_z(x, m);
      for_rows(m, [&](int64_t at, int64_t count) {
        kernels.add_rows(p + at, x + at, coefficients, count, width_of(m), lanes, width);
      });
      terms += int(row_count);
      if (terms == kTermsOfLane) {
        kernels.flush(lanes, double_lanes, 2 * width);
        terms = 0;
      }
    }
    kernels.flush(lanes, double_lanes, 2 * width);
    for (int s_ = 0; s_ < 2; ++s_) {
      double* to = norm.partial + (2 * chunk + s_) * norm.channels + first;
      const double* from = double_lanes + s_ * width;
      std::copy(from, from + n, to);
      for (int64_t j = 1; j < joined; ++j)
        for (int64_t k = 0; k < n; ++k) to[k] += from[j * n + k];
    }
  }
};

int64_t tile_of(const BatchNorm& norm) {
  const int64_t columns = norm.operands.columns.size;
  if (!norm.operands.is_channel_outer) return norm.channels < kShortRow ? norm.channels : kTile;
  return columns < kLeastSegment ? std::min(kPiece / columns, norm.channels) : 1;
}

// Channels, in whole tiles, whose sums are taken before their dx.
int64_t channels_at_once(const BatchNorm& norm) {
  const int64_t tile = tile_of(norm), bytes = norm.count * norm.operands.item;
  return std::max<int64_t>(kNearChannel / (bytes * tile), 1) * tile;
}

// The coefficients that each of the two passes back goes by.
int sums_use(const BatchNorm& norm) { return norm.is_identity ? kLow + 1 : kOffset + 1; }
int gradient_uses(const BatchNorm& norm) { return norm.is_training ? kCoefficients : kOffset + 1; }

}  // namespace

bool goes_by_channels(const BatchNorm& norm, int64_t partitions) {
  const StridedOperands& s = norm.operands;
  const int64_t tasks = ceil_div(norm.channels, tile_of(norm));
  return s.is_channel_outer && !s.is_channel_reversed &&
         (tasks % partitions == 0 || tasks >= kTasksPerPartition * partitions) &&
         norm.count * s.item <= kNearChannel &&
         channels_at_once(norm) * s.columns.size >= kShortestSpan;
}

void batch_norm_backward_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  const int64_t tile = tile_of(*norm), tasks = ceil_div(norm->channels, tile),
                most = channels_at_once(*norm);
  const int64_t last = std::min(tasks * (index + 1) / partitions * tile, norm->channels);
  const auto backward = [&](BatchNormSums& sums, BatchNormChunks& chunks) {
    sums.used = sums_use(*norm);
    chunks.used = gradient_uses(*norm);
    for (int64_t first = tasks * index / partitions * tile, end; first < last; first = end) {
      end = std::min(first + most, last);
      const int64_t step = sums.is_short ? tile : end - first;
      for (int64_t chunk = 0; chunk < norm->chunks; ++chunk)
        for (int64_t channel = first; channel < end; channel += step)
          sums.segments(chunk, channel, std::min(step, end - channel));
      merge_batch_sums(*norm, first, end - first);
      make_slopes(*norm, first, end - first);
      chunks.for_channels(first, end - first, [&](int64_t n) { chunks.backward(n); });
    }
  };
  with_frame<BatchNormSums>(*norm, [&](BatchNormSums& sums) {
    with_frame<BatchNormChunks>(*norm, [&](BatchNormChunks& chunks) { backward(sums, chunks); });
  });
}

void batch_norm_forward_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  with_frame<BatchNormChunks>(*norm, [&](BatchNormChunks& chunks) {
    chunks.used = kOffset + 1;
    chunks.for_partition(index, partitions, [&](int64_t n) { chunks.forward(n); });
  });
}

void batch_norm_gradient_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  with_frame<BatchNormChunks>(*norm, [&](BatchNormChunks& chunks) {
    chunks.used = gradient_uses(*norm);
    chunks.for_partition(index, partitions, [&](int64_t n) { chunks.backward(n); });
  });
}

void batch_norm_sums_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  with_frame<BatchNormSums>(*norm, [&](BatchNormSums& sums) {
    sums.used = sums_use(*norm);
    const int64_t tile = tile_of(*norm), tiles = ceil_div(norm->channels, tile);
    const int64_t tasks = tiles * norm->chunks;
    for (int64_t i = tasks * index / partitions; i < tasks * (index + 1) / partitions; ++i) {
      const int64_t chunk = i / tiles, first = i % tiles * tile;
      const int64_t n = std::min(tile, norm->channels - first);
      norm->operands.is_channel_outer ? sums.segments(chunk, first, n) : sums.rows(chunk, first, n);
    }
  });
}

}  // namespace fastact
