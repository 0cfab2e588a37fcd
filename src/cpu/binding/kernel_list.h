// The places of an instruction set's kernels, for tests that read their machine code.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "cpu/core/kernel_table.h"

namespace fastact {

// Addresses by name and dtype: "elementwise backward 3 1" is elementwise->backward[3][dtype][1].
// Kernels that know no dtype compute in double.
std::map<std::pair<std::string, int>, uintptr_t> kernel_addresses(const KernelTable& table);

}  // namespace fastact
