// The native functions of the reductions family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_reductions(std::vector<NativeFunction>*) {}

}  // namespace fastact
