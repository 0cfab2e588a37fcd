#include "gates.h"

#include <algorithm>
#include <cstring>

#include "iterate.h"
#include "runs.h"

namespace fastact {
namespace {

constexpr int64_t kPiece = 256;         // elements of a buffer: of float, 25 of them fill 25 KiB
constexpr int64_t kColumns = 1024;      // columns of a tile, at most
constexpr int64_t kShortRow = 32;       // below, rows are joined
constexpr int64_t kCut = 64;            // elements: whole cache lines of every dtype
constexpr int64_t kKept = 3 << 18;      // bytes of gradients that the second-level cache still has
constexpr int64_t kDeep = 8;            // rows of a lane that are read at once, at most
constexpr int kStates = kStateOut + 1;  // slots

// Gates of a kind: of packed inputs, of what is kept, and sums that are gradients of biases.
constexpr int kGatesOf[kGateKinds] = {4, 3, 1, 2};
constexpr int kKeptOf[kGateKinds] = {4, 4, 1, 2};

bool is_output(bool backward, int slot) {
  return slot >= kGateOut || (!backward && (slot == kHidden || slot == kCell));
}

// One thread's way through its rows and columns.
class Tiles {
 public:
  explicit Tiles(const Gates& gates) : g(gates) {
    if (g.backward && g.kind == kLstm && !g.streams[kCellGradient].data)
      memset(buffers[kCellGradient], 0, sizeof buffers[0]);
  }

  int64_t most_columns() const { return g.moves || g.lacks ? kPiece : kColumns; }

  // Rows first .. first + n, of all columns from `column` on to `end`.
  void run(int64_t first, int64_t n, int64_t column, int64_t end) {
    for (int64_t m; column < end; column += m) {
      m = std::min(most_columns(), end - column);
      for (int64_t done = 0; done < n;) done += tile(first + done, n - done, column, m);
    }
  }

  // The longest run of rows, n at most, that is done at once. What was made of it can be found by
  // `made`, until the next one.
  int64_t tile(int64_t row, int64_t n, int64_t column, int64_t columns) {
    if (g.axes) n = std::min(n, g.length[g.axes - 1] - row % g.length[g.axes - 1]);
    if (g.moves) n = std::min(n, std::max<int64_t>(1, kPiece / columns));
    make_bias(column, columns, g.is_joined ? n : 1);
    GateRows rows;
    for (int slot = 0; slot < kStates; ++slot) {
      const Gates::Stream& s = g.streams[slot];
      rows.data[slot] = buffers[slot];
      rows.step[slot] = g.moves ? columns : 0;
      if (!s.data) continue;
      at[slot] = s.data + offset(s, row) + column * s.column;
      if (is_direct(slot)) {
        rows.data[slot] = at[slot];
        rows.step[slot] = g.axes ? s.step[g.axes - 1] / g.item : 0;
      } else if (!is_output(g.backward, slot)) {
        load(slot, n, columns);
      }
    }
    for (int k = 0; k < g.biases; ++k)
      rows.data[kGateBias + k] = bias[k], rows.step[kGateBias + k] = 0;
    if (g.is_joined)
      g.block(rows, 1, n * columns);
    else
      g.block(rows, n, columns);
    for (int slot = 0; slot < kStates; ++slot)
      if (g.streams[slot].data && is_output(g.backward, slot) && !is_direct(slot))
        store(slot, n, columns);
    return n;
  }

  bool is_direct(int slot) const {
    return g.streams[slot].is_direct && !g.is_joined &&
           !(g.accumulate && is_output(g.backward, slot));
  }
  // The compute type's values of an output that passed through its buffer, or that is not wanted.
  const char* made(int slot) const { return buffers[slot]; }

  int64_t offset(const Gates::Stream& s, int64_t row) const {
    int64_t bytes = 0;
    for (int axis = g.axes; axis-- > 1;) {
      bytes += row % g.length[axis] * s.step[axis];
      row /= g.length[axis];
    }
    return g.axes ? bytes + row * s.step[0] : 0;
  }

 private:
  int64_t row_step(const Gates::Stream& s) const { return g.axes ? s.step[g.axes - 1] : 0; }

  void load(int slot, int64_t n, int64_t columns) {
    const Gates::Stream& s = g.streams[slot];
    const MoveRow gather = gather_for(g.item);
    const auto widen = g.blocks->widen[g.dtype];
    for (int64_t row = 0; row < n; ++row) {
      const char* from = at[slot] + row * row_step(s);
      char* to = buffers[slot] + row * columns * g.wide;
      if (!s.is_dense) {
        char* packed = g.item == g.wide ? to : stage;
        gather(packed, from, s.column, columns);
        from = packed;
      }
      if (from != to) widen(from, to, columns);
    }
  }

  void store(int slot, int64_t n, int64_t columns) {
    const Gates::Stream& s = g.streams[slot];
    const auto narrow = g.blocks->narrow[g.dtype][g.accumulate];
    for (int64_t row = 0; row < n; ++row) {
      const char* from = buffers[slot] + row * columns * g.wide;
      char* to = at[slot] + row * row_step(s);
      if (s.is_dense) {
        narrow(from, to, columns);
        continue;
      }
      if (g.accumulate) gather_for(g.item)(stage, to, s.column, columns);
      narrow(from, stage, columns);
      scatter_for(g.item)(to, stage, s.column, columns);
    }
  }

  // The biases of these columns in the compute type, `times` times.
  void make_bias(int64_t column, int64_t columns, int64_t times) {
    if (column == bias_column && columns == bias_columns && times <= bias_times) return;
    bias_column = column, bias_columns = columns, bias_times = times;
    for (int k = 0; k < g.biases; ++k) {
      const Gates::Bias& b = g.bias[k];
      const bool is_double = g.wide_dtype == kF64;
      int found = 0;
      for (int i = 0; i < 2; ++i) {
        if (!b.data[i]) continue;
        char* to = found++ ? stage : bias[k];
        read_bias(b, i, column, columns, to);
        if (to == stage) g.blocks->plus[is_double](bias[k], stage, bias[k], columns);
      }
      if (!found && is_double) std::fill_n(reinterpret_cast<double*>(bias[k]), columns, -0.0);
      if (!found && !is_double) std::fill_n(reinterpret_cast<float*>(bias[k]), columns, -0.0f);
      for (int64_t i = 1; i < times; ++i)
        memcpy(bias[k] + i * columns * g.wide, bias[k], columns * g.wide);
    }
  }

  void read_bias(const Gates::Bias& b, int i, int64_t column, int64_t columns, char* to) {
    const int64_t item = item_size(b.dtype[i]);
    alignas(64) char packed[kColumns * sizeof(double)];
    gather_for(item)(packed, b.data[i] + column * b.stride[i], b.stride[i], columns);
    if (compute_dtype(b.dtype[i]) == g.wide_dtype)
      g.blocks->widen[b.dtype[i]](packed, to, columns);
    else
      g.blocks->round(packed, to, columns);
  }

  const Gates& g;
  char* at[kStates];  // where the tile begins
  int64_t bias_column = -1, bias_columns = 0, bias_times = 0;
  alignas(64) char buffers[kStates][kPiece * sizeof(double)];
  alignas(64) char bias[kMostGates][kColumns * sizeof(double)];
  alignas(64) char stage[kColumns * sizeof(double)];
};

// The slot whose sum over the rows is that of a row of bias.
int slot_of_sum(const Gates& g, int k) {
  return g.kind == kGru && k == 3 ? kRecurrentOut + 2 : kGateOut + k;
}

// Columns a unit of work: all their gradients are still in the second-level cache when they are
// added up, if the rows are not too many for that.
int64_t tile_of(int kind, int64_t wide, int64_t rows, int64_t columns) {
  const int64_t most = kMostColumns / kKeptOf[kind] / 16 * 16;
  const int64_t kept = kKept / (rows * kKeptOf[kind] * wide);
  const int64_t tiles = ceil_div(columns, kept >= kNarrowTile ? std::min(kept, most) : most);
  return std::min(columns, ceil_div(ceil_div(columns, tiles), 16) * 16);
}

// The sums of a tile's columns over the rows of a chunk, as gate after gate in the packed order.
class Sums {
 public:
  explicit Sums(const Gates& gates) : g(gates), r(gates.sums[0]), tiles(gates) {}

  void run(int64_t index, int64_t shares) {
    if (g.shares_lanes) {
      const int64_t units = g.tiles * kLanes, end = units * (index + 1) / shares;
      for (int64_t i = units * index / shares, n; i < end; i += n) {
        n = std::min(kLanes - i % kLanes, end - i);
        const int64_t first = i / kLanes * g.tile;
        block(first, std::min(g.tile, g.columns - first), 0, g.rows, i % kLanes, i % kLanes + n,
              lanes_of(g, first));
      }
      return;
    }
    const int64_t chunks = r.partial ? r.chunks : 1, units = g.tiles * chunks;
    for (int64_t i = units * index / shares; i < units * (index + 1) / shares; ++i)
      unit(i % g.tiles * g.tile, i / g.tiles);
  }

  // In the workspace, those of the tile from column `first` on.
  static double* lanes_of(const Gates& g, int64_t first) {
    return g.sums[0].partial + kLanes * g.biases * first;
  }

  // (hi, lo) IN: the sums of columns first .. first + n, from one gate's to the next one's `step`.
  static void store(const Gates& g, int64_t first, int64_t n, const double* hi, const double* lo,
                    int64_t step) {
    const int64_t gates = kGatesOf[g.kind];
    for (int64_t k = 0; k < g.biases; ++k) {
      const bool is_q = k == gates, is_n = g.kind == kGru && k == 2;
      const int64_t output = (is_q ? 2 : k) * g.columns + first, at = k * step;
      for (int i = 0; i < 2; ++i)
        if (g.sums[i].y && !(i == 0 ? is_q : is_n))
          store_sums(g.sums[i], output, n, hi + at, lo ? lo + at : nullptr);
    }
  }

 private:
  void unit(int64_t first, int64_t chunk_index) {
    const int64_t n = std::min(g.tile, g.columns - first);
    const int64_t width = n * g.biases;
    if (r.partial) {
      chunk(first, n, chunk_index, hi, lo);
      double* to = r.partial + 2 * chunk_index * g.biases * g.columns;
      for (int k = 0; k < g.biases; ++k) {
        std::copy_n(hi + k * n, n, to + k * g.columns + first);
        std::copy_n(lo + k * n, n, to + (g.biases + k) * g.columns + first);
      }
      return;
    }
    chunk(first, n, 0, hi, lo);
    for (int64_t c = 1; c < r.chunks; ++c) {
      chunk(first, n, c, chunk_hi, chunk_lo);
      r.table->merge(chunk_hi, chunk_lo, hi, lo, width);
    }
    store(g, first, n, hi, lo, n);
  }

  void chunk(int64_t first, int64_t n, int64_t index, double* to, double* errors) {
    const int64_t begin = index * r.chunk_blocks * kReduceBlock;
    const int64_t end = std::min(begin + r.chunk_blocks * kReduceBlock, g.rows);
    const int64_t width = n * g.biases;
    for (int64_t row = begin; row < end; row += kReduceBlock) {
      const int64_t rows = std::min(kReduceBlock, end - row);
      whole_block(first, n, row, rows);
      if (row > begin) {
        r.table->merge(lanes, nullptr, to, errors, width);
      } else {
        std::copy_n(lanes, width, to);
        std::fill_n(errors, width, 0.0);
      }
    }
  }

  // lanes[0] becomes the sums of a block.
  void whole_block(int64_t first, int64_t n, int64_t row, int64_t rows) {
    bool keeps = rows * n * g.biases * g.wide <= kKept;
    for (int k = 0; k < g.biases; ++k) keeps &= tiles.is_direct(slot_of_sum(g, k));
    const int64_t width = n * g.biases;
    if (!keeps) {
      block(first, n, row, rows, 0, kLanes, lanes);
      r.table->fold(lanes, std::min<int64_t>(rows, kLanes), width);
      return;
    }
    for (int64_t k = 0; k < rows;) k += tiles.tile(row + k, rows - k, first, n);
    fold(first, n, row, rows, 0, 1, lanes);
  }

  // to OUT: the lanes lane, lane + step, ... in the order of the table's fold, but each of them is
  // added up when it is its turn: five are in memory instead of all.
  bool fold(int64_t first, int64_t n, int64_t row, int64_t rows, int64_t lane, int64_t step,
            double* to) {
    if (lane >= rows) return false;
    if (step == kLanes) {
      for (int64_t done = lane; done < rows; done += kDeep * kLanes)
        add_kept(first, n, row + done, std::min(kDeep, ceil_div(rows - done, kLanes)), done == lane,
                 to);
      return true;
    }
    const int64_t width = n * g.biases;
    fold(first, n, row, rows, lane, 2 * step, to);
    if (fold(first, n, row, rows, lane + step, 2 * step, to + width)) r.table->fold(to, 2, width);
    return true;
  }

  // lane OUT [from .. to][n a gate]: the rows of a block that belong to these lanes.
  void block(int64_t first, int64_t n, int64_t row, int64_t rows, int64_t from, int64_t to,
             double* lane) {
    bool keeps = true;
    for (int k = 0; k < g.biases; ++k) keeps &= tiles.is_direct(slot_of_sum(g, k));
    const int64_t few = kLanes * n * g.biases * g.wide;
    const int64_t deep = keeps ? std::clamp<int64_t>(kKept / few, 1, kDeep) * kLanes : kLanes;
    const bool is_all = to - from == kLanes;  // then its rows follow each other
    const int64_t run = is_all ? deep : kLanes;
    for (int64_t done = 0; done < rows; done += deep) {
      const int64_t end = std::min(done + deep, rows);
      for (int64_t i = done; i < end; i += run) {
        const int64_t last = std::min(i + (is_all ? deep : to), end);
        if (keeps)
          for (int64_t k = i + from; k < last;) k += tiles.tile(row + k, last - k, first, n);
        else
          add_made(first, n, row, i + from, last, lane);
      }
      if (!keeps) continue;
      for (int64_t l = from; l < std::min(to, end - done); ++l)
        add_kept(first, n, row + done + l, ceil_div(end - done - l, kLanes), done == 0,
                 lane + l * n * g.biases);
    }
  }

  // Gradients that are stored as they are computed are read again, several rows of a lane at once:
  // lanes are not read and written for every one.
  void add_kept(int64_t first, int64_t n, int64_t row, int64_t rows, bool fresh, double* lane) {
    int64_t at[kDeep];
    const bool is_whole = n == g.columns;
    for (int k = 0; k < g.biases; ++k) {
      const bool is_gate = k < kGatesOf[g.kind];
      const Gates::Stream& s = g.streams[slot_of_sum(g, k)];
      const int64_t place = is_gate ? g.places[k] : k;
      if (is_whole && is_gate && place > 0) continue;  // it lies in the row of the first
      for (int64_t i = 0; i < rows; ++i) at[i] = tiles.offset(s, row + i * kLanes);
      r.blocks->add_rows(s.data + first * s.column, at, 1, rows,
                         is_whole && is_gate ? n * kGatesOf[g.kind] : n, lane + place * n, fresh);
    }
  }

  // Rows row + begin .. row + end of gradients that pass through buffers.
  void add_made(int64_t first, int64_t n, int64_t row, int64_t begin, int64_t end, double* lane) {
    for (int64_t i = begin, m; i < end; i += m) {
      m = tiles.tile(row + i, std::min(end - i, g.moves ? kPiece / n : 1), first, n);
      for (int k = 0; k < g.biases; ++k) {
        const int slot = slot_of_sum(g, k);
        const Gates::Stream& s = g.streams[slot];
        const int64_t place = k < kGatesOf[g.kind] ? g.places[k] : k;
        for (int64_t j = 0; j < m; ++j) {
          const int64_t at = tiles.is_direct(slot) ? tiles.offset(s, row + i + j) : j * n * g.wide;
          const char* start = tiles.is_direct(slot) ? s.data + first * s.column : tiles.made(slot);
          r.blocks->add_rows(start, &at, 1, 1, n, lane + ((i + j) % kLanes * g.biases + place) * n,
                             i + j < kLanes);
        }
      }
    }
  }

  const Gates& g;
  const Reducer& r;
  Tiles tiles;
  alignas(64) double lanes[kLanes * kMostColumns];
  alignas(64) double hi[kMostColumns], lo[kMostColumns];
  alignas(64) double chunk_hi[kMostColumns], chunk_lo[kMostColumns];
};

Gates::Bias bias_of(const GateArrays& a, int place, int64_t columns, bool takes,
                    bool takes_recurrent) {
  Gates::Bias bias{};
  const Operand* both[] = {&a.bias, &a.recurrent_bias};
  const int dtypes[] = {a.bias_dtype, a.recurrent_bias_dtype};
  const bool wanted[] = {takes, takes_recurrent};
  for (int i = 0; i < 2; ++i) {
    if (!both[i]->data || !wanted[i]) continue;
    bias.dtype[i] = dtypes[i];
    bias.stride[i] = byte_stride(*both[i], 0, item_size(dtypes[i]));
    bias.data[i] = both[i]->data + place * columns * bias.stride[i];
  }
  return bias;
}

}  // namespace

void prepare(Gates* g, const BlockTable* table, int kind, int dtype, bool backward, bool recomputes,
             bool accumulate, const GateArrays& a) {
  const int last = a.state.ndim - 1, count = kGatesOf[kind], kept = kKeptOf[kind];
  g->blocks = table->pipeline;
  g->kind = kind;
  g->dtype = dtype;
  g->wide_dtype = compute_dtype(dtype);
  g->item = item_size(dtype);
  g->wide = item_size(g->wide_dtype);
  g->backward = backward;
  g->accumulate = accumulate;
  g->columns = a.state.shape[last];
  const bool is_double = g->wide_dtype == kF64, adds = a.recurrent.data;
  g->block = !backward    ? table->gate->forward[kind][is_double][adds][a.gates_out.data != nullptr]
             : recomputes ? table->gate->recompute[kind][is_double][adds]
                          : table->gate->backward[kind][is_double];
  std::copy_n(a.places, kMostGates, g->places);

  struct Array {
    const Operand& operand;
    int slot, count;
    bool is_ordered;  // packed as the caller's gates are
  };
  const bool reads_sums = !backward || recomputes;
  const Array all[] = {
      {a.gates, kGateIn, reads_sums ? count : kept, reads_sums || kind == kLstm},
      {a.recurrent, kRecurrentIn, count, true},
      {a.state, kStateIn, 1, false},
      {a.cell, kCell, 1, false},
      {a.hidden, kHidden, 1, false},
      {a.cell_gradient, kCellGradient, 1, false},
      {a.gates_out, kGateOut, backward ? count : kept, backward || kind == kLstm},
      {a.recurrent_out, kRecurrentOut, count, true},
      {a.state_out, kStateOut, 1, false},
  };

  // Axes of the batch that every array steps through as one are one.
  g->rows = 1;
  g->axes = 0;
  int axes[kMaxAxes];  // the innermost of those that were merged
  for (int axis = 0; axis < last; ++axis) {
    const int64_t length = a.state.shape[axis];
    g->rows *= length;
    if (length == 1) continue;
    bool merge = g->axes > 0;
    for (const Array& array : all)
      merge =
          merge && (!array.operand.data || byte_stride(array.operand, axes[g->axes - 1], g->item) ==
                                               byte_stride(array.operand, axis, g->item) * length);
    if (merge) {
      g->length[g->axes - 1] *= length;
    } else {
      g->length[g->axes++] = length;
    }
    axes[g->axes - 1] = axis;
  }

  for (Gates::Stream& s : g->streams) s.data = nullptr, s.is_direct = false;
  g->is_joined = g->columns < kShortRow && g->rows > 1;
  g->moves = g->is_joined;
  g->lacks = false;
  for (const Array& array : all) {
    const Operand& x = array.operand;
    const bool is_out = is_output(backward, array.slot);
    if (!x.data) {
      const bool is_of_kind = array.slot == kRecurrentOut ? kind == kGru : is_out;
      g->lacks |= backward && (is_of_kind || (array.slot == kCellGradient && kind == kLstm));
      continue;
    }
    const int64_t column = byte_stride(x, last, g->item);
    auto bits = reinterpret_cast<uintptr_t>(x.data) | uintptr_t(column);
    Gates::Stream s;
    s.column = column;
    for (int axis = 0; axis < g->axes; ++axis) {
      s.step[axis] = byte_stride(x, axes[axis], g->item);
      bits |= uintptr_t(s.step[axis]);
    }
    s.is_dense = (column == g->item || g->columns == 1) && bits % uintptr_t(g->item) == 0;
    s.is_direct = s.is_dense && g->item == g->wide;
    g->moves |= !s.is_direct || (accumulate && is_out);
    for (int k = 0; k < array.count; ++k) {
      const int place = array.is_ordered ? a.places[k] : k;
      s.data = x.data + place * g->columns * column;
      g->streams[array.slot + k] = s;
    }
  }

  g->biases = reads_sums || backward ? kept : 0;
  for (int k = 0; k < g->biases; ++k) {
    const bool is_q = kind == kGru && k == 3, is_n = kind == kGru && k == 2;
    g->bias[k] =
        reads_sums ? bias_of(a, a.places[is_q ? 2 : k], g->columns, !is_q, !is_n) : Gates::Bias{};
  }
}

void prepare_gate_sums(Gates* g, const ReduceTable* table, const Operand* sums, const int* dtypes) {
  for (int i = 0; i < 2; ++i) {
    Reducer* r = &g->sums[i];
    r->table = table;
    r->blocks = &table->terms[kIdentity][g->wide_dtype];
    r->outputs = r->terms = Axes();
    r->terms.size = g->rows;
    r->partial = nullptr;
    r->accumulate = g->accumulate;
    r->y = nullptr;
    cut_terms(r);
    if (!sums[i].data) continue;
    const int64_t item = item_size(dtypes[i]), stride = byte_stride(sums[i], 0, item);
    r->outputs.append(kGatesOf[g->kind] * g->columns, 0, stride);
    const auto bits = reinterpret_cast<uintptr_t>(sums[i].data) | uintptr_t(stride);
    set_output(r, sums[i].data, dtypes[i], bits % uintptr_t(item) == 0);
  }
  g->shares_lanes = false;
  g->tile = tile_of(g->kind, g->wide, g->rows, g->columns);
  if (g->moves || g->lacks) g->tile = std::min(g->tile, kPiece);
  g->tiles = ceil_div(g->columns, g->tile);
}

int64_t gate_workspace_size(int kind, int dtype, int64_t rows, int64_t columns, int threads) {
  const int64_t width = kKeptOf[kind] * columns;
  const int64_t tile = tile_of(kind, item_size(compute_dtype(dtype)), rows, columns);
  const int64_t tiles = ceil_div(columns, tile);
  if (rows <= kReduceBlock) return tiles >= threads ? 0 : kLanes * width * int64_t(sizeof(double));
  Reducer r;
  r.terms.size = rows;
  cut_terms(&r);
  return tiles >= kFewUnits ? 0 : r.chunks * width * 2 * int64_t(sizeof(double));
}

void gate_share(const Gates* gates, int64_t index, int64_t shares) {
  const Gates& g = *gates;
  const int64_t size = g.rows * g.columns;
  const auto cut = [&](int64_t i) { return i == shares ? size : size / shares * i / kCut * kCut; };
  int64_t first = cut(index);
  const int64_t end = cut(index + 1);
  Tiles tiles(g);
  if (const int64_t column = first % g.columns; column && first < end) {
    const int64_t n = std::min(g.columns - column, end - first);
    tiles.run(first / g.columns, 1, column, column + n);
    first += n;
  }
  if (const int64_t rows = (end - first) / g.columns; rows > 0) {
    tiles.run(first / g.columns, rows, 0, g.columns);
    first += rows * g.columns;
  }
  if (first < end) tiles.run(first / g.columns, 1, 0, end - first);
}

void gate_sum_share(const Gates* gates, int64_t index, int64_t shares) {
  Sums(*gates).run(index, shares);
}

void use_workspace(Gates* gates, char* workspace) {
  gates->sums[0].partial = reinterpret_cast<double*>(workspace);
  gates->shares_lanes = gates->rows <= kReduceBlock;
}

void merge_gate_sums(const Gates* gates) {
  const Gates& g = *gates;
  const Reducer& r = g.sums[0];
  if (g.shares_lanes) {
    for (int64_t first = 0; first < g.columns; first += g.tile) {
      const int64_t n = std::min(g.tile, g.columns - first);
      double* lanes = Sums::lanes_of(g, first);
      r.table->fold(lanes, std::min<int64_t>(g.rows, kLanes), n * g.biases);
      Sums::store(g, first, n, lanes, nullptr, n);
    }
    return;
  }
  const int64_t width = g.biases * g.columns;
  double *hi = r.partial, *lo = hi + width;
  for (int64_t c = 1; c < r.chunks; ++c)
    r.table->merge(hi + 2 * c * width, lo + 2 * c * width, hi, lo, width);
  for (int64_t first = 0; first < g.columns; first += kMostColumns)
    Sums::store(g, first, std::min(kMostColumns, g.columns - first), hi + first, lo + first,
                g.columns);
}

}  // namespace fastact
