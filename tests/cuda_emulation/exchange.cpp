// DLPack of arrays on the emulated devices, both ways, and the C exchange API.
#include "exchange.h"

#include <pybind11/stl.h>

#include <new>
#include <stdexcept>
#include <string>

#include "api.h"
#include "memory.h"

namespace fastact::emulation {
namespace {

namespace py = pybind11;

constexpr DLPackVersion kVersion{1, 1};
constexpr const char* kExchangeName = "dlpack_exchange_api";
constexpr const char *kVersionedName = "dltensor_versioned", *kOldName = "dltensor";

// The streams that the exchange API reports, and those that consumers gave to __dlpack__.
cudaStream_t current_streams[kDevices] = {};
std::vector<std::optional<int64_t>> streams_seen;

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

Base wrap(const DLTensor& tensor, std::shared_ptr<void> owner) {
  if (tensor.device.device_type != kDLExtDev)
    throw py::buffer_error("not an array of an emulated device, but of device type " +
                           std::to_string(tensor.device.device_type));
  Base made;
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

Base wrap_versioned(DLManagedTensorVersioned* tensor) {
  Base made = wrap(tensor->dl_tensor, own(tensor));
  made.readonly = tensor->flags & kDLReadOnly;
  return made;
}

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
        *out =
            hold_versioned(make_empty(Lengths(prototype->shape, prototype->shape + prototype->ndim),
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
          [&] { *object = py::cast(ExchangeArray{wrap_versioned(tensor)}).release().ptr(); });
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

}  // namespace

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

Base from_dlpack(const py::object& producer, std::optional<int64_t> stream) {
  const py::object made = producer.attr("__dlpack__")(
      py::arg("stream") = stream,
      py::arg("max_version") = py::make_tuple(kVersion.major, kVersion.minor));
  PyObject* p = made.ptr();
  if (PyCapsule_IsValid(p, kVersionedName)) {
    auto* tensor = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(p, kVersionedName));
    PyCapsule_SetName(p, "used_dltensor_versioned");
    return wrap_versioned(tensor);
  }
  auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(p, kOldName));
  if (!tensor) throw py::error_already_set();
  PyCapsule_SetName(p, "used_dltensor");
  return wrap(tensor->dl_tensor, own(tensor));
}

py::capsule exchange_capsule() { return py::capsule(&exchange_api, kExchangeName); }

void bind_streams(py::module_& m) {
  m.def("set_current_stream", [](int device, int64_t stream) {
    check_device(device);
    current_streams[device] = reinterpret_cast<cudaStream_t>(intptr_t(stream));
  });
  m.def("current_stream", [](int device) {
    check_device(device);
    return int64_t(reinterpret_cast<intptr_t>(current_streams[device]));
  });
  m.def("seen_streams", [] { return streams_seen; });
  m.def("clear_seen_streams", [] { streams_seen.clear(); });
}

}  // namespace fastact::emulation
