// The statistic of a softmax: of each row the largest z, m, and the sum of exp(z - m) over the
// others.
//
// A row is in registers, z first. Its largest z is found and folded over the lanes; then the terms
// are made, and where a kind writes them they take the place of z. With m known no sum is rescaled.
//
// Terms are exp(z - K ln 2) 2^40 (float), K ln 2 near m: z is reduced by itself, exactly but for
// the last bit (common/softmax/softmax.h), and none is subnormal before it is divided by the sum.
// `one`, the term of m, is between 2^39.5 and 2^40.5. Of 16 bits they are 2^(z log2(e) - K + 40),
// rounded once: what rounds log2(e) is the same factor in all terms. Where m is far from 0, or z
// lies down by a power of two, z moves first: (z - m) up takes its place. That is exact for all
// whose terms are not 0, for they are beyond m / 2.
//
// Kinds that need log(sum) count elements equal to m and do not add them, so that log(sum) =
// log1p(rest / one + count - 1) has all its bits where the others are tiny.
//
// A thread adds up its terms in the compute type, as a tree; the threads' sums are added in double.
//
// m is NaN where an element is: then all that follows is, as where m is infinity, lse aside. Where
// m is -infinity no element takes part, and 0 stands for m: all terms are 0. Such a row gives 0 and
// -infinity with a mask, NaN without.
#pragma once

#include "common/softmax/softmax.h"
#include "cuda/softmax/row_access.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class C>
FASTACT_DEVICE C infinity() {
  return C(__builtin_inf());
}

// The larger of two; NaN where one is.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FASTACT_DEVICE float larger(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#else
FASTACT_DEVICE float larger(float a, float b) { return b > a || b != b ? b : a; }
#endif
FASTACT_DEVICE double larger(double a, double b) { return b > a || b != b ? b : a; }
// The smaller of two; of NaN anything.
template <class C>
FASTACT_DEVICE C smaller_of(C a, C b) {
  return b < a ? b : a;
}

// Where the largest z is beyond it, z moves: then z - m is exact from m / 2 on, and all further
// terms are 0.
constexpr double kFar = 2048;

// How z of a row becomes what its terms are made of: less `by`, and up. m: the largest z, 0 where
// nothing takes part.
template <class C>
struct Move {
  C by, up;

  FASTACT_DEVICE static Move of(C m, C up) {
    const bool is_near = magnitude(m * up) <= C(kFar);
    return {is_near ? C(0) : m, up};
  }
  FASTACT_DEVICE bool is_needed() const { return by != 0 || up != 1; }
  FASTACT_DEVICE C operator()(C z) const { return (z - by) * up; }
};

// Terms are multiplied by this power of two: those of 16 bits as little as their least results
// take, for a scale is part of the exponent, which it rounds.
template <class T>
constexpr int kTermScale = Tail<Compute<T>>::kScale;
template <>
constexpr int kTermScale<f16> = 0;
template <>
constexpr int kTermScale<bf16> = 8;

// What the terms of a row are relative to: the largest z, and what makes them. scale: of 16 bits.
template <class T>
struct TermsAt {
  using C = Compute<T>;
  C m, limit, magic;

  FASTACT_DEVICE static TermsAt of(C m, int scale = kTermScale<T>) {
    if constexpr (kApproximate<T>) {
      return {m, C(0), C(scale) - reference_exponent(m)};
    } else {
      const SoftmaxReference<C> reference = reference_of(m);
      return {m, reference.limit, reference.magic};
    }
  }
  FASTACT_DEVICE C operator()(C z) const {
    if constexpr (kApproximate<T>)
      return power_of_two_estimate(madd(z, ExpTraits<C>::kLog2E, magic));
    return exp_near_held(larger(z, limit), SoftmaxReference<C>{limit, magic});
  }
};

// Sums over a row, or over each of neighbouring rows. rest and count: of the terms below m, and of
// the elements equal to it, where they are told apart; else all terms and 0. Of cross_entropy: mass
// is the sum of the shares a of the classes, apart that of a (m - z).
template <class T, int n>
struct Peak {
  Compute<T> max[n];
  TermsAt<T> at[n];
  double rest[n], count[n], mass[n], apart[n];
};

template <class T, class Rows>
FASTACT_DEVICE Compute<T> class_weight(const Rows& rows, int64_t row, int64_t element) {
  if (!rows.data[kWeight]) return Compute<T>(1);
  return load_number<T>(element_address(rows, kWeight, row, element), rows.weight_dtype);
}

// The shares of the classes in the loss of a row, beside that of a target's index.
template <class T, class Rows>
FASTACT_DEVICE Wide<T> shares_of(const Rows& rows, const RowPart& part, int i, int valid) {
  using C = Compute<T>;
  Wide<T> share{};
  if (rows.data[kDy]) share = widen_vec(read_vec<T>(rows, kDy, part, i));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    if (j >= valid) {
      share.lane[j] = 0;
      continue;
    }
    share.lane[j] = madd(C(rows.smoothing.keep), share.lane[j], C(rows.smoothing.smooth));
    if (rows.data[kWeight])
      share.lane[j] *=
          class_weight<T>(rows, row_at<Rows>(part, j), element_at<T, Rows>(part, i, j));
  }
  return share;
}

// What finding a peak leaves of the elements, and what it adds: constants of quick rows' kernels.
struct PeakWays {
  bool keeps;   // terms take the place of z; else z stays, moved
  bool sorts;   // what writes nothing keeps the smaller of each element and the largest before it:
                // all but one of a thread's largest. So none is compared with the row's largest.
  bool shares;  // of all classes
};

// The peak of the part of a thread, folded over the lanes. kSums: 1 without counts, 4 with shares.
template <class T, int kSums, int vecs, class Rows, int n>
FASTACT_DEVICE void find_peak(const Rows& rows, const RowPart& part, const PeakWays& ways,
                              Wide<T> (&z)[vecs], int& fold_index, Peak<T, n>* peak) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  constexpr bool kMayShare = kSums > 2;
  const bool shares = kMayShare && ways.shares;
  const C up = C(rows.up);
#pragma unroll
  for (int s = 0; s < n; ++s) peak->max[s] = -infinity<C>();
#pragma unroll
  for (int i = 0; i < vecs; ++i)
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      C& max = peak->max[row_in_vec<Rows>(j)];
      const C value = z[i].lane[j];
      if (ways.sorts) z[i].lane[j] = smaller_of(max, value);
      max = larger(max, value);
    }
  C own[n];
#pragma unroll
  for (int s = 0; s < n; ++s) own[s] = peak->max[s];
  fold(rows, peak->max, fold_index, [](C a, C b) { return larger(a, b); }, -infinity<C>());
#pragma unroll
  for (int s = 0; s < n; ++s) {
    const C m = peak->max[s] == -infinity<C>() ? C(0) : peak->max[s];
    const Move<C> move = Move<C>::of(m, up);
    if (move.is_needed()) {
      own[s] = move(own[s]);
#pragma unroll
      for (int i = 0; i < vecs; ++i)
#pragma unroll
        for (int j = s; j < kSize; j += n) z[i].lane[j] = move(z[i].lane[j]);
    }
    peak->at[s] = TermsAt<T>::of(move(m));
  }
  TreeSum<T, vecs, n> rest, mass, apart;
  int count[n] = {};
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    Wide<T> term{}, share{}, distance{};
    if (Rows::kQuick || i < part.count) {
      if (shares) share = shares_of<T>(rows, part, i, lanes_there<T>(rows, part, i));
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int s = row_in_vec<Rows>(j);
        const C value = z[i].lane[j], made = peak->at[s](value);
        const bool is_top = !ways.keeps && !ways.sorts && value == peak->at[s].m;
        term.lane[j] = is_top ? C(0) : made;
        count[s] += is_top;
        if (ways.keeps) z[i].lane[j] = made;
        if (!kMayShare) continue;
        const C far = share.lane[j] * (peak->at[s].m - value);
        distance.lane[j] = share.lane[j] == 0 ? C(0) : far;  // past the end, too
      }
    }
    rest.add(i, term);
    if (kMayShare) mass.add(i, share), apart.add(i, distance);
  }
  double sums[kSums * n];
#pragma unroll
  for (int s = 0; s < n; ++s) {
    sums[s] = rest.total(s);
    if (ways.sorts) {
      count[s] = own[s] == peak->at[s].m;
      sums[s] += count[s] ? 0.0 : double(peak->at[s](own[s]));
    }
    if constexpr (kSums > 1) sums[n + s] = double(count[s]);
    if constexpr (kMayShare) sums[2 * n + s] = mass.total(s), sums[3 * n + s] = apart.total(s);
  }
  fold_sums(rows, sums, fold_index);
#pragma unroll
  for (int s = 0; s < n; ++s) {
    peak->rest[s] = sums[s];
    peak->count[s] = kSums > 1 ? sums[(kSums > 1) * n + s] : 0.0;
    if constexpr (kMayShare) peak->mass[s] = sums[2 * n + s], peak->apart[s] = sums[3 * n + s];
  }
}

// log(1 + rest), rest >= 0: of 2^k (1 + u) as k log(2) + log1p(u).
template <class C>
FASTACT_DEVICE C log_of_sum(double rest) {
  if (rest <= 1) return log1p_of_unit(C(rest));
  const double sum = 1 + rest;
  const int k = int(bit_cast<uint64_t>(sum) >> 52) - 1023;
  const double down = bit_cast<double>(uint64_t(1023 - k) << 52);
  const C u = C(madd(sum, down, -1.0));
  const C high = madd(C(k), ExpTraits<C>::kLn2Low, log1p_of_unit(u));
  return madd(C(k), ExpTraits<C>::kLn2High, high);
}

// The sums of one row. rest is of terms, or of exp(z - m) where they are a chunk's.
struct RowSums {
  double max, rest, count, mass, apart;
};
template <class T, int n>
FASTACT_DEVICE RowSums sums_of(const Peak<T, n>& peak, int s) {
  return {double(peak.max[s]), peak.rest[s], peak.count[s], peak.mass[s], peak.apart[s]};
}

// What follows from a row's sums; m: the maximum, moved as z is.
template <class C>
struct Level : SoftmaxLevel<C> {
  C m;
};
template <class T>
FASTACT_DEVICE Level<Compute<T>> level_of(const RowSums& sums, const TermsAt<T>& at, bool masked,
                                          double up, bool wants_log) {
  using C = Compute<T>;
  const C max = C(sums.max);
  if (max == -infinity<C>() || max == infinity<C>()) return {infinite_level(max, masked), C(0)};
  const double one = double(at(at.m));
  const double whole = sums.count == 0 ? sums.rest : sum_of_terms(sums.rest, sums.count, one);
  const C factor = C(divide(1.0, whole));
  if (!wants_log) return {{max, C(0), C(0), factor}, at.m};
  const C log = log_of_sum<C>(sum_beside_one(sums.rest, sums.count, one));
  return {{max, log, max * C(up) + log, factor}, at.m};
}

// The same called: of columns a vector has up to eight rows, each of which would have a copy.
template <class T>
FASTACT_DEVICE_CALL Level<Compute<T>> level_called(RowSums sums, TermsAt<T> at, bool masked,
                                                   double up, bool wants_log) {
  return level_of<T>(sums, at, masked, up, wants_log);
}

// The sums of a row from those of its chunks, of which a lane of a warp has every 32nd, given to
// all lanes.
constexpr int kPeakFields = 5;
FASTACT_DEVICE RowSums merge_peaks(const double* peaks, int64_t count, double up, bool shares) {
  const int lane = int(threadIdx.x) % kWarp;
  double max = -infinity<double>();
  for (int64_t c = lane; c < count; c += kWarp) max = larger(max, load(peaks + c * kPeakFields));
  max = warp_fold(max, [](double a, double b) { return larger(a, b); });
  RowSums whole{max, 0, 0, 0, 0};
  for (int64_t c = lane; c < count; c += kWarp) {
    const double* peak = peaks + c * kPeakFields;
    const double of_chunk = load(peak), rest = load(peak + 1), ones = load(peak + 2);
    if (of_chunk == max) {
      whole.rest += rest, whole.count += ones;
    } else if (of_chunk > -infinity<double>() || max != max) {
      // A NaN stays one.
      const double apart = no_less((of_chunk - max) * up, kExpZero<double>);
      whole.rest += (rest + ones) * exp_scaled<0>(apart).value();
    }
    if (shares) {
      const double mass = load(peak + 3);
      // Where a chunk has nothing, 0 stands for its m.
      const double from = of_chunk == -infinity<double>() ? 0.0 : of_chunk;
      const double to = max == -infinity<double>() ? 0.0 : max;
      whole.mass += mass;
      whole.apart += mass == 0 ? load(peak + 4) : load(peak + 4) + mass * (to - from);
    }
  }
  whole.rest = warp_sum(whole.rest), whole.count = warp_sum(whole.count);
  if (shares) whole.mass = warp_sum(whole.mass), whole.apart = warp_sum(whole.apart);
  return whole;
}

template <class T>
FASTACT_DEVICE Level<Compute<T>> merged_level(RowSums sums, bool masked, double up) {
  using C = Compute<T>;
  const C m = sums.max == -infinity<double>() ? C(0) : C(sums.max);
  const TermsAt<T> at = TermsAt<T>::of(Move<C>::of(m, C(up))(m));
  sums.rest *= double(at(at.m));
  return level_of<T>(sums, at, masked, up, true);
}

// A number of a row, of x's dtype or of the compute type.
template <class T, class Rows>
FASTACT_DEVICE void put_number(const Rows& rows, int role, int64_t row, int dtype, double value) {
  if (rows.data[role]) put_parameter<T>(number_address(rows, role, row), dtype, value, false);
}

}  // namespace
FASTACT_END_NAMESPACE
