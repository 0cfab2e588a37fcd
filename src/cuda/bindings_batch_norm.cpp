// The functions of the CPU module's batch_norm.pyx, for arrays on a GPU.
#include "batch_norm.h"
#include "bindings.h"

namespace fastact {
namespace {

struct Channels {
  ChannelOperand array{};
  explicit Channels(const py::object& view) {
    const Optional given(view);
    array = {given.operand, given.dtype};
  }
};

int64_t py_scratch(const py::object& x, int axis) {
  const Array a = array_of(x);
  return for_dtype(a.dtype, [&](auto element) {
    return batch_norm_scratch<decltype(element)>(a.operand, axis);
  });
}

// What every call has.
template <class Call>
Call call_of(int which, const Array& x, const py::object& weight, const py::object& bias, int axis,
             const Parameters& parameters) {
  Call call{};
  call.x = x.operand;
  call.weight = Channels(weight).array;
  call.bias = Channels(bias).array;
  call.axis = axis;
  call.which = which;
  call.parameters = parameters.value;
  return call;
}

void run_forward(const BatchForward& call, const Array& x, const py::object& scratch,
                 const py::object& workspace, uintptr_t stream) {
  if (is_empty(x.operand)) return;
  void *memory = Optional(scratch).data(), *more = Optional(workspace).data();
  const py::gil_scoped_release release;
  const DeviceGuard guard(x.device);
  for_dtype(x.dtype, [&](auto element) {
    batch_norm_forward<decltype(element)>(call, memory, more, stream_of(stream));
  });
}

void py_forward(int which, const py::object& x, const py::object& y, const py::object& running_mean,
                const py::object& running_var, const py::object& weight, const py::object& bias,
                const py::object& mean, const py::object& rstd, int axis,
                const std::vector<double>& parameters, bool training, double momentum, double eps,
                const py::object& scratch, const py::object& workspace, uintptr_t stream) {
  const Array a = array_of(x);
  const Parameters p(parameters);
  auto call = call_of<BatchForward>(which, a, weight, bias, axis, p);
  call.y = array_of(y).operand;
  call.mean = Channels(running_mean).array;
  call.spread = Channels(running_var).array;
  call.by_moments = training;
  call.saved_mean = Channels(mean).array;
  call.saved_rstd = Channels(rstd).array;
  call.momentum = momentum;
  call.eps = eps;
  run_forward(call, a, scratch, workspace, stream);
}

void py_apply(int which, const py::object& x, const py::object& y, const py::object& mean,
              const py::object& rstd, const py::object& weight, const py::object& bias, int axis,
              const std::vector<double>& parameters, const py::object& scratch, uintptr_t stream) {
  const Array a = array_of(x);
  const Parameters p(parameters);
  auto call = call_of<BatchForward>(which, a, weight, bias, axis, p);
  call.y = array_of(y).operand;
  call.mean = Channels(mean).array;
  call.spread = Channels(rstd).array;
  call.is_rstd = true;
  run_forward(call, a, scratch, py::none(), stream);
}

// The sums of nothing.
void set_to_zero(const ChannelOperand& to, int axis, cudaStream_t stream) {
  const Operand& a = to.operand;
  if (!a.data || is_empty(a)) return;
  const int along = a.ndim == 1 ? 0 : axis;
  for_dtype(to.dtype, [&](auto element) {
    finish_partials<decltype(element)>(nullptr, a.shape[along], 0, a.data,
                                       byte_stride(a, along, sizeof(element)), false, stream);
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
  call.dy = array_of(dy).operand;
  call.dx = Optional(dx).operand;
  call.mean = Channels(mean).array;
  call.rstd = Channels(rstd).array;
  call.sum_p = Channels(sum_p).array;
  call.sum_p_xhat = Channels(sum_p_xhat).array;
  call.dweight = Channels(dweight).array;
  call.dbias = Channels(dbias).array;
  call.count = count;
  call.is_training = training;
  call.accumulate = accumulate;
  void* memory = Optional(scratch).data();
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  if (is_empty(a.operand)) {
    if (accumulate) return;
    set_to_zero(call.dweight, axis, stream_of(stream));
    set_to_zero(call.dbias, axis, stream_of(stream));
    return;
  }
  for_dtype(a.dtype, [&](auto element) {
    batch_norm_backward<decltype(element)>(call, memory, stream_of(stream));
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
