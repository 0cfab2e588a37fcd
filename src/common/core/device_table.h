// What a device module and the CPU module offer each other as C functions, in capsules: neither
// looks up a Python attribute on the way to a launch.
#pragma once

#include "common/core/operand.h"

namespace fastact {

// Of a device module, in its attribute `table`, a capsule named "fastact_device_table": for the
// compiled fast path of the CPU module, which knows nothing of CUDA.
struct DeviceTable {
  // y OUT = f(x IN), or dx OUT (IN/OUT with accumulate) = dy IN * f'(x IN), queued on a stream.
  // arrays: two, or three; of one shape and dtype, on `device`, not empty.
  // Throws std::exception.
  void (*activation)(int which, int dtype, bool backward, bool accumulate, const Operand* arrays,
                     const double* parameters, int device, void* stream);
};

// What a View of the CPU module holds, as long as the View lives.
struct ViewContent {
  const Operand* operand;
  int dtype;   // of DType, or -1
  int device;  // the second of DLPack's pair
};

// Of the CPU module, in its attribute `view_table`, a capsule named "fastact_view_table".
struct ViewTable {
  // object: a borrowed PyObject*. False: it is no View, or one that was never filled in.
  bool (*read)(void* object, ViewContent* content);
};

}  // namespace fastact
