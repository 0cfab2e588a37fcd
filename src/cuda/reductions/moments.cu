// Mean and m2 over any axes: rows, columns, the whole array.
//
// Elements are visited as for a sum (reductions.cu): the same axes, vectors, windows, chunks and
// tiles. So bits do not depend on addresses, on the number of rows or on the device either. But a
// thread accumulates sums about a shift (shifted_moments.cuh), and a chunk leaves three numbers,
// mean, m2 and count, which finish_chunks merges about the mean of all.
//
//   reduce_segments, reduce_short_rows, reduce_few_of_row, reduce_rows, reduce_few_rows   the
//                    kernels of sums
//   moment_columns   a block is tx vectors of columns by 256 / tx rows, added in shared memory
//   few_weighted, weighted_blocks   elements that are weighted or masked, by any strides
//                    (weighted_kernels.cuh)
//
// Bytes moved: x once; the partial moments are below 1 % of it. In double an element costs a
// conversion, a subtraction, an addition and an fma: docs/design/cuda.md, "Reductions".
//
// Backward (gradients.cuh) takes a mean in two parts, of 16-bit data in double: two parts of 16
// bits would have 17 or 22 of them.
#include "common/reductions/spread_call.h"
#include "cuda/core/native_function.h"
#include "cuda/reductions/few_terms.cuh"
#include "cuda/reductions/gradients.cuh"
#include "cuda/reductions/moment_kernels.cuh"
#include "cuda/reductions/plan.cuh"
#include "cuda/reductions/row_gradient.cuh"
#include "cuda/reductions/weighted_kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Where the results go, so many bytes further on.
MomentResults results_of(const MomentsCall& call, int64_t y_offset) {
  const auto data = [&](MomentsCall::Result k) {
    return call.results[k].data ? call.results[k].data + y_offset : nullptr;
  };
  const bool is_wide = call.model().dtype == kF64;
  return {data(MomentsCall::kMean),
          data(MomentsCall::kLow),
          data(MomentsCall::kSecond),
          data(MomentsCall::kCount),
          OfM2(call.of_m2),
          call.correction,
          call.initial,
          call.skips,
          false,
          is_wide,
          is_wide || call.model().dtype == call.x().dtype ? -1 : call.model().dtype};
}

}  // namespace

template <class T>
void statistic_backward(const StatisticBackwardCall& call, cudaStream_t stream) {
  const auto& [x, dy, slope, mean, low, dx] = call.arrays;
  const bool accumulate = call.accumulate;
  if (is_empty(x)) return;
  const Compute<T> of_nan = call.skips ? Compute<T>(0) : Compute<T>(__builtin_nanf(""));
  const StatisticGradient<T, true> f{of_nan};
  if (!mean.data)
    run_gradient<T>({dy, slope, x, dx}, accumulate, StatisticGradient<T, false>{of_nan}, stream);
  else if constexpr (kCentre<T> == 1)
    run_gradient<T>({dy, slope, mean, x, dx}, accumulate, f, stream);
  else
    run_gradient<T>({dy, slope, mean, low, x, dx}, accumulate, f, stream);
}

template <class T>
void moments_backward(const MomentsBackwardCall& call, cudaStream_t stream) {
  const auto& [x, mean, low, dmean, dsecond, dx] = call.arrays;
  if (is_empty(x)) return;
  const MomentsGradient<T> f{Compute<T>(call.share), Compute<T>(call.scale)};
  if constexpr (kCentre<T> == 1)
    run_gradient<T>({dmean, dsecond, mean, x, dx}, call.accumulate, f, stream);
  else
    run_gradient<T>({dmean, dsecond, mean, low, x, dx}, call.accumulate, f, stream);
}

namespace {

constexpr int64_t kLongTerms = 256;        // terms of an output that are worth a whole block
constexpr int64_t kWeightedChunk = 16384;  // terms of a chunk, where a block has one output
constexpr int64_t kWeightedRows = 2048;    // the same where it has several

// axes OUT: of a call's arrays, x before the others; the results' axes first. Returns how
// many there are, and through *kept how many are of the results. data IN/OUT: where arrays begin.
template <int arrays>
int find_weighted_axes(Axis<arrays> (&axes)[kMaxAxes], const ArrayArgument* const (&of)[arrays],
                       const bool* reduced, char* (&data)[arrays], int* kept) {
  Operand operands[arrays];
  int64_t items[arrays];
  for (int k = 0; k < arrays; ++k)
    operands[k] = *of[k], items[k] = item_size(of[k]->dtype), data[k] = of[k]->data;
  int count =
      find_axes(axes, operands[0], arrays, operands, items, [&](int i) { return int(reduced[i]); });
  sort_axes(axes, count, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  for (*kept = 0; *kept < count && !axes[*kept].kind; ++*kept)
    if (axes[*kept].stride[0] < 0) reverse_axis(&axes[*kept], arrays, data);
  order_axes(axes, *kept, 0);
  order_axes(axes + *kept, count - *kept, 0);
  count = merge_axes(axes, count);
  for (*kept = 0; *kept < count && !axes[*kept].kind;) ++*kept;
  return count;
}

// Whether a thread may have the terms of a result.
bool has_few_terms(const ArrayArgument& x, const bool* reduced) {
  int64_t terms = 1;
  for (int i = 0; i < x.ndim; ++i) terms *= reduced[i] ? x.shape[i] : 1;
  return terms <= kMostFewWeighted;
}

// The plan of such a call; of: its arrays, in the order of FewWeighted.
template <int kArrays>
FewWeighted<kArrays> plan_few_weighted(const ArrayArgument* const (&of)[kArrays],
                                       const bool* reduced) {
  FewWeighted<kArrays> few{};
  Axis<kArrays> axes[kMaxAxes];
  const int count = find_weighted_axes(axes, of, reduced, few.data, &few.axes);
  few.results = few.terms = 1;
  for (int i = 0; i < few.axes; ++i) {
    few.results *= few.length[i] = axes[i].length;
    for (int k = 0; k < kArrays; ++k) few.stride[k][i] = axes[i].stride[k];
  }
  for (int i = few.axes; i < count; ++i) few.terms *= int(axes[i].length);
  for (int k = 0; k < kArrays; ++k) {
    few.dtypes[k] = of[k]->dtype;
    for (int r = 0; r < few.terms; ++r)
      for (int i = count, rest = r; i-- > few.axes; rest /= int(axes[i].length))
        few.term[k][r] += rest % axes[i].length * axes[i].stride[k];
  }
  for (int k = few.kDx; k < kArrays; ++k) {
    bool& touch = few.touch[k - few.kDx];
    const int64_t item = item_size(few.dtypes[k]);
    touch = few.dtypes[k] == few.dtypes[few.kX] && few.axes == 1 &&
            few.stride[k][0] == few.terms * item;
    for (int r = 0; r < few.terms; ++r) touch &= few.term[k][r] == r * item;
  }
  return few;
}
template <class Kernel, class Few, class... Arguments>
void launch_few(Kernel kernel, const Few& few, cudaStream_t stream, const Arguments&... arguments) {
  launch(kernel, {ceil_div(few.results, kThreads), kThreads}, stream, few, arguments...);
}

template <class T>
bool wants_squares(const MomentsCall& call) {
  const bool has_second = call.results[MomentsCall::kSecond].data;
  return sizeof(T) == sizeof(double) || (has_second && is_of_squares(OfM2(call.of_m2)));
}

template <class T>
WeightedSums plan_weighted(const MomentsCall& call, double* partials, int64_t* y_offset) {
  enum { kX, kY, kWeights, kWhere, kArrays };
  const ArrayArgument& weights = call.inputs[MomentsCall::kWeights];
  const ArrayArgument* const of[kArrays] = {&call.x(), &call.model(), &weights,
                                            &call.inputs[MomentsCall::kWhere]};
  char* data[kArrays];
  Axis<kArrays> axes[kMaxAxes];
  int kept;
  const int count = find_weighted_axes(axes, of, call.axes, data, &kept);

  WeightedSums sums{};
  sums.axes = count;
  sums.outputs = sums.terms = 1;
  int64_t step[2] = {};  // of the innermost output, and of the innermost term
  for (int i = 0; i < count; ++i) {
    const Axis<kArrays>& axis = axes[i];
    (axis.kind ? sums.terms : sums.outputs) *= sums.length[i] = axis.length;
    for (int k = 0; k < kArrays; ++k) sums.stride[k][i] = axis.stride[k];
    step[axis.kind] = std::abs(axis.stride[kX]);
  }
  sums.kept_axes = kept;
  sums.skips = call.skips, sums.squares = !call.pair && wants_squares<T>(call);
  sums.pair = call.pair;
  *y_offset = data[kY] - call.model().data;
  sums.x = data[kX], sums.weights = data[kWeights], sums.where = data[kWhere];
  sums.weights_dtype = weights.dtype;
  sums.partials = partials;
  const bool is_by_output = sums.terms >= kLongTerms && (sums.outputs == 1 || step[1] <= step[0]);
  sums.tx = is_by_output ? 1 : power_of_two_from(sums.outputs, kWarp);
  sums.ty = kThreads / sums.tx;
  sums.tiles = ceil_div(sums.outputs, sums.tx);
  cut(&sums.chunks, sums.terms, is_by_output ? kWeightedChunk : kWeightedRows);
  return sums;
}

template <class T>
int64_t weighted_workspace(const MomentsCall& call) {
  int64_t y_offset;
  const WeightedSums sums = plan_weighted<T>(call, nullptr, &y_offset);
  const int64_t numbers = MomentResults::kNumbers * sums.outputs * sums.chunks.count;
  return sums.chunks.count > 1 ? numbers * int64_t(sizeof(double)) : 0;
}

template <class T>
void weighted_moments(const MomentsCall& call, void* workspace, cudaStream_t stream) {
  int64_t y_offset;
  if (has_few_terms(call.x(), call.axes) && !call.pair) {
    FewMomentsOf few = plan_few_weighted({&call.x(), &call.inputs[MomentsCall::kWeights],
                                          &call.inputs[MomentsCall::kWhere], &call.model()},
                                         call.axes);
    few.skips = call.skips, few.squares = wants_squares<T>(call);
    const MomentResults to = results_of(call, few.data[few.kY] - call.model().data);
    return launch_few(few.terms <= 4 ? few_weighted<T, 4> : few_weighted<T, kMostFewWeighted>, few,
                      stream, to);
  }
  const WeightedSums sums = plan_weighted<T>(call, static_cast<double*>(workspace), &y_offset);
  const MomentResults to = results_of(call, y_offset);
  launch(weighted_blocks<T>, {blocks_for(sums.tiles * sums.chunks.count), kThreads}, stream, sums,
         to, false);
  if (sums.chunks.count == 1) return;
  Sums chunks{};  // of outputs by all of their axes
  for (int i = 0; i < sums.kept_axes; ++i)
    chunks.kept.append(sums.length[i], 0, sums.stride[WeightedSums::kY][i]);
  chunks.chunks = sums.chunks;
  chunks.partials = sums.partials;
  finish<T>(chunks, to, sums.outputs, 1, stream);
}

// Outputs whose squares left the range of double, anew, of moments that are stored.
template <class T>
void rescale(const MomentsCall& call, cudaStream_t stream) {
  int64_t y_offset;
  WeightedSums sums = plan_weighted<T>(call, nullptr, &y_offset);
  sums.chunks = {sums.terms, 1};
  launch(weighted_blocks<T>, {blocks_for(sums.tiles), kThreads}, stream, sums,
         results_of(call, y_offset), true);
}

}  // namespace

template <class T>
int64_t moments_workspace(const MomentsCall& call) {
  if (call.is_weighted()) return weighted_workspace<T>(call);
  return chunk_bytes<T, MomentResults>(call.x(), call.model(), call.axes);
}

template <class T>
void moments(const MomentsCall& call, void* workspace, cudaStream_t stream) {
  if (call.is_weighted()) return weighted_moments<T>(call, workspace, stream);
  const Operand& model = call.model();
  const Reduction plan = plan_reduction(call.x(), model, call.axes, sizeof(T), false);
  MomentResults to = results_of(call, plan.y - model.data);
  const bool squares = to.squares = wants_squares<T>(call);
  const auto run = [&](auto skips, auto with_squares) {
    constexpr bool kSkips = decltype(skips)::value;
    constexpr bool kSquares = decltype(with_squares)::value || sizeof(T) == sizeof(double);
    // Double has no kernels of its own for each: memory is slow enough.
    using Terms =
        std::conditional_t<sizeof(T) < sizeof(double), FixedTerms<kSkips, kSquares>, AskedTerms>;
    if (!reduce_few<T, kSkips, kSquares>(plan, to, stream))
      reduce<T, MomentKernels<T, Terms>>(plan, to, workspace, false, stream);
  };
  if (call.skips)
    squares ? run(std::true_type{}, std::true_type{}) : run(std::true_type{}, std::false_type{});
  else
    squares ? run(std::false_type{}, std::true_type{}) : run(std::false_type{}, std::false_type{});
  // A narrower result is infinite or 0 there in any case.
  if constexpr (sizeof(T) == sizeof(double))
    if (to.wide && to.second && is_of_squares(to.of_m2)) rescale<T>(call, stream);
}

namespace {

// What a gradient needs of x: up to three numbers of each result, in scratch memory, of weighted
// ones in double, and the calls that find them and that use them. It stays where it is: the calls
// point into it.
template <class T>
struct FoundNumbers {
  enum : int { kSlope, kMean, kLow, kNumbers };
  int64_t lengths[kMaxAxes], strides[kMaxAxes];
  int64_t bytes = 0;  // of the numbers
  ArrayArgument over_x[kNumbers] = {};
  MomentsCall find{};

  FoundNumbers(const SpreadBackwardCall& call, char* scratch) {
    const ArrayArgument& x = call.arrays[SpreadBackwardCall::kX];
    const bool is_wide = sizeof(T) == 2 || call.is_weighted();
    int64_t size = is_wide ? sizeof(double) : sizeof(Found<T>);
    for (int i = x.ndim; i-- > 0;) {
      lengths[i] = call.axes[i] ? 1 : x.shape[i];
      strides[i] = lengths[i] == 1 ? 0 : size;
      size *= lengths[i];
    }
    const auto make = [&](int number, MomentsCall::Result result) {
      ArrayArgument made{};
      made.data = scratch + bytes;
      made.ndim = x.ndim, made.shape = lengths, made.strides = strides, made.stride_unit = 1;
      made.dtype = is_wide ? int(kF64) : x.dtype;
      made.device_type = x.device_type, made.device = x.device;
      find.results[result] = over_x[number] = made;
      over_x[number].shape = x.shape;
      bytes += ceil_div(size, kVecBytes) * kVecBytes;
    };
    find.inputs[MomentsCall::kX] = x;
    find.inputs[MomentsCall::kWeights] = call.arrays[SpreadBackwardCall::kWeights];
    find.inputs[MomentsCall::kWhere] = call.arrays[SpreadBackwardCall::kWhere];
    find.axes = call.axes;
    find.of_m2 = call.of_m2, find.correction = call.correction, find.skips = call.skips;
    if (call.of_m2 != kM2) make(kSlope, MomentsCall::kSecond);
    const bool has_mean = call.of_m2 != kMeanSlope;
    if (has_mean || call.arrays[SpreadBackwardCall::kDWeights].data)
      make(kMean, MomentsCall::kMean);
    if (has_mean && !is_wide) make(kLow, MomentsCall::kLow);
  }
};

// The functor of a call's gradients, without arrays.
template <class T>
FewGradient<T> gradient_of(const SpreadBackwardCall& call, const FewCount& count) {
  using C = Compute<T>;
  FewGradient<T> g{};
  g.of = count;
  g.accumulate = call.accumulate;
  g.slope = C(count.second), g.share = C(call.share), g.scale = C(call.scale);
  g.of_nan = call.skips ? C(0) : C(__builtin_nanf(""));
  return g;
}

// Queues the kernel for gradients of terms that a thread or a block holds, if there is one for this
// layout. model: an array of the results, without gaps, over x's shape.
template <class T>
bool run_held_gradient(const SpreadBackwardCall& call, const ArrayArgument& model,
                       cudaStream_t stream) {
  if constexpr (sizeof(T) < sizeof(double)) {
    struct Operands {
      enum : int { kModel, kDy, kDSecond, kX, kDx, kCount };
    };
    constexpr int kModel = Operands::kModel, kDy = Operands::kDy, kDSecond = Operands::kDSecond,
                  kX = Operands::kX, kDx = Operands::kDx;
    constexpr int kSize = Vec<T>::kSize;
    using Call = SpreadBackwardCall;
    const Operand arrays[Operands::kCount] = {model, call.arrays[Call::kDy],
                                              call.arrays[Call::kDSecond], call.arrays[Call::kX],
                                              call.arrays[Call::kDx]};
    ElementwisePlan plan;
    plan_elementwise(&plan, sizeof(T), Operands::kCount, arrays);
    int64_t all_terms = 1;
    for (int i = 0; i < model.ndim; ++i) all_terms *= call.axes[i] ? model.shape[i] : 1;
    if (all_terms >= kLeastOfHeldRow && all_terms <= kMostOfHeldRow) {
      const FewGradient<T> g =
          gradient_of<T>(call, {int(all_terms), OfM2(call.of_m2), call.correction, call.skips});
      return run_held_rows<T, Operands>(plan, g, call.skips, stream);
    }
    const auto bits =
        reinterpret_cast<uintptr_t>(plan.data[kX]) | reinterpret_cast<uintptr_t>(plan.data[kDx]);
    if (plan.size > kMostDense || plan.ndim > 3 || !plan.contiguous[kX] || !plan.contiguous[kDx] ||
        bits % kVecBytes != 0)
      return false;
    const int last = plan.ndim - 1;
    const auto step_of = [&](int k, int axis) { return axis < 0 ? 0 : plan.strides[k][axis]; };
    const int64_t item = sizeof(Found<T>), inner = plan.shape[last];
    const bool is_columns = step_of(kModel, last) == item && last > 0 &&
                            step_of(kModel, last - 1) == 0 && inner % kSize == 0 &&
                            (last == 1 || step_of(kModel, 0) == inner * item);
    const bool is_rows =
        step_of(kModel, last) == 0 && last < 2 && (last == 0 || step_of(kModel, 0) == item);
    const int64_t terms = is_columns ? plan.shape[last - 1] : inner;
    if (!(is_columns || is_rows) || terms < 2 ||
        terms > (is_columns ? kMostFewRows : kMostFewOfRow))
      return false;
    const FewCount count(int(terms), OfM2(call.of_m2), call.correction, call.skips);
    FewGradient<T> g = gradient_of<T>(call, count);
    g.x = reinterpret_cast<const T*>(plan.data[kX]), g.dx = reinterpret_cast<T*>(plan.data[kDx]);
    g.dy = plan.data[kDy], g.dsecond = plan.data[kDSecond];
    g.results = uint32_t(plan.size / terms);
    g.width = uint32_t(inner), g.row_vecs = uint32_t(inner / kSize);
    g.by_row_vecs = Divisor(std::max<int64_t>(1, inner / kSize), kMostDense);
    for (int k = 0; k < 2; ++k) {
      g.step[k] = step_of(kDy + k, is_columns ? last : last - 1);
      g.outer_step[k] = is_columns ? step_of(kDy + k, last - 2) : 0;
    }
    const int64_t threads = ceil_div(plan.size / terms, kSize);
    void (*kernel)(FewGradient<T>) = nullptr;
    const auto pick = [&](auto skips) {
      constexpr bool kSkips = decltype(skips)::value;
      if (is_columns)
        return terms <= 4 ? few_columns_gradient<4, T, kSkips>
                          : few_columns_gradient<kMostFewRows, T, kSkips>;
      return terms == 2   ? few_rows_gradient<2, T, kSkips>
             : terms == 3 ? few_rows_gradient<3, T, kSkips>
                          : few_rows_gradient<4, T, kSkips>;
    };
    kernel = call.skips ? pick(std::true_type{}) : pick(std::false_type{});
    if (is_columns) g.results /= kSize;
    launch(kernel, {ceil_div(threads, kThreads), kThreads}, stream, g);
    return true;
  }
  return false;
}

}  // namespace

template <class T>
int64_t spread_workspace(const SpreadBackwardCall& call) {
  const ArrayArgument& all = call.arrays[SpreadBackwardCall::kX];
  if (is_empty(all) || (call.is_weighted() && has_few_terms(all, call.axes))) return 0;
  const FoundNumbers<T> found(call, nullptr);
  return found.bytes + moments_workspace<T>(found.find);
}

template <class T>
void weighted_gradient(const WeightedGradientCall& call, cudaStream_t stream) {
  constexpr int kCount = GradientArrays::kCount;
  if (is_empty(call.arrays[0])) return;
  GradientArrays arrays{};
  Operand operands[kCount];
  int64_t items[kCount];
  for (int k = 0; k < kCount; ++k) {
    operands[k] = call.arrays[k];
    arrays.data[k] = operands[k].data;
    arrays.dtypes[k] = call.arrays[k].dtype;
    items[k] = item_size(arrays.dtypes[k]);
  }
  arrays.mean = call.arrays[WeightedGradientCall::kMean].data;
  arrays.of_mean = call.arrays[WeightedGradientCall::kOfMean].data;
  Axis<kCount> axes[kMaxAxes];
  int count = find_axes(axes, operands[0], kCount, operands, items, [](int) { return 0; });
  order_axes(axes, count, 0);
  count = merge_axes(axes, count);
  arrays.axes = count;
  arrays.size = 1;
  for (int i = 0; i < count; ++i) {
    arrays.size *= arrays.length[i] = axes[i].length;
    for (int k = 0; k < kCount; ++k) arrays.stride[k][i] = axes[i].stride[k];
  }
  arrays.term = call.term, arrays.pair = call.pair, arrays.of_weights = call.of_weights;
  arrays.skips = call.skips, arrays.accumulate = call.accumulate;
  launch(gradient_elements<T>, {blocks_for(ceil_div(arrays.size, kThreads)), kThreads}, stream,
         arrays);
  if (!call.arrays[WeightedGradientCall::kToWeights].data) return;
  WeightedGradientCall other = call;
  other.arrays[WeightedGradientCall::kTo] = call.arrays[WeightedGradientCall::kToWeights];
  other.arrays[WeightedGradientCall::kToWeights] = {};
  other.of_weights = true;
  weighted_gradient<T>(other, stream);
}

namespace {

// The gradients of weighted terms.
template <class T>
void weighted_backward(const SpreadBackwardCall& call, void* workspace, cudaStream_t stream) {
  const auto& [x, dy, dsecond, dx, weights, where, dweights] = call.arrays;
  if (has_few_terms(x, call.axes)) {
    FewGradientsOf few = plan_few_weighted({&x, &weights, &where, &dy, &dx, &dweights}, call.axes);
    few.of_m2 = OfM2(call.of_m2), few.correction = call.correction, few.skips = call.skips;
    few.squares = sizeof(T) == sizeof(double) || is_of_squares(few.of_m2);
    few.accumulate = call.accumulate, few.accumulate_dweights = call.accumulate_dweights;
    return launch_few(
        few.terms <= 4 ? few_weighted_gradients<T, 4> : few_weighted_gradients<T, kMostFewWeighted>,
        few, stream);
  }
  const FoundNumbers<T> found(call, static_cast<char*>(workspace));
  moments<T>(found.find, static_cast<char*>(workspace) + found.bytes, stream);
  const ArrayArgument& mean = found.over_x[found.kMean];
  WeightedGradientCall each{};
  using Each = WeightedGradientCall;
  each.arrays[Each::kTo] = dx, each.arrays[Each::kDy] = dy, each.arrays[Each::kX] = x;
  each.arrays[Each::kSlope] = found.over_x[found.kSlope];
  each.arrays[Each::kWeights] = weights, each.arrays[Each::kWhere] = where;
  each.term = kItself, each.skips = call.skips, each.accumulate = call.accumulate;
  if (call.of_m2 != kMeanSlope) each.arrays[Each::kMean] = mean;
  if (dx.data) weighted_gradient<T>(each, stream);
  each.arrays[Each::kTo] = dweights, each.arrays[Each::kMean] = mean;
  each.of_weights = true, each.accumulate = call.accumulate_dweights;
  if (dweights.data) weighted_gradient<T>(each, stream);
}

}  // namespace

template <class T>
void spread_backward(const SpreadBackwardCall& call, void* workspace, cudaStream_t stream) {
  const auto& [x, dy, dsecond, dx, weights, where, dweights] = call.arrays;
  if (is_empty(x)) return;
  if (call.is_weighted()) return weighted_backward<T>(call, workspace, stream);
  const FoundNumbers<T> found(call, static_cast<char*>(workspace));
  const auto& [slope, mean, low] = found.over_x;
  if (run_held_gradient<T>(call, call.of_m2 == kM2 ? mean : slope, stream)) return;
  moments<T>(found.find, static_cast<char*>(workspace) + found.bytes, stream);
  if (call.of_m2 == kM2)
    moments_backward<T>({{x, mean, low, dy, dsecond, dx}, call.share, call.scale, call.accumulate},
                        stream);
  else
    statistic_backward<T>({{x, dy, slope, mean, low, dx}, call.skips, call.accumulate}, stream);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<moments_workspace<Storage>, moments<Storage>> statistics_call(kMomentsCall);
const NativeFunction<moments_backward<Storage>> backward_call(kMomentsBackwardCall);
const NativeFunction<statistic_backward<Storage>> statistic_call(kStatisticBackwardCall);
const NativeFunction<spread_workspace<Storage>, spread_backward<Storage>> spread_call(
    kSpreadBackwardCall);
const NativeFunction<weighted_gradient<Storage>> weighted_call(kWeightedGradientCall);

FASTACT_END_NAMESPACE
