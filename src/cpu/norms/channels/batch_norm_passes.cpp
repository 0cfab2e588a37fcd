// The passes of batch_norm over its arrays, and a thread's partition of each (batch_norm.h). The
// numbers of the channels are in batch_norm.cpp.
#include "cpu/core/tensor_iterator.h"
#include "cpu/norms/channels/batch_norm.h"

namespace fastact {
namespace {

constexpr int64_t kShortestSpan = 2048;  // elements of rows side by side, at least

// given, result: the operands dy and out of a pass; -1: it has none.
template <int given, int result>
struct BatchPass : ChannelPass<BatchNorm> {
  const BatchNormKernels& kernels;

  explicit BatchPass(const BatchNorm& n)
      : ChannelPass(n, {given, BatchNorm::kX, result},
                    n.operands.is_channel_outer ? INT64_MAX : kNearRows, n.coefficients,
                    [&](int k) -> const ChannelFormula& {
                      return n.table->channels->batch_norm[k].formula;
                    }),
        kernels(n.table->channels->batch_norm[dtype]) {}

  void set_coefficients(const ChannelPiece& c) {
    ChannelPass::set_coefficients(is_column ? c.column : c.row % channel_rows);
  }

  // Maps a piece: forward where no gradient is given.
  void map_piece(const ChannelPiece& c) {
    set_coefficients(c);
    if (given < 0) return forward(c);
    const bool reads_x = norm.is_training || !norm.is_identity;
    const StridedRows of_x = reads_x ? load(BatchNorm::kX, c, x) : StridedRows{};
    const StridedRows p = p_of(c, of_x, {z, c.n});
    norm.is_training ? make_gradient(c, formula.gradient, p, of_x)
                     : make_gradient(c, kernels.scale, p, p);
  }
  void map_pieces(const ChannelPiece& all) {
    const bool joins = is_column && norm.channels < kShortRow;
    for_pieces(all, joins ? joined_pixels(norm.channels, kPiece) : 1, 1,
               [&](const ChannelPiece& c) { map_piece(c); });
  }
};

using BatchOutput = BatchPass<-1, BatchNorm::kOut>;
using BatchGradient = BatchPass<BatchNorm::kDy, BatchNorm::kOut>;

// The sums of p and p (x - mean).
struct BatchSums : BatchPass<BatchNorm::kDy, -1> {
  const bool is_short = has_short_rows(norm.operands);
  alignas(64) double sums[2][kTile];

  using BatchPass::BatchPass;

  void fetch(const ChannelPiece& c, StridedRows* p, StridedRows* of_x) {
    set_coefficients(c);
    *of_x = load(BatchNorm::kX, c, x);
    *p = p_of(c, *of_x, {z, c.n});
  }

  // Takes chunk `chunk` of n channels; short rows go together.
  void add(int64_t chunk, int64_t first, int64_t n) {
    double* const to = norm.partial + 2 * chunk * norm.channels + first;
    s.is_channel_outer ? segments(chunk, first, n, to, to + norm.channels)
                       : columns(chunk, first, n, to, to + norm.channels);
  }

  void columns(int64_t chunk, int64_t first, int64_t n, double* to, double* products) {
    const int64_t begin = s.rows.size * chunk / norm.chunks;
    const int64_t end = s.rows.size * (chunk + 1) / norm.chunks;
    add_columns(
        {begin, end - begin, first, n}, joined_pixels(norm.channels), goes_apart, sums,
        [&](const ChannelPiece& c, StridedRows* p, StridedRows* of_x) { fetch(c, p, of_x); });
    std::copy_n(sums[0], n, to);
    std::copy_n(sums[1], n, products);
  }

  // Adds up segments of rows, where channels are rows.
  void segments(int64_t chunk, int64_t first, int64_t n, double* to, double* products) {
    const int64_t size = s.columns.size, pieces = s.rows.size / norm.channels * norm.cuts;
    const int64_t begin = pieces * chunk / norm.chunks, end = pieces * (chunk + 1) / norm.chunks;
    std::fill_n(to, n, 0.0);
    std::fill_n(products, n, 0.0);
    ChannelPass::set_coefficients(first);
    const auto add = [&](StridedRows p, StridedRows of_x, int64_t count) {
      kernels.add_channels(p.first, of_x.first, coefficients, n, count, norm.channels * size, size,
                           to, products);
    };
    const ChannelPiece all{begin * norm.channels + first, 1, 0, n * size};
    if (!is_short && is_stored && norm.cuts == 1)
      return add(plain(BatchNorm::kDy, all), plain(BatchNorm::kX, all), end - begin);
    for (int64_t k = 0; !is_short && k < n; ++k)
      long_segments(begin, end, first + k, to + k, products + k);
    for (int64_t i = begin; is_short && i < end; ++i) {
      StridedRows p, of_x;
      fetch({i * norm.channels + first, n, 0, size}, &p, &of_x);
      add(p, of_x, 1);
    }
  }

  // Pieces begin .. end of one channel. Its lanes take row after row, and meet at the end.
  void long_segments(int64_t begin, int64_t end, int64_t channel, double* sum, double* product) {
    const int64_t size = s.columns.size;
    alignas(64) double lanes[2 * kLanes] = {};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / norm.cuts * norm.channels + channel, cut = i % norm.cuts;
      const int64_t column = size * cut / norm.cuts, last = size * (cut + 1) / norm.cuts;
      // A buffer takes whole groups of lanes: no cut that the bits see.
      for_pieces({row, 1, column, last - column}, 1, 1, [&](const ChannelPiece& c) {
        StridedRows p, of_x;
        fetch(c, &p, &of_x);
        kernels.add_piece(p.first, of_x.first, coefficients, c.n, lanes);
      });
    }
    for (int k : {0, 1}) norm.table->reduce->fold(lanes + k * kLanes, kLanes, 1);
    *sum = lanes[0], *product = lanes[kLanes];
  }
};

int64_t tile_of(const BatchNorm& norm) {
  const int64_t columns = norm.operands.columns.size;
  if (!norm.operands.is_channel_outer) return norm.channels < kShortRow ? norm.channels : kTile;
  return has_short_rows(norm.operands) ? std::min(kPiece / columns, norm.channels) : 1;
}

// Channels, in whole tiles, whose sums are taken before their dx.
int64_t channels_at_once(const BatchNorm& norm) {
  const int64_t tile = tile_of(norm), bytes = norm.count * norm.operands.item;
  return std::max<int64_t>(kNearChannel / (bytes * tile), 1) * tile;
}

// If channels are rows, and several of them fit into a cache, backward computes the sums of some
// and then their dx: both passes in one partition.
bool goes_by_channels(const BatchNorm& norm, int64_t partitions) {
  const StridedOperands& s = norm.operands;
  const int64_t tasks = ceil_div(norm.channels, tile_of(norm));
  return s.is_channel_outer && !s.is_channel_reversed &&
         (tasks % partitions == 0 || tasks >= kTasksPerPartition * partitions) &&
         norm.count * s.item <= kNearChannel &&
         channels_at_once(norm) * s.columns.size >= kShortestSpan;
}

// Adds up, once the chunks are summed, `sums` of n channels.
void merge_sums(const BatchNorm& norm, int64_t first, int64_t n) {
  const int64_t c = norm.channels;
  for (const int64_t at : {first, c + first}) {
    std::copy_n(norm.partial + at, n, norm.sums + at);
    for (int64_t chunk = 1; chunk < norm.chunks; ++chunk)
      for (int64_t i = at; i < at + n; ++i) norm.sums[i] += norm.partial[chunk * 2 * c + i];
  }
  for (int64_t i = first; i < first + n; ++i) norm.sums[c + i] *= norm.rstd[i];
}

void backward_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  const int64_t tile = tile_of(*norm), tasks = ceil_div(norm->channels, tile),
                most = channels_at_once(*norm);
  const int64_t last = std::min(tasks * (index + 1) / partitions * tile, norm->channels);
  const auto backward = [&](BatchSums& sums, BatchGradient& gradient) {
    for (int64_t first = tasks * index / partitions * tile, end; first < last; first = end) {
      end = std::min(first + most, last);
      const int64_t n = end - first, step = sums.is_short ? tile : n;
      for (int64_t chunk = 0; chunk < norm->chunks; ++chunk)
        for (int64_t channel = first; channel < end; channel += step)
          sums.add(chunk, channel, std::min(step, end - channel));
      merge_sums(*norm, first, n);
      make_slopes(*norm, first, n);
      for (int64_t row = first; row < norm->operands.rows.size; row += norm->channels)
        gradient.map_pieces({row, n, 0, norm->operands.columns.size});
    }
  };
  with_frame<BatchSums>(*norm, [&](BatchSums& sums) {
    with_frame<BatchGradient>(*norm, [&](BatchGradient& gradient) { backward(sums, gradient); });
  });
}

// A partition is a part of the rows, or where these are few of the columns.
template <class Pass>
void map_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  const int64_t rows = norm->operands.rows.size, columns = norm->operands.columns.size;
  const bool by_rows = rows >= kTasksPerPartition * partitions;
  const auto begin = [&](int64_t i) {
    return by_rows ? begin_of_part(rows, i, partitions, 1) : begin_of_part(columns, i, partitions);
  };
  const int64_t first = begin(index), n = begin(index + 1) - first;
  if (n == 0) return;
  with_frame<Pass>(*norm, [&](Pass& pass) {
    pass.map_pieces(by_rows ? ChannelPiece{first, n, 0, columns} : ChannelPiece{0, rows, first, n});
  });
}

void sums_partition(const BatchNorm* norm, int64_t index, int64_t partitions) {
  with_frame<BatchSums>(*norm, [&](BatchSums& sums) {
    const int64_t tile = tile_of(*norm), tiles = ceil_div(norm->channels, tile);
    const int64_t tasks = tiles * norm->chunks;
    for (int64_t i = tasks * index / partitions; i < tasks * (index + 1) / partitions; ++i) {
      const int64_t first = i % tiles * tile;
      sums.add(i / tiles, first, std::min(tile, norm->channels - first));
    }
  });
}

}  // namespace

void run_forward(const BatchNorm& norm, int threads) {
  run_partitions(threads, map_partition<BatchOutput>, &norm);
}

void run_backward(const BatchNorm& norm, bool needs_sums, int threads) {
  const bool has_dx = norm.operands.data[BatchNorm::kOut];
  if (needs_sums && has_dx && goes_by_channels(norm, threads))
    return run_partitions(threads, backward_partition, &norm);
  if (needs_sums) {
    run_partitions(threads, sums_partition, &norm);
    merge_sums(norm, 0, norm.channels);
  }
  if (has_dx) {
    make_slopes(norm, 0, norm.channels);
    run_partitions(threads, map_partition<BatchGradient>, &norm);
  }
}

}  // namespace fastact
