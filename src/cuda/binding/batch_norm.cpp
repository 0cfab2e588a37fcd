// The functions of the CPU module's batch_norm.pyx, for arrays on a GPU.
#include "cuda/norms/channels/batch_norm.h"

#include "cuda/binding/bindings.h"
#include "cuda/reductions/moments.h"

namespace fastact {
namespace {

// None, or one element a channel: of one axis, or with the axes of x.
NumberVector channels_of(const py::object& view, const Array& x, int axis, const char* name) {
  if (view.is_none()) return {};
  const Array a = array_of(view);
  check(a, name);
  const int along = a.operand.ndim == 1 ? 0 : axis;
  if ((a.operand.ndim != 1 && a.operand.ndim != x.operand.ndim) ||
      a.operand.shape[along] != x.operand.shape[axis])
    refuse(std::string(name) + " must have an element for each channel");
  return {a.operand.data, byte_stride(a.operand, along, item_size(a.dtype)), a.dtype};
}

void check_x(int which, const Array& x, int axis) {
  check_index(which, kActivations, "which");
  check(x, "x");
  check_index(axis, x.operand.ndim, "axis");
}

int64_t py_scratch(const py::object& x, int axis) {
  const Array a = array_of(x);
  check_rank(a.operand, "x");
  check_index(axis, a.operand.ndim, "axis");
  return for_dtype(a.dtype, [&](auto element) {
    return batch_norm_scratch<decltype(element)>(a.operand, axis);
  });
}

// What every call has.
template <class Call>
Call call_of(int which, const Array& x, const py::object& weight, const py::object& bias, int axis,
             const Parameters& parameters) {
  check_x(which, x, axis);
  Call call{};
  call.x = x.operand;
  call.weight = channels_of(weight, x, axis, "weight");
  call.bias = channels_of(bias, x, axis, "bias");
  call.axis = axis;
  call.which = which;
  call.parameters = parameters.value;
  return call;
}

void run_forward(const BatchForward& call, const Array& x, const py::object& scratch,
                 uintptr_t stream) {
  const Workspace memory(scratch);
  on_device(x, [&](auto element) {
    using T = decltype(element);
    if (is_empty(x.operand)) {
      batch_norm_save<T>(call, stream_of(stream));
      return;
    }
    batch_norm_forward<T>(call, memory.of(batch_norm_scratch<T>(x.operand, call.axis)),
                          stream_of(stream));
  });
}

void py_forward(int which, const py::object& x, const py::object& y, const py::object& running_mean,
                const py::object& running_var, const py::object& weight, const py::object& bias,
                const py::object& mean, const py::object& rstd, int axis,
                const std::vector<double>& parameters, bool training, double momentum, double eps,
                const py::object& scratch, const py::object& /* the CPU's */, uintptr_t stream) {
  const Array a = array_of(x);
  const Parameters p(parameters);
  auto call = call_of<BatchForward>(which, a, weight, bias, axis, p);
  check_like(array_of(y), a, "y");
  call.y = array_of(y).operand;
  call.mean = channels_of(running_mean, a, axis, "running_mean");
  call.spread = channels_of(running_var, a, axis, "running_var");
  call.by_moments = training;
  call.saved_mean = channels_of(mean, a, axis, "mean");
  call.saved_rstd = channels_of(rstd, a, axis, "rstd");
  call.momentum = momentum;
  call.eps = eps;
  run_forward(call, a, scratch, stream);
}

void py_apply(int which, const py::object& x, const py::object& y, const py::object& mean,
              const py::object& rstd, const py::object& weight, const py::object& bias, int axis,
              const std::vector<double>& parameters, const py::object& scratch, uintptr_t stream) {
  const Array a = array_of(x);
  const Parameters p(parameters);
  auto call = call_of<BatchForward>(which, a, weight, bias, axis, p);
  check_like(array_of(y), a, "y");
  call.y = array_of(y).operand;
  call.mean = channels_of(mean, a, axis, "mean");
  call.spread = channels_of(rstd, a, axis, "rstd");
  call.is_rstd = true;
  run_forward(call, a, scratch, stream);
}

// The sums of nothing.
void set_to_zero(const NumberVector& to, int64_t channels, cudaStream_t stream) {
  if (!to.data || channels == 0) return;
  for_dtype(to.dtype, [&](auto element) {
    finish_partials<decltype(element)>(nullptr, channels, 0, to.data, to.stride, false, stream);
  });
}

void py_backward(int which, const py::object& dy, const py::object& x, const py::object& mean,
                 const py::object& rstd, const py::object& weight, const py::object& bias,
                 const py::object& sum_p, const py::object& sum_p_xhat, double count,
                 const py::object& dx, const py::object& dweight, const py::object& dbias, int axis,
                 const std::vector<double>& parameters, bool training, bool accumulate,
                 const py::object& scratch, uintptr_t stream) {
  const Array a = array_of(x);
  const Parameters p(parameters);
  auto call = call_of<BatchBackward>(which, a, weight, bias, axis, p);
  check_like(array_of(dy), a, "dy");
  check_if_like(dx, a, "dx");
  call.dy = array_of(dy).operand;
  call.dx = Optional(dx).operand;
  call.mean = channels_of(mean, a, axis, "mean");
  call.rstd = channels_of(rstd, a, axis, "rstd");
  call.sum_p = channels_of(sum_p, a, axis, "sum_p");
  call.sum_p_xhat = channels_of(sum_p_xhat, a, axis, "sum_p_xhat");
  call.dweight = channels_of(dweight, a, axis, "dweight");
  call.dbias = channels_of(dbias, a, axis, "dbias");
  call.count = count;
  call.is_training = training;
  call.accumulate = accumulate;
  const Workspace memory(scratch);
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  if (is_empty(a.operand)) {
    if (accumulate) return;
    for (const NumberVector& to : {call.dweight, call.dbias})
      set_to_zero(to, a.operand.shape[axis], stream_of(stream));
    return;
  }
  for_dtype(a.dtype, [&](auto element) {
    using T = decltype(element);
    batch_norm_backward<T>(call, memory.of(batch_norm_scratch<T>(a.operand, axis)),
                           stream_of(stream));
  });
}

}  // namespace

void bind_batch_norm(py::module_& m) {
  m.def("batch_norm_scratch", py_scratch, "Bytes of scratch for the functions below.");
  m.def("batch_norm_forward", py_forward,
        "y OUT = f((x IN - mean) rstd weight IN + bias IN); mean, rstd OUT or None.");
  m.def("norm_apply", py_apply, "The same by given statistics.");
  m.def("batch_norm_backward", py_backward,
        "dx OUT, dweight OUT, dbias OUT, or IN/OUT += of the same; each or None.");
}

}  // namespace fastact
