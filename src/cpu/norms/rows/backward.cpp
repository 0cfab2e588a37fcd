// The norms backward, one normalization row after the other (norms/rows/plan.h;
// common/norms/norms.h derives the gradients).
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/norms/channels/channels_last.h"
#include "cpu/norms/rows/params.h"

namespace fastact {
namespace {

constexpr int64_t kCachedBytes =
    8192 * sizeof(double);                  // bytes of p that pass 2 need not compute again
constexpr int64_t kJoinedBytes = 16 << 10;  // of an operand of rows that share a buffer
constexpr int64_t kBandPiece = kPiece / 2;  // elements of a chunk
constexpr int64_t kStoredPiece = kPiece;    // the same where no operand needs a buffer: of 16 bits
constexpr int64_t kBand = kLeastBlock;      // rows, at most, that pass 2 takes chunk by chunk
constexpr int64_t kShortStream = 512;       // elements of a row up to which the hardware does not
                                            // prefetch the lines of several dx written side by side
constexpr int64_t kSpansPerCall = 64;       // whose sums are held at once

// Up to kBand rows, whose parameters' sums are added up in the compute type; or some of such rows.
struct Band {
  int64_t first, step;  // their indices
  int64_t count;
  BackwardRow rows[kBand];  // p, x and dx where they lie, or where a buffer holds whole rows
  int64_t index(int64_t i) const { return first + i * step; }
};

struct NormBackward : NormChunks {
  const StridedOperands& s;
  const int64_t band;
  const bool has_dx, has_sums;
  const bool is_joined;  // whole rows pass through one buffer of each operand
  const bool is_stored;  // all lies in 16 bits where it is read and written
  const NormKernels& kernels;
  const int64_t item;         // bytes of what these read and write
  const bool is_plain;        // p and x are arrays
  const int64_t rows_joined;  // so many together, where they are joined
  const int64_t ahead;        // rows from one to the same position of those read next
  const bool is_direct;       // dx, to where it belongs
  const bool is_ready;        // the kernels find all of a row where a Band says
  const bool prefetches_dx;
  const bool caches_p;  // p, from pass 1 to pass 2
  const bool by_spans;  // all of a row's spans in one call
  ChunkReader reader;
  alignas(64) char x[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char p[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char dx[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char cached_p[kCachedBytes];
  alignas(64) char joined_p[kJoinedBytes], joined_x[kJoinedBytes], joined_dx[kJoinedBytes];
  alignas(64) char joined_sums[2][kJoinedBytes];
  alignas(64) char of_band[2][kBandPiece * sizeof(double) + kCacheLine];
  static_assert(kStoredPiece * sizeof(float) <= kBandPiece * sizeof(double));
  alignas(64) double spread[2][kBandPiece];

  explicit NormBackward(const Norm& a)
      : NormChunks(a, chunk_of(a)),
        s(a.operands),
        band(band_of(a)),
        has_dx(a.operands.data[Norm::kDx]),
        has_sums(a.partial),
        is_joined(joins_rows(a)),
        is_stored(are_stored(a)),
        kernels(is_stored ? a.table->norm->kernels[s.dtype] : *a.kernels),
        item(is_stored ? s.item : s.compute_item),
        is_plain(is_plain_of(a)),
        rows_joined(is_joined ? std::clamp<int64_t>(kJoinedBytes / row_bytes(), 1, band) : 0),
        ahead(has_shared_parameters() ? 1 : (is_joined ? rows_joined : band) * a.groups),
        // In place, dx may be where the gradient of the sum is yet to be read.
        is_direct(has_dx && (is_stored || (s.is_direct[Norm::kDx] && !a.accumulate &&
                                           !a.operands.data[Norm::kDSum]))),
        is_ready((is_plain && is_direct) || is_joined),
        prefetches_dx(is_far && is_direct && a.operands.columns.size <= kShortStream),
        caches_p((!a.is_identity || !s.is_direct[Norm::kDy]) && !a.casts && !is_stored &&
                 band * a.operands.columns.size * a.operands.compute_item <= kCachedBytes),
        by_spans(is_plain && (is_direct || !has_dx) && has_short_spans()),
        reader(a.operands) {}

  int64_t row_bytes() const { return s.columns.size * s.compute_item; }

  // As long as what needs no buffer.
  static int64_t chunk_of(const Norm& a) {
    const StridedOperands& s = a.operands;
    if (joins_rows(a)) return kPiece;
    const bool is_shared = a.kind == Norm::kPerRow || a.kind == Norm::kPerSpan;
    const bool stores =
        s.data[Norm::kDx] && (a.accumulate || s.data[Norm::kDSum] || !s.is_direct[Norm::kDx]);
    if (is_shared && (are_stored(a) || (is_plain_of(a) && !stores))) return s.columns.size;
    return are_stored(a) && a.kind == Norm::kPerElement ? kStoredPiece : kBandPiece;
  }

  static bool is_plain_of(const Norm& a) {
    const StridedOperands& s = a.operands;
    return are_stored(a) || (a.is_identity && s.is_direct[Norm::kDy] && s.is_direct[Norm::kIn]);
  }

  static bool are_stored(const Norm& a) {
    return !a.accumulate && !a.operands.data[Norm::kDSum] &&
           NormChunks::are_stored(a, {Norm::kDy, Norm::kIn, Norm::kDx});
  }

  // Whether rows that have to be converted are so as a whole, the short ones together: each by
  // itself, and once a pass, their calls take most of the time.
  static bool joins_rows(const Norm& a) {
    const StridedOperands& s = a.operands;
    return !are_stored(a) && a.kind == Norm::kPerElement && a.groups == 1 && a.is_identity &&
           !a.casts && s.item != s.compute_item && s.columns.size * s.compute_item <= kJoinedBytes;
  }

  // Of no array's layout: the bits of the sums depend on it.
  static int64_t band_of(const Norm& a) {
    if (a.kind != Norm::kPerElement) return 1;
    const int64_t bytes = a.operands.columns.size * a.operands.compute_item;
    const bool is_narrow = a.operands.item != a.operands.compute_item;
    const bool is_made = !a.is_identity || (is_narrow && bytes <= kJoinedBytes);
    const int64_t most = is_made && bytes <= kCachedBytes ? kCachedBytes / bytes : kBand;
    const int64_t fits = (a.partial ? kNormBandBytes : kSmallNormBand) / (2 * bytes);
    return std::clamp(std::min(most, fits), int64_t(1), kBand);
  }

  // One block of the batch, in some groups: in the order of memory.
  void block(int64_t chunk, int64_t first_group, int64_t groups) {
    const int64_t end = std::min((chunk + 1) * norm.block, norm.batch);
    double* first_sums[2] = {};
    for (int k = 0; has_sums && k < 2; ++k) {
      first_sums[k] = norm.partial + (k * norm.chunks + chunk) * norm.parameter_count() +
                      first_group * norm.parameters_per_row;
      std::fill_n(first_sums[k], groups * norm.parameters_per_row, 0.0);
    }
    Band rows{};
    rows.step = norm.groups;
    for (int64_t b = chunk * norm.block; b < end; b += band)
      for (int64_t g = 0; g < groups; ++g) {
        rows.first = b * norm.groups + first_group + g;
        rows.count = std::min(band, end - b);
        double* sums[2] = {};
        for (int k = 0; has_sums && k < 2; ++k)
          sums[k] = first_sums[k] + g * norm.parameters_per_row;
        if (is_joined) {
          backward_joined(rows, sums);
          continue;
        }
        find_rows(&rows);
        by_spans                  ? backward_short_spans(&rows, sums)
        : has_shared_parameters() ? backward_spans(&rows, sums)
                                  : backward_band(&rows, sums);
      }
  }

  void find_rows(Band* rows) {
    for (int64_t i = 0; i < rows->count; ++i) find(rows->index(i), &rows->rows[i]);
  }

  void find(int64_t index, BackwardRow* row) {
    row->stats.mean = s.data[Norm::kMean] ? reader.number(Norm::kMean, index) : 0.0;
    row->stats.rstd = reader.number(Norm::kRstd, index);
    if (is_plain) row->p = s.row(Norm::kDy, index), row->x = s.row(Norm::kIn, index);
    if (is_direct) row->dx = s.row(Norm::kDx, index);
    if (is_ready || by_spans) find_next(index, 0, row);
  }

  void find_next(int64_t index, int64_t column, BackwardRow* row) const {
    set_next(index + ahead, column, Norm::kIn, Norm::kDy, &row->next);
  }

  // Visits rows as parts that the reader takes at once, to which it goes: their first byte in a
  // buffer, and how many elements.
  template <class Visit>
  void for_parts(const Band& rows, Visit visit) {
    const int64_t size = s.columns.size, at_once = std::max<int64_t>(kPiece / size, 1);
    for (int64_t i = 0; i < rows.count; i += at_once)
      for (int64_t column = 0, n; column < size; column += n) {
        n = size > kPiece ? std::min(kPiece, size - column)
                          : std::min(at_once, rows.count - i) * size;
        reader.go(rows.index(i), column, n);
        visit((i * size + column) * s.compute_item, n);
      }
  }

  // `load` fills the buffers: only arrays of the compute type are used where they lie.
  void join(Band* rows) {
    for_parts(*rows, [&](int64_t first, int64_t) {
      reader.load(Norm::kDy, joined_p + first);
      reader.load(Norm::kIn, joined_x + first);
    });
    for (int64_t i = 0; i < rows->count; ++i) {
      BackwardRow& row = rows->rows[i];
      row.p = joined_p + i * row_bytes(), row.x = joined_x + i * row_bytes();
      row.dx = joined_dx + i * row_bytes();
    }
  }

  void set_means(BackwardRow* row, double sum_g, double sum_g_xhat) {
    const double count = double(s.columns.size);
    row->means[0] = sum_g / count, row->means[1] = sum_g_xhat / count;
    set_subtracted(norm.norm, row->means[0], row->means[1], count);
  }

  // p = dy f'(z) and x of a chunk of the band's row i, in the compute type.
  void fetch(const Band& rows, int64_t i, const NormChunk& c, bool is_second, const char** to_p,
             const char** to_x) {
    const BackwardRow& row = rows.rows[i];
    if (is_plain || is_joined) {
      *to_p = row.p + c.column * item, *to_x = row.x + c.column * item;
      return;
    }
    reader.go(rows.index(i), c.column, c.n);
    *to_x = reader.load(Norm::kIn, x[i % kQuad]);
    char* own =
        caches_p ? cached_p + (i * s.columns.size + c.column) * s.compute_item : p[i % kQuad];
    *to_p = own;
    if (caches_p && is_second) return;
    const char* gradient = reader.load(Norm::kDy, norm.is_identity ? own : dy);
    if (norm.is_identity) {
      *to_p = gradient;
    } else {
      const NormRow one{*to_x, z, row.stats, {}};
      if (norm.casts)
        normalise_cast(*to_x, row.stats, c, z);
      else
        norm.kernels->normalise[c.weight_row][c.bias_row](&one, 1, c.n, c.weight, c.bias);
      char* const operands[] = {const_cast<char*>(gradient), z, own};
      norm.activation(operands, c.n, norm.parameters, 0);
      if (norm.casts) cast(own, c.n);
    }
  }

  // The same for the kernels. Of a norm that casts they get g, rounded, in the place of p, and no
  // weight.
  NormChunk fetch_for_kernels(const Band& rows, int64_t i, NormChunk c, bool is_second,
                              BackwardRow* row) {
    fetch(rows, i, c, is_second, &row->p, &row->x);
    row->stats.mean = rows.rows[i].stats.mean;
    row->stats.rstd = rows.rows[i].stats.rstd;
    if (!norm.casts) return c;
    char* const g = p[i % kQuad];
    if (weight.is_there()) {
      multiply_cast(row->p, c.weight, c.n, g);
      row->p = g;
    }
    c.weight = kOne, c.weight_row = false;
    return c;
  }

  // Of a norm that casts, sum IN/OUT (n) += p xhat, where p, xhat and the product are rounded.
  void add_cast_gradient(const Band& rows, int64_t i, const NormChunk& c, char* sum) {
    const char *from_p, *from_x;
    fetch(rows, i, c, true, &from_p, &from_x);
    normalised_cast(from_x, rows.rows[i].stats, c.n, z);
    multiply_cast(from_p, z, c.n, z);
    s.kernels->plus[false](sum, z, sum, c.n);
  }

  // The two sums of some of a row's elements: of g if there is a row of weights, else of p.
  void add_up(const Band& rows, int64_t i, int64_t first, int64_t end, double* both) {
    alignas(64) double lanes[2 * kNormLanes];
    for_chunks(rows.index(i), first, end, [&](const NormChunk& chunk) {
      BackwardRow row;
      const NormChunk c = fetch_for_kernels(rows, i, chunk, false, &row);
      kernels.add_sums[c.weight_row](row.p, row.x, c.n, row.stats, c.weight, lanes,
                                     c.column == first);
    });
    kernels.fold(lanes, both);
  }

  // Pass 1 of rows of one chunk.
  void sum_whole(Band* rows, const NormChunk& chunk) {
    if (is_ready)
      kernels.sum_rows[chunk.weight_row](rows->rows, rows->count, chunk.n, chunk.weight,
                                         prefetches_dx);
    for (int64_t i = 0; i < rows->count; ++i) {
      BackwardRow own, *const row = is_ready ? &rows->rows[i] : &own;
      if (!is_ready) {
        const NormChunk c = fetch_for_kernels(*rows, i, chunk, false, row);
        kernels.sum_rows[c.weight_row](row, 1, c.n, c.weight, false);
      }
      set_means(&rows->rows[i], row->means[0], row->means[1]);
    }
  }

  // Pass 2 of one chunk of a band. sums IN/OUT: += the gradients of its parameters; null: no sums.
  void finish(const Band& rows, const NormChunk& own, double* const* sums) {
    char* made[2] = {};
    const char* const first_dx = is_direct ? rows.rows[0].dx + own.column * item : dx[0];
    // As the kernels ask for it. Of 16 bits dx may lie where no float may.
    const size_t head = is_stored ? 0 : reinterpret_cast<uintptr_t>(first_dx) % kCacheLine;
    for (int k = 0; sums && k < 2; ++k) {
      made[k] = of_band[k] + head;
      memset(made[k], 0, own.n * s.compute_item);
    }
    if (is_ready) {
      kernels.finish[own.weight_row](rows.rows, rows.count, own.column, own.n, own.weight, made[0],
                                     made[1]);
    } else {
      // Before dx, which may be x or dy.
      for (int64_t i = 0; norm.casts && sums && i < rows.count; ++i)
        add_cast_gradient(rows, i, own, made[0]);
      for (int64_t i = 0; i < rows.count; i += kQuad)
        finish_made(rows, i, std::min<int64_t>(kQuad, rows.count - i), own, made);
    }
    for (int k = 0; sums && k < 2; ++k) kernels.add_band(made[k], own.n, sums[k]);
  }

  // The same of up to kQuad rows from `first` on, where some operand passes through a buffer.
  void finish_made(const Band& rows, int64_t first, int64_t n, const NormChunk& own,
                   char* const* made) {
    BackwardRow chunks[kQuad];
    NormChunk c = own;
    for (int64_t i = 0; i < n; ++i) {
      const BackwardRow& row = rows.rows[first + i];
      BackwardRow& chunk = chunks[i];
      c = fetch_for_kernels(rows, first + i, own, true, &chunk);
      find_next(rows.index(first + i), c.column, &chunk);
      for (int k = 0; k < 2; ++k) chunk.means[k] = row.means[k];
      chunk.dx = is_direct ? row.dx + c.column * item : dx[i];
    }
    const bool adds = !norm.casts;
    kernels.finish[c.weight_row](chunks, n, 0, c.n, c.weight, adds ? made[0] : nullptr,
                                 adds ? made[1] : nullptr);
    for (int64_t i = 0; has_dx && !is_direct && i < n; ++i) {
      reader.go(rows.index(first + i), c.column, c.n);
      store(dx[i], c.n);
    }
  }

  // The n elements of a gradient, to which the reader goes; values is overwritten.
  void store(char* values, int64_t n) {
    if (s.data[Norm::kDSum])
      s.kernels->plus[s.compute_item == sizeof(double)](reader.load(Norm::kDSum, dy), values,
                                                        values, n);
    reader.store(Norm::kDx, values, norm.accumulate);
  }

  // kPerRow, kPerSpan: the two sums of a span are the gradients of its parameters, and times its
  // weight the sums of g.
  void backward_spans(Band* rows, double* const* sums) {
    double sum_g = 0.0, sum_g_xhat = 0.0;
    int64_t parameter = 0;
    for (int64_t first = 0; first < s.columns.size; first += norm.span, ++parameter) {
      double both[2];
      add_up(*rows, 0, first, first + norm.span, both);
      const double w = number_at(s.compute_dtype, weight.of_element(rows->first, first));
      sum_g += w * both[0];
      sum_g_xhat += w * both[1];
      for (int k = 0; has_sums && k < 2; ++k) sums[k][parameter] += both[1 - k];
    }
    if (!has_dx) return;
    set_means(&rows->rows[0], sum_g, sum_g_xhat);
    for_row(rows->first, [&](const NormChunk& c) { finish(*rows, c, nullptr); });
  }

  // The same, of spans that lie in one piece and need no buffer.
  void backward_short_spans(Band* rows, double* const* sums) {
    const int64_t spans = spans_of_row();
    const SpanValues weights = weight.of_spans(rows->first, norm.span, spans);
    BackwardRow& all = rows->rows[0];
    BackwardRow some;
    some.stats.mean = all.stats.mean, some.stats.rstd = all.stats.rstd;
    double sum_g = 0.0, sum_g_xhat = 0.0, both[kSpansPerCall][2];
    for (int64_t first = 0, n; first < spans; first += n) {
      n = std::min(kSpansPerCall, spans - first);
      some.p = all.p + first * norm.span * item;
      some.x = all.x + first * norm.span * item;
      kernels.sum_spans(some, n, norm.span, both[0]);
      for (int64_t r = 0; r < n; ++r) {
        const double w = number_at(s.compute_dtype, weights.at + (first + r) * weights.step);
        sum_g += w * both[r][0];
        sum_g_xhat += w * both[r][1];
        for (int k = 0; has_sums && k < 2; ++k) sums[k][first + r] += both[r][1 - k];
      }
    }
    if (!has_dx) return;
    set_means(&all, sum_g, sum_g_xhat);
    kernels.finish_spans(all, spans, norm.span, weights);
  }

  // Pass 1.
  void sum(Band* rows) {
    if (s.columns.size <= most) {
      for_row(rows->first, [&](const NormChunk& c) { sum_whole(rows, c); });
      return;
    }
    if (is_stored && rows->count > 1 && weight.is_there()) return sum_by_chunks(rows);
    for (int64_t i = 0; i < rows->count; ++i) {
      double both[2] = {};
      add_up(*rows, i, 0, s.columns.size, both);
      set_means(&rows->rows[i], both[0], both[1]);
    }
  }

  // A chunk of a few rows, then the next one: its weights are converted once for these.
  void sum_by_chunks(Band* rows) {
    alignas(64) double lanes[kQuad][2 * kNormLanes];
    for (int64_t first = 0; first < rows->count; first += kQuad) {
      const int64_t n = std::min<int64_t>(kQuad, rows->count - first);
      BackwardRow* const some = rows->rows + first;
      for_row(rows->first, [&](const NormChunk& c) {
        for (int64_t i = 0; i < n; ++i)
          kernels.add_sums[c.weight_row](some[i].p + c.column * item, some[i].x + c.column * item,
                                         c.n, some[i].stats, c.weight, lanes[i], c.column == 0);
      });
      for (int64_t i = 0; i < n; ++i) {
        double both[2];
        kernels.fold(lanes[i], both);
        set_means(&some[i], both[0], both[1]);
      }
    }
  }

  void skip_sum(Band* rows) {
    for (int64_t i = 0; i < rows->count; ++i) set_means(&rows->rows[i], 0.0, 0.0);
  }

  // kPerElement, kMixed: pass 2 takes a chunk of all rows of the band, then the next chunk.
  void backward_band(Band* rows, double* const* sums) {
    has_dx || caches_p ? sum(rows) : skip_sum(rows);
    for_row(rows->first, [&](const NormChunk& c) {
      if (!has_sums) {
        finish(*rows, c, nullptr);
        return;
      }
      const bool is_row = norm.kind == Norm::kPerElement;
      double* to[2];
      for (int k = 0; k < 2; ++k) {
        to[k] = is_row ? sums[k] + c.column : spread[k];
        if (!is_row) std::fill(spread[k], spread[k] + c.n, 0.0);
      }
      finish(*rows, c, to);
      if (!is_row) gather_sums(c.column, c.n, sums);
    });
  }

  // The same of rows that are converted as a whole, some at a time.
  void backward_joined(const Band& rows, double* const* sums) {
    for (int k = 0; has_sums && k < 2; ++k) memset(joined_sums[k], 0, row_bytes());
    Band some;
    some.step = rows.step;
    for (int64_t first = 0; first < rows.count; first += rows_joined) {
      some.first = rows.index(first);
      some.count = std::min(rows_joined, rows.count - first);
      find_rows(&some);
      join(&some);
      has_dx ? sum(&some) : skip_sum(&some);
      for_row(some.first, [&](const NormChunk& c) {
        const int64_t at = c.column * s.compute_item;
        kernels.finish[c.weight_row](some.rows, some.count, c.column, c.n, c.weight,
                                     has_sums ? joined_sums[0] + at : nullptr,
                                     has_sums ? joined_sums[1] + at : nullptr);
      });
      if (has_dx) for_parts(some, [&](int64_t at, int64_t n) { store(joined_dx + at, n); });
    }
    for (int k = 0; has_sums && k < 2; ++k)
      kernels.add_band(joined_sums[k], s.columns.size, sums[k]);
  }

  // What a chunk gave, onto the parameter_count of its parameters.
  void gather_sums(int64_t column, int64_t n, double* const* sums) {
    const int64_t step = last_stride(norm.parameter_index);
    int64_t done = 0;
    for_spans(norm.parameter_index, column, n, [&](int64_t parameter, int64_t, int64_t m) {
      for (int k = 0; k < 2; ++k)
        for (int64_t i = 0; i < m; ++i) sums[k][parameter + i * step] += spread[k][done + i];
      done += m;
    });
  }
};

}  // namespace

void norm_backward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  if (norm->kind == Norm::kChannelsLast)
    return channels_last_backward_partition(norm, index, partitions);
  with_frame<NormBackward>(*norm, [&](NormBackward& backward) {
    const int64_t blocks = norm->chunks * norm->groups;
    const int64_t end = blocks * (index + 1) / partitions;
    for (int64_t i = blocks * index / partitions, n; i < end; i += n) {
      const int64_t chunk = i / norm->groups, group = i % norm->groups;
      n = std::min(norm->groups - group, end - i);
      backward.block(chunk, group, n);
    }
  });
}

void merge_norm_partition(const Norm* norm, int64_t index, int64_t partitions) {
  const int64_t parameter_count = norm->parameter_count(),
                end = parameter_count * (index + 1) / partitions;
  alignas(64) double total[kTile];
  const Reducer* const gradients[] = {&norm->dweight, &norm->dbias};
  for (int k = 0; k < 2; ++k) {
    if (!gradients[k]->y) continue;
    for (int64_t first = parameter_count * index / partitions, n; first < end; first += n) {
      n = std::min(kTile, end - first);
      const double* part = norm->partial + k * norm->chunks * parameter_count + first;
      std::copy(part, part + n, total);
      for (int64_t c = 1; c < norm->chunks; ++c) {
        part += parameter_count;
        for (int64_t i = 0; i < n; ++i) total[i] += part[i];
      }
      store_sums(*gradients[k], first, n, total, nullptr);
    }
  }
}

}  // namespace fastact
