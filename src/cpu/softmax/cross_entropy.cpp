// cross_entropy on the rows engine (softmax/softmax.h); common/softmax/loss.h has the formulas. The
// gradient takes one pass over the logits.
#include <cmath>
#include <limits>
#include <string>

#include "common/softmax/loss.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/rescaled.h"
#include "cpu/softmax/softmax.h"

namespace fastact {
namespace {

using namespace softmax_roles;

constexpr int64_t kLossRows = 64;    // rows whose losses are added up before others
constexpr int64_t kManyRows = 4096;  // from which on a thread takes kLossRows at a time

struct CrossEntropy : Softmax {
  enum Operand { kLogits, kTarget, kWeight, kOutLse, kLosses, kOutRest, kDLoss };
  static constexpr int kDLogits = kLosses;  // of backward

  bool has_indices, has_shares;  // has_shares: every class takes part in the loss of a row
  int64_t ignore_index;
  LabelSmoothing smoothing;
  double z_loss;
  double* partial = nullptr;  // [loss_partials(rows)]: sums of losses and of their weights, or none
  double gradient;            // 1 / divisor
  double weight_sum;          // of all classes
};

// The target of a row: a class, or none that counts.
struct Target {
  int64_t index;
  double weight;  // of the class; 0: it is ignored
};

int64_t index_at(const StridedOperands& s, int64_t row) {
  return integer_at(s.dtypes[CrossEntropy::kTarget], s.row(CrossEntropy::kTarget, row));
}

// Rows whose loss and weight are one pair of partial sums: few rows of a large vocabulary are the
// work of several threads.
int64_t rows_a_partial(int64_t rows) { return rows < kManyRows ? 1 : kLossRows; }

struct Losses : RowStatistics {
  const CrossEntropy& plan;
  double maxima[kTileWidth], factors[kTileWidth], g[kLossRows];
  double others[kLossRows], rests[kLossRows];  // t' w but the target's; of lse
  double logits[kLossRows];                    // of the targets: gradients may take their place
  Target wanted[kLossRows];
  alignas(64) char targets[kSoftmaxBlock * sizeof(double)];
  alignas(64) char weights[kSoftmaxBlock * sizeof(double)];

  explicit Losses(const CrossEntropy& a) : RowStatistics(a, kLossRows, false, false), plan(a) {}

  Target target_of(int64_t row) const {
    const int64_t index = index_at(s, row);
    // It was compared, and another thread may have changed it since.
    const bool is_there = uint64_t(index) < uint64_t(s.columns.size);
    if (index == plan.ignore_index || !is_there) return {-1, 0.0};
    return {index,
            s.data[CrossEntropy::kWeight] ? element(CrossEntropy::kWeight, row, index) : 1.0};
  }

  // t' w of n classes from `column` on.
  SoftmaxTarget spread(int64_t row, int64_t column, int64_t n) {
    reader.go(row, column, n);
    SoftmaxTarget found{nullptr, nullptr, plan.smoothing.keep, plan.smoothing.smooth};
    if (!plan.has_indices) found.target = reader.load(CrossEntropy::kTarget, targets);
    if (s.data[CrossEntropy::kWeight]) found.weight = reader.load(CrossEntropy::kWeight, weights);
    return found;
  }

  // apart, mass IN/OUT += the sums of t' w (max - z) and of t' w over a row.
  void weigh(int64_t row, double max, double* apart, double* mass) {
    for_blocks(row, 1, [&](const RowsBlock& b) {
      const SoftmaxTarget target = spread(row, b.column, b.n);
      double sums[2];
      kernels.weigh(reader.load(CrossEntropy::kLogits, tile), target, b.n, max, sums);
      *apart += sums[0], *mass += sums[1];
    });
  }

  // The loss of a row, whose statistic is known, and the weight by which it counts.
  void loss(int64_t row, double max, double log, double* value, double* counts) {
    double total = 0.0;
    *counts = 1.0;
    if (plan.has_indices) {
      const Target named = target_of(row);
      *value = 0.0, *counts = named.weight;
      if (named.index < 0) return;
      total = loss_of_index(plan.smoothing.keep * named.weight, max, log,
                            [&] { return element(CrossEntropy::kLogits, row, named.index); });
    }
    if (plan.has_shares) {
      double apart = 0.0, mass = 0.0;
      weigh(row, max, &apart, &mass);
      total += loss_of_shares(apart, mass, log);
    }
    *value = total + loss_of_lse(plan.z_loss, max + log);
  }

  bool is_ignored(int64_t j) const { return wanted[j].index < 0; }
};

struct LossForward : Losses {
  const int64_t each;     // rows that share a pair of partial sums
  const int64_t at_once;  // rows whose statistics are found together

  explicit LossForward(const CrossEntropy& a)
      : Losses(a), each(rows_a_partial(s.rows.size)), at_once(width) {
    width = kLossRows, step = by_tiles ? kLossRows : each;
  }

  // If several rows share a pair of partial sums, they are all that share it.
  void visit(int64_t first, int64_t m) {
    double* to = plan.partial ? plan.partial + first / each * 2 : nullptr;
    double sums[2] = {0.0, 0.0};
    for (int64_t row = first, n; row < first + m; row += n) {
      n = std::min(at_once, first + m - row);
      find(CrossEntropy::kLogits, row, n, true, -1);
      for (int64_t j = 0; j < n; ++j) {
        double value, counts;
        loss(row + j, rows.max[j], rows.log[j], &value, &counts);
        sums[0] += value, sums[1] += counts;
        if (s.data[CrossEntropy::kOutLse])
          reader.store_number(CrossEntropy::kOutLse, row + j, rows.lse[j]);
        if (s.data[CrossEntropy::kOutRest])
          reader.store_number(CrossEntropy::kOutRest, row + j, rest_of_lse(j));
        if (s.data[CrossEntropy::kLosses])
          reader.store_number(CrossEntropy::kLosses, row + j, value);
        if (!to || (each > 1 && row + j + 1 < first + m)) continue;
        to[0] = sums[0], to[1] = sums[1], to += 2;
        sums[0] = sums[1] = 0.0;
      }
    }
  }
};

struct LossBackward : Losses {
  explicit LossBackward(const CrossEntropy& a) : Losses(a) {
    if (!by_tiles) width = few_rows();
  }

  // Prepares the gradients of row j of those at hand: g of its loss, its target, and lse
  // and g sum t' w of its exponentials.
  void prepare(int64_t row, int64_t j) {
    g[j] = reader.number(CrossEntropy::kDLoss, row) * plan.gradient;
    wanted[j] = plan.has_indices ? target_of(row) : Target{0, 0.0};
    double weight = plan.smoothing.smooth * plan.weight_sum;
    if (!plan.has_indices) {
      double apart;
      weight = apart = 0.0;
      weigh(row, 0.0, &apart, &weight);
    }
    maxima[j] = reader.number(CrossEntropy::kOutLse, row);
    others[j] = weight + slope_of_lse(plan.z_loss, maxima[j]);
    rests[j] = number_or_0(CrossEntropy::kOutRest, row);
    weight = plan.smoothing.keep * wanted[j].weight + others[j];
    factors[j] = is_ignored(j) ? 0.0 : g[j] * weight * kernels.factor_of(maxima[j], rests[j]);
  }
  void keep_logits(const RowsBlock& b, BlockRows z) {
    for (int64_t j = 0; plan.has_indices && j < b.m; ++j) {
      const int64_t i = wanted[j].index - b.column;
      if (i >= 0 && i < b.n) logits[j] = number_at(s.compute_dtype, at(z, j, i));
    }
  }

  void visit(int64_t row, int64_t m) {
    bool is_unread = true;
    for (int64_t j = 0; j < m; ++j) prepare(row + j, j), is_unread &= is_ignored(j);
    for_blocks(row, m, [&](const RowsBlock& b) {
      const BlockRows dz = target(CrossEntropy::kDLogits, b, place());
      if (!is_unread) {
        const BlockRows z = load(CrossEntropy::kLogits, b, place());
        // Alone, the read of the logit would wait for memory; behind the loop it lies in a cache.
        const bool is_in_place = z.at == dz.at;
        if (is_in_place) keep_logits(b, z);
        loops.exponentials(z, m, b.n, maxima, factors, dz);
        if (!is_in_place) keep_logits(b, z);
      }
      for (int64_t j = 0; j < m; ++j) subtract_target(b, j, dz);
      finish(CrossEntropy::kDLogits, b, dz, place());
    });
  }

  // From exponentials to gradients of row j of a block.
  void subtract_target(const RowsBlock& b, int64_t j, BlockRows dz) {
    const int64_t item = s.compute_item, n = b.n, row = b.row + j, index = wanted[j].index;
    if (is_ignored(j)) {
      const int64_t pieces = by_tiles ? n : 1;
      for (int64_t i = 0; i < pieces; ++i) memset(at(dz, j, i), 0, n / pieces * item);
      return;
    }
    if (plan.has_shares && !by_tiles) {
      kernels.subtract(spread(row, b.column, n), n, g[j], at(dz, j, 0));
    } else if (plan.has_shares) {
      alignas(64) char one[kSoftmaxBlock * sizeof(double)];
      for (int64_t i = 0; i < n; ++i) memcpy(one + i * item, at(dz, j, i), item);
      kernels.subtract(spread(row, b.column, n), n, g[j], one);
      for (int64_t i = 0; i < n; ++i) memcpy(at(dz, j, i), one + i * item, item);
    }
    if (!plan.has_indices || index < b.column || index >= b.column + n) return;
    // A p that is nearly 1 was rounded; its logit tells what it lacks.
    char* const to = at(dz, j, index - b.column);
    const double share = plan.smoothing.keep * wanted[j].weight;
    const double distance = logits[j] - maxima[j] - rests[j];
    double slope = number_at(s.compute_dtype, to) - g[j] * share;
    if (distance > -0.5)
      slope = g[j] * (kernels.slope_of_target(distance, share, others[j]) -
                      plan.smoothing.smooth * wanted[j].weight);
    store_as(s.compute_dtype, to, slope);
  }
};

// Doubles of the partial sums of so many rows.
int64_t loss_partials(int64_t rows) {
  const int64_t each = rows_a_partial(rows);
  return (rows + each - 1) / each * 2;
}

// Tells whether each target is a class or to be ignored; probabilities are valid.
bool has_valid_targets(const CrossEntropy& job) {
  if (!job.has_indices) return true;
  for (int64_t row = 0; row < job.operands.rows.size; ++row) {
    const int64_t index = index_at(job.operands, row);
    if (index != job.ignore_index && !(index >= 0 && index < job.operands.columns.size))
      return false;
  }
  return true;
}

void sum_weights(CrossEntropy* job) {
  const StridedOperands& s = job->operands;
  constexpr int k = CrossEntropy::kWeight;
  job->weight_sum = double(s.columns.size);
  if (!s.data[k]) return;
  // Compensated: of a large vocabulary, weights that are alike would be rounded alike.
  CompensatedSum sum;
  for (int64_t i = 0; i < s.columns.size; ++i)
    sum.add(number_at(s.dtypes[k], s.data[k] + s.columns.offset(k, i)));
  job->weight_sum = sum.value();
}

// Writes the call's loss and divisor, of the partial sums.
void finish_loss(const CrossEntropy& job, const SoftmaxCall& call) {
  // The losses of kLossRows rows are added up before others, wherever that is done.
  const int64_t rows = job.operands.rows.size, count = loss_partials(rows);
  const int64_t step = 2 * kLossRows / rows_a_partial(rows);
  double sums[2] = {0.0, 0.0};
  for (int64_t first = 0; first < count; first += step) {
    double some[2] = {0.0, 0.0};
    for (int64_t i = first; i < std::min(first + step, count); ++i) some[i % 2] += job.partial[i];
    sums[0] += some[0], sums[1] += some[1];
  }
  const double by = call.reduction == kMean ? sums[1] : 1.0;
  store_as(call.loss.dtype, call.loss.data, sums[0] / by);
  store_as(kF64, call.divisor.data, by);
}

// Plans a call that is not empty.
void plan_losses(CrossEntropy* job, const KernelTable* table, const SoftmaxCall& call,
                 bool backward) {
  const int target = call.has_indices() ? kTarget : kDy;
  if (backward)
    prepare(job, table, call.of_logits(), {kX, target, kWeight, kLse, kY, kRest, kNumber});
  else
    prepare(job, table, call.of_logits(), {kX, target, kWeight, kLse, kNumber, kRest}, true);
  job->has_indices = call.has_indices();
  job->has_shares = call.has_shares();
  job->ignore_index = call.ignore_index;
  job->smoothing = LabelSmoothing::of(call.label_smoothing, job->operands.columns.size);
  job->z_loss = call.z_loss;
}

void refuse_wrong_targets(const CrossEntropy& job) {
  if (!has_valid_targets(job))
    throw std::invalid_argument("fastact.cross_entropy: target must hold classes from 0 to " +
                                std::to_string(job.operands.columns.size - 1) +
                                ", or ignore_index, " + std::to_string(job.ignore_index) +
                                "; got another number");
}

int64_t bytes_of_partials(const CrossEntropy& job) {
  return loss_partials(job.operands.rows.size) * int64_t(sizeof(double));
}

int64_t forward_workspace(const SoftmaxCall& call, const KernelTable* kernels) {
  if (call.reduction == kNone || size_of_rows(call) == 0) return 0;
  CrossEntropy job;
  plan_losses(&job, kernels, call, false);
  return bytes_of_partials(job);
}

void forward(const SoftmaxCall& call, Execution* execution) {
  const int64_t size = size_of_rows(call);
  if (size == 0) {
    const bool is_mean = call.reduction == kMean;
    fill(call.loss, is_mean ? kUndefined : 0);
    fill(call.divisor, is_mean ? 0 : 1);
    return;
  }
  CrossEntropy job;
  plan_losses(&job, execution->kernels, call, false);
  refuse_wrong_targets(job);
  if (call.reduction != kNone) {
    check_workspace("fastact._cpu", kCrossEntropyForward.name, execution->workspace,
                    execution->bytes, bytes_of_partials(job), sizeof(double));
    job.partial = reinterpret_cast<double*>(execution->workspace);
  }
  run_partitions(resolve_threads(size), run_rows<LossForward, CrossEntropy>, &job);
  if (call.reduction != kNone) finish_loss(job, call);
}

void backward(const SoftmaxCall& call, Execution* execution) {
  const int64_t size = size_of_rows(call);
  if (size == 0) return;
  CrossEntropy job;
  plan_losses(&job, execution->kernels, call, true);
  job.gradient = 1.0 / (call.divisor.shape ? number_at(kF64, call.divisor.data) : 1.0);
  sum_weights(&job);
  refuse_wrong_targets(job);
  run_partitions(resolve_threads(size), run_rows<LossBackward, CrossEntropy>, &job);
}

}  // namespace

void add_cross_entropy(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<forward, forward_workspace>(kCrossEntropyForward));
  functions->push_back(native_function<backward>(kCrossEntropyBackward));
}

}  // namespace fastact
