// The kernels of the reductions: reductions/kernels.h says what they compute, and
// docs/design/reductions.md how fast. The accumulators come first, then the loops over each layout,
// which are the same for all of them.
#include "cpu/reductions/kernels.h"

#include <type_traits>
#include <utility>

#include "common/reductions/moments.h"
#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// lane + the term of x, of elements of T; by one instruction where they were converted, so that the
// term is exact.
template <class T, class V>
FASTACT_HD V add_term(Itself, V x, V one, V lane) {
  return is_converted<T> ? add_converted(x, one, lane) : lane + x;
}
template <class T, class V>
FASTACT_HD V add_term(Square, V x, V, V lane) {
  return is_converted<T> ? madd(x, x, lane) : lane + x * x;
}
template <class T, class V>
FASTACT_HD V add_term(Valid, V x, V one, V lane) {
  return add_term<T>(Itself(), Valid::of(x), one, lane);
}
template <class T, class V, class Term>
FASTACT_HD V add_term(Term, V x, V, V lane) {
  return lane + Term::of(x);
}

// value, or -0 where x is NaN and skipped.
template <bool kSkips, class V>
FASTACT_HD V unless_skipped(V x, V value) {
  if constexpr (kSkips) return x == x ? value : -V{};
  return value;
}

// An accumulator: the numbers of a lane, in vectors of lanes (V) or in one, and how terms that were
// of T come to them.
//   Adder       adds terms to a lane. It is made of 1, which the compiler must not know
//               (hidden_one), and of the shift. A neutral term changes nothing.
//   Plain       the accumulator that does the same to terms without NaN, faster; void: none. Where
//               it has a set less, that is the count.
//   settle      the results of n terms from their folded lanes
//   merge       as in Accumulator

// The sum of a term; with kCounts that of the terms that are not NaN, and their number: -0 is added
// for the others.
template <class Term, bool kCounts = false>
struct Sum {
  using Plain = std::conditional_t<kCounts || std::is_same<Term, Valid>::value, Sum<Itself>, void>;
  static constexpr int kSets = kCounts ? 2 : 1;
  static constexpr bool kHasShift = false, kRetries = false;
  template <class T>
  static constexpr int kPasses = 1;

  template <class T, class V>
  struct Adder {
    V one;
    FASTACT_HD Adder(V hidden, V) : one(hidden) {}
    FASTACT_HD void operator()(V x, V (&lane)[kSets]) const {
      lane[0] = add_term<T>(Term(), unless_skipped<kCounts>(x, x), one, lane[0]);
      if constexpr (kCounts) lane[1] += unless_skipped<kCounts>(x, one);
    }
    FASTACT_HD V neutral() const { return kCounts ? V{} + __builtin_nan("") : -V{}; }
  };
  static FASTACT_HD void settle(double, const double* lane, int64_t pitch, int64_t, double* result,
                                int64_t to_pitch) {
    for (int s = 0; s < kSets; ++s) result[s * to_pitch] = lane[s * pitch];
  }

  template <bool has_errors>
  static FASTACT_HD void merge(const Results& from, int64_t, const Results& to, int64_t,
                               int64_t n) {
    for (int s = 0; s < kSets; ++s) {
      const double* const values = from.values + s * from.pitch;
      const double* const errors = has_errors ? from.errors + s * from.pitch : nullptr;
      double *const hi = to.values + s * to.pitch, *const lo = to.errors + s * to.pitch;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        double error = 0;
        hi[i] = add_exactly(hi[i], values[i], &error);
        lo[i] += error + (has_errors ? errors[i] : 0.0);
      }
    }
  }
};
using ValidMean = Sum<Itself, true>;

// Sums of d = x - shift and of d^2; with kSkips those of terms that are not NaN, and their number,
// which is the last set. For converted terms d is a multiply-add, in the pipes that conversion and
// addition leave idle (simd/accumulators.h): with 1 and -shift.
template <bool kSkips>
struct Shifted {
  using Plain = std::conditional_t<kSkips, Shifted<false>, void>;
  static constexpr int kCount = 2, kSets = kSkips ? kCount + 1 : kCount;
  static constexpr bool kHasShift = true, kRetries = kSkips;
  template <class T>
  static constexpr int kPasses = sizeof(T) == sizeof(double) ? 2 : 1;

  template <class T, class V>
  struct Adder {
    V one, minus;
    FASTACT_HD Adder(V hidden, V shift) : one(hidden), minus(V{} - shift) {}
    FASTACT_HD void operator()(V x, V (&lane)[kSets]) const {
      const V d =
          unless_skipped<kSkips>(x, is_converted<T> ? add_converted(x, one, minus) : x + minus);
      lane[0] += d;
      lane[1] = madd(d, d, lane[1]);
      if constexpr (kSkips) lane[kCount] += unless_skipped<kSkips>(x, one);
    }
    FASTACT_HD V neutral() const { return kSkips ? V{} + __builtin_nan("") : -minus; }
  };
  // No terms give 0.
  static FASTACT_HD void settle(double shift, const double* lane, int64_t pitch, int64_t n,
                                double* result, int64_t to_pitch) {
    const double count = kSkips ? lane[kCount * pitch] : double(n);
    const bool has_terms = !kSkips || count > 0;
    double mean, m2;
    moments_of_sums(shift, lane[0], lane[pitch], count, &mean, &m2);
    result[0] = has_terms ? mean : 0.0;
    result[to_pitch] = has_terms ? m2 : 0.0;
    if constexpr (kSkips) result[kCount * to_pitch] = count + 0.0;
  }

  template <bool has_errors>
  static FASTACT_HD void merge(const Results& from, int64_t k, const Results& to, int64_t terms,
                               int64_t n) {
    const double fraction = double(k) / double(terms + k), weight = double(terms) * fraction;
    const int64_t pitch = has_errors ? from.pitch : 0;
    const double *mean = from.values, *m2 = mean + from.pitch, *count = m2 + from.pitch;
    const double *low = from.errors, *m2_low = low + pitch, *count_low = m2_low + pitch;
    double *to_mean = to.values, *to_m2 = to_mean + to.pitch, *to_count = to_m2 + to.pitch;
    double *to_low = to.errors, *to_m2_low = to_low + to.pitch;
    double* to_count_low = to_m2_low + to.pitch;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const Moments one = {mean[i], m2[i], has_errors ? low[i] : 0.0, has_errors ? m2_low[i] : 0.0};
      Moments all = {to_mean[i], to_m2[i], to_low[i], to_m2_low[i]};
      if constexpr (kSkips) {
        const double more = has_errors ? count_low[i] : 0.0;  // of sums of weights
        all = merge_counted(one, count[i] + more, all, to_count[i] + to_count_low[i]);
        double lost = 0;
        to_count[i] = add_exactly(to_count[i], count[i], &lost);
        to_count_low[i] += lost + more;
      } else {
        merge_moments(one, fraction, weight, &all);
      }
      to_mean[i] = all.mean, to_low[i] = all.mean_low;
      to_m2[i] = all.m2, to_m2_low[i] = all.m2_low;
    }
  }
};
using ShiftedMoments = Shifted<false>;
using ValidMoments = Shifted<true>;

// Squares of norms: a result of 16 bits is float32's, rounded.
struct SquaresInDouble : Sum<Square> {};

// Whether a lane adds terms of T in float, kFloatTerms of them, before it adds their sum in double.
template <class A, class T>
constexpr bool kAddsFloats =
    is_half<T> && !A::kHasShift && !std::is_same<A, SquaresInDouble>::value;

// Squares of bfloat16 leave the range of float: beside a sum of this size what they lose is
// nothing.
constexpr float kSmallSquares = 0x1p-100f;

// The sums of kFloats lanes, in double.
template <class A>
struct FloatSums {
  Vector v[2][A::kSets];
};

// Without instructions that convert float16 a conversion is long: with a copy for each of eight
// terms of each vector of lanes this file would have three times as much code.
#if defined(__x86_64__) && !defined(__F16C__)
#define FASTACT_ADD_EACH __attribute__((noinline))
#else
#define FASTACT_ADD_EACH FASTACT_HD
#endif

// lane OUT: the sums of the terms from at(0), at(1), ... on.
template <class A, class T, class V, class At>
FASTACT_ADD_EACH void add_each(At at, int count, V (&lane)[A::kSets]) {
  const typename A::template Adder<T, V> add(V{} + 1, V{});
#pragma GCC unroll 4
  for (int s = 0; s < A::kSets; ++s) lane[s] = -V{};
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    V terms;
    load_to(terms, at(i));
    add(terms, lane);
  }
}

// Tells which sums float holds: finite ones, and of squares of bfloat16 those that are not small.
template <class A, class T>
FASTACT_HD FloatMask is_in_range(Floats sum) {
  const FloatMask is_number = sum - sum == Floats{};
  if constexpr (std::is_same<A, Sum<Square>>::value && std::is_same<T, bf16>::value)
    return is_number & (sum >= Floats{} + kSmallSquares);
  return is_number;
}

// Serves sums that float does not hold: it makes these in double. (Squares of zeros alone are no
// small ones.)
template <class A, class T>
__attribute__((noinline)) FloatSums<A> sums_out_of_range(const T* const* x, int count) {
  Floats sum[A::kSets];
  add_each<A, T>([&](int i) FASTACT_INLINED { return x[i]; }, count, sum);
  FloatMask fine = is_in_range<A, T>(sum[0]);
  if (std::is_same<A, Sum<Square>>::value) {
    FloatMask is_zero = ~FloatMask{};
    for (int i = 0; i < count; ++i) {
      Floats terms;
      load_to(terms, x[i]);
      is_zero &= terms == Floats{};
    }
    fine |= is_zero;
  }
  FloatSums<A> sums;
#pragma GCC unroll 4
  for (int s = 0; s < A::kSets; ++s) {
    Vector wide[2];
    widen_to(wide, sum[s]);
    sums.v[0][s] = wide[0];
    sums.v[1][s] = wide[1];
  }
  if (all(fine)) return sums;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Vector exact[A::kSets];
    add_each<A, T>([&](int i) FASTACT_INLINED { return x[i] + half * kVector; }, count, exact);
#pragma GCC unroll 8
    for (int k = 0; k < kVector; ++k)
      if (!fine[half * kVector + k]) sums.v[half][0][k] = exact[0][k];
  }
  return sums;
}

FASTACT_HD void add_wide(Floats sum, Vector& low, Vector& high) {
  Vector wide[2];
  widen_to(wide, sum);
  low += wide[0];
  high += wide[1];
}

// Adds the terms of kFloats columns, or lanes, from at(0), at(1), ... on, to two vectors of lanes.
// is_plain IN/OUT: where NaN are skipped, no term was one so far, so that none is looked for.
template <class A, class T, class At>
FASTACT_HD void add_floats(At at, int count, bool& is_plain, Vector (&low)[A::kSets],
                           Vector (&high)[A::kSets]) {
  using Plain = typename A::Plain;
  if constexpr (!std::is_void<Plain>::value) {
    Floats sum[Plain::kSets];
    if (is_plain) add_each<Plain, T>(at, count, sum);
    is_plain = is_plain && all(is_in_range<A, T>(sum[0]));
    if (is_plain) {
      add_wide(sum[0], low[0], high[0]);
      if constexpr (A::kSets > Plain::kSets) {
        low[1] += double(count);
        high[1] += double(count);
      }
      return;
    }
  }
  Floats sum[A::kSets];
  add_each<A, T>(at, count, sum);
  if (__builtin_expect(all(is_in_range<A, T>(sum[0])), 1)) {
#pragma GCC unroll 4
    for (int s = 0; s < A::kSets; ++s) add_wide(sum[s], low[s], high[s]);
    return;
  }
  const T* x[kFloatTerms];
  for (int i = 0; i < count; ++i) x[i] = at(i);
  const FloatSums<A> sums = sums_out_of_range<A>(x, count);
#pragma GCC unroll 4
  for (int s = 0; s < A::kSets; ++s) {
    low[s] += sums.v[0][s];
    high[s] += sums.v[1][s];
  }
}

// A term of T that changes nothing.
template <class A, class T>
FASTACT_HD T neutral_term() {
  return narrow<T>(float(typename A::template Adder<T, double>(1, 0).neutral()));
}

// A vector of lanes as it lies in memory, or one lane.
template <class V, int kSets>
FASTACT_HD void read_lane(V (&lane)[kSets], const double* lanes, int64_t pitch) {
#pragma GCC unroll 4
  for (int s = 0; s < kSets; ++s) load_to(lane[s], lanes + s * pitch);
}
template <class V, int kSets>
FASTACT_HD void write_lane(const V (&lane)[kSets], double* lanes, int64_t pitch) {
#pragma GCC unroll 4
  for (int s = 0; s < kSets; ++s) store(lane[s], lanes + s * pitch);
}

// One term, or one vector of them, onto lanes in memory.
template <class A, class V, class T>
FASTACT_HD void add_at(const T* x, const typename A::template Adder<T, V>& add, double* lanes,
                       int64_t pitch) {
  V lane[A::kSets], term;
  read_lane(lane, lanes, pitch);
  load_to(term, x);
  add(term, lane);
  write_lane(lane, lanes, pitch);
}

// The lanes of a block in registers.
template <class A, class T>
struct Lanes {
  static constexpr int kSets = A::kSets;
  using V = std::conditional_t<kSets == 1, typename SumLanes<T>::type, Vector>;
  using Adder = typename A::template Adder<T, V>;
  static constexpr int kWidth = sizeof(V) / sizeof(double), kCount = kLanes / kWidth;
  // Vectors at a time: all their sets fill half of the registers.
  static constexpr int kGroup = kSets == 1 || kVector == 8 ? kCount : kSets == 2 ? 4 : 2;
  V v[kCount][kSets];

  FASTACT_HD void clear() {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k)
#pragma GCC unroll 4
      for (int s = 0; s < kSets; ++s) v[k][s] = -V{};
  }
  FASTACT_HD void read(const double* lanes) {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) read_lane(v[k], lanes + k * kWidth, kLanes);
  }
  FASTACT_HD void write(double* lanes) const {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) write_lane(v[k], lanes + k * kWidth, kLanes);
  }

  // Adds n terms, from lane 0 on. Terms `ahead` bytes later are prefetched; 0: none are.
  FASTACT_HD void add(const T* x, int64_t n, double shift, int64_t ahead) {
    const Adder add_terms(V{} + hidden_one(), V{} + shift);
    const int64_t rest = n % kLanes;
    const T* const end = x + (n - rest);
#pragma GCC unroll 4
    for (int group = 0; group < kCount; group += kGroup) {
      V lane[kGroup][kSets], terms;
#pragma GCC unroll 16
      for (int k = 0; k < kGroup; ++k)
#pragma GCC unroll 4
        for (int s = 0; s < kSets; ++s) lane[k][s] = v[group + k][s];
      const bool prefetches = ahead != 0 && group == 0;
      for (const T* at = x; at != end; at += kLanes) {
        if (prefetches) prefetch_lanes(at, ahead);
#pragma GCC unroll 16
        for (int k = 0; k < kGroup; ++k) {
          load_to(terms, at + (group + k) * kWidth);
          add_terms(terms, lane[k]);
        }
      }
      if (rest > 0) {
#pragma GCC unroll 16
        for (int k = 0; k < kGroup; ++k) {
          const int64_t left = rest - (group + k) * kWidth;
          if (left >= kWidth)
            load_to(terms, end + (group + k) * kWidth);
          else if (left > 0)
            load_some_to(terms, end + (group + k) * kWidth, left, add_terms.neutral());
          else
            break;
          add_terms(terms, lane[k]);
        }
      }
#pragma GCC unroll 16
      for (int k = 0; k < kGroup; ++k)
#pragma GCC unroll 4
        for (int s = 0; s < kSets; ++s) v[group + k][s] = lane[k][s];
    }
  }

  // Adds n terms from lane 0 on in bands, where terms are added in float.
  FASTACT_HD void add_bands(const T* x, int64_t n, int64_t ahead, bool& is_plain) {
    for (; n >= kFloatBand; n -= kFloatBand, x += kFloatBand) {
      if (ahead)
        for (int64_t i = 0; i < kFloatBand; i += kLanes) prefetch_lanes(x + i, ahead);
      add_band(x, kFloatTerms, is_plain);
    }
    if (n == 0) return;
    alignas(64) T held[kFloatBand];
    memcpy(held, x, n * sizeof(T));
    add_held(held, n, is_plain);
  }
  // Adds n terms to a block that has `at` of them. Bands that are not whole wait in `held`.
  FASTACT_HD void add_to_band(const T* x, int64_t n, int64_t at, int64_t ahead, T* held) {
    const int64_t before = at % kFloatBand;
    const int64_t head = before == 0 ? 0 : n < kFloatBand - before ? n : kFloatBand - before;
    const int64_t rest = (n - head) % kFloatBand;
    bool is_plain = true;
    memcpy(held + before, x, head * sizeof(T));
    if (before + head == kFloatBand) add_band(held, kFloatTerms, is_plain);
    if (n - head - rest) add_bands(x + head, n - head - rest, ahead, is_plain);
    if (rest) memcpy(held, x + n - rest, rest * sizeof(T));
  }
  // n <= kFloatBand terms, in memory of whole rounds of the lanes.
  FASTACT_HD void add_held(T* held, int64_t n, bool& is_plain) {
    if (n == kFloatBand) return add_band(held, kFloatTerms, is_plain);
    int64_t end = n;
    for (; end % kLanes; ++end) held[end] = neutral_term<A, T>();
    add_band(held, int(end / kLanes), is_plain);
  }
  FASTACT_HD void add_band(const T* x, int rounds, bool& is_plain) {
    static_assert(sizeof(V) == sizeof(Vector));
#pragma GCC unroll 16
    for (int k = 0; k < kLanes / kFloats; ++k)
      add_floats<A, T>([&](int i) FASTACT_INLINED { return x + i * kLanes + k * kFloats; }, rounds,
                       is_plain, v[2 * k], v[2 * k + 1]);
  }
  static FASTACT_HD void prefetch_lanes(const T* x, int64_t ahead) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kLanes; i += kCacheLine / sizeof(T)) prefetch_far(x + i, ahead);
  }

  FASTACT_HD void settle(double shift, int64_t n, double* result, int64_t pitch) const {
    double folded[kSets];
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) {
      V set[kCount];
#pragma GCC unroll 16
      for (int k = 0; k < kCount; ++k) set[k] = v[k][s];
      folded[s] = fold_vectors(set);
    }
    A::settle(shift, folded, 1, n, result, pitch);
  }
};

// The first of n terms, up to lane 0, where lane `phase` is next: onto lanes in memory.
template <class A, class T>
FASTACT_HD int64_t add_head(const T* x, int64_t n, int64_t phase, double shift, double* memory) {
  using V = typename Lanes<A, T>::V;
  constexpr int64_t kWidth = Lanes<A, T>::kWidth;
  const int64_t head = phase == 0 ? 0 : n < kLanes - phase ? n : kLanes - phase;
  const double one = hidden_one();
  const typename A::template Adder<T, V> add(V{} + one, V{} + shift);
  const typename A::template Adder<T, double> add_one(one, shift);
  int64_t i = 0;
  for (; i + kWidth <= head; i += kWidth) add_at<A, V>(x + i, add, memory + phase + i, kLanes);
  for (; i < head; ++i) add_at<A, double>(x + i, add_one, memory + phase + i, kLanes);
  return head;
}

template <class A, class T>
void add_terms(const char* from, int64_t n, int64_t at, double shift, int64_t ahead,
               double* memory) {
  const T* x = reinterpret_cast<const T*>(from);
  Lanes<A, T> lanes;
  if constexpr (kAddsFloats<A, T>) {
    lanes.read(memory);
    lanes.add_to_band(x, n, at, ahead, reinterpret_cast<T*>(memory + A::kSets * kLanes));
  } else {
    const int64_t head = add_head<A>(x, n, at % kLanes, shift, memory);
    if (head == n) return;
    lanes.read(memory);
    lanes.add(x + head, n - head, shift, ahead);
  }
  lanes.write(memory);
}

template <class A, class T>
void end_terms(double* memory, int64_t n, double shift, double* results, int64_t pitch) {
  Lanes<A, T> lanes;
  lanes.read(memory);
  if constexpr (kAddsFloats<A, T>) {
    bool is_plain = true;
    T* const held = reinterpret_cast<T*>(memory + A::kSets * kLanes);
    if (n % kFloatBand) lanes.add_held(held, n % kFloatBand, is_plain);
  }
  lanes.settle(shift, n, results, pitch);
  lanes.clear();
  lanes.write(memory);
}

// The shift of a block of n terms. One that retries has it at the first finite one of its first
// terms; NaN: there is none among them.
template <class A, class T>
FASTACT_HD double first_shift(const T* x, int64_t n) {
  if (!A::kHasShift) return 0.0;
  if (!A::kRetries) return finite_or_zero(to_double(*x));
  for (int64_t i = 0; i < n && i < kShiftTerms; ++i)
    if (is_finite(to_double(x[i]))) return to_double(x[i]);
  return __builtin_nan("");
}

template <class A, class T>
FASTACT_HD void one_pass(const T* x, int64_t n, double shift, int64_t ahead, bool& is_plain,
                         double* result, int64_t pitch) {
  Lanes<A, T> lanes;
  lanes.clear();
  if constexpr (kAddsFloats<A, T>)
    lanes.add_bands(x, n, ahead, is_plain);
  else
    lanes.add(x, n, shift, ahead);
  lanes.settle(shift, n, result, pitch);
}

template <class A, class T>
FASTACT_HD void one_block(const T* x, int64_t n, int64_t ahead, bool& is_plain, double* result,
                          int64_t pitch) {
  double shift = first_shift<A>(x, n);
  const bool is_lost = A::kRetries && !is_finite(shift);
  if (A::kRetries) shift = finite_or_zero(shift);
  if constexpr (A::kRetries || A::template kPasses<T> > 1) {
    if (is_lost || A::template kPasses<T> > 1) {
      double found[A::kSets];
      one_pass<A>(x, n, shift, ahead, is_plain, found, 1);
      shift = finite_or_zero(found[0]);
    }
  }
  one_pass<A>(x, n, shift, ahead, is_plain, result, pitch);
}

// A sum that skips NaN adds up a block as if there were none. If its first result says that there
// was one, it adds that block anew and skips them, and does so in the later blocks.
template <class A, class T>
void blocks(const char* from, const int64_t* offsets, int64_t count, int64_t n, int64_t ahead,
            double* results, int64_t pitch) {
  bool is_plain = true;
  for (int64_t i = 0; i < count; ++i) {
    const T* const x = reinterpret_cast<const T*>(from + offsets[i]);
    if constexpr (!kAddsFloats<A, T> && !std::is_void<typename A::Plain>::value) {
      using Plain = typename A::Plain;
      if (is_plain) one_block<Plain>(x, n, ahead, is_plain, results + i, pitch);
      is_plain = is_plain && results[i] == results[i];
      if (is_plain) {
        if (A::kSets > Plain::kSets) results[i + Plain::kSets * pitch] = double(n);
        continue;
      }
    }
    one_block<A>(x, n, ahead, is_plain, results + i, pitch);
  }
}

void fold(double* lanes, int64_t count, int64_t columns) {
  if (columns == 1 && count >= kLanes) {
    Vector v[kVectors];
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) v[k] = load(lanes + k * kVector);
    *lanes = fold_vectors(v);
    return;
  }
  count = count < kLanes ? count : kLanes;
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    if (count <= half) continue;
    const double* upper = lanes + half * columns;
    const int64_t n = (count - half) * columns;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) lanes[i] += upper[i];
    count = half;
  }
}

// Column c, or a vector of columns, of kRows rows: lane[c] = (lane[c] + x[0][c]) + x[1][c] ...
// seeks_nan: the lanes stay as they were if that gives a NaN. Returns whether it does not.
template <class A, class V, int kRows, bool fresh, bool seeks_nan = false, class T>
FASTACT_HD bool add_column(const T* const* x, int64_t c, double one, const double* shift,
                           double* lanes, int64_t pitch) {
  V lane[A::kSets], from = V{};
#pragma GCC unroll 4
  for (int s = 0; s < A::kSets; ++s) lane[s] = -V{};
  if (!fresh) read_lane(lane, lanes + c, pitch);
  if (A::kHasShift) load_to(from, shift + c);
  const typename A::template Adder<T, V> add(V{} + one, from);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    V terms;
    load_to(terms, x[i] + c);
    add(terms, lane);
  }
  if constexpr (seeks_nan)
    if (has_nan(lane[0])) return false;
  write_lane(lane, lanes + c, pitch);
  return true;
}

template <int kRows, class T>
FASTACT_HD void prefetch_rows(const T* const* x, int64_t c, int64_t ahead) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) prefetch_far(x[i] + c, ahead);
}

// NaN are skipped from the first vector of columns on that holds one, of kRows rows: to ask that of
// the lanes takes less than to ask of each term. The columns that are done; 0: it does not pay. A
// call, for inlined it makes the loop that follows slower.
template <class A, int kRows, bool fresh, class T>
__attribute__((noinline)) int64_t add_without_nan(const T* const* x, int64_t columns, double one,
                                                  const double* shift, double* lanes, int64_t pitch,
                                                  int64_t ahead) {
  using Plain = typename A::Plain;
  if constexpr (kRows > 1 && !std::is_void<Plain>::value) {
    double* const counts = lanes + Plain::kSets * pitch;
    for (int64_t c = 0; c + kVector <= columns; c += kVector) {
      if (ahead && c % int64_t(kCacheLine / sizeof(T)) == 0) prefetch_rows<kRows>(x, c, ahead);
      if (!add_column<Plain, Vector, kRows, fresh, true>(x, c, one, shift, lanes, pitch)) return c;
      if (A::kSets > Plain::kSets)
        store(fresh ? Vector{} + kRows : load(counts + c) + kRows, counts + c);
    }
    return columns / kVector * kVector;
  }
  return 0;
}

// kRows rows at once, so that a lane is read and written once for all of them.
constexpr int kRowsAtOnce = 8;

template <class A, int kRows, bool fresh, class T>
FASTACT_HD void add_some(const T* const* x, int64_t columns, const double* shift, double* lanes,
                         int64_t pitch, int64_t ahead) {
  const double one = hidden_one();
  int64_t c = add_without_nan<A, kRows, fresh>(x, columns, one, shift, lanes, pitch, ahead);
  for (; c + kVector <= columns; c += kVector) {
    if (ahead && c % int64_t(kCacheLine / sizeof(T)) == 0) prefetch_rows<kRows>(x, c, ahead);
    add_column<A, Vector, kRows, fresh>(x, c, one, shift, lanes, pitch);
  }
  for (; c < columns; ++c) add_column<A, double, kRows, fresh>(x, c, one, shift, lanes, pitch);
}

// The columns of up to kFloatTerms rows where terms are added in float.
template <class A, bool fresh, class T>
FASTACT_HD void add_float_rows(const T* const* x, int rows, int64_t columns, double* lanes,
                               int64_t pitch, int64_t ahead) {
  constexpr int64_t kPerCacheLine = kCacheLine / sizeof(T);
  bool is_plain = true;
  const auto add = [&](auto at, double* to, int64_t to_pitch) FASTACT_INLINED {
    Vector low[A::kSets], high[A::kSets];
#pragma GCC unroll 4
    for (int s = 0; s < A::kSets; ++s) low[s] = high[s] = -Vector{};
    if (!fresh) read_lane(low, to, to_pitch);
    if (!fresh) read_lane(high, to + kVector, to_pitch);
    add_floats<A, T>(at, rows, is_plain, low, high);
    write_lane(low, to, to_pitch);
    write_lane(high, to + kVector, to_pitch);
  };
  int64_t c = 0;
  for (; c + kFloats <= columns; c += kFloats) {
    if (ahead && c % kPerCacheLine == 0) {
      for (int i = 0; i < rows; ++i) prefetch_far(x[i] + c, ahead);
      // Rows that begin amid a line end in one more.
      for (int i = 0; i < rows && columns - c <= kPerCacheLine; ++i)
        prefetch_far(x[i] + columns - 1, ahead);
    }
    add([&](int i) FASTACT_INLINED { return x[i] + c; }, lanes + c, pitch);
  }
  if (c == columns) return;
  T rest[kFloatTerms][kFloats] = {};
  double of_rest[A::kSets][kFloats] = {};
  for (int i = 0; i < rows; ++i) memcpy(rest[i], x[i] + c, (columns - c) * sizeof(T));
  for (int s = 0; s < A::kSets && !fresh; ++s)
    memcpy(of_rest[s], lanes + s * pitch + c, (columns - c) * sizeof(double));
  add([&](int i) FASTACT_INLINED { return rest[i]; }, of_rest[0], kFloats);
  for (int s = 0; s < A::kSets; ++s)
    memcpy(lanes + s * pitch + c, of_rest[s], (columns - c) * sizeof(double));
}

template <class A, class T>
void add_rows(const char* x, const int64_t* offsets, int64_t step, int64_t rows, int64_t columns,
              const double* shift, double* lanes, int64_t pitch, bool fresh, int64_t beyond) {
  const T* row[kRowsAtOnce];
  static_assert(kRowsAtOnce == kFloatTerms);
  if constexpr (kAddsFloats<A, T>) {
    for (int count; rows > 0; rows -= count, offsets += count * step, fresh = false) {
      count = rows < kFloatTerms ? int(rows) : kFloatTerms;
      for (int k = 0; k < count; ++k) row[k] = reinterpret_cast<const T*>(x + offsets[k * step]);
      const int64_t ahead = rows >= 2 * count ? offsets[count * step] - offsets[0] : beyond;
      if (count < kFloatTerms)
        fresh ? add_float_rows<A, true>(row, count, columns, lanes, pitch, beyond)
              : add_float_rows<A, false>(row, count, columns, lanes, pitch, beyond);
      else if (fresh)
        add_float_rows<A, true>(row, kFloatTerms, columns, lanes, pitch, ahead);
      else
        add_float_rows<A, false>(row, kFloatTerms, columns, lanes, pitch, ahead);
    }
    return;
  }
  const auto add = [&](auto count) {
    constexpr int kRows = decltype(count)::value;
    for (; rows >= kRows; rows -= kRows, offsets += kRows * step, fresh = false) {
      for (int k = 0; k < kRows; ++k) row[k] = reinterpret_cast<const T*>(x + offsets[k * step]);
      const int64_t ahead = rows >= 2 * kRows ? offsets[kRows * step] - offsets[0] : beyond;
      if (fresh)
        add_some<A, kRows, true>(row, columns, shift, lanes, pitch, ahead);
      else
        add_some<A, kRows, false>(row, columns, shift, lanes, pitch, ahead);
    }
  };
  add(std::integral_constant<int, kRowsAtOnce>());
  add(std::integral_constant<int, 4>());
  add(std::integral_constant<int, 1>());
}

// Output i, or a vector of outputs, of n terms: each in a lane of its own, folded.
template <class A, int n, class V>
FASTACT_HD void fold_few(const V (&x)[n], int64_t i, const double* shift, double* lanes,
                         int64_t pitch) {
  V from = V{}, sets[A::kSets][n], folded[A::kSets];
  if (A::kHasShift) load_to(from, shift + i);
  const typename A::template Adder<double, V> add(V{} + 1, from);
#pragma GCC unroll 8
  for (int k = 0; k < n; ++k) {
    V lane[A::kSets];
#pragma GCC unroll 4
    for (int s = 0; s < A::kSets; ++s) lane[s] = -V{};
    add(x[k], lane);
#pragma GCC unroll 4
    for (int s = 0; s < A::kSets; ++s) sets[s][k] = lane[s];
  }
#pragma GCC unroll 4
  for (int s = 0; s < A::kSets; ++s) folded[s] = fold_terms(sets[s]);
  write_lane(folded, lanes + i, pitch);
}

template <class T>
void widen_each(const char* x, int64_t step, int64_t n, double* numbers) {
  const T* const dense = reinterpret_cast<const T*>(x);
  const bool is_dense = step == int64_t(sizeof(T));
  int64_t i = 0;
  if constexpr (std::is_integral<T>::value) {
#pragma omp simd
    for (int64_t k = 0; k < (is_dense ? n : 0); ++k) numbers[k] = double(dense[k]);
    for (; !is_dense && i < n; ++i) numbers[i] = double(*reinterpret_cast<const T*>(x + i * step));
  } else {
    for (; is_dense && i + kVector <= n; i += kVector) store(load(dense + i), numbers + i);
    for (; i < n; ++i) numbers[i] = to_double(*reinterpret_cast<const T*>(x + i * step));
  }
}

template <class A, int n, size_t... k>
FASTACT_HD void fold_every_row(const Vector (&rows)[n], int64_t i, const double* shift,
                               double* lanes, int64_t pitch, std::index_sequence<k...>) {
  const Vector terms[n] = {every_nth<n, k>(rows)...};
  fold_few<A>(terms, i, shift, lanes, pitch);
}

// Outputs of n terms, down columns or along short rows: the latter by whole vectors and shuffles,
// which is faster than what GCC 12 makes of a loop over the rows.
template <int n, bool are_short_rows, class A, class T>
void few(const char* from, const int64_t* offsets, int64_t outputs, const double* shift,
         double* lanes, int64_t pitch) {
  const T* const x = reinterpret_cast<const T*>(from);
  const T* column[n];
  for (int k = 0; k < n && !are_short_rows; ++k)
    column[k] = reinterpret_cast<const T*>(from + offsets[k]);
  int64_t i = 0;
  for (; i + kVector <= outputs; i += kVector) {
    Vector terms[n];
    if (are_short_rows) prefetch<n * kVector>(x + i * n, kAhead);
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) {
      if (!are_short_rows) prefetch_far(column[k] + i, kAhead);
      terms[k] = load(are_short_rows ? x + i * n + k * kVector : column[k] + i);
    }
    if constexpr (are_short_rows)
      fold_every_row<A>(terms, i, shift, lanes, pitch, std::make_index_sequence<n>());
    else
      fold_few<A>(terms, i, shift, lanes, pitch);
  }
  for (; i < outputs; ++i) {
    double terms[n];
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) terms[k] = to_double(are_short_rows ? x[i * n + k] : column[k][i]);
    fold_few<A>(terms, i, shift, lanes, pitch);
  }
}

template <class A, class T>
void spread(const char* x, int64_t step, int64_t n, const double* shift, double* lanes,
            int64_t pitch) {
  for (int64_t i = 0; i < n; ++i) {
    double lane[A::kSets];
    for (int s = 0; s < A::kSets; ++s) lane[s] = -0.0;
    const typename A::template Adder<double, double> add(1, A::kHasShift ? shift[i] : 0.0);
    add(to_double(*reinterpret_cast<const T*>(x + i * step)), lane);
    write_lane(lane, lanes + i, pitch);
  }
}

template <class A>
void settle(const double* shift, const double* lanes, int64_t pitch, int64_t n, int64_t columns,
            double* results, int64_t to_pitch) {
#pragma omp simd
  for (int64_t i = 0; i < columns; ++i)
    A::settle(shift[i], lanes + i, pitch, n, results + i, to_pitch);
}

template <class A>
void merge(const Results& from, int64_t from_terms, const Results& to, int64_t to_terms,
           int64_t n) {
  from.errors ? A::template merge<true>(from, from_terms, to, to_terms, n)
              : A::template merge<false>(from, from_terms, to, to_terms, n);
}

// Does what narrow_once does; 16 bits by the hardware's conversion, but for what a NaN carries: a
// float16 has no payload.
template <class T, class Sum>
FASTACT_HD void finish_sums(Sum sum, T* y, int64_t n) {
  if constexpr (is_half<T>) {
    constexpr uint32_t kCarried = std::is_same<T, f16>::value ? 0xffc00000 : 0xffffffff;
    float odd[kChunk];
    for_chunks(n, [&](int64_t at, int64_t m) FASTACT_INLINED {
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) {
        const float rounded = round_to_odd(sum(at + i));
        const uint32_t bits = bit_cast<uint32_t>(rounded);
        odd[i] = rounded == rounded ? rounded : bit_cast<float>(bits & kCarried);
      }
      chunk_from_float(odd, y + at, m);
    });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = narrow_once<T>(sum(i));
  }
}

template <class T>
void finish(const double* hi, const double* lo, char* to, int64_t n) {
  T* const y = reinterpret_cast<T*>(to);
  if (lo)
    finish_sums([&](int64_t i) FASTACT_INLINED { return lo[i] == 0 ? hi[i] : hi[i] + lo[i]; }, y,
                n);
  else
    finish_sums([&](int64_t i) FASTACT_INLINED { return hi[i]; }, y, n);
}

// Each case has a loop of its own: one for both would load from null under a mask, which takes
// hundreds of cycles.
bool divide(double* x, const double* counts, double count, int64_t n) {
  if (!counts) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] /= count;
    return count > 0;
  }
  int64_t positive = 0;
#pragma omp simd reduction(+ : positive)
  for (int64_t i = 0; i < n; ++i) {
    x[i] /= counts[i];
    positive += counts[i] > 0;
  }
  return positive == n;
}

}  // namespace

#define FASTACT_FEW(is, A, T)                                              \
  {few<1, is, A, T>, few<2, is, A, T>, few<3, is, A, T>, few<4, is, A, T>, \
   few<5, is, A, T>, few<6, is, A, T>, few<7, is, A, T>, few<8, is, A, T>}
#define FASTACT_ROWS(A, T) \
  add_rows<A, T>, FASTACT_FEW(false, A, T), FASTACT_FEW(true, A, T), spread<A, T>
#define FASTACT_REDUCE(A, T) {blocks<A, T>, add_terms<A, T>, end_terms<A, T>, FASTACT_ROWS(A, T)}
// narrow: of 16 bits.
#define FASTACT_ACCUMULATOR_OF(A, narrow)                                                \
  {{FASTACT_REDUCE(narrow, f16), FASTACT_REDUCE(narrow, bf16), FASTACT_REDUCE(A, float), \
    FASTACT_REDUCE(A, double)},                                                          \
   A::kSets,                                                                             \
   A::kHasShift,                                                                         \
   A::kRetries,                                                                          \
   {A::kPasses<f16>, A::kPasses<bf16>, A::kPasses<float>, A::kPasses<double>},           \
   A::kHasShift ? settle<A> : nullptr,                                                   \
   merge<A>}
#define FASTACT_ACCUMULATOR(A) FASTACT_ACCUMULATOR_OF(A, A)
#define FASTACT_SUM(name, Term) FASTACT_ACCUMULATOR(Sum<Term>),

extern const WeightingKernels weighting_kernels;
extern const ReduceTable reduce_table;
const ReduceTable reduce_table = {
    {FASTACT_TERMS(FASTACT_SUM) FASTACT_ACCUMULATOR(ShiftedMoments), FASTACT_ACCUMULATOR(ValidMean),
     FASTACT_ACCUMULATOR(ValidMoments), FASTACT_ACCUMULATOR_OF(Sum<Square>, SquaresInDouble)},
    fold,
    {widen_each<f16>, widen_each<bf16>, widen_each<float>, widen_each<double>, widen_each<uint8_t>,
     widen_each<int32_t>, widen_each<int64_t>},
    {finish<f16>, finish<bf16>, finish<float>, finish<double>},
    divide,
    &weighting_kernels,
};

FASTACT_END_NAMESPACE
