// An array of an emulated device, and DLPack both ways.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "common/core/dlpack.h"

namespace fastact::emulation {

struct Dtype {
  const char* name;
  DLDataType dlpack;
  int64_t item() const { return dlpack.bits / 8; }
};

// Of those that the devices have; else a TypeError.
const Dtype& dtype_of(DLDataType wanted);

// A ValueError if there is no such device.
void check_device(int device);

using Lengths = std::vector<int64_t>;

// One array. Strides are in elements, as DLPack has them; `data` is its first element.
struct Base {
  std::shared_ptr<void> owner;
  char* data = nullptr;
  const Dtype* dtype = nullptr;
  int device = 0;
  Lengths shape, strides;
  bool readonly = false;

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

// Two types for Python, neither derived from the other: the exchange API is not inherited.
struct Array : Base {};
struct ExchangeArray : Base {};

// Of C order.
Lengths c_strides(const Lengths& shape);

Base make_empty(Lengths shape, const Dtype& dtype, int device);

// What __dlpack__ gives, and the array of what another's gives.
pybind11::object to_dlpack(const Base& array, std::optional<int64_t> stream,
                           std::optional<std::pair<int, int>> max_version,
                           std::optional<std::pair<int, int>> dl_device, std::optional<bool> copy);
Base from_dlpack(const pybind11::object& producer, std::optional<int64_t> stream);

// The C exchange API of ExchangeArray.
pybind11::capsule exchange_capsule();

// Binds the functions that set and list the streams of the exchange API.
void bind_streams(pybind11::module_& m);

}  // namespace fastact::emulation
