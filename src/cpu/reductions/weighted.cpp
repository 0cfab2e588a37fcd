// Moments of elements that are weighted or masked, or of a dtype that no accumulator reads
// (integers), and their gradients.
//
// Sums, from which means are made, read elements where they lie, if these are contiguous along the
// terms or the outputs, and weights too, if they are of the same dtype and there is no mask. All
// else is staged in double first, 512 elements at a time, [term][output]: weights that are masked,
// absent or of another dtype; and both where they are read several times (m2), strided, or
// integers, or where NaN are skipped, or where a term of both takes x's place. A weight that the
// mask takes out is 0 there (common/reductions/weights.h).
//
// All is summed in the order of all reductions (reductions/kernels.h), and a block's moments merge
// as moments that skip NaN, which have a count of their own, too. Weights may concentrate anywhere,
// so that a block's first element tells little of its mean: each block is passed over twice, about
// the first element that counts and about the mean.
//
// docs/design/reductions.md, "Weights, masks and integers", has the figures.
#include "cpu/reductions/weighted.h"

#include <algorithm>
#include <cmath>

#include "common/reductions/moments.h"
#include "common/reductions/weights.h"
#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/core/threads.h"
#include "cpu/reductions/rescaled.h"

namespace fastact {
namespace {

constexpr int64_t kLongTerms = 256;     // terms worth reading output by output
constexpr int64_t kFewOutputs = 16;     // that make too short rows
constexpr int64_t kMostWeighted = 256;  // columns at once: 1 KiB of a float32 row

struct WeightedMoments : Reducer {
  enum { kX, kWeights, kWhere, kInputs, kY = kInputs, kOperands };  // as ElementStager has them

  bool is_plain;              // elements count once each, and nothing of the following is there
  StridedOperands operands;   // rows: the outputs; columns: the terms
  bool is_by_output;          // blocks are read output by output
  int pair;                   // what is added of x and weights (common/reductions/pairs.h)
  bool is_readable[kInputs];  // by kernels, where they lie
};

// The gradient of a statistic with respect to x, or to the weights: what is wanted has `to`.
struct WeightedGradient : LabelledArrays {  // all axes are columns
  const ReduceTable* reduce;
  int of;          // WeightedGradientOf
  int pair;        // whose derivatives they are, by x and by the weights
  bool is_direct;  // all arrays of a pair have one dtype, in which they are read and written
  bool of_weights;
  bool skips, accumulate;
  int64_t group_stride[WeightedGradientCall::kArrays];  // in bytes; 0: of what has no groups
};

// Whether the rows of all outputs are contiguous and touch each other.
bool has_dense_rows(const WeightedMoments& m, int k) {
  const OperandAxes &rows = m.operands.rows, &columns = m.operands.columns;
  return m.is_readable[k] && rows.count == 1 && columns.count == 1 &&
         rows.stride[k][0] == m.operands.items[k] &&
         columns.stride[k][0] == rows.size * m.operands.items[k];
}

struct WeightedInputs : BlockSource {
  using M = WeightedMoments;
  static constexpr int64_t kPitch = kLanes * kMostWeighted;
  static constexpr int64_t kBand = 8 * kLanes;  // rows: a lane is read and written once for 8
  const M& m;
  const Reducer& r;
  const StridedOperands& s;
  const WeightingKernels& kernels;
  const bool has_m2, is_far;
  const int sums;  // of a term: of pairs their own, else also the weights'
  ElementStager stager;
  alignas(64) double lanes[2][kPitch];
  alignas(64) double centre[kStaged];  // of each column, repeated for every row that is staged
  double count[kMostWeighted];
  double results[kMostSets][kMostWeighted];
  // Whether weights are read where they lie, and products added without a look at them, which
  // double, waiting for memory, does not gain by; then, whether a weight had a sign.
  bool reads_weights, trusts_weights, has_sign = false;

  // Terms of n neighbouring outputs: each is a row of n contiguous numbers.
  struct Source {
    const char* at;
    int64_t item;
    bool is_staged, is_dense;  // staged: in double; dense: the rows touch each other
    int64_t offsets[kReduceBlock];
  } of_x, of_weights;

  explicit WeightedInputs(const M& moments)
      : m(moments),
        r(moments),
        s(moments.operands),
        kernels(*r.table->weighting),
        has_m2(r.accumulator == &r.table->accumulators[kValidMoments]),
        is_far(s.size() * s.item > kFarReduction),
        sums(m.pair ? 1 : 2),
        stager(s, *r.table, m.pair),
        reads_weights(!m.pair && m.is_readable[M::kWeights] && !s.data[M::kWhere] &&
                      s.dtypes[M::kWeights] == s.dtypes[M::kX]),
        trusts_weights(reads_weights && s.dtypes[M::kX] != kF64) {}

  Results block(int64_t first, int64_t n, int64_t term, int64_t terms) override {
    const int64_t width = m.is_by_output ? 1 : n;
    for (int64_t k = 0; k < n; k += width) columns(first + k, width, term, terms, k);
    return {results[0], nullptr, kMostWeighted};
  }

  // The results of n outputs, to those from `at` on.
  void columns(int64_t first, int64_t n, int64_t term, int64_t terms, int64_t at) {
    if (!has_m2) {
      pass(kProducts, first, n, term, terms);
      if (trusts_weights && !are_right(n)) {
        reads_weights = trusts_weights = false;  // from now on: others are likely to come
        pass(kProducts, first, n, term, terms);
      }
      for (int k = 0; k < sums; ++k) std::copy_n(lanes[k], n, results[k] + at);
      return;
    }
    find_centres(first, n, term, terms);
    pass(kAboutCentre, first, n, term, terms);
    for (int64_t c = 0; c < n; ++c) {
      count[c] = lanes[1][c];
      centre[c] = count[c] > 0 ? finite_or_zero(centre[c] + lanes[0][c] / count[c]) : 0.0;
    }
    repeat_centres(n);
    pass(kSquares, first, n, term, terms);
    for (int64_t c = 0; c < n; ++c) {
      double mean = 0, m2 = 0;
      if (count[c] != 0) moments_of_sums(centre[c], lanes[0][c], lanes[1][c], count[c], &mean, &m2);
      results[0][at + c] = mean, results[1][at + c] = m2, results[2][at + c] = count[c] + 0.0;
    }
  }

  // Whether every element of n columns counts, or their sums are as if it did. An element of weight
  // 0 makes a sum NaN or -0, or changes nothing.
  bool are_right(int64_t n) const {
    uint64_t wrong = has_sign;
#pragma omp simd reduction(| : wrong)
    for (int64_t c = 0; c < n; ++c) {
      const double sum = lanes[0][c], weight = lanes[1][c], zero = sum == 0 ? sum : 0.0;
      wrong |= bit_cast<uint64_t>(sum - sum) | bit_cast<uint64_t>(weight - weight) |
               bit_cast<uint64_t>(zero);
    }
    return !wrong;
  }

  // The first element that counts and is finite, or 0.
  void find_centres(int64_t first, int64_t n, int64_t term, int64_t terms) {
    std::fill_n(centre, n, std::nan(""));
    int64_t missing = n;
    for (int64_t done = 0, staged; done < terms && missing > 0; done += staged) {
      staged = std::min(rows_at_once(n), terms - done);
      stager.stage(first, n, term + done, staged);
      for (int64_t i = 0; i < staged * n && missing > 0; ++i) {
        const int64_t c = n == 1 ? 0 : i % n;
        if (centre[c] == centre[c] || !(stager.weights[i] > 0) || !is_finite(stager.x[i])) continue;
        centre[c] = stager.x[i];
        --missing;
      }
    }
    for (int64_t c = 0; c < n; ++c) centre[c] = finite_or_zero(centre[c]);
    repeat_centres(n);
  }

  void repeat_centres(int64_t n) {
    for (int64_t done = n; done < rows_at_once(n) * n; done *= 2)
      std::copy(centre, centre + done, centre + done);
  }

  // lanes OUT: the sums of `what`.
  void pass(WeightedTerms what, int64_t first, int64_t n, int64_t term, int64_t terms) {
    has_sign = false;
    for (int64_t done = 0, found; done < terms; done += found) {
      const int64_t phase = done % kLanes, left = terms - done;
      found =
          find_terms(what, first, n, term + done, phase ? std::min(left, kLanes - phase) : left);
      add(what, n, done, found);
    }
    for (int k = 0; k < sums && terms > 1; ++k) r.table->fold(lanes[k], terms, n);
  }

  // Finds where the next terms are, and how many of at most `terms`: all, or whole rounds of the
  // lanes, or a part of a round.
  int64_t find_terms(WeightedTerms what, int64_t first, int64_t n, int64_t term, int64_t terms) {
    const int64_t staged = std::min(rows_at_once(n), terms);
    const int64_t most = reads_weights ? terms : staged;
    const bool is_x_read = what == kProducts && !r.skips && !m.pair;
    int64_t found = is_x_read ? find_in_place(M::kX, first, n, term, most, &of_x) : 0;
    if (found == 0) {
      stager.stage(first, n, term, staged);
      set_staged(stager.x, &of_x);
      set_staged(stager.weights, &of_weights);
      return staged;
    }
    const int64_t weighed =
        reads_weights ? find_in_place(M::kWeights, first, n, term, found, &of_weights) : 0;
    if (weighed > 0) return weighed;
    found = std::min(staged, found);
    stager.read_weights(first, n, term, found);
    set_staged(stager.weights, &of_weights);
    return found;
  }

  static void set_staged(const double* from, Source* to) {
    to->at = reinterpret_cast<const char*>(from), to->item = sizeof(double);
    to->is_staged = to->is_dense = true;
  }

  // How many terms of operand k can be read where they lie, as find_terms says; 0: none.
  int64_t find_in_place(int k, int64_t first, int64_t n, int64_t term, int64_t terms,
                        Source* to) const {
    if (!m.is_readable[k]) return 0;
    const int64_t item = to->item = s.items[k];
    bool is_row = true;
    char* begin = nullptr;
    for_pieces(s.rows, k, s.data[k], first, n, [&](char* at, int64_t stride, int64_t) {
      is_row &= !begin && (n == 1 || stride == item);
      begin = at;
    });
    if (!is_row) return 0;
    int64_t dense = -1;
    for_pieces(s.columns, k, begin, term, terms, [&](char* at, int64_t stride, int64_t size) {
      if (dense >= 0) return;
      dense = stride == n * item || size == 1 ? size : 0;
      to->at = at;
    });
    to->is_staged = false, to->is_dense = dense == terms || dense >= kLanes;
    if (to->is_dense) return dense == terms ? terms : dense / kLanes * kLanes;
    if (n == 1) return 0;
    to->at = begin;
    for (int64_t i = 0; i < terms; ++i) to->offsets[i] = s.columns.offset(k, term + i);
    return terms;
  }

  // The rows for n columns: a power of two, so that they are whole rounds of the lanes, or parts of
  // one.
  static int64_t rows_at_once(int64_t n) {
    int64_t rows = kStaged;
    while (rows * n > kStaged) rows /= 2;
    return rows;
  }

  // Terms done .. done + terms of n columns onto lanes. Where they are dense, kLanes of them are
  // one row that holds every lane.
  void add(WeightedTerms what, int64_t n, int64_t done, int64_t terms) {
    const AddWeighted kernel = of_x.is_staged ? kernels.add_staged[what][r.skips]
                                              : kernels.add[s.dtypes[M::kX]][of_weights.is_staged];
    const bool are_joined = of_x.is_dense && of_weights.is_dense;
    const int64_t joined = are_joined ? kLanes : 1, phase = done % kLanes;
    for (Source* of : {&of_x, &of_weights})
      for (int64_t i = 0; of->is_dense && i * joined < terms; ++i)
        of->offsets[i] = i * joined * n * of->item;
    const auto add_rows = [&](int64_t row, int64_t step, int64_t rows, int64_t width,
                              int64_t lane) {
      const auto rows_of = [&](const Source& of) -> WeightedRows {
        const int64_t row_bytes = kLanes * n * of.item;  // long rows are read strip by strip
        const int64_t ahead = are_joined  ? row_bytes < kAhead ? 2 * kAhead : kAhead / 4
                              : terms > 1 ? of.offsets[1] - of.offsets[0]
                                          : 0;
        return {of.at, of.offsets + row, is_far && !of.is_staged ? ahead : 0};
      };
      double *const first = lanes[0] + lane * n, *const second = lanes[1] + lane * n;
      const bool fresh = done + row * joined < kLanes;
      if (m.pair)
        return r.kernels->add_rows(of_x.at, of_x.offsets + row, step, rows, width * n, nullptr,
                                   first, 0, fresh, 0);
      has_sign |= kernel(rows_of(of_x), rows_of(of_weights), step, rows, width * n,
                         what == kProducts ? nullptr : centre, first, second, fresh);
    };
    const int64_t whole = are_joined ? terms / kLanes : terms, band = are_joined ? whole : kBand;
    for (int64_t row = 0; row < whole; row += band) {
      const int64_t rows = std::min(band, whole - row), every = are_joined ? 1 : kLanes;
      for (int64_t i = 0; i < std::min(rows, every); ++i)
        add_rows(row + i, every, are_joined ? rows : ceil_div(rows - i, kLanes), joined,
                 (phase + i) % kLanes);
    }
    if (are_joined && terms % kLanes) add_rows(whole, 1, 1, terms % kLanes, phase);
  }
};

struct GradientPieces {
  using G = WeightedGradientCall;
  const WeightedGradient& g;
  const StridedOperands& s;
  ChunkReader reader;
  alignas(64) double values[G::kArrays][kStaged];
  alignas(64) char stage[kStaged * sizeof(double)];
  int64_t labels[kStaged];
  const PairGradients pair_kernel;  // null: of no pair

  explicit GradientPieces(const WeightedGradient& gradient)
      : g(gradient),
        s(gradient.operands),
        reader(gradient.operands),
        pair_kernel(g.reduce->weighting
                        ->pair_gradients[g.pair][g.is_direct ? s.dtypes[G::kX] : int(kF64)]) {
    for (double* of : values) std::fill_n(of, kStaged, 1.0);  // what is not read
    std::fill_n(values[G::kOfMean], kStaged, -0.0);
  }

  bool is_read(int k) const {
    const bool is_result = k == G::kTo || k == G::kToWeights;
    return s.data[k] && (!is_result || g.accumulate);
  }

  void run(int64_t first, int64_t end) {
    const WeightedGradientKernel kernel = g.reduce->weighting->gradient[g.of][g.accumulate];
    for (int64_t n; first < end; first += n) {
      n = std::min(kStaged, end - first);
      reader.go(0, first, n);
      if (g.has_groups()) read_labels(g, 0, first, n, labels);
      for (int k = 0; k < G::kArrays; ++k)
        if (is_read(k) && !g.is_direct) read(k, first, n, values[k]);
      if (g.pair) {
        run_pair(n);
        continue;
      }
      choose(n);
      kernel(values[G::kDy], values[G::kSlope], values[G::kX], values[G::kWeights],
             values[G::kMean], values[G::kOfMean], values[G::kTo], n);
      write(G::kTo, values[G::kTo], n);
    }
  }

  void run_pair(int64_t n) {
    const auto given = [&](G::Array k) {
      char* const buffer = reinterpret_cast<char*>(values[k]);
      return g.is_direct ? reader.load_stored(k, buffer) : buffer;
    };
    const G::Array by_x = g.of_weights ? G::kToWeights : G::kTo;
    const G::Array by_t = g.of_weights ? G::kTo : G::kToWeights;
    const auto target = [&](G::Array k, double* buffer) {
      char* const at = reinterpret_cast<char*>(buffer);
      return g.is_direct && s.data[k] ? reader.target(k, at, g.accumulate) : at;
    };
    double *const first = values[G::kSlope], *const second = values[G::kMean];  // a pair has none
    char *const to_x = target(by_x, first), *const to_t = target(by_t, second);
    pair_kernel(given(G::kDy), given(G::kX), given(G::kWeights), to_x, to_t, n);
    store(by_x, to_x, first, n);
    store(by_t, to_t, second, n);
  }

  void store(G::Array k, const char* at, double* from, int64_t n) {
    if (!s.data[k]) return;
    if (g.is_direct) return reader.finish(k, at, reinterpret_cast<char*>(from), g.accumulate);
    for (int64_t i = 0; g.accumulate && i < n; ++i) from[i] += values[k][i];
    write(k, from, n);
  }

  void choose(int64_t n) {
    const bool is_masked = s.data[G::kWhere], is_weighted = is_read(G::kWeights);
    if (!is_masked && !is_weighted && !g.skips && !g.has_groups()) return;
    if (!is_weighted) std::fill_n(values[G::kWeights], n, 1.0);
    const WeightingKernels& kernels = *g.reduce->weighting;
    if (is_masked) kernels.mask(values[G::kWeights], values[G::kWhere], n);
    for (int64_t i = 0; g.has_groups() && i < n; ++i)
      if (labels[i] < 0) values[G::kWeights][i] = 0;
    kernels.choose(values[G::kX], values[G::kWeights], g.skips, n);
  }

  void read(int k, int64_t first, int64_t n, double* to) const {
    const int64_t* label = labels;
    for_pieces(s.columns, k, s.data[k], first, n, [&](char* from, int64_t stride, int64_t size) {
      if (const int64_t step = g.group_stride[k])
        for (int64_t i = 0; i < size; ++i)
          to[i] = number_at(s.dtypes[k], from + i * stride + std::max<int64_t>(label[i], 0) * step);
      else
        widen(*g.reduce, s.dtypes[k], from, stride, size, to);
      to += size, label += size;
    });
  }

  void write(G::Array k, const double* from, int64_t n) {
    char* const to = reader.stored(k);
    g.reduce->finish[s.dtypes[k]](from, nullptr, to ? to : stage, n);
    if (!to) reader.scatter(k, stage);
  }
};

// The moments of an output whose squares or sums left the range of double (rescaled.h).
bool rescale_weighted(const Reducer& reducer, int64_t output, Rescaled* to) {
  static_assert(kRescaledTerms <= kStaged);
  const WeightedMoments& m = static_cast<const WeightedMoments&>(reducer);
  ElementStager stager(m.operands, *m.table, m.pair);
  return rescale(
      m.terms.size, true,
      [&](int64_t term, int64_t n, double* x, double* weights) {
        stager.stage(output, 1, term, n);
        std::copy_n(stager.x, n, x);
        m.pair ? std::fill_n(weights, n, 1.0) : std::copy_n(stager.weights, n, weights);
        m.table->weighting->choose(x, weights, m.skips, n);
      },
      to);
}

void prepare(WeightedMoments* m, const KernelTable& table, const MomentsCall& call) {
  using M = WeightedMoments;
  m->is_plain = !call.is_weighted() && call.x().dtype <= kF64;
  if (m->is_plain) return prepare(static_cast<Reducer*>(m), table, call);
  const ArrayArgument& model = call.model();
  const ArrayArgument given[M::kOperands] = {call.inputs[M::kX], call.inputs[M::kWeights],
                                             call.inputs[M::kWhere], model};
  StridedOperands& s = m->operands;
  plan_axes(&s, table.convert, M::kOperands, given, call.axes);
  for (int k = 0; k < M::kInputs; ++k) m->is_readable[k] = is_readable(s, k);

  m->pair = call.pair;
  Reducer* r = m;
  const bool has_m2 = call.of_m2 != kNothing && call.of_m2 != kTotal;
  const int of_sums = call.pair ? int(kItself) : kValidMean;
  set_accumulator(r, table.reduce, has_m2 ? kValidMoments : of_sums, kF64);
  const bool has_doubles =
      s.dtypes[M::kX] == kF64 || (s.data[M::kWeights] && s.dtypes[M::kWeights] == kF64);
  r->rescale = has_doubles ? rescale_weighted : nullptr;
  for (int i = 0; i < s.rows.count; ++i)
    r->outputs.append(s.rows.length[i], 0, s.rows.stride[M::kY][i]);
  r->terms.size = s.columns.size;
  set_output(r, s.data[M::kY], model.dtype, is_aligned(model, item_size(model.dtype)));
  set_moments(r, call);
  const int64_t outputs = r->outputs.size, terms = r->terms.size;
  const bool are_dense =
      has_dense_rows(*m, M::kX) && (!s.data[M::kWeights] || has_dense_rows(*m, M::kWeights));
  m->is_by_output = outputs == 1 || (terms >= kLongTerms &&
                                     ((outputs < kFewOutputs && !are_dense) ||
                                      last_step(s.columns, M::kX) <= last_step(s.rows, M::kX)));
  r->layout = m->is_by_output ? Reducer::kNarrow : Reducer::kColumns;
  r->row = outputs;
  const int64_t even = std::max(ceil_div(outputs, kFewTasks), ceil_div(kReduceBlock, terms));
  const int64_t most = terms > kReduceBlock ? 1 : 64;  // blocks of a row one after the other
  set_tile(r,
           m->is_by_output ? std::clamp<int64_t>(even, 1, most) : std::min(outputs, kMostWeighted));
  cut_terms(r);
}

void moments_partition(const WeightedMoments* m, int64_t index, int64_t partitions) {
  if (m->is_plain) return reduce_partition(m, index, partitions);
  with_frame<WeightedInputs>(
      *m, [&](WeightedInputs& inputs) { reduce_tasks(m, 1, inputs, index, partitions); });
}

void prepare(WeightedGradient* g, const KernelTable& table, const WeightedGradientCall& call) {
  using G = WeightedGradientCall;
  g->table = table.grouped, g->reduce = table.reduce;
  g->labels = G::kArrays;
  g->pair = call.pair, g->of_weights = call.of_weights;
  const ArrayArgument &x = call.arrays[G::kX], &other = call.arrays[G::kToWeights];
  const auto is_xs = [&](const ArrayArgument& a) { return !a.shape || a.dtype == x.dtype; };
  const bool are_alike = is_xs(call.arrays[G::kTo]) && is_xs(call.arrays[G::kDy]) &&
                         is_xs(call.arrays[G::kWeights]) && is_xs(other);
  // A float32 that is added to would be rounded twice.
  g->is_direct = g->pair && are_alike && !(x.dtype == kF32 && call.accumulate);
  g->of = call.pair                    ? kTermByX + kItself
          : call.of_weights            ? kMeanByWeights
          : call.arrays[G::kMean].data ? kBothByX
                                       : kTermByX + call.term;
  g->skips = call.skips, g->accumulate = call.accumulate;
  g->all_groups = call.labels.shape ? groups_of(call.arrays[G::kDy]) : -1;
  ArrayArgument given[G::kArrays + 1];
  int64_t strides[G::kArrays][kMaxAxes];
  std::copy_n(call.arrays, G::kArrays, given);
  given[G::kArrays] = call.labels;
  std::fill_n(g->group_stride, G::kArrays, 0);
  for (int k : {G::kDy, G::kSlope, G::kMean, G::kOfMean})
    if (g->all_groups >= 0 && given[k].shape)
      g->group_stride[k] = take_groups(&given[k], strides[k]);
  plan_axes(&g->operands, table.convert, G::kArrays + 1, given, nullptr);
  char** const data = g->operands.data;
  for (int k : {G::kDy, G::kSlope, G::kMean, G::kOfMean})
    if (g->all_groups == 0) data[k] = nullptr;  // it has no numbers
  // Nobody reads what a gradient has no use for.
  if (g->pair) data[G::kSlope] = nullptr;
  if (g->of == kMeanByWeights) data[G::kWeights] = nullptr;
  if (!g->skips && !g->pair && g->of == kTermByX + kItself) data[G::kX] = nullptr;
}

void weighted_gradient_partition(const WeightedGradient* g, int64_t index, int64_t partitions) {
  const int64_t size = g->operands.size();
  with_frame<GradientPieces>(*g, [&](GradientPieces& pieces) {
    pieces.run(begin_of_part(size, index, partitions), begin_of_part(size, index + 1, partitions));
  });
}

}  // namespace

void plan_axes(StridedOperands* s, const ConvertKernels* kernels, int count,
               const ArrayArgument* given, const bool* reduced) {
  Operand arrays[kReaderOperands];
  int dtypes[kReaderOperands];
  for (int k = 0; k < count; ++k) arrays[k] = given[k], dtypes[k] = given[k].dtype;
  plan_rows(s, kernels, count, arrays, dtypes, reduced, false, true);
}

int64_t take_groups(ArrayArgument* a, int64_t* strides) {
  for (int i = 0; i < a->ndim; ++i) strides[i] = byte_stride(*a, i, item_size(a->dtype));
  a->ndim -= 1, a->strides = strides, a->stride_unit = 1;
  return strides[a->ndim];
}

void read_labels(const LabelledArrays& arrays, int64_t row, int64_t first, int64_t n,
                 int64_t* labels) {
  const StridedOperands& s = arrays.operands;
  const int k = arrays.labels;
  const auto find = arrays.table->find_lanes[s.dtypes[k] == kI64];
  for_pieces(s.columns, k, s.row(k, row), first, n, [&](char* from, int64_t stride, int64_t size) {
    if (find(from, stride, size, arrays.all_groups, 1, 0, 0, -1, labels))
      note(arrays.has_wrong_label);
    labels += size;
  });
}

bool are_shared(const OperandAxes& rows, int k) {
  return std::all_of(rows.stride[k], rows.stride[k] + rows.count,
                     [](int64_t stride) { return stride == 0; });
}

void check_labels_partition(const LabelledArrays* arrays, int64_t index, int64_t partitions) {
  const OperandAxes &rows = arrays->operands.rows, &columns = arrays->operands.columns;
  const int64_t size = (are_shared(rows, arrays->labels) ? 1 : rows.size) * columns.size;
  const int64_t end = begin_of_part(size, index + 1, partitions);
  int64_t labels[kStaged];
  for (int64_t first = begin_of_part(size, index, partitions), n; first < end; first += n) {
    const int64_t column = first % columns.size;
    n = std::min({kStaged, end - first, columns.size - column});
    read_labels(*arrays, first / columns.size, column, n, labels);
  }
}

bool is_aligned(const StridedOperands& s, int k) {
  auto bits = reinterpret_cast<uintptr_t>(s.data[k]);
  for (const OperandAxes* axes : {&s.rows, &s.columns})
    for (int i = 0; i < axes->count; ++i) bits |= uintptr_t(axes->stride[k][i]);
  return bits % uintptr_t(s.items[k]) == 0;
}

bool is_readable(const StridedOperands& s, int k) {
  return s.data[k] && s.dtypes[k] < kDTypes && is_aligned(s, k);
}

void ElementStager::read(int k, int64_t first, int64_t n, int64_t term, int64_t terms,
                         double* to) const {
  for_tile(s, k, first, n, term, terms,
           [&](const char* from, int64_t stride, int64_t done, int64_t size) {
             widen(table, s.dtypes[k], from, stride, size, to + done);
           });
}

void ElementStager::read_weights(int64_t first, int64_t n, int64_t term, int64_t terms) {
  held_first = -1;  // x is not staged beside them
  if (s.data[kWeights])
    read(kWeights, first, n, term, terms, weights);
  else
    std::fill_n(weights, terms * n, 1.0);
  if (!s.data[kWhere]) return;
  read(kWhere, first, n, term, terms, mask);
  table.weighting->mask(weights, mask, terms * n);
}

void ElementStager::stage(int64_t first, int64_t n, int64_t term, int64_t terms) {
  if (first == held_first && term == held_term && terms == held_terms) return;
  read(kX, first, n, term, terms, x);
  read_weights(first, n, term, terms);
  held_first = first, held_term = term, held_terms = terms;
  if (!pair) return;
  const bool is_narrow = s.dtypes[kX] < kF64 && s.dtypes[kWeights] < kF64;
  table.weighting->pair_terms[pair][is_narrow](x, weights, terms * n);
}

int64_t moments_workspace(const MomentsCall& call, const KernelTable* kernels) {
  return planned_workspace<WeightedMoments>(call, call.x(), kernels);
}

bool run_moments(const MomentsCall& call, Execution* execution, int* is_degenerate) {
  reduce_planned(moments_partition, call, call.x(), execution, is_degenerate);
  return false;
}

bool run_weighted_gradient(const WeightedGradientCall& call, const KernelTable* kernels) {
  if (is_empty(call.arrays[0])) return false;
  const int threads = resolve_threads(size_of(call.arrays[0]));
  WeightedGradient g;
  prepare(&g, *kernels, call);
  if (g.has_groups()) run_partitions<LabelledArrays>(threads, check_labels_partition, &g);
  if (!g.has_wrong_label) run_partitions(threads, weighted_gradient_partition, &g);
  return g.has_wrong_label;
}

}  // namespace fastact
