// The functions of the CPU module's batch_norm.pyx, for arrays on a GPU.
#include "cuda/norms/channels/batch_norm.h"

#include "cuda/binding/bindings.h"
#include "cuda/reductions/moments.h"

namespace fastact {
namespace {

struct Channels {
  ChannelOperand array{};
  explicit Channels(const py::object& view) {
    const Optional given(view);
    array = {given.operand, given.dtype};
  }
};

// None, or one element a channel: of one axis, or with the axes of x.
void check_channels(const py::object& view, const Array& x, int axis, const char* name) {
  if (view.is_none()) return;
  const Array a = array_of(view);
  check(a, name);
  const int along = a.operand.ndim == 1 ? 0 : axis;
  if ((a.operand.ndim != 1 && a.operand.ndim != x.operand.ndim) ||
      a.operand.shape[along] != x.operand.shape[axis])
    refuse(std::string(name) + " must have an element for each channel");
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
  check_channels(weight, x, axis, "weight");
  check_channels(bias, x, axis, "bias");
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
  const Workspace memory(scratch), more(workspace);
  const py::gil_scoped_release release;
  const DeviceGuard guard(x.device);
  for_dtype(x.dtype, [&](auto element) {
    using T = decltype(element);
    if (is_empty(x.operand)) {
      batch_norm_save<T>(call, stream_of(stream));
      return;
    }
    int64_t shape[kMaxAxes], strides[kMaxAxes], needed = 0;
    bool reduced[kMaxAxes];
    for (int i = 0; i < x.operand.ndim; ++i) {
      reduced[i] = i != call.axis;
      shape[i] = reduced[i] ? 1 : x.operand.shape[i];
      strides[i] = sizeof(double);
    }
    if (call.by_moments)
      needed =
          moments_workspace<T>(x.operand, {nullptr, x.operand.ndim, shape, strides, 1}, reduced);
    batch_norm_forward<T>(call, memory.of(batch_norm_scratch<T>(x.operand, call.axis)),
                          more.of(needed), stream_of(stream));
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
  check_like(array_of(y), a, "y");
  for (const py::object* one : {&running_mean, &running_var, &mean, &rstd})
    check_channels(*one, a, axis, "a statistic");
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
  check_like(array_of(y), a, "y");
  for (const py::object* one : {&mean, &rstd}) check_channels(*one, a, axis, "a statistic");
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
  check_like(array_of(dy), a, "dy");
  check_if_like(dx, a, "dx");
  for (const py::object* one : {&mean, &rstd, &sum_p, &sum_p_xhat, &dweight, &dbias})
    check_channels(*one, a, axis, "a statistic, sum or gradient");
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
  const Workspace memory(scratch);
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  if (is_empty(a.operand)) {
    if (accumulate) return;
    set_to_zero(call.dweight, axis, stream_of(stream));
    set_to_zero(call.dbias, axis, stream_of(stream));
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
