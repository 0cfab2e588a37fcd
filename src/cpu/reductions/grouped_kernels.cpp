// The kernels of reductions/grouped_kernels.h.
#include "cpu/reductions/grouped_kernels.h"

#include <type_traits>

#include "common/reductions/moments.h"

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
void clear(char* memory, int64_t count) {
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

}  // namespace

// Elements have lanes of the type Of, those with weights of Exact; T is the type of what lies in
// memory.
#define FASTACT_ADD(Of, T, is_double) \
  {add<Of, is_double, T, int32_t>, add<Of, is_double, T, int64_t>}
#define FASTACT_LANES(Of, Exact, All, sets, T, is_double)               \
  {All::kBytes,                                                         \
   clear<All>,                                                          \
   {FASTACT_ADD(Of, T, is_double), FASTACT_ADD(Of, double, is_double)}, \
   add_weighted<Exact, is_double>,                                      \
   add_block<All>,                                                      \
   merge<All>,                                                          \
   read<All, sets>}

extern const GroupedKernels grouped_kernels;
const GroupedKernels grouped_kernels = {
    {{FASTACT_LANES(Sums, ExactSums, Sums, 2, float, false),
      FASTACT_LANES(ExactSums, ExactSums, Sums, 2, double, true)},
     {FASTACT_LANES(ManyMoments, ManyMoments, ManyMoments, 3, float, false),
      FASTACT_LANES(ManyMoments, ManyMoments, ManyMoments, 3, double, true)}},
    choose,
    {find_lanes<int32_t>, find_lanes<int64_t>},
};

FASTACT_END_NAMESPACE
