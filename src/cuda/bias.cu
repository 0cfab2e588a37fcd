// Bias and activation in one pass: y = f(x + bias + residual), and its gradients with dbias.
//
// Arrays without gaps, of one layout, are outer x channels x inner to the kernels, whatever the
// rank. The forward is the map of map.cuh; a pack knows from its index which channels it meets.
// The backward reads dy, x and the residual once, writes dx, and adds dx up by channel in double:
//
//   inner > 1    a block takes a chunk of one channel's packs                    (NCHW)
//   inner = 1    a block takes a tile of channels over a chunk of rows, and folds its rows in
//                shared memory by a tree                                         (dense, NHWC)
//
// Partials, at most kMaxChunks a channel, meet in one finishing kernel, in an order that depends on
// the shape alone. Anything strided goes element by element through the same two steps.
//
// The activation is chosen at run time, in one function that is called for a pack: a call costs
// some 30 instructions a pack (4 an element in bfloat16, of the 27 to 41 that hide behind memory),
// where a kernel for each activation, layout and direction would multiply the build by 25. A thread
// has one pack of each input in flight: the registers that more would need are worth more as
// threads, of which 1024 with 2 packs each keep 32 KiB in flight on a multiprocessor.
//
// Bytes moved: x, residual and y once; dy, x, residual and dx once.
#include "../common/activations.h"
#include "kernels.h"
#include "map.cuh"
#include "reduce.cuh"
#include "sums.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunkPacks = 2048;  // of a channel
constexpr int64_t kChunkRows = 64;
constexpr int64_t kManyBlocks = 1024;
constexpr int64_t kMaxChunks = 1024;

// The activation, and the bias in its own dtype.
struct Fused {
  int which;
  double parameters[kMaxParameters];
  const char* bias;  // IN, channels
  int bias_dtype;
  int64_t bias_stride;  // bytes
  int64_t channels, inner;
};

template <class T>
FASTACT_DEVICE_CALL Wide<T> activate(int which, const double* parameters, Wide<T> z) {
  switch (which) {
#define FASTACT_CASE(name, A)                                              \
  case k_##name: {                                                         \
    const A<Compute<T>, kApproximate<T>> activation(parameters);           \
    _Pragma("unroll") for (int j = 0; j < Pack<T>::kSize; ++j) z.lane[j] = \
        activation.forward(z.lane[j]);                                     \
    break;                                                                 \
  }
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  return z;
}

template <class T>
FASTACT_DEVICE_CALL Wide<T> slope_at(int which, const double* parameters, Wide<T> z) {
  switch (which) {
#define FASTACT_CASE(name, A)                                              \
  case k_##name: {                                                         \
    const A<Compute<T>, kApproximate<T>> activation(parameters);           \
    _Pragma("unroll") for (int j = 0; j < Pack<T>::kSize; ++j) z.lane[j] = \
        activation.derivative(z.lane[j]);                                  \
    break;                                                                 \
  }
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  return z;
}

template <class T>
FASTACT_DEVICE Compute<T> bias_of(const Fused& fused, int64_t channel) {
  const char* p = fused.bias + channel * fused.bias_stride;
  if (fused.bias_dtype == kF64) return Compute<T>(load(reinterpret_cast<const double*>(p)));
  if (fused.bias_dtype == kF32) return Compute<T>(load(reinterpret_cast<const float*>(p)));
  return Compute<T>(widen(load(reinterpret_cast<const T*>(p))));
}

// Adds the bias to the elements [index, index + pack) of a whole array.
template <class T, class B>
FASTACT_DEVICE void add_bias_as(const Fused& fused, int64_t index, Wide<T>& z) {
  const int64_t row = fused.inner == 1 ? index : quotient(index, fused.inner);
  int64_t left = fused.inner - (index - row * fused.inner);  // elements of the same channel
  int64_t channel = row - quotient(row, fused.channels) * fused.channels;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    const char* p = fused.bias + channel * fused.bias_stride;
    z.lane[j] += Compute<T>(widen(load(reinterpret_cast<const B*>(p))));
    if (--left > 0) continue;
    left = fused.inner;
    channel = channel + 1 == fused.channels ? 0 : channel + 1;
  }
}
template <class T>
FASTACT_DEVICE void add_bias(const Fused& fused, int64_t index, Wide<T>& z) {
  if (fused.bias_dtype == kF64)
    add_bias_as<T, double>(fused, index, z);
  else if (fused.bias_dtype == kF32)
    add_bias_as<T, float>(fused, index, z);
  else
    add_bias_as<T, T>(fused, index, z);
}

template <class T, int inputs>
struct BiasForward : Fused {
  static constexpr int kTurns = 1;  // a call leaves few registers to what would be in flight
  FASTACT_DEVICE Wide<T> pack(const Wide<T> (&in)[inputs], int64_t index) const {
    Wide<T> z = in[0];
    add_bias<T>(*this, index, z);
    if constexpr (inputs == 2) {
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) z.lane[j] += in[1].lane[j];
    }
    return activate<T>(which, parameters, z);
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[inputs], int64_t index) const {
    Wide<T> z{};
    z.lane[0] = in[0] + bias_of<T>(*this, index / inner % channels);
    if constexpr (inputs == 2) z.lane[0] += in[1];
    return activate<T>(which, parameters, z).lane[0];
  }
};

// --- any strides: element by element ----------------------------------------------------------

enum Role { kDy, kX, kResidual, kOut, kRoles };

// All axes but the channels'.
struct Strided {
  char* data[kRoles];  // null: there is none
  int count;
  int64_t size;
  int64_t length[kMaxAxes], stride[kRoles][kMaxAxes], channel_stride[kRoles];
};

struct Address {
  int64_t at[kRoles];
};

FASTACT_DEVICE Address locate(const Strided& arrays, int64_t index, int64_t channel) {
  Address address;
#pragma unroll
  for (int k = 0; k < kRoles; ++k) address.at[k] = channel * arrays.channel_stride[k];
  for (int axis = arrays.count - 1; axis >= 0; --axis) {
    const int64_t rest = index / arrays.length[axis];
    const int64_t here = index - rest * arrays.length[axis];
#pragma unroll
    for (int k = 0; k < kRoles; ++k) address.at[k] += here * arrays.stride[k][axis];
    index = rest;
  }
  return address;
}

template <class T>
FASTACT_DEVICE Compute<T> read(const Strided& arrays, const Address& address, Role role) {
  return widen(load(reinterpret_cast<const T*>(arrays.data[role] + address.at[role])));
}

template <class T>
FASTACT_DEVICE Compute<T> preactivation(const Strided& arrays, const Fused& fused,
                                        const Address& address, int64_t channel) {
  const Compute<T> z = read<T>(arrays, address, kX) + bias_of<T>(fused, channel);
  return arrays.data[kResidual] ? z + read<T>(arrays, address, kResidual) : z;
}

template <class T>
FASTACT_KERNEL(kThreads)
void forward_strided(FASTACT_GRID_CONSTANT const Strided arrays,
                     FASTACT_GRID_CONSTANT const Fused fused) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= arrays.size * fused.channels) return;
  const int64_t index = i / fused.channels, channel = i - index * fused.channels;
  const Address address = locate(arrays, index, channel);
  Wide<T> z{};
  z.lane[0] = preactivation<T>(arrays, fused, address, channel);
  z = activate<T>(fused.which, fused.parameters, z);
  store(reinterpret_cast<T*>(arrays.data[kOut] + address.at[kOut]), narrow<T>(z.lane[0]));
}

struct Chunks {
  int64_t size, count;  // units of each (elements, packs or rows), and how many
  double* partials;     // OUT, channels x count
  bool accumulate;      // dx IN/OUT: added to
};

template <class T>
FASTACT_DEVICE void put_gradient(T* dx, Compute<T> value, bool accumulate) {
  store(dx, narrow<T>(accumulate ? widen(load(dx)) + value : value));
}

template <class T>
FASTACT_KERNEL(kThreads)
void backward_strided(FASTACT_GRID_CONSTANT const Strided arrays,
                      FASTACT_GRID_CONSTANT const Fused fused, const Chunks chunks) {
  for (int64_t task = blockIdx.x; task < fused.channels * chunks.count; task += gridDim.x) {
    const int64_t channel = task / chunks.count, begin = (task % chunks.count) * chunks.size;
    const int64_t end = smaller(begin + chunks.size, arrays.size);
    double total = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const Address address = locate(arrays, i, channel);
      Wide<T> z{};
      z.lane[0] = preactivation<T>(arrays, fused, address, channel);
      z = slope_at<T>(fused.which, fused.parameters, z);
      const Compute<T> dx = read<T>(arrays, address, kDy) * z.lane[0];
      put_gradient(reinterpret_cast<T*>(arrays.data[kOut] + address.at[kOut]), dx,
                   chunks.accumulate);
      total += double(dx);
    }
    total = block_sum<kThreads>(total);
    if (threadIdx.x == 0) store(chunks.partials + task, total);
    __syncthreads();
  }
}

// --- arrays without gaps ------------------------------------------------------------------------

template <class T>
struct Dense {
  const T *dy, *x, *residual;  // IN; residual may be null
  T* dx;                       // OUT, or IN/OUT with accumulate; it may be dy or x
  int64_t n;                   // elements
  // Windows may read what neighbours hold: not so where dx is an input, which they overwrite.
  bool windows;
};

// dx of the `valid` elements [index, index + pack), those beyond being 0.
template <class T>
FASTACT_DEVICE Wide<T> gradient(const Dense<T>& arrays, const Fused& fused, int64_t index,
                                int valid, const Wide<T>& bias, bool aligned, bool accumulate) {
  const bool whole = valid >= Pack<T>::kSize;
  const auto get = [&](const T* p) {
    if (aligned && whole) return load_pack(p + index);
    if (arrays.windows && whole) return load_window(p + index, p, p + arrays.n);
    return load_some(p + index, valid);
  };
  const Wide<T> dy = widen_pack(get(arrays.dy));
  Wide<T> z = widen_pack(get(arrays.x));
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) z.lane[j] += bias.lane[j];
  if (arrays.residual) {
    const Wide<T> residual = widen_pack(get(arrays.residual));
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) z.lane[j] += residual.lane[j];
  }
  Wide<T> dx = slope_at<T>(fused.which, fused.parameters, z);
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) dx.lane[j] = j < valid ? dy.lane[j] * dx.lane[j] : 0;

  Wide<T> result = dx;
  if (accumulate) {
    const Wide<T> before = widen_pack(aligned && whole ? load_pack(arrays.dx + index)
                                                       : load_some(arrays.dx + index, valid));
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) result.lane[j] = before.lane[j] + dx.lane[j];
  }
  const Pack<T> narrow = narrow_pack<T>(result);
  if (aligned && whole)
    store_pack(arrays.dx + index, narrow);
  else
    store_some(arrays.dx + index, narrow, valid);
  return dx;
}

// inner > 1: pieces of `inner` elements of one channel.
template <class T>
FASTACT_KERNEL(kThreads)
void backward_channels(const Dense<T> arrays, FASTACT_GRID_CONSTANT const Fused fused,
                       const Chunks chunks, const int64_t piece_packs, const int64_t packs,
                       const bool aligned) {
  constexpr int kSize = Pack<T>::kSize;
  for (int64_t task = blockIdx.x; task < fused.channels * chunks.count; task += gridDim.x) {
    const int64_t channel = task / chunks.count, begin = (task % chunks.count) * chunks.size;
    const int64_t end = smaller(begin + chunks.size, packs);
    Wide<T> bias;
    const Compute<T> one = bias_of<T>(fused, channel);
#pragma unroll
    for (int j = 0; j < kSize; ++j) bias.lane[j] = one;

    double total = 0;
    int64_t q = begin + threadIdx.x;
    int64_t piece = q / piece_packs, within = q - piece * piece_packs;
    const int64_t step_pieces = kThreads / piece_packs, step = kThreads % piece_packs;
    for (; q < end; q += kThreads) {
      const int64_t element = within * kSize;
      const int64_t index = (piece * fused.channels + channel) * fused.inner + element;
      const int valid = int(smaller(fused.inner - element, kSize));
      const Wide<T> dx = gradient(arrays, fused, index, valid, bias, aligned, chunks.accumulate);
      double sum = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum += double(dx.lane[j]);
      total += sum;
      piece += step_pieces;
      within += step;
      if (within >= piece_packs) within -= piece_packs, ++piece;
    }
    total = block_sum<kThreads>(total);
    if (threadIdx.x == 0) store(chunks.partials + task, total);
    __syncthreads();
  }
}

// inner = 1: rows of channels. Rows that are no whole number of packs are folded, as many as make
// one, into rows of `width` elements; a lane always meets the same channel.
struct Rows {
  int64_t width, rows, tiles;
  int tx, ty;
};

template <class T>
FASTACT_KERNEL(kThreads)
void backward_rows(const Dense<T> arrays, FASTACT_GRID_CONSTANT const Fused fused,
                   const Chunks chunks, const Rows shape, const bool aligned) {
  constexpr int kSize = Pack<T>::kSize;
  FASTACT_SHARED(double, block, kThreads* kSize);
  const int tx = int(threadIdx.x) % shape.tx, ty = int(threadIdx.x) / shape.tx;
  for (int64_t task = blockIdx.x; task < shape.tiles * chunks.count; task += gridDim.x) {
    const int64_t chunk = task / shape.tiles, tile = task - chunk * shape.tiles;
    const int64_t column = (tile * shape.tx + tx) * kSize;
    const int64_t end = smaller((chunk + 1) * chunks.size, shape.rows);
    double total[kSize] = {};
    if (column < shape.width && ty < shape.ty) {
      Wide<T> bias{};
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (column + j < shape.width)
          bias.lane[j] = bias_of<T>(fused, (column + j) % fused.channels);
      for (int64_t row = chunk * chunks.size + ty; row < end; row += shape.ty) {
        const int64_t index = row * shape.width + column;
        const int64_t left = smaller(shape.width - column, arrays.n - index);
        if (left <= 0) break;
        const Wide<T> dx = gradient(arrays, fused, index, int(smaller(left, kSize)), bias, aligned,
                                    chunks.accumulate);
#pragma unroll
        for (int j = 0; j < kSize; ++j) total[j] += double(dx.lane[j]);
      }
    }
    fold_rows<T>(block, total, tx, ty, shape.tx, shape.ty);

    const int64_t here = tile * shape.tx * kSize;
    const int columns = int(smaller(shape.tx * kSize, shape.width - here));
    const int outputs = int(smaller(columns, fused.channels));
    for (int c = int(threadIdx.x); c < outputs; c += kThreads) {
      double sum = 0;
      for (int at = c; at < columns; at += outputs) sum += double(block[at]);
      store(chunks.partials + (here + c) * chunks.count + chunk, sum);
    }
    __syncthreads();
  }
}

// --- the host's side ----------------------------------------------------------------------------

void cut(Chunks* chunks, int64_t n, int64_t least) {
  chunks->size = std::max<int64_t>(least, ceil_div(n, kMaxChunks));
  chunks->count = std::max<int64_t>(1, ceil_div(n, chunks->size));
}

// How the arrays lie together: outer x channels x inner if all are without gaps in one order.
struct Layout {
  bool dense;
  int64_t channels, outer, inner;
};

Layout layout_of(const Operand* arrays, int count, int axis, int64_t item) {
  const Operand& last = arrays[count - 1];
  Layout layout{true, last.shape[axis], 1, 1};
  for (int i = 0; i < last.ndim; ++i) {
    if (last.shape[i] == 1) continue;
    const int64_t stride = byte_stride(last, i, item);
    int64_t inside = item;  // elements whose stride is smaller: what a step of this axis skips
    for (int k = 0; k < last.ndim; ++k)
      if (last.shape[k] != 1 && byte_stride(last, k, item) < stride) inside *= last.shape[k];
    for (int k = 0; k < count; ++k) layout.dense &= byte_stride(arrays[k], i, item) == inside;
    if (i == axis) continue;
    const bool is_outer = last.shape[axis] == 1 || stride > byte_stride(last, axis, item);
    (is_outer ? layout.outer : layout.inner) *= last.shape[i];
  }
  return layout;
}

struct Plan {
  Layout layout;
  Chunks chunks;
  int64_t piece_packs, packs;
  Rows rows;
};

// arrays: dy, x, dx and the residual, if any, in any order but dx last.
template <class T>
Plan plan_backward(const Operand* arrays, int count, int axis) {
  constexpr int64_t kSize = Pack<T>::kSize;
  Plan plan{};
  plan.layout = layout_of(arrays, count, axis, sizeof(T));
  const Layout& layout = plan.layout;
  if (!layout.dense) {
    cut(&plan.chunks, layout.outer * layout.inner, kChunkPacks);
  } else if (layout.inner > 1 || layout.channels == 1) {
    plan.piece_packs = ceil_div(layout.inner, kSize);
    plan.packs = plan.piece_packs * layout.outer;
    cut(&plan.chunks, plan.packs, kChunkPacks);
  } else {
    int64_t folded = 1;
    if (layout.channels % kSize != 0 && layout.channels <= kWarp) {
      folded = kSize;
      while (layout.channels * folded / 2 % kSize == 0) folded /= 2;
    }
    Rows& rows = plan.rows;
    rows.width = layout.channels * folded;
    rows.rows = ceil_div(layout.outer, folded);
    const int64_t packs = ceil_div(rows.width, kSize);
    rows.tx = folded > 1 ? int(packs) : power_of_two_from(packs, kWarp);
    rows.ty = kThreads / rows.tx;
    rows.tiles = ceil_div(packs, rows.tx);
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
  Walk walk;
  if (residual) {
    plan_walk(&walk, sizeof(T), 3, arrays);
    run_map<T, 2, false>(walk, BiasForward<T, 2>{fused}, stream);
  } else {
    const Operand two[] = {x, y};
    plan_walk(&walk, sizeof(T), 2, two);
    run_map<T, 1, false>(walk, BiasForward<T, 1>{fused}, stream);
  }
}

template <class T>
int64_t bias_act_workspace(const Operand& x, int axis) {
  // What the chunks are does not depend on the strides of dy, dx and residual, nor on those of x
  // beyond their order; the most that any layout takes is asked for.
  const Operand arrays[] = {x, x, x};
  Plan plan = plan_backward<T>(arrays, 3, axis);
  int64_t most = plan.chunks.count;
  cut(&plan.chunks, plan.layout.outer * plan.layout.inner, kChunkPacks);
  most = std::max(most, plan.chunks.count);
  return plan.layout.channels * most * int64_t(sizeof(double));
}

template <class T>
void bias_act_backward(int which, const Operand& dy, const Operand& x, const Operand& bias,
                       int bias_dtype, const Operand* residual, const Operand& dx,
                       const Operand& dbias, int axis, const double* parameters, bool accumulate,
                       void* workspace, cudaStream_t stream) {
  const Operand arrays[] = {dy, x, residual ? *residual : x, dx};
  Plan plan = plan_backward<T>(arrays, 4, axis);
  const Layout& layout = plan.layout;
  const Fused fused = fuse(which, parameters, bias, bias_dtype, layout);
  plan.chunks.partials = static_cast<double*>(workspace);
  plan.chunks.accumulate = accumulate;
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
    const bool rows = plan.packs == 0;
    const int64_t pitch = (rows ? plan.rows.width : layout.inner) * int64_t(sizeof(T));
    const bool one_piece = !rows && layout.outer * layout.channels == 1;
    const bool aligned = bits % kPackBytes == 0 && (pitch % kPackBytes == 0 || one_piece);
    dense.windows = dense.dx != dense.dy && dense.dx != dense.x && dense.dx != dense.residual;
    if (rows)
      launch(backward_rows<T>, {blocks(plan.rows.tiles * plan.chunks.count), kThreads}, stream,
             dense, fused, plan.chunks, plan.rows, aligned);
    else
      launch(backward_channels<T>, {blocks(layout.channels * plan.chunks.count), kThreads}, stream,
             dense, fused, plan.chunks, plan.piece_packs, plan.packs, aligned);
  }
  for_dtype(bias_dtype, [&](auto element) {
    finish_partials<decltype(element)>(plan.chunks.partials, layout.channels, plan.chunks.count,
                                       dbias.data, byte_stride(dbias, 0, sizeof(element)),
                                       accumulate, stream);
  });
}

using Storage = FASTACT_STORAGE;
template void bias_act_forward<Storage>(int, const Operand&, const Operand&, int, const Operand*,
                                        const Operand&, int, const double*, cudaStream_t);
template int64_t bias_act_workspace<Storage>(const Operand&, int);
template void bias_act_backward<Storage>(int, const Operand&, const Operand&, const Operand&, int,
                                         const Operand*, const Operand&, const Operand&, int,
                                         const double*, bool, void*, cudaStream_t);

FASTACT_END_NAMESPACE
