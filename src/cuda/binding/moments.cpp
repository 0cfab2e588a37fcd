// The functions of the CPU module's moments.pyx, for arrays on a GPU.
#include "cuda/reductions/moments.h"

#include <optional>

#include "cuda/binding/bindings.h"

namespace fastact {
namespace {

// Weights and a mask of x's shape, or None.
struct Weighting {
  const Optional weights, where;
  Weighting(const py::object& w, const py::object& there, const Operand& x)
      : weights(w), where(there) {
    for (const Optional* a : {&weights, &where}) {
      if (!a->given) continue;
      check_memory(a->operand, "weights or where");
      check_shape(a->operand, x, "weights or where");
      check_index(a->dtype, kViewDTypes, "the dtype of weights or where");
    }
    if (where.given && where.dtype != kBool) refuse("where must have dtype bool");
  }
  bool given() const { return weights.given || where.given; }
  Weights found() const { return {weights.operand, where.operand, weights.dtype}; }
};

int64_t py_moments_workspace(const py::object& x, const py::object& weights,
                             const py::object& where, const py::object& y,
                             const std::vector<int>& axes, bool) {
  const Array a = array_of(x), b = array_of(y);
  check_rank(a.operand, "x");
  const Weighting weighting(weights, where, a.operand);
  const Reduced reduced(axes, a.operand.ndim);
  check_kept(b.operand, a.operand, reduced.axis, true, "y");
  if (is_empty(a.operand) || is_empty(b.operand)) return 0;
  return for_dtype(a.dtype, [&](auto element) {
    using T = decltype(element);
    return weighting.given()
               ? weighted_workspace<T>(a.operand, weighting.found(), b.operand, reduced.axis)
               : moments_workspace<T>(a.operand, b.operand, reduced.axis);
  });
}

void py_moments(const py::object& x, const py::object& weights, const py::object& where,
                const py::object& mean, const py::object& low, const py::object& second,
                const py::object& count, const std::vector<int>& axes, int of_m2, double correction,
                bool skips, const std::optional<std::string>&, const py::object& workspace,
                uintptr_t stream) {
  const Array a = array_of(x);
  const Weighting weighting(weights, where, a.operand);
  const Optional b(mean), c(low), d(second), e(count);
  check(a, "x");
  check_index(of_m2, kOfM2, "of_m2");
  const Reduced reduced(axes, a.operand.ndim);
  const Optional& y = b.given ? b : d.given ? d : e;
  if (!y.given) refuse("mean, second or count must be an array");
  if (of_m2 == kTotal && !weighting.given()) refuse("a total must be of weighted terms");
  for (const Optional* result : {&b, &c, &d, &e}) {
    if (!result->given) continue;
    check(result->operand, result->dtype, "mean, low, second or count");
    check_kept(result->operand, a.operand, reduced.axis, true, "mean, low, second or count");
    bool alike = result->dtype == y.dtype;
    for (int i = 0; i < a.operand.ndim; ++i)
      alike &= y.operand.shape[i] == 1 || byte_stride(result->operand, i, item_size(y.dtype)) ==
                                              byte_stride(y.operand, i, item_size(y.dtype));
    if (!alike) refuse("mean, low, second and count must have one dtype and the same strides");
  }
  if (is_empty(a.operand)) return;
  const MomentOutputs outputs{b.operand, c.operand,   d.operand,  e.operand,
                              y.dtype,   OfM2(of_m2), correction, skips};
  const Workspace scratch(workspace);
  on_device(a, [&](auto element) {
    using T = decltype(element);
    if (weighting.given()) {
      const Weights of = weighting.found();
      void* memory = scratch.of(weighted_workspace<T>(a.operand, of, y.operand, reduced.axis));
      weighted_moments<T>(a.operand, of, outputs, reduced.axis, memory, stream_of(stream));
      return;
    }
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

void py_statistic_backward(const py::object& dy, const py::object& slope, const py::object& x,
                           const py::object& mean, const py::object& low, const py::object& dx,
                           bool skips, bool accumulate, uintptr_t stream) {
  const Array a = array_of(dx), b = array_of(slope);
  const Optional c(mean), d(low);
  check(a, "dx");
  check_like(array_of(dy), a, "dy");
  check_like(array_of(x), a, "x");
  const bool is_narrow = item_size(a.dtype) == 2;  // then slope and mean are in double
  const int wide = is_narrow ? kF64 : a.dtype;
  check(b, "slope");
  check_shape(b.operand, a.operand, "slope");
  bool fits = b.dtype == wide && d.given == (c.given && !is_narrow);
  if (c.given) {
    check(c.operand, c.dtype, "mean");
    check_shape(c.operand, a.operand, "mean");
    fits &= c.dtype == wide;
    for (int i = 0; i < a.operand.ndim && is_narrow; ++i)
      fits &= a.operand.shape[i] == 1 || byte_stride(c.operand, i, sizeof(double)) ==
                                             byte_stride(b.operand, i, sizeof(double));
  }
  if (!fits) refuse("slope, mean and low must be of the dtypes and strides that dx asks for");
  check_if_like(low, a, "low");
  if (is_empty(a.operand)) return;
  const Operand arrays[] = {
      array_of(dy).operand, b.operand, array_of(x).operand, c.operand, d.operand, a.operand};
  on_device(a, [&](auto element) {
    statistic_backward<decltype(element)>(arrays, skips, accumulate, stream_of(stream));
  });
}

void py_weighted_gradient(const py::object& dy, const py::object& slope, const py::object& x,
                          const py::object& weights, const py::object& where,
                          const py::object& mean, const py::object& to, bool of_weights, bool skips,
                          bool accumulate, uintptr_t stream) {
  const Array a = array_of(x), b = array_of(to), c = array_of(dy), d = array_of(slope);
  const Weighting weighting(weights, where, a.operand);
  const Optional e(mean);
  check(a, "x");
  for (const Array* other : {&b, &c, &d}) {
    check(*other, "to, dy or slope");
    check_shape(other->operand, a.operand, "to, dy or slope");
  }
  if (of_weights && !e.given) refuse("mean must be given");
  if (d.dtype != kF64) refuse("slope must have dtype float64");
  if (e.given) {
    check(e.operand, e.dtype, "mean");
    check_shape(e.operand, a.operand, "mean");
    bool alike = e.dtype == kF64;
    for (int i = 0; i < a.operand.ndim; ++i)
      alike &= a.operand.shape[i] == 1 || byte_stride(e.operand, i, sizeof(double)) ==
                                              byte_stride(d.operand, i, sizeof(double));
    if (!alike) refuse("mean must have the dtype and the strides of slope");
  }
  if (is_empty(a.operand)) return;
  const WeightedArrays arrays = {b.operand,
                                 c.operand,
                                 d.operand,
                                 a.operand,
                                 weighting.weights.operand,
                                 weighting.where.operand,
                                 e.operand};
  const int dtypes[] = {b.dtype, c.dtype, d.dtype, a.dtype, weighting.weights.dtype, kBool, kF64};
  on_device(a, [&](auto element) {
    weighted_gradient<decltype(element)>(arrays, dtypes, of_weights, skips, accumulate,
                                         stream_of(stream));
  });
}

}  // namespace

void bind_moments(py::module_& m) {
  m.def("moments_workspace", py_moments_workspace, "Bytes of scratch that `moments` needs.");
  m.def("moments", py_moments,
        "mean OUT, low OUT, second OUT = what of_m2 says, count OUT, of x IN over axes; each or "
        "None.");
  m.def("weighted_gradient", py_weighted_gradient,
        "to OUT, or IN/OUT +=, = the gradient of a statistic for x, or for the weights.");
  m.def("statistic_backward", py_statistic_backward,
        "dx OUT = slope dy (x - mean), without a mean slope dy, or dx IN/OUT += of the same.");
  m.def("moments_backward", py_moments_backward,
        "dx OUT = share dmean + scale (x - mean) dsecond, or dx IN/OUT += of the same.");
}

}  // namespace fastact
