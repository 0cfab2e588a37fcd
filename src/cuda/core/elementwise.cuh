// The element-wise map: y[i] = f(x0[i], ..), up to three inputs, any strides; an op is a functor.
//
// Contiguous arrays: a thread takes kUnroll vectors of 16 bytes, with all loads before the first
// use. Vectors begin where y is a multiple of 16 bytes; the elements before the first and after the
// last one go to the first threads of the first block. Inputs that are misaligned by another amount
// are read by windows (core/vector_io.cuh).
//
// Any other strides: core/strided_map.cuh.
//
// Bytes moved: inputs and outputs, once. No shared memory, no barrier.
#pragma once

#include "cuda/core/strided_map.cuh"

FASTACT_BEGIN_NAMESPACE

constexpr int kMapThreads = 256;

// Blocks that share a multiprocessor, at least. Of float64 they are few enough that a thread's
// registers do not spill (docs/design/cuda.md, "The element-wise map").
template <class T>
constexpr int kMapBlocks = sizeof(T) == sizeof(double) ? 3 : 4;

// The interface of a map's functor. index: of the element, or of a vector's first one, in
// contiguous arrays; of strided ones 0, or the element's where kIndexed asks for it.
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
FASTACT_KERNEL_OF(kMapThreads, kMapBlocks<T>)
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

template <class T, int inputs, class F>
void run_strided(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  run_strided_map<T>(plan, accumulate, StridedFunctor<F, T, inputs>{f}, stream);
}

// Queues y = f(inputs), or y += f(inputs), over operands that are not empty.
template <class T, int inputs, bool accumulates, class F>
void run_map(const ElementwisePlan& plan, bool accumulate, F f, cudaStream_t stream) {
  if (plan.all_contiguous())
    run_contiguous<T, inputs, accumulates>(plan, accumulate, f, stream);
  else
    run_strided<T, inputs>(plan, accumulate, f, stream);
}

FASTACT_END_NAMESPACE
