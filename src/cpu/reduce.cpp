#include "reduce.h"

#include <algorithm>
#include <cstring>

#include "iterate.h"

namespace fastact {
namespace {

constexpr int64_t kTile = 512;       // columns a unit: 2 KiB of a float32 row
constexpr int64_t kNarrowTile = 64;  // columns below which rows are joined
constexpr int64_t kOutputs = 256;    // outputs a unit where they are not columns
constexpr int64_t kLongRow = 512;    // contiguous terms worth a call of their own
constexpr int64_t kFewUnits = 32;    // below, the terms are cut too
constexpr int64_t kMostChunks = 64;
constexpr int64_t kStage = 2048;  // elements gathered at a time

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Visits elements first .. first + n of `axes` as runs along the last axis: their offsets in x and
// y, and how many they are.
template <class Visit>
void for_runs(const Axes& axes, int64_t first, int64_t n, Visit visit) {
  if (axes.count == 0) {
    visit(0, 0, n);
    return;
  }
  const int last = axes.count - 1;
  int64_t index[kMaxAxes], x = 0, y = 0;
  for (int axis = last; axis > 0; --axis) {
    index[axis] = first % axes.length[axis];
    first /= axes.length[axis];
  }
  index[0] = first;
  for (int axis = 0; axis <= last; ++axis) {
    x += index[axis] * axes.x[axis];
    y += index[axis] * axes.y[axis];
  }
  for (;;) {
    const int64_t m = std::min(n, axes.length[last] - index[last]);
    visit(x, y, m);
    n -= m;
    if (n == 0) return;
    x -= index[last] * axes.x[last];
    y -= index[last] * axes.y[last];
    index[last] = 0;
    for (int axis = last - 1;; --axis) {
      x += axes.x[axis], y += axes.y[axis];
      if (++index[axis] < axes.length[axis]) break;
      x -= index[axis] * axes.x[axis];
      y -= index[axis] * axes.y[axis];
      index[axis] = 0;
    }
  }
}

int64_t last_stride(const Axes& axes) { return axes.count ? axes.x[axes.count - 1] : 0; }

// Offsets in x of the elements first .. first + n.
void offsets_of(const Axes& axes, int64_t first, int64_t n, int64_t* offsets) {
  const int64_t step = last_stride(axes);
  for_runs(axes, first, n, [&](int64_t x, int64_t, int64_t m) {
    for (int64_t i = 0; i < m; ++i) offsets[i] = x + i * step;
    offsets += m;
  });
}

// What a thread works in: some 180 KiB of its stack.
struct Scratch {
  alignas(64) double lanes[kLanes * kTile];
  alignas(64) double sums[kTile], hi[kTile], lo[kTile], chunk_hi[kTile], chunk_lo[kTile];
  alignas(64) char stage[kStage * sizeof(double)];
  int64_t offsets[kReduceBlock];
};

struct Work {
  const Reducer& r;
  Scratch& s;

  // --- one block of terms of each output first .. first + n: where their sums lie ---------------

  const double* rows(int64_t first, int64_t n, int64_t term, int64_t terms) {
    int64_t at[kOutputs];
    offsets_of(r.outputs, first, n, at);
    if (r.terms.count == 1 && r.has_dense_terms) {
      r.blocks->sum_blocks(r.x + term * r.item, at, n, terms, s.sums);
    } else {
      for (int64_t k = 0; k < n; ++k)
        r.has_dense_terms ? pieces(r.x + at[k], term, terms, &s.sums[k])
                          : gathered_row(r.x + at[k], term, terms, &s.sums[k]);
    }
    return s.sums;
  }

  void pieces(const char* x, int64_t term, int64_t terms, double* sum) {
    std::fill(s.lanes, s.lanes + kLanes, -0.0);
    int64_t phase = 0;
    for_runs(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t m) {
      r.blocks->add_terms(x + offset, m, phase, s.lanes);
      phase = (phase + m) % kLanes;
    });
    r.table->fold(s.lanes, kLanes, 1);
    *sum = s.lanes[0];
  }

  void gathered_row(const char* x, int64_t term, int64_t terms, double* sum) {
    const MoveRow gather = gather_for(r.item);
    const int64_t step = last_stride(r.terms), start = 0;
    char* to = s.stage;
    for_runs(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t m) {
      if (step == r.item)
        memcpy(to, x + offset, m * r.item);
      else
        gather(to, x + offset, step, m);
      to += m * r.item;
    });
    r.blocks->sum_blocks(s.stage, &start, 1, terms, sum);
  }

  const double* spread(int64_t first, int64_t n, int64_t terms) {
    const int64_t step = last_stride(r.outputs);
    int64_t done = 0;
    if (r.has_dense_terms) {
      for_runs(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t m) {
        r.blocks->sum_short[terms - 1](r.x + offset, nullptr, m, s.sums + done);
        done += m;
      });
      return s.sums;
    }
    offsets_of(r.terms, 0, terms, s.offsets);
    for_runs(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t m) {
      for (int64_t i = 0; i < terms; ++i)
        r.blocks->spread(r.x + offset + s.offsets[i], step, m, s.lanes + i * n + done);
      done += m;
    });
    r.table->fold(s.lanes, terms, n);
    return s.lanes;
  }

  const double* columns(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const char* x = r.x;
    for_runs(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t) { x += offset; });
    if (r.walk == Reducer::kNarrow && r.has_dense_rows) {
      dense(x + term * n * r.item, n, terms, true);
    } else {
      offsets_of(r.terms, term, terms, s.offsets);
      if (r.walk == Reducer::kColumns && terms <= kFewTerms) {
        r.blocks->sum_rows[terms - 1](x, s.offsets, n, s.sums);
        return s.sums;
      }
      r.walk == Reducer::kNarrow ? gathered(x, n, terms) : in_place(x, n, terms);
    }
    r.table->fold(s.lanes, terms, n);
    return s.lanes;
  }

  void in_place(const char* x, int64_t n, int64_t terms) {
    for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, terms); ++lane)
      r.blocks->add_rows(x, s.offsets + lane, kLanes, ceil_div(terms - lane, kLanes), n,
                         s.lanes + lane * n, true);
  }

  void gathered(const char* x, int64_t n, int64_t terms) {
    const MoveRow gather = gather_for(r.item);
    const int64_t rows = kStage / n / kLanes * kLanes, step = last_stride(r.outputs);
    for (int64_t done = 0; done < terms; done += rows) {
      const int64_t m = std::min(rows, terms - done);
      for (int64_t i = 0; i < m; ++i)
        gather(s.stage + i * n * r.item, x + s.offsets[done + i], step, n);
      dense(s.stage, n, m, done == 0);
    }
  }

  // Dense rows of n columns: kLanes of them are one row that holds every lane.
  void dense(const char* x, int64_t n, int64_t terms, bool fresh) {
    const int64_t whole = terms / kLanes, rest = terms % kLanes;
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i < whole; ++i) at[i] = i * kLanes * n * r.item;
    if (whole) r.blocks->add_rows(x, at, 1, whole, kLanes * n, s.lanes, fresh);
    const int64_t end = 0;
    if (rest)
      r.blocks->add_rows(x + whole * kLanes * n * r.item, &end, 1, 1, rest * n, s.lanes,
                         fresh && whole == 0);
  }

  // --- a unit: some outputs over some chunks ----------------------------------------------------

  const double* block(int64_t first, int64_t n, int64_t term, int64_t terms) {
    switch (r.walk) {
      case Reducer::kRows:
        return rows(first, n, term, terms);
      case Reducer::kSpread:
        return spread(first, n, terms);
      default:
        return columns(first, n, term, terms);
    }
  }

  // (hi, lo) OUT (n): one chunk. What comes first is copied: merged into nothing, it is the same.
  void chunk(int64_t first, int64_t n, int64_t index, double* hi, double* lo) {
    const int64_t begin = index * r.chunk_blocks * kReduceBlock;
    const int64_t end = std::min(begin + r.chunk_blocks * kReduceBlock, r.terms.size);
    for (int64_t term = begin; term < end; term += kReduceBlock) {
      const double* sums = block(first, n, term, std::min(kReduceBlock, end - term));
      if (term > begin) {
        r.table->merge(sums, nullptr, hi, lo, n);
      } else {
        std::copy(sums, sums + n, hi);
        std::fill(lo, lo + n, 0.0);
      }
    }
  }

  void all_chunks(int64_t first, int64_t n) {
    if (r.terms.size <= kReduceBlock) {
      store(first, n, block(first, n, 0, r.terms.size), nullptr);
      return;
    }
    chunk(first, n, 0, s.hi, s.lo);
    for (int64_t c = 1; c < r.chunks; ++c) {
      chunk(first, n, c, s.chunk_hi, s.chunk_lo);
      r.table->merge(s.chunk_hi, s.chunk_lo, s.hi, s.lo, n);
    }
    store(first, n, s.hi, s.lo);
  }

  void store(int64_t first, int64_t n, const double* hi, const double* lo) {
    const auto finish = r.table->finish[r.dtype];
    const MoveRow scatter = scatter_for(r.item);
    const int64_t step = r.outputs.count ? r.outputs.y[r.outputs.count - 1] : 0;
    const bool in_place = step == r.item && r.is_y_aligned;
    if (!in_place) finish(hi, lo, s.stage, n);
    int64_t done = 0;
    for_runs(r.outputs, first, n, [&](int64_t, int64_t y, int64_t m) {
      if (in_place)
        finish(hi + done, lo ? lo + done : nullptr, r.y + y, m);
      else
        scatter(r.y + y, s.stage + done * r.item, step, m);
      done += m;
    });
  }
};

double* partial_of(const Reducer& r, int64_t chunk, int64_t output) {
  return r.partial + 2 * chunk * r.outputs.size + output;
}

bool is_aligned(const Operand& x, int64_t item) {
  auto bits = reinterpret_cast<uintptr_t>(x.data);
  for (int axis = 0; axis < x.ndim; ++axis)
    if (x.shape[axis] > 1) bits |= uintptr_t(byte_stride(x, axis, item));
  return bits % uintptr_t(item) == 0;
}

void move_longest_last(Axes* axes) {
  const int last = axes->count - 1;
  if (last < 1) return;
  const int64_t longest = std::max_element(axes->length, axes->length + axes->count) - axes->length;
  if (axes->length[longest] == axes->length[last]) return;
  std::swap(axes->length[longest], axes->length[last]);
  std::swap(axes->x[longest], axes->x[last]);
  std::swap(axes->y[longest], axes->y[last]);
}

}  // namespace

void prepare(Reducer* r, const ReduceTable* table, const ReduceBlocks* blocks, const Operand& x,
             const Operand& y, const bool* reduced, int dtype) {
  const int64_t item = item_size(dtype);
  const Reduction plan = plan_reduction(x, y, reduced, item);
  r->table = table;
  r->blocks = blocks;
  r->dtype = dtype;
  r->item = item;
  r->x = plan.x;
  r->y = plan.y;
  r->outputs = plan.kept;
  r->terms = plan.reduced;
  r->partial = nullptr;
  r->is_y_aligned = is_aligned(y, item);
  (plan.inner_reduced ? r->terms : r->outputs)
      .append(plan.inner, plan.inner_x, plan.inner_reduced ? 0 : plan.inner_y);
  const bool is_unit = plan.has_unit_inner && is_aligned(x, item);
  const bool is_wide = is_unit && !plan.inner_reduced && plan.inner >= kNarrowTile;

  // Enough units for many threads before they grow to what is best for one.
  const int64_t even = ceil_div(r->outputs.size, kFewUnits);
  r->row = r->outputs.size;
  const bool is_dense = is_unit && plan.inner_reduced && r->terms.count == 1;
  if (r->terms.size <= (is_dense ? kFewTerms : kLanes) && !is_wide && is_aligned(x, item)) {
    r->walk = Reducer::kSpread;
    r->tile = std::clamp<int64_t>(even, 16, kOutputs);
    move_longest_last(&r->outputs);
    r->has_dense_terms = is_dense && last_stride(r->outputs) == r->terms.size * item;
  } else if (plan.inner_reduced) {
    r->walk = Reducer::kRows;
    // In a block the tile's outputs follow each other, so that short pieces share cache lines.
    const bool is_long = r->terms.size > kReduceBlock && plan.inner >= kReduceBlock / 4;
    r->tile = is_long ? 1 : std::clamp<int64_t>(even, 1, 64);
    r->has_dense_terms = is_unit && (r->terms.count == 1 || plan.inner >= kLongRow);
  } else {
    r->walk = is_wide ? Reducer::kColumns : Reducer::kNarrow;
    r->row = plan.inner;
    r->has_dense_rows = is_unit && plan.has_dense_rows && plan.reduced.count == 1;
    const int64_t most = is_wide ? kTile : kNarrowTile;
    const int64_t tiles = ceil_div(plan.inner, most);
    r->tile =
        tiles == 1 ? plan.inner : std::min(most, (ceil_div(plan.inner, tiles) + 15) / 16 * 16);
    r->has_dense_rows &= r->tile == plan.inner;
  }
  r->units = r->outputs.size / r->row * ceil_div(r->row, r->tile);
  const int64_t count = ceil_div(r->terms.size, kReduceBlock);
  r->chunk_blocks = ceil_div(count, kMostChunks);
  r->chunks = ceil_div(count, r->chunk_blocks);
}

int64_t workspace_size(const Reducer* r) {
  if (r->units >= kFewUnits || r->chunks == 1) return 0;
  return r->chunks * r->outputs.size * 2 * int64_t(sizeof(double));
}

void reduce_share(const Reducer* reducer, int64_t index, int64_t shares) {
  const Reducer& r = *reducer;
  Scratch scratch;
  Work work{r, scratch};
  // In memory's order: the tiles of a row, then the chunks, then the rows.
  const int64_t tiles = ceil_div(r.row, r.tile), chunks = r.partial ? r.chunks : 1;
  const bool is_tile_inner = r.walk == Reducer::kColumns;
  const int64_t count = r.units * chunks;
  for (int64_t i = count * index / shares; i < count * (index + 1) / shares; ++i) {
    const int64_t row = i / (tiles * chunks), within = i % (tiles * chunks);
    const int64_t tile = is_tile_inner ? within % tiles : within / chunks;
    const int64_t chunk = is_tile_inner ? within / tiles : within % chunks;
    const int64_t first = row * r.row + tile * r.tile;
    const int64_t n = std::min(r.tile, r.row - tile * r.tile);
    if (r.partial) {
      double* hi = partial_of(r, chunk, first);
      work.chunk(first, n, chunk, hi, hi + r.outputs.size);
    } else {
      work.all_chunks(first, n);
    }
  }
}

void merge_share(const Reducer* reducer, int64_t index, int64_t shares) {
  const Reducer& r = *reducer;
  Scratch scratch;
  Work work{r, scratch};
  const int64_t end = r.outputs.size * (index + 1) / shares;
  for (int64_t first = r.outputs.size * index / shares; first < end; first += kTile) {
    const int64_t n = std::min(kTile, end - first);
    double *hi = partial_of(r, 0, first), *lo = hi + r.outputs.size;
    for (int64_t c = 1; c < r.chunks; ++c) {
      const double* part = partial_of(r, c, first);
      r.table->merge(part, part + r.outputs.size, hi, lo, n);
    }
    work.store(first, n, hi, lo);
  }
}

}  // namespace fastact
