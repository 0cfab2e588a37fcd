// The kernels of reductions/grouped_kernels.h.
#include "cpu/reductions/grouped_kernels.h"

#include <type_traits>

#include "common/reductions/moments.h"
#include "cpu/simd/accumulators.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Elements of a batch, at most: of data that are narrower than double, and of double.
constexpr int32_t kNarrowBatch = 256, kDoubleBatch = 64, kNearBatch = 32, kFirstBatch = 8;
constexpr int32_t kWeightedNarrowBatch = 64;

constexpr int64_t kSome = 64;  // elements that are staged, and searched for a full batch, together

typedef double Pair __attribute__((vector_size(2 * sizeof(double))));
typedef int64_t PairBits __attribute__((vector_size(2 * sizeof(double))));

// count: of the batch's elements, and kNoElements.
struct OpenSum {
  double sum, count;
};
struct LaneSum {
  double sum, count, low, count_low;
};
constexpr double kNoElements = 64;
// left: elements that the batch still takes, of `size`.
struct OpenMoments {
  double shift, first, second;
  int32_t left, size;
};
// With weights, the one of the shift's element, and what the batch's add up to. Of a lane of either
// kind the results come first, then what their rounding lost.
struct LaneMoments {
  double mean, m2, count, mean_low, m2_low, count_low;
  double heaviest, weight;
};

// The open batches come first.
template <class OpenBatch, class Lane>
struct Lanes {
  static constexpr int64_t kBytes = sizeof(OpenBatch) + sizeof(Lane);
  OpenBatch* open;
  Lane* all;
  int64_t count;
  Lanes(char* memory, int64_t count_)
      : open(reinterpret_cast<OpenBatch*>(memory)),
        all(reinterpret_cast<Lane*>(open + count_)),
        count(count_) {}
};
using Sums = Lanes<OpenSum, LaneSum>;
// Sums without batches.
struct ExactSums {
  LaneSum *open, *all;
  int64_t count;
  ExactSums(char* memory, int64_t count_)
      : open(Sums(memory, count_).all), all(open), count(count_) {}
};
using ManyMoments = Lanes<OpenMoments, LaneMoments>;

template <class Label>
bool find_lanes(const char* labels, int64_t step, int64_t n, int64_t groups, int64_t width,
                int64_t first, int64_t next, int64_t none, int64_t* __restrict to) {
  const auto lane_of = [=](int64_t label, int64_t i) FASTACT_INLINED {
    const int64_t lane = label * width + first + i * next;
    return uint64_t(label) < uint64_t(groups) ? lane : none;
  };
  const auto is_wrong = [=](int64_t label) FASTACT_INLINED {
    return int64_t(uint64_t(label) + 1 > uint64_t(groups));
  };
  int64_t wrong = 0;
  if (step == sizeof(Label) && reinterpret_cast<uintptr_t>(labels) % sizeof(Label) == 0) {
    const Label* const from = reinterpret_cast<const Label*>(labels);
#pragma omp simd reduction(| : wrong)
    for (int64_t i = 0; i < n; ++i) {
      wrong |= is_wrong(from[i]);
      to[i] = lane_of(from[i], i);
    }
    return wrong;
  }
  for (int64_t i = 0; i < n; ++i) {
    Label label;
    memcpy(&label, labels + i * step, sizeof label);
    wrong |= is_wrong(label);
    to[i] = lane_of(label, i);
  }
  return wrong;
}

// The choices are loops of their own, as the masks of weighted_kernels.cpp: together they would not
// vectorise.
void choose(const double* x, const double* weights, bool skips, int64_t n, int64_t none,
            int64_t* __restrict at) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) at[i] = weights[i] != 0 ? at[i] : none;
  if (!skips) return;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) at[i] = x[i] == x[i] ? at[i] : none;
}

// a - b by the units that multiply and add, which are idle while others add.
FASTACT_HD Pair less(Pair a, Pair b) {
  return Pair{madd(b[0], -1.0, a[0]), madd(b[1], -1.0, a[1])};
}

// A sum, and of how many elements it is, join a lane. What rounding lost is no number where the sum
// is none.
FASTACT_HD void add_pair(Pair added, LaneSum* lane) {
  Pair high, low;
  memcpy(&high, &lane->sum, sizeof high);
  memcpy(&low, &lane->low, sizeof low);
  const Pair sum = high + added, part = sum - high;
  low += less(high, sum - part) + less(added, part);
  memcpy(&lane->sum, &sum, sizeof sum);
  memcpy(&lane->low, &low, sizeof low);
}

// A weight, or NaN where it is negative or not finite (common/reductions/weights.h).
FASTACT_HD double weight_or_nan(double w) {
  return (w >= 0) & (w - w == 0) ? w : __builtin_nan("");
}

// Ends the batch of one of the lanes `of`, for the same lane of `to`.
void close_batch(const Sums& of, int64_t lane, const Sums& to) {
  OpenSum& batch = of.open[lane];
  add_pair(Pair{batch.sum, batch.count - kNoElements}, &to.all[lane]);
  batch = {0, kNoElements};
}

// These elements' batches, or all there are, if they are fewer.
__attribute__((noinline)) void close_some(OpenSum* const* at, int64_t n, const Sums& lanes) {
  const bool all = lanes.count < n;
  for (int64_t i = 0; i < (all ? lanes.count : n); ++i)
    close_batch(lanes, all ? i : at[i] - lanes.open, lanes);
}

constexpr int64_t kFull = int64_t{1} << 53;  // a bit of numbers from 2 kNoElements on

// n <= kSome elements onto their batches.
FASTACT_HD void add_some(const double* x, OpenSum* const* at, int64_t n, bool, const Sums& lanes) {
  PairBits seen = {};
  const Pair ones = {1.0, 1.0};
#pragma GCC unroll 8
  for (int64_t i = 0; i < n; ++i) {
    Pair pair, added = ones;
    memcpy(&pair, at[i], sizeof pair);
    added[0] = x[i];
    pair += added;
    memcpy(at[i], &pair, sizeof pair);
    seen |= (PairBits)pair;
  }
  if (seen[1] & kFull) close_some(at, n, lanes);
}

FASTACT_HD void add_some(const double* x, LaneSum* const* at, int64_t n, bool, const ExactSums&) {
  const Pair ones = {1.0, 1.0};
#pragma GCC unroll 8
  for (int64_t i = 0; i < n; ++i) {
    Pair added = ones;
    added[0] = x[i];
    add_pair(added, at[i]);
  }
}

FASTACT_HD void add_weighted(const double* x, const double* weights, const int64_t* at, int64_t n,
                             bool, const ExactSums& lanes) {
  for (int64_t i = 0; i < n; ++i) {
    const double w = weight_or_nan(weights[i]);
    add_pair(Pair{w * x[i], w}, &lanes.all[at[i]]);
  }
}

// A lane takes in a mean and m2 of n elements.
FASTACT_HD void merge_into(const Moments& from, double n, double n_low, LaneMoments* to) {
  const Moments held = {to->mean, to->m2, to->mean_low, to->m2_low};
  const Moments both = merge_counted(from, n, held, to->count);
  to->mean = both.mean, to->m2 = both.m2, to->mean_low = both.mean_low, to->m2_low = both.m2_low;
  to->count = add_exactly(to->count, n, &to->count_low);
  to->count_low += n_low;
}

void close_batch(const ManyMoments& of, int64_t lane, const ManyMoments& to) {
  OpenMoments& batch = of.open[lane];
  double& weight = of.all[lane].weight;
  if (batch.left == batch.size) return;
  const double n = weight != 0 ? weight : batch.size - batch.left;
  const double average = batch.first / n;
  Moments found = {};
  moments_of_average(batch.shift, average, batch.first, batch.second, &found.mean, &found.m2);
  add_exactly(batch.shift, average, &found.mean_low);
  merge_into(found, n, 0, &to.all[lane]);
  batch = {};
  weight = 0;
}

// Ends a batch, and begins one with x.
__attribute__((noinline)) void begin_batch(double x, double weight, bool is_double,
                                           bool is_weighted, const ManyMoments& lanes, int64_t at) {
  OpenMoments* const batch = &lanes.open[at];
  LaneMoments* const to = &lanes.all[at];
  const bool has_far_mean = is_double && !is_weighted;
  // 4 S^2 <= 3 n Q: the first elements have their mean near the shift.
  if (has_far_mean && batch->size == kFirstBatch &&
      4 * batch->first * batch->first <= 3 * kFirstBatch * batch->second) {
    batch->left = kNearBatch - kFirstBatch;
    batch->size = kNearBatch;
    return;
  }
  close_batch(lanes, at, lanes);
  const bool has_mean = has_far_mean && to->count > 0;
  batch->shift = finite_or_zero(has_mean ? to->mean : x);
  batch->left = batch->size = is_double     ? !has_mean || to->count < kNearBatch ? kFirstBatch
                                              : to->count < kDoubleBatch          ? kNearBatch
                                                                                  : kDoubleBatch
                              : is_weighted ? kWeightedNarrowBatch
                                            : kNarrowBatch;
  to->heaviest = weight;
}

FASTACT_HD void add_some(const double* x, OpenMoments* const* at, int64_t n, bool is_double,
                         const ManyMoments& lanes) {
  for (int64_t i = 0; i < n; ++i) {
    OpenMoments& batch = *at[i];
    if (batch.left == 0) begin_batch(x[i], 1, is_double, false, lanes, at[i] - lanes.open);
    const double d = x[i] - batch.shift;
    Pair sums;
    memcpy(&sums, &batch.first, sizeof sums);
    sums = Pair{madd(d, 1.0, sums[0]), madd(d, d, sums[1])};  // as one vector
    memcpy(&batch.first, &sums, sizeof sums);
    --batch.left;
  }
}

FASTACT_HD void add_weighted(const double* x, const double* weights, const int64_t* at, int64_t n,
                             bool is_double, const ManyMoments& lanes) {
  for (int64_t i = 0; i < n; ++i) {
    OpenMoments& batch = lanes.open[at[i]];
    LaneMoments& lane = lanes.all[at[i]];
    const double w = weight_or_nan(weights[i]);
    if (__builtin_expect(batch.left == 0 || w > 2 * lane.heaviest, 0))
      begin_batch(x[i], w, is_double, true, lanes, at[i]);
    const double d = x[i] - batch.shift, product = w * d;
    batch.first += product;
    batch.second = madd(product, d, batch.second);
    lane.weight += w;
    --batch.left;
  }
}

template <class Of, bool is_double>
void add_weighted(const double* x, const double* weights, const int64_t* at, int64_t n,
                  char* memory, int64_t count) {
  const Of lanes(memory, count);
  add_weighted(x, weights, at, n, is_double, lanes);
}

// x OUT (n): as doubles, unless they are that; at OUT (n): their batches; elements that do not
// count have the last one. Returns whether all labels are in range.
template <class T, class Label, class Of>
FASTACT_HD bool stage(const T* from, const Label* of, int64_t n, int64_t groups, bool skips,
                      const Of& lanes, double* x, decltype(Of::open)* at) {
  const int64_t none = lanes.count - 1;
  int64_t outside = -1;
#pragma omp simd reduction(& : outside)
  for (int64_t i = 0; i < n; ++i) {
    const double value = double(from[i]);
    const int64_t label = of[i];
    const bool is_one = uint64_t(label) < uint64_t(groups);
    outside &= is_one ? int64_t(-1) : label;
    at[i] = lanes.open + (is_one & ((value == value) | !skips) ? label : none);
    if constexpr (!std::is_same_v<T, double>) x[i] = value;
  }
  return outside == -1;
}

// is_double: the elements have more digits than float.
template <class Of, bool is_double, class T, class Label>
bool add(const char* x, const char* labels, int64_t n, int64_t groups, bool skips, char* memory,
         int64_t count) {
  const T* from = reinterpret_cast<const T*>(x);
  const Label* of = reinterpret_cast<const Label*>(labels);
  const Of lanes(memory, count);
  alignas(64) double values[kSome];
  alignas(64) decltype(lanes.open) at[kSome];
  bool are_right = true;
  const auto add_next = [&](int64_t some) FASTACT_INLINED {
    are_right &= stage(from, of, some, groups, skips, lanes, values, at);
    if constexpr (std::is_same_v<T, double>)
      add_some(from, at, some, is_double, lanes);
    else
      add_some(values, at, some, is_double, lanes);
    from += some, of += some;
  };
  for (; n >= kSome; n -= kSome) add_next(kSome);  // a constant number, which has no rest
  add_next(n);
  return !are_right;
}

FASTACT_HD void add_block(const double* block, double n, int64_t at, const Sums& lanes) {
  add_pair(Pair{block[0], n}, &lanes.all[at]);
}
FASTACT_HD void add_block(const double* block, double n, int64_t at, const ManyMoments& lanes) {
  close_batch(lanes, at, lanes);
  if (n > 0) merge_into({block[0], block[1], finite_or_zero(block[2]), 0}, n, 0, &lanes.all[at]);
}
template <class Of>
void add_block(const double* block, double n, int64_t at, char* memory, int64_t count) {
  add_block(block, n, at, Of(memory, count));
}

template <class Of>
void clear(char* memory, int64_t count, int64_t) {
  memset(memory, 0, count * Of::kBytes);
  if constexpr (std::is_same_v<Of, Sums>)
    for (int64_t i = 0; i < count; ++i) Of(memory, count).open[i] = {0, kNoElements};
}

template <class Of, int sets>
void read(char* memory, int64_t count, int64_t first, int64_t n, double* values, double* errors,
          int64_t pitch) {
  const Of lanes(memory, count);
  // Before any is read: vectors would wait for numbers that were just stored one by one.
  for (int64_t i = first; i < first + n; ++i) close_batch(lanes, i, lanes);
  for (int64_t i = 0; i < n; ++i) {
    double numbers[2 * sets];
    memcpy(numbers, &lanes.all[first + i], sizeof numbers);
    for (int s = 0; s < sets; ++s) {
      values[s * pitch + i] = numbers[s];
      errors[s * pitch + i] = is_finite(numbers[s]) ? numbers[sets + s] : 0.0;
    }
  }
}

void merge_lane(const LaneSum& from, LaneSum* to) {
  add_pair(Pair{from.sum, from.count}, to);
  to->low += from.low;
  to->count_low += from.count_low;
}

void merge_lane(const LaneMoments& from, LaneMoments* to) {
  merge_into({from.mean, from.m2, from.mean_low, from.m2_low}, from.count, from.count_low, to);
}

template <class Of>
void merge(char* from, char* to, int64_t count, int64_t first, int64_t n) {
  const Of added(from, count), lanes(to, count);
  for (int64_t i = first; i < first + n; ++i) {
    close_batch(lanes, i, lanes);
    close_batch(added, i, lanes);
    if (added.all[i].count != 0) merge_lane(added.all[i], &lanes.all[i]);
  }
}

// The lanes of rows, group after group, behind the width of a tile. A group has `tile` lanes: first
// what they share, then each number of all of them side by side.
struct RowLanes {
  static constexpr int64_t kShared = kLaneStep;  // numbers: as many as keep lanes aligned
  int64_t tile;
  double* first;

  explicit RowLanes(char* memory)
      : tile(*reinterpret_cast<int64_t*>(memory)),
        first(reinterpret_cast<double*>(memory) + kShared) {}
};

// One group's. rows: of the open batch, of `size`; sums have but one batch.
template <int numbers>
struct LaneRow {
  double& rows;
  double& size;
  double* at[numbers];

  LaneRow(const RowLanes& lanes, int64_t group, int64_t column)
      : LaneRow(lanes.first + group * (RowLanes::kShared + numbers * lanes.tile), lanes.tile,
                column) {}
  LaneRow(double* shared, int64_t tile, int64_t column) : rows(shared[0]), size(shared[1]) {
    for (int k = 0; k < numbers; ++k) at[k] = shared + RowLanes::kShared + k * tile + column;
  }
};

// visit(column, vector) for the n elements of a row, in whole vectors: the last one ends with
// zeros.
template <class T, class Visit>
FASTACT_HD void for_vectors(const T* x, int64_t n, Visit visit) {
  int64_t i = 0;
  for (; i + kVector <= n; i += kVector) visit(i, load(x + i));
  if (i < n) visit(i, load_some(x + i, n - i, Vector{}));
}

// missing: rows whose element was skipped.
struct RowSums {
  enum { kSum, kLow, kMissing, kNumbers };
  using Row = LaneRow<kNumbers>;

  template <bool skips, class T>
  static FASTACT_HD void add(const T* x, int64_t n, const Row& row) {
    row.rows += 1;
    for_vectors(x, n, [&](int64_t i, Vector value) FASTACT_INLINED {
      const Vector one = Vector{} + 1.0;
      if (skips) {
        const auto is_there = value == value;
        store(load(row.at[kMissing] + i) + (is_there ? Vector{} : one), row.at[kMissing] + i);
        value = is_there ? value : Vector{};
      }
      const Vector sum = load(row.at[kSum] + i), low = load(row.at[kLow] + i);
      const Vector all = sum + value, part = all - sum;
      store(all, row.at[kSum] + i);
      store(low + ((sum - (all - part)) + (value - part)), row.at[kLow] + i);
    });
  }
  static void merge(const Row& from, const Row& to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      double& sum = to.at[kSum][i];
      sum = add_exactly(sum, from.at[kSum][i], &to.at[kLow][i]);
      to.at[kLow][i] += from.at[kLow][i];
      to.at[kMissing][i] -= from.rows - from.at[kMissing][i];
    }
  }
  static void close_batch(const Row&, int64_t) {}
  static void read(const Row& row, int64_t n, double* values, double* errors, int64_t pitch) {
    for (int64_t i = 0; i < n; ++i) {
      values[i] = row.at[kSum][i], values[pitch + i] = row.rows - row.at[kMissing][i];
      errors[i] = is_finite(values[i]) ? row.at[kLow][i] : 0.0, errors[pitch + i] = 0;
    }
  }
};

template <bool is_double>
struct RowMoments {
  enum { kShift, kSum, kSquares, kMissing, kMean, kM2, kCount, kMeanLow, kM2Low, kNumbers };
  using Row = LaneRow<kNumbers>;

  template <bool skips, class T>
  static FASTACT_HD void add(const T* x, int64_t n, const Row& row) {
    if (row.rows == row.size) begin_batch(x, n, row);
    row.rows += 1;
    for_vectors(x, n, [&](int64_t i, Vector value) FASTACT_INLINED {
      const Vector none = {}, one = none + 1.0;
      Vector shift = load(row.at[kShift] + i), d = value - shift;
      if (skips) {
        const auto is_there = value == value;
        const Vector first = value - value == none ? value : is_there ? none : value;
        shift = shift == shift ? shift : first;
        d = is_there ? value - shift : none;
        store(shift, row.at[kShift] + i);
        store(load(row.at[kMissing] + i) + (is_there ? none : one), row.at[kMissing] + i);
      }
      store(load(row.at[kSum] + i) + d, row.at[kSum] + i);
      store(madd(d, d, load(row.at[kSquares] + i)), row.at[kSquares] + i);
    });
  }

  // Ends a batch, and begins one with a row.
  template <class T>
  static __attribute__((noinline)) void begin_batch(const T* x, int64_t n, const Row& row) {
    close_batch(row, n);
    double least = kDoubleBatch;
    for (int64_t i = 0; i < n; ++i) least = row.at[kCount][i] < least ? row.at[kCount][i] : least;
    const bool has_mean = is_double && least >= kFirstBatch;
    row.rows = 0;
    row.size = has_mean ? least : is_double ? kFirstBatch : kNarrowBatch;
    for (int64_t i = 0; i < n; ++i) {
      row.at[kMissing][i] = 0;
      const double value = has_mean ? row.at[kMean][i] : to_double(x[i]);
      row.at[kShift][i] = is_finite(value) || value != value ? value : 0.0;
    }
  }

  // visit(i) for the columns of whole cache lines that hold n.
  template <class Visit>
  static FASTACT_HD void for_lines(int64_t n, Visit visit) {
    for (int64_t first = 0; first < n; first += kLaneStep)
#pragma omp simd
      for (int64_t i = first; i < first + kLaneStep; ++i) visit(i);
  }

  // Each column i takes in found(i), of count(i) elements.
  template <class Found, class Count>
  static FASTACT_HD void join(const Row& row, int64_t n, Found found, Count count) {
    double *const mean = row.at[kMean], *const m2 = row.at[kM2], *const all = row.at[kCount],
                  *const mean_low = row.at[kMeanLow], *const m2_low = row.at[kM2Low];
    const auto join_one = [=](int64_t i) FASTACT_INLINED {
      const Moments held = {mean[i], m2[i], mean_low[i], m2_low[i]};
      const Moments both = merge_counted(found(i), count(i), held, all[i]);
      mean[i] = both.mean, m2[i] = both.m2, mean_low[i] = both.mean_low, m2_low[i] = both.m2_low;
      all[i] += count(i);
    };
    for_lines(n, join_one);
  }

  static FASTACT_HD Moments moments_of(double shift, double sum, double squares, double count) {
    Moments of = {};
    moments_of_average(shift, sum / count, sum, squares, &of.mean, &of.m2);
    add_exactly(shift, sum / count, &of.mean_low);
    return of;
  }
  // A batch that was ended adds nothing again.
  static void close_batch(const Row& row, int64_t n) {
    const double *const shift = row.at[kShift], rows = row.rows;
    double *const sum = row.at[kSum], *const squares = row.at[kSquares],
                  *const missing = row.at[kMissing];
    const auto count = [=](int64_t i) FASTACT_INLINED { return rows - missing[i]; };
    const auto found = [=](int64_t i) FASTACT_INLINED {
      return moments_of(shift[i], sum[i], squares[i], count(i));
    };
    join(row, n, found, count);
    for_lines(n, [=](int64_t i) FASTACT_INLINED { sum[i] = squares[i] = 0, missing[i] = rows; });
  }
  static void merge(const Row& from, const Row& to, int64_t n) {
    close_batch(from, n), close_batch(to, n);
    const double *const mean = from.at[kMean], *const m2 = from.at[kM2],
                        *const count = from.at[kCount], *const mean_low = from.at[kMeanLow],
                        *const m2_low = from.at[kM2Low];
    const auto found = [=](int64_t i) FASTACT_INLINED {
      return Moments{mean[i], m2[i], mean_low[i], m2_low[i]};
    };
    join(to, n, found, [=](int64_t i) FASTACT_INLINED { return count[i]; });
  }
  static void read(const Row& row, int64_t n, double* values, double* errors, int64_t pitch) {
    for (int set = 0; set < 3; ++set)
      for (int64_t i = 0; i < n; ++i) {
        const double value = values[set * pitch + i] = row.at[kMean + set][i];
        const bool is_exact = set == 2 || !is_finite(value);
        errors[set * pitch + i] = is_exact ? 0.0 : row.at[kMeanLow + set][i];
      }
  }
};

template <class Of>
void clear_rows(char* memory, int64_t count, int64_t tile) {
  const int64_t bytes = (RowLanes::kShared + tile * Of::kNumbers) * sizeof(double);
  memset(memory, 0, RowLanes::kShared * sizeof(double) + count / tile * bytes);
  *reinterpret_cast<int64_t*>(memory) = tile;
}

template <class Of, bool skips, class T>
void add_rows(const char* x, int64_t step, const int64_t* at, int64_t terms, int64_t n,
              const RowLanes& lanes) {
  for (int64_t i = 0; i < terms; ++i)
    Of::template add<skips>(pointer<T>(x + i * step), n, typename Of::Row(lanes, at[i], 0));
}
template <class Of, class T>
void add_rows(const char* x, int64_t step, const int64_t* at, int64_t terms, int64_t n, bool skips,
              char* memory) {
  const RowLanes lanes(memory);
  skips ? add_rows<Of, true, T>(x, step, at, terms, n, lanes)
        : add_rows<Of, false, T>(x, step, at, terms, n, lanes);
}

// visit(group, column, lanes, lanes before these) for the rows of lanes first .. first + n.
template <class Visit>
FASTACT_HD void for_rows(int64_t tile, int64_t first, int64_t n, Visit visit) {
  for (int64_t done = 0, m; done < n; done += m) {
    const int64_t column = (first + done) % tile;
    m = tile - column < n - done ? tile - column : n - done;
    visit((first + done) / tile, column, m, done);
  }
}

template <class Of>
void merge_rows(char* from, char* to, int64_t, int64_t first, int64_t n) {
  const RowLanes added(from), lanes(to);
  for_rows(lanes.tile, first, n, [&](int64_t group, int64_t column, int64_t m, int64_t) {
    Of::merge({added, group, column}, {lanes, group, column}, m);
  });
}

template <class Of>
void read_rows(char* memory, int64_t, int64_t first, int64_t n, double* values, double* errors,
               int64_t pitch) {
  const RowLanes lanes(memory);
  for_rows(lanes.tile, first, n, [&](int64_t group, int64_t column, int64_t m, int64_t done) {
    const int64_t before = column % kLaneStep;
    Of::close_batch({lanes, group, column - before}, before + m);
    Of::read({lanes, group, column}, m, values + done, errors + done, pitch);
  });
}

}  // namespace

// Elements have lanes of the type Of, those with weights of Exact; T is the type of what lies in
// memory.
#define FASTACT_ADD(Of, T, is_double) \
  {add<Of, is_double, T, int32_t>, add<Of, is_double, T, int64_t>}
#define FASTACT_LANES(Of, Exact, All, sets, T, is_double)               \
  {All::kBytes,                                                         \
   0,                                                                   \
   clear<All>,                                                          \
   {FASTACT_ADD(Of, T, is_double), FASTACT_ADD(Of, double, is_double)}, \
   {},                                                                  \
   add_weighted<Exact, is_double>,                                      \
   add_block<All>,                                                      \
   merge<All>,                                                          \
   read<All, sets>}

#define FASTACT_ROW_LANES(Of)                                                          \
  {Of::kNumbers * sizeof(double),                                                      \
   RowLanes::kShared * sizeof(double),                                                 \
   clear_rows<Of>,                                                                     \
   {},                                                                                 \
   {add_rows<Of, f16>, add_rows<Of, bf16>, add_rows<Of, float>, add_rows<Of, double>}, \
   nullptr,                                                                            \
   nullptr,                                                                            \
   merge_rows<Of>,                                                                     \
   read_rows<Of>}

extern const GroupedKernels grouped_kernels;
const GroupedKernels grouped_kernels = {
    {{{FASTACT_LANES(Sums, ExactSums, Sums, 2, float, false),
       FASTACT_LANES(ExactSums, ExactSums, Sums, 2, double, true)},
      {FASTACT_LANES(ManyMoments, ManyMoments, ManyMoments, 3, float, false),
       FASTACT_LANES(ManyMoments, ManyMoments, ManyMoments, 3, double, true)}},
     {{FASTACT_ROW_LANES(RowSums), FASTACT_ROW_LANES(RowSums)},
      {FASTACT_ROW_LANES(RowMoments<false>), FASTACT_ROW_LANES(RowMoments<true>)}}},
    choose,
    {find_lanes<int32_t>, find_lanes<int64_t>},
};

FASTACT_END_NAMESPACE
