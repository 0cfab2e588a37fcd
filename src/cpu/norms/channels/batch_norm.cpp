// The native functions of batch_norm (batch_norm.h), and the numbers of its channels: parameters,
// statistics, coefficients and sums. The passes over the arrays are in batch_norm_passes.cpp.
#include "cpu/norms/channels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "common/norms/norms.h"
#include "cpu/activations/kernels.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/summing_pass.h"

namespace fastact {
namespace {

constexpr int64_t kLongCut = 16384;    // elements of a row that are summed at a time
constexpr int64_t kMostCuts = 64;      // chunks
constexpr int64_t kShortChunk = 2048;  // elements of a channel: so many amortise folding its lanes

int64_t most_chunks(int64_t size) { return std::clamp<int64_t>(size / kLongCut, 1, kMostCuts); }

// The bytes of BatchNorm's numbers. size: elements of x.
int64_t batch_scratch(int64_t channels, int64_t size) {
  const int64_t numbers = 6 * channels + 2 * most_chunks(size) * channels;
  return (numbers + kCoefficients * (channels + kPiece)) * int64_t(sizeof(double)) + 64;
}

// An array with a number for each channel, along its only axis or along the channels', in the
// plan's order.
ChannelArray channels_of(const BatchNorm& norm, const ArrayArgument& a) {
  return a.shape ? along_channels(norm, a, a.dtype, a.ndim == 1 ? 0 : norm.axis) : ChannelArray{};
}

// Reads the numbers of the channels; `neutral` where there is no array.
void read_channels(const BatchNorm& norm, const ArrayArgument& a, double neutral, double* to) {
  const ChannelArray from = channels_of(norm, a);
  if (!from.data) return void(std::fill_n(to, norm.channels, neutral));
  for (int64_t first = 0; first < norm.channels; first += kPiece)
    widen(*norm.table->reduce, from.dtype, from.data + first * from.stride, from.stride,
          std::min(kPiece, norm.channels - first), to + first);
}

// Writes them to an array, if there is one.
void write_channels(const BatchNorm& norm, const double* from, const ArrayArgument& a,
                    bool accumulate) {
  const ChannelArray to = channels_of(norm, a);
  if (!to.data) return;
  Reducer sums;
  sums.table = norm.table->reduce;
  set_channels(&sums, to, norm.channels, accumulate);
  for (int64_t first = 0; first < norm.channels; first += kMostColumns)
    store_sums(sums, first, std::min(kMostColumns, norm.channels - first), from + first, nullptr);
}

// Finds the place of the channels' numbers, and plans a call, unless it is of no elements. arrays:
// kDy to kOut.
template <class Call>
void prepare(BatchNorm* norm, const KernelTable* table, const Operand (&arrays)[3],
             ElementwiseKernel activation, const Call& call, char* scratch) {
  StridedOperands& s = norm->operands;
  const int64_t c = call.x.shape[call.axis], size = size_of(call.x), most = most_chunks(size);
  scratch += -reinterpret_cast<uintptr_t>(scratch) % 64;
  double* numbers = reinterpret_cast<double*>(scratch);
  for (double** each : {&norm->mean, &norm->rstd, &norm->weight, &norm->bias, &norm->sums})
    *each = numbers, numbers += c;
  norm->partial = numbers + c;  // behind both sums
  static_cast<BatchOptions&>(*norm) = call;
  norm->table = table;
  norm->channels = c;
  s.is_channel_reversed = false;
  if (size == 0) return;
  const int dtype = call.x.dtype, dtypes[] = {dtype, dtype, dtype};
  plan_operands(&s, table->convert, 3, arrays, dtypes, BatchNorm::kX, call.axis,
                arrays[BatchNorm::kDy].data);
  norm->is_double = s.compute_dtype == kF64;
  // Coefficients are repeated for short rows that share a chunk.
  const int64_t pitch = !s.is_channel_outer && c < kShortRow ? c + kPiece : c;
  norm->coefficients = {reinterpret_cast<char*>(norm->partial + 2 * most * c), pitch,
                        norm->is_double};
  norm->activation = activation;
  norm->is_identity = call.which == k_identity;
  norm->accumulate = false;
  norm->count = size / c;
  read_channels(*norm, call.weight, 1.0, norm->weight);
  read_channels(*norm, call.bias, 0.0, norm->bias);
  norm->cuts = s.is_channel_outer ? ceil_div(s.columns.size, kLongCut) : 1;
  const int64_t outer = s.is_channel_outer ? s.rows.size / c : s.rows.size;
  norm->chunks = std::min(most, outer * norm->cuts);
  if (s.is_channel_outer)
    norm->chunks = std::clamp<int64_t>(norm->count / kShortChunk, 1, norm->chunks);
}

// Plans the moments of x: of each channel the mean OUT and the variance OUT, by the array's order
// of channels.
void prepare_moments(Reducer* reducer, const KernelTable* table, const BatchForward& call,
                     double* mean, double* variance) {
  const ArrayArgument& x = call.x;
  int64_t shape[kMaxAxes], strides[kMaxAxes];
  MomentsCall moments{};
  for (int i = 0; i < x.ndim; ++i) {
    moments.axes.flags[i] = i != call.axis;
    shape[i] = i == call.axis ? x.shape[i] : 1;
    strides[i] = 1;
  }
  const auto result = [&](double* to) {
    const Operand operand{reinterpret_cast<char*>(to), x.ndim, shape, strides, sizeof(double)};
    return ArrayArgument{operand, kF64, x.device_type, x.device, false};
  };
  moments.inputs[MomentsCall::kX] = x;
  moments.results[MomentsCall::kMean] = result(mean);
  moments.results[MomentsCall::kSecond] = result(variance);
  moments.of_m2 = kVarianceOrRoot;
  prepare(reducer, *table, moments);
}

// Takes mean and rstd from the moments, which lie in `mean` and, as variances, in `sums`, by the
// array's order of channels.
void take_moments(BatchNorm* norm, double eps) {
  const int64_t c = norm->channels;
  if (norm->operands.is_channel_reversed) {
    std::reverse(norm->mean, norm->mean + c);
    std::reverse(norm->sums, norm->sums + c);
  }
  for (int64_t i = 0; i < c; ++i) norm->rstd[i] = rstd_of_variance(norm->sums[i], eps);
  for (int64_t i = 0; i < c; ++i) norm->sums[i] = square_of(norm->sums[i]);
}

// Takes mean and rstd that are given, as variances or rstd.
void take_statistics(BatchNorm* norm, const ArrayArgument& mean, const ArrayArgument& spread,
                     bool is_rstd, double eps) {
  read_channels(*norm, mean, 0, norm->mean);
  read_channels(*norm, spread, 1, norm->rstd);
  if (is_rstd) return;
  for (int64_t i = 0; i < norm->channels; ++i) norm->rstd[i] = 1 / std::sqrt(norm->rstd[i] + eps);
}

// Updates, after take_moments, running = (1 - momentum) running + momentum (mean, unbiased
// variance).
void update_running(const BatchNorm& norm, const BatchForward& call) {
  const double unbiased = double(norm.count) / double(norm.count - 1);
  double* running = norm.partial;
  const auto update = [&](const ArrayArgument& array, const double* now, double factor) {
    if (!array.data) return;
    read_channels(norm, array, 0, running);
    for (int64_t i = 0; i < norm.channels; ++i)
      running[i] = (1 - call.momentum) * running[i] + call.momentum * (now[i] * factor);
    write_channels(norm, running, array, false);
  };
  update(call.mean, norm.mean, 1);
  update(call.spread, norm.sums, unbiased);
}

// Sets the coefficients of all channels, once mean and rstd are set.
void make_coefficients(const BatchNorm& norm) {
  norm.coefficients.fill(kHigh, kMeanP, norm.channels, norm.coefficients.pitch, [&](auto row) {
    using T = std::decay_t<decltype(*row(0))>;
    for (int64_t i = 0; i < norm.channels; ++i) {
      const T high = T(norm.mean[i]);
      row(kHigh)[i] = high;
      row(kLow)[i] = std::isfinite(high) ? T(norm.mean[i] - double(high)) : T(0);
      row(kScale)[i] = T(norm.weight[i] * norm.rstd[i]);
      row(kOffset)[i] = T(norm.bias[i]);
      row(kWeight)[i] = T(1);
    }
  });
}

}  // namespace

void make_slopes(const BatchNorm& norm, int64_t first, int64_t n) {
  if (!norm.is_training) return;
  const double *sums = norm.sums, *products = sums + norm.channels, count = double(norm.count);
  const Coefficients& numbers = norm.coefficients;
  numbers.fill(kMeanP, kCoefficients, norm.channels, numbers.pitch, [&](auto row) {
    using T = std::decay_t<decltype(*row(0))>;
    for (int64_t i = first; i < first + n; ++i) {
      row(kMeanP)[i] = T(sums[i] / count);
      row(kSlope)[i] = T(products[i] * (norm.rstd[i] / count));
    }
  });
}

namespace {

// Refuses a workspace that is too small for a call, and returns the bytes of it that lie before the
// partial moments.
template <class Call>
int64_t check_scratch(const CallTable& table, const Call& call, const Execution& execution) {
  const int64_t needed = batch_scratch(call.x.shape[call.axis], size_of(call.x));
  check_workspace("fastact._cpu", table.name, execution.workspace, execution.bytes, needed,
                  sizeof(double));
  return needed;
}

}  // namespace

// With many threads these share the moments.
int64_t batch_forward_workspace(const BatchForward& call, const KernelTable* kernels) {
  const int64_t size = size_of(call.x), needed = batch_scratch(call.x.shape[call.axis], size);
  if (!call.is_training || size == 0 || resolve_threads(size) == 1) return needed;
  Reducer moments;
  prepare_moments(&moments, kernels, call, nullptr, nullptr);
  return needed + workspace_size(&moments);
}

template <bool is_rstd>
void batch_norm_forward(const BatchForward& call, Execution* execution) {
  const KernelTable* const kernels = execution->kernels;
  const int64_t needed = check_scratch(is_rstd ? kNormApply : kBatchNormForward, call, *execution);
  const int64_t size = size_of(call.x);
  const int threads = resolve_threads(size);
  BatchNorm norm;
  prepare(&norm, kernels, {Operand{}, call.x, call.y},
          kernels->elementwise->forward[call.which][compute_dtype(call.x.dtype)], call,
          execution->workspace);
  if (!call.is_training) {
    take_statistics(&norm, call.mean, call.spread, is_rstd, call.eps);
  } else if (size == 0) {
    std::fill_n(norm.mean, 2 * norm.channels, std::nan(""));  // and rstd: means of nothing
  } else {
    Reducer moments;
    prepare_moments(&moments, kernels, call, norm.mean, norm.sums);
    run_reduction(&moments, reduce_partition, execution->workspace + needed,
                  execution->bytes - needed, threads);
    take_moments(&norm, call.eps);
  }
  if (size > 0) {
    make_coefficients(norm);
    run_forward(norm, threads);
  }
  write_channels(norm, norm.mean, call.saved_mean, false);
  write_channels(norm, norm.rstd, call.saved_rstd, false);
  if (call.is_training && size > 0) update_running(norm, call);
}
template void batch_norm_forward<false>(const BatchForward& call, Execution* execution);
template void batch_norm_forward<true>(const BatchForward& call, Execution* execution);

int64_t batch_backward_workspace(const BatchBackward& call, const KernelTable*) {
  return batch_scratch(call.x.shape[call.axis], size_of(call.x));
}

void batch_norm_backward(const BatchBackward& call, Execution* execution) {
  check_scratch(kBatchNormBackward, call, *execution);
  if (is_empty(call.x)) {
    if (call.accumulate) return;
    fill(call.dweight, 0);
    fill(call.dbias, 0);
    return;
  }
  const int threads = resolve_threads(size_of(call.x));
  BatchNorm norm;
  const int dtype = compute_dtype(call.x.dtype);
  prepare(&norm, execution->kernels, {call.dy, call.x, call.dx},
          execution->kernels->elementwise->backward[call.which][dtype][0], call,
          execution->workspace);
  norm.accumulate = call.accumulate;
  take_statistics(&norm, call.mean, call.rstd, true, 0);
  make_coefficients(norm);
  const int64_t c = norm.channels;
  bool needs_sums = call.is_training || call.dweight.shape || call.dbias.shape;
  if (call.sum_p.shape) {
    needs_sums = false;
    norm.count = 1;
    read_channels(norm, call.sum_p, 0, norm.sums);
    read_channels(norm, call.sum_p_xhat, 0, norm.sums + c);
    for (int64_t i = 0; i < 2 * c; ++i) norm.sums[i] /= call.count;
  }
  run_backward(norm, needs_sums, threads);
  write_channels(norm, norm.sums, call.dbias, call.accumulate);
  write_channels(norm, norm.sums + c, call.dweight, call.accumulate);
}

}  // namespace fastact
