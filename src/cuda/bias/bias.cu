// Bias and activation in one pass: y = f(x + bias + residual), and its gradients with dbias.
//
// Dense arrays of one layout are outer x channels x inner to the kernels, whatever their rank.
// Where they are aligned and whole vectors, both directions are maps over rows (core/row_map.cuh),
// with an activation that is compiled in if it is a common one. Otherwise the forward is the map of
// core/elementwise.cuh; a vector knows from its index which channels it meets, and an element of
// strided arrays is told its channel. The backward reads dy, x and the residual once, writes dx,
// and sums dx by channel in double: core/channel_sums.cuh. There the activation is one call a
// vector. At most kMaxChunks partial sums per channel are added by one finishing kernel.
//
// Bytes moved: x, residual and y once; dy, x, residual and dx once.
#include "cuda/bias/fused.cuh"
#include "cuda/bias/rows.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

NumberVector vector_of(const Operand& bias, int dtype) {
  return {bias.data, byte_stride(bias, 0, item_size(dtype)), dtype};
}

Fused fuse(int which, const double* parameters, const Operand& bias, int bias_dtype,
           const Layout& layout) {
  return {chosen_activation(which, parameters), vector_of(bias, bias_dtype), layout.channels,
          layout.dense ? layout.inner : 1};
}

// Dense arrays as rows of an example each, or of several.
template <class T>
RowsOfVectors<T> rows_of(const Layout& layout) {
  const int64_t example = layout.channels * layout.inner;
  return {example, layout.outer * example};
}

// Whether they can be read so: `last` is the output, among the inputs those that are absent are
// null.
template <class T, int count>
bool fit_rows(const RowsOfVectors<T>& rows, const Layout& layout, char* const (&data)[count]) {
  uintptr_t bits = 0;
  for (const char* base : data) bits |= reinterpret_cast<uintptr_t>(base);
  return layout.dense && rows.fit && bits % kVecBytes == 0;
}

// Of sums: the vectors of a channel that lie together, 0 where channels come last.
template <class T>
int64_t segment_of(const Layout& layout) {
  return layout.inner > 1 ? layout.inner / Vec<T>::kSize : 0;
}
// Whether rows can be added up by channel: whole vectors of one channel, of a few tiles, in rows
// enough to read several at a time. Not in double, where the order of a sum would show whether
// arrays are aligned: sums of other types are in double, too, but rounded after that.
template <class T>
bool sums_fit(const Layout& layout) {
  constexpr int64_t kMostTiles = 64;
  if (sizeof(T) == sizeof(double)) return false;
  return layout.inner == 1 || (layout.inner % Vec<T>::kSize == 0 && layout.outer >= kRowMapRows &&
                               segment_of<T>(layout) <= kMostTiles * kRowMapThreads);
}

// Runs F, a functor over rows; data: its inputs, then the output. Returns the number of partial
// sums of a channel.
template <template <class, class> class F, class T, int count>
int64_t run_fused_rows(int which, const double* parameters, const NumberVector& bias,
                       const Layout& layout, const RowsOfVectors<T>& rows,
                       char* const (&data)[count], bool accumulate, double* partials,
                       cudaStream_t stream) {
  int64_t made = 0;
  with_common_activation<T>(which, parameters, [&](const auto& activation) {
    using Functor = F<T, std::decay_t<decltype(activation)>>;
    const int64_t columns = rows.vecs * Vec<T>::kSize;
    const Divisor channels(layout.channels, columns), inner(layout.inner, columns);
    const bool by_vector = layout.inner == 1 && rows.times == 1 && bias.dtype == kDTypeOf<T> &&
                           bias.stride == int64_t(sizeof(T)) &&
                           reinterpret_cast<uintptr_t>(bias.data) % kVecBytes == 0;
    RowMap<Functor> map{};
    std::copy(data, data + count - 1, map.in);
    for (uint32_t& pitch : map.in_pitch) pitch = rows.pitch();
    map.out[0] = data[count - 1], map.out_pitch[0] = rows.pitch();
    map.accumulate = accumulate, map.partials = partials, map.channels = channels;
    if (partials) map.segment = uint32_t(segment_of<T>(layout));
    made = run_rows(map, rows, Functor{{activation, bias, channels, inner, by_vector}}, stream);
  });
  return made;
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
  const auto rows = rows_of<T>(layout);
  char* const data[] = {x.data, residual ? residual->data : nullptr, y.data};
  if (fit_rows(rows, layout, data)) {
    run_fused_rows<BiasRowsForward>(which, parameters, vector_of(bias, bias_dtype), layout, rows,
                                    data, false, nullptr, stream);
    return;
  }
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
  // beyond their order; the workspace is the most that any layout of the others takes.
  const Layout layout = layout_of(&x, 1, axis, sizeof(T));
  int64_t most = most_chunks<T>(channel_layout(layout));
  if (sums_fit<T>(layout))
    most = std::max(most, row_grid(rows_of<T>(layout), 1, true, segment_of<T>(layout)).partials);
  return layout.channels * most * int64_t(sizeof(double));
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
    const auto rows = rows_of<T>(layout);
    char* const data[] = {dy.data, x.data, residual ? residual->data : nullptr, dx.data};
    if (sums_fit<T>(layout) && fit_rows(rows, layout, data)) {
      chunks =
          run_fused_rows<BiasRowsBackward>(which, parameters, vector_of(bias, bias_dtype), layout,
                                           rows, data, accumulate_dx, partials, stream);
    } else {
      const bool windows = dx.data != dy.data && dx.data != x.data && dx.data != arrays[2].data;
      const BiasGradient<T> f{
          fuse(which, parameters, bias, bias_dtype, layout), {}, windows, accumulate_dx};
      chunks = run_channel_sums<T>(f, {&dy, &x, residual, &dx}, channel_layout(layout),
                                   OneAxis(axis).flag, partials, stream);
    }
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
