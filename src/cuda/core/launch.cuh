// Every kernel builds on this: memory access, shared memory, launching, errors.
//
// The kernels compile twice: by nvcc for a GPU, and by the host's compiler for the emulated device
// of tests/cuda_emulation, on which every kernel runs in every test run. All differences between
// the two are in this file and, for clusters of blocks, in cluster.cuh. A kernel uses
//   - threadIdx, blockIdx, blockDim, gridDim; __syncthreads, warp shuffles and votes;
//   - FASTACT_KERNEL(threads) in front of a kernel, or FASTACT_KERNEL_OF(threads, blocks) where so
//     many blocks on a multiprocessor are enough and registers are short;
//   - FASTACT_SHARED and dynamic_shared for shared memory, both used through operator[] alone;
//   - copy_later, end_copies and await_copies to bring vectors to shared memory ahead of their use;
//   - load, store, load_vec, store_vec for global memory: the emulated device checks each of these
//     against the arrays that exist. A raw pointer is never dereferenced.
#pragma once

#include "common/core/dtypes.h"
#include "common/core/operand.h"

#if defined(FASTACT_CUDA_EMULATION)
#include "cuda_emulation/device.h"
#else
#include <cuda_runtime.h>
#endif

#include <stdexcept>
#include <string>
#include <utility>

FASTACT_BEGIN_NAMESPACE

// A call of the CUDA runtime that failed; what() says which, where and why.
struct CudaError : std::runtime_error {
  cudaError_t code;
  CudaError(cudaError_t error, const char* call, const char* file, int line)
      : std::runtime_error(std::string("fastact: CUDA error ") + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ") from " + call + " at " +
                           in_sources(file) + ":" + std::to_string(line)),
        code(error) {}

 private:
  // The path inside the source tree, wherever that lay; a compiler may have been given another one.
  static std::string in_sources(const std::string& file) {
    const size_t at = file.rfind("src/cuda/");
    return at == std::string::npos ? file : file.substr(at);
  }
};
#define FASTACT_CUDA_CHECK(call)                                                   \
  do {                                                                             \
    const cudaError_t error_ = (call);                                             \
    if (error_ != cudaSuccess) throw CudaError(error_, #call, __FILE__, __LINE__); \
  } while (0)

// 16 bytes of elements: what one memory instruction of a thread moves.
constexpr int kVecBytes = 16;
template <class T>
struct alignas(kVecBytes) Vec {
  static constexpr int kSize = kVecBytes / sizeof(T);
  T lane[kSize];
};

#if !defined(FASTACT_CUDA_EMULATION)

#define FASTACT_KERNEL(threads) __global__ __launch_bounds__(threads)
#define FASTACT_KERNEL_OF(threads, blocks) __global__ __launch_bounds__(threads, blocks)
#define FASTACT_DEVICE __device__ __forceinline__
#define FASTACT_DEVICE_CALL __device__ __noinline__  // for rare and long functions
// For a kernel's parameter whose address is taken: it stays in constant memory instead of being
// copied to the stack.
#define FASTACT_GRID_CONSTANT __grid_constant__
// An array `name` of n elements of T in shared memory, n a constant.
#define FASTACT_SHARED(T, name, n) __shared__ T name[n]

template <class T>
FASTACT_DEVICE T load(const T* p) {
  return *p;
}
template <class T>
FASTACT_DEVICE void store(T* p, T value) {
  *p = value;
}
// p is a multiple of 16 bytes.
template <class T>
FASTACT_DEVICE Vec<T> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T>*>(p);
}
// An assignment would do, but nvcc 13.0 splits the first of several into stores of 2 to 8 bytes.
template <class T>
FASTACT_DEVICE void store_vec(T* p, const Vec<T>& value) {
  __stwb(reinterpret_cast<uint4*>(p), bit_cast<uint4>(value));
}

// Lets the compiler forget where a value came from: what follows from it is computed again, where
// to keep it would take registers.
FASTACT_DEVICE void forget(uint32_t (&words)[4]) {
  asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
}
FASTACT_DEVICE void forget(int& word) { asm volatile("" : "+r"(word)); }

// Reads a line of global memory into the second-level cache, for somebody who waits for it later
// and has no register to wait with.
FASTACT_DEVICE void bring_near(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Begins to copy the vector at p to array[i] in shared memory. A thread closes what it has begun
// since the last time by end_copies(), and await_copies<n>() waits for all that it has closed but
// the last n. Until then nobody reads or writes array[i], and from then on the thread itself may;
// others need a barrier more.
template <class T>
FASTACT_DEVICE void copy_later(Vec<T>* array, int i, const T* p) {
#if __CUDA_ARCH__ >= 800
  const auto to = unsigned(__cvta_generic_to_shared(array + i));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(p) : "memory");
#else
  array[i] = load_vec(p);
#endif
}
FASTACT_DEVICE void end_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int n>
FASTACT_DEVICE void await_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

// The shared memory whose size in bytes the launch gives.
template <class T>
FASTACT_DEVICE T* dynamic_shared() {
  extern __shared__ __align__(kVecBytes) unsigned char fastact_dynamic_shared[];
  return reinterpret_cast<T*>(fastact_dynamic_shared);
}

#endif

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int64_t kMaxBlocks = 0x7fffffff;  // of a grid, along x

// Blocks along x and y, threads of a block along x and y, dynamic shared memory in bytes, blocks of
// a cluster along x.
struct Shape {
  int64_t blocks;
  int threads;
  int threads_y = 1;
  int64_t blocks_y = 1;
  int shared = 0;
  int cluster = 1;
};

// Queues a kernel on a stream of the current device; parameters: where each of them is.
using Queue = void (*)(const void* kernel, const Shape& shape, cudaStream_t stream,
                       void* const* parameters);

#if defined(FASTACT_CUDA_EMULATION)
template <class... Parameters, size_t... k>
void run_emulated(const void* kernel, const Shape& shape, cudaStream_t stream,
                  void* const* parameters, std::index_sequence<k...>) {
  emulation::launch(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel)),
                    {unsigned(shape.blocks), unsigned(shape.blocks_y)},
                    {unsigned(shape.threads), unsigned(shape.threads_y)}, size_t(shape.shared),
                    unsigned(shape.cluster), stream,
                    *static_cast<const Parameters*>(parameters[k])...);
}
template <class... Parameters>
void queue_kernel(const void* kernel, const Shape& shape, cudaStream_t stream,
                  void* const* parameters) {
  run_emulated<Parameters...>(kernel, shape, stream, parameters,
                              std::index_sequence_for<Parameters...>());
  FASTACT_CUDA_CHECK(cudaGetLastError());
}
#else
void queue_any_kernel(const void* kernel, const Shape& shape, cudaStream_t stream,
                      void* const* parameters);
template <class... Parameters>
constexpr Queue queue_kernel = queue_any_kernel;
#endif

// Takes the launches of one thread on one stream, to queue them later for other addresses
// (binding/recorded_launches.cpp). Launches on other streams are queued as ever.
class LaunchRecorder {
 public:
  // sizes: of the parameters, in bytes.
  virtual void take(const void* kernel, const Shape& shape, Queue queue, void* const* parameters,
                    const size_t* sizes, int count) = 0;
  cudaStream_t stream() { return reinterpret_cast<cudaStream_t>(this); }

 protected:
  ~LaunchRecorder() = default;
};
LaunchRecorder*& launch_recorder();  // of this thread; null: nobody records

// Bytes of a parameter that belong to no member are set to 0, where the compiler can do that: what
// stands in them by chance may look as if it depended on more than addresses.
template <class Parameter>
void clear_padding([[maybe_unused]] Parameter* parameter) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(parameter);
#endif
#endif
}

// Queues a kernel, or gives it to the recorder of this thread.
void take_launch(const void* kernel, const Shape& shape, cudaStream_t stream, Queue queue,
                 void* const* parameters, const size_t* sizes, int count);
bool is_recorded(cudaStream_t stream);

template <class... Parameters>
void launch_values(const void* kernel, const Shape& shape, cudaStream_t stream,
                   Parameters... values) {
  void* const parameters[] = {&values...};
  constexpr size_t sizes[] = {sizeof(Parameters)...};
  if (is_recorded(stream)) (clear_padding(&values), ...);
  take_launch(kernel, shape, stream, queue_kernel<Parameters...>, parameters, sizes,
              sizeof...(Parameters));
}

// Queues a kernel on a stream of the current device.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Shape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
  launch_values<Parameters...>(reinterpret_cast<const void*>(kernel), shape, stream,
                               Parameters(arguments)...);
}

FASTACT_END_NAMESPACE
