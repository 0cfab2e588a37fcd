// Mean and m2 over any axes: rows, columns, the whole array.
//
// Elements are visited as for a sum (reductions.cu): the same axes, vectors, windows, chunks and
// tiles. So bits do not depend on addresses, on the number of rows or on the device either. But a
// thread accumulates sums about a shift (shifted_moments.cuh), and a chunk leaves three numbers,
// mean, m2 and count, which finish_chunks merges about the mean of all.
//
//   reduce_short_rows, reduce_rows, reduce_few_rows   the kernels of sums
//   few_rows         rows of 2 to 4 elements (few_terms.cuh)
//   moment_columns   a block is tx vectors of columns by 256 / tx rows, added in shared memory
//   weighted_blocks  elements that are weighted or masked, by any strides (weighted_kernels.cuh)
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
#include "cuda/reductions/weighted_kernels.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The places of the results, so many bytes further on.
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
  if (is_empty(x)) return;
  const auto of_nan = gradient_of_nan<T>(call.skips);
  if (mean.data)
    run_gradient<T>(SpreadGradient<T, kVarianceSlope>{0, 0, of_nan}, {dy, slope, mean, low}, x, dx,
                    call.accumulate, stream);
  else
    run_gradient<T>(SpreadGradient<T, kMeanSlope>{0, 0, of_nan}, {dy, slope}, x, dx,
                    call.accumulate, stream);
}

template <class T>
void moments_backward(const MomentsBackwardCall& call, cudaStream_t stream) {
  const auto& [x, mean, low, dmean, dsecond, dx] = call.arrays;
  if (is_empty(x)) return;
  const SpreadGradient<T, kM2> f{Compute<T>(call.share), Compute<T>(call.scale), 0};
  run_gradient<T>(f, {dmean, dsecond, mean, low}, x, dx, call.accumulate, stream);
}

namespace {

constexpr int64_t kLongTerms = 256;        // terms of an output that are worth a whole block
constexpr int64_t kWeightedChunk = 16384;  // terms of a chunk, where a block has one output
constexpr int64_t kWeightedRows = 2048;    // the same where it has several

template <class T>
bool wants_squares(const MomentsCall& call) {
  const bool has_second = call.results[MomentsCall::kSecond].data;
  return sizeof(T) == sizeof(double) || (has_second && is_of_squares(OfM2(call.of_m2)));
}

template <class T>
WeightedSums plan_weighted(const MomentsCall& call, void* partials) {
  WeightedSums sums{};
  const ArrayArgument of[] = {call.x(), call.inputs[MomentsCall::kWeights],
                              call.inputs[MomentsCall::kWhere], call.model()};
  sums.of = {CallArrays(of), sums.kX, [&](int i) { return int(call.axes[i]); }};
  for (int k = 0; k < sums.kArrays; ++k) sums.dtypes[k] = of[k].dtype;
  sums.outputs = sums.of.rows(), sums.terms = sums.of.elements();
  sums.skips = call.skips, sums.squares = !call.pair && wants_squares<T>(call);
  sums.pair = call.pair, sums.partials = static_cast<double*>(partials);
  const int64_t* const step = sums.of.stride[sums.kX];
  const int outer = sums.of.row_axes, rank = sums.of.count;
  const int64_t of_output = outer > 0 ? std::abs(step[outer - 1]) : 0;
  const int64_t of_term = rank > outer ? std::abs(step[rank - 1]) : 0;
  const bool is_by_output = sums.terms >= kLongTerms && (sums.outputs == 1 || of_term <= of_output);
  // How many threads share the terms of an output depends on the other outputs only where there are
  // few of them with many terms apart in memory: elsewhere its bits would depend on them for
  // nothing.
  sums.tx = is_by_output              ? 1
            : sums.terms <= kFewTerms ? kThreads
            : sums.terms < kLongTerms ? kWarp
                                      : power_of_two_from(sums.outputs, kWarp);
  sums.ty = kThreads / sums.tx;
  sums.tiles = ceil_div(sums.outputs, sums.tx);
  cut(&sums.chunks, sums.terms, is_by_output ? kWeightedChunk : kWeightedRows);
  return sums;
}

template <class T>
int64_t weighted_workspace(const MomentsCall& call) {
  const auto sums = plan_weighted<T>(call, nullptr);
  const int64_t numbers = MomentResults::kNumbers * sums.outputs * sums.chunks.count;
  return sums.chunks.count > 1 ? numbers * int64_t(sizeof(double)) : 0;
}

template <class T>
void weighted_moments(const MomentsCall& call, void* workspace, cudaStream_t stream) {
  const auto sums = plan_weighted<T>(call, workspace);
  const MomentResults to = results_of(call, 0);
  launch(weighted_blocks<T>, {blocks_for(sums.tiles * sums.chunks.count), kThreads}, stream, sums,
         to, false);
  if (sums.chunks.count == 1) return;
  Sums chunks{};  // of outputs by all of their axes
  for (int i = 0; i < sums.of.row_axes; ++i)
    chunks.kept.append(sums.of.length[i], 0, sums.of.stride[sums.kY][i]);
  chunks.chunks = sums.chunks;
  chunks.partials = sums.partials;
  finish<T>(chunks, to, sums.outputs, 1, stream);
}

// Outputs whose squares left the range of double, anew, of moments that are stored.
template <class T>
void rescale(const MomentsCall& call, cudaStream_t stream) {
  auto sums = plan_weighted<T>(call, nullptr);
  sums.chunks = {sums.terms, 1};
  launch(weighted_blocks<T>, {blocks_for(sums.tiles), kThreads}, stream, sums, results_of(call, 0),
         true);
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

// The statistics that a gradient needs of x: up to three numbers of each result, in scratch memory,
// of weighted ones in double, and the calls that find them and that use them. It stays where it is:
// the calls point into it.
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

}  // namespace

template <class T>
int64_t spread_workspace(const SpreadBackwardCall& call) {
  if (is_empty(call.arrays[SpreadBackwardCall::kX])) return 0;
  const FoundNumbers<T> found(call, nullptr);
  return found.bytes + moments_workspace<T>(found.find);
}

template <class T>
void weighted_gradient(const WeightedGradientCall& call, cudaStream_t stream) {
  using Call = WeightedGradientCall;
  const ArrayArgument(&a)[Call::kArrays] = call.arrays;
  if (is_empty(a[Call::kTo])) return;
  GradientElements all{};
  all.of = {CallArrays<all.kArrays>({a[0], a[1], a[2], a[3], a[4], a[5]}), 0,
            [](int) { return 0; }};
  all.size = all.of.rows();
  for (int k = 0; k < all.kArrays; ++k) all.dtypes[k] = a[k].dtype;
  all.mean = a[Call::kMean].data, all.of_mean = a[Call::kOfMean].data;
  all.term = call.term, all.pair = call.pair, all.of_weights = call.of_weights;
  all.skips = call.skips, all.accumulate = call.accumulate;
  launch(gradient_elements<T>, {blocks_for(ceil_div(all.size, kThreads)), kThreads}, stream, all);
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
  if (run_few_gradient<T>(call, call.of_m2 == kM2 ? mean : slope, stream)) return;
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
