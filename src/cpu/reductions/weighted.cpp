#include "cpu/reductions/weighted.h"

#include <algorithm>
#include <cmath>

#include "common/reductions/moments.h"
#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

constexpr int64_t kStaged = 512;        // elements at a time: with products they fill 16 KiB, and
                                        // all that a gradient is made of 32
constexpr int64_t kLongTerms = 256;     // terms worth reading output by output
constexpr int64_t kFewOutputs = 16;     // that make too short rows
constexpr int64_t kMostWeighted = 256;  // columns at once: 1 KiB of a float32 row

bool is_finite_number(double x) { return x - x == 0; }

// to OUT (n) = numbers of any dtype at any address, `stride` bytes apart.
void widen(const ReduceTable& table, int dtype, const char* from, int64_t stride, int64_t n,
           double* to) {
  const int64_t item = item_size(dtype);
  if (((reinterpret_cast<uintptr_t>(from) | uintptr_t(stride)) & uintptr_t(item - 1)) == 0)
    return table.widen[dtype](from, stride, n, to);
  alignas(64) char packed[kPiece * sizeof(double)];
  gather_for(item)(packed, from, stride, n);
  table.widen[dtype](packed, item, n, to);
}

// The axes of all arrays in the order of plan_reduction: those that are reduced are columns.
void plan_axes(StridedOperands* s, const ConvertKernels* kernels, int count, const Operand* arrays,
               const int* dtypes, const bool* reduced) {
  begin_operands(s, kernels, count, arrays, dtypes);
  Axis<kReaderOperands> axes[kMaxAxes];
  int found = find_axes(axes, arrays[0], count, arrays, s->items,
                        [=](int i) { return int(!reduced || reduced[i]); });
  sort_axes(axes, found, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  const int kept = int(std::find_if(axes, axes + found, [](auto& a) { return a.kind; }) - axes);
  for (int i = 0; i < kept; ++i)
    if (axes[i].stride[0] < 0) reverse_axis(&axes[i], count, s->data);
  order_axes(axes, kept, 0);
  order_axes(axes + kept, found - kept, 0);
  found = merge_axes(axes, found);
  for (int i = 0; i < found; ++i) (axes[i].kind ? s->columns : s->rows).append(axes[i]);
}

int64_t last_step(const OperandAxes& axes, int k) {
  return axes.count ? std::abs(axes.stride[k][axes.count - 1]) : 0;
}

struct WeightedInputs : BlockSource {
  using M = WeightedMoments;
  static constexpr int64_t kPitch = kLanes * kMostWeighted;
  const M& m;
  const Reducer& r;
  const StridedOperands& s;
  const bool has_m2;
  alignas(64) double x[kStaged];
  alignas(64) double weights[kStaged];
  alignas(64) double products[2][kStaged];
  alignas(64) double lanes[2][kPitch];
  alignas(64) double centre[kStaged];  // of each column, repeated for every row that is staged
  double count[kMostWeighted];
  double results[kMostSets][kMostWeighted];
  int64_t staged_first, staged_term, staged_terms;

  explicit WeightedInputs(const M& moments)
      : m(moments),
        r(moments.reducer),
        s(moments.operands),
        has_m2(r.accumulator == &r.table->accumulators[kValidMoments]),
        staged_first(-1) {}

  Results block(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    const int64_t width = m.is_by_output ? 1 : n;
    for (int64_t k = 0; k < n; k += width) columns(first + k, width, term, terms, k);
    return {results[0], nullptr, kMostWeighted};
  }

  // The results of n outputs, to those from `at` on.
  void columns(int64_t first, int64_t n, int64_t term, int64_t terms, int64_t at) {
    if (!has_m2) {
      std::fill_n(centre, rows_at_once(n) * n, 0.0);
      pass(first, n, term, terms, false);
      std::copy_n(lanes[0], n, results[0] + at);
      std::copy_n(lanes[1], n, results[1] + at);
      return;
    }
    find_centres(first, n, term, terms);
    pass(first, n, term, terms, false);
    for (int64_t c = 0; c < n; ++c) {
      count[c] = lanes[1][c];
      centre[c] = count[c] > 0 ? finite_or_zero(centre[c] + lanes[0][c] / count[c]) : 0.0;
    }
    repeat_centres(n);
    pass(first, n, term, terms, true);
    for (int64_t c = 0; c < n; ++c) {
      double mean = 0, m2 = 0;
      if (count[c] != 0) moments_of_sums(centre[c], lanes[0][c], lanes[1][c], count[c], &mean, &m2);
      results[0][at + c] = mean, results[1][at + c] = m2, results[2][at + c] = count[c] + 0.0;
    }
  }

  // The first element that counts and is finite, or 0.
  void find_centres(int64_t first, int64_t n, int64_t term, int64_t terms) {
    std::fill_n(centre, n, std::nan(""));
    int64_t missing = n;
    for_stages(first, n, term, terms, [&](int64_t, int64_t staged) {
      for (int64_t i = 0; i < staged * n && missing > 0; ++i) {
        const int64_t c = n == 1 ? 0 : i % n;
        if (centre[c] == centre[c] || !(weights[i] > 0) || !is_finite_number(x[i])) continue;
        centre[c] = x[i];
        --missing;
      }
      return missing > 0;
    });
    for (int64_t c = 0; c < n; ++c) centre[c] = finite_or_zero(centre[c]);
    repeat_centres(n);
  }

  void repeat_centres(int64_t n) {
    for (int64_t done = n; done < rows_at_once(n) * n; done *= 2)
      std::copy(centre, centre + done, centre + done);
  }

  // lanes OUT: the sums of w (x - centre), and of w, or of w (x - centre)^2.
  void pass(int64_t first, int64_t n, int64_t term, int64_t terms, bool squares) {
    for_stages(first, n, term, terms, [&](int64_t done, int64_t staged) {
      r.table->weigh(x, weights, centre, staged * n, staged * n, products[0],
                     squares ? products[1] : nullptr);
      add(products[0], n, done, staged, lanes[0]);
      add(squares ? products[1] : weights, n, done, staged, lanes[1]);
      return true;
    });
    for (int k = 0; k < 2 && terms > 1; ++k) r.table->fold(lanes[k], terms, n);
  }

  // visit(terms before, terms) of the terms that are staged, until it says that it has enough.
  template <class Visit>
  void for_stages(int64_t first, int64_t n, int64_t term, int64_t terms, Visit visit) {
    const int64_t most = rows_at_once(n);
    for (int64_t done = 0, staged; done < terms; done += staged) {
      staged = std::min(most, terms - done);
      stage(first, n, term + done, staged);
      if (!visit(done, staged)) return;
    }
  }

  // Of n columns: a power of two, so that they are whole rounds of the lanes, or parts of one.
  static int64_t rows_at_once(int64_t n) {
    int64_t rows = kStaged;
    while (rows * n > kStaged) rows /= 2;
    return rows;
  }

  void stage(int64_t first, int64_t n, int64_t term, int64_t terms) {
    if (first == staged_first && term == staged_term && terms == staged_terms) return;
    staged_first = first, staged_term = term, staged_terms = terms;
    read(M::kX, first, n, term, terms, x);
    if (s.data[M::kWeights])
      read(M::kWeights, first, n, term, terms, weights);
    else
      std::fill_n(weights, terms * n, 1.0);
    const bool is_masked = s.data[M::kWhere];
    if (is_masked) read(M::kWhere, first, n, term, terms, products[0]);
    r.table->choose(x, weights, is_masked ? products[0] : nullptr, r.skips, terms * n);
  }

  // to OUT [terms][n]
  void read(int k, int64_t first, int64_t n, int64_t term, int64_t terms, double* to) const {
    int64_t done = 0;
    const auto take = [&](const char* from, int64_t stride, int64_t size, double* place) {
      widen(*r.table, s.dtypes[k], from, stride, size, place);
    };
    if (n == 1)
      return for_pieces(s.columns, k, s.row(k, first), term, terms,
                        [&](char* from, int64_t stride, int64_t size) {
                          take(from, stride, size, to + done);
                          done += size;
                        });
    for_pieces(s.rows, k, s.data[k], first, n, [&](char* base, int64_t stride, int64_t size) {
      for (int64_t i = 0; i < terms; ++i)
        take(base + s.columns.offset(k, term + i), stride, size, to + i * n + done);
      done += size;
    });
  }

  // Rows done .. done + rows of n columns onto lanes: kLanes of them are one row that holds every
  // lane.
  void add(const double* from, int64_t n, int64_t done, int64_t rows, double* to) const {
    const ReduceKernels& sums = r.table->accumulators[kItself].kernels[kF64];
    const int64_t phase = done % kLanes, whole = rows / kLanes, rest = rows % kLanes;
    const int64_t width = kLanes * n;
    int64_t at[kStaged / kLanes];
    for (int64_t i = 0; i < whole; ++i) at[i] = i * width * int64_t(sizeof(double));
    const auto bytes = [](const double* p) { return reinterpret_cast<const char*>(p); };
    if (whole) sums.add_rows(bytes(from), at, 1, whole, width, nullptr, to, 0, done == 0);
    at[0] = 0;
    if (rest)
      sums.add_rows(bytes(from + whole * width), at, 1, 1, rest * n, nullptr, to + phase * n, 0,
                    done + whole * kLanes < kLanes);
  }
};

struct GradientPieces {
  using G = WeightedGradient;
  const G& g;
  const StridedOperands& s;
  alignas(64) double values[G::kOperands][kStaged];
  alignas(64) char stage[kStaged * sizeof(double)];

  explicit GradientPieces(const G& gradient) : g(gradient), s(gradient.operands) {
    for (double* of : values) std::fill_n(of, kStaged, 1.0);  // what is not read
  }

  bool is_read(int k) const {
    if (k == G::kTo) return g.accumulate;
    if (k == G::kX) return g.skips || g.of != kMeanByX;
    if (k == G::kWeights && g.of == kMeanByWeights) return false;
    return s.data[k];
  }

  void run(int64_t first, int64_t end) {
    const WeightedGradientKernel kernel = g.table->gradient[g.of][g.accumulate];
    for (int64_t n; first < end; first += n) {
      n = std::min(kStaged, end - first);
      for (int k = 0; k < G::kOperands; ++k)
        if (is_read(k)) read(k, first, n, values[k]);
      choose(n);
      kernel(values[G::kDy], values[G::kSlope], values[G::kX], values[G::kWeights],
             values[G::kMean], values[G::kTo], n);
      write(first, n, values[G::kTo]);
    }
  }

  void choose(int64_t n) {
    const bool is_masked = s.data[G::kWhere], is_weighted = is_read(G::kWeights);
    if (!is_masked && !is_weighted && !g.skips) return;
    if (!is_weighted) std::fill_n(values[G::kWeights], n, 1.0);
    g.table->choose(values[G::kX], values[G::kWeights], is_masked ? values[G::kWhere] : nullptr,
                    g.skips, n);
  }

  void read(int k, int64_t first, int64_t n, double* to) const {
    for_pieces(s.columns, k, s.data[k], first, n, [&](char* from, int64_t stride, int64_t size) {
      widen(*g.table, s.dtypes[k], from, stride, size, to);
      to += size;
    });
  }

  void write(int64_t first, int64_t n, const double* from) {
    const int64_t item = s.items[G::kTo];
    const auto finish = g.table->finish[s.dtypes[G::kTo]];
    for_pieces(s.columns, G::kTo, s.data[G::kTo], first, n,
               [&](char* to, int64_t stride, int64_t size) {
                 const bool is_row = stride == item && reinterpret_cast<uintptr_t>(to) % item == 0;
                 finish(from, nullptr, is_row ? to : stage, size);
                 if (!is_row) scatter_for(item)(to, stage, stride, size);
                 from += size;
               });
  }
};

}  // namespace

void prepare(WeightedMoments* m, const ReduceTable* table, const ConvertKernels* kernels,
             const Operand* inputs, const int* dtypes, const Operand* results, const bool* reduced,
             int y_dtype, OfM2 of_m2, double correction, bool skips) {
  using M = WeightedMoments;
  const Operand& model = model_of(results);
  const Operand arrays[M::kOperands] = {inputs[M::kX], inputs[M::kWeights], inputs[M::kWhere],
                                        model};
  const int all_dtypes[M::kOperands] = {dtypes[M::kX], dtypes[M::kWeights], dtypes[M::kWhere],
                                        y_dtype};
  StridedOperands& s = m->operands;
  plan_axes(&s, kernels, M::kOperands, arrays, all_dtypes, reduced);

  Reducer* r = &m->reducer;
  const bool has_m2 = of_m2 != kNothing && of_m2 != kTotal;
  set_accumulator(r, table, has_m2 ? kValidMoments : kValidMean, kF64);
  r->accumulate = false;
  r->x = nullptr;
  r->outputs = r->terms = Axes();
  for (int i = 0; i < s.rows.count; ++i)
    r->outputs.append(s.rows.length[i], 0, s.rows.stride[M::kY][i]);
  r->terms.size = s.columns.size;
  set_output(r, s.data[M::kY], y_dtype, is_aligned(model, item_size(y_dtype)));
  set_moments(r, model, results, of_m2, correction, skips);
  const int64_t outputs = r->outputs.size, terms = r->terms.size;
  m->is_by_output =
      outputs == 1 ||
      (terms >= kLongTerms &&
       (outputs < kFewOutputs || last_step(s.columns, M::kX) <= last_step(s.rows, M::kX)));
  r->layout = Reducer::kNarrow;
  r->row = outputs;
  const int64_t even = std::max(ceil_div(outputs, kFewTasks), ceil_div(kReduceBlock, terms));
  r->tile = m->is_by_output ? std::clamp<int64_t>(even, 1, 64) : std::min(outputs, kMostWeighted);
  r->tasks = ceil_div(outputs, r->tile);
  cut_terms(r);
}

void weighted_partition(const WeightedMoments* m, int64_t index, int64_t partitions) {
  with_frame<WeightedInputs>(
      *m, [&](WeightedInputs& inputs) { reduce_tasks(&m->reducer, 1, inputs, index, partitions); });
}

void prepare(WeightedGradient* g, const ReduceTable* table, const ConvertKernels* kernels,
             const Operand* arrays, const int* dtypes, bool of_weights, bool skips,
             bool accumulate) {
  g->table = table;
  g->of = of_weights                             ? kMeanByWeights
          : arrays[WeightedGradient::kMean].data ? kSecondByX
                                                 : kMeanByX;
  g->skips = skips, g->accumulate = accumulate;
  plan_axes(&g->operands, kernels, WeightedGradient::kOperands, arrays, dtypes, nullptr);
}

void weighted_gradient_partition(const WeightedGradient* g, int64_t index, int64_t partitions) {
  const int64_t size = g->operands.size();
  with_frame<GradientPieces>(*g, [&](GradientPieces& pieces) {
    pieces.run(begin_of_part(size, index, partitions), begin_of_part(size, index + 1, partitions));
  });
}

}  // namespace fastact
