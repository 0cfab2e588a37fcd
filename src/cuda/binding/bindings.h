// Declarations that the files of the bindings share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/activations/list.h"
#include "common/core/call_check.h"
#include "common/core/device_table.h"
#include "common/reductions/call.h"
#include "cuda/core/device.h"

namespace fastact {

void add_recorded_launches(DeviceTable* table);

}  // namespace fastact
