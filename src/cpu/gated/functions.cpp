// The native functions of the gated family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_gated(std::vector<NativeFunction>*) {}

}  // namespace fastact
