// The emulated device: CUDA C++ for the host's compiler, as far as fastact's kernels use it.
//
// A test tool, never shipped. launch.cuh includes this in place of the CUDA runtime, and the same
// .cu sources then run on the CPU, slowly and watched: memory.h, shared.h and block.h say what is
// caught. What it cannot see: registers, the limits of a GPU but for a launch's, and
// anything about speed. Accesses to global memory by lanes of one warp count as unordered even with
// a __syncwarp between them.
#pragma once

#include <type_traits>
#include <typeinfo>

#include "api.h"
#include "block.h"
#include "cluster.h"
#include "common/core/macros.h"
#include "memory.h"
#include "shared.h"

// __shared__ and __constant__ are missing: memory that is not watched does not compile.
#define __global__ __attribute__((visibility("default")))  // keeps the name for kernel_name
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))

extern uint3 fastact_thread_index, fastact_block_index;
extern dim3 fastact_block_size, fastact_grid_size;
inline const uint3 &threadIdx = fastact_thread_index, &blockIdx = fastact_block_index;
inline const dim3 &blockDim = fastact_block_size, &gridDim = fastact_grid_size;

// A launch's most threads stand in front of a kernel's code, as a `nop` for each warp
// (kernel_code.h).
#define FASTACT_KERNEL(threads) \
  __global__ __attribute__((patchable_function_entry((threads) / fastact::emulation::kWarpLanes)))
#define FASTACT_KERNEL_OF(threads, blocks) FASTACT_KERNEL(threads)
#define FASTACT_DEVICE inline
#define FASTACT_DEVICE_CALL inline
#define FASTACT_GRID_CONSTANT
#define FASTACT_SHARED(T, name, n)                                                     \
  static ::fastact::emulation::SharedSite fastact_site_of_##name(#name, sizeof(T), n); \
  const auto name = ::fastact::emulation::static_shared_span<T>(fastact_site_of_##name)

namespace fastact::emulation {

// The value of a lane as 64 bits; the types are those that CUDA's shuffles take.
template <class T>
uint64_t to_bits(T value) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "CUDA shuffles numbers of 32 and 64 bits");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T shuffle(Call call, unsigned mask, T value, int argument, int width, const Site& site) {
  const uint64_t bits = meet(call, mask, to_bits(value), sizeof(T), argument, width, site);
  T result;
  memcpy(&result, &bits, sizeof(T));
  return result;
}

// Runs a kernel over a grid, on the current device and at once. cluster: blocks of one.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, unsigned cluster,
            cudaStream_t stream, const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "CUDA copies a kernel's parameters byte by byte");
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "a kernel's parameters exceed 4 KiB");
  const auto call = [&] { kernel(arguments...); };
  run({reinterpret_cast<const void*>(kernel), typeid(void(Parameters...)).name(), grid, block,
       shared, cluster, stream,
       [](const void* closure) { (*static_cast<decltype(call)*>(closure))(); }, &call});
}

}  // namespace fastact::emulation

inline void __syncthreads(const fastact::emulation::Site& site = fastact::emulation::Site::here()) {
  fastact::emulation::barrier(site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       const fastact::emulation::Site& site = fastact::emulation::Site::here()) {
  fastact::emulation::meet(fastact::emulation::Call::kSync, mask, 0, 0, 0, 32, site);
}

#define FASTACT_EMULATED_SHUFFLE(name, Argument, kind)                                             \
  template <class T>                                                                               \
  T name(unsigned mask, T value, Argument argument, int width = 32,                                \
         const fastact::emulation::Site& site = fastact::emulation::Site::here()) {                \
    return fastact::emulation::shuffle(fastact::emulation::Call::kind, mask, value, int(argument), \
                                       width, site);                                               \
  }
FASTACT_EMULATED_SHUFFLE(__shfl_sync, int, kIndex)
FASTACT_EMULATED_SHUFFLE(__shfl_down_sync, unsigned, kDown)
FASTACT_EMULATED_SHUFFLE(__shfl_xor_sync, int, kXor)
#undef FASTACT_EMULATED_SHUFFLE

inline int __any_sync(unsigned mask, int predicate,
                      const fastact::emulation::Site& site = fastact::emulation::Site::here()) {
  return int(fastact::emulation::meet(fastact::emulation::Call::kAny, mask, predicate != 0, 4, 0,
                                      32, site));
}

FASTACT_BEGIN_NAMESPACE

template <class T>
struct Vec;

// Global memory, as launch.cuh describes it.
template <class T>
T load(const T* p, const emulation::Site& site = emulation::Site::here()) {
  T value;
  emulation::kernel_read(&value, p, sizeof(T), alignof(T), site);
  return value;
}
template <class T>
void store(T* p, T value, const emulation::Site& site = emulation::Site::here()) {
  emulation::kernel_write(p, &value, sizeof(T), alignof(T), site);
}
template <class T>
Vec<T> load_vec(const T* p, const emulation::Site& site = emulation::Site::here()) {
  Vec<T> value;
  emulation::kernel_read(&value, p, sizeof(value), sizeof(value), site);
  return value;
}
template <class T>
void store_vec(T* p, const Vec<T>& value, const emulation::Site& site = emulation::Site::here()) {
  emulation::kernel_write(p, &value, sizeof(value), sizeof(value), site);
}

template <class T>
void copy_later(const emulation::SharedSpan<Vec<T>>& array, int i, const T* p,
                const emulation::Site& site = emulation::Site::here()) {
  const Vec<T> value = load_vec(p, site);
  array.write_later(i, value);
}
inline void end_copies() { emulation::end_copies(); }
template <int n>
void await_copies() {
  emulation::await_copies(n);
}

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline void forget(uint32_t (&)[4]) {}
inline void forget(int&) {}

inline void bring_near(const void*) {}
inline void bring_all_near(const void* p, unsigned bytes,
                           const emulation::Site& site = emulation::Site::here()) {
  emulation::kernel_bring_near(p, bytes, site);
}

using emulation::block_of_cluster, emulation::cluster_index;

// As cluster.cuh has it. The barriers and the numbers are shared memory there, and count as such.
template <int n>
struct Mailboxes {
  using Site = emulation::Site;
  void open(const Site& site = Site::here()) const {
    FASTACT_SHARED(double, mailboxes, 2 + 2 * n);
    static_cast<void>(mailboxes);
    emulation::open_mailboxes(n, site);
  }
  void all_are_open(const Site& site = Site::here()) const { emulation::await_mailboxes(site); }
  void expect(int round, int count, const Site& site = Site::here()) const {
    emulation::expect_numbers(round, count, site);
  }
  void send(int round, int i, double value, int block, const Site& site = Site::here()) const {
    emulation::send_number(round, i, value, block, site);
  }
  void wait(int round, const Site& site = Site::here()) const {
    emulation::await_numbers(round, site);
  }
  double get(int round, int i, const Site& site = Site::here()) const {
    return emulation::received_number(round, i, site);
  }
};

template <class T>
emulation::SharedSpan<T> dynamic_shared() {
  return emulation::dynamic_shared_span<T>();
}

FASTACT_END_NAMESPACE
