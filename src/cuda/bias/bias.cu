// Bias and activation in one pass: y = f(x + bias + residual), and its gradients with dbias.
//
// Dense arrays of one layout are outer x channels x inner to the kernels, whatever their rank. The
// forward is the map of core/elementwise.cuh; a vector knows from its index which channels it
// meets. The backward reads dy, x and the residual once, writes dx, and sums dx by channel in
// double:
//
//   inner > 1    a block takes a chunk of one channel's vectors                  (NCHW)
//   inner = 1    a block takes a tile of channels over a chunk of rows, and adds its rows in shared
//                memory by a tree                                                (dense, NHWC)
//
// At most kMaxChunks partial sums per channel are added by one finishing kernel, in an order that
// depends on the shape alone. Strided arrays go element by element through the same two steps.
//
// The activation is chosen at run time, by one call per vector. Why, and why one vector of each
// input is in flight: docs/design/cuda.md, "Bias and activation".
//
// Bytes moved: x, residual and y once; dy, x, residual and dx once.
#include "cuda/bias/dense.cuh"
#include "cuda/bias/strided.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kChunkVecs = 2048;  // of a channel
constexpr int64_t kChunkRows = 64;
constexpr int64_t kManyBlocks = 1024;

struct Plan {
  Layout layout;
  Chunks chunks;
  int64_t segment_vecs, vecs;
  ChannelRows rows;
};

// arrays: dy, x, dx and the residual, if any, in any order but dx last.
template <class T>
Plan plan_backward(const Operand* arrays, int count, int axis) {
  constexpr int64_t kSize = Vec<T>::kSize;
  Plan plan{};
  plan.layout = layout_of(arrays, count, axis, sizeof(T));
  const Layout& layout = plan.layout;
  if (!layout.dense) {
    cut(&plan.chunks, layout.outer * layout.inner, kChunkVecs);
  } else if (layout.inner > 1 || layout.channels == 1) {
    plan.segment_vecs = ceil_div(layout.inner, kSize);
    plan.vecs = plan.segment_vecs * layout.outer;
    cut(&plan.chunks, plan.vecs, kChunkVecs);
  } else {
    plan.rows = rows_of<T>(layout.channels, layout.outer, kThreads);
    const ChannelRows& rows = plan.rows;
    const int64_t most = std::max<int64_t>(1, kManyBlocks / rows.tiles);
    cut(&plan.chunks, rows.rows,
        std::max<int64_t>(kChunkRows * std::max(1, rows.ty / 8), rows.rows / most));
  }
  return plan;
}

Fused fuse(int which, const double* parameters, const Operand& bias, int bias_dtype,
           const Layout& layout) {
  Fused fused{};
  fused.which = which;
  std::copy(parameters, parameters + kMaxParameters, fused.parameters);
  fused.bias = bias.data;
  fused.bias_dtype = bias_dtype;
  fused.bias_stride = byte_stride(bias, 0, item_size(bias_dtype));
  fused.channels = layout.channels;
  fused.inner = layout.inner;
  return fused;
}

Strided strided(const Operand* const (&arrays)[kRoles], int axis, int64_t item) {
  const Operand& out = *arrays[kOut];
  Strided made{};
  made.size = 1;
  for (int k = 0; k < kRoles; ++k) {
    made.data[k] = arrays[k] ? arrays[k]->data : nullptr;
    made.channel_stride[k] = arrays[k] ? byte_stride(*arrays[k], axis, item) : 0;
  }
  for (int i = 0; i < out.ndim; ++i) {
    if (i == axis || out.shape[i] == 1) continue;
    made.length[made.count] = out.shape[i];
    made.size *= out.shape[i];
    for (int k = 0; k < kRoles; ++k)
      made.stride[k][made.count] = arrays[k] ? byte_stride(*arrays[k], i, item) : 0;
    ++made.count;
  }
  return made;
}

}  // namespace

template <class T>
void bias_act_forward(int which, const Operand& x, const Operand& bias, int bias_dtype,
                      const Operand* residual, const Operand& y, int axis, const double* parameters,
                      cudaStream_t stream) {
  const Operand arrays[] = {x, residual ? *residual : x, y};
  const Layout layout = layout_of(arrays, 3, axis, sizeof(T));
  const Fused fused = fuse(which, parameters, bias, bias_dtype, layout);
  if (!layout.dense) {
    const Operand* const roles[kRoles] = {nullptr, &x, residual, &y};
    const int64_t n = layout.channels * layout.outer * layout.inner;
    launch(forward_strided<T>, {ceil_div(n, kThreads), kThreads}, stream,
           strided(roles, axis, sizeof(T)), fused);
    return;
  }
  ElementwisePlan plan;
  if (residual) {
    plan_elementwise(&plan, sizeof(T), 3, arrays);
    run_contiguous<T, 2, false>(plan, false, BiasForward<T, 2>{fused}, stream);
  } else {
    const Operand two[] = {x, y};
    plan_elementwise(&plan, sizeof(T), 2, two);
    run_contiguous<T, 1, false>(plan, false, BiasForward<T, 1>{fused}, stream);
  }
}

template <class T>
int64_t bias_act_workspace(const Operand& x, int axis) {
  if (is_empty(x)) return 0;
  // What the chunks are does not depend on the strides of dy, dx and residual, nor on those of x
  // beyond their order; the workspace is the most that any layout takes.
  const Operand arrays[] = {x, x, x};
  Plan plan = plan_backward<T>(arrays, 3, axis);
  int64_t most = plan.chunks.count;
  cut(&plan.chunks, plan.layout.outer * plan.layout.inner, kChunkVecs);
  most = std::max(most, plan.chunks.count);
  return plan.layout.channels * most * int64_t(sizeof(double));
}

template <class T>
void bias_act_backward(int which, const Operand& dy, const Operand& x, const Operand& bias,
                       int bias_dtype, const Operand* residual, const Operand& dx,
                       const Operand& dbias, int axis, const double* parameters, bool accumulate_dx,
                       bool accumulate_dbias, void* workspace, cudaStream_t stream) {
  const auto finish = [&](const double* partials, int64_t channels, int64_t chunks) {
    for_dtype(bias_dtype, [&](auto element) {
      finish_partials<decltype(element)>(partials, channels, chunks, dbias.data,
                                         byte_stride(dbias, 0, sizeof(element)), accumulate_dbias,
                                         stream);
    });
  };
  if (is_empty(x)) return finish(nullptr, x.shape[axis], 0);  // sums of nothing

  const Operand arrays[] = {dy, x, residual ? *residual : x, dx};
  Plan plan = plan_backward<T>(arrays, 4, axis);
  const Layout& layout = plan.layout;
  const Fused fused = fuse(which, parameters, bias, bias_dtype, layout);
  plan.chunks.partials = static_cast<double*>(workspace);
  plan.chunks.accumulate = accumulate_dx;
  const auto blocks = [](int64_t tasks) { return std::min(tasks, kMaxBlocks); };

  if (!layout.dense) {
    const Operand* const roles[kRoles] = {&dy, &x, residual, &dx};
    launch(backward_strided<T>, {blocks(layout.channels * plan.chunks.count), kThreads}, stream,
           strided(roles, axis, sizeof(T)), fused, plan.chunks);
  } else {
    Dense<T> dense{};
    dense.dy = reinterpret_cast<const T*>(dy.data);
    dense.x = reinterpret_cast<const T*>(x.data);
    dense.residual = residual ? reinterpret_cast<const T*>(residual->data) : nullptr;
    dense.dx = reinterpret_cast<T*>(dx.data);
    dense.n = layout.channels * layout.outer * layout.inner;
    const auto address = [](const T* p) { return reinterpret_cast<uintptr_t>(p); };
    const uintptr_t bits =
        address(dense.dx) | address(dense.dy) | address(dense.x) | address(dense.residual);
    const bool rows = plan.vecs == 0;
    const int64_t pitch = (rows ? plan.rows.width : layout.inner) * int64_t(sizeof(T));
    const bool one_segment = !rows && layout.outer * layout.channels == 1;
    const bool aligned = bits % kVecBytes == 0 && (pitch % kVecBytes == 0 || one_segment);
    dense.windows = dense.dx != dense.dy && dense.dx != dense.x && dense.dx != dense.residual;
    if (rows)
      launch(backward_rows<T>, {blocks(plan.rows.tiles * plan.chunks.count), kThreads}, stream,
             dense, fused, plan.chunks, plan.rows, aligned);
    else
      launch(backward_channels<T>, {blocks(layout.channels * plan.chunks.count), kThreads}, stream,
             dense, fused, plan.chunks, plan.segment_vecs, plan.vecs, aligned);
  }
  finish(plan.chunks.partials, layout.channels, plan.chunks.count);
}

using Storage = FASTACT_STORAGE;
template void bias_act_forward<Storage>(int, const Operand&, const Operand&, int, const Operand*,
                                        const Operand&, int, const double*, cudaStream_t);
template int64_t bias_act_workspace<Storage>(const Operand&, int);
template void bias_act_backward<Storage>(int, const Operand&, const Operand&, const Operand&, int,
                                         const Operand*, const Operand&, const Operand&, int,
                                         const double*, bool, bool, void*, cudaStream_t);

FASTACT_END_NAMESPACE
