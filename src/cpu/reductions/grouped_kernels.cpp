// The kernels of reductions/grouped_kernels.h.
#include "cpu/reductions/grouped_kernels.h"

#include "common/reductions/moments.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Elements of a batch, at most: of data that are narrower than double, and of double.
constexpr int32_t kNarrowBatch = 256, kDoubleBatch = 32, kFirstBatch = 8;
constexpr int32_t kWeightedNarrowBatch = 64;

struct Lanes {
  OpenMoments* open;
  LaneMoments* all;
  Lanes(char* memory, int64_t count)
      : open(reinterpret_cast<OpenMoments*>(memory)),
        all(reinterpret_cast<LaneMoments*>(open + count)) {}
};

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

// Loops of their own, as the masks of weighted_kernels.cpp: together they would not vectorise.
void choose(const double* x, const double* weights, const double* mask, bool skips, int64_t n,
            int64_t none, int64_t* __restrict at) {
  if (mask) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) at[i] = mask[i] != 0 ? at[i] : none;
  }
  if (weights) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) at[i] = weights[i] != 0 ? at[i] : none;
  }
  if (skips) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) at[i] = x[i] == x[i] ? at[i] : none;
  }
}

// high and low IN/OUT: what rounding lost goes to low, which is no number where high is none.
FASTACT_HD void add_both(double x, double* high, double* low) {
  const double sum = *high + x, part = sum - *high;
  *low += (*high - (sum - part)) + (x - part);
  *high = sum;
}

// A weight, or NaN where it is negative or not finite (common/reductions/weights.h).
FASTACT_HD double weight_or_nan(double w) {
  return (w >= 0) & (w - w == 0) ? w : __builtin_nan("");
}

// One element onto a lane of each kind.
template <int kind, bool is_weighted>
struct Adds;

template <bool is_weighted>
struct Adds<kLaneSum, is_weighted> {
  LaneSum* lanes;
  Adds(char* memory, int64_t, bool) : lanes(reinterpret_cast<LaneSum*>(memory)) {}
  FASTACT_HD void operator()(double x, double w, int64_t at) const {
    add_both(is_weighted ? w * x : x, &lanes[at].sum, &lanes[at].low);
  }
};

template <bool is_weighted>
struct Adds<kLaneMean, is_weighted> {
  LaneMean* lanes;
  Adds(char* memory, int64_t, bool) : lanes(reinterpret_cast<LaneMean*>(memory)) {}
  FASTACT_HD void operator()(double x, double w, int64_t at) const {
    LaneMean& lane = lanes[at];
    add_both(is_weighted ? w * x : x, &lane.sum, &lane.low);
    if (is_weighted)
      add_both(w, &lane.count, &lane.count_low);
    else
      lane.count += 1;
  }
};

// What a lane holds takes in a mean and m2 of n elements.
FASTACT_HD void merge_into(const Moments& from, double n, double n_low, LaneMoments* to) {
  const Moments held = {to->mean, to->m2, to->mean_low, to->m2_low};
  const Moments both = merge_counted(from, n, held, to->count);
  to->mean = both.mean, to->m2 = both.m2, to->mean_low = both.mean_low, to->m2_low = both.m2_low;
  to->count = add_exactly(to->count, n, &to->count_low);
  to->count_low += n_low;
}

void close_batch(OpenMoments* batch, LaneMoments* to) {
  if (batch->left == batch->size) return;
  Moments found = {};
  moments_of_sums(batch->shift, batch->first, batch->second, batch->weight, &found.mean, &found.m2);
  merge_into(found, batch->weight, 0, to);
  batch->first = batch->second = batch->weight = 0;
  batch->left = batch->size = 0;
}

// Ends a batch, and begins one with x.
__attribute__((noinline)) void begin_batch(double x, double weight, bool is_double,
                                           bool is_weighted, OpenMoments* batch, LaneMoments* to) {
  const bool has_far_mean = is_double && !is_weighted;
  // 4 S^2 <= 3 n Q: the first elements have their mean near the shift.
  if (has_far_mean && batch->size == kFirstBatch &&
      4 * batch->first * batch->first <= 3 * kFirstBatch * batch->second) {
    batch->left = kDoubleBatch - kFirstBatch;
    batch->size = kDoubleBatch;
    return;
  }
  close_batch(batch, to);
  const bool has_mean = has_far_mean && to->count > 0;
  batch->shift = finite_or_zero(has_mean ? to->mean : x);
  batch->left = batch->size =
      is_double     ? has_mean && to->count >= kDoubleBatch ? kDoubleBatch : kFirstBatch
      : is_weighted ? kWeightedNarrowBatch
                    : kNarrowBatch;
  to->heaviest = weight;
}

template <bool is_weighted>
struct Adds<kLaneMoments, is_weighted> {
  const Lanes lanes;
  const bool is_double;
  Adds(char* memory, int64_t count, bool is_double_)
      : lanes(memory, count), is_double(is_double_) {}
  FASTACT_HD void operator()(double x, double w, int64_t at) const {
    OpenMoments& batch = lanes.open[at];
    if (batch.left == 0 || (is_weighted && w > 2 * lanes.all[at].heaviest))
      begin_batch(x, w, is_double, is_weighted, &batch, &lanes.all[at]);
    const double d = x - batch.shift, product = is_weighted ? w * d : d;
    batch.first += product;
    batch.second = madd(product, d, batch.second);
    batch.weight += w;
    --batch.left;
  }
};

template <int kind>
void add(const double* x, const double* weights, const int64_t* at, int64_t n, bool is_double,
         char* memory, int64_t count) {
  const Adds<kind, false> add_one(memory, count, is_double);
  const Adds<kind, true> add_weighted(memory, count, is_double);
  for (int64_t i = 0; i < n && !weights; ++i) add_one(x[i], 1.0, at[i]);
  for (int64_t i = 0; i < n && weights; ++i) add_weighted(x[i], weight_or_nan(weights[i]), at[i]);
}

template <int kind, class T, class Label>
bool add_plain(const char* x, const char* labels, int64_t n, int64_t groups, bool skips,
               char* memory, int64_t count) {
  const T* const from = reinterpret_cast<const T*>(x);
  const Label* const of = reinterpret_cast<const Label*>(labels);
  const Adds<kind, false> add_one(memory, count, sizeof(T) == sizeof(double));
  uint64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double value = double(from[i]);
    const uint64_t label = uint64_t(int64_t(of[i]));
    largest = label + 1 > largest ? label + 1 : largest;
    const bool counts = (label < uint64_t(groups)) & ((value == value) | !skips);
    add_one(value, 1.0, counts ? int64_t(label) : count - 1);
  }
  return largest > uint64_t(groups);
}

void add_block_to_sum(const double* block, double, int64_t at, char* memory, int64_t) {
  LaneSum& lane = reinterpret_cast<LaneSum*>(memory)[at];
  add_both(block[0], &lane.sum, &lane.low);
}

void add_block_to_mean(const double* block, double n, int64_t at, char* memory, int64_t) {
  LaneMean& lane = reinterpret_cast<LaneMean*>(memory)[at];
  add_both(block[0], &lane.sum, &lane.low);
  lane.count += n;
}

void add_block_to_moments(const double* block, double n, int64_t at, char* memory, int64_t count) {
  const Lanes lanes(memory, count);
  close_batch(&lanes.open[at], &lanes.all[at]);
  if (n > 0) merge_into({block[0], block[1], 0, 0}, n, 0, &lanes.all[at]);
}

void merge_sums(const char* from, char* to, int64_t, int64_t first, int64_t n) {
  const LaneSum* const added = reinterpret_cast<const LaneSum*>(from);
  LaneSum* const lanes = reinterpret_cast<LaneSum*>(to);
  for (int64_t i = first; i < first + n; ++i) {
    add_both(added[i].sum, &lanes[i].sum, &lanes[i].low);
    lanes[i].low += added[i].low;
  }
}

void merge_means(const char* from, char* to, int64_t, int64_t first, int64_t n) {
  const LaneMean* const added = reinterpret_cast<const LaneMean*>(from);
  LaneMean* const lanes = reinterpret_cast<LaneMean*>(to);
  for (int64_t i = first; i < first + n; ++i) {
    add_both(added[i].sum, &lanes[i].sum, &lanes[i].low);
    add_both(added[i].count, &lanes[i].count, &lanes[i].count_low);
    lanes[i].low += added[i].low;
    lanes[i].count_low += added[i].count_low;
  }
}

void close(char* memory, int64_t count, int64_t first, int64_t n) {
  const Lanes lanes(memory, count);
  for (int64_t i = first; i < first + n; ++i) close_batch(&lanes.open[i], &lanes.all[i]);
}

void merge_lanes(const char* from, char* to, int64_t count, int64_t first, int64_t n) {
  const Lanes added(const_cast<char*>(from), count), lanes(to, count);
  for (int64_t i = first; i < first + n; ++i) {
    close_batch(&lanes.open[i], &lanes.all[i]);
    close_batch(&added.open[i], &added.all[i]);
    const LaneMoments& one = added.all[i];
    if (one.count != 0)
      merge_into({one.mean, one.m2, one.mean_low, one.m2_low}, one.count, one.count_low,
                 &lanes.all[i]);
  }
}

}  // namespace

#define FASTACT_PLAIN(kind)                                               \
  {                                                                       \
    {add_plain<kind, float, int32_t>, add_plain<kind, float, int64_t>}, { \
      add_plain<kind, double, int32_t>, add_plain<kind, double, int64_t>  \
    }                                                                     \
  }

extern const GroupedKernels grouped_kernels;
const GroupedKernels grouped_kernels = {
    {find_lanes<int32_t>, find_lanes<int64_t>},
    choose,
    {add<kLaneSum>, add<kLaneMean>, add<kLaneMoments>},
    {FASTACT_PLAIN(kLaneSum), FASTACT_PLAIN(kLaneMean), FASTACT_PLAIN(kLaneMoments)},
    {add_block_to_sum, add_block_to_mean, add_block_to_moments},
    {merge_sums, merge_means, merge_lanes},
    close,
};

FASTACT_END_NAMESPACE
