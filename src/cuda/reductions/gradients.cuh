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
//   map_anyhow    any strides: a thread has a vector where x and dx allow it, else an element
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

// Numbers of neighbouring results, `step` bytes apart; by vectors where they touch and are aligned.
template <class N, int n>
FASTACT_DEVICE void load_numbers(const char* p, int64_t step, N (&to)[n]) {
  constexpr int kSize = Vec<N>::kSize;
  if (n % kSize == 0 && step == int64_t(sizeof(N)) && misalignment(p) == 0) {
#pragma unroll
    for (int i = 0; i < n / kSize; ++i) {
      const Vec<N> vec = load_vec(reinterpret_cast<const N*>(p) + i * kSize);
#pragma unroll
      for (int j = 0; j < kSize; ++j) to[i * kSize + j] = vec.lane[j];
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < n; ++j) to[j] = load(reinterpret_cast<const N*>(p + j * step));
}

// Arrays without gaps of at most kMostDense elements, outer x rows x inner; indices have 32 bits.
constexpr int64_t kMostDense = int64_t(1) << 31;
template <class T, class F>
struct DenseGradient {
  static constexpr int kSize = Vec<T>::kSize;
  const T* x;
  T* dx;
  uint32_t n, head, vecs;  // as in a ContiguousMap
  bool aligned, accumulate;
  bool x_repeats;  // one element stands for all
  uint32_t inner, rows;
  Divisor by_inner, by_rows;
  int of_outer, of_row, of_inner;      // by how many results a step along each axis goes on
  const char* numbers[kNumbersOf<F>];  // of the first result
  int number_step[kNumbersOf<F>];      // bytes from one result to the next; 0: one for all
  // map_columns: vectors of a row, or of the rows that are joined to one; the number of such rows;
  // a group is the rows that one thread takes.
  uint32_t row_vecs, folded_rows, groups, tasks;
  Divisor by_row_vecs, by_groups;

  FASTACT_DEVICE auto addresses(int result) const {
    return [this, result](int c) { return numbers[c] + int64_t(result) * number_step[c]; };
  }
};

// The result of an element, and how many elements are left in its row, and rows after its own.
struct ElementPlace {
  int result;
  uint32_t left, rows_left;
};
template <class Map>
FASTACT_DEVICE ElementPlace place_of(const Map& map, uint32_t element) {
  const uint32_t row = map.by_inner.quick(element), within = element - row * map.inner;
  const uint32_t outer = map.by_rows.quick(row), here = row - outer * map.rows;
  return {int(outer) * map.of_outer + int(here) * map.of_row + int(within) * map.of_inner,
          map.inner - within, map.rows - here};
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
    dx = f.at(dx, result_at<T>(f, map.addresses(place_of(map, i).result)));
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
    for (int u = 0; u < most; ++u) x[u] = load_or_repeat(map.x, true);
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
        results[u] = result_at<T>(f, map.addresses(place_of(map, element_of(u)).result));
    read_x(map, first, kMapThreads * kSize, count, x);
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u)
      if (u < count)
        write_gradient(f, x[u], map.dx + element_of(u), map.accumulate,
                       [&](int) { return results[u]; });
  } else {
    read_x(map, first, kMapThreads * kSize, count, x);
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u) {
      if (u >= count) break;
      const ElementPlace place = place_of(map, element_of(u));
      typename F::Result results[kSize];
      int at = place.result;
      uint32_t left = place.left, rows_left = place.rows_left;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        results[j] = result_at<T>(f, map.addresses(at));
        at += map.of_inner;
        if (--left > 0) continue;
        left = map.inner;
        at += map.of_row - int(map.inner) * map.of_inner;
        if (--rows_left > 0) continue;
        rows_left = map.rows;
        at += map.of_outer - int(map.rows) * map.of_row;
      }
      write_gradient(f, x[u], map.dx + element_of(u), map.accumulate,
                     [&](int j) { return results[j]; });
    }
  }
  map_ends(map, f);
}

// Gives the numbers of one kind of a vector of columns to set(j, number). p: the number of column
// 0.
template <class N, class Map, class Set>
FASTACT_DEVICE void numbers_of_columns(const Map& map, const char* p, int64_t step, uint32_t column,
                                       const Set& set) {
  constexpr int kSize = Map::kSize;
  N lanes[kSize];
  if (map.inner == map.row_vecs * kSize) {
    load_numbers(p + column * step, step, lanes);
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      lanes[j] = load(reinterpret_cast<const N*>(p + (column + j) % map.inner * step));
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) set(j, lanes[j]);
}

template <class T, class F>
FASTACT_KERNEL_OF(kMapThreads, 2)
void map_columns(FASTACT_GRID_CONSTANT const DenseGradient<T, F> map,
                 FASTACT_GRID_CONSTANT const F f) {
  constexpr int kSize = Vec<T>::kSize;
  const uint32_t task = uint32_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (task < map.tasks) {
    const uint32_t rest = map.by_row_vecs.quick(task);
    const uint32_t column = (task - rest * map.row_vecs) * kSize;
    const uint32_t outer = map.by_groups.quick(rest);
    const uint32_t row = rest - outer * map.groups, width = map.row_vecs * kSize;
    int rows = 0;
#pragma unroll
    for (int u = 0; u < kRowsOfThread<T>; ++u) rows += row + u * map.groups < map.folded_rows;
    const uint32_t element = (outer * map.folded_rows + row) * width + column;
    const uint32_t apart = map.groups * width;
    Vec<T> x[kRowsOfThread<T>];
    read_x(map, element, apart, rows, x);

    Numbers<T, F> numbers[kSize];
    const auto address_of = map.addresses(int(outer) * map.of_outer);
#pragma unroll
    for (int c = 0; c < kNumbersOf<F>; ++c) {
      const int64_t step = int64_t(map.number_step[c]) * map.of_inner;
      if (c < F::kOfData)
        numbers_of_columns<T>(map, address_of(c), step, column, [&](int j, T number) {
          numbers[j].of_data[c < F::kOfData ? c : 0] = widen(number);
        });
      else
        numbers_of_columns<Found<T>>(map, address_of(c), step, column, [&](int j, Found<T> number) {
          numbers[j].found[c - F::kOfData] = number;
        });
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

// Operands of any strides: the numbers, then x, where F reads it, and dx.
template <class F>
struct AnyGradient {
  static constexpr int kX = kNumbersOf<F>, kDx = kX + 1, kOperands = kDx + 1;
  char* data[kOperands];
  int64_t tasks;
  int task_size;  // elements: one, or a vector
  bool accumulate;
  int ndim;
  int64_t shape[kMaxAxes];               // the innermost length in tasks
  int64_t strides[kOperands][kMaxAxes];  // bytes; the innermost of a task
  int64_t lane[kNumbersOf<F>];           // bytes from lane to lane of a vector
};

template <class T, class F>
FASTACT_KERNEL(kMapThreads)
void map_anyhow(FASTACT_GRID_CONSTANT const AnyGradient<F> map, FASTACT_GRID_CONSTANT const F f) {
  using Map = AnyGradient<F>;
  const int64_t task = int64_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (task >= map.tasks) return;
  int64_t at[Map::kOperands] = {};
  const auto step = [&](int axis, int64_t here) {
#pragma unroll
    for (int k = 0; k < Map::kOperands; ++k) at[k] += here * map.strides[k][axis];
  };
  if (task <= int64_t(0xffffffff))
    unravel(uint32_t(task), map.shape, 0, map.ndim, step);
  else
    unravel(task, map.shape, 0, map.ndim, step);

  const auto result_of = [&](int j) {
    return result_at<T>(f, [&](int c) { return map.data[c] + at[c] + j * map.lane[c]; });
  };
  const auto* x = reinterpret_cast<const T*>(map.data[Map::kX] + at[Map::kX]);
  auto* dx = reinterpret_cast<T*>(map.data[Map::kDx] + at[Map::kDx]);
  if (map.task_size == 1) {
    Compute<T> wide{};
    if (F::kReadsX) wide = widen(load(x));
    wide = f.at(wide, result_of(0));
    if (map.accumulate) wide = widen(load(dx)) + wide;
    store(dx, narrow<T>(wide));
    return;
  }
  Vec<T> vec{};
  if (F::kReadsX) vec = load_or_repeat(x, map.strides[Map::kX][map.ndim - 1] == 0);
  write_gradient(f, vec, dx, map.accumulate, result_of);
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
  map->of_outer = int(steps[0]), map->of_row = int(steps[1]), map->of_inner = int(steps[2]);
  return fits;
}

template <class T, class F>
bool run_dense(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize, kX = AnyGradient<F>::kX, kDx = AnyGradient<F>::kDx;
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
  map.inner = uint32_t(plan.shape[plan.ndim - 1]);
  map.rows = plan.ndim > 1 ? uint32_t(plan.shape[plan.ndim - 2]) : 1;
  map.by_inner = Divisor(map.inner, kMostDense);
  map.by_rows = Divisor(map.rows, kMostDense);
  const auto missed = reinterpret_cast<uintptr_t>(map.dx) % kVecBytes;
  map.aligned = reinterpret_cast<uintptr_t>(map.x) % kVecBytes == missed;
  map.head = uint32_t(std::min<int64_t>(map.n, (kVecBytes - missed) % kVecBytes / sizeof(T)));
  map.vecs = (map.n - map.head) / kSize;
  const auto run = [&](auto kernel, int64_t threads) {
    launch(kernel, {std::max<int64_t>(1, ceil_div(threads, kMapThreads)), kMapThreads}, stream, map,
           f);
    return true;
  };

  uint32_t folded = 1;  // rows
  while (uint64_t(map.inner) * folded % kSize != 0) folded *= 2;
  if (map.of_inner != 0 && map.of_row == 0 && map.head == 0 && (folded == 1 || plan.ndim < 3)) {
    const uint32_t outer = map.n / map.inner / map.rows;
    map.row_vecs = uint32_t(uint64_t(map.inner) * folded / kSize);
    map.folded_rows = map.rows / folded;
    map.groups = uint32_t(ceil_div(map.folded_rows, kRowsOfThread<T>));
    map.tasks = outer * map.groups * map.row_vecs;
    map.by_row_vecs = Divisor(map.row_vecs, kMostDense);
    map.by_groups = Divisor(std::max(1u, map.groups), kMostDense);
    map.vecs = outer * map.folded_rows * map.row_vecs;
    return run(map_columns<T, F>, map.tasks);
  }
  const bool is_uniform =
      map.of_inner == 0 && ((map.inner % kSize == 0 && map.head == 0) || plan.ndim == 1);
  return run(is_uniform ? map_vectors<T, F, true> : map_vectors<T, F, false>,
             ceil_div(map.vecs, kVecsOfThread));
}

// Queues dx OUT = f(x IN, numbers IN), or dx IN/OUT +=, over operands that are not empty: F's
// numbers, x (which F need not read) and dx.
template <class T, class F>
void run_gradient(const Operand (&arrays)[AnyGradient<F>::kOperands], bool accumulate, F f,
                  cudaStream_t stream) {
  using Map = AnyGradient<F>;
  constexpr int kSize = Vec<T>::kSize;
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), Map::kOperands, arrays);
  if (run_dense<T>(plan, accumulate, f, stream)) return;
  Map map{};
  const int last = plan.ndim - 1;
  bool vecs = plan.shape[last] % kSize == 0;
  for (int k : {Map::kX, Map::kDx}) {
    const bool repeats = k == Map::kX && plan.strides[k][last] == 0;
    vecs &= repeats || (plan.strides[k][last] == plan.item && rows_aligned(plan, k, kVecBytes));
  }
  map.task_size = vecs ? kSize : 1;
  map.tasks = plan.size / map.task_size;
  map.accumulate = accumulate;
  map.ndim = plan.ndim;
  for (int k = 0; k < Map::kOperands; ++k) {
    map.data[k] = plan.data[k];
    if (k < Map::kX) map.lane[k] = plan.strides[k][last];
    for (int axis = 0; axis <= last; ++axis)
      map.strides[k][axis] = plan.strides[k][axis] * (axis == last ? map.task_size : 1);
  }
  for (int axis = 0; axis <= last; ++axis)
    map.shape[axis] = plan.shape[axis] / (axis == last ? map.task_size : 1);
  launch(map_anyhow<T, F>, {ceil_div(map.tasks, kMapThreads), kMapThreads}, stream, map, f);
}

// --- the functors

// dx = dy
template <class T>
struct Repeat {
  static constexpr bool kReadsX = false;
  static constexpr int kOfData = 1, kFound = 0;
  using Result = Compute<T>;
  FASTACT_DEVICE Result result(const Numbers<T, Repeat>& of) const { return of.of_data[0]; }
  FASTACT_DEVICE Compute<T> at(Compute<T>, Result dy) const { return dy; }
};

// dx = dy times the derivative of a term of x
template <class T, class Term>
struct TermGradient {
  static constexpr bool kReadsX = true;
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

// dx = share dmean + scale dsecond (x - mean)
template <class T>
struct MomentsGradient {
  static constexpr bool kReadsX = true;
  static constexpr int kOfData = 2, kFound = kCentre<T>;  // dmean, dsecond; mean
  struct Result {
    Compute<T> of_mean, of_second;
    Centre<T> mean;
  };
  Compute<T> share, scale;

  FASTACT_DEVICE Result result(const Numbers<T, MomentsGradient>& of) const {
    return {share * of.of_data[0], scale * of.of_data[1], centre_of<T>(of.found)};
  }
  FASTACT_DEVICE Compute<T> at(Compute<T> x, const Result& of) const {
    return madd(of.of_second, of.mean.distance(x), of.of_mean);
  }
};

// dx = slope dy (x - mean), or slope dy; of_nan where x is NaN.
template <class T, bool has_mean>
struct StatisticGradient {
  static constexpr bool kReadsX = true;
  static constexpr int kOfData = 1, kFound = has_mean ? 1 + kCentre<T> : 1;  // dy; slope, mean
  struct Result {
    Compute<T> product;
    Centre<T> mean;
  };
  Compute<T> of_nan;

  FASTACT_DEVICE Result result(const Numbers<T, StatisticGradient>& of) const {
    const auto product = Compute<T>(of.found[0]) * of.of_data[0];
    if constexpr (has_mean) return {product, centre_of<T>(of.found + 1)};
    return {product, {}};
  }
  FASTACT_DEVICE Compute<T> at(Compute<T> x, const Result& of) const {
    return x == x ? has_mean ? of.product * of.mean.distance(x) : of.product : of_nan;
  }
};

}  // namespace
FASTACT_END_NAMESPACE
