// The list of all native functions, made of the families' own lists.
#include "cpu/core/native_function.h"

namespace fastact {

const std::vector<NativeFunction>& native_functions() {
  static const std::vector<NativeFunction> all = [] {
    std::vector<NativeFunction> functions;
#define FASTACT_ADD(family, kernels) add_##family(&functions);
    FASTACT_FAMILIES(FASTACT_ADD, )
#undef FASTACT_ADD
    add_quantize(&functions);
    return functions;
  }();
  return all;
}

}  // namespace fastact
