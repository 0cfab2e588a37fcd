// The element-wise map: y[i] = f(x0[i], ..), up to three inputs, any strides; an op is a functor.
//
// Contiguous arrays: a thread takes kUnroll vectors of 16 bytes, with all loads before the first
// use. Vectors begin where y is a multiple of 16 bytes; the elements before the first and after the
// last one go to the first threads of the first block. Inputs that are misaligned by another amount
// are read by windows (core/vector_io.cuh).
//
// Any other strides: a thread takes one vector where all operands allow it (innermost stride one
// element, or zero in an input; row length and all other strides multiples of a vector), else one
// element. It finds its offset by dividing its index by the lengths of the axes, in 32 bits where
// the size allows it. Two operands that are the even and the odd elements of one array may be read,
// or written, as a pair: two vectors that lie together hold a vector of each.
//
// Bytes moved: inputs and outputs, once. No shared memory, no barrier.
#pragma once

#include "common/core/elementwise_plan.h"
#include "cuda/core/indexing.cuh"
#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE

constexpr int kMapThreads = 256;

// Blocks that share a multiprocessor, at least. Of float64 they are few enough that a thread's
// registers do not spill (docs/design/cuda.md, "The element-wise map").
template <class T>
constexpr int kMapBlocks = sizeof(T) == sizeof(double) ? 3 : 4;

// A map that needs more registers says itself how few blocks are enough: F::kLeastBlocks.
template <class F, class T, class = int>
constexpr int kBlocksOf = kMapBlocks<T>;
template <class F, class T>
constexpr int kBlocksOf<F, T, decltype(F::kLeastBlocks + 0)> = F::kLeastBlocks;

// Whether the last operand that a strided map reads is an index instead of an array: the functor is
// given the operand's address in place of 0, and elements alone.
template <class F, class = int>
constexpr bool kIsIndexed = false;
template <class F>
constexpr bool kIsIndexed<F, decltype(F::kIndexed + 0)> = F::kIndexed;
template <class F, int inputs>
constexpr int kOperandsOf = inputs + kIsIndexed<F>;

// The interface of a map's functor. index: of the element, or of a vector's first one, in
// contiguous arrays (0 for strided ones, or what they read by kIndexed).
//   kUnroll                                                            vectors in flight
//   Compute<T> at(const Compute<T> (&in)[inputs], int64_t index)       one element
//   Wide<T> vec(const Wide<T> (&in)[inputs], int64_t index)            a vector of them
// Lanewise implements these by a call operator for one element.
template <class F, class T, int inputs>
struct Lanewise {
  static constexpr int kUnroll = inputs == 1 ? 4 : 2;
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[inputs], int64_t) const {
    return static_cast<const F&>(*this)(in);
  }
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[inputs], int64_t) const {
    Wide<T> result;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      Compute<T> lane[inputs];
#pragma unroll
      for (int k = 0; k < inputs; ++k) lane[k] = in[k].lane[j];
      result.lane[j] = static_cast<const F&>(*this)(lane);
    }
    return result;
  }
};

// The arrays of a contiguous map. With `accumulate` the result is added to what `out` holds.
template <class T, int inputs>
struct ContiguousMap {
  const T* in[inputs];  // IN: n elements each
  T* out;               // OUT (IN/OUT with accumulate): n elements, one of the inputs or disjoint
  int64_t n;
  int64_t head;  // elements before the first vector
  int64_t vecs;  // whole vectors after that
  bool aligned;  // the inputs are aligned as out is
  bool accumulate;
};

template <class T, int inputs, bool accumulates, class F>
FASTACT_DEVICE void map_element(const T (&in)[inputs], T* out, int64_t index, bool accumulate,
                                const F& f) {
  Compute<T> wide[inputs];
#pragma unroll
  for (int k = 0; k < inputs; ++k) wide[k] = widen(in[k]);
  Compute<T> value = f.at(wide, index);
  if (accumulates && accumulate) value = widen(load(out)) + value;
  store(out, narrow<T>(value));
}

template <class T, int inputs, bool accumulates, class F>
FASTACT_DEVICE void map_vec(const Vec<T> (&in)[inputs], T* out, int64_t index, bool accumulate,
                            const F& f) {
  Words before{};  // not numbers of 16 bits, which would be moved one by one
  if (accumulates && accumulate) before = bit_cast<Words>(load_vec(out));
  Wide<T> wide[inputs];
#pragma unroll
  for (int k = 0; k < inputs; ++k) wide[k] = widen_vec(in[k]);
  Wide<T> result = f.vec(wide, index);
  if (accumulates && accumulate) accumulate_onto(bit_cast<Vec<T>>(before), result);
  store_vec(out, narrow_vec<T>(result));
}

template <class T, int inputs, bool accumulates, class F>
FASTACT_KERNEL_OF(kMapThreads, (kBlocksOf<F, T>))
void map_contiguous(const ContiguousMap<T, inputs> map, FASTACT_GRID_CONSTANT const F f) {
  constexpr int kUnroll = F::kUnroll;
  constexpr int kSize = Vec<T>::kSize;
  const int64_t first = int64_t(blockIdx.x) * (kMapThreads * kUnroll) + threadIdx.x;

  Words in[kUnroll][inputs];
  if (map.aligned) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * kMapThreads;
      if (i >= map.vecs) break;
#pragma unroll
      for (int k = 0; k < inputs; ++k)
        in[u][k] = bit_cast<Words>(load_vec(map.in[k] + map.head + i * kSize));
    }
  } else {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * kMapThreads;
      if (i >= map.vecs) break;
#pragma unroll
      for (int k = 0; k < inputs; ++k)
        in[u][k] = bit_cast<Words>(
            load_window(map.in[k] + map.head + i * kSize, map.in[k], map.in[k] + map.n));
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kMapThreads;
    if (i >= map.vecs) break;
    const int64_t index = map.head + i * kSize;
    Vec<T> vec[inputs];
#pragma unroll
    for (int k = 0; k < inputs; ++k) vec[k] = bit_cast<Vec<T>>(in[u][k]);
    map_vec<T, inputs, accumulates>(vec, map.out + index, index, map.accumulate, f);
  }

  if (blockIdx.x > 0) return;
  const int64_t inside = map.vecs * kSize;
  const int64_t ends = map.n - inside;  // before and after the vectors: fewer than two vectors
  for (int64_t e = threadIdx.x; e < ends; e += kMapThreads) {
    const int64_t i = e < map.head ? e : e + inside;
    T element[inputs];
#pragma unroll
    for (int k = 0; k < inputs; ++k) element[k] = load(map.in[k] + i);
    map_element<T, inputs, accumulates>(element, map.out + i, i, map.accumulate, f);
  }
}

template <int inputs, int outputs = 1>
struct StridedMap {
  const char* in[inputs];
  char* out[outputs];  // null: not wanted, where there are several
  int64_t tasks;
  int task_size;  // elements: one, or a vector
  bool accumulate;
  int ndim;
  int64_t shape[kMaxAxes];                      // the innermost length in tasks
  int64_t strides[inputs + outputs][kMaxAxes];  // bytes; the innermost of a task; outputs' are last
};

// Offsets in bytes of the index-th task in each operand, along the first `ndim` axes of the map.
template <int inputs, int outputs>
FASTACT_DEVICE void locate(const StridedMap<inputs, outputs>& map, int64_t index,
                           int64_t (&at)[inputs + outputs], int ndim) {
#pragma unroll
  for (int k = 0; k < inputs + outputs; ++k) at[k] = 0;
  const auto step = [&](int axis, int64_t here) {
#pragma unroll
    for (int k = 0; k < inputs + outputs; ++k) at[k] += here * map.strides[k][axis];
  };
  if (index <= int64_t(0xffffffff))
    unravel(uint32_t(index), map.shape, 0, ndim, step);
  else
    unravel(index, map.shape, 0, ndim, step);
}

template <class T, int inputs, bool accumulates, class F>
FASTACT_KERNEL(kMapThreads)
void map_strided(FASTACT_GRID_CONSTANT const StridedMap<kOperandsOf<F, inputs>> map,
                 FASTACT_GRID_CONSTANT const F f) {
  constexpr int kOut = kOperandsOf<F, inputs>;
  const int64_t task = int64_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (task >= map.tasks) return;
  int64_t at[kOut + 1], index = 0;
  locate(map, task, at, map.ndim);
  if constexpr (kOut > inputs)
    index = int64_t(reinterpret_cast<intptr_t>(map.in[inputs])) + at[inputs];
  T* const out = reinterpret_cast<T*>(map.out[0] + at[kOut]);
  if (kIsIndexed<F> || map.task_size == 1) {
    T element[inputs];
#pragma unroll
    for (int k = 0; k < inputs; ++k)
      element[k] = load(reinterpret_cast<const T*>(map.in[k] + at[k]));
    map_element<T, inputs, accumulates>(element, out, index, map.accumulate, f);
    return;
  }
  if constexpr (!kIsIndexed<F>) {
    Vec<T> in[inputs];
#pragma unroll
    for (int k = 0; k < inputs; ++k)
      in[k] = load_or_repeat(reinterpret_cast<const T*>(map.in[k] + at[k]),
                             map.strides[k][map.ndim - 1] == 0);
    map_vec<T, inputs, accumulates>(in, out, index, map.accumulate, f);
  }
}

template <class T, int inputs, bool accumulates, class F>
void run_contiguous(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize;
  ContiguousMap<T, inputs> map{};
  map.out = reinterpret_cast<T*>(plan.data[inputs]);
  const uintptr_t missed = reinterpret_cast<uintptr_t>(map.out) % kVecBytes;
  map.n = plan.size;
  map.accumulate = accumulate;
  map.head = std::min<int64_t>(plan.size, int64_t((kVecBytes - missed) % kVecBytes / sizeof(T)));
  map.vecs = (plan.size - map.head) / kSize;
  map.aligned = true;
  for (int k = 0; k < inputs; ++k) {
    map.in[k] = reinterpret_cast<const T*>(plan.data[k]);
    map.aligned &= reinterpret_cast<uintptr_t>(map.in[k]) % kVecBytes == missed;
  }
  constexpr int64_t kTile = kMapThreads * F::kUnroll;
  const int64_t blocks = std::max<int64_t>(1, (map.vecs + kTile - 1) / kTile);
  launch(map_contiguous<T, inputs, accumulates, F>, {blocks, kMapThreads}, stream, map, f);
}

// The first `loose` inputs may lie anyhow. indexed: the functor takes elements alone.
template <class T, int inputs, bool indexed, int loose = 0>
StridedMap<inputs> strided_map(const ElementwisePlan& plan, bool accumulate) {
  constexpr int kSize = Vec<T>::kSize;
  StridedMap<inputs> map{};
  const int last = plan.ndim - 1;
  bool vecs = plan.shape[last] % kSize == 0 && !indexed;
  for (int k = loose; k <= inputs; ++k) {
    const int64_t stride = plan.strides[k][last];
    const bool repeats = stride == 0 && k < inputs;
    vecs &= repeats || (stride == plan.item && rows_aligned(plan, k, kVecBytes));
  }
  map.task_size = vecs ? kSize : 1;
  map.tasks = plan.size / map.task_size;
  map.accumulate = accumulate;
  map.ndim = plan.ndim;
  for (int k = 0; k < inputs; ++k) map.in[k] = plan.data[k];
  map.out[0] = plan.data[inputs];
  for (int axis = 0; axis <= last; ++axis) {
    map.shape[axis] = axis == last ? plan.shape[axis] / map.task_size : plan.shape[axis];
    for (int k = 0; k <= inputs; ++k)
      map.strides[k][axis] = plan.strides[k][axis] * (axis == last ? map.task_size : 1);
  }
  return map;
}

template <class T, int inputs, bool accumulates, class F>
void run_strided(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  const auto map = strided_map<T, kOperandsOf<F, inputs>, kIsIndexed<F>>(plan, accumulate);
  const int64_t blocks = (map.tasks + kMapThreads - 1) / kMapThreads;
  launch(map_strided<T, inputs, accumulates, F>, {blocks, kMapThreads}, stream, map, f);
}

// Queues y = f(inputs), or y += f(inputs), over operands that are not empty.
template <class T, int inputs, bool accumulates, class F>
void run_map(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  if (plan.all_contiguous())
    run_contiguous<T, inputs, accumulates>(plan, accumulate, f, stream);
  else
    run_strided<T, inputs, accumulates>(plan, accumulate, f, stream);
}

FASTACT_END_NAMESPACE
