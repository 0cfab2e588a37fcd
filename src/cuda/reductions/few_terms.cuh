// Moments of few terms, and their gradients: a thread has all terms of its results in registers.
//
// A kernel that adds up elements one by one keeps for each result what the next element may need,
// and asks for each what becomes of its sums. Of few terms that costs more than the terms: of
// (3, N) over axis 0 a variance took 181 instructions a result, where memory leaves time for 118.
// Here the number of terms is a constant, or at most one, and the host finds once what all results
// are divided by.
//
//   few_columns            columns of at most kMostFewRows rows, whole aligned vectors
//   few_rows               rows of 2 to 4 elements that touch and begin at a multiple of 16 bytes
//   few_rows_rounded       variances and deviations of the same, of 16 bits to 16 bits
//   few_columns_gradient   gradients of the same, of x and dx without gaps: the moments are found
//   few_rows_gradient      and used at once, so that x is read once
//
// RowLane, ColumnLane and OfMoments, and the gradients' functors, have the same operations in the
// same order: arrays that go by the other kernels, because they are misaligned for example, have
// the same bits.
#pragma once

#include "cuda/reductions/gradients.cuh"
#include "cuda/reductions/moment_kernels.cuh"
#include "cuda/reductions/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kMostFewRows = 8;  // of 16 bits 4, but for gradients: results take registers
constexpr int kMostFewOfRow = 4;

// Numbers that all results with all their terms share.
struct FewCount {
  int terms;
  OfM2 of_m2;
  bool skips, is_quick, is_of_m2;  // whether `second` is known; whether m2 is divided by left.n
  double correction, second;
  Denominator by, left;  // by the number of terms, and by that less the correction
  float of_pairs = 0;    // by what few_rows_rounded multiplies squares, or 0

  FewCount() = default;
  FewCount(int count, OfM2 of, double corrected, bool skips_nan)
      : terms(count), of_m2(of), skips(skips_nan), correction(corrected) {
    by.set(terms);
    const double less = terms - correction;
    is_of_m2 = of_m2 == kM2 || of_m2 == kSquaresOrRoot || of_m2 == kVariance;
    is_quick = is_of_m2 || of_m2 == kNothing || of_m2 == kMeanSlope || of_m2 == kVarianceSlope;
    if (of_m2 == kVariance || of_m2 == kVarianceSlope) is_quick = less > 0, left.set(less);
    second = of_m2 == kVarianceSlope ? 2 / less : of_m2 == kMeanSlope ? 1.0 / terms : 0.0;
    if ((of_m2 == kVariance || of_m2 == kDeviation) && less * terms >= 1)
      of_pairs = float(1 / (less * terms));
  }
};

struct FewMoments {
  int n;
  double mean, m2;
};

FASTACT_DEVICE_CALL double slow_second(OfM2 what, double m2, double count, double correction,
                                       bool skips) {
  const double second = second_moment(what, m2, count, correction, skips);
  return what == kDeviationSlope && second == 0 && m2 > 0 ? -0.0 : second;
}
FASTACT_DEVICE double second_of(const FewCount& of, const FewMoments& m) {
  if (of.is_quick && m.n == of.terms) return of.is_of_m2 ? of.left.under(m.m2) : of.second;
  return slow_second(of.of_m2, m.m2, m.n, of.correction, of.skips);
}

// How many of the first `terms` are no NaN.
template <class C, int most>
FASTACT_DEVICE int count_of_few(const C (&x)[most], int terms) {
  int n = 0;
#pragma unroll
  for (int r = 0; r < most; ++r)
    if (r < terms) n += x[r] == x[r];
  return n;
}

// skips: NaN are left out. squares: m2 is wanted.
template <bool skips, bool squares, class C, int most>
FASTACT_DEVICE FewMoments moments_of_few(const FewCount& of, const C (&x)[most], int terms) {
  FewMoments m{terms, 0, 0};
  C start = squares ? x[0] : C(0);  // what stands for an element that is left out
  if (skips) {
    m.n = count_of_few(x, terms);
    if (squares) {
#pragma unroll
      for (int r = most - 1; r >= 0; --r)
        if (r < terms && x[r] == x[r]) start = x[r];
    }
  }
  double sum = 0, of_squares = 0, shift = 0;
#pragma unroll
  for (int r = 0; r < most; ++r) {
    if (r >= terms) break;
    const C taken = skips && x[r] != x[r] ? start : x[r];
    const double wide = double(taken);
    if (squares && r == 0) shift = start - start == 0 ? wide : 0.0;
    const double d = squares ? wide - shift : wide;
    sum += d;
    if (squares) of_squares = madd(d, d, of_squares);
  }
  double average;
  if (!skips || m.n == terms) {
    average = of.by.under(sum);
  } else if (m.n == 0) {
    m.mean = __builtin_nan("");
    return m;
  } else {
    Denominator by;
    by.set(m.n);
    average = by.under(sum);
  }
  m.mean = shift + average;
  if (squares) {
    const double rest = madd(-average, sum, of_squares);
    m.m2 = rest < 0 ? 0.0 : rest;
  }
  return m;
}

// Writes results `step` bytes apart, `count` of them. number_of(j, Y): the j-th, as Y.
template <class Y, int n, class NumberOf>
FASTACT_DEVICE void put_numbers(char* p, int64_t step, int count, const NumberOf& number_of) {
  Y numbers[n];
#pragma unroll
  for (int j = 0; j < n; ++j) numbers[j] = number_of(j, Y{});
  store_lanes(p, step, count, numbers);
}
template <class T, int n>
FASTACT_DEVICE void put_few(const MomentResults& to, const FewCount& of, const FewMoments (&m)[n],
                            int64_t at, int64_t step, int count) {
  const auto put = [&](char* p, const auto& number_of) {
    if (!p) return;
    if (to.wide)
      put_numbers<double, n>(p + at, step, count, number_of);
    else
      put_numbers<T, n>(p + at, step, count, number_of);
  };
  put(to.mean, [&](int j, auto y) { return narrow_once<decltype(y)>(m[j].mean); });
  put(to.low, [&](int j, auto y) {
    const double rounded = double(widen(narrow_once<decltype(y)>(m[j].mean)));
    return narrow_once<decltype(y)>(finite_or_zero(m[j].mean - rounded));
  });
  put(to.second, [&](int j, auto y) { return narrow_once<decltype(y)>(second_of(of, m[j])); });
  put(to.count, [&](int j, auto y) { return narrow_once<decltype(y)>(double(m[j].n)); });
}

template <int most, class T, bool skips, bool squares>
FASTACT_KERNEL_OF(kThreads, sizeof(T) == 2 || most > 4 || (skips && squares) ? 2 : 3)
void few_columns(FASTACT_GRID_CONSTANT const ColumnSums sums,
                 FASTACT_GRID_CONSTANT const MomentResults to,
                 FASTACT_GRID_CONSTANT const FewCount of) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t tasks = sums.kept.size * sums.tiles;
  for (int64_t task = int64_t(blockIdx.x) * kThreads + threadIdx.x; task < tasks;
       task += int64_t(gridDim.x) * kThreads) {
    const int64_t outer = sums.kept.size > 1 ? quotient(task, sums.tiles) : 0;
    const int64_t column = (task - outer * sums.tiles) * kSize;
    const Offset at = locate(sums.kept, outer);
    const char* const p = sums.x + at.x + column * int64_t(sizeof(T));
    Vec<T> vecs[most];
#pragma unroll
    for (int r = 0; r < most; ++r)
      if (r < of.terms) vecs[r] = load_vec(reinterpret_cast<const T*>(p + r * sums.segments.x[0]));
    Wide<T> wide[most];
#pragma unroll
    for (int r = 0; r < most; ++r)
      if (r < of.terms) wide[r] = widen_vec(vecs[r]);
    FewMoments m[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      Compute<T> x[most];
#pragma unroll
      for (int r = 0; r < most; ++r)
        if (r < of.terms) x[r] = wide[r].lane[j];
      m[j] = moments_of_few<skips, squares>(of, x, of.terms);
    }
    put_few<T>(to, of, m, at.y + column * sums.inner_y, sums.inner_y, kSize);
  }
}

// Rows that touch, as many as a vector has elements, in `inner` vectors by words: of 16 bits eight
// numbers apart would take twice the registers.
template <int inner, class T>
struct FewRows {
  static constexpr int kSize = Vec<T>::kSize;
  Words vecs[inner];

  // The first `rows` are there. Only whole vectors meet others by words: else all would be taken
  // apart right behind their loads, which came one after the other then.
  FASTACT_DEVICE void read(const T* x, int64_t rows) {
    if (rows >= kSize) {
#pragma unroll
      for (int i = 0; i < inner; ++i) vecs[i] = bit_cast<Words>(load_vec(x + i * kSize));
    } else {
#pragma unroll
      for (int i = 0; i < inner; ++i) vecs[i] = some_words(x + i * kSize, rows * inner - i * kSize);
    }
  }
  static FASTACT_DEVICE_CALL Words some_words(const T* x, int64_t n) {
    return bit_cast<Words>(load_some(x, n));
  }
  FASTACT_DEVICE Compute<T> at(int element) const {
    return widen_words<T>(vecs[element / kSize]).lane[element % kSize];
  }
  // Calls visit(j, x) with the numbers of the j-th row.
  template <class Visit>
  FASTACT_DEVICE void for_each(const Visit& visit) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      Compute<T> x[inner];
#pragma unroll
      for (int r = 0; r < inner; ++r) x[r] = at(j * inner + r);
      visit(j, x);
    }
  }
  // The same, and puts back what it makes of them.
  template <class Visit>
  FASTACT_DEVICE void change_each(const Visit& visit) {
    Compute<T> even{};  // of 16 bits a word's first number, whose second may be the next row's
    for_each([&](int j, Compute<T>(&x)[inner]) {
      visit(j, x);
#pragma unroll
      for (int r = 0; r < inner; ++r) {
        const int element = j * inner + r, lane = element % kSize;
        Words& vec = vecs[element / kSize];
        if constexpr (sizeof(T) == sizeof(uint32_t)) {
          vec.word[lane] = bit_cast<uint32_t>(x[r]);
        } else {
          if (lane % 2 == 1) vec.word[lane / 2] = narrow_two(even, x[r], T{});
          even = x[r];
        }
      }
    });
  }
};

template <int inner, class T, bool skips, bool squares>
FASTACT_KERNEL_OF(kThreads, sizeof(T) == 2 ? 2 : 4)
void few_rows(FASTACT_GRID_CONSTANT const RowSums sums,
              FASTACT_GRID_CONSTANT const MomentResults to,
              FASTACT_GRID_CONSTANT const FewCount of) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t step = sums.kept.count > 0 ? sums.kept.y[0] : 0;
  for (int64_t first = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kSize; first < sums.tasks;
       first += int64_t(gridDim.x) * kThreads * kSize) {
    const int rows = up_to(sums.tasks - first);
    FewRows<inner, T> few;
    few.read(reinterpret_cast<const T*>(sums.x) + first * inner, rows);
    FewMoments m[kSize];
    few.for_each([&](int j, const Compute<T>(&x)[inner]) {
      m[j] = moments_of_few<skips, squares>(of, x, inner);
    });
    put_few<T>(to, of, m, first * step, step, rows);
  }
}

// A variance or deviation of 16 bits from the distances of all pairs, n m2 = sum (x - y)^2: in
// float32 within 11 roundings of 2^-24 each. Where all numbers within 2^-20 of it round
// to the same 16 bits, so does what moments_of_few finds. False where they don't, or where squares
// leave the range.
template <class T, int inner>
FASTACT_DEVICE bool round_second(const FewCount& of, const float (&x)[inner], T* y) {
  float squares = 0, apart = 0;
#pragma unroll
  for (int a = 0; a < inner; ++a)
#pragma unroll
    for (int b = a + 1; b < inner; ++b) {
      const float d = x[a] - x[b];
      squares = madd(d, d, squares);
      apart += __builtin_fabsf(d);
    }
  float second = squares * of.of_pairs;
  const bool is_in_range = second >= 0x1p-90f && second <= 0x1p90f;
  if (of.of_m2 == kDeviation) second = __builtin_sqrtf(second);
  const T least = narrow<T>(second * (1 - 0x1p-20f));
  *y = narrow<T>(second * (1 + 0x1p-20f));
  return (is_in_range && least.bits == y->bits) || apart == 0;
}
template <int inner>
struct FewRow {
  float x[inner];
};
template <class T, bool skips, int inner>
FASTACT_DEVICE_CALL T round_second_slowly(const FewCount& of, const FewRow<inner> row) {
  return narrow_once<T>(second_of(of, moments_of_few<skips, true>(of, row.x, inner)));
}

template <int inner, class T, bool skips>
FASTACT_KERNEL_OF(kThreads, inner < 4 ? 3 : 2)
void few_rows_rounded(FASTACT_GRID_CONSTANT const RowSums sums,
                      FASTACT_GRID_CONSTANT const MomentResults to,
                      FASTACT_GRID_CONSTANT const FewCount of) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t step = sums.kept.count > 0 ? sums.kept.y[0] : 0;
  for (int64_t first = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kSize; first < sums.tasks;
       first += int64_t(gridDim.x) * kThreads * kSize) {
    const int rows = up_to(sums.tasks - first);
    FewRows<inner, T> few;
    few.read(reinterpret_cast<const T*>(sums.x) + first * inner, rows);
    T second[kSize];
    few.for_each([&](int j, const float (&x)[inner]) {
      if (round_second(of, x, &second[j])) return;
      FewRow<inner> row;
#pragma unroll
      for (int r = 0; r < inner; ++r) row.x[r] = x[r];
      second[j] = round_second_slowly<T, skips>(of, row);
    });
    store_lanes(to.second + first * step, step, rows, second);
    if (to.mean) {
      T mean[kSize];
      few.for_each([&](int j, const float (&x)[inner]) {
        mean[j] = narrow_once<T>(moments_of_few<skips, true>(of, x, inner).mean);
      });
      store_lanes(to.mean + first * step, step, rows, mean);
    }
  }
}

// Queues the kernel for few terms, if there is one for this layout. Means alone that skip nothing
// are asked for by gradients of odd layouts, and have none.
template <class T, bool skips, bool squares>
bool reduce_few(const Reduction& plan, const MomentResults& to, cudaStream_t stream) {
  if constexpr (sizeof(T) < sizeof(double) && (skips || squares)) {
    constexpr int kSize = Vec<T>::kSize;
    constexpr int64_t kMostRows = sizeof(T) == 2 ? 4 : kMostFewRows;
    const bool is_few = plan.inner_reduced ? plan.inner <= kMostFewOfRow && plan.reduced.size == 1
                                           : plan.reduced.size <= kMostRows;
    if (!is_few || to.of_m2 == kTotal || to.other >= 0 || !plan.has_unit_inner) return false;
    const FewCount of(int(plan.terms()), to.of_m2, to.correction, skips);
    const auto run = [&](auto kernel, const auto& sums, int64_t tasks) {
      launch(kernel, {blocks_for(ceil_div(tasks, kThreads)), kThreads}, stream, sums, to, of);
      return true;
    };
    if (plan.inner_reduced) {
      if (plan.inner < 2 || !rows_touch(plan, sizeof(T)) ||
          reinterpret_cast<uintptr_t>(plan.x) % kVecBytes != 0)
        return false;
      const RowSums sums = plan_rows<T>(plan, nullptr);
      if constexpr (sizeof(T) == 2 && squares)
        if (to.second && of.of_pairs > 0 && !to.wide && !to.low && !to.count)
          return run(plan.inner == 2   ? few_rows_rounded<2, T, skips>
                     : plan.inner == 3 ? few_rows_rounded<3, T, skips>
                                       : few_rows_rounded<4, T, skips>,
                     sums, ceil_div(sums.tasks, kSize));
      const auto kernel = plan.inner == 2   ? few_rows<2, T, skips, squares>
                          : plan.inner == 3 ? few_rows<3, T, skips, squares>
                                            : few_rows<4, T, skips, squares>;
      return run(kernel, sums, ceil_div(sums.tasks, kSize));
    }
    const ColumnSums sums = plan_columns<T>(plan, nullptr);
    if (!has_few_rows(sums) || sums.access != kAligned || sums.width % kSize != 0 ||
        sums.segments.count > 1)
      return false;
    const int64_t tasks = sums.kept.size * sums.tiles;
    if constexpr (sizeof(T) > 2)
      if (of.terms > 4) return run(few_columns<kMostFewRows, T, skips, squares>, sums, tasks);
    return run(few_columns<4, T, skips, squares>, sums, tasks);
  }
  return false;
}

// --- gradients

// dx OUT, or IN/OUT +=, of x IN, arrays without gaps: outer x terms x width, or results x terms.
template <class T>
struct FewGradient {
  const T* x;
  T* dx;
  const char *dy, *dsecond;        // IN; dsecond: null, but where dy is the mean's
  int64_t outer_step[2], step[2];  // bytes of these, from result to result
  uint32_t results, width, row_vecs;
  Divisor by_row_vecs;
  FewCount of;
  bool accumulate;
  Compute<T> slope;         // of a result that has all its terms
  Compute<T> share, scale;  // with dsecond
  Compute<T> of_nan;

  // What the gradients of a result's terms follow from: its number of terms and its moments.
  struct Result {
    Compute<T> product, of_mean;  // of x - mean, or, of a mean, of all; what is added
    Centre<T> mean;
  };
  template <bool skips>
  FASTACT_DEVICE Result result_of(const FewMoments& m, int terms, Compute<T> dy_here,
                                  Compute<T> dsecond_here) const {
    using C = Compute<T>;
    const bool is_whole = !skips || m.n == terms;
    if (of.of_m2 == kMeanSlope) return {(is_whole ? slope : C(1.0 / m.n)) * dy_here, {}, {}};
    const C high = C(m.mean);
    const Centre<T> mean{high, C(finite_or_zero(m.mean - double(high)))};
    if (of.of_m2 == kM2) return {scale * dsecond_here, share * dy_here, mean};
    return {(of.is_quick && is_whole ? slope : C(second_of(of, m))) * dy_here, {}, mean};
  }
  FASTACT_DEVICE Compute<T> at(Compute<T> term, const Result& result) const {
    if (of.of_m2 == kMeanSlope) return term == term ? result.product : of_nan;
    const Compute<T> distance = result.mean.distance(term);
    if (of.of_m2 == kM2) return madd(result.product, distance, result.of_mean);
    return term == term ? result.product * distance : of_nan;
  }

  // Makes of the terms of a result their gradients.
  template <bool skips, int most>
  FASTACT_DEVICE void apply(Compute<T> (&term)[most], int terms, Compute<T> dy_here,
                            Compute<T> dsecond_here) const {
    FewMoments m{terms, 0, 0};
    if (of.of_m2 == kMeanSlope)
      m.n = skips ? count_of_few(term, terms) : terms;
    else if (of.of_m2 == kDeviationSlope)
      m = moments_of_few<skips, true>(of, term, terms);
    else
      m = moments_of_few<skips, false>(of, term, terms);
    const Result result = result_of<skips>(m, terms, dy_here, dsecond_here);
#pragma unroll
    for (int r = 0; r < most; ++r)
      if (r < terms) term[r] = at(term[r], result);
  }
};

// The gradients of a thread's results, `count` of them.
template <class T, int n>
FASTACT_DEVICE void load_few_numbers(const char* p, int64_t step, int count, Compute<T> (&to)[n]) {
  T numbers[n] = {};
  if (!p) {
  } else if (count >= n) {
    load_numbers(p, step, numbers);
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j)
      if (j < count) numbers[j] = load(reinterpret_cast<const T*>(p + j * step));
  }
#pragma unroll
  for (int j = 0; j < n; ++j) to[j] = widen(numbers[j]);
}

template <int most, class T, bool skips>
FASTACT_KERNEL_OF(kThreads, most > 4 || sizeof(T) == 2 ? 2 : 3)
void few_columns_gradient(FASTACT_GRID_CONSTANT const FewGradient<T> g) {
  constexpr int kSize = Vec<T>::kSize;
  const uint32_t task = uint32_t(blockIdx.x) * kThreads + threadIdx.x;
  const int terms = g.of.terms;
  if (task >= g.results) return;  // of vectors of them
  const uint32_t outer = g.by_row_vecs.quick(task);
  const uint32_t column = (task - outer * g.row_vecs) * kSize;
  const uint32_t element = outer * uint32_t(terms) * g.width + column;
  Vec<T> vecs[most];
#pragma unroll
  for (int r = 0; r < most; ++r)
    if (r < terms) vecs[r] = load_vec(g.x + element + r * g.width);
  Compute<T> dy[kSize], dsecond[kSize];
  load_few_numbers<T>(g.dy + outer * g.outer_step[0] + column * g.step[0], g.step[0], kSize, dy);
  const char* const second = g.dsecond;
  load_few_numbers<T>(second ? second + outer * g.outer_step[1] + column * g.step[1] : nullptr,
                      g.step[1], kSize, dsecond);
  Wide<T> wide[most];
#pragma unroll
  for (int r = 0; r < most; ++r)
    if (r < terms) wide[r] = widen_vec(vecs[r]);
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    Compute<T> x[most];
#pragma unroll
    for (int r = 0; r < most; ++r)
      if (r < terms) x[r] = wide[r].lane[j];
    g.template apply<skips>(x, terms, dy[j], dsecond[j]);
#pragma unroll
    for (int r = 0; r < most; ++r)
      if (r < terms) wide[r].lane[j] = x[r];
  }
#pragma unroll
  for (int r = 0; r < most; ++r) {
    if (r >= terms) break;
    T* const to = g.dx + element + r * g.width;
    if (g.accumulate) accumulate_onto(load_vec(to), wide[r]);
    store_vec(to, narrow_vec<T>(wide[r]));
  }
}

// A warp's vectors go through shared memory, so that each of its stores is of lines as a whole.
template <int inner, class T, bool skips>
FASTACT_KERNEL_OF(kThreads, sizeof(T) == 4 || inner < 4 ? 3 : 2)
void few_rows_gradient(FASTACT_GRID_CONSTANT const FewGradient<T> g) {
  constexpr int kSize = Vec<T>::kSize;
  FASTACT_SHARED(Vec<T>, tile, kThreads * inner);
  const uint32_t first_of_block = uint32_t(blockIdx.x) * (kThreads * kSize);
  const uint32_t first = first_of_block + threadIdx.x * kSize;
  const int rows = first < g.results ? up_to(g.results - first) : 0;
  const bool is_whole = g.results - first_of_block >= kThreads * kSize;
  T* const to = g.dx + int64_t(first) * inner;
  FewRows<inner, T> few, before{};
  few.read(g.x + int64_t(first) * inner, rows);
  if (g.accumulate) before.read(to, rows);
  Compute<T> dy[kSize], dsecond[kSize];
  load_few_numbers<T>(g.dy + first * g.step[0], g.step[0], rows, dy);
  const char* const second = g.dsecond;
  load_few_numbers<T>(second ? second + first * g.step[1] : nullptr, g.step[1], rows, dsecond);
  few.change_each([&](int j, Compute<T>(&x)[inner]) {
    g.template apply<skips>(x, inner, dy[j], dsecond[j]);
    if (!g.accumulate) return;
#pragma unroll
    for (int r = 0; r < inner; ++r) x[r] = before.at(j * inner + r) + x[r];
  });
  if (!is_whole) {
#pragma unroll
    for (int i = 0; i < inner; ++i)
      store_some(to + i * kSize, bit_cast<Vec<T>>(few.vecs[i]), rows * inner - i * kSize);
    return;
  }
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) - lane;
#pragma unroll
  for (int i = 0; i < inner; ++i)
    tile[int(threadIdx.x) * inner + i] = bit_cast<Vec<T>>(few.vecs[i]);
  __syncwarp();
  T* const of_block = g.dx + int64_t(first_of_block) * inner;
#pragma unroll
  for (int i = 0; i < inner; ++i) {
    const int vec = warp * inner + i * kWarp + lane;
    store_vec(of_block + vec * kSize, Vec<T>(tile[vec]));
  }
}

}  // namespace
FASTACT_END_NAMESPACE
