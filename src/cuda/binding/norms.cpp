// The norms over rows, for arrays on a GPU.
#include "cuda/norms/rows/norms.h"

#include "cuda/binding/bindings.h"

namespace fastact {
namespace {

// A call whose arrays are there for as long as the Python objects are.
struct Norm : NormCall {
  Reduced reduced_axes, parameter_axes;
  Parameters values;
  int dtype = 0, device = 0;

  Norm(const std::vector<int>& inside, const std::vector<int>& of_weights,
       const std::vector<double>& numbers)
      : NormCall{}, reduced_axes(inside), parameter_axes(of_weights), values(numbers) {
    reduced = reduced_axes.axis;
    of_parameter = parameter_axes.axis;
    parameters = values.value;
    eps = weight_offset = 0;
    is_centred = true;
  }
  Array described(const Operand& x) const { return {x, dtype, device}; }
  Norm(const Norm&) = delete;
  Norm& operator=(const Norm&) = delete;

  void set_x(Operand* to, const py::object& x) {
    const Array array = array_of(x);
    *to = array.operand;
    dtype = weight_dtype = bias_dtype = array.dtype;
    device = array.device;
  }
  void set_weights(const py::object& w, const py::object& b) {
    const Optional of_weight(w), of_bias(b);
    weight = of_weight.operand, bias = of_bias.operand;
    if (of_weight.given) weight_dtype = of_weight.dtype;
    if (of_bias.given) bias_dtype = of_bias.dtype;
  }
  void set_casts(double offset, bool rounds) {
    if (rounds && (bias.data || is_centred)) refuse("casts must be False with a bias or a mean");
    weight_offset = offset, casts = rounds;
  }
  // x is data[k]; the others are of its shape and dtype, or none.
  void check_data(int k, std::initializer_list<const py::object*> others) {
    check_index(which, kActivations, "which");
    check(data[k], dtype, "x");
    for (const py::object* other : others)
      if (!other->is_none()) {
        const Array array = array_of(*other);
        check(array, "an array of x's shape");
        check_shape(array.operand, data[k], "an array of x's shape");
        if (array.dtype != dtype) refuse("arrays of x's shape must have its dtype");
      }
    for (int i = data[k].ndim; i < kMaxAxes; ++i)
      if (reduced[i] || of_parameter[i]) refuse("axes must be those of x");
  }
  void check_statistic(const py::object& view, const Operand& x, bool is_out) const {
    if (view.is_none()) return;
    check_beside(view, x, "mean or rstd");
    const Array array = array_of(view);
    if (is_out) check_kept(array.operand, x, reduced, true, "mean or rstd");
    if (array.dtype != std::max(dtype, int(kF32))) refuse("mean and rstd must be as x is computed");
  }
  void check_gradient(const py::object& view, int expected, const Operand& x) const {
    if (view.is_none()) return;
    const Array array = array_of(view);
    check(array, "dweight or dbias");
    check_kept(array.operand, x, of_parameter, false, "dweight or dbias");
    if (array.dtype != expected)
      refuse("dweight and dbias must have the dtypes of weight and bias");
  }
  void set_gradients(const py::object& w, const py::object& b) {
    dweight = Optional(w).operand, dbias = Optional(b).operand;
  }
};

// Statistics of rows without elements.
template <class T>
void fill_statistics(const Norm& call, cudaStream_t stream) {
  for (const Operand* statistic : {&call.mean, &call.rstd})
    if (statistic->data && !is_empty(*statistic)) fill_with_nan<T>(*statistic, stream);
}

void py_norm_forward(int which, const py::object& x, const py::object& residual,
                     const py::object& total, const py::object& y, const py::object& mean,
                     const py::object& rstd, const py::object& weight, const py::object& bias,
                     const std::vector<int>& reduced, const std::vector<int>& of_parameter,
                     double eps, bool is_centred, double weight_offset, bool casts,
                     const std::vector<double>& parameters, const py::object& workspace,
                     uintptr_t stream) {
  Norm call(reduced, of_parameter, parameters);
  call.set_x(&call.data[NormCall::kX], x);
  call.data[NormCall::kResidual] = Optional(residual).operand;
  call.data[NormCall::kTotal] = Optional(total).operand;
  call.data[NormCall::kY] = Optional(y).operand;
  call.mean = Optional(mean).operand, call.rstd = Optional(rstd).operand;
  call.set_weights(weight, bias);
  call.which = which, call.eps = eps, call.is_centred = is_centred;
  call.set_casts(weight_offset, casts);
  const Operand& of = call.data[NormCall::kX];
  call.check_data(NormCall::kX, {&residual, &total, &y});
  if (y.is_none() || residual.is_none() != total.is_none())
    refuse("y, and both or none of residual and total, must be arrays");
  call.check_statistic(mean, of, true);
  call.check_statistic(rstd, of, true);
  if (rstd.is_none() ? !mean.is_none() : mean.is_none() == is_centred)
    refuse("mean must be an array where it is subtracted and rstd is one, and only there");
  check_beside(weight, of, "weight");
  check_beside(bias, of, "bias");
  const Workspace scratch(workspace);
  on_device(call.described(of), [&](auto element) {
    using T = decltype(element);
    if (is_empty(of)) return fill_statistics<T>(call, stream_of(stream));
    NormCall sized = call;  // as norm_forward_workspace knows it
    for (int k = 0; k < 4; ++k)
      if (k != NormCall::kX) sized.data[k] = {};
    sized.mean = sized.rstd = sized.weight = sized.bias = {};
    sized.weight_dtype = sized.bias_dtype = call.dtype;
    sized.is_centred = true;
    norm_forward<T>(call, scratch.of(norm_forward_workspace<T>(sized)), stream_of(stream));
  });
}

int64_t py_norm_forward_workspace(const py::object& x, const std::vector<int>& reduced,
                                  const std::vector<int>& of_parameter) {
  Norm call(reduced, of_parameter, {});
  call.set_x(&call.data[NormCall::kX], x);
  if (is_empty(call.data[NormCall::kX])) return 0;
  return for_dtype(call.dtype,
                   [&](auto element) { return norm_forward_workspace<decltype(element)>(call); });
}

void py_norm_backward(int which, const py::object& dy, const py::object& x,
                      const py::object& dtotal, const py::object& dx, const py::object& mean,
                      const py::object& rstd, const py::object& weight, const py::object& bias,
                      const py::object& dweight, const py::object& dbias,
                      const std::vector<int>& reduced, const std::vector<int>& of_parameter,
                      double weight_offset, bool casts, const std::vector<double>& parameters,
                      bool accumulate, const py::object& workspace, uintptr_t stream) {
  Norm call(reduced, of_parameter, parameters);
  call.set_x(&call.data[NormCall::kIn], x);
  call.data[NormCall::kDy] = Optional(dy).operand;
  call.data[NormCall::kDTotal] = Optional(dtotal).operand;
  call.data[NormCall::kDx] = Optional(dx).operand;
  call.mean = Optional(mean).operand, call.rstd = Optional(rstd).operand;
  call.set_weights(weight, bias);
  call.set_gradients(dweight, dbias);
  call.which = which, call.accumulate = accumulate, call.is_centred = !mean.is_none();
  call.set_casts(weight_offset, casts);
  const Operand& of = call.data[NormCall::kIn];
  call.check_data(NormCall::kIn, {&dy, &dtotal, &dx});
  if (dy.is_none() || rstd.is_none()) refuse("dy and rstd must be arrays");
  call.check_statistic(mean, of, false);
  call.check_statistic(rstd, of, false);
  check_beside(weight, of, "weight");
  check_beside(bias, of, "bias");
  call.check_gradient(dweight, call.weight_dtype, of);
  call.check_gradient(dbias, call.bias_dtype, of);
  const Workspace scratch(workspace);
  on_device(call.described(of), [&](auto element) {
    using T = decltype(element);
    NormCall sized = call;  // as norm_workspace knows it
    for (int k = 0; k < 4; ++k)
      if (k != NormCall::kIn) sized.data[k] = {};
    sized.mean = sized.rstd = {};
    sized.is_centred = true, sized.accumulate = false;
    norm_backward<T>(call, scratch.of(norm_backward_workspace<T>(sized)), stream_of(stream));
  });
}

int64_t py_norm_backward_workspace(const py::object& x, const py::object& weight,
                                   const py::object& bias, const py::object& dweight,
                                   const py::object& dbias, const std::vector<int>& reduced,
                                   const std::vector<int>& of_parameter) {
  Norm call(reduced, of_parameter, {});
  call.set_x(&call.data[NormCall::kIn], x);
  call.set_weights(weight, bias);
  call.set_gradients(dweight, dbias);
  return for_dtype(call.dtype,
                   [&](auto element) { return norm_backward_workspace<decltype(element)>(call); });
}

}  // namespace

void bind_norms(py::module_& m) {
  m.def("norm_forward", py_norm_forward,
        "y OUT = f((x IN - mean) rstd weight IN + bias IN), mean and rstd OUT.");
  m.def("norm_forward_workspace", py_norm_forward_workspace,
        "Bytes of scratch that `norm_forward` needs.");
  m.def("norm_backward", py_norm_backward, "dx, dweight and dbias OUT from dy IN, or +=.");
  m.def("norm_workspace", py_norm_backward_workspace,
        "Bytes of scratch that `norm_backward` needs.");
}

}  // namespace fastact
