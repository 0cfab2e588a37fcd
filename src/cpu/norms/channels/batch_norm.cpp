// The numbers of the channels in batch_norm (batch_norm.h): parameters, statistics, coefficients
// and sums. The passes over the arrays are in batch_norm_passes.cpp.
#include "cpu/norms/channels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

constexpr int64_t kLongPiece = 16384;  // elements of a row that are summed at a time
constexpr int64_t kMostCuts = 64;      // chunks
constexpr int64_t kShortChunk = 2048;  // elements of a channel: so many amortise folding its lanes

int64_t most_chunks(int64_t size) { return std::clamp<int64_t>(size / kLongPiece, 1, kMostCuts); }

}  // namespace

int64_t batch_scratch(int64_t channels, int64_t size) {
  const int64_t numbers = 6 * channels + 2 * most_chunks(size) * channels;
  return (numbers + kCoefficients * (channels + kPiece)) * int64_t(sizeof(double)) + 64;
}

void prepare(BatchNorm* norm, const KernelTable* table, int dtype, const Operand* arrays, int axis,
             char* scratch, const ChannelArray& weight, const ChannelArray& bias) {
  const int lead = arrays[BatchNorm::kX].data ? BatchNorm::kX : BatchNorm::kDy;
  plan_operands(&norm->operands, table->convert, dtype, BatchNorm::kOut + 1, arrays, lead, axis,
                arrays[BatchNorm::kDy].data);
  const StridedOperands& s = norm->operands;
  norm->table = table;
  norm->channels = arrays[lead].shape[axis];
  norm->count = s.size() / norm->channels;
  const int64_t c = norm->channels;
  scratch += -reinterpret_cast<uintptr_t>(scratch) % 64;
  double* numbers = reinterpret_cast<double*>(scratch);
  norm->mean = numbers;
  norm->rstd = numbers + c;
  norm->weight = numbers + 2 * c;
  norm->bias = numbers + 3 * c;
  norm->sums = numbers + 4 * c;
  norm->partial = numbers + 6 * c;
  norm->coefficients = reinterpret_cast<char*>(norm->partial + 2 * most_chunks(s.size()) * c);
  norm->pitch = c + kPiece;
  read_channels(*norm, weight, 1.0, norm->weight);
  read_channels(*norm, bias, 0.0, norm->bias);
  if (s.is_channel_outer) {
    const int64_t outer = s.rows.size / c, columns = s.columns.size;
    norm->cuts = ceil_div(columns, kLongPiece);
    const int64_t most = std::min(most_chunks(s.size()), outer * norm->cuts);
    norm->chunks = std::clamp<int64_t>(norm->count / kShortChunk, 1, most);
  } else {
    norm->cuts = 1;
    norm->chunks = std::min(most_chunks(s.size()), s.rows.size);
  }
}

void read_channels(const BatchNorm& norm, const ChannelArray& from, double neutral, double* to) {
  if (!from.data) {
    std::fill(to, to + norm.channels, neutral);
    return;
  }
  const int64_t item = item_size(from.dtype);
  alignas(64) char packed[kPiece * sizeof(double)];
  for (int64_t first = 0; first < norm.channels; first += kPiece) {
    const int64_t n = std::min(kPiece, norm.channels - first);
    gather_for(item)(packed, from.data + first * from.stride, from.stride, n);
    norm.table->reduce->widen[from.dtype](packed, item, n, to + first);
  }
  if (norm.operands.is_channel_reversed) std::reverse(to, to + norm.channels);
}

void write_channels(const BatchNorm& norm, const double* from, const ChannelArray& to,
                    bool accumulate) {
  if (!to.data) return;
  const int64_t item = item_size(to.dtype), last = norm.channels - 1;
  alignas(64) char packed[kPiece * sizeof(double)];
  double numbers[kPiece], before[kPiece];
  for (int64_t first = 0; first < norm.channels; first += kPiece) {
    const int64_t n = std::min(kPiece, norm.channels - first);
    char* at = to.data + first * to.stride;
    for (int64_t i = 0; i < n; ++i)
      numbers[i] = from[norm.operands.is_channel_reversed ? last - first - i : first + i];
    if (accumulate) {
      gather_for(item)(packed, at, to.stride, n);
      norm.table->reduce->widen[to.dtype](packed, item, n, before);
      for (int64_t i = 0; i < n; ++i) numbers[i] += before[i];
    }
    norm.table->reduce->finish[to.dtype](numbers, nullptr, packed, n);
    scatter_for(item)(at, packed, to.stride, n);
  }
}

void take_moments(BatchNorm* norm, double eps) {
  const int64_t c = norm->channels;
  if (norm->operands.is_channel_reversed) {
    std::reverse(norm->mean, norm->mean + c);
    std::reverse(norm->sums, norm->sums + c);
  }
  for (int64_t i = 0; i < c; ++i) norm->rstd[i] = 1 / std::sqrt(norm->sums[i] + eps);
}

void take_statistics(BatchNorm* norm, const ChannelArray& mean, const ChannelArray& spread,
                     bool is_rstd, double eps) {
  read_channels(*norm, mean, 0, norm->mean);
  read_channels(*norm, spread, 1, norm->rstd);
  if (is_rstd) return;
  for (int64_t i = 0; i < norm->channels; ++i) norm->rstd[i] = 1 / std::sqrt(norm->rstd[i] + eps);
}

void save_of_nothing(const KernelTable* table, int64_t channels, char* scratch,
                     const ChannelArray& running_mean, const ChannelArray& running_var,
                     bool training, double eps, const ChannelArray& mean,
                     const ChannelArray& rstd) {
  BatchNorm norm{};  // no more of it than reading and writing channels takes
  norm.table = table;
  norm.channels = channels;
  norm.mean = reinterpret_cast<double*>(scratch + -reinterpret_cast<uintptr_t>(scratch) % 64);
  norm.rstd = norm.mean + channels;
  if (training)
    std::fill_n(norm.mean, 2 * channels, std::nan(""));
  else
    take_statistics(&norm, running_mean, running_var, false, eps);
  write_channels(norm, norm.mean, mean, false);
  write_channels(norm, norm.rstd, rstd, false);
}

void update_running(const BatchNorm& norm, double momentum, const ChannelArray& mean,
                    const ChannelArray& var) {
  const double unbiased = double(norm.count) / double(norm.count - 1);
  double* running = norm.partial;
  const auto update = [&](const ChannelArray& array, const double* now, double factor) {
    if (!array.data) return;
    read_channels(norm, array, 0, running);
    for (int64_t i = 0; i < norm.channels; ++i)
      running[i] = (1 - momentum) * running[i] + momentum * (now[i] * factor);
    write_channels(norm, running, array, false);
  };
  update(mean, norm.mean, 1);
  update(var, norm.sums, unbiased);
}

namespace {

// Fills some coefficients, of the compute type.
template <class Fill>
void fill_coefficients(const BatchNorm& norm, int begin, int end, Fill fill) {
  const int64_t c = norm.channels, pitch = norm.pitch;
  const bool repeats = !norm.operands.is_channel_outer && c < kShortRow;
  const auto fill_all = [&](auto* to) {
    fill(to);
    for (int k = begin; repeats && k < end; ++k)
      for (int64_t i = c; i < pitch; ++i) to[k * pitch + i] = to[k * pitch + i - c];
  };
  if (norm.operands.compute_item == sizeof(float))
    fill_all(reinterpret_cast<float*>(norm.coefficients));
  else
    fill_all(reinterpret_cast<double*>(norm.coefficients));
}

}  // namespace

void make_coefficients(const BatchNorm& norm) {
  const int64_t pitch = norm.pitch;
  fill_coefficients(norm, kHigh, kMeanP, [&](auto* to) {
    using T = std::decay_t<decltype(*to)>;
    for (int64_t i = 0; i < norm.channels; ++i) {
      const T high = T(norm.mean[i]);
      to[kHigh * pitch + i] = high;
      to[kLow * pitch + i] = std::isfinite(high) ? T(norm.mean[i] - double(high)) : T(0);
      to[kScale * pitch + i] = T(norm.weight[i] * norm.rstd[i]);
      to[kOffset * pitch + i] = T(norm.bias[i]);
    }
  });
}

void make_slopes(const BatchNorm& norm, int64_t first, int64_t n) {
  if (!norm.is_training) return;
  const int64_t pitch = norm.pitch;
  const double *sums = norm.sums, *products = sums + norm.channels, count = double(norm.count);
  fill_coefficients(norm, kMeanP, kCoefficients, [&](auto* to) {
    using T = std::decay_t<decltype(*to)>;
    for (int64_t i = first; i < first + n; ++i) {
      to[kMeanP * pitch + i] = T(sums[i] / count);
      to[kSlope * pitch + i] = T(products[i] * (norm.rstd[i] / count));
    }
  });
}

void merge_batch_sums(const BatchNorm& norm, int64_t first, int64_t n) {
  const int64_t c = norm.channels;
  for (int64_t row = 0; row < 2 * c; row += c) {
    double* sums = norm.sums + row;
    const double* partial = norm.partial + row;
    std::copy(partial + first, partial + first + n, sums + first);
    for (int64_t chunk = 1; chunk < norm.chunks; ++chunk)
      for (int64_t i = first; i < first + n; ++i) sums[i] += partial[chunk * 2 * c + i];
  }
  for (int64_t i = first; i < first + n; ++i) norm.sums[c + i] *= norm.rstd[i];
}

}  // namespace fastact
