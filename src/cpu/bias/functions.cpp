// The native functions of the bias family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_bias(std::vector<NativeFunction>*) {}

}  // namespace fastact
