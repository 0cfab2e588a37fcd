// The native functions of softmax, log_softmax and logsumexp (softmax.h), and what a thread does
// with its rows.
#include "cpu/softmax/softmax.h"

#include "cpu/activations/kernels.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/softmax/row_blocks.h"

namespace fastact {
namespace {

using namespace softmax_roles;

// Kind: of common/softmax/kinds.h.
template <class Kind>
struct Forward : RowStatistics {
  const bool fits;        // all exponentials of a band, or of a row, are kept
  bool is_put_off;        // y goes past the caches, beside the exponentials of the rows that follow
  double factors[kBand];  // of `products`: of the rows of a band, or of the blocks of a row
  static_assert(kTileBytes / 2 <= kBand * kSoftmaxBlock * int64_t(sizeof(float)), "one a block");

  explicit Forward(const Softmax& a)
      : RowStatistics(a, kTileWidth, lies(a), Kind::kTakesTerms),
        fits(size * width * s.compute_item <= kTileBytes) {
    if (Kind::kHasY) reader.bypass_caches(Softmax::kY);
    constexpr int64_t kFewLines = 16;  // of a row: at its ends, a store reads the line before
    is_put_off = Kind::kTakesTerms && !by_tiles && reader.bypasses(Softmax::kY) &&
                 s.rows.count <= 1 && row_bytes >= kFewLines * kVectorBytes &&
                 row_bytes * width <= kTileBytes / 2;
  }

  // Tiles can be read and written where they lie.
  static bool lies(const Softmax& a) {
    return is_plain(a) && has_tiles(a.operands, Softmax::kX) &&
           (!Kind::kHasY || has_tiles(a.operands, Softmax::kY));
  }

  void visit(int64_t first, int64_t m) { by_tiles ? rows_of_tile(first, m) : band(first, m); }

  // A band of m rows, or one row.
  void band(int64_t first, int64_t m) {
    const bool keeps = Kind::kTakesTerms && fits;
    find(Softmax::kX, first, m, Kind::kCountsMaxima, keeps, Kind::kHasY ? int(Softmax::kY) : -1);
    if (Kind::kTakesTerms && job.has_sink) {
      save_shares(first, m);
      if (size <= kSoftmaxBlock) lower_below_sinks(first, m);
    }
    if constexpr (!Kind::kHasY)
      for (int64_t j = 0; j < m; ++j) save(first + j, j);
    else if (is_put_off)
      put_off(first, m);
    else
      size <= kSoftmaxBlock ? short_rows(first, m) : long_row(first, keeps);
  }

  // The part of each sink in its row's sum.
  void save_shares(int64_t first, int64_t m) {
    if (!s.data[Softmax::kShare]) return;
    for (int64_t j = 0; j < m; ++j) {
      alignas(double) char value[sizeof(double)];
      store_as(s.compute_dtype, value, sink(first + j, j));
      kernels.exponentials(value, 1, rows.max[j], rows.factor[j] * kernels.scale_of_terms, value);
      reader.store_number(Softmax::kShare, first + j, number_at(s.compute_dtype, value));
    }
  }
  // Whether a row's exponentials, beside its own maximum, may vanish beside its sink.
  bool is_below_sink(int64_t j) const {
    return job.has_sink && rows.max[j] != own_max[j] && !std::isnan(rows.factor[j]);
  }
  // For rows below their sinks, write y in the place of the exponentials and set the factor to 1.
  void lower_below_sinks(int64_t first, int64_t m) {
    for (int64_t j = 0; j < m; ++j) {
      if (!is_below_sink(j)) continue;
      reader.go(first + j, 0, size);
      const char* at = z(Softmax::kX, size, buffer);
      if (has_pivots && std::isfinite(pivots[j])) {
        z_beside(pivots[j], Softmax::kX, first + j, 0, size, buffer, s.compute_item);
        at = buffer;
      }
      kernels.exponentials(at, size, rows.max[j], rows.factor[j] * kernels.scale_of_terms,
                           kept(0) + j * row_bytes);
      rows.factor[j] = 1.0;
    }
  }

  // Leaves the products of m rows to the rows that come next, or to `end`.
  void put_off(int64_t first, int64_t m) {
    store_products(m);
    const RowsOut y = {s.row(Softmax::kY, first), s.rows.count ? s.rows.stride[Softmax::kY][0] : 0};
    products = {{kept(0), row_bytes}, y, m, size, factors};
    if (size <= kSoftmaxBlock)
      for (int64_t j = 0; j < m; ++j) {
        factors[j] = is_filled(j) ? 1.0 : rows.factor[j];
        if (is_filled(j)) fill(first, j, 0, size, kept(0) + j * row_bytes);
      }
    else
      for_blocks_of(first, [&](int64_t column, int64_t n) {
        factors[column / kSoftmaxBlock] = factor_of_block(first, column, n);
      });
    half = half ? 0 : kTileBytes / 2;
  }

  // Stores what the m rows that came next have not: each of them stored one. None is left.
  void store_products(int64_t m) {
    if (products.rows > m) {
      if (size <= kSoftmaxBlock)
        kernels.store(products.after(m));
      else
        for_blocks([&](int64_t column, int64_t n) {
          kernels.store(products.block(column, n, s.compute_item));
        });
    }
    products = {};
  }

  void end() {
    store_products(0);
    reader.fence();
  }

  void short_rows(int64_t first, int64_t m) {
    const RowsOut y = rows_at(Softmax::kY, first, tile);
    const RowsIn from = Kind::kTakesTerms ? RowsIn{tile, row_bytes} : z_rows;
    kernels.apply[job.kind](from, m, size, numbers(), rows.log, y);
    for (int64_t j = 0; j < m; ++j)
      if (is_filled(j)) fill(first, j, 0, size, y.at + j * y.stride);
    if (y.at == tile) store_band(Softmax::kY, first, m, tile, false);
  }

  void long_row(int64_t index, bool keeps) {
    for_blocks_of(index, [&](int64_t column, int64_t n) {
      char* const y = reader.target(Softmax::kY, buffer, false);
      if (is_filled(0)) {
        fill(index, 0, column, n, y);
      } else if (keeps) {
        const double factor = factor_of_block(index, column, n);
        kernels.apply[job.kind]({kept(column), 0}, 1, n, &factor, nullptr, {y, 0});
      } else {
        apply(z_of_row(Softmax::kX, index, column, n, buffer), n, y);
      }
      reader.finish(Softmax::kY, y, buffer, false);
    });
  }

  // The factor that makes y of the exponentials that a block keeps. Where the block's maximum is
  // too far below the row's they are computed anew, factor and all.
  double factor_of_block(int64_t row, int64_t column, int64_t n) {
    if (is_filled(0)) {
      fill(row, 0, column, n, kept(column));
      return 1.0;
    }
    const double lower = kernels.lower(block_max[column / kSoftmaxBlock], rows.max[0]);
    if (lower > 0) return rows.factor[0] * lower;
    apply(z_of_row(Softmax::kX, row, column, n, buffer), n, kept(column));
    return 1.0;
  }

  void apply(const char* z, int64_t n, char* y) {
    if (Kind::kTakesTerms)
      kernels.exponentials(z, n, rows.max[0], rows.factor[0] * kernels.scale_of_terms, y);
    else
      kernels.apply[job.kind]({z, 0}, 1, n, numbers(), rows.log, {y, 0});
  }
  // The first number a row of SoftmaxKernels::apply.
  const double* numbers() const { return Kind::kTakesTerms ? rows.factor : rows.max; }

  // In a row that is NaN, elements that a mask leaves out are not.
  bool is_filled(int64_t j) const { return job.mask_kind != 0 && std::isnan(rows.factor[j]); }
  void fill(int64_t first, int64_t j, int64_t column, int64_t n, char* y) {
    for (int64_t i = 0; i < n; ++i) {
      const bool is_out = !takes_part(Softmax::kX, first + j, column + i);
      store_as(s.compute_dtype, y + i * s.compute_item, is_out ? Kind::kNothing : kUndefined);
    }
  }

  void save(int64_t index, int64_t j) {
    reader.store_number(Softmax::kY, index, rows.lse[j]);
    if (s.data[Softmax::kLse]) reader.store_number(Softmax::kLse, index, rows.lse[j]);
    if (s.data[Softmax::kShare]) reader.store_number(Softmax::kShare, index, rest_of_lse(j));
  }

  // A tile of m rows.
  void rows_of_tile(int64_t index, int64_t m) {
    find_in_tile(Softmax::kX, index, m, Kind::kCountsMaxima);
    for (int64_t j = 0; !Kind::kHasY && j < m; ++j) save(index + j, j);
    if (Kind::kTakesTerms && job.has_sink) save_shares(index, m);
    if constexpr (Kind::kHasY) apply_to_tile(index, m);
  }

  void apply_to_tile(int64_t index, int64_t m) {
    // All of a tile is computed anew for one row, which changes no bit of the others.
    bool keeps = keeps_tile;
    for (int64_t j = 0; j < m; ++j) keeps &= !is_below_sink(j);
    const bool applies = keeps || !Kind::kTakesTerms;
    double factors_of_z[kTileWidth];
    for (int64_t j = 0; !applies && j < m; ++j)
      factors_of_z[j] = rows.factor[j] * kernels.scale_of_terms;
    for_blocks([&](int64_t column, int64_t n) {
      const RowsOut made = tile_in(tile, m);
      const RowsOut y = is_stored ? stored_tile(Softmax::kY, index, column) : made;
      const RowsIn z = keeps ? as_input(made) : z_of_tile(Softmax::kX, index, m, column, n);
      if (applies)
        tiles.apply[job.kind](z, n, m, numbers(), rows.log, y);
      else
        tiles.exponentials(z, n, m, rows.max, factors_of_z, y);
      if (is_stored) return;  // there is no mask
      for (int64_t j = 0; j < m; ++j)
        for (int64_t i = 0; i < n && is_filled(j); ++i)
          fill(index, j, column + i, 1, tile + (i * m + j) * s.compute_item);
      reader.store_tile(Softmax::kY, index, m, column, n, tile, false);
    });
  }
};

struct Backward : RowBlocks {
  static constexpr int64_t kReadBytes = 4 << 10;  // of each operand: read twice, by two loops
  static_assert(kReadBytes <= kSoftmaxBlock * int64_t(sizeof(float)), "one row of several blocks");

  const bool sums_products;
  const bool is_stored;  // all is read and written where it lies, else in the compute type
  const SoftmaxGradients& gradients;
  const SoftmaxTiles& tiles;
  const int64_t width;
  double sums[kTileWidth];
  alignas(64) char dy[kTileBytes / 2], y[kTileBytes / 2];

  explicit Backward(const Softmax& a)
      : RowBlocks(a),
        sums_products(with_softmax_kind(a.kind, [](auto kind) { return kind.kSumsProducts; })),
        is_stored(!a.accumulate && a.cap == 0.0 && lies(Softmax::kDy) && lies(Softmax::kOut) &&
                  lies(Softmax::kDx)),
        gradients(a.gradients[is_stored ? s.dtype : s.compute_dtype]),
        tiles(tiles_of(is_stored)),
        width(!by_tiles   ? std::clamp<int64_t>(kReadBytes / row_bytes, 1, kBand / 2)
              : is_stored ? kTileWidth
                          : std::max<int64_t>(tile_width(s) / 2, 1)) {}

  // Operand k has tiles, or contiguous rows, of the first one's dtype.
  bool lies(int k) const {
    return by_tiles ? has_tiles(s, k)
                    : s.rows.count <= 1 && s.has_unit_stride[k] && s.dtypes[k] == s.dtype;
  }

  void visit(int64_t first, int64_t m) {
    if (by_tiles || size > kSoftmaxBlock)
      blocks(first, m);
    else
      short_rows(first, m);
  }

  // A block of operand k of a tile of m rows, or of one row, where it lies.
  RowsOut stored_block(int k, int64_t first, int64_t column) const {
    return by_tiles ? stored_tile(k, first, column) : RowsOut{reader.stored(k), 0};
  }
  RowsIn read(int k, int64_t first, int64_t m, int64_t column, int64_t n, char* buffer) {
    if (is_stored) return as_input(stored_block(k, first, column));
    return {load_block(k, first, m, column, n, buffer), m * s.compute_item};
  }

  // A tile of m rows, or one row. The blocks of a row are the sums' blocks; the buffers hold one of
  // them, or less.
  void blocks(int64_t first, int64_t m) {
    std::fill(sums, sums + m, 0.0);
    for_blocks_of(first, [&](int64_t column, int64_t n) {
      const RowsIn a = read(Softmax::kDy, first, m, column, n, dy);
      const RowsIn b = sums_products ? read(Softmax::kOut, first, m, column, n, y) : RowsIn{};
      if (by_tiles)
        tiles.sum[job.kind](a, b, n, m, sums);
      else
        gradients.sum[job.kind](a, b, 1, n, sums);
    });
    save_dsinks(first, m, sums);
    const bool holds = !is_stored && size <= kSoftmaxBlock;  // still, what was read for the sum
    for_blocks_of(first, [&](int64_t column, int64_t n) {
      const RowsIn a =
          holds ? as_input(tile_in(dy, m)) : read(Softmax::kDy, first, m, column, n, dy);
      const RowsIn b = holds && sums_products ? as_input(tile_in(y, m))
                                              : read(Softmax::kOut, first, m, column, n, y);
      const RowsOut dx = is_stored        ? stored_block(Softmax::kDx, first, column)
                         : job.cap != 0.0 ? tile_in(dy, m)
                                          : tile_in(target_of_block(Softmax::kDx, dy), m);
      if (by_tiles)
        tiles.gradient[job.kind](a, b, n, m, sums, job.scale, dx);
      else
        gradients.gradient[job.kind](a, b, 1, n, sums, job.scale, after_row(first, column), dx);
      if (job.cap != 0.0)
        times_slope(load_block(Softmax::kOfX, first, m, column, n, y), n * m, dx.at, y);
      if (!is_stored) finish_block(Softmax::kDx, first, m, column, n, dx.at, dy);
    });
  }

  // dx IN/OUT (n), in a buffer, times the slope of the cap at x IN (n). What takes no part has a dx
  // of 0 whatever its x: 0 stands for that in `held`, which is x or disjoint from it.
  void times_slope(const char* x, int64_t n, char* dx, char* held) const {
    if (s.compute_dtype == kF64)
      hold<double>(x, dx, n, held);
    else
      hold<float>(x, dx, n, held);
    char* const operands[] = {dx, held, dx};
    job.times_slope(operands, n, &job.cap, 0);
  }
  template <class T>
  static void hold(const char* x, const char* dx, int64_t n, char* held) {
    for (int64_t i = 0; i < n; ++i) {
      const bool is_none = reinterpret_cast<const T*>(dx)[i] == T(0);
      reinterpret_cast<T*>(held)[i] = is_none ? T(0) : reinterpret_cast<const T*>(x)[i];
    }
  }

  // The gradients of the rows' sinks: a sink's probability p changes each y by -p y.
  void save_dsinks(int64_t first, int64_t m, const double* of_rows) const {
    if (!s.data[Softmax::kDSinks]) return;
    for (int64_t j = 0; j < m; ++j) {
      const double share = reader.number(Softmax::kOfShare, first + j);
      reader.store_number(Softmax::kDSinks, first + j, share == 0.0 ? 0.0 : -share * of_rows[j]);
    }
  }

  // Finds what pass 1 of the next band reads, if it pays to prefetch it beside so little
  // arithmetic.
  NextRows after_band(int64_t row, int64_t column, int64_t m) const {
    if (!prefetches_next_chunk()) return {{{nullptr, nullptr}, s.item}, {0, 0}};
    return next(row, column, m, Softmax::kDy, Softmax::kOut);
  }

  // Finds what pass 1 of the next row reads in these columns.
  NextRows after_row(int64_t row, int64_t column) const {
    NextRows found = after_band(row, size, 1);
    for (const char*& at : found.first.at)
      if (at) at += column * s.item;
    return found;
  }

  RowsIn read_band(int k, int64_t first, int64_t m, char* buffer) {
    if (!is_stored) return load_band(k, first, m, buffer);
    const RowsOut found = stored_rows(k, first);
    return {found.at, found.stride};
  }

  void short_rows(int64_t first, int64_t m) {
    const RowsIn a = read_band(Softmax::kDy, first, m, dy),
                 b = read_band(Softmax::kOut, first, m, y);
    const RowsOut to = is_stored                          ? stored_rows(Softmax::kDx, first)
                       : job.accumulate || job.cap != 0.0 ? RowsOut{dy, row_bytes}
                                                          : rows_at(Softmax::kDx, first, dy);
    std::fill(sums, sums + m, 0.0);
    gradients.sum[job.kind](a, b, m, size, sums);
    save_dsinks(first, m, sums);
    gradients.gradient[job.kind](a, b, m, size, sums, job.scale, after_band(first, 0, m), to);
    if (job.cap != 0.0) {
      const RowsIn x = load_band(Softmax::kOfX, first, m, y);
      for (int64_t j = 0; j < m; ++j)
        times_slope(x.at + j * x.stride, size, dy + j * row_bytes, y + j * row_bytes);
    }
    if (to.at == dy) store_band(Softmax::kDx, first, m, dy, job.accumulate);
  }
};

// dx = scale dy exp(z - lse), by the chain rule through logsumexp, whose derivative is softmax.
struct LseBackward : RowStatistics {
  double maxima[kTileWidth], factors[kTileWidth], found[kTileWidth];

  explicit LseBackward(const Softmax& a)
      : RowStatistics(a, goes_by_tiles(a.operands) ? kTileWidth : 1,
                      is_plain(a) && !a.accumulate && has_tiles(a.operands, Softmax::kIn) &&
                          has_tiles(a.operands, Softmax::kDIn),
                      false) {}

  // Nothing takes part in a row with a mask whose lse is -inf: its elements are all -inf, and their
  // exponentials beside 0 are 0. Where an lse left the range the row's statistics, beside a pivot,
  // stand for it.
  void prepare(int64_t first, int64_t m) {
    has_pivots = false;
    for (int64_t j = 0; j < m; ++j) {
      const double scaled = job.scale * reader.number(Softmax::kDLse, first + j);
      maxima[j] = reader.number(Softmax::kOfLse, first + j), found[j] = kUndefined;
      const bool may_leave = job.mask_kind == 2 || std::abs(job.scale) > 1.0;
      if (may_leave && std::isinf(maxima[j])) found[j] = pivot_of(Softmax::kIn, first + j);
      if (std::isfinite(found[j])) {
        pivots[0] = found[j], has_pivots = true;
        find_once(Softmax::kIn, first + j, 1, true, false, -1, {});
        maxima[j] = rows.max[0], factors[j] = scaled * (rows.factor[0] * kernels.scale_of_terms);
        continue;
      }
      const bool is_void = job.mask_kind != 0 && maxima[j] == kNothing;
      const double rest = number_or_0(Softmax::kOfRest, first + j);
      factors[j] = is_void ? 0.0 : scaled * kernels.factor_of(maxima[j], rest);
    }
    has_pivots = false;
    for (int64_t j = 0; j < m; ++j) has_pivots |= std::isfinite(pivots[j] = found[j]);
  }

  // In a row that is NaN, elements that take no part are not.
  void clear(int64_t first, int64_t j, int64_t column, int64_t n, char* dx, int64_t step) const {
    if (job.mask_kind == 0 || !std::isnan(factors[j])) return;
    for (int64_t i = 0; i < n; ++i)
      if (!takes_part(Softmax::kIn, first + j, column + i))
        store_as(s.compute_dtype, dx + i * step, 0.0);
  }

  void visit(int64_t index, int64_t m) {
    prepare(index, m);
    const int64_t item = s.compute_item, step = m * item;
    for_blocks_of(index, [&](int64_t column, int64_t n) {
      if (is_stored) {
        tiles.exponentials(as_input(stored_tile(Softmax::kIn, index, column)), n, m, maxima,
                           factors, stored_tile(Softmax::kDIn, index, column));
        return;
      }
      const char* const z = z_of_block(Softmax::kIn, index, m, column, n, tile);
      char* const dx = target_of_block(Softmax::kDIn, tile);
      exponentials(z, n, m, maxima, factors, dx);
      for (int64_t j = 0; j < m; ++j) clear(index, j, column, n, dx + j * item, step);
      finish_block(Softmax::kDIn, index, m, column, n, dx, tile);
    });
  }
};

// visit(row, m): m rows of a tile, or of a band.
template <class Frame>
void run(const Softmax* job, int64_t index, int64_t partitions) {
  with_frame<Frame>(*job, [&](Frame& frame) {
    for_rows(job->operands, frame.width, frame.by_tiles ? 32 : 1, index, partitions,
             [&](int64_t row, int64_t n) {
               for (int64_t m; n > 0; row += m, n -= m) {
                 m = frame.by_tiles && frame.is_stored ? frame.neighbours(row, n) : n;
                 frame.visit(row, m);
               }
             });
    frame.end();
  });
}

void forward(const SoftmaxCall& call, const KernelTable* kernels) noexcept {
  const int64_t size = size_of_rows(call);
  const bool has_number = call.kind == kLogSumExp;
  if (size == 0) {
    fill(call.arrays[kNumber], kNothing);
    fill(call.arrays[kLse], kNothing);
    fill(call.arrays[kShare], has_number ? 0 : 1);
    return;
  }
  Softmax job;
  plan(&job, kernels, call, {kX, kMask, has_number ? kNumber : kY, kLse, kSink, kShare});
  job.has_sink = call.arrays[kSink].shape;
  with_softmax_kind(job.kind, [&](auto kind) {
    run_partitions(resolve_threads(size), run<Forward<decltype(kind)>>, &job);
  });
}

void backward(const SoftmaxCall& call, const KernelTable* kernels) noexcept {
  const int64_t size = size_of_rows(call);
  if (size == 0) return;
  Softmax job;
  plan(&job, kernels, call, {kDy, kX, kY, kShare, kNumber, kCapped});
  run_partitions(resolve_threads(size), run<Backward>, &job);
}

void logsumexp_backward(const SoftmaxCall& call, const KernelTable* kernels) noexcept {
  const int64_t size = size_of_rows(call);
  if (size == 0) return;
  Softmax job;
  plan(&job, kernels, call, {kX, kMask, kNumber, kLse, kY, kRest});
  job.kind = kLogSumExp;
  run_partitions(resolve_threads(size), run<LseBackward>, &job);
}

// dsink OUT = total IN, or += of it.
void round_sink(const SinkCall& call, const KernelTable*) noexcept {
  const auto element = [](const ArrayArgument& a, int64_t index) {
    char* at = a.data;
    for (int i = a.ndim; i-- > 0; index /= a.shape[i])
      at += index % a.shape[i] * byte_stride(a, i, item_size(a.dtype));
    return at;
  };
  for (int64_t i = 0; i < size_of(call.total); ++i) {
    char* const to = element(call.dsink, i);
    const double was = call.accumulate ? number_at(call.dsink.dtype, to) : 0.0;
    store_as(call.dsink.dtype, to, was + number_at(kF64, element(call.total, i)));
  }
}

}  // namespace

void plan(Softmax* job, const KernelTable* table, const SoftmaxCall& call,
          std::initializer_list<int> roles, bool in_order) {
  const ArrayArgument &x = call.arrays[kX], &mask = call.arrays[kMask];
  Operand arrays[kSoftmaxOperands];
  int dtypes[kSoftmaxOperands], count = 0;
  for (const int role : roles) {
    const ArrayArgument& given = call.arrays[role];
    arrays[count] = given, dtypes[count++] = (given.shape ? given : x).dtype;
  }
  plan_rows(&job->operands, table->convert, count, arrays, dtypes, call.reduced, in_order);
  job->kernels = &table->softmax->kernels[job->operands.compute_dtype == kF64];
  job->gradients = table->softmax->gradients;
  job->tiles = table->softmax->tiles;
  job->kind = call.kind;
  job->mask_kind = !mask.shape ? 0 : mask.dtype == kBool ? 1 : 2;
  job->scale = call.scale;
  job->accumulate = call.accumulate;
  job->has_sink = false;
  job->cap = call.cap();
  const int dtype = job->operands.compute_dtype;
  job->capped = table->elementwise->forward[k_softcap][dtype];
  job->times_slope = table->elementwise->backward[k_softcap][dtype][0];
}

void add_softmax(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<forward>(kSoftmaxForward));
  functions->push_back(native_function<backward>(kSoftmaxBackward));
  functions->push_back(native_function<round_sink>(kSoftmaxSink));
  functions->push_back(native_function<logsumexp_backward>(kLogSumExpBackward));
  add_cross_entropy(functions);
}

}  // namespace fastact
