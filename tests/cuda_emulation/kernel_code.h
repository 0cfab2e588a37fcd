// What the code of a kernel can reach, read from this library's own file before the kernel runs.
//
// nvcc gives a kernel every static shared array that its code, or code that it calls, refers to,
// each instance of a template an array of its own. The host's linker leaves the same in the file:
// the relocations of each function (--emit-relocs, -ffunction-sections). The most threads of a
// launch are in the code itself, as FASTACT_KERNEL puts them there.
#pragma once

#include <string>
#include <vector>

#include "shared.h"

namespace fastact::emulation {

// Its mangled name.
const std::string& symbol_of(const void* kernel);
// Each once. Throws where the file has no relocations.
const std::vector<const SharedSite*>& static_arrays(const void* kernel);
// Their bytes, in all.
size_t static_shared_of(const void* kernel);
// The most threads of a block, which the kernel was compiled for.
int threads_of(const void* kernel);

}  // namespace fastact::emulation
