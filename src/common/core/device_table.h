// What a device module offers to the compiled fast path of the CPU module, which knows nothing of
// CUDA: C functions in a capsule named "fastact_device_table".
#pragma once

#include "common/core/operand.h"

namespace fastact {

struct DeviceTable {
  // y OUT = f(x IN), or dx OUT (IN/OUT with accumulate) = dy IN * f'(x IN), queued on a stream.
  // arrays: two, or three; of one shape and dtype, on `device`, not empty.
  // Throws std::exception.
  void (*activation)(int which, int dtype, bool backward, bool accumulate, const Operand* arrays,
                     const double* parameters, int device, void* stream);
};

}  // namespace fastact
