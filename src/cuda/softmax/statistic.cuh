// The statistic of a softmax: the largest z of each row, m, and the sum of exp(z - m) over the
// other elements.
//
// A row is in registers, z first. Its largest z is found and folded over the lanes; then the terms
// are made, and where a kind writes them they take the place of z. With m known no sum is rescaled.
//
// Terms are exp(z - K ln 2) 2^40 (float), K ln 2 near m: z is reduced by itself, exactly but for
// the last bit (common/softmax/softmax.h), and none is subnormal before it is divided by the sum.
// `one`, the term of m, is between 2^39.5 and 2^40.5. For 16 bits terms are 2^(z log2(e) - K + 40),
// rounded once: the error of log2(e) is the same factor in all terms. Where m is far from 0, or z
// is scaled down by a power of two, z moves first: (z - m) up takes its place. That is exact for
// all elements whose terms are not 0, for these are beyond m / 2.
//
// Kinds that need log(sum) count elements equal to m and do not add them, so that log(sum) =
// log1p(rest / one + count - 1) has all its bits where the others are tiny.
//
// A thread adds up its terms in the compute type, as a tree; the threads' sums are added in double.
//
// m is NaN where an element is NaN: then so are all results; and so they are where m is infinity,
// but for lse. Where m is -infinity no element takes part, and 0 stands for m: all terms are 0.
// Such a row gives 0 and -infinity with a mask, NaN without.
#pragma once

#include "common/softmax/softmax.h"
#include "cuda/softmax/row_access.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class C>
FASTACT_DEVICE C infinity() {
  return C(__builtin_inf());
}

// The larger of two numbers; NaN where one is NaN.
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
// The smaller of two numbers; any number where one is NaN.
FASTACT_DEVICE float smaller_of(float a, float b) { return fminf(a, b); }
FASTACT_DEVICE double smaller_of(double a, double b) { return b < a ? b : a; }

// z moves where the largest z is beyond it: then z - m is exact from m / 2 on, and all further
// terms are 0.
constexpr double kFar = 2048;

// m: the largest z, or 0 where nothing takes part.
template <class C>
FASTACT_DEVICE C reference_top(C max) {
  return max == -infinity<C>() ? C(0) : max;
}

// How z of a row moves before its terms are made: (z - by) up.
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

// Terms are multiplied by this power of two. For 16 bits it is as small as their least results
// allow, because the scale is part of the exponent, whose rounding grows with it: half of
// bfloat16's least number, 2^-134, beside a largest term of 2^-0.5, is above the 2^-126 that `ex2`
// flushes.
template <class T>
constexpr int kTermScale = Tail<Compute<T>>::kScale;
template <>
constexpr int kTermScale<f16> = 0;
template <>
constexpr int kTermScale<bf16> = 9;

// The reference of a row's terms: the largest z, and the numbers that make terms. scale: for 16
// bits.
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
    return parts(z).value();
  }
  FASTACT_DEVICE Exp<C> parts(C z) const {
    return exp_near_held(larger(z, limit), SoftmaxReference<C>{limit, magic});
  }
};

// The term beside m, which moves itself.
template <class T, class C>
FASTACT_DEVICE TermsAt<T> terms_beside(C m, C up) {
  return TermsAt<T>::of(Move<C>::of(m, up)(m));
}

// Sums over a row, or over each of neighbouring rows. Where elements equal to m are told apart,
// rest is the sum of the other terms and count the number of these elements; else rest has all
// terms, and count is 0. For cross_entropy mass is the sum of the shares a of the classes, apart
// the sum of a (m - z).
template <class T, int n>
struct Peak {
  Compute<T> max[n];
  TermsAt<T> at[n];
  double rest[n], count[n], mass[n], apart[n];
};

template <class T, class Rows>
FASTACT_DEVICE Compute<T> class_weight(const Rows& rows, int64_t row, int64_t element) {
  if (!rows.data[kWeight]) return Compute<T>(1);
  return load_number<T>(element_address(rows, kWeight, row, element), rows.dtypes.weight);
}

// The shares of the classes in the loss of a row; a target's index has its share besides.
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
    share.lane[j] = madd(C(rows.loss.smoothing.keep), share.lane[j], C(rows.loss.smoothing.smooth));
    if (rows.data[kWeight])
      share.lane[j] *=
          class_weight<T>(rows, row_at<Rows>(part, j), element_at<T, Rows>(part, i, j));
  }
  return share;
}

// How a peak is found: constants in the kernels of quick rows.
struct PeakWays {
  bool keeps;   // terms take the place of z; else z stays, moved
  bool sorts;   // for kinds without a y: each element is replaced by the smaller of itself and the
                // largest before it. That leaves all of a thread's elements but its largest, and
                // none has to be compared with the row's largest
  bool shares;  // the shares of all classes are added up too
};

// The peak of a thread's part, folded over the lanes. kSums: 1 without counts, 4 with shares.
template <class T, int kSums, int vecs, class Rows, int n>
FASTACT_DEVICE void find_peak(const Rows& rows, const RowPart& part, const PeakWays& ways,
                              Wide<T> (&z)[vecs], int& fold_index, Peak<T, n>* peak) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  constexpr bool kMayShare = kSums > 2;
  const bool shares = kMayShare && ways.shares;
  const C up = C(rows.up);
#pragma unroll
  for (int s = 0; s < n; ++s) {
    peak->max[s] = -infinity<C>();
    if constexpr (!Rows::kQuick)
      if (rows.data[kSink] && ways.keeps && s < part.columns)
        peak->max[s] = sink_of<T>(rows, part.row + s);
  }
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
    const C m = reference_top(peak->max[s]);
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

// log(1 + rest) for rest >= 0: with 1 + rest = 2^k (1 + u) it is k log(2) + log1p(u). Only the
// second term is rounded to C.
template <class C>
FASTACT_DEVICE double log_of_sum(double rest) {
  if (rest <= 1) return double(log1p_of_unit(C(rest)));
  const double sum = 1 + rest;
  const int k = int(bit_cast<uint64_t>(sum) >> 52) - 1023;
  const double down = bit_cast<double>(uint64_t(1023 - k) << 52);
  const C u = C(madd(sum, down, -1.0));
  const C high = madd(C(k), ExpTraits<C>::kLn2Low, log1p_of_unit(u));
  return madd(double(k), double(ExpTraits<C>::kLn2High), double(high));
}

// The sums of one row. rest adds up terms, or, for a chunk, exp(z - m).
struct RowSums {
  double max, rest, count, mass, apart;
};
template <class T, int n>
FASTACT_DEVICE RowSums sums_of(const Peak<T, n>& peak, int s) {
  return {double(peak.max[s]), peak.rest[s], peak.count[s], peak.mass[s], peak.apart[s]};
}

// The numbers that make y, from a row's sums: y = term inverse, or z - m - log, of z and m as they
// were moved. max is m before it was moved, or 0 where nothing takes part. rest: of lse.
template <class C>
struct Level : SoftmaxLevel<C> {
  C m, rest;
};
template <class T>
FASTACT_DEVICE Level<Compute<T>> level_of(const RowSums& sums, const TermsAt<T>& at, bool masked,
                                          double up, bool wants_log) {
  using C = Compute<T>;
  const C max = C(sums.max);
  if (max == -infinity<C>() || max == infinity<C>())
    return {infinite_level(max, masked), C(0), C(0)};
  const double one = double(at(at.m));
  const double whole = sums.count == 0 ? sums.rest : sum_of_terms(sums.rest, sums.count, one);
  const C factor = C(divide(1.0, whole));
  if (!wants_log) return {{max, C(0), C(0), factor}, at.m, C(0)};
  const double log = log_of_sum<C>(sum_beside_one(sums.rest, sums.count, one));
  const double top = double(max) * up;
  return {{max, C(log), C(top + log), factor}, at.m, C(rest_of_lse<C>(top, log))};
}

// Calls it: a vector of columns has up to eight rows, and each would have a copy of the
// code.
template <class T>
FASTACT_DEVICE_CALL Level<Compute<T>> level_called(RowSums sums, TermsAt<T> at, bool masked,
                                                   double up, bool wants_log) {
  return level_of<T>(sums, at, masked, up, wants_log);
}

// exp((a + b + rest) up), or exp(kExpZero) if that is more. Of -20 the rounding of a + b alone
// would be 8 ULP of double. up: a power of two.
FASTACT_DEVICE double exp_of_sum(double a, double b, double rest = 0, double up = 1) {
  const double sum = a + b, part = sum - a;
  const double lost = (a - (sum - part)) + (b - part) + rest;
  const double held = no_less(sum * up, kExpZero<double>);
  return exp_split<0>(held, held == sum * up ? lost * up : 0.0).value();
}

// The sums of a row, from its chunks' sums. Each lane of a warp merges every 32nd chunk, and all
// lanes get the result. from(i): the i-th number of the chunks.
constexpr int kPeakFields = 5;
template <class From>
FASTACT_DEVICE RowSums merge_peaks(const From& from, int lane, int64_t count, double up,
                                   bool shares) {
  double max = -infinity<double>();
  for (int64_t c = lane; c < count; c += kWarp) max = larger(max, from(c * kPeakFields));
  max = warp_fold(max, [](double a, double b) { return larger(a, b); });
  RowSums whole{max, 0, 0, 0, 0};
  for (int64_t c = lane; c < count; c += kWarp) {
    const int64_t peak = c * kPeakFields;
    const double of_chunk = from(peak), rest = from(peak + 1), ones = from(peak + 2);
    if (of_chunk == max) {
      whole.rest += rest, whole.count += ones;
    } else if (of_chunk > -infinity<double>() || max != max) {
      whole.rest += (rest + ones) * exp_of_sum(of_chunk, -max, 0, up);  // a NaN stays one
    }
    if (shares) {
      const double mass = from(peak + 3);
      // 0 stands for the m of a chunk of which no element takes part.
      const double lowered = reference_top(max) - reference_top(of_chunk);
      whole.mass += mass;
      whole.apart += mass == 0 ? from(peak + 4) : from(peak + 4) + mass * lowered;
    }
  }
  whole.rest = warp_sum(whole.rest), whole.count = warp_sum(whole.count);
  if (shares) whole.mass = warp_sum(whole.mass), whole.apart = warp_sum(whole.apart);
  return whole;
}

// The term of a row's sink, beside the largest z, which is no less.
template <class T, class Rows>
FASTACT_DEVICE_CALL Compute<T> sink_term(const Rows& rows, int64_t row, TermsAt<T> at,
                                         Compute<T> max) {
  using C = Compute<T>;
  return at(Move<C>::of(reference_top(max), C(rows.up))(sink_of<T>(rows, row)));
}

// exp((z - m) up), m no less than z.
FASTACT_DEVICE double term_below(double z, double m, double up) {
  return z == m ? 1.0 : exp_scaled<0>(no_less((z - m) * up, kExpZero<double>)).value();
}
// The sums of a row in chunks and of its sink, which is as a chunk of one element.
FASTACT_DEVICE RowSums with_sink(const RowSums& sums, double sink, double up) {
  RowSums whole = sums;
  whole.max = larger(sums.max, sink);
  if (sink > sums.max)
    whole.rest = (sums.rest + sums.count) * term_below(sums.max, sink, up), whole.count = 1;
  else
    whole.rest += term_below(sink, sums.max, up);
  return whole;
}

template <class T>
FASTACT_DEVICE Level<Compute<T>> merged_level(RowSums sums, bool masked, double up) {
  using C = Compute<T>;
  const TermsAt<T> at = terms_beside<T>(reference_top(C(sums.max)), C(up));
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
