// The native functions of activations: y = f(x), dx = dy f'(x) and its gradient, over whole arrays
// (common/activations/call.h).
#include "common/activations/call.h"
#include "cpu/activations/kernels.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

void forward(const ActivationCall& call, const KernelTable* kernels) noexcept {
  run_elementwise(kernels->elementwise->forward[call.which][call.data[0].dtype], call.parameters,
                  false, 2, call.data);
}

// Kernels of a gradient, which has so many operands.
template <auto kernels_of, int operands>
void gradient(const ActivationCall& call, const KernelTable* kernels) noexcept {
  const auto& kernel = (kernels->elementwise->*kernels_of)[call.which][call.data[0].dtype];
  run_elementwise(kernel[call.accumulate], call.parameters, call.accumulate, operands, call.data);
}

}  // namespace

void add_activations(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<forward>(kActivationForward));
  functions->push_back(
      native_function<gradient<&ElementwiseTable::backward_by_saved, 3>>(kActivationBackward));
  functions->push_back(native_function<gradient<&ElementwiseTable::second, 4>>(kActivationSecond));
}

}  // namespace fastact
