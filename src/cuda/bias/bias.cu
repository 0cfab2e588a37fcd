// Bias and activation in one pass: y = f(x + bias + residual), and its gradients with dbias.
//
// Dense arrays of one layout are outer x channels x inner to the kernels, whatever their rank. The
// forward is the map of core/elementwise.cuh; a vector knows from its index which channels it
// meets, and an element of strided arrays is told its channel. The backward reads dy, x and the
// residual once, writes dx, and sums dx by channel in double: core/channel_sums.cuh. At most
// kMaxChunks partial sums per channel are added by one finishing kernel.
//
// The activation is chosen at run time, by one call per vector. Why, and why one vector of each
// input is in flight: docs/design/cuda.md, "Bias and activation".
//
// Bytes moved: x, residual and y once; dy, x, residual and dx once.
#include "cuda/bias/fused.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

Fused fuse(int which, const double* parameters, const Operand& bias, int bias_dtype,
           const Layout& layout) {
  return {chosen_activation(which, parameters),
          {bias.data, byte_stride(bias, 0, item_size(bias_dtype)), bias_dtype},
          layout.channels,
          layout.dense ? layout.inner : 1};
}

template <class T, int inputs>
void forward(const Operand* arrays, const Layout& layout, const Fused& fused, int axis,
             cudaStream_t stream) {
  const BiasForward<T, inputs> f{fused};
  if (!layout.dense)
    return run_indexed<T, inputs, false>(arrays, OneAxis(axis).flag, false, f, stream);
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), inputs + 1, arrays);
  run_contiguous<T, inputs, false>(plan, false, f, stream);
}

}  // namespace

template <class T>
void bias_act_forward(int which, const Operand& x, const Operand& bias, int bias_dtype,
                      const Operand* residual, const Operand& y, int axis, const double* parameters,
                      cudaStream_t stream) {
  const Operand three[] = {x, residual ? *residual : x, y}, two[] = {x, y};
  const Layout layout = layout_of(three, 3, axis, sizeof(T));
  const Fused fused = fuse(which, parameters, bias, bias_dtype, layout);
  if (residual)
    forward<T, 2>(three, layout, fused, axis, stream);
  else
    forward<T, 1>(two, layout, fused, axis, stream);
}

template <class T>
int64_t bias_act_workspace(const Operand& x, int axis) {
  if (is_empty(x)) return 0;
  // What the chunks are does not depend on the strides of dy, dx and residual, nor on those of x
  // beyond their order; the workspace is the most that any layout takes.
  const Layout layout = layout_of(&x, 1, axis, sizeof(T));
  return layout.channels * most_chunks<T>(channel_layout(layout)) * int64_t(sizeof(double));
}

template <class T>
void bias_act_backward(int which, const Operand& dy, const Operand& x, const Operand& bias,
                       int bias_dtype, const Operand* residual, const Operand& dx,
                       const Operand& dbias, int axis, const double* parameters, bool accumulate_dx,
                       bool accumulate_dbias, void* workspace, cudaStream_t stream) {
  auto* partials = static_cast<double*>(workspace);
  int64_t chunks = 0;  // of an empty x: sums of nothing
  if (!is_empty(x)) {
    const Operand arrays[] = {dy, x, residual ? *residual : x, dx};
    const Layout layout = layout_of(arrays, 4, axis, sizeof(T));
    const bool windows = dx.data != dy.data && dx.data != x.data && dx.data != arrays[2].data;
    const BiasGradient<T> f{
        fuse(which, parameters, bias, bias_dtype, layout), {}, windows, accumulate_dx};
    chunks = run_channel_sums<T>(f, {&dy, &x, residual, &dx}, channel_layout(layout),
                                 OneAxis(axis).flag, partials, stream);
  }
  for_dtype(bias_dtype, [&](auto element) {
    finish_partials<decltype(element)>(partials, x.shape[axis], chunks, dbias.data,
                                       byte_stride(dbias, 0, sizeof(element)), accumulate_dbias,
                                       stream);
  });
}

using Storage = FASTACT_STORAGE;
template void bias_act_forward<Storage>(int, const Operand&, const Operand&, int, const Operand*,
                                        const Operand&, int, const double*, cudaStream_t);
template int64_t bias_act_workspace<Storage>(const Operand&, int);
template void bias_act_backward<Storage>(int, const Operand&, const Operand&, const Operand&, int,
                                         const Operand*, const Operand&, const Operand&, int,
                                         const double*, bool, bool, void*, cudaStream_t);

FASTACT_END_NAMESPACE
