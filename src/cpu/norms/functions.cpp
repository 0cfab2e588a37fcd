// The native functions of the norms: of rows (common/norms/call.h), and of channels, batch_norm and
// norm_apply (common/norms/channel_call.h).
#include <algorithm>
#include <cmath>

#include "common/norms/call.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/norms/channels/batch_norm.h"
#include "cpu/norms/rows/plan.h"

namespace fastact {
namespace {

void forward(const NormCall& call, const KernelTable* kernels) noexcept {
  const ArrayArgument& x = call.data[NormCall::kX];
  if (is_empty(x)) {
    fill(call.mean, std::nan(""));
    fill(call.rstd, std::nan(""));
    return;
  }
  run_planned(norm_forward_partition, size_of(x), call, kernels, NormCall::kX);
}

// Threads without a block of rows have nothing to hold.
int64_t threads_that_hold(const Norm& norm, int64_t threads) {
  return std::min(threads, norm.chunks * norm.groups);
}

int64_t backward_workspace(const NormCall& call, const KernelTable* kernels) {
  const ArrayArgument& x = call.data[NormCall::kIn];
  if (is_empty(x)) return 0;
  Norm norm;
  prepare(&norm, kernels, call, NormCall::kIn);
  return norm_sums_size(norm) +
         norm_held_size(norm) * threads_that_hold(norm, resolve_threads(size_of(x)));
}

void backward(const NormCall& call, Execution* execution) {
  const ArrayArgument& x = call.data[NormCall::kIn];
  if (is_empty(x)) {
    if (call.accumulate) return;
    fill(call.dweight, 0);
    fill(call.dbias, 0);
    return;
  }
  Norm norm;
  prepare(&norm, execution->kernels, call, NormCall::kIn);
  const int64_t sums = norm_sums_size(norm), held = norm_held_size(norm);
  check_workspace("fastact._cpu", kNormBackward.name, execution->workspace, execution->bytes,
                  sums + held, sizeof(double));
  int64_t threads = resolve_threads(size_of(x));
  if (held > 0)
    threads = std::min(threads_that_hold(norm, threads), (execution->bytes - sums) / held);
  norm.partial = reinterpret_cast<double*>(execution->workspace);
  norm.held = execution->workspace + sums, norm.held_bytes = held;
  run_partitions(int(threads), norm_backward_partition, &norm);
  if (sums > 0)
    run_partitions(threads_for(sums / int64_t(sizeof(double)), int(threads)), merge_norm_partition,
                   &norm);
}

}  // namespace

void add_norms(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<forward>(kNormForward));
  functions->push_back(native_function<backward, backward_workspace>(kNormBackward));
  functions->push_back(
      native_function<batch_norm_forward<false>, batch_forward_workspace>(kBatchNormForward));
  functions->push_back(
      native_function<batch_norm_forward<true>, batch_forward_workspace>(kNormApply));
  functions->push_back(
      native_function<batch_norm_backward, batch_backward_workspace>(kBatchNormBackward));
}

}  // namespace fastact
