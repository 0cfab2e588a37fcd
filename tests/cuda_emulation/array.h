// Arrays on the emulated devices, for tests, and what else tests need of the devices.
#pragma once

#include <pybind11/pybind11.h>

namespace fastact {

// Adds Array, ExchangeArray, Fault and the functions on streams, launches and memory.
void bind_emulation(pybind11::module_& m);

// The part of it that is not about arrays.
void bind_control(pybind11::module_& m);

// Adds to the submodule `headers`: parts of the CPU's headers, which tests call by themselves.
void bind_headers(pybind11::module_& m);

// Adds the submodule `selftest`: small kernels, right and wrong ones, by name.
void bind_selftest(pybind11::module_& m);

}  // namespace fastact
