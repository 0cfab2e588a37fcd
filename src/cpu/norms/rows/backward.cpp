// The norms backward, one normalization row after the other (norms/rows/plan.h;
// common/norms/norms.h derives the gradients).
//
// A band goes one of two ways: its rows have parameters one an element, or spans that share them.
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/norms/rows/backward_rows.h"

namespace fastact {
namespace {

constexpr int64_t kSpansPerCall = 64;  // whose sums are held at once

struct NormBackward : BackwardRows {
  const int64_t piece = is_stored ? kStoredPiece : kBandPiece;  // elements of a chunk of pass 2
  alignas(64) char of_band[2][kBandPiece * sizeof(double) + kCacheLine];
  alignas(64) double spread[kStoredPiece];  // sums of a chunk's elements
  static_assert(kStoredPiece * sizeof(float) <= kBandPiece * sizeof(double));

  using BackwardRows::BackwardRows;

  // visit(first, n) of pieces of `size` elements or spans.
  template <class Visit>
  static void for_pieces(int64_t size, int64_t most, Visit visit) {
    for (int64_t first = 0; first < size; first += most) visit(first, std::min(most, size - first));
  }

  // Pass 1.
  void sum(Band* rows, bool has_weight, const char* w) {
    if (has_dx)
      kernels.sum_rows[has_weight](rows->rows, rows->count, s.columns.size, w,
                                   is_far && !holds_dx && s.columns.size <= kShortStream);
    for (int64_t i = 0; i < rows->count; ++i) {
      BackwardRow& row = rows->rows[i];
      set_means(&row, has_dx ? row.means[0] : 0.0, has_dx ? row.means[1] : 0.0);
    }
  }

  // Serves kPerElement and kMixed. Pass 2 takes a chunk of all rows at hand, then the next one.
  // to IN/OUT: += the gradients of the parameters.
  void by_elements(const Band& rows, double* const* to) {
    Band some;
    some.step = rows.step;
    char* made[2] = {};
    const bool has_weight = weight.is_there() && !norm.casts;
    for (int64_t first = 0; first < rows.count; first += at_once) {
      some.first = rows.index(first), some.count = std::min(at_once, rows.count - first);
      find(&some);
      if (first == 0 && has_sums) begin_sums(some.rows[0].dx, made);
      hold(some, made[0]);
      const char* const w = norm.casts ? kOne : weight.of_elements(some.first, 0, s.columns.size);
      sum(&some, has_weight, w);
      for_pieces(s.columns.size, piece, [&](int64_t column, int64_t n) {
        const int64_t at = column * s.compute_item, begin = has_whole_sums ? at : 0;
        for (int k = 0; has_sums && !has_whole_sums && k < 2; ++k)
          memset(made[k], 0, n * s.compute_item);
        const bool adds = has_sums && !norm.casts;
        kernels.finish[has_weight](some.rows, some.count, column, n, has_weight ? w + at : w,
                                   adds ? made[0] + begin : nullptr,
                                   adds ? made[1] + begin : nullptr);
        if (has_sums && !has_whole_sums) add(made, 0, column, n, to);
      });
      put(some);
    }
    if (has_whole_sums)
      for_pieces(s.columns.size, piece,
                 [&](int64_t column, int64_t n) { add(made, column, column, n, to); });
  }

  // made OUT: where a band is added up, as the kernels ask for it: aligned as dx is. (16-bit dx may
  // lie where no float may.)
  void begin_sums(const char* first_dx, char** made) {
    const size_t head = is_stored ? 0 : reinterpret_cast<uintptr_t>(first_dx) % kCacheLine;
    for (int k = 0; k < 2; ++k) {
      made[k] = (has_whole_sums ? sums[k] : of_band[k]) + head;
      if (has_whole_sums) memset(made[k], 0, norm.row_bytes());
    }
  }

  // to IN/OUT += the sums of n columns, which `made` has from its element `at` on.
  void add(char* const* made, int64_t at, int64_t column, int64_t n, double* const* to) {
    for (int k = 0; k < 2; ++k) {
      const char* const from = made[k] + at * s.compute_item;
      if (norm.kind == Norm::kPerElement) {
        kernels.add_band(from, n, to[k] + column);
        continue;
      }
      std::fill_n(spread, n, 0.0);
      kernels.add_band(from, n, spread);
      const int64_t step = last_stride(norm.parameter_index);
      const double* value = spread;
      for_spans(norm.parameter_index, column, n, [&](int64_t parameter, int64_t, int64_t m) {
        for (int64_t i = 0; i < m; ++i) to[k][parameter + i * step] += *value++;
      });
    }
  }

  // Serves kPerRow and kPerSpan, row by row. The two sums of a span are the gradients of its
  // parameters, and times its weight the sums of g.
  void by_spans(Band* rows, double* const* to) {
    find(rows);
    hold(*rows, nullptr);
    BackwardRow& row = rows->rows[0];
    double sum_g = 0.0, sum_g_xhat = 0.0, both[kSpansPerCall][2];
    for_pieces(norm.spans_of_row(), kSpansPerCall, [&](int64_t first, int64_t n) {
      const SpanValues weights = weight.of_spans(rows->first, first, norm.span, n);
      kernels.sum_spans(row, first, n, norm.span, both[0]);
      for (int64_t r = 0; r < n; ++r) {
        const double w = number_at(s.compute_dtype, weights.at + r * weights.step);
        sum_g += w * both[r][0];
        sum_g_xhat += w * both[r][1];
        for (int k = 0; has_sums && k < 2; ++k) to[k][first + r] += both[r][1 - k];
      }
    });
    if (!has_dx && !has_dgate) return;
    set_means(&row, sum_g, sum_g_xhat);
    for_pieces(norm.spans_of_row(), kSpansPerCall, [&](int64_t first, int64_t n) {
      const SpanValues weights = weight.of_spans(rows->first, first, norm.span, n);
      if (norm.has_short_spans()) return kernels.finish_spans(row, first, n, norm.span, weights);
      for (int64_t r = 0; r < n; ++r)
        kernels.finish[0](&row, 1, (first + r) * norm.span, norm.span,
                          weights.at + r * weights.step, nullptr, nullptr);
    });
    put(*rows);
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
        double* to[2] = {};
        for (int k = 0; has_sums && k < 2; ++k) to[k] = first_sums[k] + g * norm.parameters_per_row;
        norm.has_shared_parameters() ? by_spans(&rows, to) : by_elements(rows, to);
      }
  }
};

}  // namespace

int64_t norm_held_size(const Norm& norm) {
  if (norm.kind == Norm::kChannelsLast) return 0;
  const int64_t bytes = BackwardArrays(norm, nullptr).bytes;
  return bytes ? bytes + kCacheLine : 0;
}

void norm_backward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  if (norm->kind == Norm::kChannelsLast) return group_backward_partition(norm, index, partitions);
  const int64_t groups = norm->groups, blocks = norm->chunks * groups;
  const int64_t end = blocks * (index + 1) / partitions;
  const BackwardArrays arrays(*norm, norm->held + index * norm->held_bytes);
  with_frame<NormBackward>(arrays, [&](NormBackward& backward) {
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
