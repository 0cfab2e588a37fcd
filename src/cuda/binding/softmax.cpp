// softmax, log_softmax, logsumexp and cross_entropy, for arrays on a GPU.
#include "cuda/softmax/softmax.h"

#include "cuda/binding/bindings.h"

namespace fastact {
namespace {

// A call whose arrays are there for as long as the Python objects are.
struct Softmax : SoftmaxCall {
  Reduced reduced_axes;
  int device;

  Softmax(const py::object& x, const std::vector<int>& axes)
      : SoftmaxCall{}, reduced_axes(axes, rank_of(x)) {
    set(kX, x);
    device = array_of(x).device;
    reduced = reduced_axes.axis;
    scale = 1;
  }
  Softmax(const Softmax&) = delete;
  Softmax& operator=(const Softmax&) = delete;

  static int rank_of(const py::object& x) {
    const Array array = array_of(x);
    check(array, "x");
    return array.operand.ndim;
  }
  int dtype() const { return dtypes[kX]; }
  int compute_dtype() const { return std::max(dtypes[kX], int(kF32)); }
  const Operand& x() const { return arrays[kX]; }
  Array array_of_x() const { return {x(), dtype(), device}; }

  void set(SoftmaxRole role, const py::object& view) {
    if (view.is_none()) return;
    const Array array = array_of(view);
    arrays[role] = array.operand;
    dtypes[role] = array.dtype;
  }
  void set_like(SoftmaxRole role, const py::object& view, const char* name) {
    check_like(array_of(view), array_of_x(), name);
    set(role, view);
  }
  void set_mask(const py::object& view) {
    if (view.is_none()) return;
    const Array mask = array_of(view);
    check_index(mask.dtype, kViewDTypes, "the dtype of mask");
    check_memory(mask.operand, "mask");
    check_broadcast(mask.operand, x(), "mask");
    set(kMask, view);
  }
  // A number for each row: of the compute type, or (is_any) of x's dtype.
  void set_number(SoftmaxRole role, const py::object& view, bool is_any, const char* name) {
    if (view.is_none()) return;
    const Array number = array_of(view);
    check(number, name);
    check_kept(number.operand, x(), reduced, true, name);
    if (number.dtype != compute_dtype() && !(is_any && number.dtype == dtype()))
      refuse(std::string(name) + " has another dtype than its rows");
    set(role, view);
  }
};

int64_t py_softmax_workspace(const py::object& x, const std::vector<int>& axes) {
  const Softmax call(x, axes);
  if (is_empty(call.x())) return 0;
  return for_dtype(call.dtype(),
                   [&](auto element) { return softmax_workspace<decltype(element)>(call); });
}

void py_softmax_forward(int kind, const py::object& x, const py::object& mask, const py::object& y,
                        const py::object& lse, const std::vector<int>& axes, double scale,
                        const py::object& workspace, uintptr_t stream) {
  check_index(kind, kSoftmaxKinds, "kind");
  Softmax call(x, axes);
  call.set_mask(mask);
  if (kind == kLogSumExp)
    call.set_number(kNumber, y, true, "y");
  else
    call.set_like(kY, y, "y");
  call.set_number(kLse, lse, false, "lse");
  if (kind == kLogSumExp && y.is_none()) refuse("y must be an array");
  call.kind = kind, call.scale = scale;
  const Workspace scratch(workspace);
  on_device(call.array_of_x(), [&](auto element) {
    using T = decltype(element);
    if (is_empty(call.x())) return fill_logsumexp<T>(call, stream_of(stream));
    softmax_forward<T>(call, scratch.of(softmax_workspace<T>(call)), stream_of(stream));
  });
}

void py_softmax_backward(int kind, const py::object& dy, const py::object& y, const py::object& dx,
                         const std::vector<int>& axes, double scale, bool accumulate,
                         const py::object& workspace, uintptr_t stream) {
  check_index(kind, kLogSumExp, "kind");
  Softmax call(y, axes);
  call.set_like(kDy, dy, "dy");
  call.set_like(kY, dx, "dx");
  call.kind = kind, call.scale = scale, call.accumulate = accumulate;
  const Workspace scratch(workspace);
  if (is_empty(call.x())) return;
  on_device(call.array_of_x(), [&](auto element) {
    using T = decltype(element);
    softmax_backward<T>(call, scratch.of(softmax_workspace<T>(call)), stream_of(stream));
  });
}

void py_logsumexp_backward(const py::object& dy, const py::object& x, const py::object& mask,
                           const py::object& lse, const py::object& dx,
                           const std::vector<int>& axes, double scale, bool accumulate,
                           uintptr_t stream) {
  Softmax call(x, axes);
  call.set_mask(mask);
  call.set_like(kY, dx, "dx");
  call.set_number(kNumber, dy, true, "dy");
  call.set_number(kLse, lse, false, "lse");
  if (dy.is_none() || lse.is_none()) refuse("dy and lse must be arrays");
  call.kind = kLogSumExp, call.scale = scale, call.accumulate = accumulate;
  if (is_empty(call.x())) return;
  on_device(call.array_of_x(),
            [&](auto element) { logsumexp_backward<decltype(element)>(call, stream_of(stream)); });
}

// A call of cross_entropy. What has fewer axes than the logits gets as many, with strides of 0.
struct CrossEntropy : Softmax {
  int64_t weight_shape[kMaxAxes], weight_strides[kMaxAxes];
  int64_t row_shape[kMaxAxes], row_strides[kMaxAxes];

  CrossEntropy(const py::object& logits, int class_axis)
      : Softmax(logits, std::vector<int>{class_axis}) {
    axis = class_axis;
    kind = kLogSumExp;
    for (int i = 0; i < x().ndim; ++i) {
      weight_shape[i] = i == axis ? x().shape[i] : 1;
      row_shape[i] = i == axis ? 1 : x().shape[i];
      weight_strides[i] = row_strides[i] = 0;
    }
    if (x().shape[axis] == 0) refuse("logits must have classes");
  }

  void set_options(int64_t ignored, double smoothing) {
    if (!(smoothing >= 0 && smoothing <= 1)) refuse("label_smoothing must be from 0 to 1");
    ignore_index = ignored, label_smoothing = smoothing;
  }
  void set_target(const py::object& view) {
    const Array target = array_of(view);
    if (target.dtype != kI32 && target.dtype != kI64) return set_like(kDy, view, "target");
    check_memory(target.operand, "target");
    check_kept(target.operand, x(), reduced, true, "target");
    set(kTarget, view);
  }
  void set_weight(const py::object& view) {
    if (view.is_none()) return;
    const Array weight = array_of(view);
    check_index(weight.dtype, kViewDTypes, "the dtype of weight");
    check_memory(weight.operand, "weight");
    if (weight.operand.ndim != 1 || weight.operand.shape[0] != x().shape[axis])
      refuse("weight must have one axis, of the classes");
    weight_strides[axis] = byte_stride(weight.operand, 0, item_size(weight.dtype));
    arrays[kWeight] = {weight.operand.data, x().ndim, weight_shape, weight_strides, 1};
    dtypes[kWeight] = weight.dtype;
  }
  // One number, or one a row.
  void set_dloss(const py::object& view) {
    const Array dloss = array_of(view);
    if (dloss.operand.ndim > 0 || x().ndim == 0) return set_number(kNumber, view, true, "dloss");
    check(dloss, "dloss");
    if (dloss.dtype != dtype() && dloss.dtype != compute_dtype())
      refuse("dloss must have the dtype of logits");
    arrays[kNumber] = {dloss.operand.data, x().ndim, row_shape, row_strides, 1};
    dtypes[kNumber] = dloss.dtype;
  }
  static char* scalar(const py::object& view, int of, const char* name) {
    const Array array = array_of(view);
    check(array, name);
    if (array.operand.ndim != 0 || array.dtype != of)
      refuse(std::string(name) + " must be one number of its dtype");
    return array.operand.data;
  }
};

int64_t py_cross_entropy_workspace(const py::object& logits, int axis) {
  CrossEntropy call(logits, axis);
  call.reduction = kMean;
  if (is_empty(call.x())) return 0;
  return for_dtype(call.dtype(),
                   [&](auto element) { return cross_entropy_workspace<decltype(element)>(call); });
}

void py_cross_entropy_forward(const py::object& logits, const py::object& target,
                              const py::object& weight, const py::object& lse,
                              const py::object& losses, const py::object& loss,
                              const py::object& divisor, int axis, int64_t ignore_index,
                              double label_smoothing, int reduction, const py::object& workspace,
                              uintptr_t stream) {
  check_index(reduction, kLossReductions, "reduction");
  CrossEntropy call(logits, axis);
  call.set_target(target);
  call.set_weight(weight);
  call.set_number(kLse, lse, false, "lse");
  call.reduction = reduction;
  if (losses.is_none() == (reduction == kNone) || loss.is_none() != (reduction == kNone) ||
      divisor.is_none() != (reduction == kNone))
    refuse("losses, or loss and divisor, must be arrays, as the reduction says");
  if (reduction == kNone) {
    call.set_number(kNumber, losses, true, "losses");
  } else {
    call.loss = CrossEntropy::scalar(loss, call.dtype(), "loss");
    call.divisor = reinterpret_cast<double*>(CrossEntropy::scalar(divisor, kF64, "divisor"));
  }
  call.set_options(ignore_index, label_smoothing);
  const Workspace scratch(workspace);
  on_device(call.array_of_x(), [&](auto element) {
    using T = decltype(element);
    const int64_t needed = is_empty(call.x()) ? 0 : cross_entropy_workspace<T>(call);
    cross_entropy_forward<T>(call, scratch.of(needed), stream_of(stream));
  });
}

void py_cross_entropy_backward(const py::object& dloss, const py::object& logits,
                               const py::object& target, const py::object& weight,
                               const py::object& lse, const py::object& divisor,
                               const py::object& dlogits, int axis, int64_t ignore_index,
                               double label_smoothing, bool accumulate, const py::object& workspace,
                               uintptr_t stream) {
  CrossEntropy call(logits, axis);
  call.set_target(target);
  call.set_weight(weight);
  call.set_dloss(dloss);
  call.set_number(kLse, lse, false, "lse");
  if (lse.is_none()) refuse("lse must be an array");
  call.set_like(kY, dlogits, "dlogits");
  if (!divisor.is_none())
    call.divisor = reinterpret_cast<double*>(CrossEntropy::scalar(divisor, kF64, "divisor"));
  call.set_options(ignore_index, label_smoothing);
  call.accumulate = accumulate;
  const Workspace scratch(workspace);  // none is needed
  if (is_empty(call.x())) return;
  on_device(call.array_of_x(), [&](auto element) {
    cross_entropy_backward<decltype(element)>(call, stream_of(stream));
  });
}

}  // namespace

void bind_softmax(py::module_& m) {
  m.def("softmax_workspace", py_softmax_workspace,
        "Bytes of scratch that softmax_forward and softmax_backward need.");
  m.def("softmax_forward", py_softmax_forward,
        "y OUT = softmax, log_softmax or logsumexp of scale x IN + mask IN, lse OUT.");
  m.def("softmax_backward", py_softmax_backward,
        "dx OUT, or IN/OUT +=, from dy IN and the result y IN.");
  m.def("logsumexp_backward", py_logsumexp_backward,
        "dx OUT = scale dy IN exp(scale x IN + mask IN - lse IN), or +=.");
  m.def("cross_entropy_workspace", py_cross_entropy_workspace,
        "Bytes of scratch that cross_entropy_forward needs.");
  m.def("cross_entropy_forward", py_cross_entropy_forward,
        "lse OUT, and losses OUT or loss OUT and divisor OUT, of logits IN and target IN.");
  m.def("cross_entropy_backward", py_cross_entropy_backward,
        "dlogits OUT, or IN/OUT +=, from dloss IN, logits IN, target IN and lse IN.");
}

}  // namespace fastact
