// Arrays on the emulated devices: their memory, and what Python sees of them.
#include "array.h"

#include <pybind11/stl.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "api.h"
#include "exchange.h"
#include "host_calls.h"
#include "memory.h"

namespace fastact::emulation {
namespace {

namespace py = pybind11;

constexpr Dtype kDtypes[] = {{"float16", {2, 16, 1}}, {"bfloat16", {4, 16, 1}},
                             {"float32", {2, 32, 1}}, {"float64", {2, 64, 1}},
                             {"int32", {0, 32, 1}},   {"int64", {0, 64, 1}},
                             {"uint8", {1, 8, 1}},    {"bool", {6, 8, 1}}};

const Dtype& dtype_named(const std::string& name) {
  for (const Dtype& dtype : kDtypes)
    if (name == dtype.name) return dtype;
  throw py::type_error("the emulated device has no dtype " + name);
}

Base from_bytes(const py::buffer& source, const std::string& dtype, const Lengths& shape,
                int device) {
  Base made = make_empty(shape, dtype_named(dtype), device);
  Py_buffer view;
  if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> guard(&view, PyBuffer_Release);
  if (view.len != made.size() * made.dtype->item())
    throw py::value_error("the shape takes " + std::to_string(made.size() * made.dtype->item()) +
                          " bytes, got " + std::to_string(view.len));
  const Lock lock;
  if (view.len > 0) write_from_host(made.data, view.buf, size_t(view.len));
  return made;
}

py::bytes to_bytes(const Base& array) {
  const int64_t item = array.dtype->item(), size = array.size();
  std::string bytes(size_t(size * item), '\0');
  if (size == 0) return py::bytes(bytes);
  const Lock lock;
  if (array.strides == c_strides(array.shape)) {
    read_to_host(bytes.data(), array.data, bytes.size());
    return py::bytes(bytes);
  }
  for (int64_t i = 0; i < size; ++i) {
    int64_t rest = i, offset = 0;
    for (size_t axis = array.shape.size(); axis-- > 0; rest /= array.shape[axis])
      offset += rest % array.shape[axis] * array.strides[axis];
    read_to_host(&bytes[size_t(i * item)], array.data + offset * item, size_t(item));
  }
  return py::bytes(bytes);
}

Base view(const Base& array, const Lengths& shape, const Lengths& byte_strides, int64_t byte_offset,
          bool readonly) {
  Base made = array;
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

int64_t number(const void* p) { return int64_t(reinterpret_cast<intptr_t>(p)); }
py::tuple tuple_of(const Lengths& lengths, int64_t factor) {
  py::tuple made(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) made[i] = lengths[i] * factor;
  return made;
}

template <class A>
py::class_<A> bind_array(py::module_& m, const char* name) {
  return py::class_<A>(m, name)
      .def_static(
          "from_bytes",
          [](const py::buffer& data, const std::string& dtype, const Lengths& shape, int device) {
            return A{from_bytes(data, dtype, shape, device)};
          },
          py::arg("data"), py::arg("dtype"), py::arg("shape"), py::arg("device") = 0)
      .def_static(
          "empty",
          [](const Lengths& shape, const std::string& dtype, int device) {
            return A{make_empty(shape, dtype_named(dtype), device)};
          },
          py::arg("shape"), py::arg("dtype"), py::arg("device") = 0)
      .def_static(
          "from_dlpack",
          [](const py::object& producer, std::optional<int64_t> stream) {
            return A{from_dlpack(producer, stream)};
          },
          py::arg("producer"), py::arg("stream") = std::nullopt)
      .def("tobytes", [](const A& a) { return to_bytes(a); })
      .def(
          "view",
          [](const A& a, const Lengths& shape, const Lengths& byte_strides, int64_t byte_offset,
             bool readonly) { return A{view(a, shape, byte_strides, byte_offset, readonly)}; },
          py::arg("shape"), py::arg("byte_strides"), py::arg("byte_offset") = 0,
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

Lengths c_strides(const Lengths& shape) {
  Lengths strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

Base make_empty(Lengths shape, const Dtype& dtype, int device) {
  check_device(device);
  for (int64_t length : shape)
    if (length < 0) throw py::value_error("a length is negative");
  Base made;
  made.dtype = &dtype;
  made.device = device;
  made.strides = c_strides(shape);
  made.shape = std::move(shape);
  const auto bytes = size_t(made.size() * dtype.item());
  if (bytes == 0) return made;
  const Lock lock;
  count_host_call("allocate");
  void* p = allocate(bytes, device);
  if (!p) throw std::bad_alloc();
  made.data = static_cast<char*>(p);
  made.owner = std::shared_ptr<void>(p, [](void* dead) {
    const Lock again;
    release(dead);
  });
  return made;
}

}  // namespace fastact::emulation

void fastact::bind_emulation(pybind11::module_& m) {
  using namespace emulation;
  bind_control(m);
  auto headers = m.def_submodule("headers");
  bind_headers(headers);

  bind_array<Array>(m, "Array");
  auto exchange = bind_array<ExchangeArray>(m, "ExchangeArray");
  exchange.attr("__dlpack_c_exchange_api__") = exchange_capsule();
  bind_streams(m);
}
