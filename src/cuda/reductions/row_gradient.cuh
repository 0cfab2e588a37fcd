// Gradients over rows that a team of threads holds in registers: what they need of x is found there
// and used at once, so that x is read once.
//
// A row is one axis of x whose elements are neighbours, of whole vectors. A team, from one lane to
// a block, has as few threads as hold the row in kVecs vectors each. The sums are in double,
// without squares; a deviation takes its squares about the mean. Vectors that are misaligned in x
// or dx, and elements of dx that lie apart, are read and written otherwise, but belong to the same
// threads: bits do not depend on that.
#pragma once

#include "cuda/reductions/few_terms.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kLeastOfHeldRow = 64, kMostOfHeldRow = 8192;  // elements

template <class T>
struct HeldRows {
  enum : int { kX, kDx, kDy, kDSecond, kArrays };
  char* data[kArrays];  // dx OUT, or IN/OUT +=, of x, dy and (or null) dsecond IN
  int64_t rows;
  int length, team, team_shift;
  bool is_quick;    // x and dx are whole aligned vectors
  int64_t dx_step;  // bytes from element to element
  int axes;         // that count rows
  int64_t axis_length[kMaxAxes], stride[kArrays][kMaxAxes];
  FewGradient<T> of;  // without its arrays
};

template <class T>
FASTACT_DEVICE Vec<T> load_of_held(const HeldRows<T>& rows, const T* row, int at) {
  return rows.is_quick ? load_vec(row + at) : load_window(row + at, row, row + rows.length);
}

template <int vecs, class T, bool skips>
FASTACT_KERNEL_OF(kThreads, vecs * sizeof(Vec<T>) > 64 || sizeof(T) == 2 ? 3 : 4)
void held_row_gradient(FASTACT_GRID_CONSTANT const HeldRows<T> rows) {
  using Rows = HeldRows<T>;
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  const FewGradient<T>& g = rows.of;
  const int lane = int(threadIdx.x) & (rows.team - 1);
  const int64_t row = int64_t(blockIdx.x) * (int(blockDim.x) >> rows.team_shift) +
                      (int(threadIdx.x) >> rows.team_shift);
  const bool idle = row >= rows.rows;
  int64_t at[Rows::kArrays] = {};
  unravel(idle ? int64_t(0) : row, rows.axis_length, 0, rows.axes, [&](int axis, int64_t here) {
#pragma unroll
    for (int k = 0; k < Rows::kArrays; ++k) at[k] += here * rows.stride[k][axis];
  });
  const T* const x = reinterpret_cast<const T*>(rows.data[Rows::kX] + at[Rows::kX]);
  const auto there = [&](int i) { return !idle && (i * rows.team + lane) * kSize < rows.length; };
  Words held[vecs];
#pragma unroll
  for (int i = 0; i < vecs; ++i)
    if (there(i)) held[i] = bit_cast<Words>(load_of_held(rows, x, (i * rows.team + lane) * kSize));
  const C dy = widen(load(reinterpret_cast<const T*>(rows.data[Rows::kDy] + at[Rows::kDy])));
  C dsecond = 0;
  if (rows.data[Rows::kDSecond])
    dsecond =
        widen(load(reinterpret_cast<const T*>(rows.data[Rows::kDSecond] + at[Rows::kDSecond])));

  // The sum and the number of what counts.
  const bool is_of_mean = g.of.of_m2 == kMeanSlope;
  double total[2] = {0, 0};
  int n = 0;
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    if (!there(i)) break;
    const Wide<T> wide = widen_words<T>(held[i]);
    if (skips) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) n += wide.lane[j] == wide.lane[j];
    }
    if (is_of_mean) continue;
    double part[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      part[j] = double(skips && wide.lane[j] != wide.lane[j] ? C(0) : wide.lane[j]);
    total[0] += tree_sum(part);
  }
  int fold_index = 0;
  if (skips) total[1] = n;
  if (skips || !is_of_mean) team_sums(total, rows.team, fold_index);
  FewMoments m{skips ? int(total[1]) : rows.length, 0, 0};
  m.mean = m.n == rows.length ? g.of.by.under(total[0]) : total[0] / m.n;
  if (g.of.of_m2 == kDeviationSlope) {
    double rest[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (!there(i)) break;
      const Wide<T> wide = widen_words<T>(held[i]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const double d = double(wide.lane[j]) - m.mean;
        if (skips && wide.lane[j] != wide.lane[j]) continue;
        rest[0] += d;
        rest[1] = madd(d, d, rest[1]);
      }
    }
    team_sums(rest, rows.team, fold_index);
    const double m2 = madd(-rest[0] / m.n, rest[0], rest[1]);
    m.m2 = m2 < 0 ? 0.0 : m2;
  }
  if (!rows.is_quick) __syncthreads();  // vectors were read by windows, dx may be x
  if (idle) return;

  const auto result = g.template result_of<skips>(m, rows.length, dy, dsecond);
  char* const to = rows.data[Rows::kDx] + at[Rows::kDx];
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    if (!there(i)) break;
    const int first = (i * rows.team + lane) * kSize;
    Wide<T> wide = widen_words<T>(held[i]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) wide.lane[j] = g.at(wide.lane[j], result);
    T* const whole = reinterpret_cast<T*>(to) + first;
    if (rows.is_quick) {
      if (g.accumulate) accumulate_onto(load_vec(whole), wide);
      store_vec(whole, narrow_vec<T>(wide));
      continue;
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      T* const element = reinterpret_cast<T*>(to + (first + j) * rows.dx_step);
      if (g.accumulate) wide.lane[j] = widen(load(element)) + wide.lane[j];
      store(element, narrow<T>(wide.lane[j]));
    }
  }
}

// Queues that kernel, if the plan's reduced axis is such a row. model: the operand that steps along
// the axes of the results alone.
template <class T, class Operands>
bool run_held_rows(const ElementwisePlan& plan, const FewGradient<T>& of, bool skips,
                   cudaStream_t stream) {
  if constexpr (sizeof(T) < sizeof(double)) {
    using Rows = HeldRows<T>;
    constexpr int kSize = Vec<T>::kSize;
    const int from[Rows::kArrays] = {Operands::kX, Operands::kDx, Operands::kDy,
                                     Operands::kDSecond};
    Rows rows{};
    int reduced = -1;
    rows.rows = 1;
    for (int k = 0; k < Rows::kArrays; ++k) rows.data[k] = plan.data[from[k]];
    for (int axis = 0; axis < plan.ndim; ++axis) {
      if (plan.strides[Operands::kModel][axis] == 0) {
        if (reduced >= 0) return false;
        reduced = axis;
        continue;
      }
      rows.axis_length[rows.axes] = plan.shape[axis];
      rows.rows *= plan.shape[axis];
      for (int k = 0; k < Rows::kArrays; ++k)
        rows.stride[k][rows.axes] = plan.strides[from[k]][axis];
      ++rows.axes;
    }
    if (reduced < 0) return false;
    const int64_t length = plan.shape[reduced];
    if (length < kLeastOfHeldRow || length > kMostOfHeldRow || length % kSize != 0 ||
        plan.strides[Operands::kX][reduced] != int64_t(sizeof(T)))
      return false;
    rows.length = int(length);
    rows.dx_step = plan.strides[Operands::kDx][reduced];
    auto bits = reinterpret_cast<uintptr_t>(rows.data[Rows::kX]) |
                reinterpret_cast<uintptr_t>(rows.data[Rows::kDx]);
    for (int i = 0; i < rows.axes; ++i)
      bits |= uintptr_t(rows.stride[Rows::kX][i] | rows.stride[Rows::kDx][i]);
    rows.is_quick = bits % kVecBytes == 0 && rows.dx_step == int64_t(sizeof(T));
    rows.of = of;
    // Vectors of a thread: 4 of float, 2 of 16 bits; more only where a block is too small.
    constexpr int kVecs = sizeof(T) == 2 ? 2 : 4;
    const int64_t vecs = length / kSize;
    const bool is_long = vecs > kVecs * kThreads;
    rows.team = power_of_two_from(ceil_div(vecs, is_long ? 2 * kVecs : kVecs), kThreads);
    while (1 << rows.team_shift < rows.team) ++rows.team_shift;
    const int threads = rows.team > kWarp ? rows.team : kThreads;
    const auto pick = [&](auto skipping) {
      constexpr bool kSkips = decltype(skipping)::value;
      return is_long ? held_row_gradient<2 * kVecs, T, kSkips>
                     : held_row_gradient<kVecs, T, kSkips>;
    };
    launch(skips ? pick(std::true_type{}) : pick(std::false_type{}),
           {ceil_div(rows.rows, threads / rows.team), threads}, stream, rows);
    return true;
  }
  return false;
}

}  // namespace
FASTACT_END_NAMESPACE
