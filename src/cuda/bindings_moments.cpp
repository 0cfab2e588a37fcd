// The functions of the CPU module's moments.pyx, for arrays on a GPU.
#include "bindings.h"
#include "moments.h"

namespace fastact {
namespace {

int64_t py_moments_workspace(const py::object& x, const py::object& y,
                             const std::vector<int>& axes) {
  const Array a = array_of(x), b = array_of(y);
  if (is_empty(a.operand) || is_empty(b.operand)) return 0;
  const Reduced reduced(axes);
  return for_dtype(a.dtype, [&](auto element) {
    return moments_workspace<decltype(element)>(a.operand, b.operand, reduced.axis);
  });
}

void py_moments(const py::object& x, const py::object& mean, const py::object& low,
                const py::object& second, const std::vector<int>& axes, double divisor,
                const py::object& workspace, uintptr_t stream) {
  const Array a = array_of(x);
  const Optional b(mean), c(low), d(second);
  if (is_empty(a.operand)) return;
  const MomentOutputs outputs{b.operand, c.operand, d.operand, b.given ? b.dtype : d.dtype,
                              divisor};
  const Reduced reduced(axes);
  void* scratch = Optional(workspace).data();
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  for_dtype(a.dtype, [&](auto element) {
    moments<decltype(element)>(a.operand, outputs, reduced.axis, scratch, stream_of(stream));
  });
}

void py_moments_backward(const py::object& dmean, const py::object& dsecond, const py::object& x,
                         const py::object& mean, const py::object& low, const py::object& dx,
                         double share, double scale, bool accumulate, uintptr_t stream) {
  const Array a = array_of(x);
  if (is_empty(a.operand)) return;
  const Operand arrays[] = {
      array_of(dmean).operand, array_of(dsecond).operand, a.operand,
      array_of(mean).operand,  array_of(low).operand,     array_of(dx).operand};
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  for_dtype(a.dtype, [&](auto element) {
    moments_backward<decltype(element)>(arrays, share, scale, accumulate, stream_of(stream));
  });
}

}  // namespace

void bind_moments(py::module_& m) {
  m.def("moments_workspace", py_moments_workspace, "Bytes of scratch that `moments` needs.");
  m.def("moments", py_moments,
        "mean OUT, low OUT and second OUT = m2 / divisor, of x IN over axes; each or None.");
  m.def("moments_backward", py_moments_backward,
        "dx OUT = share dmean + scale (x - mean) dsecond, or dx IN/OUT += of the same.");
}

}  // namespace fastact
