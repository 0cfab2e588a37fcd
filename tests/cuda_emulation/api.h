// The part of the CUDA runtime that fastact calls, for three emulated devices, and what tests see
// of those calls.
//
// Everything happens at once, inside the call: streams and events order nothing, but the calls that
// would are logged. What waits for a device is missing: fastact calls no such function. Device 0
// has 4 multiprocessors, device 1 has 3, and device 2 as many as an H200, 132: a result that
// depends on the number of multiprocessors differs between them. So does one that depends on the
// shared memory that a kernel may ask for: 64 KiB on device 0, on device 1 the 48 KiB that it has
// unasked, and on device 2 the 227 KiB of compute capability 9.0.
//
// Shared memory is as the CUDA C++ Programming Guide has it. Static and dynamic together a block
// has 48 KiB, and what a kernel asked for by cudaFuncSetAttribute is from then on the limit of its
// dynamic part, on that device and in every thread, up to the device's most less the static part,
// which is known before a kernel runs (kernel_code.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#define CUDART_VERSION 12080

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// X(enumerator, code, text)
#define FASTACT_EMULATED_ERRORS(X)                                      \
  X(cudaSuccess, 0, "no error")                                         \
  X(cudaErrorInvalidValue, 1, "invalid argument")                       \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                      \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
  X(cudaErrorInsufficientDriver, 35,                                    \
    "CUDA driver version is insufficient for CUDA runtime "             \
    "version")                                                          \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")      \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")       \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")              \
  X(cudaErrorNoKernelImageForDevice, 209,                               \
    "no kernel image is available for execution on the device")         \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")     \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")          \
  X(cudaErrorInvalidClusterSize, 912, "cluster misconfiguration")

#define FASTACT_ENUMERATOR(name, code, text) name = code,
enum cudaError_t : int { FASTACT_EMULATED_ERRORS(FASTACT_ENUMERATOR) };
#undef FASTACT_ENUMERATOR

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

enum cudaDeviceAttr : int {
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrClusterLaunch = 120,
};

enum cudaFuncAttribute : int {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 13,
};

enum cudaLaunchAttributeID : int { cudaLaunchAttributeClusterDimension = 4 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    dim3 clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsPerMultiProcessor;
  int multiProcessorCount;
  int major, minor;
};

struct cudaFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
  int maxDynamicSharedSizeBytes;
};

enum cudaMemoryType : int {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeDevice = 2,
};

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
};

constexpr unsigned cudaEventDisableTiming = 2;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaMalloc(void** p, size_t size);
cudaError_t cudaFree(void* p);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* kernel,
                                           const cudaLaunchConfig_t* config);

template <class T>
cudaError_t cudaMalloc(T** p, size_t size) {
  return cudaMalloc(reinterpret_cast<void**>(p), size);
}
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}

namespace fastact::emulation {

struct Grid;

// Bytes of shared memory that a block of a kernel may be given by a launch on the current device;
// below 0 where the kernel's static arrays are more than it may have.
int64_t dynamic_shared_limit(const void* kernel);

// Blocks of a cluster that a launch of a kernel on the current device may have: 1 on device 1,
// which has no clusters; 8 on others, or 16 where the kernel may have that and the device room for
// it.
unsigned most_of_cluster(const void* kernel);

// Whether something has made a context on a device; tests may take that back.
bool has_context(int device);
void forget_contexts();
void note_context(int device);

// For tests: after the next call of a function, whoever called it runs `body` before going on.
void after(const std::string& call, std::function<void()> body);

// One call at a time: held through a launch, and by whoever looks at a device from the host.
class Lock {
 public:
  Lock();

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

// For tests: the next `times` calls of a function ("cudaMalloc", …; "launch" for a launch) fail
// with this code instead of doing anything.
void fail(const std::string& call, cudaError_t error, int times);
cudaError_t injected(const char* call);
void set_last_error(cudaError_t error);

cudaStream_t make_stream(int device);

struct Launch {
  std::string kernel, symbol;
  int device;
  cudaStream_t stream;
  dim3 grid, block;
  size_t shared, static_shared;
};
// what: "record" or "wait".
struct StreamCall {
  const char* what;
  int device;
  cudaStream_t stream;
  cudaEvent_t event;
};
extern std::vector<Launch> launch_log;
extern std::vector<StreamCall> stream_log;
void log_launch(const Grid& grid);
// Its name; for a kernel or functor in an anonymous namespace, which has none in the library, the
// types of its parameters.
const std::string& kernel_name(const Grid& grid);

}  // namespace fastact::emulation
