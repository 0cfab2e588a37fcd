// Gradients of reductions: dx = f(x, the numbers of the result that x took part in).
//
// Numbers of results repeat along the axes that were reduced. A thread has kVecsOfThread vectors of
// 16 bytes, all of which it reads before it uses the first:
//
//   map_vectors   arrays without gaps, in memory's order. The result of an element is found by two
//                 multiplications a vector (Divisor); where all lanes of a vector have the same,
//                 its numbers are read once.
//   map_columns   the same where results lie along the innermost axis: a thread's vectors are of
//                 neighbouring rows, so that all of them have the numbers that it read once. Rows
//                 that are no whole number of vectors are folded, as many as make one.
//   map_anyhow    any strides: a vector where x and dx allow it, else an element.
//
// A functor F of data T has
//   kReadsX                          whether it looks at x
//   kOfData, kFound                  how many numbers of a result are of T, and after them how many
//                                    were found by a statistic, of T or, of 16-bit data, of double
//   Result result(const Numbers&)    what is the same for all elements of a result
//   at(x, result)                    one element
//
// Numbers in double are converted once a result: nothing is computed in double of an element of
// less. Bytes moved: those of x and dx once; the numbers come from the caches.
#pragma once

#include "common/reductions/moments.h"
#include "cuda/core/elementwise.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kVecsOfThread = 4;

// What a statistic found, as it is stored; and as two numbers of the compute type, high + low.
template <class T>
using Found = std::conditional_t<sizeof(T) == 2, double, T>;

template <class T, class F>
struct Numbers {
  Compute<T> of_data[F::kOfData];
  Found<T> found[F::kFound > 0 ? F::kFound : 1];
};

template <class F>
constexpr int kNumbersOf = F::kOfData + F::kFound;

// Where some numbers are, an element of each for a result. Null: they are 0.
template <class F>
struct NumberAddresses {
  const char* of[kNumbersOf<F>];
};

template <class T, class F>
FASTACT_DEVICE typename F::Result result_at(const F& f, const NumberAddresses<F>& at) {
  Numbers<T, F> numbers{};
#pragma unroll
  for (int c = 0; c < F::kOfData; ++c)
    if (at.of[c]) numbers.of_data[c] = widen(load(reinterpret_cast<const T*>(at.of[c])));
#pragma unroll
  for (int c = 0; c < F::kFound; ++c)
    if (const char* p = at.of[F::kOfData + c])
      numbers.found[c] = load(reinterpret_cast<const Found<T>*>(p));
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

// Arrays without gaps: outer x rows x inner elements.
template <class T, class F>
struct DenseGradient {
  const T* x;
  T* dx;
  int64_t n, head, vecs;  // as those of a ContiguousMap
  bool aligned, accumulate;
  bool x_repeats;  // one element stands for all
  int64_t inner, rows;
  Divisor by_inner, by_rows;
  int64_t of_outer, of_row, of_inner;  // results that a step along each axis goes further
  const char* numbers[kNumbersOf<F>];  // of the first result
  int64_t number_step[kNumbersOf<F>];  // bytes from one result to the next; 0: one for all
  // map_columns: a row, or as many as are folded into one, in vectors; kVecsOfThread rows together.
  int64_t row_vecs, columns_of_results, folded_rows;
  Divisor by_row_vecs, by_groups;
  int64_t groups, tasks;

  FASTACT_DEVICE NumberAddresses<F> addresses(int64_t result) const {
    NumberAddresses<F> at;
#pragma unroll
    for (int c = 0; c < kNumbersOf<F>; ++c)
      at.of[c] = numbers[c] ? numbers[c] + result * number_step[c] : nullptr;
    return at;
  }
};

// The result of an element, and how far it is from the ends of its row and of the rows.
struct ElementPlace {
  int64_t result, rows_left, left;
};
template <class Map>
FASTACT_DEVICE ElementPlace place_of(const Map& map, int64_t element) {
  const int64_t row = map.by_inner(element), within = element - row * map.inner;
  const int64_t outer = map.by_rows(row), here = row - outer * map.rows;
  return {outer * map.of_outer + here * map.of_row + within * map.of_inner, map.rows - here,
          map.inner - within};
}

template <class T, class F>
FASTACT_DEVICE void map_ends(const DenseGradient<T, F>& map, const F& f) {
  const int64_t inside = map.vecs * Vec<T>::kSize;
  for (int64_t e = threadIdx.x; e < map.n - inside; e += kMapThreads) {
    const int64_t i = e < map.head ? e : e + inside;
    const auto result = result_at<T>(f, map.addresses(place_of(map, i).result));
    Compute<T> x{}, dx;
    if (F::kReadsX) x = widen(load(map.x + (map.x_repeats ? 0 : i)));
    dx = f.at(x, result);
    if (map.accumulate) dx = widen(load(map.dx + i)) + dx;
    store(map.dx + i, narrow<T>(dx));
  }
}

// of(j): the result of lane j.
template <class T, class F, class Of>
FASTACT_DEVICE void write_gradient(const F& f, const Vec<T>& x, T* to, bool accumulate,
                                   const Of& of) {
  Vec<T> before{};
  if (accumulate) before = load_vec(to);
  const Wide<T> wide = widen_vec(x);
  Wide<T> dx;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) dx.lane[j] = f.at(wide.lane[j], of(j));
  if (accumulate) accumulate_onto(before, dx);
  store_vec(to, narrow_vec<T>(dx));
}

template <class T, class F>
FASTACT_DEVICE Vec<T> read_x(const DenseGradient<T, F>& map, int64_t element) {
  if (!F::kReadsX) return {};
  if (map.x_repeats) return load_or_repeat(map.x, true);
  if (map.aligned) return load_vec(map.x + element);
  return load_window(map.x + element, map.x, map.x + map.n);
}

template <class T, class F, bool is_uniform>
FASTACT_KERNEL_OF(kMapThreads, is_uniform || sizeof(T) > 2 ? kMapBlocks<T> : 2)
void map_vectors(FASTACT_GRID_CONSTANT const DenseGradient<T, F> map,
                 FASTACT_GRID_CONSTANT const F f) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t first = int64_t(blockIdx.x) * (kMapThreads * kVecsOfThread) + threadIdx.x;
  Vec<T> x[kVecsOfThread];
#pragma unroll
  for (int u = 0; u < kVecsOfThread; ++u) {
    const int64_t i = first + u * kMapThreads;
    if (i < map.vecs) x[u] = read_x(map, map.head + i * kSize);
  }
#pragma unroll
  for (int u = 0; u < kVecsOfThread; ++u) {
    const int64_t i = first + u * kMapThreads;
    if (i >= map.vecs) break;
    const int64_t element = map.head + i * kSize;
    const ElementPlace place = place_of(map, element);
    T* const to = map.dx + element;
    if constexpr (is_uniform) {
      const auto result = result_at<T>(f, map.addresses(place.result));
      write_gradient(f, x[u], to, map.accumulate, [&](int) { return result; });
      continue;
    }
    typename F::Result results[kSize];
    int64_t at = place.result;
    int left = int(smaller(place.left, kSize)), rows_left = int(smaller(place.rows_left, kSize));
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      results[j] = result_at<T>(f, map.addresses(at));
      at += map.of_inner;
      if (--left > 0) continue;
      left = int(smaller(map.inner, kSize));
      at += map.of_row - map.inner * map.of_inner;
      if (--rows_left > 0) continue;
      rows_left = int(smaller(map.rows, kSize));
      at += map.of_outer - map.rows * map.of_row;
    }
    write_gradient(f, x[u], to, map.accumulate, [&](int j) { return results[j]; });
  }
  if (blockIdx.x == 0) map_ends(map, f);
}

template <class T, class F>
FASTACT_KERNEL_OF(kMapThreads, 2)
void map_columns(FASTACT_GRID_CONSTANT const DenseGradient<T, F> map,
                 FASTACT_GRID_CONSTANT const F f) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t task = int64_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (task < map.tasks) {
    const int64_t rest = map.by_row_vecs(task), column = (task - rest * map.row_vecs) * kSize;
    const int64_t outer = map.by_groups(rest);
    const int64_t row = (rest - outer * map.groups) * kVecsOfThread;
    const int rows = int(smaller(map.folded_rows - row, kVecsOfThread));
    const int64_t width = map.row_vecs * kSize;
    const int64_t element = (outer * map.folded_rows + row) * width + column;
    Vec<T> x[kVecsOfThread];
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u)
      if (u < rows) x[u] = read_x(map, element + u * width);

    Numbers<T, F> numbers[kSize] = {};
    const bool touch = map.inner == width;
#pragma unroll
    for (int c = 0; c < kNumbersOf<F>; ++c) {
      if (!map.numbers[c]) continue;
      const auto read = [&](auto number, const auto& to) {
        using N = decltype(number);
        N lanes[kSize];
        const int64_t step = map.number_step[c] * map.of_inner;
        const char* p = map.numbers[c] + outer * map.of_outer * map.number_step[c];
        if (touch) {
          load_numbers(p + column * step, step, lanes);
        } else {
#pragma unroll
          for (int j = 0; j < kSize; ++j)
            lanes[j] = load(reinterpret_cast<const N*>(
                p + int64_t(uint32_t(column + j) % uint32_t(map.inner)) * step));
        }
#pragma unroll
        for (int j = 0; j < kSize; ++j) to(j) = widen(lanes[j]);
      };
      if (c < F::kOfData)
        read(T{}, [&](int j) -> auto& { return numbers[j].of_data[c]; });
      else
        read(Found<T>{}, [&](int j) -> auto& { return numbers[j].found[c - F::kOfData]; });
    }
    typename F::Result results[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) results[j] = f.result(numbers[j]);
#pragma unroll
    for (int u = 0; u < kVecsOfThread; ++u)
      if (u < rows)
        write_gradient(f, x[u], map.dx + element + u * width, map.accumulate,
                       [&](int j) { return results[j]; });
  }
  if (blockIdx.x == 0) map_ends(map, f);
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
    NumberAddresses<F> addresses;
#pragma unroll
    for (int c = 0; c < kNumbersOf<F>; ++c)
      addresses.of[c] = map.data[c] ? map.data[c] + at[c] + j * map.lane[c] : nullptr;
    return result_at<T>(f, addresses);
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

// The steps from result to result along the last three axes of a plan, as all numbers take them,
// each by bytes of its own: false where there are no such steps.
template <class T, class F>
bool find_results(const ElementwisePlan& plan, DenseGradient<T, F>* map) {
  int64_t steps[3] = {};
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
    if (smallest < 0) continue;
    for (int i = 0; i < 3; ++i) {
      if (stride(c, i) % stride(c, smallest) != 0) return false;
      steps[i] = stride(c, i) / stride(c, smallest);
    }
  }
  for (int c = 0; c < kNumbersOf<F>; ++c) {
    map->number_step[c] = smallest < 0 ? 0 : stride(c, smallest);
    for (int i = 0; i < 3; ++i)
      if (stride(c, i) != steps[i] * map->number_step[c]) return false;
  }
  map->of_outer = steps[0], map->of_row = steps[1], map->of_inner = steps[2];
  return true;
}

template <class T, class F>
bool run_dense(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize, kX = AnyGradient<F>::kX, kDx = AnyGradient<F>::kDx;
  DenseGradient<T, F> map{};
  map.x_repeats = true;
  for (int axis = 0; axis < plan.ndim; ++axis) map.x_repeats &= plan.strides[kX][axis] == 0;
  if (plan.ndim > 3 || !plan.contiguous[kDx] || !(map.x_repeats || plan.contiguous[kX]) ||
      !find_results(plan, &map))
    return false;
  for (int c = 0; c < kNumbersOf<F>; ++c) map.numbers[c] = plan.data[c];
  map.x = reinterpret_cast<const T*>(plan.data[kX]);
  map.dx = reinterpret_cast<T*>(plan.data[kDx]);
  map.n = plan.size;
  map.accumulate = accumulate;
  map.inner = plan.shape[plan.ndim - 1];
  map.rows = plan.ndim > 1 ? plan.shape[plan.ndim - 2] : 1;
  map.by_inner = Divisor(map.inner, map.n);
  map.by_rows = Divisor(map.rows, map.n);
  const auto missed = reinterpret_cast<uintptr_t>(map.dx) % kVecBytes;
  map.aligned = reinterpret_cast<uintptr_t>(map.x) % kVecBytes == missed;
  map.head = std::min<int64_t>(map.n, int64_t((kVecBytes - missed) % kVecBytes / sizeof(T)));
  map.vecs = (map.n - map.head) / kSize;
  int64_t folded = 1;  // rows
  while (map.inner * folded % kSize != 0) folded *= 2;
  if (map.of_inner != 0 && map.of_row == 0 && map.head == 0 &&
      (folded == 1 || (map.n == map.inner * map.rows && map.inner <= 0x7fffffff))) {
    const int64_t outer = map.n / (map.inner * map.rows);
    map.row_vecs = map.inner * folded / kSize;
    map.folded_rows = map.rows / folded;
    map.groups = ceil_div(map.folded_rows, kVecsOfThread);
    map.tasks = outer * map.groups * map.row_vecs;
    map.by_row_vecs = Divisor(map.row_vecs, map.tasks);
    map.by_groups = Divisor(std::max<int64_t>(1, map.groups), map.tasks);
    map.vecs = outer * map.folded_rows * map.row_vecs;
    launch(map_columns<T, F>, {std::max<int64_t>(1, ceil_div(map.tasks, kMapThreads)), kMapThreads},
           stream, map, f);
    return true;
  }
  const int64_t blocks = ceil_div(map.vecs, kMapThreads * kVecsOfThread);
  // All elements of a vector have one result.
  const bool is_uniform =
      map.of_inner == 0 && ((map.inner % kSize == 0 && map.head == 0) || plan.ndim == 1);
  launch(is_uniform ? map_vectors<T, F, true> : map_vectors<T, F, false>,
         {std::max<int64_t>(1, blocks), kMapThreads}, stream, map, f);
  return true;
}

// Queues dx OUT = f(x IN, numbers IN), or dx IN/OUT +=, over operands that are not empty: F's
// numbers, x, which F may not read, and dx.
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

// A mean as two numbers of the compute type.
template <class T>
struct Centre {
  Compute<T> high, low;

  Centre() = default;
  FASTACT_DEVICE Centre(Found<T> mean, Found<T> rest)
      : high(Compute<T>(mean)),
        low(sizeof(T) == 2 ? Compute<T>(finite_or_zero(double(mean) - double(high)))
                           : Compute<T>(rest)) {}
  FASTACT_DEVICE Compute<T> distance(Compute<T> x) const { return (x - high) - low; }
};

// dx = share dmean + scale dsecond (x - mean)
template <class T>
struct MomentsGradient {
  static constexpr bool kReadsX = true;
  static constexpr int kOfData = 2, kFound = 2;  // dmean, dsecond; mean and its low part
  struct Result {
    Compute<T> of_mean, of_second;
    Centre<T> mean;
  };
  Compute<T> share, scale;

  FASTACT_DEVICE Result result(const Numbers<T, MomentsGradient>& of) const {
    return {share * of.of_data[0], scale * of.of_data[1], {of.found[0], of.found[1]}};
  }
  FASTACT_DEVICE Compute<T> at(Compute<T> x, const Result& of) const {
    return madd(of.of_second, of.mean.distance(x), of.of_mean);
  }
};

// dx = slope dy (x - mean), or slope dy; of_nan where x is NaN.
template <class T, bool has_mean>
struct StatisticGradient {
  static constexpr bool kReadsX = true;
  static constexpr int kOfData = 1, kFound = has_mean ? 3 : 1;  // dy; slope, mean and its low part
  struct Result {
    Compute<T> product;
    Centre<T> mean;
  };
  Compute<T> of_nan;

  FASTACT_DEVICE Result result(const Numbers<T, StatisticGradient>& of) const {
    const auto product = Compute<T>(of.found[0]) * of.of_data[0];
    if constexpr (has_mean) return {product, {of.found[1], of.found[2]}};
    return {product, {}};
  }
  FASTACT_DEVICE Compute<T> at(Compute<T> x, const Result& of) const {
    return x == x ? has_mean ? of.product * of.mean.distance(x) : of.product : of_nan;
  }
};

}  // namespace
FASTACT_END_NAMESPACE
