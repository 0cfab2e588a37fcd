// The norms of arrays whose channels come last: group_norm and instance_norm of NHWC
// (common/norms/norms.h has the formulas).
//
// An example is a matrix of pixels and channels. It is read row by row, as it lies in memory, for
// all groups of channels at once; one normalization row at a time, a few elements here and there
// would have to be gathered. A task is an example and some of its groups (backward: a block of the
// batch, which fills one row of the parameters' sums). Its channels are the columns, in tiles of at
// most kTile, and eight pixels are computed at a time (norms/channels/pass.h):
//
//   forward    the moments of each column (reductions/kernels.h), merged over the columns of
//              a group; then z = xhat w + b, f in place and the store, from the cache where that
//              holds the example
//   backward   p = dy f'(z), and the sums of p and of p xhat of each column, which are the
//              gradients of its parameters and, times its weight, its part of the group's sums of
//              g; then dx. Where p had to be computed it is stored in dx meanwhile, unless that
//              is x.
//
// A pixel of few channels is shorter than a vector: as many pixels as fill some 128 columns are
// then joined to one row, and their sums are added at the end. That depends on the shape alone, and
// the results of a column never depend on the columns beside it. A few examples can therefore be
// divided between groups for the threads without a change of bits. (Where pixels are joined they
// are not divided.)
//
// Error. The moments are computed as in reductions/kernels.h but for their lanes: one lane takes
// 256 rows, and at most 63 others, of pixels of the same row, are added to it; the next rows are
// merged to those by Chan's formula. With u = 2^-53 and Q as there |m2 - exact| <= 470 u Q, where Q
// <= 2^15 m2 (float64, of two passes: Q ~ m2). The sums of backward are of the compute type over
// eight rows and of double beyond.
//
// Measurements, and what was tried and rejected: docs/design/norms.md.
#include <type_traits>

#include "common/norms/norms.h"
#include "cpu/norms/channels/pass.h"
#include "cpu/norms/rows/params.h"

namespace fastact {
namespace {

constexpr int64_t kMomentRows = 256;       // rows whose moments are taken at once
constexpr int64_t kLeastColumns = 16;      // of a task: a cache line of float
constexpr int64_t kRowsWorthJoining = 32;  // so many times coefficients are used, at least

// One thread's pass over a task: some groups of one example.
struct GroupPass : ChannelPass<Norm> {
  int64_t example = 0, first_group = 0, groups = 0;
  const int64_t channels, group, pixels;
  const int64_t joined;  // pixels of a row where sums are made
  NormParameterReader weight, bias;
  RowStats stats[kTile];    // of the task's groups
  double mean_g[2][kTile];  // of g and of g xhat
  alignas(64) char of_tile[kCoefficients * kTile * sizeof(double)];

  GroupPass(const Norm& a, const Operands& operands)
      : ChannelPass(a, operands, kNear, {of_tile, kTile, a.operands.compute_item == sizeof(double)},
                    [&](int k) -> const ChannelFormula& { return a.table->channels->groups[k]; }),
        channels(a.operands.columns.size),
        group(a.parameters_per_row),
        pixels(a.pixels),
        joined(joined_pixels(channels)),
        weight(a, Norm::kWeight, 1.0),
        bias(a, Norm::kBias, -0.0) {}

  // Pixels of a row where each element is mapped by itself: no order depends on it. Only 16 bits
  // gain by long rows.
  int64_t joined_to_map() const {
    if (needs_buffer || groups < norm.groups || s.item == s.compute_item) return joined;
    return std::max(
        joined, joined_pixels(channels, std::min(kTile, pixels / kRowsWorthJoining * channels)));
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

  // All pixels of a tile's columns.
  ChannelPiece pixels_of(int64_t first, int64_t n) const {
    return {example * pixels, pixels, first, n};
  }

  template <class T>
  void set_parameter(NormParameterReader& of_k, int64_t first, int64_t n, T* row) {
    const T* from = reinterpret_cast<const T*>(of_k.of_elements(0, first, n));
    of_k.is_there() ? std::copy_n(from, n, row) : std::fill_n(row, n, *from);
  }

  // Sets mean, rstd and parameters of a tile of n columns, of so many joined pixels.
  void set_statistics(int64_t first, int64_t n, int64_t repeats) {
    numbers.fill(kHigh, kMeanP, n, repeats * n, [&](auto row) {
      using T = std::decay_t<decltype(*row(0))>;
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        const Centre<T> mean = centre_of<T>(stats[which].mean);
        std::fill_n(row(kHigh) + at, m, mean.high);
        std::fill_n(row(kLow) + at, m, mean.low);
        std::fill_n(row(kScale) + at, m, T(stats[which].rstd));
      });
      set_parameter(weight, first, n, row(kWeight));
      set_parameter(bias, first, n, row(kOffset));
    });
  }

  // Visits mean and rstd of the groups of the task, and where they lie.
  template <class Visit>
  void for_saved(Visit visit) {
    for (const int k : {Norm::kMean, Norm::kRstd})
      for (int64_t g = 0; g < groups; ++g)
        visit(k == Norm::kMean ? stats[g].mean : stats[g].rstd,
              s.row(k, example * pixels) + s.columns.offset(k, (first_group + g) * group));
  }
};

struct GroupForward : GroupPass {
  const ReduceTable& table;
  const Accumulator& accumulator;
  // Mean and m2 of all blocks of a tile's columns, what they lost, and of one block; the sums of d
  // and d^2 of that.
  alignas(64) double all_blocks[2][kTile], low[2][kTile], one_block[2][kTile];
  alignas(64) double shift[kTile], sums[2][kTile];

  explicit GroupForward(const Norm& a)
      : GroupPass(a, {-1, Norm::kX, Norm::kY}),
        table(*a.table->reduce),
        accumulator(table.accumulators[kMoments]) {}

  void normalise_example(int64_t index) {
    example = index;
    statistics();
    save();
    const int64_t repeats = joined_to_map();
    for_tiles([&](int64_t first, int64_t n) {
      set_statistics(first, n, repeats);
      for_pieces(pixels_of(first, n), repeats, 1, [&](const ChannelPiece& c) {
        set_coefficients(c.column - first);
        forward(c);
      });
    });
  }

  void statistics() {
    Moments all[kTile];
    double counts[kTile];
    std::fill_n(all, groups, Moments{});
    std::fill_n(counts, groups, 0.0);
    const double count = double(pixels);
    for_tiles([&](int64_t first, int64_t n) {
      moments(first, n);
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        for (int64_t i = at; i < at + m; ++i) {
          const Moments one = {all_blocks[0][i], all_blocks[1][i], low[0][i], low[1][i]};
          all[which] = merge_counted(one, count, all[which], counts[which]);
          counts[which] += count;
        }
      });
    });
    for (int64_t g = 0; g < groups; ++g) {
      const double m2 = all[g].m2 + all[g].m2_low;
      stats[g] = {all[g].mean + all[g].mean_low, rstd_of<CentredNorm>(m2, counts[g], norm.eps)};
      if (s.dtype == kF64 && leaves_range(m2, counts[g], norm.eps))
        rescale_row(
            norm, pixels * group,
            [&](int64_t term, int64_t n, double* to) { read_group(g, term, n, to); }, &stats[g]);
    }
  }

  // to OUT (n): elements of a group, of float64.
  void read_group(int64_t g, int64_t first, int64_t n, double* to) {
    for (int64_t done = 0, m; done < n; done += m) {
      const int64_t within = (first + done) % group;
      m = std::min(group - within, n - done);
      reader.go(example * pixels + (first + done) / group, (first_group + g) * group + within, m);
      memcpy(to + done, reader.load(Norm::kX, x), m * sizeof(double));
    }
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
      for (int64_t i = 0; i < n; ++i) shift[i] = finite_or_zero(shift[i]);
      for (int64_t i = n; i < joined * n; ++i) shift[i] = shift[i - n];
      for (double (&lanes)[kTile] : sums) std::fill_n(lanes, joined * n, 0.0);
      add_rows(pixel, terms, first, n);
      for (int64_t i = n; i < joined * n; i += n)
        for (double (&lanes)[kTile] : sums)
          for (int64_t c = 0; c < n; ++c) lanes[c] += lanes[i + c];
      accumulator.settle(shift, sums[0], kTile, terms, n, to.values, to.pitch);
    }
  }

  // Adds rows as they are stored where they lie in one piece.
  void add_rows(int64_t pixel, int64_t terms, int64_t first, int64_t n) {
    const bool is_flat = s.is_flat[Norm::kX];
    const auto add = accumulator.kernels[is_flat ? s.dtype : s.compute_dtype].add_rows;
    const int64_t item = is_flat ? s.item : s.compute_item;
    int64_t offsets[kMomentRows];
    const ChannelPiece all{example * pixels + pixel, terms, first, n};
    for_pieces(all, joined, kRowsAtOnce, [&](const ChannelPiece& c) {
      const StridedRows rows = is_flat ? plain(Norm::kX, c) : load(Norm::kX, c, x);
      for (int64_t r = 0; r < c.rows; ++r) offsets[r] = r * rows.pitch * item;
      const int64_t at = c.column - first;
      add(rows.first, offsets, 1, c.rows, c.n, shift + at, sums[0] + at, kTile, false, 0);
    });
  }

  void save() {
    if (s.data[Norm::kRstd])
      for_saved([&](double value, char* at) { store_as(s.compute_dtype, at, value); });
  }
};

struct GroupBackward : GroupPass {
  const bool has_dx, has_sums;
  const bool caches_p;    // p, in dx, from pass 1 to pass 2
  double sums[2][kTile];  // of p and of p xhat, of a tile's columns

  explicit GroupBackward(const Norm& a)
      : GroupPass(a, {Norm::kDy, Norm::kIn, Norm::kDx}),
        has_dx(s.data[Norm::kDx]),
        has_sums(a.has_sums()),
        caches_p(!a.is_identity && has_dx && !a.accumulate && is_plain(Norm::kDx) &&
                 s.data[Norm::kDx] != s.data[Norm::kIn]) {}

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
      if (has_dx) finish_example();
    }
  }

  void read_stats() {
    for_saved([&](double& value, const char* at) { value = number_at(s.compute_dtype, at); });
  }

  // p and x of a piece.
  void fetch(const ChannelPiece& c, int64_t first, bool is_second, StridedRows* p,
             StridedRows* of_x) {
    set_coefficients(c.column - first);
    *of_x = load(Norm::kIn, c, x);
    *p = caches_p && is_second
             ? plain(Norm::kDx, c)
             : p_of(c, *of_x, caches_p ? plain(Norm::kDx, c) : StridedRows{z, c.n});
  }

  void add_up(double* const* rows) {
    for (int k = 0; k < 2; ++k) std::fill(mean_g[k], mean_g[k] + groups, 0.0);
    for_tiles([&](int64_t first, int64_t n) {
      set_statistics(first, n, joined);
      add_columns(pixels_of(first, n), joined, false, sums,
                  [&](const ChannelPiece& c, StridedRows* p, StridedRows* of_x) {
                    fetch(c, first, false, p, of_x);
                  });
      for (int k = 0; has_sums && k < 2; ++k)
        for (int64_t i = 0; i < n; ++i) rows[k][first + i] += sums[1 - k][i];
      set_coefficients(0);
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        for (int64_t i = at; i < at + m; ++i) {
          const double w = number_at(s.compute_dtype, coefficients[kWeight] + i * s.compute_item);
          for (int k = 0; k < 2; ++k) mean_g[k][which] += w * sums[k][i];
        }
      });
    });
    for (int k = 0; k < 2; ++k)
      for (int64_t g = 0; g < groups; ++g) mean_g[k][g] /= double(pixels * group);
  }

  void set_means(int64_t first, int64_t n, int64_t repeats) {
    numbers.fill(kMeanP, kCoefficients, n, repeats * n, [&](auto row) {
      using T = std::decay_t<decltype(*row(0))>;
      for_groups(first, n, [&](int64_t which, int64_t at, int64_t m) {
        std::fill_n(row(kMeanP) + at, m, T(mean_g[0][which]));
        std::fill_n(row(kSlope) + at, m, T(mean_g[1][which]));
      });
    });
  }

  void finish_example() {
    const int64_t repeats = joined_to_map();
    for_tiles([&](int64_t first, int64_t n) {
      // Else they are still there.
      if (groups * group > kTile || repeats != joined) set_statistics(first, n, repeats);
      set_means(first, n, repeats);
      for_pieces(pixels_of(first, n), repeats, 1, [&](const ChannelPiece& c) {
        StridedRows p, of_x;
        fetch(c, first, true, &p, &of_x);
        make_gradient(c, formula.gradient, p, of_x);
      });
    });
  }
};

}  // namespace

void group_forward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  with_frame<GroupForward>(*norm, [&](GroupForward& forward) {
    forward.for_tasks(norm->batch, index, partitions,
                      [&](int64_t i) { forward.normalise_example(i); });
  });
}

void group_backward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  with_frame<GroupBackward>(*norm, [&](GroupBackward& backward) {
    backward.for_tasks(norm->chunks, index, partitions,
                       [&](int64_t i) { backward.backward_block(i); });
  });
}

}  // namespace fastact
