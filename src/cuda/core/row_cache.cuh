// Rows: vectors that a kernel caches in shared memory.
#pragma once

#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Vectors of storage that hold a vector in the compute type.
template <class T>
constexpr int kPlanes = int(sizeof(Compute<T>) / sizeof(T));

// A vector in the cache. nvcc 13.0 reads eight numbers of 16 bits by 8 bytes, four of 32 by 16.
struct alignas(kVecBytes) Quad {
  uint32_t word[4];
};

// A slot holds one vector of storage of each thread, side by side with those of the other threads,
// so that neither banks nor threads meet. Shared: what dynamic_shared<Quad>() is.
template <class T, class Shared>
struct RowCache {
  Shared memory;

  FASTACT_DEVICE int at(int slot, int thread) const { return slot * int(blockDim.x) + thread; }
  FASTACT_DEVICE Vec<T> from(int at) const { return bit_cast<Vec<T>>(Quad(memory[at])); }
  FASTACT_DEVICE void to(int at, const Vec<T>& vec) const { memory[at] = bit_cast<Quad>(vec); }
  FASTACT_DEVICE Vec<T> vec(int slot, int thread) const { return from(at(slot, thread)); }
  FASTACT_DEVICE void put(int slot, int thread, const Vec<T>& vec) const {
    to(at(slot, thread), vec);
  }
  FASTACT_DEVICE Wide<T> wide_from(int at) const {
    struct {
      Vec<T> plane[kPlanes<T>];
    } planes;
#pragma unroll
    for (int k = 0; k < kPlanes<T>; ++k) planes.plane[k] = from(at + k * int(blockDim.x));
    return bit_cast<Wide<T>>(planes);
  }
  FASTACT_DEVICE Wide<T> wide(int slot, int thread) const { return wide_from(at(slot, thread)); }
  FASTACT_DEVICE void put_wide(int slot, int thread, const Wide<T>& value) const {
    struct Planes {
      Vec<T> plane[kPlanes<T>];
    };
    const Planes planes = bit_cast<Planes>(value);
#pragma unroll
    for (int k = 0; k < kPlanes<T>; ++k) put(slot + k, thread, planes.plane[k]);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
