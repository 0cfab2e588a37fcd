// The functions of the CPU module's moments.pyx, for arrays on a GPU.
#include "cuda/reductions/moments.h"

#include "cuda/binding/bindings.h"

namespace fastact {
namespace {

int64_t py_moments_workspace(const py::object& x, const py::object& y,
                             const std::vector<int>& axes) {
  const Array a = array_of(x), b = array_of(y);
  check_rank(a.operand, "x");
  const Reduced reduced(axes, a.operand.ndim);
  check_kept(b.operand, a.operand, reduced.axis, true, "y");
  if (is_empty(a.operand) || is_empty(b.operand)) return 0;
  return for_dtype(a.dtype, [&](auto element) {
    return moments_workspace<decltype(element)>(a.operand, b.operand, reduced.axis);
  });
}

void py_moments(const py::object& x, const py::object& mean, const py::object& low,
                const py::object& second, const std::vector<int>& axes, double divisor,
                const py::object& workspace, uintptr_t stream) {
  const Array a = array_of(x);
  const Optional b(mean), c(low), d(second);
  check(a, "x");
  const Reduced reduced(axes, a.operand.ndim);
  const Optional& y = b.given ? b : d;
  if (!y.given) refuse("mean or second must be an array");
  for (const Optional* result : {&b, &c, &d}) {
    if (!result->given) continue;
    check(result->operand, result->dtype, "mean, low or second");
    check_kept(result->operand, a.operand, reduced.axis, true, "mean, low or second");
    bool alike = result->dtype == y.dtype;
    for (int i = 0; i < a.operand.ndim; ++i)
      alike &= y.operand.shape[i] == 1 || byte_stride(result->operand, i, item_size(y.dtype)) ==
                                              byte_stride(y.operand, i, item_size(y.dtype));
    if (!alike) refuse("mean, low and second must have one dtype and the same strides");
  }
  if (is_empty(a.operand)) return;
  const MomentOutputs outputs{b.operand, c.operand, d.operand, b.given ? b.dtype : d.dtype,
                              divisor};
  const Workspace scratch(workspace);
  on_device(a, [&](auto element) {
    using T = decltype(element);
    void* memory = scratch.of(moments_workspace<T>(a.operand, y.operand, reduced.axis));
    moments<T>(a.operand, outputs, reduced.axis, memory, stream_of(stream));
  });
}

void py_moments_backward(const py::object& dmean, const py::object& dsecond, const py::object& x,
                         const py::object& mean, const py::object& low, const py::object& dx,
                         double share, double scale, bool accumulate, uintptr_t stream) {
  const Array a = array_of(x);
  check(a, "x");
  for (const py::object* other : {&dmean, &dsecond, &dx})
    check_like(array_of(*other), a, "dmean, dsecond or dx");
  const Array means = array_of(mean);
  check(means, "mean");
  check_shape(means.operand, a.operand, "mean");
  const bool is_narrow = item_size(a.dtype) == 2;  // then the mean is in double, and has no low
  if (means.dtype != (is_narrow ? kF64 : a.dtype))
    refuse("mean must have the dtype of x, or float64");
  if (low.is_none() != is_narrow) refuse("low must be given for wide data alone");
  check_if_like(low, a, "low");
  if (is_empty(a.operand)) return;
  const Operand arrays[] = {
      array_of(dmean).operand, array_of(dsecond).operand, a.operand,
      array_of(mean).operand,  Optional(low).operand,     array_of(dx).operand};
  on_device(a, [&](auto element) {
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
