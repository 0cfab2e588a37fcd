// The native functions of the norms: of rows (common/norms/call.h), and of channels, batch_norm and
// norm_apply (common/norms/channel_call.h).
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

int64_t backward_workspace(const NormCall& call, const KernelTable* kernels) {
  if (is_empty(call.data[NormCall::kIn])) return 0;
  Norm norm;
  prepare(&norm, kernels, call, NormCall::kIn);
  return norm_workspace_size(&norm);
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
  const int64_t needed = norm_workspace_size(&norm);
  check_workspace("fastact._cpu", kNormBackward.name, execution->workspace, execution->bytes,
                  needed, sizeof(double));
  const int threads = resolve_threads(size_of(x));
  if (needed > 0) norm.partial = reinterpret_cast<double*>(execution->workspace);
  run_partitions(threads, norm_backward_partition, &norm);
  if (needed > 0)
    run_partitions(threads_for(needed / int64_t(sizeof(double)), threads), merge_norm_partition,
                   &norm);
}

}  // namespace

void add_norms(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<forward>(kNormForward));
  functions->push_back(native_function<backward, backward_workspace>(kNormBackward));
  functions->push_back(
      native_function<batch_norm_forward, batch_forward_workspace>(kBatchNormForward));
  functions->push_back(native_function<norm_apply, batch_forward_workspace>(kNormApply));
  functions->push_back(
      native_function<batch_norm_backward, batch_backward_workspace>(kBatchNormBackward));
}

}  // namespace fastact
