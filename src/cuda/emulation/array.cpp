// Arrays on the emulated devices: DLPack both ways, and the C exchange API.
#include "array.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "../../common/dlpack.h"
#include "api.h"
#include "block.h"
#include "fault.h"
#include "memory.h"

namespace fastact {
namespace {

namespace py = pybind11;
using emulation::kDevices;
using emulation::Lock;

constexpr DLPackVersion kVersion{1, 1};
constexpr const char* kExchangeName = "dlpack_exchange_api";
constexpr const char *kVersionedName = "dltensor_versioned", *kOldName = "dltensor";

struct Dtype {
  const char* name;
  DLDataType dlpack;
  int64_t item() const { return dlpack.bits / 8; }
};
constexpr Dtype kDtypes[] = {{"float16", {2, 16, 1}}, {"bfloat16", {4, 16, 1}},
                             {"float32", {2, 32, 1}}, {"float64", {2, 64, 1}},
                             {"int32", {0, 32, 1}},   {"uint8", {1, 8, 1}}};

const Dtype& dtype_named(const std::string& name) {
  for (const Dtype& dtype : kDtypes)
    if (name == dtype.name) return dtype;
  throw py::type_error("the emulated device has no dtype " + name);
}

const Dtype& dtype_of(DLDataType wanted) {
  for (const Dtype& dtype : kDtypes)
    if (dtype.dlpack.code == wanted.code && dtype.dlpack.bits == wanted.bits && wanted.lanes == 1)
      return dtype;
  throw py::type_error("the emulated device has no such dtype");
}

void check_device(int device) {
  if (device < 0 || device >= kDevices)
    throw py::value_error("there are " + std::to_string(kDevices) +
                          " emulated devices, got device " + std::to_string(device));
}

// The streams that the exchange API tells, and those that consumers told __dlpack__.
cudaStream_t current_streams[kDevices] = {};
std::vector<std::optional<int64_t>> streams_seen;

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

Lengths c_strides(const Lengths& shape) {
  Lengths strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

template <class A>
A make_empty(Lengths shape, const Dtype& dtype, int device) {
  check_device(device);
  for (int64_t length : shape)
    if (length < 0) throw py::value_error("a length is negative");
  A made;
  made.dtype = &dtype;
  made.device = device;
  made.strides = c_strides(shape);
  made.shape = std::move(shape);
  const auto bytes = size_t(made.size() * dtype.item());
  if (bytes == 0) return made;
  const Lock lock;
  void* p = emulation::allocate(bytes, device);
  if (!p) throw std::bad_alloc();
  made.data = static_cast<char*>(p);
  made.owner = std::shared_ptr<void>(p, [](void* dead) {
    const Lock again;
    emulation::release(dead);
  });
  return made;
}

template <class A>
A from_bytes(const py::buffer& source, const std::string& dtype, const Lengths& shape, int device) {
  A made = make_empty<A>(shape, dtype_named(dtype), device);
  Py_buffer view;
  if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> guard(&view, PyBuffer_Release);
  if (view.len != made.size() * made.dtype->item())
    throw py::value_error("the shape takes " + std::to_string(made.size() * made.dtype->item()) +
                          " bytes, got " + std::to_string(view.len));
  const Lock lock;
  if (view.len > 0) emulation::write_from_host(made.data, view.buf, size_t(view.len));
  return made;
}

py::bytes to_bytes(const Base& array) {
  const int64_t item = array.dtype->item(), size = array.size();
  std::string bytes(size_t(size * item), '\0');
  if (size == 0) return py::bytes(bytes);
  const Lock lock;
  if (array.strides == c_strides(array.shape)) {
    emulation::read_to_host(bytes.data(), array.data, bytes.size());
    return py::bytes(bytes);
  }
  for (int64_t i = 0; i < size; ++i) {
    int64_t rest = i, offset = 0;
    for (size_t axis = array.shape.size(); axis-- > 0; rest /= array.shape[axis])
      offset += rest % array.shape[axis] * array.strides[axis];
    emulation::read_to_host(&bytes[size_t(i * item)], array.data + offset * item, size_t(item));
  }
  return py::bytes(bytes);
}

template <class A>
A view(const A& array, const Lengths& shape, const Lengths& byte_strides, int64_t byte_offset,
       bool readonly) {
  A made = array;
  if (shape.size() != byte_strides.size())
    throw py::value_error("shape and byte_strides differ in length");
  made.shape = shape;
  made.strides = byte_strides;
  for (int64_t& stride : made.strides) {
    if (stride % array.dtype->item())
      throw py::value_error("DLPack cannot express a stride of a part of an element");
    stride /= array.dtype->item();
  }
  made.data += byte_offset;
  made.readonly |= readonly;
  return made;
}

// A tensor for someone else, which keeps its memory alive. Tensor: either of DLPack's two.
template <class Tensor>
struct Held {
  Tensor tensor;
  Base array;
};

// Valid while `array` lives.
DLTensor describe(Base& array) {
  return {array.data,
          {kDLExtDev, array.device},
          int32_t(array.shape.size()),
          array.dtype->dlpack,
          array.shape.data(),
          array.strides.data(),
          0};
}

template <class Tensor>
Tensor* hold(const Base& array) {
  auto* held = new Held<Tensor>{{}, array};
  held->tensor.manager_ctx = held;
  held->tensor.deleter = [](Tensor* dead) { delete static_cast<Held<Tensor>*>(dead->manager_ctx); };
  DLTensor& tensor = held->tensor.dl_tensor;
  tensor = describe(held->array);
  // The first element by way of the offset, which consumers must not forget.
  if (tensor.data) {
    constexpr uint64_t kOffset = 256;
    tensor.data = array.data - kOffset;
    tensor.byte_offset = kOffset;
  }
  return &held->tensor;
}

DLManagedTensorVersioned* hold_versioned(const Base& array) {
  auto* tensor = hold<DLManagedTensorVersioned>(array);
  tensor->version = kVersion;
  tensor->flags = array.readonly ? kDLReadOnly : 0;
  return tensor;
}

template <class Tensor>
py::object capsule(Tensor* tensor, const char* name) {
  PyObject* made = PyCapsule_New(tensor, name, [](PyObject* dead) {
    const char* its_name = PyCapsule_GetName(dead);
    if (std::string(its_name).rfind("used_", 0) == 0) return;
    auto* unused = static_cast<Tensor*>(PyCapsule_GetPointer(dead, its_name));
    unused->deleter(unused);
  });
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

py::object to_dlpack(const Base& array, std::optional<int64_t> stream,
                     std::optional<std::pair<int, int>> max_version,
                     std::optional<std::pair<int, int>> dl_device, std::optional<bool> copy) {
  if (copy.value_or(false)) throw py::buffer_error("the emulated device does not copy");
  if (dl_device && *dl_device != std::pair<int, int>{kDLExtDev, array.device})
    throw py::buffer_error("the emulated device does not move arrays");
  streams_seen.push_back(stream);
  if (max_version && max_version->first >= 1) return capsule(hold_versioned(array), kVersionedName);
  if (array.readonly) throw py::buffer_error("a read-only array needs DLPack 1.0");
  return capsule(hold<DLManagedTensor>(array), kOldName);
}

template <class A>
A wrap(const DLTensor& tensor, std::shared_ptr<void> owner) {
  if (tensor.device.device_type != kDLExtDev)
    throw py::buffer_error("not an array of an emulated device, but of device type " +
                           std::to_string(tensor.device.device_type));
  A made;
  made.owner = std::move(owner);
  made.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  made.dtype = &dtype_of(tensor.dtype);
  made.device = tensor.device.device_id;
  made.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  if (tensor.strides)
    made.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  else
    made.strides = c_strides(made.shape);
  return made;
}

template <class Tensor>
std::shared_ptr<void> own(Tensor* tensor) {
  return {tensor, [](void* dead) {
            auto* whole = static_cast<Tensor*>(dead);
            if (whole->deleter) whole->deleter(whole);
          }};
}

template <class A>
A wrap_versioned(DLManagedTensorVersioned* tensor) {
  A made = wrap<A>(tensor->dl_tensor, own(tensor));
  made.readonly = tensor->flags & kDLReadOnly;
  return made;
}

template <class A>
A from_dlpack(const py::object& producer, std::optional<int64_t> stream) {
  const py::object made = producer.attr("__dlpack__")(
      py::arg("stream") = stream,
      py::arg("max_version") = py::make_tuple(kVersion.major, kVersion.minor));
  PyObject* p = made.ptr();
  if (PyCapsule_IsValid(p, kVersionedName)) {
    auto* tensor = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(p, kVersionedName));
    PyCapsule_SetName(p, "used_dltensor_versioned");
    return wrap_versioned<A>(tensor);
  }
  auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(p, kOldName));
  if (!tensor) throw py::error_already_set();
  PyCapsule_SetName(p, "used_dltensor");
  return wrap<A>(tensor->dl_tensor, own(tensor));
}

// --- The C exchange API of ExchangeArray -------------------------------------------------------

// Runs `body` where no C++ exception may get out.
template <class Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const py::builtin_exception& e) {
    e.set_error();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return -1;
}

ExchangeArray& exchanged(void* object) {
  return py::handle(static_cast<PyObject*>(object)).cast<ExchangeArray&>();
}

DLPackExchangeAPI exchange_api = {
    kVersion,
    nullptr,
    [](DLTensor* prototype, DLManagedTensorVersioned** out, void* error,
       void (*set_error)(void*, const char*, const char*)) {
      try {
        if (prototype->device.device_type != kDLExtDev)
          throw std::invalid_argument("not an emulated device");
        *out = hold_versioned(
            make_empty<ExchangeArray>(Lengths(prototype->shape, prototype->shape + prototype->ndim),
                                      dtype_of(prototype->dtype), prototype->device.device_id));
        return 0;
      } catch (const std::bad_alloc& e) {
        set_error(error, "MemoryError", e.what());
      } catch (const std::exception& e) {
        set_error(error, "ValueError", e.what());
      }
      return -1;
    },
    [](void* object, DLManagedTensorVersioned** out) {
      return guarded([&] { *out = hold_versioned(exchanged(object)); });
    },
    [](DLManagedTensorVersioned* tensor, void** object) {
      return guarded(
          [&] { *object = py::cast(wrap_versioned<ExchangeArray>(tensor)).release().ptr(); });
    },
    [](void* object, DLTensor* out) {
      return guarded([&] { *out = describe(exchanged(object)); });
    },
    [](int32_t device_type, int32_t device_id, void** stream) {
      return guarded([&] {
        if (device_type != kDLExtDev) throw py::value_error("not an emulated device");
        check_device(device_id);
        *stream = current_streams[device_id];
      });
    },
};

// --- Python ------------------------------------------------------------------------------------

int64_t number(const void* p) { return int64_t(reinterpret_cast<intptr_t>(p)); }
py::tuple tuple_of(const Lengths& lengths, int64_t unit) {
  py::tuple made(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) made[i] = lengths[i] * unit;
  return made;
}

template <class A>
py::class_<A> bind_array(py::module_& m, const char* name) {
  return py::class_<A>(m, name)
      .def_static("from_bytes", from_bytes<A>, py::arg("data"), py::arg("dtype"), py::arg("shape"),
                  py::arg("device") = 0)
      .def_static(
          "empty",
          [](const Lengths& shape, const std::string& dtype, int device) {
            return make_empty<A>(shape, dtype_named(dtype), device);
          },
          py::arg("shape"), py::arg("dtype"), py::arg("device") = 0)
      .def_static("from_dlpack", from_dlpack<A>, py::arg("producer"),
                  py::arg("stream") = std::nullopt)
      .def("tobytes", [](const A& a) { return to_bytes(a); })
      .def("view", view<A>, py::arg("shape"), py::arg("byte_strides"), py::arg("byte_offset") = 0,
           py::arg("readonly") = false)
      .def_property_readonly("shape", [](const A& a) { return tuple_of(a.shape, 1); })
      .def_property_readonly("strides",
                             [](const A& a) { return tuple_of(a.strides, a.dtype->item()); })
      .def_property_readonly("dtype", [](const A& a) { return a.dtype->name; })
      .def_property_readonly("device", [](const A& a) { return a.device; })
      .def_property_readonly("data_ptr", [](const A& a) { return number(a.data); })
      .def("__dlpack_device__", [](const A& a) { return py::make_tuple(int(kDLExtDev), a.device); })
      .def(
          "__dlpack__",
          [](const A& a, std::optional<int64_t> stream,
             std::optional<std::pair<int, int>> max_version,
             std::optional<std::pair<int, int>> dl_device, std::optional<bool> copy) {
            return to_dlpack(a, stream, max_version, dl_device, copy);
          },
          py::kw_only(), py::arg("stream") = std::nullopt, py::arg("max_version") = std::nullopt,
          py::arg("dl_device") = std::nullopt, py::arg("copy") = std::nullopt);
}

}  // namespace

void bind_emulation(py::module_& m) {
  bind_control(m);

  bind_array<Array>(m, "Array");
  auto exchange = bind_array<ExchangeArray>(m, "ExchangeArray");
  exchange.attr("__dlpack_c_exchange_api__") = py::capsule(&exchange_api, kExchangeName);

  m.def("set_current_stream", [](int device, int64_t stream) {
    check_device(device);
    current_streams[device] = reinterpret_cast<cudaStream_t>(intptr_t(stream));
  });
  m.def("current_stream", [](int device) {
    check_device(device);
    return number(current_streams[device]);
  });
  m.def("seen_streams", [] { return streams_seen; });
  m.def("clear_seen_streams", [] { streams_seen.clear(); });
}

}  // namespace fastact
