// The norms backward, one normalization row after the other (norms/rows/plan.h;
// common/norms/norms.h derives the gradients).
//
// A band goes one of three ways, by how its rows share parameters (Norm::Kind), or are joined.
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/norms/rows/backward_rows.h"

namespace fastact {
namespace {

constexpr int64_t kSpansPerCall = 64;  // whose sums are held at once

struct NormBackward : BackwardRows {
  const bool is_ready = access != kFetched;  // the kernels find a row where a Band says
  alignas(64) char of_band[2][kBandPiece * sizeof(double) + kCacheLine];
  alignas(64) double spread[2][kBandPiece];  // the sums of a chunk's elements
  static_assert(kStoredPiece * sizeof(float) <= kBandPiece * sizeof(double));

  using BackwardRows::BackwardRows;

  // both OUT (2): the sums of lanes IN/OUT [2][kNormLanes], in halves.
  void fold(double* lanes, double* both) {
    for (int k = 0; k < 2; ++k) {
      norm.table->reduce->fold(lanes + k * kNormLanes, kNormLanes, 1);
      both[k] = lanes[k * kNormLanes];
    }
  }

  // The two sums of some of a row's elements: of g if there is a row of weights, else of p.
  void add_up(const Band& rows, int64_t i, int64_t first, int64_t end, double* both) {
    alignas(64) double lanes[2 * kNormLanes];
    for_chunks(rows.index(i), first, end, [&](const NormChunk& chunk) {
      BackwardRow row;
      const NormChunk c = get(rows, i, chunk, false, &row);
      kernels.add_sums[c.weight_row](row.p, row.x, c.n, row.stats, c.weight, lanes,
                                     c.column == first);
    });
    fold(lanes, both);
  }

  // Pass 1 of rows of one chunk.
  void sum_whole(Band* rows, const NormChunk& chunk) {
    if (is_ready)
      kernels.sum_rows[chunk.weight_row](rows->rows, rows->count, chunk.n, chunk.weight,
                                         is_far && is_direct && chunk.n <= kShortStream);
    for (int64_t i = 0; i < rows->count; ++i) {
      BackwardRow own, *const row = is_ready ? &rows->rows[i] : &own;
      if (!is_ready) {
        const NormChunk c = get(*rows, i, chunk, false, row);
        kernels.sum_rows[c.weight_row](row, 1, c.n, c.weight, false);
      }
      set_means(&rows->rows[i], row->means[0], row->means[1]);
    }
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
        fold(lanes[i], both);
        set_means(&some[i], both[0], both[1]);
      }
    }
  }

  void skip_sum(Band* rows) {
    for (int64_t i = 0; i < rows->count; ++i) set_means(&rows->rows[i], 0.0, 0.0);
  }

  // Pass 2 of one chunk of a band. sums IN/OUT: += the gradients of its parameters; null: no sums.
  void finish(const Band& rows, const NormChunk& own, double* const* sums) {
    char* made[2] = {};
    const char* const first_dx = first_dx_of(rows, own);
    // The kernels ask for this alignment. 16-bit dx may lie where no float may.
    const size_t head = is_stored ? 0 : reinterpret_cast<uintptr_t>(first_dx) % kCacheLine;
    for (int k = 0; sums && k < 2; ++k) {
      made[k] = of_band[k] + head;
      memset(made[k], 0, own.n * s.compute_item);
    }
    if (is_ready)
      kernels.finish[own.weight_row](rows.rows, rows.count, own.column, own.n, own.weight, made[0],
                                     made[1]);
    else
      finish_fetched(rows, own, made);
    for (int k = 0; sums && k < 2; ++k) kernels.add_band(made[k], own.n, sums[k]);
  }

  const char* first_dx_of(const Band& rows, const NormChunk& c) const {
    if (!is_ready && !is_direct) return buffers.dx[0];
    return rows.rows[0].dx + c.column * item;
  }

  // Finishes rows of which some operand passes through a buffer.
  void finish_fetched(const Band& rows, const NormChunk& own, char* const* made) {
    // Before dx, which may be x or dy.
    for (int64_t i = 0; norm.casts && made[0] && i < rows.count; ++i)
      add_cast_gradient(rows, i, own, made[0]);
    for (int64_t i = 0; i < rows.count; i += kQuad)
      finish_made(rows, i, std::min<int64_t>(kQuad, rows.count - i), own, made);
  }

  // Finishes up to kQuad rows from `first` on.
  void finish_made(const Band& rows, int64_t first, int64_t n, const NormChunk& own,
                   char* const* made) {
    BackwardRow chunks[kQuad];
    NormChunk c = own;
    for (int64_t i = 0; has_dgate && !norm.gate_first && i < n; ++i)
      find_dgate(rows, first + i, own);
    for (int64_t i = 0; i < n; ++i) {
      const BackwardRow& row = rows.rows[first + i];
      BackwardRow& chunk = chunks[i];
      c = get(rows, first + i, own, true, &chunk);
      find_next(rows.index(first + i), c.column, &chunk);
      for (int k = 0; k < 2; ++k) chunk.means[k] = row.means[k];
      chunk.dx = is_direct ? row.dx + c.column * item : buffers.dx[i];
    }
    const bool adds = !norm.casts;
    kernels.finish[c.weight_row](chunks, n, 0, c.n, c.weight, adds ? made[0] : nullptr,
                                 adds ? made[1] : nullptr);
    for (int64_t i = 0; ((has_dx && !is_direct) || has_dgate) && i < n; ++i) {
      char *const dx = buffers.dx[i], *const dgate = buffers.dgate[i];
      reader.go(rows.index(first + i), c.column, c.n);
      if (norm.gate_first) find_gradients(c.n, dx, dgate);
      if ((s.data[Norm::kDx] || norm.drops) && !is_direct) store(dx, c.n, buffers.dy);
      if (has_dgate) reader.store(Norm::kDGate, dgate, norm.accumulate);
    }
  }

  // Serves kPerElement and kMixed. Pass 2 takes a chunk of all rows of the band, then the next one.
  void by_chunks(Band* rows, double* const* sums) {
    find_rows(rows);
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

  // Adds a chunk's sums to those of its parameters.
  void gather_sums(int64_t column, int64_t n, double* const* sums) {
    const int64_t step = last_stride(norm.parameter_index);
    int64_t done = 0;
    for_spans(norm.parameter_index, column, n, [&](int64_t parameter, int64_t, int64_t m) {
      for (int k = 0; k < 2; ++k)
        for (int64_t i = 0; i < m; ++i) sums[k][parameter + i * step] += spread[k][done + i];
      done += m;
    });
  }

  // Serves rows that are converted as a whole, some at a time.
  void by_joined_rows(Band* rows, double* const* sums) {
    for (int k = 0; has_sums && k < 2; ++k) memset(joined.sums[k], 0, row_bytes());
    Band some;
    some.step = rows->step;
    for (int64_t first = 0; first < rows->count; first += rows_joined) {
      some.first = rows->index(first);
      some.count = std::min(rows_joined, rows->count - first);
      find_rows(&some);
      join(&some);
      has_dx ? sum(&some) : skip_sum(&some);
      for_row(some.first, [&](const NormChunk& c) {
        const int64_t at = c.column * s.compute_item;
        kernels.finish[c.weight_row](some.rows, some.count, c.column, c.n, c.weight,
                                     has_sums ? joined.sums[0] + at : nullptr,
                                     has_sums ? joined.sums[1] + at : nullptr);
      });
      if (has_dx)
        for_parts(some, [&](int64_t at, int64_t n) { store(joined.dx + at, n, joined.dtotal); });
    }
    for (int k = 0; has_sums && k < 2; ++k)
      kernels.add_band(joined.sums[k], s.columns.size, sums[k]);
  }

  // Serves kPerRow and kPerSpan. The two sums of a span are the gradients of its parameters, and
  // times its weight the sums of g. has_short_spans: one call takes many spans, which lie in one
  // piece and need no buffer.
  void by_spans(Band* rows, double* const* sums) {
    find_rows(rows);
    const int64_t spans = norm.spans_of_row(), at_once = has_short_spans ? kSpansPerCall : 1;
    const SpanValues weights =
        has_short_spans ? weight.of_spans(rows->first, norm.span, spans) : SpanValues{};
    BackwardRow& all = rows->rows[0];
    double sum_g = 0.0, sum_g_xhat = 0.0, both[kSpansPerCall][2];
    for (int64_t first = 0, n; first < spans; first += n) {
      n = std::min(at_once, spans - first);
      add_spans(*rows, first, n, both);
      for (int64_t r = 0; r < n; ++r) {
        const char* const at = has_short_spans ? weights.at + (first + r) * weights.step
                                               : weight.of_element(rows->first, first * norm.span);
        const double w = number_at(s.compute_dtype, at);
        sum_g += w * both[r][0];
        sum_g_xhat += w * both[r][1];
        for (int k = 0; has_sums && k < 2; ++k) sums[k][first + r] += both[r][1 - k];
      }
    }
    if (!has_dx && !has_dgate) return;
    set_means(&all, sum_g, sum_g_xhat);
    if (has_short_spans)
      kernels.finish_spans(all, spans, norm.span, weights);
    else
      for_row(rows->first, [&](const NormChunk& c) { finish(*rows, c, nullptr); });
  }

  // both OUT: the sums of each of n spans.
  void add_spans(const Band& rows, int64_t first, int64_t n, double (*both)[2]) {
    const int64_t begin = first * norm.span;
    if (!has_short_spans) return add_up(rows, 0, begin, begin + norm.span, both[0]);
    const BackwardRow& all = rows.rows[0];
    BackwardRow some;
    some.p = all.p + begin * item, some.x = all.x + begin * item;
    some.stats.mean = all.stats.mean, some.stats.rstd = all.stats.rstd;
    kernels.sum_spans(some, n, norm.span, both[0]);
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
        if (access == kJoined)
          by_joined_rows(&rows, sums);
        else if (norm.has_shared_parameters())
          by_spans(&rows, sums);
        else
          by_chunks(&rows, sums);
      }
  }
};

}  // namespace

void norm_backward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  if (norm->kind == Norm::kChannelsLast) return group_backward_partition(norm, index, partitions);
  const int64_t groups = norm->groups, blocks = norm->chunks * groups;
  const int64_t end = blocks * (index + 1) / partitions;
  with_frame<NormBackward>(*norm, [&](NormBackward& backward) {
    for (int64_t i = blocks * index / partitions, n; i < end; i += n) {
      n = std::min(groups - i % groups, end - i);
      backward.block(i / groups, i % groups, n);
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
