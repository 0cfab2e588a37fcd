// Moments of rows of 2 to 4 elements, and their gradients: a thread has all terms of its results in
// registers.
//
// A kernel that adds up elements one by one keeps for each result what the next element may need,
// and asks for each what becomes of its sums. Few terms cost less than that: a variance of three
// took 181 instructions, where memory leaves time for 118. Here the number of terms is a constant,
// and the host finds once what all results are divided by.
//
// few_rows_gradient: gradients of such rows, of x and dx without gaps. The moments are found and
// used at once, so that x is read once.
//
// RowLane and OfMoments, and the gradients' functors, have the same operations in the same order:
// arrays that go by the other kernels, because they are misaligned for example, have the same bits.
#pragma once

#include "common/reductions/spread_call.h"
#include "cuda/reductions/gradients.cuh"
#include "cuda/reductions/moment_kernels.cuh"
#include "cuda/reductions/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Numbers that all results with all their terms share.
struct FewCount {
  OfM2 of_m2;
  bool skips, is_quick, is_of_m2;  // whether `second` is known; whether m2 is divided by left.n
  double correction, second;
  Denominator by, left;  // by the number of terms, and by that less the correction

  FewCount() = default;
  FewCount(int64_t terms, int of, double corrected, bool skips_nan)
      : of_m2(OfM2(of)), skips(skips_nan), correction(corrected) {
    by.set(double(terms));
    const double less = double(terms) - correction;
    is_of_m2 = of_m2 == kM2 || of_m2 == kSquaresOrRoot || of_m2 == kVariance;
    is_quick = is_of_m2 || of_m2 == kNothing || of_m2 == kMeanSlope || of_m2 == kVarianceSlope;
    if (of_m2 == kVariance || of_m2 == kVarianceSlope) is_quick = less > 0, left.set(less);
    second = of_m2 == kVarianceSlope ? 2 / less : of_m2 == kMeanSlope ? 1.0 / double(terms) : 0.0;
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
FASTACT_DEVICE double second_of(const FewCount& of, const FewMoments& m, int terms) {
  if (of.is_quick && m.n == terms) return of.is_of_m2 ? of.left.under(m.m2) : of.second;
  return slow_second(of.of_m2, m.m2, m.n, of.correction, of.skips);
}

// How many terms are no NaN.
template <class C, int terms>
FASTACT_DEVICE int count_of_few(const C (&x)[terms]) {
  int n = 0;
#pragma unroll
  for (int r = 0; r < terms; ++r) n += x[r] == x[r];
  return n;
}

// skips: NaN are left out. squares: m2 is wanted.
template <bool skips, bool squares, class C, int terms>
FASTACT_DEVICE FewMoments moments_of_few(const FewCount& of, const C (&x)[terms]) {
  FewMoments m{terms, 0, 0};
  C start = squares ? x[0] : C(0);  // what stands for an element that is left out
  if (skips) {
    m.n = count_of_few(x);
    if (squares) {
#pragma unroll
      for (int r = terms - 1; r >= 0; --r)
        if (x[r] == x[r]) start = x[r];
    }
  }
  double sum = 0, of_squares = 0, shift = 0;
#pragma unroll
  for (int r = 0; r < terms; ++r) {
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

// Writes the results of such a row (few_rows of kernels.cuh).
template <class T, bool skips, bool squares>
struct FewMomentsOf {
  static constexpr int kBlocks = sizeof(T) == 2 ? 2 : 4;
  MomentResults to;
  FewCount of;
  struct Results {
    OfMoments of[Vec<T>::kSize];
  };

  template <int inner>
  FASTACT_DEVICE void take(int j, const Compute<T> (&x)[inner], Results& results) const {
    const FewMoments m = moments_of_few<skips, squares>(of, x);
    results.of[j] = OfMoments(m.mean, 0, to.second ? second_of(of, m, inner) : 0.0, m.n);
  }
  FASTACT_DEVICE void put(const Results& results, int64_t at, int64_t step, int rows) const {
    for_results(to, at, [&](char* p, int k) {
      if (to.wide) return store_columns<double, 2>(results.of, p, step, rows, k);
      store_columns<T, Vec<T>::kSize>(results.of, p, step, rows, k);
    });
  }
};

// Queues the kernel for rows of few elements, if there is one for this layout. Means alone that
// skip nothing are asked for by gradients of odd layouts, and have none.
template <class T, bool skips, bool squares>
bool reduce_few(const Reduction& plan, const MomentResults& to, cudaStream_t stream) {
  if constexpr (sizeof(T) < sizeof(double) && (skips || squares)) {
    if (!has_few_of_row<T>(plan) || to.of_m2 == kTotal || to.other >= 0) return false;
    const FewCount count(plan.inner, to.of_m2, to.correction, skips);
    run_few<T>(plan, FewMomentsOf<T, skips, squares>{to, count}, stream);
    return true;
  }
  return false;
}

// --- gradients

// dx OUT, or IN/OUT +=, of x IN, arrays without gaps of results x terms.
template <class T>
struct FewGradient {
  const T* x;
  T* dx;
  const char *dy, *dsecond;  // IN; dsecond: null, but where dy is the mean's
  int64_t step[2];           // bytes of these, from result to result
  uint32_t results;
  bool accumulate;
  FewCount of;
  Compute<T> slope;         // of a result that has all its terms
  Compute<T> share, scale;  // with dsecond
  Compute<T> of_nan;

  // Makes of the terms of a result their gradients.
  template <bool skips, int terms>
  FASTACT_DEVICE void apply(Compute<T> (&term)[terms], Compute<T> dy_here,
                            Compute<T> dsecond_here) const {
    using C = Compute<T>;
    FewMoments m{terms, 0, 0};
    if (of.of_m2 == kMeanSlope)
      m.n = skips ? count_of_few(term) : terms;
    else if (of.of_m2 == kDeviationSlope)
      m = moments_of_few<skips, true>(of, term);
    else
      m = moments_of_few<skips, false>(of, term);
    SpreadOfResult<T> result{};
    if (of.of_m2 == kM2) {
      result.product = scale * dsecond_here, result.of_mean = share * dy_here;
    } else {
      const bool is_known = of.is_quick && (!skips || m.n == terms);
      result.product = (is_known ? slope : C(second_of(of, m, terms))) * dy_here;
    }
    result.mean = {C(m.mean), C(finite_or_zero(m.mean - double(C(m.mean))))};
#pragma unroll
    for (int r = 0; r < terms; ++r) term[r] = spread_gradient(of.of_m2, term[r], result, of_nan);
  }
};

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
  T dy[kSize] = {}, dsecond[kSize] = {};
  load_numbers(g.dy + first * g.step[0], g.step[0], rows, dy);
  if (g.dsecond) load_numbers(g.dsecond + first * g.step[1], g.step[1], rows, dsecond);
  few.change_each([&](int j, Compute<T>(&x)[inner]) {
    g.template apply<skips>(x, widen(dy[j]), widen(dsecond[j]));
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
  __syncthreads();  // dx may be x, which other threads of the warp have read by then
  T* const of_block = g.dx + int64_t(first_of_block) * inner;
#pragma unroll
  for (int i = 0; i < inner; ++i) {
    const int vec = warp * inner + i * kWarp + lane;
    store_vec(of_block + vec * kSize, Vec<T>(tile[vec]));
  }
}

// Queues that kernel, if there is one for this layout. model: an array of the results, without
// gaps, over x's shape.
template <class T>
bool run_few_gradient(const SpreadBackwardCall& call, const ArrayArgument& model,
                      cudaStream_t stream) {
  if constexpr (sizeof(T) < sizeof(double)) {
    using Call = SpreadBackwardCall;
    enum : int { kModel, kDy, kDSecond, kX, kDx, kCount };
    const Operand arrays[kCount] = {model, call.arrays[Call::kDy], call.arrays[Call::kDSecond],
                                    call.arrays[Call::kX], call.arrays[Call::kDx]};
    ElementwisePlan plan;
    plan_elementwise(&plan, sizeof(T), kCount, arrays);
    const int last = plan.ndim - 1;
    const auto step_of = [&](int k) { return last > 0 ? plan.strides[k][last - 1] : 0; };
    const int64_t terms = plan.shape[last];
    const auto bits =
        reinterpret_cast<uintptr_t>(plan.data[kX]) | reinterpret_cast<uintptr_t>(plan.data[kDx]);
    const bool are_rows = plan.strides[kModel][last] == 0 && last < 2 &&
                          (last == 0 || step_of(kModel) == int64_t(sizeof(Found<T>)));
    if (!are_rows || terms < 2 || terms > kMostFewOfRow || plan.size > kMostDense ||
        !plan.contiguous[kX] || !plan.contiguous[kDx] || bits % kVecBytes != 0)
      return false;
    using C = Compute<T>;
    const FewCount count(terms, call.of_m2, call.correction, call.skips);
    const FewGradient<T> g{reinterpret_cast<const T*>(plan.data[kX]),
                           reinterpret_cast<T*>(plan.data[kDx]),
                           plan.data[kDy],
                           plan.data[kDSecond],
                           {step_of(kDy), step_of(kDSecond)},
                           uint32_t(plan.size / terms),
                           call.accumulate,
                           count,
                           C(count.second),
                           C(call.share),
                           C(call.scale),
                           gradient_of_nan<T>(call.skips)};
    const auto kernel = kernel_of_few(terms, [&](auto n) {
      return call.skips ? few_rows_gradient<n(), T, true> : few_rows_gradient<n(), T, false>;
    });
    launch(kernel, {ceil_div(g.results, kThreads * Vec<T>::kSize), kThreads}, stream, g);
    return true;
  }
  return false;
}

}  // namespace
FASTACT_END_NAMESPACE
