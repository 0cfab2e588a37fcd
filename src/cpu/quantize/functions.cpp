// The native functions of the quantize family.
#include "cpu/core/native_function.h"

namespace fastact {

void add_quantize(std::vector<NativeFunction>*) {}

}  // namespace fastact
