// What the files of bindings share: an array as the kernels take it, and its optional kin.
//
// An array comes as the `View` that the CPU module makes of it: a description that lives as long as
// the View does.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "device.h"
#include "kernels.h"

namespace fastact {

namespace py = pybind11;

struct Array {
  const Operand& operand;
  int dtype;
  int device;
};

inline Array array_of(const py::handle& view) {
  const auto address = view.attr("operand_address").cast<uintptr_t>();
  return {*reinterpret_cast<const Operand*>(address), view.attr("dtype").cast<int>(),
          view.attr("device").cast<std::pair<int, int>>().second};
}

// An array or None.
struct Optional {
  Operand operand{};
  int dtype = kF64;
  bool given;
  explicit Optional(const py::object& view) : given(!view.is_none()) {
    if (!given) return;
    const Array array = array_of(view);
    operand = array.operand;
    dtype = array.dtype;
  }
  const Operand* pointer() const { return given ? &operand : nullptr; }
  void* data() const { return operand.data; }
};

inline cudaStream_t stream_of(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

inline bool is_empty(const Operand& a) {
  for (int i = 0; i < a.ndim; ++i)
    if (a.shape[i] == 0) return true;
  return false;
}

struct Parameters {
  double value[kMaxParameters] = {};
  explicit Parameters(const std::vector<double>& given) {
    std::copy(given.begin(), given.end(), value);
  }
};

struct Reduced {
  bool axis[kMaxAxes] = {};
  explicit Reduced(const std::vector<int>& axes) {
    for (int i : axes) axis[i] = true;
  }
};

// Families with a file of their own.
void bind_batch_norm(py::module_& m);
void bind_gates(py::module_& m);
void bind_moments(py::module_& m);
void bind_norms(py::module_& m);

}  // namespace fastact
