// Bias and activation in one pass: y = f(x + bias + residual), and its gradients with dbias.
//
// Dense arrays of one layout are outer x channels x inner to the kernels, whatever their rank.
// Where they are aligned and whole vectors, both directions are maps over rows (core/row_map.cuh),
// with an activation that is compiled in if it is a common one. Otherwise they are maps over
// vectors of any strides (core/strided_map.cuh), with one call of the activation a vector. The
// backward reads dy, x and the residual once, writes dx, and sums dx by channel in double. At most
// kMaxChunks partial sums per channel are added by one finishing kernel.
//
// Bytes moved: x, residual and y once; dy, x, residual and dx once.
//
// A function of a parameter of channels is computed likewise; other terms than dx are added up.
//
// dropout is the map of core/elementwise.cuh, too: a vector, or an element of strided arrays, knows
// its words from its index in C order.
#include "common/bias/call.h"
#include "cuda/bias/dropout.cuh"
#include "cuda/bias/fused.cuh"
#include "cuda/core/layout.cuh"
#include "cuda/core/native_function.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Runs visit(functor over arrays of any strides); the activation is chosen at run time.
template <template <class, class> class F, class T, class Visit>
void with_chosen(const BiasCall& call, const Visit& visit) {
  const auto run = [&](const auto& of) {
    visit(F<T, std::decay_t<decltype(of)>>{{of, vector_of(call.bias), {}, {}, {}}});
  };
  call.which < kActivations ? run(chosen_activation(call.which, call.parameters))
                            : run(ChosenFunction{call.which});
}

// Dense arrays as rows, each of one example or of several.
template <class T>
RowsOfVectors<T> rows_of(const Layout& layout) {
  const int64_t example = layout.channels * layout.inner;
  return {example, layout.outer * example};
}

// Whether arrays can be read so. `last` is the output; absent inputs are null.
template <class T, int count>
bool fit_rows(const RowsOfVectors<T>& rows, const Layout& layout, char* const (&data)[count]) {
  uintptr_t bits = 0;
  for (const char* base : data) bits |= reinterpret_cast<uintptr_t>(base);
  return layout.dense && rows.fit && bits % kVecBytes == 0;
}

// The vectors of a channel that lie together, where they are whole and fill half a block; else 0.
template <class T>
int64_t segment_of(const Layout& layout) {
  const int64_t vecs = layout.inner / Vec<T>::kSize;
  return layout.inner % Vec<T>::kSize == 0 && vecs >= kRowMapThreads / 2 ? vecs : 0;
}
template <class T>
RowGrid grid_of_sums(const Layout& layout) {
  return row_grid(rows_of<T>(layout), 1, true, segment_of<T>(layout));
}
// Whether rows can be added up by channel: each column is one, or channels are long segments, of
// enough rows to read several at a time. Not for sums in float64, whose bits would show by their
// order whether arrays are aligned; other sums are rounded after that.
template <class T>
bool sums_fit(const BiasCall& call, const Layout& layout) {
  if (sizeof(T) == sizeof(double) || vector_of(call.dbias).dtype == kF64) return false;
  return layout.inner == 1 || (segment_of<T>(layout) > 0 && layout.outer >= kRowMapRows &&
                               grid_of_sums<T>(layout).partials <= kMaxChunks);
}

// Runs F, a functor over rows; data: its inputs, then the output. Returns the number of partial
// sums of a channel.
template <template <class, class> class F, class T, int count>
int64_t run_fused_rows(const BiasCall& call, const Layout& layout, const RowsOfVectors<T>& rows,
                       char* const (&data)[count], bool accumulate, double* partials,
                       cudaStream_t stream) {
  const NumberVector bias = vector_of(call.bias);
  int64_t made = 0;
  const auto run = [&](const auto& activation) {
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
    map.accumulate = accumulate, map.sums.partials = partials, map.sums.channels = channels;
    if (partials) map.sums.segment = uint32_t(segment_of<T>(layout));
    made = run_rows(map, rows, Functor{{activation, bias, channels, inner, by_vector}}, stream);
  };
  if (call.which < kActivations)
    with_common_activation<T>(call.which, call.parameters, run);
  else
    run(ChosenFunction{call.which});
  return made;
}

}  // namespace

template <class T>
void bias_act_forward(const BiasCall& call, cudaStream_t stream) {
  const Operand &x = call.data[BiasCall::kX], &residual = call.data[BiasCall::kResidual],
                &y = call.data[BiasCall::kOut];
  if (is_empty(x)) return;
  const Operand arrays[] = {x, residual.data ? residual : x, y};
  const Layout layout = layout_of(arrays, 3, call.axis, sizeof(T));
  const auto rows = rows_of<T>(layout);
  char* const data[] = {x.data, residual.data, y.data};
  if (fit_rows(rows, layout, data)) {
    run_fused_rows<BiasForward>(call, layout, rows, data, false, nullptr, stream);
    return;
  }
  const IndexOperand channel(y, OneAxis(call.axis).flag);
  const Operand operands[] = {x, residual, channel.operand, y};
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), 4, operands);
  with_chosen<BiasForward, T>(call,
                              [&](const auto& f) { run_strided_map<T>(plan, false, f, stream); });
}

template <class T>
int64_t bias_act_workspace(const BiasCall& call) {
  const Operand& x = call.data[BiasCall::kX];
  if (is_empty(x)) return 0;
  // The chunks do not depend on the strides of dy, dx and residual, and of x's strides they depend
  // on the order alone. The workspace is as large as any layout of the other arrays needs.
  const Layout layout = layout_of(&x, 1, call.axis, sizeof(T));
  int64_t most = most_chunks<T>(layout.channels, size_of(x));
  if (sums_fit<T>(call, layout)) most = std::max(most, grid_of_sums<T>(layout).partials);
  return layout.channels * most * int64_t(sizeof(double));
}

template <class T>
void bias_act_backward(const BiasCall& call, void* workspace, cudaStream_t stream) {
  const Operand &dy = call.data[BiasCall::kDy], &x = call.data[BiasCall::kX],
                &residual = call.data[BiasCall::kResidual], &dx = call.data[BiasCall::kOut];
  if (is_empty(call.dbias)) return;
  auto* partials = static_cast<double*>(workspace);
  int64_t chunks = 0;  // an empty x has none: sums of nothing
  if (!is_empty(x)) {
    const Operand arrays[] = {dy, x, residual.data ? residual : x, dx};
    const Layout layout = layout_of(arrays, 4, call.axis, sizeof(T));
    const auto rows = rows_of<T>(layout);
    char* const data[] = {dy.data, x.data, residual.data, dx.data};
    if (sums_fit<T>(call, layout) && fit_rows(rows, layout, data)) {
      chunks = run_fused_rows<BiasBackward>(call, layout, rows, data, call.accumulate_dx, partials,
                                            stream);
    } else {
      const IndexOperand channel(dx, OneAxis(call.axis).flag);
      const Operand operands[] = {dy, x, residual, channel.operand, dx};
      ElementwisePlan plan;
      plan_elementwise(&plan, sizeof(T), 5, operands);
      with_chosen<BiasBackward, T>(call, [&](const auto& f) {
        chunks =
            run_channel_sums<T>(&plan, layout.channels, call.accumulate_dx, f, partials, stream);
      });
    }
  }
  finish_numbers(
      {partials, vector_of(call.dbias), call.accumulate_dbias, x.shape[call.axis], chunks}, stream);
}

// inputs: x, and the residual where there are two.
template <class T, int inputs>
void drop(const DropoutCall& call, const Operand (&arrays)[inputs + 1], cudaStream_t stream) {
  const Dropped<T, inputs> f{dropout_of(call)};
  const Operand& y = arrays[inputs];
  Operand all[inputs + 2];
  std::copy(arrays, arrays + inputs + 1, all);
  all[inputs + 1] = {nullptr, y.ndim, y.shape, nullptr, 0};  // C order
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), inputs + 2, all, inputs);
  if (plan.all_contiguous())
    return run_contiguous<T, inputs, true>(plan, call.accumulate, f, stream);
  const IndexOperand index(y, nullptr);
  all[inputs] = index.operand, all[inputs + 1] = y;
  plan_elementwise(&plan, sizeof(T), inputs + 2, all);
  run_strided<T, inputs>(plan, call.accumulate, f, stream);
}

template <class T>
void dropout(const DropoutCall& call, cudaStream_t stream) {
  const Operand &x = call.data[DropoutCall::kX], &residual = call.data[DropoutCall::kResidual],
                &y = call.data[DropoutCall::kOut];
  if (is_empty(x)) return;
  if (residual.data)
    drop<T, 2>(call, {x, residual, y}, stream);
  else
    drop<T, 1>(call, {x, y}, stream);
}

using Storage = FASTACT_STORAGE;
template void dropout<Storage>(const DropoutCall&, cudaStream_t);  // for norms
const NativeFunction<bias_act_forward<Storage>> forward_call(kBiasForward);
const NativeFunction<bias_act_workspace<Storage>, bias_act_backward<Storage>> backward_call(
    kBiasBackward);
const NativeFunction<dropout<Storage>> dropout_call(kDropout);

FASTACT_END_NAMESPACE
