// Forward and backward of the norms whose channels come last (norms/channels/channels_last.h;
// common/norms/norms.h has the formulas).
#include "cpu/norms/channels/channels_last.h"

#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/norms/channels/channels_last_chunks.h"
#include "cpu/reductions/rescaled.h"

namespace fastact {
namespace {

constexpr int64_t kMomentRows = 256;  // rows whose moments are taken at once

struct ChannelsLastForward : ChannelsLastPass {
  const ReduceTable& table;
  const Accumulator& accumulator;
  const bool is_unbuffered = is_plain(Norm::kX) && is_plain(Norm::kY);
  // Mean and m2 of all blocks of a tile's columns, what they lost, and of one block; the sums of d
  // and d^2 of that.
  alignas(64) double all_blocks[2][kTile], low[2][kTile], one_block[2][kTile];
  alignas(64) double shift[kTile], sums[2][kTile];
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];

  explicit ChannelsLastForward(const Norm& a)
      : ChannelsLastPass(a, {Norm::kX, Norm::kY}),
        table(*a.table->reduce),
        accumulator(table.accumulators[kMoments]) {
    if (is_unbuffered) use_long_pieces();
  }

  void normalise_example(int64_t index) {
    example = index;
    statistics();
    save();
    const int64_t of_statistics = joined;
    if (is_unbuffered) joined = pixels_of_long_row();
    for_tiles([&](int64_t first, int64_t n) {
      set_statistics(first, n);
      for_pieces(first, n, [&](const RowPiece& piece) { normalise(piece, first); });
    });
    joined = of_statistics;
  }

  void statistics() {
    Moments all[kTile];
    double counts[kTile];
    std::fill(counts, counts + groups, 0.0);
    const double count = double(pixels);
    for_tiles([&](int64_t first, int64_t n) {
      moments(first, n);
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        for (int64_t i = at; i < at + m; ++i) {
          const Moments one = {all_blocks[0][i], all_blocks[1][i], low[0][i], low[1][i]};
          double& before = counts[which];
          if (before > 0) {
            const double fraction = count / (before + count);
            merge_moments(one, fraction, before * fraction, &all[which]);
          } else {
            all[which] = one;
          }
          before += count;
        }
      });
    });
    for (int64_t g = 0; g < groups; ++g) {
      const double m2 = all[g].m2 + all[g].m2_low;
      stats[g] = {all[g].mean + all[g].mean_low, rstd_of<CentredNorm>(m2, counts[g], norm.eps)};
      if (s.dtype == kF64 && leaves_range(m2, counts[g], norm.eps)) rescale_group(g);
    }
  }

  FASTACT_RARE void rescale_group(int64_t g) {
    const int64_t column = (first_group + g) * group;
    Rescaled found;
    const bool is_found = rescale(
        pixels * group, true,
        [&](int64_t term, int64_t n, double* to, double* weights) {
          std::fill_n(weights, n, 1.0);
          for (int64_t done = 0, m; done < n; done += m) {
            const int64_t within = (term + done) % group;
            m = std::min(group - within, n - done);
            reader.go(example * pixels + (term + done) / group, column + within, m);
            memcpy(to + done, reader.load(Norm::kX, x), m * sizeof(double));
          }
        },
        &found);
    if (!is_found) return;
    stats[g] = {found.mean * found.up, rstd_of_scaled(found.m2, found.count, norm.eps, found.up)};
  }

  // Moments of a tile's columns, into all_blocks and low.
  void moments(int64_t first, int64_t n) {
    const Results all = {all_blocks[0], low[0], kTile}, one = {one_block[0], nullptr, kTile};
    const int64_t most = kMomentRows * joined;
    block(0, std::min(most, pixels), first, n, all);
    for (double (&lost)[kTile] : low) std::fill_n(lost, n, 0.0);
    for (int64_t pixel = most; pixel < pixels; pixel += most) {
      const int64_t terms = std::min(most, pixels - pixel);
      block(pixel, terms, first, n, one);
      accumulator.merge(one, terms, all, pixel, n);
    }
  }

  // Moments of some pixels, about the first of them; all pixels of a row about one number.
  void block(int64_t pixel, int64_t terms, int64_t first, int64_t n, const Results& to) {
    reader.go(example * pixels + pixel, first, n);
    const char* at = reader.load(Norm::kX, x);
    table.widen[s.compute_dtype](at, s.compute_item, n, shift);
    for (int pass = 0; pass < accumulator.passes[s.dtype]; ++pass) {
      if (pass > 0) std::copy_n(to.values, n, shift);
      table.make_finite(shift, n);
      if (joined > 1) repeat(shift);
      for (double (&lanes)[kTile] : sums) std::fill_n(lanes, joined * n, 0.0);
      add_rows(pixel, terms, first, n);
      for (int64_t i = n; i < joined * n; i += n)
        for (double (&lanes)[kTile] : sums)
          for (int64_t c = 0; c < n; ++c) lanes[c] += lanes[i + c];
      accumulator.settle(shift, sums[0], kTile, terms, n, to.values, to.pitch);
    }
  }

  // Offsets from `base`, where the first pixel's tile begins, to those from `pixel` on.
  void offsets_of(const char* base, int64_t pixel, int64_t n, int64_t first, int64_t* offsets) {
    char* const tile = s.data[Norm::kX] + first * s.item;
    fastact::for_pieces(s.rows, Norm::kX, tile, example * pixels + pixel, n,
                        [&](const char* at, int64_t step, int64_t m) {
                          for (int64_t i = 0; i < m; ++i) *offsets++ = at - base + i * step;
                        });
  }

  // Adds rows as they are stored where they lie in one piece, else row by row.
  void add_rows(int64_t pixel, int64_t terms, int64_t first, int64_t n) {
    const int64_t rows = terms / joined, rest = terms % joined, width = joined * n;
    const int last = s.rows.count - 1;
    const bool is_dense =
        s.rows.stride[Norm::kX][last] == channels * s.item && s.rows.length[last] % pixels == 0;
    int64_t offsets[kMomentRows];
    if (s.has_unit_stride[Norm::kX] && (joined == 1 || is_dense)) {
      const char* base = s.row(Norm::kX, example * pixels) + first * s.item;
      if (joined == 1)
        offsets_of(base, pixel, rows, first, offsets);
      else
        for (int64_t r = 0; r < rows; ++r) offsets[r] = (pixel * n + r * width) * s.item;
      const auto add = accumulator.kernels[s.dtype].add_rows;
      add(base, offsets, 1, rows, width, shift, sums[0], kTile, false);
      const int64_t end = (pixel * n + rows * width) * s.item;
      if (rest) add(base, &end, 1, 1, rest * n, shift, sums[0], kTile, false);
      return;
    }
    for (int64_t done = 0, m; done < terms; done += m) {
      m = std::min(joined, terms - done);
      reader.go(example * pixels + pixel + done, first, m * n);
      offsets[0] = 0;
      accumulator.kernels[s.compute_dtype].add_rows(reader.load(Norm::kX, x), offsets, 1, 1, m * n,
                                                    shift, sums[0], kTile, false);
    }
  }

  void save() const {
    if (!s.data[Norm::kRstd]) return;
    for_saved([&](int64_t g, char* mean, char* rstd) {
      store_as(s.compute_dtype, mean, stats[g].mean);
      store_as(s.compute_dtype, rstd, stats[g].rstd);
    });
  }

  void normalise(const RowPiece& piece, int64_t first) {
    PieceRows<const char> from;
    PieceRows<char> to;
    const char* at[kColumnCoefficients];
    coefficients_of(piece, first, at);
    load(Norm::kX, piece, x, &from);
    target(Norm::kY, piece, false, z, &to);
    kernels.normalise(from.at, piece.rows, piece.n, at, to.at, goes_apart);
    if (!norm.is_identity)
      for_dense(piece, to.is_dense(piece, s.compute_item), [&](int64_t r, int64_t n) {
        char* const operands[] = {to.at[r], to.at[r]};
        norm.activation(operands, n, norm.parameters, 0);
      });
    if (to.is_own) store(Norm::kY, piece, false, z);
  }
};

struct ChannelsLastBackward : ChannelsLastPass {
  const bool has_dx, has_sums;
  const bool caches_p;       // p, in dx, from pass 1 to pass 2
  const bool is_unbuffered;  // no buffer is used
  double sums[2][kTile];     // of p and of p xhat, of a tile's columns
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char p[kPiece * sizeof(double)];

  explicit ChannelsLastBackward(const Norm& a)
      : ChannelsLastPass(a, {Norm::kDy, Norm::kIn, Norm::kDx}),
        has_dx(a.operands.data[Norm::kDx]),
        has_sums(a.partial),
        caches_p(!a.is_identity && has_dx && !a.accumulate && is_plain(Norm::kDx) &&
                 a.operands.data[Norm::kDx] != a.operands.data[Norm::kIn]),
        is_unbuffered(a.is_identity && !a.accumulate && is_plain(Norm::kDy) &&
                      is_plain(Norm::kIn) && (!has_dx || is_plain(Norm::kDx))) {
    if (is_unbuffered) use_long_pieces();
  }

  // A block of the batch: one row of the parameters' sums.
  void backward_block(int64_t chunk) {
    double* rows[2] = {};
    for (int k = 0; has_sums && k < 2; ++k) {
      rows[k] = norm.partial + (k * norm.chunks + chunk) * channels;
      std::fill_n(rows[k] + first_group * group, groups * group, 0.0);
    }
    const int64_t end = std::min((chunk + 1) * norm.block, norm.batch);
    for (example = chunk * norm.block; example < end; ++example) {
      read_stats();
      add_up(rows);
      if (has_dx) finish();
    }
  }

  void read_stats() {
    for_saved([&](int64_t g, const char* mean, const char* rstd) {
      stats[g] = {number_at(s.compute_dtype, mean), number_at(s.compute_dtype, rstd)};
    });
  }

  void add_up(double* const* rows) {
    for (int k = 0; k < 2; ++k) std::fill(mean_g[k], mean_g[k] + groups, 0.0);
    for_tiles([&](int64_t first, int64_t n) {
      set_statistics(first, n);
      for (int k = 0; k < 2; ++k) std::fill(sums[k], sums[k] + joined * n, 0.0);
      for_pieces(first, n, [&](const RowPiece& piece) {
        PieceRows<const char> from_x, from_p;
        const char* at[kColumnCoefficients];
        coefficients_of(piece, first, at);
        fetch(piece, at, false, &from_x, &from_p);
        const int64_t column = piece.column - first;
        kernels.add_sums(from_p.at, from_x.at, piece.rows, piece.n, at, sums[0] + column,
                         sums[1] + column);
      });
      for (int k = 0; k < 2; ++k)
        for (int64_t i = n; i < joined * n; ++i) sums[k][i % n] += sums[k][i];
      for (int k = 0; has_sums && k < 2; ++k)
        for (int64_t i = 0; i < n; ++i) rows[k][first + i] += sums[1 - k][i];
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        for (int64_t i = at; i < at + m; ++i) {
          const double w =
              number_at(s.compute_dtype, coefficients[kColumnWeight] + i * s.compute_item);
          for (int k = 0; k < 2; ++k) mean_g[k][which] += w * sums[k][i];
        }
      });
    });
    for (int k = 0; k < 2; ++k)
      for (int64_t g = 0; g < groups; ++g) mean_g[k][g] /= double(pixels * group);
  }

  // p = dy f'(z) and x.
  void fetch(const RowPiece& piece, const char* const* at, bool is_second,
             PieceRows<const char>* to_x, PieceRows<const char>* to_p) {
    load(Norm::kIn, piece, x, to_x);
    if (norm.is_identity) return load(Norm::kDy, piece, dy, to_p);
    if (caches_p && is_second) return load(Norm::kDx, piece, nullptr, to_p);
    PieceRows<const char> gradient;
    PieceRows<char> to_z, made;
    load(Norm::kDy, piece, dy, &gradient);
    to_z.set(z, piece, piece.n * s.compute_item);
    target(Norm::kDx, piece, !caches_p, z, &made);
    kernels.normalise(to_x->at, piece.rows, piece.n, at, to_z.at, goes_apart);
    const bool is_dense =
        gradient.is_dense(piece, s.compute_item) && made.is_dense(piece, s.compute_item);
    for_dense(piece, is_dense, [&](int64_t r, int64_t n) {
      char* const operands[] = {const_cast<char*>(gradient.at[r]), to_z.at[r], made.at[r]};
      norm.activation(operands, n, norm.parameters, 0);
    });
    std::copy(made.at, made.at + piece.rows, to_p->at);
  }

  void set_means(int64_t first, int64_t n) {
    fill([&](auto row) {
      using T = std::decay_t<decltype(*row(0))>;
      for (int k = 0; k < 2; ++k) {
        T* to = row(k == 0 ? kColumnMeanG : kColumnMeanGx);
        for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
          std::fill_n(to + at, m, T(mean_g[k][which]));
        });
        if (joined > 1) repeat(to);
      }
    });
  }

  void finish() {
    const int64_t of_sums = joined;
    if (is_unbuffered) joined = pixels_of_long_row();
    for_tiles([&](int64_t first, int64_t n) {
      // Else they are still there.
      if (groups * group > kTile || joined != of_sums) set_statistics(first, n);
      set_means(first, n);
      for_pieces(first, n, [&](const RowPiece& piece) {
        PieceRows<const char> from_x, from_p;
        PieceRows<char> to;
        const char* at[kColumnCoefficients];
        coefficients_of(piece, first, at);
        fetch(piece, at, true, &from_x, &from_p);
        target(Norm::kDx, piece, norm.accumulate, p, &to);
        kernels.finish(from_p.at, from_x.at, piece.rows, piece.n, at, to.at, goes_apart);
        if (to.is_own) store(Norm::kDx, piece, norm.accumulate, p);
      });
    });
    joined = of_sums;
  }
};

}  // namespace

void channels_last_forward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  with_frame<ChannelsLastForward>(*norm, [&](ChannelsLastForward& forward) {
    forward.for_tasks(norm->batch, index, partitions,
                      [&](int64_t i) { forward.normalise_example(i); });
  });
}

void channels_last_backward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  with_frame<ChannelsLastBackward>(*norm, [&](ChannelsLastBackward& backward) {
    backward.for_tasks(norm->chunks, index, partitions,
                       [&](int64_t i) { backward.backward_block(i); });
  });
}

}  // namespace fastact
