// The norms backward, unit by unit (norms/rows/plan.h; common/norms.h derives the gradients).
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/norms/channels/channels_last.h"
#include "cpu/norms/rows/params.h"

namespace fastact {
namespace {

constexpr int64_t kKept = 8192 * sizeof(double);  // bytes of p that pass 2 need not compute again
constexpr int64_t kBandPiece = kPiece / 2;        // elements of a chunk
constexpr int64_t kBand = kLeastBlock;     // units, at most, that pass 2 takes chunk by chunk
constexpr int64_t kBandBytes = 2 << 20;    // of their x and dy, which stay in a cache,
constexpr int64_t kSmallBand = 512 << 10;  // and where no sums speak for more units
constexpr int64_t kLine = 64;
constexpr int64_t kRunsOfCall = 64;  // whose sums are kept at once

// A unit between the two passes.
struct Unit {
  int64_t index;
  UnitStats stats;
  double means[2];    // of g and of g xhat
  const char *p, *x;  // where they need not be made
  char* dx;           // where it can be written directly
};

struct Backward : NormChunks {
  const Streams& s;
  const int64_t band;
  const int64_t ahead;  // units from one to that in its place of the next band
  const bool has_dx, has_sums;
  const bool is_plain;   // p and x are arrays
  const bool is_direct;  // dx, to where it belongs
  const bool keeps;      // p, from pass 1 to pass 2
  const bool by_runs;    // all of a unit's runs in one call
  Reader reader;
  alignas(64) char x[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char p[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char dx[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char kept[kKept];
  alignas(64) char of_band[2][kBandPiece * sizeof(double) + kLine];
  alignas(64) double spread[2][kBandPiece];

  explicit Backward(const Norm& a)
      : NormChunks(a, chunk_of(a)),
        s(a.streams),
        band(band_of(a)),
        ahead(shares_parameters() ? 1 : band * a.groups),
        has_dx(a.streams.data[Norm::kDx]),
        has_sums(a.partial),
        is_plain(a.is_identity && s.is_direct[Norm::kDy] && s.is_direct[Norm::kIn]),
        // In place, dx may be where the gradient of the sum is yet to be read.
        is_direct(has_dx && s.is_direct[Norm::kDx] && !a.accumulate &&
                  !a.streams.data[Norm::kDSum]),
        keeps((!a.is_identity || !a.streams.is_direct[Norm::kDy]) &&
              band * a.streams.columns.size * a.streams.wide <= kKept),
        by_runs(is_plain && (is_direct || !has_dx) && has_short_runs()),
        reader(a.streams) {}

  // As long as what needs no buffer.
  static int64_t chunk_of(const Norm& a) {
    const Streams& s = a.streams;
    const bool is_shared = a.kind == Norm::kOne || a.kind == Norm::kRuns;
    const bool is_plain = a.is_identity && s.is_direct[Norm::kDy] && s.is_direct[Norm::kIn];
    const bool stores =
        s.data[Norm::kDx] && (a.accumulate || s.data[Norm::kDSum] || !s.is_direct[Norm::kDx]);
    return is_shared && is_plain && !stores ? s.columns.size : kBandPiece;
  }

  // Of no array's layout: the bits of the sums depend on it.
  static int64_t band_of(const Norm& a) {
    if (a.kind != Norm::kRow) return 1;
    const int64_t bytes = a.streams.columns.size * a.streams.wide;
    const bool is_made = !a.is_identity || a.streams.item != a.streams.wide;
    const int64_t most = is_made && bytes <= kKept ? kKept / bytes : kBand;
    const int64_t fits = (a.partial ? kBandBytes : kSmallBand) / (2 * bytes);
    return std::clamp(std::min(most, fits), int64_t(1), kBand);
  }

  // One block of the batch, in some groups: as the units lie in memory.
  void block(int64_t chunk, int64_t first_group, int64_t groups) {
    const int64_t end = std::min((chunk + 1) * norm.block, norm.batch);
    double* first_sums[2] = {};
    for (int k = 0; has_sums && k < 2; ++k) {
      first_sums[k] =
          norm.partial + (k * norm.chunks + chunk) * norm.slots() + first_group * norm.row_slots;
      std::fill_n(first_sums[k], groups * norm.row_slots, 0.0);
    }
    Unit units[kBand];
    for (int64_t b = chunk * norm.block; b < end; b += band)
      for (int64_t g = 0; g < groups; ++g) {
        const int count = int(std::min(band, end - b));
        for (int i = 0; i < count; ++i) {
          units[i].index = (b + i) * norm.groups + first_group + g;
          read_stats(&units[i]);
        }
        double* sums[2] = {};
        for (int k = 0; has_sums && k < 2; ++k) sums[k] = first_sums[k] + g * norm.row_slots;
        by_runs               ? short_runs(&units[0], sums)
        : shares_parameters() ? runs(&units[0], sums)
                              : rows(units, count, sums);
      }
  }

  void read_stats(Unit* unit) {
    const Offsets at = offsets_at(norm.unit_stats, unit->index);
    unit->stats.mean = norm.mean ? weight.number(norm.mean + at.x) : 0.0;
    unit->stats.rstd = weight.number(norm.rstd + at.y);
    if (is_plain)
      unit->p = line_of(s, Norm::kDy, unit->index), unit->x = line_of(s, Norm::kIn, unit->index);
    if (is_direct) unit->dx = line_of(s, Norm::kDx, unit->index);
  }

  // mean(g) is no part of the gradient where no mean was subtracted.
  void set_means(Unit* unit, double sum_g, double sum_g_xhat) {
    unit->means[0] = norm.is_centred ? sum_g / double(s.columns.size) : 0.0;
    unit->means[1] = sum_g_xhat / double(s.columns.size);
  }

  // p = dy f'(z) and x of a chunk, in the compute type. at: the unit's place in the band.
  void fetch(const Unit& unit, int64_t at, const NormChunk& c, bool is_second, const char** to_p,
             const char** to_x) {
    if (is_plain) {
      *to_p = unit.p + c.column * s.wide, *to_x = unit.x + c.column * s.wide;
      return;
    }
    reader.go(unit.index, c.column, c.n);
    *to_x = reader.load(Norm::kIn, x[at % kQuad]);
    char* own = keeps ? kept + (at * s.columns.size + c.column) * s.wide : p[at % kQuad];
    *to_p = own;
    if (keeps && is_second) return;
    const char* gradient = reader.load(Norm::kDy, norm.is_identity ? own : dy);
    if (norm.is_identity) {
      *to_p = gradient;
      return;
    }
    const NormUnit one{*to_x, z, unit.stats, {}};
    norm.blocks->normalise[c.weight_row][c.bias_row](&one, 1, c.n, c.weight, c.bias);
    char* const operands[] = {const_cast<char*>(gradient), z, own};
    norm.activation(operands, c.n, norm.parameters);
  }

  // The two sums of some of a unit's elements, which are those of g if there is a row of weights.
  void add_up(const Unit& unit, int64_t at, int64_t first, int64_t end, double* both) {
    alignas(64) double lanes[2 * kNormLanes];
    for_chunks(unit.index, first, end, [&](const NormChunk& c) {
      const char *from_p, *from_x;
      fetch(unit, at, c, false, &from_p, &from_x);
      norm.blocks->add_sums[c.weight_row](from_p, from_x, c.n, unit.stats, c.weight, lanes,
                                          c.column == first);
    });
    norm.blocks->fold(lanes, both);
  }

  // Pass 1 of units of one chunk.
  void sum_whole(Unit* units, int count, const NormChunk& c) {
    for (int first = 0, n; first < count; first += n) {
      n = std::min(kQuad, count - first);
      UnitChunk chunks[kQuad];
      for (int i = 0; i < n; ++i) {
        fetch(units[first + i], first + i, c, false, &chunks[i].p, &chunks[i].x);
        chunks[i].stats = units[first + i].stats;
      }
      norm.blocks->sum_units[c.weight_row](chunks, n, c.n, c.weight);
      for (int i = 0; i < n; ++i)
        set_means(&units[first + i], chunks[i].means[0], chunks[i].means[1]);
    }
  }

  // Pass 2 of one chunk of some units. sums IN/OUT: += those of their parameters; null: no sums.
  void finish(const Unit* units, int64_t count, const NormChunk& c, double* const* sums) {
    char* made[2] = {};
    for (int64_t first = 0, n; first < count; first += n) {
      n = std::min<int64_t>(kQuad, count - first);
      UnitChunk chunks[kQuad];
      for (int64_t i = 0; i < n; ++i) {
        const Unit& unit = units[first + i];
        UnitChunk& chunk = chunks[i];
        fetch(unit, first + i, c, true, &chunk.p, &chunk.x);
        chunk.stats = unit.stats;
        chunk.next = next(unit.index + ahead, c.column, Norm::kIn, Norm::kDy);
        std::copy(unit.means, unit.means + 2, chunk.means);
        chunk.dx = is_direct ? unit.dx + c.column * s.wide : dx[i];
      }
      if (sums && !made[0])
        for (int k = 0; k < 2; ++k) {
          made[k] = of_band[k] + reinterpret_cast<uintptr_t>(chunks[0].dx) % kLine;
          memset(made[k], 0, c.n * s.wide);
        }
      norm.blocks->finish[c.weight_row][n - 1](chunks, c.n, c.weight, made[0], made[1]);
      for (int64_t i = 0; has_dx && i < n; ++i) {
        if (chunks[i].dx != dx[i]) continue;
        reader.go(units[first + i].index, c.column, c.n);
        if (s.data[Norm::kDSum])
          s.blocks->plus[s.wide == sizeof(double)](reader.load(Norm::kDSum, dy), dx[i], dx[i], c.n);
        reader.store(Norm::kDx, dx[i], norm.accumulate);
      }
    }
    for (int k = 0; sums && k < 2; ++k) norm.blocks->add_band(made[k], c.n, sums[k]);
  }

  // kOne, kRuns: the two sums of a run are those of its parameters, and by its weight those of g.
  void runs(Unit* unit, double* const* sums) {
    double sum_g = 0.0, sum_g_xhat = 0.0;
    int64_t slot = 0;
    for (int64_t first = 0; first < s.columns.size; first += norm.run, ++slot) {
      double both[2];
      add_up(*unit, 0, first, first + norm.run, both);
      const double w = weight.number(weight.one(unit->index, first));
      sum_g += w * both[0];
      sum_g_xhat += w * both[1];
      for (int k = 0; has_sums && k < 2; ++k) sums[k][slot] += both[1 - k];
    }
    if (!has_dx) return;
    set_means(unit, sum_g, sum_g_xhat);
    for_unit(unit->index, [&](const NormChunk& c) { finish(unit, 1, c, nullptr); });
  }

  // The same, of runs that lie in one piece and need no buffer.
  void short_runs(Unit* unit, double* const* sums) {
    const int64_t runs = runs_of_unit();
    const RunValues weights = weight.runs(unit->index, norm.run, runs);
    UnitChunk all{};
    all.p = unit->p, all.x = unit->x, all.dx = unit->dx, all.stats = unit->stats;
    double sum_g = 0.0, sum_g_xhat = 0.0, both[kRunsOfCall][2];
    for (int64_t first = 0, n; first < runs; first += n) {
      n = std::min(kRunsOfCall, runs - first);
      UnitChunk some = all;
      some.p += first * norm.run * s.wide, some.x += first * norm.run * s.wide;
      norm.blocks->sum_runs(some, n, norm.run, both[0]);
      for (int64_t r = 0; r < n; ++r) {
        const double w = weight.number(weights.at + (first + r) * weights.step);
        sum_g += w * both[r][0];
        sum_g_xhat += w * both[r][1];
        for (int k = 0; has_sums && k < 2; ++k) sums[k][first + r] += both[r][1 - k];
      }
    }
    if (!has_dx) return;
    set_means(unit, sum_g, sum_g_xhat);
    std::copy(unit->means, unit->means + 2, all.means);
    all.next = next(unit->index + ahead, 0, Norm::kIn, Norm::kDy);
    norm.blocks->finish_runs(all, runs, norm.run, weights);
  }

  // kRow, kMixed: pass 2 takes a chunk of all units of the band, then the next chunk.
  void rows(Unit* units, int count, double* const* sums) {
    if (!has_dx && !keeps) {
      for (int i = 0; i < count; ++i) set_means(&units[i], 0.0, 0.0);
    } else if (s.columns.size <= most) {
      for_unit(units[0].index, [&](const NormChunk& c) { sum_whole(units, count, c); });
    } else {
      for (int i = 0; i < count; ++i) {
        double both[2] = {};
        add_up(units[i], i, 0, s.columns.size, both);
        set_means(&units[i], both[0], both[1]);
      }
    }
    for_unit(units[0].index, [&](const NormChunk& c) {
      if (!has_sums) {
        finish(units, count, c, nullptr);
        return;
      }
      const bool is_row = norm.kind == Norm::kRow;
      double* to[2];
      for (int k = 0; k < 2; ++k) {
        to[k] = is_row ? sums[k] + c.column : spread[k];
        if (!is_row) std::fill(spread[k], spread[k] + c.n, 0.0);
      }
      finish(units, count, c, to);
      if (!is_row) gather_sums(c.column, c.n, sums);
    });
  }

  // What a chunk gave, onto the slots of its parameters.
  void gather_sums(int64_t column, int64_t n, double* const* sums) {
    const int64_t step = last_stride(norm.slots_of_row);
    int64_t done = 0;
    for_runs(norm.slots_of_row, column, n, [&](int64_t slot, int64_t, int64_t m) {
      for (int k = 0; k < 2; ++k)
        for (int64_t i = 0; i < m; ++i) sums[k][slot + i * step] += spread[k][done + i];
      done += m;
    });
  }
};

}  // namespace

void norm_backward_share(const Norm* norm, int64_t index, int64_t shares) {
  if (norm->kind == Norm::kColumns) return column_backward_share(norm, index, shares);
  with_frame<Backward>(*norm, [&](Backward& backward) {
    const int64_t blocks = norm->chunks * norm->groups;
    const int64_t end = blocks * (index + 1) / shares;
    for (int64_t i = blocks * index / shares, n; i < end; i += n) {
      const int64_t chunk = i / norm->groups, group = i % norm->groups;
      n = std::min(norm->groups - group, end - i);
      backward.block(chunk, group, n);
    }
  });
}

void merge_norm_share(const Norm* norm, int64_t index, int64_t shares) {
  const int64_t slots = norm->slots(), end = slots * (index + 1) / shares;
  alignas(64) double total[kTile];
  const Reducer* const gradients[] = {&norm->dweight, &norm->dbias};
  for (int k = 0; k < 2; ++k) {
    if (!gradients[k]->y) continue;
    for (int64_t first = slots * index / shares, n; first < end; first += n) {
      n = std::min(kTile, end - first);
      const double* part = norm->partial + k * norm->chunks * slots + first;
      std::copy(part, part + n, total);
      for (int64_t c = 1; c < norm->chunks; ++c) {
        part += slots;
        for (int64_t i = 0; i < n; ++i) total[i] += part[i];
      }
      store_sums(*gradients[k], first, n, total, nullptr);
    }
  }
}

}  // namespace fastact
