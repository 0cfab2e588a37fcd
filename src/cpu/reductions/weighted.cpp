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
#include <cstring>

#include "common/reductions/moments.h"
#include "common/reductions/weights.h"
#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/core/threads.h"
#include "cpu/reductions/rescaled.h"

namespace fastact {
namespace {

constexpr int64_t kStaged = 512;             // elements at a time: x, weights, mask and centre fill
                                             // 16 KiB, and all that a gradient is made of 40
constexpr int64_t kLongTerms = 256;          // terms worth reading output by output
constexpr int64_t kFewOutputs = 16;          // that make too short rows
constexpr int64_t kHalf = sizeof(uint16_t);  // bytes of a number of 16 bits
constexpr int64_t kMostWeighted = 256;       // columns at once: 1 KiB of a float32 row

struct WeightedMoments : Reducer {
  enum { kX, kWeights, kWhere, kInputs, kY = kInputs, kOperands };

  StridedOperands operands;   // rows: the outputs; columns: the terms
  bool is_by_output;          // blocks are read output by output
  int pair;                   // what is added of x and weights (common/reductions/pairs.h)
  bool is_readable[kInputs];  // by kernels, where they lie
};

// The gradient of a statistic with respect to x, or to the weights: what is wanted has `to`.
struct WeightedGradient {
  const ReduceTable* table;
  StridedOperands operands;  // the call's arrays, and the labels; all axes are columns
  int of;                    // WeightedGradientOf
  int pair;                  // whose derivatives they are, by x and by the weights
  int pair_dtype;            // in which its kernel has all arrays: of 16 bits, or double
  bool of_weights;
  bool skips, accumulate;
  int64_t groups;                                       // -1: not by groups
  int64_t group_stride[WeightedGradientCall::kArrays];  // in bytes; 0: of what has no groups
  int* has_wrong_label;                                 // OUT
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
  alignas(64) double x[kStaged];
  alignas(64) double weights[kStaged];
  alignas(64) double mask[kStaged];
  alignas(64) double lanes[2][kPitch];
  alignas(64) double centre[kStaged];  // of each column, repeated for every row that is staged
  double count[kMostWeighted];
  double results[kMostSets][kMostWeighted];
  int64_t staged_first, staged_term, staged_terms;
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
        staged_first(-1),
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
      stage(first, n, term + done, staged);
      for (int64_t i = 0; i < staged * n && missing > 0; ++i) {
        const int64_t c = n == 1 ? 0 : i % n;
        if (centre[c] == centre[c] || !(weights[i] > 0) || !is_finite(x[i])) continue;
        centre[c] = x[i];
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
      stage(first, n, term, staged);
      set_staged(x, &of_x);
      set_staged(weights, &of_weights);
      return staged;
    }
    const int64_t weighed =
        reads_weights ? find_in_place(M::kWeights, first, n, term, found, &of_weights) : 0;
    if (weighed > 0) return weighed;
    found = std::min(staged, found);
    stage_weights(first, n, term, found);
    staged_first = -1;  // x is not staged beside them
    set_staged(weights, &of_weights);
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

  void stage(int64_t first, int64_t n, int64_t term, int64_t terms) {
    if (first == staged_first && term == staged_term && terms == staged_terms) return;
    staged_first = first, staged_term = term, staged_terms = terms;
    read(M::kX, first, n, term, terms, x);
    if (!m.pair) return stage_weights(first, n, term, terms);
    read(M::kWeights, first, n, term, terms, weights);
    kernels.pair_terms[m.pair](x, weights, terms * n);
  }

  void stage_weights(int64_t first, int64_t n, int64_t term, int64_t terms) {
    if (s.data[M::kWeights])
      read(M::kWeights, first, n, term, terms, weights);
    else
      std::fill_n(weights, terms * n, 1.0);
    if (!s.data[M::kWhere]) return;
    read(M::kWhere, first, n, term, terms, mask);
    kernels.mask(weights, mask, terms * n);
  }

  void read(int k, int64_t first, int64_t n, int64_t term, int64_t terms, double* to) const {
    read_terms(s, *r.table, k, first, n, term, terms, to);
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
                                   first, 0, fresh);
      has_sign |= kernel(rows_of(of_x), rows_of(of_weights), step, rows, width * n,
                         what == kProducts ? nullptr : centre, first, second, fresh);
    };
    if (are_joined) {
      const int64_t whole = terms / kLanes, rest = terms % kLanes;
      if (whole) add_rows(0, 1, whole, kLanes, 0);
      if (rest) add_rows(whole, 1, 1, rest, phase);
      return;
    }
    for (int64_t row = 0; row < terms; row += kBand) {
      const int64_t rows = std::min(kBand, terms - row);
      for (int64_t lane = 0; lane < std::min<int64_t>(rows, kLanes); ++lane)
        add_rows(row + lane, kLanes, ceil_div(rows - lane, kLanes), 1, (phase + lane) % kLanes);
    }
  }
};

struct GradientPieces {
  using G = WeightedGradientCall;
  const WeightedGradient& g;
  const StridedOperands& s;
  alignas(64) double values[G::kArrays][kStaged];
  alignas(64) char stage[kStaged * sizeof(double)];
  int64_t labels[kStaged];
  const PairGradients pair_kernel;  // null: of no pair
  const bool is_half;               // of a pair of 16 bits, which are computed in float
  const bool has_groups;

  explicit GradientPieces(const WeightedGradient& gradient)
      : g(gradient),
        s(gradient.operands),
        pair_kernel(g.table->weighting->pair_gradients[g.pair][g.pair_dtype]),
        is_half(item_size(g.pair_dtype) == 2),
        has_groups(g.groups >= 0) {
    for (double* of : values) std::fill_n(of, kStaged, 1.0);  // what is not read
  }

  bool is_read(int k) const {
    if (k == G::kTo || k == G::kToWeights) return g.accumulate && s.data[k];
    if (k == G::kX) return g.skips || g.pair || g.of != kTermByX + kItself;
    if (k == G::kWeights && g.of == kMeanByWeights) return false;
    if (k == G::kSlope && g.pair) return false;
    return s.data[k];
  }

  void run(int64_t first, int64_t end) {
    const WeightedGradientKernel kernel = g.table->weighting->gradient[g.of][g.accumulate];
    for (int64_t n; first < end; first += n) {
      n = std::min(kStaged, end - first);
      if (has_groups) read_labels(first, n);
      for (int k = 0; k < G::kArrays; ++k)
        if (is_read(k)) is_half ? copy(k, first, n) : read(k, first, n, values[k]);
      if (g.pair) {
        run_pair(first, n);
        continue;
      }
      choose(n);
      kernel(values[G::kDy], values[G::kSlope], values[G::kX], values[G::kWeights],
             values[G::kMean], values[G::kOfMean], values[G::kTo], n);
      write(G::kTo, first, n);
    }
  }

  void run_pair(int64_t first, int64_t n) {
    const auto bytes = [&](G::Array k) { return reinterpret_cast<char*>(values[k]); };
    char *const to = bytes(G::kTo), *const other = bytes(G::kToWeights);
    pair_kernel(bytes(G::kDy), bytes(G::kX), bytes(G::kWeights), g.of_weights ? other : to,
                g.of_weights ? to : other, g.accumulate, n);
    for (G::Array k : {G::kTo, G::kToWeights})
      if (s.data[k]) is_half ? copy_back(k, first, n) : write(k, first, n);
  }

  // Elements of 16 bits as they are, to values[k] and from there.
  void copy(int k, int64_t first, int64_t n) {
    uint16_t* to = reinterpret_cast<uint16_t*>(values[k]);
    for_pieces(s.columns, k, s.data[k], first, n, [&](char* from, int64_t stride, int64_t size) {
      memcpy(to, from, stride == kHalf ? size * kHalf : kHalf);
      if (stride == 0)
        std::fill_n(to + 1, size - 1, *to);
      else if (stride != kHalf)
        gather_for(kHalf)(reinterpret_cast<char*>(to), from, stride, size);
      to += size;
    });
  }
  void copy_back(int k, int64_t first, int64_t n) {
    const char* from = reinterpret_cast<const char*>(values[k]);
    for_pieces(s.columns, k, s.data[k], first, n, [&](char* to, int64_t stride, int64_t size) {
      if (stride == kHalf)
        memcpy(to, from, size * kHalf);
      else
        scatter_for(kHalf)(to, from, stride, size);
      from += size * kHalf;
    });
  }

  void choose(int64_t n) {
    const bool is_masked = s.data[G::kWhere], is_weighted = is_read(G::kWeights);
    if (!is_masked && !is_weighted && !g.skips && !has_groups) return;
    if (!is_weighted || g.of == kMeanByWeights) std::fill_n(values[G::kWeights], n, 1.0);
    const WeightingKernels& kernels = *g.table->weighting;
    if (is_masked) kernels.mask(values[G::kWeights], values[G::kWhere], n);
    for (int64_t i = 0; has_groups && i < n; ++i)
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
        widen(*g.table, s.dtypes[k], from, stride, size, to);
      to += size, label += size;
    });
  }

  // Returns whether one is wrong; that one is none, also where another thread wrote it meanwhile.
  bool read_labels(int64_t first, int64_t n) {
    int64_t* to = labels;
    uint64_t largest = 0;
    for_pieces(s.columns, G::kArrays, s.data[G::kArrays], first, n,
               [&](const char* from, int64_t stride, int64_t size) {
                 for (int64_t i = 0; i < size; ++i, from += stride)
                   *to++ = label_at(s.dtypes[G::kArrays], from);
               });
    for (int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, uint64_t(labels[i]) + 1);
      if (labels[i] >= g.groups) labels[i] = -1;
    }
    return largest > uint64_t(g.groups);
  }

  void write(G::Array k, int64_t first, int64_t n) {
    const double* from = values[k];
    const int64_t item = s.items[k];
    const auto finish = g.table->finish[s.dtypes[k]];
    for_pieces(s.columns, k, s.data[k], first, n, [&](char* to, int64_t stride, int64_t size) {
      const bool is_row = stride == item && reinterpret_cast<uintptr_t>(to) % item == 0;
      finish(from, nullptr, is_row ? to : stage, size);
      if (!is_row) scatter_for(item)(to, stage, stride, size);
      from += size;
    });
  }
};

// The moments of an output whose squares or sums left the range of double (rescaled.h).
bool rescale_weighted(const Reducer& reducer, int64_t output, Rescaled* to) {
  using M = WeightedMoments;
  const M& m = static_cast<const M&>(reducer);
  const StridedOperands& s = m.operands;
  double mask[kRescaledTerms];
  return rescale(
      s.columns.size, true,
      [&](int64_t term, int64_t n, double* x, double* weights) {
        const auto read = [&](int k, double* numbers) {
          if (!s.data[k]) return void(std::fill_n(numbers, n, 1.0));
          read_terms(s, *m.table, k, output, 1, term, n, numbers);
        };
        read(M::kX, x), read(M::kWeights, weights), read(M::kWhere, mask);
        if (m.pair) {
          m.table->weighting->pair_terms[m.pair](x, weights, n);
          std::fill_n(weights, n, 1.0);
        }
        for (int64_t i = 0; i < n; ++i) {
          weights[i] = weight_of(x[i], weights[i], mask[i] != 0, m.skips);
          if (weights[i] == 0) x[i] = 0;
        }
      },
      to);
}

void prepare(WeightedMoments* m, const ReduceTable* table, const ConvertKernels* kernels,
             const MomentsCall& call) {
  using M = WeightedMoments;
  const ArrayArgument& model = call.model();
  const ArrayArgument given[M::kOperands] = {call.inputs[M::kX], call.inputs[M::kWeights],
                                             call.inputs[M::kWhere], model};
  StridedOperands& s = m->operands;
  plan_axes(&s, kernels, M::kOperands, given, call.axes);
  for (int k = 0; k < M::kInputs; ++k) m->is_readable[k] = is_readable(s, k);

  m->pair = call.pair;
  Reducer* r = m;
  const bool has_m2 = call.of_m2 != kNothing && call.of_m2 != kTotal;
  const int of_sums = call.pair ? int(kItself) : kValidMean;
  set_accumulator(r, table, has_m2 ? kValidMoments : of_sums, kF64);
  const bool has_doubles =
      s.dtypes[M::kX] == kF64 || (s.data[M::kWeights] && s.dtypes[M::kWeights] == kF64);
  r->rescale = has_doubles ? rescale_weighted : nullptr;
  r->outputs = r->terms = Axes();
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
  r->tile = m->is_by_output ? std::clamp<int64_t>(even, 1, most) : std::min(outputs, kMostWeighted);
  r->tasks = ceil_div(outputs, r->tile);
  cut_terms(r);
}

void weighted_partition(const WeightedMoments* m, int64_t index, int64_t partitions) {
  with_frame<WeightedInputs>(
      *m, [&](WeightedInputs& inputs) { reduce_tasks(m, 1, inputs, index, partitions); });
}

void prepare(WeightedGradient* g, const ReduceTable* table, const ConvertKernels* kernels,
             const WeightedGradientCall& call) {
  using G = WeightedGradientCall;
  g->table = table;
  g->pair = call.pair, g->of_weights = call.of_weights;
  const ArrayArgument &x = call.arrays[G::kX], &other = call.arrays[G::kToWeights];
  const auto is_xs = [&](const ArrayArgument& a) { return !a.shape || a.dtype == x.dtype; };
  const bool are_alike = is_xs(call.arrays[G::kTo]) && is_xs(call.arrays[G::kDy]) &&
                         is_xs(call.arrays[G::kWeights]) && is_xs(other);
  g->pair_dtype = g->pair && are_alike && x.dtype < kF32 ? x.dtype : int(kF64);
  g->of = call.pair                      ? kTermByX + kItself
          : call.of_weights              ? kMeanByWeights
          : call.arrays[G::kOfMean].data ? kBothByX
          : call.arrays[G::kMean].data   ? kSecondByX
                                         : kTermByX + call.term;
  g->skips = call.skips, g->accumulate = call.accumulate;
  g->groups = call.labels.shape ? groups_of(call.arrays[G::kDy]) : -1;
  ArrayArgument given[G::kArrays + 1];
  int64_t strides[G::kArrays][kMaxAxes];
  std::copy_n(call.arrays, G::kArrays, given);
  given[G::kArrays] = call.labels;
  std::fill_n(g->group_stride, G::kArrays, 0);
  for (int k : {G::kDy, G::kSlope, G::kMean, G::kOfMean})
    if (g->groups >= 0 && given[k].shape) g->group_stride[k] = take_groups(&given[k], strides[k]);
  plan_axes(&g->operands, kernels, G::kArrays + 1, given, nullptr);
  for (int k : {G::kDy, G::kSlope, G::kMean, G::kOfMean})
    if (g->groups == 0) g->operands.data[k] = nullptr;  // it has no numbers
}

void gradient_labels_partition(const WeightedGradient* g, int64_t index, int64_t partitions) {
  const int64_t size = g->operands.size();
  const int64_t end = begin_of_part(size, index + 1, partitions);
  with_frame<GradientPieces>(*g, [&](GradientPieces& pieces) {
    for (int64_t first = begin_of_part(size, index, partitions), n; first < end; first += n) {
      n = std::min(kStaged, end - first);
      if (pieces.read_labels(first, n)) __atomic_store_n(g->has_wrong_label, 1, __ATOMIC_RELAXED);
    }
  });
}

void weighted_gradient_partition(const WeightedGradient* g, int64_t index, int64_t partitions) {
  const int64_t size = g->operands.size();
  with_frame<GradientPieces>(*g, [&](GradientPieces& pieces) {
    pieces.run(begin_of_part(size, index, partitions), begin_of_part(size, index + 1, partitions));
  });
}

}  // namespace

void widen(const ReduceTable& table, int dtype, const char* from, int64_t stride, int64_t n,
           double* to) {
  const int64_t item = item_size(dtype);
  if (stride == 0 && n > 1) {  // one number, a gradient's of a row
    widen(table, dtype, from, item, 1, to);
    std::fill_n(to + 1, n - 1, *to);
    return;
  }
  if (((reinterpret_cast<uintptr_t>(from) | uintptr_t(stride)) & uintptr_t(item - 1)) == 0)
    return table.widen[dtype](from, stride, n, to);
  alignas(64) char packed[kPiece * sizeof(double)];
  gather_for(item)(packed, from, stride, n);
  table.widen[dtype](packed, item, n, to);
}

void plan_axes(StridedOperands* s, const ConvertKernels* kernels, int count,
               const ArrayArgument* given, const bool* reduced) {
  Operand arrays[kReaderOperands];
  int dtypes[kReaderOperands];
  for (int k = 0; k < count; ++k) arrays[k] = given[k], dtypes[k] = given[k].dtype;
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

int64_t take_groups(ArrayArgument* a, int64_t* strides) {
  for (int i = 0; i < a->ndim; ++i) strides[i] = byte_stride(*a, i, item_size(a->dtype));
  a->ndim -= 1, a->strides = strides, a->stride_unit = 1;
  return strides[a->ndim];
}

int64_t label_at(int dtype, const char* at) {
  int64_t wide;
  int32_t narrow;
  if (dtype == kI64) return memcpy(&wide, at, sizeof wide), wide;
  return memcpy(&narrow, at, sizeof narrow), int64_t(narrow);
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

void read_terms(const StridedOperands& s, const ReduceTable& table, int k, int64_t first, int64_t n,
                int64_t term, int64_t terms, double* to) {
  for_term_pieces(s, k, first, n, term, terms,
                  [&](const char* from, int64_t stride, int64_t size, int64_t done, int64_t) {
                    widen(table, s.dtypes[k], from, stride, size, to + done);
                  });
}

int64_t weighted_workspace(const MomentsCall& call, const KernelTable* kernels) {
  WeightedMoments weighted;
  prepare(&weighted, kernels->reduce, kernels->convert, call);
  return workspace_size(&weighted);
}

void run_weighted(const MomentsCall& call, Execution* execution, int* is_degenerate) {
  const int threads = resolve_threads(size_of(call.x()));
  WeightedMoments weighted;
  prepare(&weighted, execution->kernels->reduce, execution->kernels->convert, call);
  weighted.is_degenerate = is_degenerate;
  divide_work(&weighted, 1, execution->workspace, execution->bytes, threads);
  run_partitions(threads, weighted_partition, &weighted);
  merge_chunks(&weighted, 1, threads);
}

bool run_weighted_gradient(const WeightedGradientCall& call, const KernelTable* kernels) {
  if (is_empty(call.arrays[0])) return false;
  const int threads = resolve_threads(size_of(call.arrays[0]));
  int has_wrong_label = 0;
  WeightedGradient gradient;
  prepare(&gradient, kernels->reduce, kernels->convert, call);
  gradient.has_wrong_label = &has_wrong_label;
  if (gradient.groups >= 0) run_partitions(threads, gradient_labels_partition, &gradient);
  if (!has_wrong_label) run_partitions(threads, weighted_gradient_partition, &gradient);
  return has_wrong_label;
}

}  // namespace fastact
