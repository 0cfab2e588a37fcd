// The native functions of the rotary family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_rotary(std::vector<NativeFunction>*) {}

}  // namespace fastact
