// The native functions of softmax, log_softmax and logsumexp (softmax.h), and what a thread does
// with its rows.
#include "cpu/softmax/softmax.h"

#include "cpu/activations/kernels.h"
#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

using namespace softmax_roles;

// Kind: of common/softmax/kinds.h.
template <class Kind>
struct Forward : RowStatistics {
  explicit Forward(const Softmax& a) : RowStatistics(a, kTileWidth, lies(a), Kind::kTakesTerms) {
    if (Kind::kHasY) reader.bypass_caches(Softmax::kY);
  }

  // Tiles can be read and written where they lie.
  static bool lies(const Softmax& a) {
    return is_plain(a) && has_tiles(a.operands, Softmax::kX) &&
           (!Kind::kHasY || has_tiles(a.operands, Softmax::kY));
  }
  void visit(int64_t first, int64_t m) {
    find(Softmax::kX, first, m, Kind::kCountsMaxima, Kind::kHasY ? int(Softmax::kY) : -1);
    if (Kind::kTakesTerms && job.has_sink) {
      save_shares(first, m);
      if (!by_tiles && is_single) lower_below_sinks(first, m);
    }
    if constexpr (!Kind::kHasY)
      for (int64_t j = 0; j < m; ++j) save(first + j, j);
    else
      write(first, m);
  }

  // The part of each sink in its row's sum.
  void save_shares(int64_t first, int64_t m) {
    if (!s.data[Softmax::kShare]) return;
    for (int64_t j = 0; j < m; ++j) {
      alignas(double) char value[sizeof(double)];
      store_as(s.compute_dtype, value, sink(first + j));
      const double factor = rows.factor[j] * kernels.scale_of_terms;
      job.bands[s.compute_dtype].exponentials({value, 0}, 1, 1, &rows.max[j], &factor, {value, 0});
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
      const RowsBlock one{first + j, 1, 0, size};
      compute_anew(one, j, {tile + j * row_bytes, row_bytes});
      rows.factor[j] = 1.0;
    }
  }
  // y OUT of a block of one row, the j-th of those at hand.
  void compute_anew(const RowsBlock& b, int64_t j, BlockRows y) {
    const double factor = rows.factor[j] * kernels.scale_of_terms;
    loops.exponentials(z(Softmax::kX, b, buffer), 1, b.n, &rows.max[j], &factor, y);
  }

  // y of m rows.
  void write(int64_t first, int64_t m) {
    // All of a tile is computed anew for one row, which changes no bit of the others.
    bool takes_kept = keeps;
    for (int64_t j = 0; by_tiles && job.has_sink && j < m; ++j) takes_kept &= !is_below_sink(j);
    double scaled[kTileWidth], of_block;
    for (int64_t j = 0; Kind::kTakesTerms && !takes_kept && j < m; ++j)
      scaled[j] = rows.factor[j] * kernels.scale_of_terms;
    for_blocks(first, m, [&](const RowsBlock& b) {
      const BlockRows y = target(Softmax::kY, b, place());
      if (takes_kept) {
        if (!is_single) of_block = factor_of_block(b);
        const double* const factors = is_single ? rows.factor : &of_block;
        loops.apply[job.kind](kept(b), m, b.n, factors, nullptr, y);
      } else {
        const BlockRows from = is_single && !keeps ? z_rows : z(Softmax::kX, b, place());
        if (Kind::kTakesTerms)
          loops.exponentials(from, m, b.n, rows.max, scaled, y);
        else
          loops.apply[job.kind](from, m, b.n, rows.max, rows.log, y);
      }
      for (int64_t j = 0; job.mask_kind != 0 && j < m; ++j)
        if (is_filled(j)) fill(b, j, y);
      finish(Softmax::kY, b, y, place());
    });
  }

  // The factor that makes y of the exponentials that a row's block keeps. Where the block's maximum
  // is too far below the row's they are computed anew, factor and all.
  double factor_of_block(const RowsBlock& b) {
    const double lower = kernels.lower(block_max[b.column / kSoftmaxBlock], rows.max[0]);
    if (is_filled(0))
      fill(b, 0, kept(b));
    else if (lower > 0)
      return rows.factor[0] * lower;
    else
      compute_anew(b, 0, kept(b));
    return 1.0;
  }

  // In a row that is NaN, elements that a mask leaves out are not.
  bool is_filled(int64_t j) const { return job.mask_kind != 0 && std::isnan(rows.factor[j]); }
  void fill(const RowsBlock& b, int64_t j, BlockRows y) {
    for (int64_t i = 0; i < b.n; ++i) {
      const bool is_out = !takes_part(Softmax::kX, b.row + j, b.column + i);
      store_as(s.compute_dtype, at(y, j, i), is_out ? Kind::kNothing : kUndefined);
    }
  }

  void save(int64_t index, int64_t j) {
    reader.store_number(Softmax::kY, index, rows.lse[j]);
    if (s.data[Softmax::kLse]) reader.store_number(Softmax::kLse, index, rows.lse[j]);
    if (s.data[Softmax::kShare]) reader.store_number(Softmax::kShare, index, rest_of_lse(j));
  }
};

struct Backward : RowBlocks {
  const bool sums_products;
  double sums[kTileWidth];
  alignas(64) char dy[kTileBytes / 2], y[kTileBytes / 2];

  explicit Backward(const Softmax& a)
      : RowBlocks(a, !a.accumulate && a.cap == 0.0 && lies(a.operands, Softmax::kDy) &&
                         lies(a.operands, Softmax::kOut) && lies(a.operands, Softmax::kDx)),
        sums_products(with_softmax_kind(a.kind, [](auto kind) { return kind.kSumsProducts; })) {
    width = !by_tiles   ? few_rows()
            : is_stored ? kTileWidth
                        : std::max<int64_t>(tile_width(s) / 2, 1);
  }

  // Operand k has tiles, or contiguous rows, of the first one's dtype.
  static bool lies(const StridedOperands& s, int k) {
    return goes_by_tiles(s) ? has_tiles(s, k)
                            : s.rows.count <= 1 && s.has_unit_stride[k] && s.dtypes[k] == s.dtype;
  }

  // The blocks of a row are the sums' blocks; the buffers hold one of them, or less: what was read
  // for the sum of a single one is still there.
  void visit(int64_t first, int64_t m) {
    std::fill(sums, sums + m, 0.0);
    BlockRows of_dy, of_y{};
    for_blocks(first, m, [&](const RowsBlock& b) {
      of_dy = load(Softmax::kDy, b, dy);
      if (sums_products || is_single) of_y = load(Softmax::kOut, b, y);
      loops.sum[job.kind](of_dy, of_y, m, b.n, sums);
    });
    save_dsinks(first, m, sums);
    for_blocks(first, m, [&](const RowsBlock& b) {
      if (!is_single) of_dy = load(Softmax::kDy, b, dy), of_y = load(Softmax::kOut, b, y);
      make_gradient(b, of_dy, of_y);
    });
  }

  void make_gradient(const RowsBlock& b, BlockRows of_dy, BlockRows of_y) {
    const BlockRows dx = job.cap != 0.0 ? in_buffer(dy, b.m) : target(Softmax::kDx, b, dy);
    loops.gradient[job.kind](of_dy, of_y, b.m, b.n, sums, job.scale, after(b), dx);
    if (job.cap != 0.0) times_slope(b, dx);
    finish(Softmax::kDx, b, dx, dy);
  }

  // dx IN/OUT of a block, in a buffer, times the slope of the cap at x. What takes no part has a dx
  // of 0 whatever its x: 0 stands for that in `y`.
  void times_slope(const RowsBlock& b, BlockRows dx) {
    const BlockRows x = load(Softmax::kOfX, b, y);
    const int64_t rows = x.at == y ? 1 : b.m, n = b.m * b.n / rows;
    for (int64_t j = 0; j < rows; ++j) {
      char* const to = dx.at + j * dx.stride;
      if (s.compute_dtype == kF64)
        hold<double>(x.at + j * x.stride, to, n);
      else
        hold<float>(x.at + j * x.stride, to, n);
      char* const operands[] = {to, y, to};
      job.times_slope(operands, n, &job.cap, 0);
    }
  }
  template <class T>
  void hold(const char* x, const char* dx, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const bool is_none = reinterpret_cast<const T*>(dx)[i] == T(0);
      reinterpret_cast<T*>(y)[i] = is_none ? T(0) : reinterpret_cast<const T*>(x)[i];
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

  // Finds what pass 1 of the next rows reads in these columns, if it pays to prefetch it beside so
  // little arithmetic.
  NextRows after(const RowsBlock& b) const {
    if (!prefetches_next_chunk()) return {{{nullptr, nullptr}, s.item}, {0, 0}};
    NextRows found = next({b.row, b.m, size, 0}, Softmax::kDy, Softmax::kOut);
    for (const char*& first : found.first.at)
      if (first) first += b.column * s.item;
    return found;
  }
};

// dx = scale dy exp(z - lse), by the chain rule through logsumexp, whose derivative is softmax.
struct LseBackward : RowStatistics {
  double maxima[kTileWidth], factors[kTileWidth], found[kTileWidth];

  explicit LseBackward(const Softmax& a)
      : RowStatistics(a, kTileWidth,
                      is_plain(a) && !a.accumulate && has_tiles(a.operands, Softmax::kIn) &&
                          has_tiles(a.operands, Softmax::kDIn),
                      false) {
    if (!by_tiles) width = few_rows();
  }

  // Nothing takes part in a row with a mask whose lse is -inf: its elements are all -inf, and their
  // exponentials beside 0 are 0. Where an lse left the range the row's statistics, beside a pivot,
  // stand for it.
  void prepare(int64_t first, int64_t m) {
    for (int64_t j = 0; j < m; ++j) {
      const double scaled = job.scale * reader.number(Softmax::kDLse, first + j);
      maxima[j] = reader.number(Softmax::kOfLse, first + j), found[j] = kUndefined;
      const bool may_leave = job.mask_kind == 2 || std::abs(job.scale) > 1.0;
      if (may_leave && std::isinf(maxima[j])) found[j] = pivot_of(Softmax::kIn, first + j);
      if (std::isfinite(found[j])) {
        pivots[0] = found[j], first_pivot = first + j, has_pivots = true;
        find_once(Softmax::kIn, first + j, 1, true, -1);
        maxima[j] = rows.max[0], factors[j] = scaled * (rows.factor[0] * kernels.scale_of_terms);
        continue;
      }
      const bool is_void = job.mask_kind != 0 && maxima[j] == kNothing;
      const double rest = number_or_0(Softmax::kOfRest, first + j);
      factors[j] = is_void ? 0.0 : scaled * kernels.factor_of(maxima[j], rest);
    }
    has_pivots = false, first_pivot = first;
    for (int64_t j = 0; j < m; ++j) has_pivots |= std::isfinite(pivots[j] = found[j]);
  }

  // In a row that is NaN, elements that take no part are not.
  void clear(const RowsBlock& b, int64_t j, BlockRows dx) const {
    if (job.mask_kind == 0 || !std::isnan(factors[j])) return;
    for (int64_t i = 0; i < b.n; ++i)
      if (!takes_part(Softmax::kIn, b.row + j, b.column + i))
        store_as(s.compute_dtype, at(dx, j, i), 0.0);
  }

  void visit(int64_t first, int64_t m) {
    prepare(first, m);
    for_blocks(first, m, [&](const RowsBlock& b) {
      const BlockRows of_z = z(Softmax::kIn, b, place());
      const BlockRows dx = target(Softmax::kDIn, b, place());
      loops.exponentials(of_z, m, b.n, maxima, factors, dx);
      for (int64_t j = 0; j < m; ++j) clear(b, j, dx);
      finish(Softmax::kDIn, b, dx, place());
    });
  }
};

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
  prepare(&job, kernels, call, {kX, kMask, has_number ? kNumber : kY, kLse, kSink, kShare});
  job.has_sink = call.arrays[kSink].shape;
  with_softmax_kind(job.kind, [&](auto kind) {
    run_partitions(resolve_threads(size), run_rows<Forward<decltype(kind)>, Softmax>, &job);
  });
}

void backward(const SoftmaxCall& call, const KernelTable* kernels) noexcept {
  const std::initializer_list<int> roles = {kDy, kX, kY, kShare, kNumber, kCapped};
  run_planned(run_rows<Backward, Softmax>, size_of_rows(call), call, kernels, roles);
}

void logsumexp_backward(const SoftmaxCall& call, const KernelTable* kernels) noexcept {
  const std::initializer_list<int> roles = {kX, kMask, kNumber, kLse, kY, kRest};
  run_planned(run_rows<LseBackward, Softmax>, size_of_rows(call), call, kernels, roles);
}

// dsink OUT = total IN, or += of it.
void round_sink(const SinkCall& call, const KernelTable* kernels) noexcept {
  if (is_empty(call.dsink)) return;
  StridedOperands s;
  const ArrayArgument arrays[] = {call.dsink, call.total};
  plan_rows(&s, kernels->convert, 2, arrays, nullptr);  // all axes are columns
  for (int64_t i = 0; i < s.columns.size; ++i) {
    char* const to = s.data[0] + s.columns.offset(0, i);
    const double was = call.accumulate ? number_at(s.dtypes[0], to) : 0.0;
    store_as(s.dtypes[0], to, was + number_at(kF64, s.data[1] + s.columns.offset(1, i)));
  }
}

}  // namespace

void prepare(Softmax* job, const KernelTable* table, const SoftmaxCall& call,
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
  job->bands = table->softmax->bands;
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
