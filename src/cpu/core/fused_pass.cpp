// The plan of a fused pass, and its channel arrays (fused_pass.h).
#include "cpu/core/fused_pass.h"

#include <cstring>

#include "cpu/core/tensor_iterator.h"

namespace fastact {

void plan_pass(FusedPlan* plan, const ConvertKernels* kernels, int dtype, int count,
               const Operand* arrays, int leader, int channel, bool sums) {
  int dtypes[kReaderOperands];
  std::fill_n(dtypes, count, dtype);
  plan_operands(&plan->operands, kernels, count, arrays, dtypes, leader, channel, sums, true);
  plan->is_double = plan->operands.compute_dtype == kF64;
  plan->channels = channel < 0 ? 1 : arrays[leader].shape[channel];
}

ChannelArray along_channels(const FusedPlan& plan, const Operand& a, int dtype, int axis) {
  const int64_t stride = byte_stride(a, axis, item_size(dtype));
  if (!plan.operands.is_channel_reversed) return {a.data, stride, dtype};
  return {a.data + (plan.channels - 1) * stride, -stride, dtype};
}

ChannelValues::ChannelValues(const FusedPlan& p, const ChannelArray& a) : plan(p), array(a) {
  if (!array.data) return;
  const StridedOperands& s = plan.operands;
  const int64_t compute_item = s.compute_item;
  const bool is_dense = array.stride == item_size(array.dtype) || plan.channels == 1;
  const bool aligned = reinterpret_cast<uintptr_t>(array.data) % size_t(compute_item) == 0;
  is_direct = is_dense && aligned && array.dtype == s.compute_dtype;
  is_repeated = plan.channels <= kPiece;
  if (!is_repeated) return;
  read(0, plan.channels);
  const int64_t size = plan.channels + std::min(s.size(), kPiece);
  for (int64_t done = plan.channels; done < size; done *= 2)
    memcpy(values + done * compute_item, values, std::min(done, size - done) * compute_item);
}

const char* ChannelValues::values_at(int64_t first, int64_t n) {
  const int64_t compute_item = plan.operands.compute_item;
  if (is_repeated) return values + first * compute_item;
  if (is_direct) return array.data + first * compute_item;
  if (first != read_first || n != read_count) read(first, n);
  return values;
}

const char* ChannelValues::spread(int64_t row, int64_t column, int64_t n) {
  const StridedOperands& s = plan.operands;
  const int64_t columns = s.columns.size;
  if (row == spread_row && column + n <= columns && n <= spread_count) return spread_;
  spread_row = row;
  spread_count = std::min(n, columns - column);
  int64_t channel = row % plan.channels;
  for (int64_t done = 0, m; done < n; done += m, column = 0) {
    m = std::min(n - done, columns - column);
    const int64_t item = s.compute_item;
    move_elements(item, spread_ + done * item, item, values_at(channel, 1), 0, m);
    if (++channel == plan.channels) channel = 0;
  }
  return spread_;
}

void ChannelValues::read(int64_t first, int64_t n) {
  const StridedOperands& s = plan.operands;
  read_strided(*s.kernels, array.dtype, s.compute_dtype, array.data + first * array.stride,
               array.stride, n, values);
  read_first = first, read_count = n;
}

}  // namespace fastact
