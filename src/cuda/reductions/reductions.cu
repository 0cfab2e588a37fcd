// Sums over any axes: rows, columns, the whole array.
//
// common/core/reduction_plan.h sorts the axes; what is innermost decides between two kernels.
//
// Rows (the innermost axis is reduced). An output is the sum of a row of vectors of 16 bytes,
// gathered from one or more contiguous segments. A row belongs to a team, from one lane of a warp
// to a block of 256 threads, by its length: rows of a narrow array share a warp, and a lane has up
// to kLaneVecs vectors before there is a second warp. A row of more than kChunk vectors is cut into
// chunks, a block each, whose partial sums finish_chunks adds. A lane has four vectors in flight
// and four accumulators.
//
//   reduce_short_rows  rows of one lane that touch: read into shared memory, so that loads coalesce
//   few_rows           the same of 2 to 4 elements, from registers
//   reduce_rows        any others; of one segment and aligned vectors by an instance of its own
//
// Columns (the innermost axis is kept). In sum_columns a block is tx vectors of columns wide and
// 256 / tx rows high; a thread adds its vector of columns over every (256 / tx)-th row, four rows
// at a time, and the block adds its rows in shared memory by a tree. Long columns are cut into
// chunks as rows are. Where rows are short and contiguous ((1M, 3)), several are joined to one that
// is a whole number of vectors (three vectors hold four rows of three floats): every access has 16
// bytes then, and a lane always meets the same column. Columns of up to kFewRows rows go to
// reduce_few_rows, in which a thread adds all rows of its vector of columns.
//
// Everything accumulates in double, of 16 bits up to 32 terms in float before that, and results are
// rounded once. The order of additions is a
// function of the lengths of the reduced axes (for column sums, of the innermost one too), never of
// the device, the number of rows or an address: misaligned rows are read by windows
// (core/vector_io.cuh). No atomics. At most kMaxChunks partial sums per output.
//
// Bytes moved: x once; the partial sums are below 1 % of it.
#include <vector>

#include "cuda/core/native_function.h"
#include "cuda/reductions/gradients.cuh"
#include "cuda/reductions/plan.cuh"

FASTACT_BEGIN_NAMESPACE

template <class T>
int64_t sum_workspace(const SumCall& call) {
  if (is_empty(call.x) || is_empty(call.y)) return 0;
  return chunk_bytes<T, SumResults>(call.x, call.y, call.axes);
}

template <class T>
void sum(const SumCall& call, void* workspace, cudaStream_t stream) {
  if (is_empty(call.y)) return;
  // An empty x is not read: y stands in for it, with rows that have no elements.
  const bool empty = is_empty(call.x);
  const Reduction plan =
      plan_reduction(empty ? call.y : call.x, call.y, call.axes, sizeof(T), false);
  SumResults to{plan.y, call.accumulate};
  to.divisor.set(call.divisor);
  to.initial = call.initial, to.term = call.term;
  if (call.y.dtype != call.x.dtype) to.other = call.y.dtype;
  visit_term(call.term, [&](auto term) {
    using Of = decltype(term);
    if constexpr (sizeof(T) < sizeof(double))
      if (!empty && has_few_of_row<T>(plan)) return run_few<T>(plan, FewSumsOf<Of, T>{to}, stream);
    reduce<T, SumKernels<Of, T>>(plan, to, workspace, empty, stream);
  });
}

template <class T>
void broadcast(const BroadcastCall& call, cudaStream_t stream) {
  if (is_empty(call.arrays[0])) return;
  run_gradient<T>(TermGradient<T, Itself>{}, {call.arrays[0]}, {}, call.arrays[1], call.accumulate,
                  stream);
}

namespace {

// d(x^2)/dx for dy = 1
template <class T>
struct Twice : Lanewise<Twice<T>, T, 1> {
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[1]) const { return in[0] + in[0]; }
};

// The sum of the squares; its y has the axes of x.
SumCall sum_of(const SquareCall& call) {
  static const std::vector<int64_t> ones(kMaxAxes, 1), none(kMaxAxes, 0);
  SumCall sum{};
  sum.x = sum.y = call.x;
  sum.y.data = call.y.data, sum.y.shape = ones.data(), sum.y.strides = none.data();
  std::fill(sum.axes.flags, sum.axes.flags + call.x.ndim, true);
  sum.term = kSquare, sum.divisor = 1, sum.initial = -0.0;
  return sum;
}

}  // namespace

template <class T>
int64_t square_workspace(const SquareCall& call) {
  return sum_workspace<T>(sum_of(call));
}

template <class T>
void square_value_and_grad(const SquareCall& call, void* workspace, cudaStream_t stream) {
  sum<T>(sum_of(call), workspace, stream);
  if (is_empty(call.x)) return;
  const Operand arrays[] = {call.x, call.grad};
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), 2, arrays);
  run_map<T, 1, false>(plan, false, Twice<T>{}, stream);
}

template <class T>
void sum_backward(const SumBackwardCall& call, cudaStream_t stream) {
  const Operand &dy = call.arrays[call.kDy], &x = call.arrays[call.kX], &dx = call.arrays[call.kDx];
  if (is_empty(x)) return;
  visit_term(call.term, [&](auto term) {
    run_gradient<T>(TermGradient<T, decltype(term)>{}, {dy}, x, dx, call.accumulate, stream);
  });
}

using Storage = FASTACT_STORAGE;
const NativeFunction<sum_workspace<Storage>, sum<Storage>> sums_call(kSumCall);
const NativeFunction<sum_backward<Storage>> backward_call(kSumBackwardCall);
const NativeFunction<square_workspace<Storage>, square_value_and_grad<Storage>> squares_call(
    kSquareCall);
const NativeFunction<broadcast<Storage>> repeated_call(kBroadcastCall);

FASTACT_END_NAMESPACE
