// What the bindings have in common: arrays as the kernels take them, checks, workspaces.
//
// An array comes as the `View` that the CPU module makes of it: a description that lives as long as
// the View does.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/activations/list.h"
#include "common/core/call_check.h"
#include "common/core/device_table.h"
#include "cuda/core/api.h"
#include "cuda/core/device.h"

namespace fastact {

namespace py = pybind11;

struct Array {
  const Operand& operand;
  int dtype;
  int device;
};

// How Views are read; set when the module is imported.
inline const ViewTable* views = nullptr;

inline Array array_of(const py::handle& view) {
  ViewContent content;
  if (!views->read(view.ptr(), &content))
    throw py::type_error("fastact._cuda: an array must be a View of the CPU module");
  return {*content.operand, content.dtype, content.device};
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

// None, or an array of one axis.
inline NumberVector vector_of(const py::object& view) {
  if (view.is_none()) return {};
  const Array a = array_of(view);
  return {a.operand.data, byte_stride(a.operand, 0, item_size(a.dtype)), a.dtype};
}

// The checks compare the arguments of a call with each other, as checks.pyx of the CPU module does,
// and raise a ValueError before anything is queued. They keep wrong calls from touching memory; the
// messages for users come from Python.
[[noreturn]] inline void refuse(const std::string& what) {
  throw py::value_error("fastact._cuda: " + what);
}

inline void check_index(int64_t value, int64_t end, const char* name) {
  if (value < 0 || value >= end)
    refuse(std::string(name) + " must be from 0 to " + std::to_string(end - 1) + ", got " +
           std::to_string(value));
}

inline void check_rank(const Operand& a, const char* name) {
  if (!a.shape || a.ndim < 0 || a.ndim > kMaxAxes) refuse(std::string(name) + " must be an array");
}

inline void check_memory(const Operand& a, const char* name) {
  check_rank(a, name);
  if (!a.data && !is_empty(a)) refuse(std::string(name) + " must have memory");
}

// An array must be given, of a dtype that is computed: those of masks and of indices come after.
inline void check(const Operand& a, int dtype, const char* name) {
  check_rank(a, name);
  check_index(dtype, kDTypes, (std::string("the dtype of ") + name).c_str());
  check_memory(a, name);
}
inline void check(const Array& a, const char* name) { check(a.operand, a.dtype, name); }

inline bool same_shape(const Operand& a, const Operand& b) {
  return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

// Of another array's shape; where it is optional it may be none.
inline void check_shape(const Operand& a, const Operand& of, const char* name) {
  check_rank(a, name);
  if (!same_shape(a, of)) refuse(std::string(name) + " must have the shape of the other arrays");
}
inline void check_like(const Array& a, const Array& of, const char* name) {
  check(a, name);
  check_shape(a.operand, of.operand, name);
  if (a.dtype != of.dtype) refuse(std::string(name) + " must have the dtype of the other arrays");
}
inline void check_if_like(const py::object& view, const Array& of, const char* name) {
  if (!view.is_none()) check_like(array_of(view), of, name);
}

// With the axes of x, each of its length or of length 1.
inline void check_broadcast(const Operand& a, const Operand& x, const char* name) {
  bool fits = a.ndim == x.ndim;
  for (int i = 0; fits && i < x.ndim; ++i) fits = a.shape[i] == 1 || a.shape[i] == x.shape[i];
  if (!fits) refuse(std::string(name) + " must broadcast to the shape of x");
}
// None, or so.
inline void check_beside(const py::object& view, const Operand& x, const char* name) {
  if (view.is_none()) return;
  const Array a = array_of(view);
  check(a, name);
  check_broadcast(a.operand, x, name);
}

// Length 1 along the axes whose flag is `dropped`, else that of x.
inline void check_kept(const Operand& a, const Operand& x, const bool* flags, bool dropped,
                       const char* name) {
  check_rank(a, name);
  bool fits = a.ndim == x.ndim;
  for (int i = 0; fits && i < x.ndim; ++i)
    fits = a.shape[i] == (flags[i] == dropped ? 1 : x.shape[i]);
  if (!fits) refuse(std::string(name) + " has not the shape that x leaves");
}

// None, or of one axis.
inline void check_along(const py::object& view, int64_t length, const char* name) {
  if (view.is_none()) return;
  const Array a = array_of(view);
  check(a, name);
  if (a.operand.ndim != 1 || a.operand.shape[0] != length)
    refuse(std::string(name) + " must have one axis of length " + std::to_string(length));
}

// Scratch memory and its size.
class Workspace {
 public:
  explicit Workspace(const py::object& view) {
    if (view.is_none()) return;
    const Array a = array_of(view);
    const int64_t item = a.dtype < 0 ? 1 : item_size(a.dtype);
    check_rank(a.operand, "workspace");
    if (a.operand.ndim != 1 || (a.operand.shape[0] > 1 && byte_stride(a.operand, 0, item) != item))
      refuse("workspace must be bytes in one piece");
    data_ = a.operand.data;
    bytes_ = data_ ? a.operand.shape[0] * item : 0;
  }
  // The memory, which must have so many bytes and the alignment of the kernels' vectors.
  void* of(int64_t needed) const {
    if (bytes_ < needed)
      refuse("workspace must have " + std::to_string(needed) + " bytes, got " +
             std::to_string(bytes_));
    if (needed > 0 && reinterpret_cast<uintptr_t>(data_) % 16 != 0)
      refuse("workspace must be aligned to 16 bytes");
    return data_;
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

inline cudaStream_t stream_of(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Runs visit(T{}) for the dtype of an array, on its device and without the GIL.
template <class Visit>
void on_device(const Array& array, Visit visit) {
  const py::gil_scoped_release release;
  const DeviceGuard guard(array.device);
  for_dtype(array.dtype, visit);
}

struct Parameters {
  double value[kMaxParameters] = {};
  explicit Parameters(const std::vector<double>& given) {
    if (given.size() > size_t(kMaxParameters))
      refuse("parameters must be at most " + std::to_string(kMaxParameters));
    std::copy(given.begin(), given.end(), value);
  }
};

struct Reduced {
  bool axis[kMaxAxes] = {};
  explicit Reduced(const std::vector<int>& axes, int ndim = kMaxAxes) {
    for (int i : axes) {
      check_index(i, ndim, "an axis");
      axis[i] = true;
    }
  }
};

// A native function for calls of every dtype. size_of(element, call): bytes of scratch;
// run_on(element, call, workspace, stream): queues it. Both are lambdas without captures, given an
// element of the call's storage type.
template <class Call, class SizeOf, class RunOn>
DeviceCall device_call(const CallTable& table, SizeOf size_of, RunOn run_on) {
  static const CallTable& of = table;  // one for each pair of lambdas
  static const SizeOf size = size_of;
  static const RunOn run = run_on;
  const auto workspace_size = [](const void* call, int dtype, int device) {
    const DeviceGuard guard(device);
    return for_dtype(dtype, [&](auto element) -> int64_t {
      return size(element, *static_cast<const Call*>(call));
    });
  };
  const auto run_checked = [](const void* given, int dtype, int device, void* workspace,
                              int64_t bytes, void* stream) {
    const Call& call = *static_cast<const Call*>(given);
    const DeviceGuard guard(device);
    for_dtype(dtype, [&](auto element) {
      check_workspace("fastact._cuda", of.name, workspace, bytes, size(element, call), 16);
      run(element, call, workspace, static_cast<cudaStream_t>(stream));
    });
  };
  return {table.name, table.size, workspace_size, run_checked};
}

// The same of one that needs no scratch: run_on(element, call, stream).
template <class Call, class RunOn>
DeviceCall device_call(const CallTable& table, RunOn run_on) {
  [[maybe_unused]] static const RunOn run = run_on;
  return device_call<Call>(
      table, [](auto, const Call&) -> int64_t { return 0; },
      [](auto element, const Call& call, void*, cudaStream_t stream) {
        run(element, call, stream);
      });
}

void add_recorded_launches(DeviceTable* table);

// Families with a file of their own.
void add_activations(std::vector<DeviceCall>* calls);
void add_bias(std::vector<DeviceCall>* calls);
void add_gated(std::vector<DeviceCall>* calls);
void add_gates(std::vector<DeviceCall>* calls);
void add_norms(std::vector<DeviceCall>* calls);
void add_reductions(std::vector<DeviceCall>* calls);
void add_softmax(std::vector<DeviceCall>* calls);

}  // namespace fastact
