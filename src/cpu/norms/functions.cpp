// The native functions of the norms family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_norms(std::vector<NativeFunction>*) {}

}  // namespace fastact
