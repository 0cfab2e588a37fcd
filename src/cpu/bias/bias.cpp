// The plan of bias_act, and a thread's partition of forward and backward (bias.h).
#include "cpu/bias/bias.h"

#include <algorithm>
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

constexpr int64_t kShortRow = 64;      // below, rows share a chunk
constexpr int64_t kCut = 64;           // elements: whole cache lines of every dtype
constexpr int64_t kL2Bytes = 3 << 18;  // bytes of dx that are to be found in the second-level cache

// The bias in the compute type, wherever a chunk needs it.
class BiasValues {
 public:
  // most: elements of the longest chunk.
  BiasValues(const BiasAct& a, int64_t most) : act(a), compute_item(a.operands.compute_item) {
    const bool task = act.bias_stride == item_size(act.bias_dtype) || act.channels == 1;
    const bool aligned = reinterpret_cast<uintptr_t>(act.bias) % size_t(compute_item) == 0;
    is_direct = task && aligned && act.bias_dtype == act.operands.compute_dtype;
    is_repeated = act.channels <= kPiece;
    if (!is_repeated) return;
    read(0, act.channels, values);
    const int64_t size = act.channels + std::min(most, kPiece);
    for (int64_t done = act.channels; done < size; done *= 2)
      memcpy(values + done * compute_item, values, std::min(done, size - done) * compute_item);
  }

  // Those of n columns from one on; they begin anew after the last channel (not if they are many).
  const char* values_at(int64_t first, int64_t n) {
    if (is_repeated) return values + first * compute_item;
    if (is_direct) return act.bias + first * compute_item;
    read(first, n, values);
    return values;
  }

  // Spread over n elements from (row, column) on, as many as their rows have columns.
  const char* spread(int64_t row, int64_t column, int64_t n) {
    const int64_t columns = act.operands.columns.size;
    if (row == spread_row && column + n <= columns && n <= spread_count) return spread_;
    spread_row = row;
    spread_count = std::min(n, columns - column);
    for (int64_t done = 0; done < n; ++row, column = 0) {
      const int64_t m = std::min(n - done, columns - column);
      const char* value = values_at(row % act.channels, 1);
      if (act.is_double)
        std::fill_n(reinterpret_cast<double*>(spread_) + done, m,
                    *reinterpret_cast<const double*>(value));
      else
        std::fill_n(reinterpret_cast<float*>(spread_) + done, m,
                    *reinterpret_cast<const float*>(value));
      done += m;
    }
    return spread_;
  }

 private:
  void read(int64_t first, int64_t n, char* to) {
    const ConvertKernels& kernels = *act.operands.kernels;
    const int64_t item = item_size(act.bias_dtype);
    alignas(64) char packed[kPiece * sizeof(double)];
    gather_for(item)(packed, act.bias + first * act.bias_stride, act.bias_stride, n);
    if (compute_dtype(act.bias_dtype) == act.operands.compute_dtype)
      kernels.to_compute[act.bias_dtype](packed, to, n);
    else
      kernels.round(packed, to, n);
  }

  const BiasAct& act;
  int64_t compute_item;
  bool is_direct, is_repeated;
  int64_t spread_row = -1, spread_count;  // whose value spread_ begins with, and how often
  alignas(64) char values[2 * kPiece * sizeof(double)];
  alignas(64) char spread_[kPiece * sizeof(double)];
};

// One thread's chunks: from the operands to f(z), or to dy f'(z).
struct BiasChunks {
  const BiasAct& act;
  const StridedOperands& s;
  ChunkReader reader;
  BiasValues bias;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char residual[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char product[kPiece * sizeof(double)];

  explicit BiasChunks(const BiasAct& a)
      : act(a), s(a.operands), reader(a.operands), bias(a, a.operands.size()) {}

  // values: of the bias, one an element.
  void forward(const char* values, int64_t n) {
    const char* from = reader.load(BiasAct::kX, x);
    char* y = reader.direct(BiasAct::kOut);
    char* to = y ? y : z;
    if (has_residual) {
      add_all(from, values, to, n);
      char* const operands[] = {to, to};
      if (act.activation != k_identity) act.kernel(operands, n, act.parameters);
    } else {
      s.kernels->bias->forward[act.activation][act.is_double](from, values, to, n, ahead,
                                                              act.parameters);
    }
    if (!y) reader.store(BiasAct::kOut, z, false);
  }

  // Where dy f'(z) lies in the compute type: in dx itself or in `product`, and then it has been
  // stored. lanes: it is added to them, the first onto lane `phase`; null: it is not.
  const char* backward(const char* values, int64_t n, int64_t phase, double* lanes) {
    const char* gradient = reader.load(BiasAct::kDy, dy);
    char* y = act.accumulate ? nullptr : reader.direct(BiasAct::kOut);
    char* to = y ? y : product;
    if (act.activation == k_identity || !has_residual) {
      // The identity's loop reads dy alone: a copy that adds up what it has at hand.
      const char* from = act.activation == k_identity ? gradient : reader.load(BiasAct::kX, x);
      s.kernels->bias->backward[act.activation][act.is_double](gradient, from, values, to, n, ahead,
                                                               act.parameters, phase, lanes);
    } else {
      add_all(reader.load(BiasAct::kX, x), values, z, n);
      char* const operands[] = {const_cast<char*>(gradient), z, to};
      act.kernel(operands, n, act.parameters);
      if (lanes) act.reducer.kernels->add_terms(to, n, phase, lanes);
    }
    if (!y) reader.store(BiasAct::kOut, to, act.accumulate);
    return to;
  }

  void add_all(const char* from, const char* values, char* to, int64_t n) {
    s.kernels->add[act.is_double](from, values, reader.load(BiasAct::kResidual, residual), to, n);
  }

  int64_t ahead = 0;  // bytes from this chunk to the next one
  const bool has_residual = s.data[BiasAct::kResidual];
};

struct BiasForward : BiasChunks {
  using BiasChunks::BiasChunks;

  void run(int64_t first, int64_t end) {
    const int64_t columns = s.columns.size;
    int64_t row = first / columns, column = first % columns;
    for (int64_t n; first < end; first += n) {
      n = std::min(kPiece, end - first);
      if (columns >= kShortRow) n = std::min(n, columns - column);
      reader.go(row, column, n);
      ahead = n * s.item;
      forward(s.is_channel_outer ? bias.spread(row, column, n) : bias.values_at(column, n), n);
      row += (column + n) / columns;
      column = (column + n) % columns;
    }
  }
};

struct BiasBackward : BiasChunks, BlockSums {
  const Reducer& r;
  alignas(64) double lanes[kLanes * kMostColumns];
  alignas(64) double totals[kMostColumns];

  explicit BiasBackward(const BiasAct& a) : BiasChunks(a), r(a.reducer) {}

  const ReduceKernels& kernels() const { return *r.kernels; }

  const double* sums(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    if (s.is_channel_outer) {
      channel_rows(first, n, term, terms);
      return totals;
    }
    act.channels <= kShortRow ? joined(term, terms) : column_tile(first, n, term, terms);
    r.table->fold(lanes, terms, n);
    return lanes;
  }

  // A channel's terms are columns of its rows. Its neighbours' rows are next to them.
  void channel_rows(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const int64_t columns = s.columns.size;
    std::fill(lanes, lanes + n * kLanes, -0.0);
    for (int64_t done = 0; done < terms;) {
      const int64_t outer = (term + done) / columns, column = (term + done) % columns;
      const int64_t m = std::min(terms - done, columns - column);
      const int64_t row = outer * act.channels + first;
      if (m == columns && columns < kShortRow) {
        short_rows(row, n, done);
      } else {
        const int64_t on = column + m < columns ? m : act.channels * columns - column;
        for (int64_t k = 0; k < n; ++k)
          long_row(row + k, column, m, done, lanes + k * kLanes,
                   k + 1 < n ? columns : on - k * columns);
      }
      done += m;
    }
    for (int64_t k = 0; k < n; ++k) {
      r.table->fold(lanes + k * kLanes, kLanes, 1);
      totals[k] = lanes[k * kLanes];
    }
  }

  // next: elements from its start to that of whichever row is next.
  void long_row(int64_t row, int64_t column, int64_t m, int64_t phase, double* lane, int64_t next) {
    for (int64_t done = 0, k; done < m; done += k) {
      k = std::min(kPiece, m - done);
      reader.go(row, column + done, k);
      ahead = (done + k < m ? k : next - done) * s.item;
      backward(bias.spread(row, column + done, k), k, (phase + done) % kLanes, lane);
    }
  }

  void short_rows(int64_t row, int64_t n, int64_t phase) {
    const int64_t columns = s.columns.size, most = kPiece / columns;
    for (int64_t done = 0, k; done < n; done += k) {
      k = std::min(most, n - done);
      reader.go(row + done, 0, k * columns);
      const char* from = backward(bias.spread(row + done, 0, k * columns), k * columns, 0, nullptr);
      for (int64_t i = 0; i < k; ++i)
        kernels().add_terms(from + i * columns * s.compute_item, columns, phase % kLanes,
                            lanes + (done + i) * kLanes);
    }
  }

  // Few channels: kLanes rows are joined to one that holds every lane.
  void joined(int64_t term, int64_t terms) {
    const int64_t columns = act.channels, width = kLanes * columns, end = terms * columns;
    const bool reads_back =
        !act.accumulate && s.is_direct[BiasAct::kOut] && s.is_flat[BiasAct::kOut];
    const int64_t most =
        reads_back ? ceil_div(kL2Bytes, 8 * width * s.compute_item) * 8 * width : 0;
    int64_t at[kReduceBlock / kLanes] = {0};
    for (int64_t done = 0, n; done < end; done += n) {
      const char* start = nullptr;
      n = 0;
      do {
        const int64_t from = done + n;
        const int64_t m = std::min({kPiece, end - from, width - from % width});
        reader.go(term + from / columns, from % columns, m);
        ahead = m * s.item;
        const char* made = backward(bias.values_at(from % columns, m), m, 0, nullptr);
        if (n == 0) start = made;
        n += m;
      } while (n < most && done + n < end);
      const int64_t whole = reads_back ? n / width : 0, rest = n - whole * width;
      for (int64_t i = 0; i < whole; ++i) at[i] = i * width * s.compute_item;
      kernels().add_rows(start, at, 1, whole, width, lanes, done == 0);
      if (rest)
        kernels().add_rows(start + whole * width * s.compute_item, at, 1, 1, rest,
                           lanes + done % width, done + whole * width < width);
    }
  }

  // A tile of columns, row after row, in the order of memory. Where dx holds what is added up, it
  // is read again from the second-level cache, several rows of a lane at once: lanes are not read
  // and written for every one.
  void column_tile(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const char* values = bias.values_at(first, n);
    const bool reads_back = !act.accumulate && s.is_direct[BiasAct::kOut];
    const int64_t deep =
        reads_back ? std::clamp<int64_t>(kL2Bytes / (kLanes * n * s.compute_item), 1, 8) : 0;
    int64_t at[8 * kLanes] = {0};
    for (int64_t done = 0, m; done < terms; done += m) {
      m = deep ? std::min(deep * kLanes, terms - done) : 1;
      const char* start = nullptr;
      for (int64_t i = 0; i < m; ++i) {
        reader.go(term + done + i, first, n);
        ahead = s.columns.size * s.item;
        const char* made = backward(values, n, 0, nullptr);
        if (i == 0) start = made;
        at[i] = made - start;
      }
      for (int64_t i = 0; i < std::min<int64_t>(m, kLanes); ++i)
        kernels().add_rows(start, at + i, kLanes, ceil_div(m - i, kLanes), n,
                           lanes + (done + i) % kLanes * n, done + i < kLanes);
    }
  }
};

// The first element that the plan meets of an array with one element a channel, and the step from
// one to the next.
char* along_channels(const BiasAct& act, const Operand& a, int64_t* stride) {
  *stride = byte_stride(a, 0, item_size(act.bias_dtype));
  if (!act.operands.is_channel_reversed) return a.data;
  *stride = -*stride;
  return a.data - (act.channels - 1) * *stride;
}

}  // namespace

void prepare(BiasAct* act, const KernelTable* table, bool backward, int dtype,
             const Operand* arrays, const Operand& bias, int bias_dtype, int axis) {
  plan_operands(&act->operands, table->convert, dtype, BiasAct::kOut + 1, arrays, BiasAct::kOut,
                axis, backward);
  const int compute = act->operands.compute_dtype;
  act->is_double = compute == kF64;
  act->kernel = backward ? table->backward[act->activation][compute][false]
                         : table->forward[act->activation][compute];
  act->channels = arrays[BiasAct::kOut].shape[axis];
  act->bias_dtype = bias_dtype;
  act->bias = along_channels(*act, bias, &act->bias_stride);
}

void prepare_sum(BiasAct* act, const ReduceTable* table, const Operand& dbias, bool accumulate) {
  Reducer* r = &act->reducer;
  const StridedOperands& s = act->operands;
  const int64_t channels = act->channels, item = item_size(act->bias_dtype);
  int64_t stride;
  char* data = along_channels(*act, dbias, &stride);
  r->table = table;
  r->kernels = &table->kernels[kIdentity][s.compute_dtype];
  r->outputs = r->terms = Axes();
  r->outputs.append(channels, 0, stride);
  r->terms.size = s.size() / channels;
  r->partial = nullptr;
  r->accumulate = accumulate;
  const auto bits = reinterpret_cast<uintptr_t>(data) | uintptr_t(stride);
  set_output(r, data, act->bias_dtype, bits % uintptr_t(item) == 0);
  r->row = channels;
  if (s.is_channel_outer) {
    r->layout = Reducer::kRows;
    r->tile = std::clamp<int64_t>(ceil_div(channels, kFewTasks), 1, 64);
  } else {
    r->layout = Reducer::kColumns;
    const int64_t tiles = channels <= kShortRow ? 1 : ceil_div(channels, kMostColumns);
    r->tile = tiles == 1 ? channels
                         : std::min(kMostColumns, ceil_div(ceil_div(channels, tiles), 16) * 16);
  }
  r->tasks = ceil_div(channels, r->tile);
  cut_terms(r);
}

int64_t bias_workspace_size(int64_t channels, int64_t terms) {
  Reducer r;
  r.terms.size = terms;
  cut_terms(&r);
  const bool enough = ceil_div(channels, kMostColumns) >= kFewTasks || r.chunks == 1;
  return enough ? 0 : r.chunks * channels * 2 * int64_t(sizeof(double));
}

void bias_forward_partition(const BiasAct* act, int64_t index, int64_t partitions) {
  const int64_t size = act->operands.size();
  const auto cut = [&](int64_t i) {
    return i == partitions ? size : size / partitions * i / kCut * kCut;
  };
  with_frame<BiasForward>(*act,
                          [&](BiasForward& forward) { forward.run(cut(index), cut(index + 1)); });
}

void bias_backward_partition(const BiasAct* act, int64_t index, int64_t partitions) {
  with_frame<BiasBackward>(*act, [&](BiasBackward& backward) {
    reduce_tasks(act->reducer, backward, index, partitions);
  });
}

}  // namespace fastact
