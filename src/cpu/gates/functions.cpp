// The native functions of the gates family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_gates(std::vector<NativeFunction>*) {}

}  // namespace fastact
