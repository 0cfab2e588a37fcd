// Gradients of reductions: dx of an element is a function of the element and of a few numbers of
// the result that it took part in, as dy and the mean.
//
// The numbers repeat along the axes that were reduced. A thread has kVecsOfThread vectors of 16
// bytes, and reads all of them before it uses the first:
//
//   map_vectors   arrays without gaps, in memory's order. Two multiplications a vector (Divisor)
//                 find the result that an element belongs to. Where all lanes of a vector belong to
//                 one result, its numbers are read once
//   map_columns   the same where results lie along the innermost axis. A thread's kRowsOfThread
//                 vectors share the numbers that it read once. They are of rows as far apart as
//                 there are threads to a column, so that the vectors of a warp touch where a row is
//                 short. Where it is no whole number of vectors, several rows that are one are
//                 joined
//   map_anyhow    any strides, as in core/strided_map.cuh
//
// A functor F of data T has
//   kReadsX                          whether it reads x
//   kOfData                          how many numbers of a result are of T
//   kFound                           how many more a statistic found: of T, for 16 bits of double
//   Result result(const Numbers&)    all that follows from the numbers alone
//   at(x, result)                    dx of one element
//
// Numbers in double are converted once for each result: narrower elements are never computed in
// double. Bytes moved: x and dx once; the numbers come from the caches.
#pragma once

#include "common/reductions/moments.h"
#include "common/reductions/of_m2.h"
#include "common/reductions/terms.h"
#include "cuda/core/elementwise.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kVecsOfThread = 4;
// Rows of a thread, which share the numbers of their results; these cost more for 16-bit data.
template <class T>
constexpr int kRowsOfThread = sizeof(T) == 2 ? 8 : 4;

// The type in which a statistic's numbers are stored.
template <class T>
using Found = std::conditional_t<sizeof(T) == 2, double, T>;

template <class T, class F>
struct Numbers {
  Compute<T> of_data[F::kOfData];
  Found<T> found[F::kFound > 0 ? F::kFound : 1];
};

template <class F>
constexpr int kNumbersOf = F::kOfData + F::kFound;

// Reads the numbers of one result. address_of(c): the address of the c-th number.
template <class T, class F, class AddressOf>
FASTACT_DEVICE typename F::Result result_at(const F& f, const AddressOf& address_of) {
  Numbers<T, F> numbers;
#pragma unroll
  for (int c = 0; c < F::kOfData; ++c)
    numbers.of_data[c] = widen(load(reinterpret_cast<const T*>(address_of(c))));
#pragma unroll
  for (int c = 0; c < F::kFound; ++c)
    numbers.found[c] = load(reinterpret_cast<const Found<T>*>(address_of(F::kOfData + c)));
  return f.result(numbers);
}

// Numbers of the first `count` of neighbouring results, `step` bytes apart; by vectors where these
// touch and are aligned.
template <class N, int n>
FASTACT_DEVICE void load_numbers(const char* p, int64_t step, int count, N (&to)[n]) {
  constexpr int kSize = Vec<N>::kSize;
  if (n % kSize == 0 && count >= n && step == int64_t(sizeof(N)) && misalignment(p) == 0) {
#pragma unroll
    for (int i = 0; i < n / kSize; ++i) {
      const Vec<N> vec = load_vec(reinterpret_cast<const N*>(p) + i * kSize);
#pragma unroll
      for (int j = 0; j < kSize; ++j) to[i * kSize + j] = vec.lane[j];
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < n; ++j)
    if (j < count) to[j] = load(reinterpret_cast<const N*>(p + j * step));
}

// The places of the results of the elements of an array without gaps, outer x rows x inner;
// indices have 32 bits.
constexpr int64_t kMostDense = int64_t(1) << 31;  // elements
struct ResultPlaces {
  uint32_t inner, rows;
  Divisor by_inner, by_rows;
  int of_outer, of_row, of_inner;  // by how many results a step along each axis goes on
};
template <class T, class F>
struct DenseGradient {
  static constexpr int kSize = Vec<T>::kSize;
  const T* x;
  T* dx;
  uint32_t n, head, vecs;  // as in a ContiguousMap
  bool aligned, accumulate;
  bool x_repeats;  // one element stands for all
  ResultPlaces places;
  const char* numbers[kNumbersOf<F>];  // of the first result
  int number_step[kNumbersOf<F>];      // bytes from one result to the next; 0: one for all

  FASTACT_DEVICE auto addresses(int result) const {
    return [this, result](int c) { return numbers[c] + int64_t(result) * number_step[c]; };
  }
};
// The tasks of map_columns: vectors of a row, or of the rows that are joined to one; the number of
// such rows; a group is the rows that one thread takes.
struct ColumnTasks {
  uint32_t row_vecs, rows, groups, count;
  Divisor by_row_vecs, by_groups;
};

// The result of an element, and how many elements are left in its row, and rows after its own.
struct ElementPlace {
  int result;
  uint32_t left, rows_left;
};
FASTACT_DEVICE ElementPlace place_of(const ResultPlaces& of, uint32_t element) {
  const uint32_t row = of.by_inner.quick(element), within = element - row * of.inner;
  const uint32_t outer = of.by_rows.quick(row), here = row - outer * of.rows;
  return {int(outer) * of.of_outer + int(here) * of.of_row + int(within) * of.of_inner,
          of.inner - within, of.rows - here};
}

// Block 0 takes the elements before and after the vectors.
template <class T, class F>
FASTACT_DEVICE void map_ends(const DenseGradient<T, F>& map, const F& f) {
  if (blockIdx.x > 0) return;
  const uint32_t inside = map.vecs * Vec<T>::kSize;
  for (uint32_t e = threadIdx.x; e < map.n - inside; e += kMapThreads) {
    const uint32_t i = e < map.head ? e : e + inside;
    Compute<T> dx{};
    if (F::kReadsX) dx = widen(load(map.x + (map.x_repeats ? 0 : i)));
    dx = f.at(dx, result_at<T>(f, map.addresses(place_of(map.places, i).result)));
    if (map.accumulate) dx = widen(load(map.dx + i)) + dx;
    store(map.dx + i, narrow<T>(dx));
  }
}

// Writes dx of a vector x. of(j): the result of lane j.
template <class T, class F, class Of>
FASTACT_DEVICE void write_gradient(const F& f, const Vec<T>& x, T* to, bool accumulate,
                                   const Of& of) {
  const Wide<T> wide = widen_vec(x);
  Wide<T> dx;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) dx.lane[j] = f.at(wide.lane[j], of(j));
  if (accumulate) accumulate_onto(load_vec(to), dx);
  store_vec(to, narrow_vec<T>(dx));
}

// Reads the first `count` vectors of a thread from x, `step` elements apart.
template <class F, class T, int most>
FASTACT_DEVICE void read_x(const DenseGradient<T, F>& map, uint32_t first, uint32_t step, int count,
                           Vec<T> (&x)[most]) {
  if (!F::kReadsX) return;
  const T* p = map.x + first;
  if (map.x_repeats) {
#pragma unroll
    for (int u = 0; u < most; ++u) x[u] = repeat_element(map.x);
  } else if (map.aligned) {
#pragma unroll
    for (int u = 0; u < most; ++u)
      if (u < count) x[u] = load_vec(p + int64_t(u) * step);
  } else {
#pragma unroll
    for (int u = 0; u < most; ++u)
      if (u < count) x[u] = load_window(p + int64_t(u) * step, map.x, map.x + map.n);
  }
}

// is_uniform: all lanes of each vector have one result.
template <class T, class F, bool is_uniform>
FASTACT_KERNEL_OF(kMapThreads, is_uniform || sizeof(T) > 2 ? kMapBlocks<T> : 2)
void map_vectors(FASTACT_GRID_CONSTANT const DenseGradient<T, F> map,
                 FASTACT_GRID_CONSTANT const F f) {
  constexpr int kSize = Vec<T>::kSize;
  const uint32_t vec = uint32_t(blockIdx.x) * (kMapThreads * kVecsOfThread) + threadIdx.x;
  const int count =
      vec < map.vecs ? int(smaller((map.vecs - vec - 1) / kMapThreads + 1, kVecsOfThread)) : 0;
  const uint32_t first = map.head + vec * kSize;
  const auto element_of = [&](int u) { return first + u * (kMapThreads * kSize); };
  Vec<T> x[kVecsOfThread];
  if constexpr (is_uniform) {
    typename F::Result results[kVecsOfThread];
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u)
      if (u < count)
        results[u] = result_at<T>(f, map.addresses(place_of(map.places, element_of(u)).result));
    read_x(map, first, kMapThreads * kSize, count, x);
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u)
      if (u < count)
        write_gradient(f, x[u], map.dx + element_of(u), map.accumulate,
                       [&](int) { return results[u]; });
  } else {
    const ResultPlaces& of = map.places;
    read_x(map, first, kMapThreads * kSize, count, x);
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u) {
      if (u >= count) break;
      const ElementPlace place = place_of(map.places, element_of(u));
      typename F::Result results[kSize];
      int at = place.result;
      uint32_t left = place.left, rows_left = place.rows_left;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        results[j] = result_at<T>(f, map.addresses(at));
        at += of.of_inner;
        if (--left > 0) continue;
        left = of.inner;
        at += of.of_row - int(of.inner) * of.of_inner;
        if (--rows_left > 0) continue;
        rows_left = of.rows;
        at += of.of_outer - int(of.rows) * of.of_row;
      }
      write_gradient(f, x[u], map.dx + element_of(u), map.accumulate,
                     [&](int j) { return results[j]; });
    }
  }
  map_ends(map, f);
}

// Gives the numbers of one kind of a vector of columns to set(j, number). p: the number of column
// 0; is_row: there are as many columns as results.
template <class N, int kSize, class Set>
FASTACT_DEVICE void numbers_of_columns(const ResultPlaces& of, bool is_row, const char* p,
                                       int64_t step, uint32_t column, const Set& set) {
  N lanes[kSize];
  if (is_row) {
    load_numbers(p + column * step, step, kSize, lanes);
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      lanes[j] = load(reinterpret_cast<const N*>(p + (column + j) % of.inner * step));
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) set(j, lanes[j]);
}

template <class T, class F>
FASTACT_KERNEL_OF(kMapThreads, 2)
void map_columns(FASTACT_GRID_CONSTANT const DenseGradient<T, F> map,
                 FASTACT_GRID_CONSTANT const ColumnTasks tasks, FASTACT_GRID_CONSTANT const F f) {
  constexpr int kSize = Vec<T>::kSize;
  const ResultPlaces& of = map.places;
  const uint32_t task = uint32_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (task < tasks.count) {
    const uint32_t rest = tasks.by_row_vecs.quick(task);
    const uint32_t column = (task - rest * tasks.row_vecs) * kSize;
    const uint32_t outer = tasks.by_groups.quick(rest);
    const uint32_t row = rest - outer * tasks.groups, width = tasks.row_vecs * kSize;
    int rows = 0;
#pragma unroll
    for (int u = 0; u < kRowsOfThread<T>; ++u) rows += row + u * tasks.groups < tasks.rows;
    const uint32_t element = (outer * tasks.rows + row) * width + column;
    const uint32_t apart = tasks.groups * width;
    Vec<T> x[kRowsOfThread<T>];
    read_x(map, element, apart, rows, x);

    Numbers<T, F> numbers[kSize];
    const auto address_of = map.addresses(int(outer) * of.of_outer);
#pragma unroll
    for (int c = 0; c < kNumbersOf<F>; ++c) {
      const int64_t step = int64_t(map.number_step[c]) * of.of_inner;
      const bool is_row = of.inner == width;
      if (c < F::kOfData)
        numbers_of_columns<T, kSize>(of, is_row, address_of(c), step, column, [&](int j, T number) {
          numbers[j].of_data[c < F::kOfData ? c : 0] = widen(number);
        });
      else
        numbers_of_columns<Found<T>, kSize>(
            of, is_row, address_of(c), step, column,
            [&](int j, Found<T> number) { numbers[j].found[c - F::kOfData] = number; });
    }
    typename F::Result results[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) results[j] = f.result(numbers[j]);
#pragma unroll
    for (int u = 0; u < kRowsOfThread<T>; ++u)
      if (u < rows)
        write_gradient(f, x[u], map.dx + element + u * apart, map.accumulate,
                       [&](int j) { return results[j]; });
  }
  map_ends(map, f);
}

// Any strides: the inputs are the numbers, and behind them x.
template <class T, class F>
FASTACT_KERNEL(kStridedThreads)
void map_anyhow(FASTACT_GRID_CONSTANT const StridedMap<kNumbersOf<F> + 1, 1> map,
                FASTACT_GRID_CONSTANT const F f) {
  const int64_t task = int64_t(blockIdx.x) * kStridedThreads + threadIdx.x;
  if (task >= map.tasks) return;
  const auto place = place_of<T>(map, task);
  Wide<T> dx{};
  if (F::kReadsX) dx = widen_vec(load_one<T>(map, place, kNumbersOf<F>));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    const auto address_of = [&](int c) { return map.in[c] + place.at[c] + j * map.step[c]; };
    if (j < place.valid) dx.lane[j] = f.at(dx.lane[j], result_at<T>(f, address_of));
  }
  store_one<T>(map, place, 0, dx);
}

// Finds by how many results a step along each of a plan's last three axes goes on. The numbers
// share these counts; each kind has its own bytes from result to result. False where there are no
// such counts, or where bytes or counts are too large.
template <class T, class F>
bool find_results(const ElementwisePlan& plan, DenseGradient<T, F>* map) {
  int64_t steps[3] = {}, reach = 0;
  int smallest = -1;
  const auto stride = [&](int c, int i) {
    const int axis = plan.ndim - 3 + i;
    return axis < 0 ? 0 : plan.strides[c][axis];
  };
  for (int c = 0; c < kNumbersOf<F> && smallest < 0; ++c) {
    for (int i = 0; i < 3; ++i)
      if (stride(c, i) != 0 &&
          (smallest < 0 || std::abs(stride(c, i)) < std::abs(stride(c, smallest))))
        smallest = i;
    for (int i = 0; i < 3 && smallest >= 0; ++i) {
      steps[i] = stride(c, i) / stride(c, smallest);
      if (stride(c, i) != 0) reach += std::abs(steps[i]) * plan.shape[plan.ndim - 3 + i];
    }
  }
  bool fits = reach < kMostDense;
  for (int c = 0; c < kNumbersOf<F>; ++c) {
    const int64_t step = smallest < 0 ? 0 : stride(c, smallest);
    map->number_step[c] = int(step);
    fits &= step == map->number_step[c];
    for (int i = 0; i < 3; ++i) fits &= stride(c, i) == steps[i] * step;
  }
  ResultPlaces& of = map->places;
  of.of_outer = int(steps[0]), of.of_row = int(steps[1]), of.of_inner = int(steps[2]);
  return fits;
}

template <class T, class F>
bool run_dense(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize, kX = kNumbersOf<F>, kDx = kX + 1;
  DenseGradient<T, F> map{};
  map.x_repeats = true;
  for (int axis = 0; axis < plan.ndim; ++axis) map.x_repeats &= plan.strides[kX][axis] == 0;
  if (plan.size > kMostDense || plan.ndim > 3 || !plan.contiguous[kDx] ||
      !(map.x_repeats || plan.contiguous[kX]) || !find_results(plan, &map))
    return false;
  std::copy(plan.data, plan.data + kNumbersOf<F>, map.numbers);
  map.x = reinterpret_cast<const T*>(plan.data[kX]);
  map.dx = reinterpret_cast<T*>(plan.data[kDx]);
  map.n = uint32_t(plan.size);
  map.accumulate = accumulate;
  ResultPlaces& of = map.places;
  of.inner = uint32_t(plan.shape[plan.ndim - 1]);
  of.rows = plan.ndim > 1 ? uint32_t(plan.shape[plan.ndim - 2]) : 1;
  of.by_inner = Divisor(of.inner, kMostDense);
  of.by_rows = Divisor(of.rows, kMostDense);
  const auto missed = reinterpret_cast<uintptr_t>(map.dx) % kVecBytes;
  map.aligned = reinterpret_cast<uintptr_t>(map.x) % kVecBytes == missed;
  map.head = uint32_t(std::min<int64_t>(map.n, (kVecBytes - missed) % kVecBytes / sizeof(T)));
  map.vecs = (map.n - map.head) / kSize;
  const auto blocks_of = [](int64_t threads) {
    return Shape{std::max<int64_t>(1, ceil_div(threads, kMapThreads)), kMapThreads};
  };

  uint32_t folded = 1;  // rows
  while (uint64_t(of.inner) * folded % kSize != 0) folded *= 2;
  if (of.of_inner != 0 && of.of_row == 0 && map.head == 0 && (folded == 1 || plan.ndim < 3)) {
    const uint32_t outer = map.n / of.inner / of.rows;
    ColumnTasks tasks{};
    tasks.row_vecs = uint32_t(uint64_t(of.inner) * folded / kSize);
    tasks.rows = of.rows / folded;
    tasks.groups = uint32_t(ceil_div(tasks.rows, kRowsOfThread<T>));
    tasks.count = outer * tasks.groups * tasks.row_vecs;
    tasks.by_row_vecs = Divisor(tasks.row_vecs, kMostDense);
    tasks.by_groups = Divisor(std::max(1u, tasks.groups), kMostDense);
    map.vecs = outer * tasks.rows * tasks.row_vecs;
    launch(map_columns<T, F>, blocks_of(tasks.count), stream, map, tasks, f);
    return true;
  }
  const bool is_uniform =
      of.of_inner == 0 && ((of.inner % kSize == 0 && map.head == 0) || plan.ndim == 1);
  launch(is_uniform ? map_vectors<T, F, true> : map_vectors<T, F, false>,
         blocks_of(ceil_div(map.vecs, kVecsOfThread)), stream, map, f);
  return true;
}

// Queues dx OUT = f(x IN, numbers IN), or dx IN/OUT +=, over operands that are not empty. numbers:
// F's, and any that are not there. F need not read x.
template <class T, class F>
void run_gradient(F f, std::initializer_list<Operand> numbers, const Operand& x, const Operand& dx,
                  bool accumulate, cudaStream_t stream) {
  constexpr int kNumbers = kNumbersOf<F>;
  Operand arrays[kNumbers + 2];
  std::copy_if(numbers.begin(), numbers.end(), arrays, [](const Operand& a) { return a.shape; });
  arrays[kNumbers] = x, arrays[kNumbers + 1] = dx;
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), kNumbers + 2, arrays);
  if (run_dense<T>(plan, accumulate, f, stream)) return;
  const auto map = strided_map<T, kNumbers + 1, 1>(plan, accumulate);
  launch(map_anyhow<T, F>, {ceil_div(map.tasks, kStridedThreads), kStridedThreads}, stream, map, f);
}

// --- the functors

// dx = dy times the derivative of a term of x
template <class T, class Term>
struct TermGradient {
  static constexpr bool kReadsX = !std::is_same_v<Term, Itself>;
  static constexpr int kOfData = 1, kFound = 0;
  using Result = Compute<T>;
  FASTACT_DEVICE Result result(const Numbers<T, TermGradient>& of) const { return of.of_data[0]; }
  FASTACT_DEVICE Compute<T> at(Compute<T> x, Result dy) const { return Term::gradient(dy, x); }
};

// A mean by two numbers of the compute type, high + low. For 16-bit data it was found as one number
// (of double), else as two.
template <class T>
constexpr int kCentre = sizeof(T) == 2 ? 1 : 2;
template <class T>
struct Centre {
  Compute<T> high, low;
  FASTACT_DEVICE Compute<T> distance(Compute<T> x) const { return (x - high) - low; }
};
template <class T>
FASTACT_DEVICE Centre<T> centre_of(const Found<T>* mean) {
  const auto high = Compute<T>(mean[0]);
  if constexpr (kCentre<T> == 2)
    return {high, mean[1]};
  else
    return {high, float(finite_or_zero(mean[0] - double(high)))};
}

// The numbers from which the gradients of a result's elements follow.
template <class T>
struct SpreadOfResult {
  Compute<T> product, of_mean;
  Centre<T> mean;
};
// The gradient at x: of a mean `product`; of a mean and m2 (kM2) product (x - mean) + of_mean; else
// product (x - mean). Those of one statistic are of_nan where x is NaN.
template <class T>
FASTACT_DEVICE Compute<T> spread_gradient(OfM2 of, Compute<T> x, const SpreadOfResult<T>& result,
                                          Compute<T> of_nan) {
  if (of == kMeanSlope) return x == x ? result.product : of_nan;
  const Compute<T> distance = result.mean.distance(x);
  if (of == kM2) return madd(result.product, distance, result.of_mean);
  return x == x ? result.product * distance : of_nan;
}
template <class T>
Compute<T> gradient_of_nan(bool skips) {
  return skips ? Compute<T>(0) : Compute<T>(__builtin_nanf(""));
}

// This gradient uses numbers that were found: dmean, dsecond and the mean, or dy, its slope and
// (except for kMeanSlope) the mean.
template <class T, OfM2 of>
struct SpreadGradient {
  static constexpr bool kReadsX = true;
  static constexpr int kOfData = of == kM2 ? 2 : 1;
  static constexpr int kSlopes = of != kM2, kFound = kSlopes + (of == kMeanSlope ? 0 : kCentre<T>);
  using Result = SpreadOfResult<T>;
  Compute<T> share, scale, of_nan;

  FASTACT_DEVICE Result result(const Numbers<T, SpreadGradient>& numbers) const {
    Result made{};
    if constexpr (of == kM2)
      made.product = scale * numbers.of_data[1], made.of_mean = share * numbers.of_data[0];
    else
      made.product = Compute<T>(numbers.found[0]) * numbers.of_data[0];
    if constexpr (of != kMeanSlope) made.mean = centre_of<T>(numbers.found + kSlopes);
    return made;
  }
  FASTACT_DEVICE Compute<T> at(Compute<T> x, const Result& result) const {
    return spread_gradient<T>(of, x, result, of_nan);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
