// The functions of src/cpu/gated/gated.pyx, for arrays on a GPU.
#include "cuda/gated/gated.h"

#include "cuda/binding/bindings.h"

using namespace fastact;

namespace {

// What both directions take.
void check_inputs(int which, const Array& a, const py::object& b, const py::object& bias_a,
                  const py::object& bias_b, int axis, double limit) {
  check_index(which, kActivations, "which");
  check(a, "a");
  check_like(array_of(b), a, "b");
  if (!(limit > 0)) refuse("limit must be positive");
  if (bias_a.is_none() != bias_b.is_none()) refuse("bias_b must be given where bias_a is");
  if (bias_a.is_none()) return;
  check_index(axis, a.operand.ndim, "axis");
  check_along(bias_a, a.operand.shape[axis], "bias_a");
  check_along(bias_b, a.operand.shape[axis], "bias_b");
  if (array_of(bias_a).dtype != array_of(bias_b).dtype) refuse("bias_b must have bias_a's dtype");
}

void check_dbias(const py::object& dbias, const py::object& bias, const char* name) {
  if (bias.is_none()) refuse(std::string(name) + " must be None where no bias is given");
  const Array a = array_of(dbias), of = array_of(bias);
  check_along(dbias, of.operand.shape[0], name);
  if (a.dtype != of.dtype) refuse(std::string(name) + " must have the dtype of its bias");
}

GatedArrays arrays_of(const Array& a, const py::object& b, const py::object& bias_a,
                      const py::object& bias_b, int axis) {
  GatedArrays arrays{};
  arrays.a = a.operand;
  arrays.b = array_of(b).operand;
  arrays.axis = axis;
  arrays.has_bias = !bias_a.is_none();
  arrays.bias[0] = vector_of(bias_a);
  arrays.bias[1] = vector_of(bias_b);
  return arrays;
}

void py_gated_forward(int which, const py::object& a, const py::object& b, const py::object& bias_a,
                      const py::object& bias_b, const py::object& y, int axis,
                      const std::vector<double>& parameters, double limit, double offset,
                      uintptr_t stream) {
  const Array first = array_of(a), out = array_of(y);
  check_inputs(which, first, b, bias_a, bias_b, axis, limit);
  check_like(out, first, "y");
  const Parameters p(parameters);
  if (is_empty(first.operand)) return;
  GatedArrays arrays = arrays_of(first, b, bias_a, bias_b, axis);
  arrays.y = out.operand;
  on_device(first, [&](auto element) {
    gated_forward<decltype(element)>({which, p.value, limit, offset}, arrays, stream_of(stream));
  });
}

int64_t py_gated_workspace(const py::object& a, int axis) {
  const Array array = array_of(a);
  check(array, "a");
  check_index(axis, array.operand.ndim, "axis");
  return for_dtype(array.dtype, [&](auto element) {
    return gated_workspace<decltype(element)>(array.operand, axis);
  });
}

void py_gated_backward(int which, const py::object& dy, const py::object& a, const py::object& b,
                       const py::object& bias_a, const py::object& bias_b, const py::object& da,
                       const py::object& db, const py::object& dbias_a, const py::object& dbias_b,
                       int axis, const std::vector<double>& parameters, double limit, double offset,
                       bool accumulate, const py::object& workspace, uintptr_t stream) {
  const Array first = array_of(a), gradient = array_of(dy);
  check_inputs(which, first, b, bias_a, bias_b, axis, limit);
  check_like(gradient, first, "dy");
  check_if_like(da, first, "da");
  check_if_like(db, first, "db");
  if (dbias_a.is_none() != dbias_b.is_none()) refuse("dbias_b must be given where dbias_a is");
  GatedArrays arrays = arrays_of(first, b, bias_a, bias_b, axis);
  arrays.dy = gradient.operand;
  arrays.da = Optional(da).operand;
  arrays.db = Optional(db).operand;
  arrays.has_dbias = !dbias_a.is_none();
  if (arrays.has_dbias) {
    check_dbias(dbias_a, bias_a, "dbias_a");
    check_dbias(dbias_b, bias_b, "dbias_b");
    arrays.dbias[0] = vector_of(dbias_a);
    arrays.dbias[1] = vector_of(dbias_b);
  }
  const Parameters p(parameters);
  const Workspace scratch(workspace);
  const bool writes = arrays.has_dbias
                          ? first.operand.shape[axis] > 0
                          : !is_empty(first.operand) && !(da.is_none() && db.is_none());
  if (!writes) return;
  on_device(first, [&](auto element) {
    using T = decltype(element);
    void* memory = scratch.of(arrays.has_dbias ? gated_workspace<T>(first.operand, axis) : 0);
    gated_backward<T>({which, p.value, limit, offset}, arrays, accumulate, memory,
                      stream_of(stream));
  });
}

}  // namespace

namespace fastact {

void bind_gated(py::module_& m) {
  m.def("gated_forward", py_gated_forward,
        "y OUT = f(min(a IN + bias_a IN, limit)) (clamp(b IN + bias_b IN) + offset).");
  m.def("gated_workspace", py_gated_workspace, "Bytes of scratch for sums in gated_backward.");
  m.def("gated_backward", py_gated_backward,
        "The gradients of gated_forward, each OUT or None, or IN/OUT += with accumulate.");
}

}  // namespace fastact
