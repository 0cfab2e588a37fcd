// Tells which devices there are, whether this build has code for them, and the order between
// streams.
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/core/device.h"

#if !defined(FASTACT_CUDA_EMULATION)
#include <cudaTypedefs.h>
#endif

FASTACT_BEGIN_NAMESPACE
namespace {

FASTACT_KERNEL(kWarp)
void probe() {}

template <class T>
FASTACT_KERNEL(kWarp)
void fill_one(T* p, const uint64_t bits) {
  if (threadIdx.x == 0) store(p, T(bits));
}

// Destroying it takes effect once the event has been reached: nobody waits for that.
struct Event {
  cudaEvent_t handle;
  Event() { FASTACT_CUDA_CHECK(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

const char* cure_of(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "there is no CUDA driver, or one older than this build needs; install NVIDIA's driver";
    case cudaErrorNoDevice:
      return "no CUDA device is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES";
    default:
      return nullptr;
  }
}

// Facts about kernels on devices, or about blocks of them, each found out when it is first asked
// for. Threads that ask for the same fact at once all find it out.
template <class Fact>
class KnownOfKernels {
 public:
  // find(device): the fact, on the current device.
  template <class Find>
  Fact of(const void* kernel, Find find, const Shape& shape = {0, 0}) {
    int device;
    FASTACT_CUDA_CHECK(cudaGetDevice(&device));
    const Key key{kernel, device, shape.threads, shape.shared, shape.cluster};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = facts_->find(key);
      if (found != facts_->end()) return found->second;
    }
    const Fact fact = find(device);
    const std::lock_guard<std::mutex> lock(mutex_);
    return (*facts_)[key] = fact;
  }

 private:
  using Key = std::tuple<const void*, int, int, int, int>;
  std::mutex mutex_;
  // Never destroyed: other threads may launch while the process ends.
  std::map<Key, Fact>* facts_ = new std::map<Key, Fact>;
};

// A launch as CUDA takes it. It stays where it is, for it points into itself.
struct LaunchConfig : cudaLaunchConfig_t {
  cudaLaunchAttribute of_cluster{};

  LaunchConfig(const Shape& shape, cudaStream_t on) : cudaLaunchConfig_t{} {
    gridDim = dim3(unsigned(shape.blocks), unsigned(shape.blocks_y));
    blockDim = dim3(unsigned(shape.threads), unsigned(shape.threads_y));
    dynamicSmemBytes = size_t(shape.shared), stream = on;
    of_cluster.id = cudaLaunchAttributeClusterDimension;
    of_cluster.val.clusterDim = {unsigned(shape.cluster), 1, 1};
    attrs = &of_cluster, numAttrs = shape.cluster > 1;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

#if !defined(FASTACT_CUDA_EMULATION)
// A function of the driver's own interface, which nothing here links against; null where there is
// none.
PFN_cuDevicePrimaryCtxGetState_v7000 find_context_state() {
  constexpr const char* kName = "cuDevicePrimaryCtxGetState";
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(kName, &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) cudaGetLastError();
  const bool is_there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(found) : nullptr;
}
#endif

}  // namespace

bool has_context(int device) {
#if defined(FASTACT_CUDA_EMULATION)
  return emulation::has_context(device);
#else
  static const auto state = find_context_state();
  unsigned flags = 0;
  int active = 0;
  return !state || state(device, &flags, &active) != CUDA_SUCCESS || active;
#endif
}

LaunchRecorder*& launch_recorder() {
  thread_local LaunchRecorder* recorder = nullptr;
  return recorder;
}

bool is_recorded(cudaStream_t stream) {
  return launch_recorder() && launch_recorder()->stream() == stream;
}

void take_launch(const void* kernel, const Shape& shape, cudaStream_t stream, Queue queue,
                 void* const* parameters, const size_t* sizes, int count) {
  if (shape.blocks > kMaxBlocks || shape.blocks_y > 65535)
    throw std::invalid_argument("fastact: a launch of " + std::to_string(shape.blocks) + " by " +
                                std::to_string(shape.blocks_y) + " blocks exceeds CUDA's limits");
  if (is_recorded(stream))
    launch_recorder()->take(kernel, shape, queue, parameters, sizes, count);
  else
    queue(kernel, shape, stream, parameters);
}

#if !defined(FASTACT_CUDA_EMULATION)
void queue_any_kernel(const void* kernel, const Shape& shape, cudaStream_t stream,
                      void* const* parameters) {
  const LaunchConfig config(shape, stream);
  FASTACT_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel, const_cast<void**>(parameters)));
}
#endif

SharedMemory shared_of(const void* kernel) {
  static KnownOfKernels<SharedMemory> known;
  return known.of(kernel, [&](int device) {
    cudaFuncAttributes attributes;
    FASTACT_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    int unasked, most;
    FASTACT_CUDA_CHECK(
        cudaDeviceGetAttribute(&unasked, cudaDevAttrMaxSharedMemoryPerBlock, device));
    FASTACT_CUDA_CHECK(
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const int own = int(attributes.sharedSizeBytes);
    return SharedMemory{own, unasked - own, most - own};
  });
}

void allow_shared(const void* kernel) {
  static KnownOfKernels<bool> allowed;
  const int most = shared_of(kernel).most;
  allowed.of(kernel, [&](int) {
    FASTACT_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    return true;
  });
}

bool has_room_for_clusters(const void* kernel, const Shape& shape) {
  static KnownOfKernels<bool> known;
  const auto find = [&](int device) {
    constexpr int kSince = 90;  // a compute capability
    int has_clusters = 0, at_once = 0;
    cudaFuncAttributes attributes;
    FASTACT_CUDA_CHECK(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device));
    FASTACT_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    if (!has_clusters || attributes.ptxVersion < kSince) return false;
    // Without it a cluster has 8 blocks at most.
    FASTACT_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    if (shape.shared > 0) allow_shared(kernel);
    const LaunchConfig config(shape, nullptr);
    if (cudaOccupancyMaxActiveClusters(&at_once, kernel, &config) == cudaSuccess)
      return at_once > 0;
    cudaGetLastError();  // the runtime remembers it otherwise
    return false;
  };
  return known.of(kernel, find, shape);
}

std::string problem_of_machine() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return "";
  cudaGetLastError();  // the runtime remembers it otherwise
  if (error == cudaSuccess) return cure_of(cudaErrorNoDevice);
  if (const char* cure = cure_of(error)) return cure;
  return std::string("CUDA does not start: ") + cudaGetErrorString(error);
}

std::string problem_of_device(int device) {
  int count = 0;
  FASTACT_CUDA_CHECK(cudaGetDeviceCount(&count));
  if (device >= count)
    return "this process sees " + std::to_string(count) + " CUDA device(s), counted from 0";
  cudaError_t error;
  try {
    const DeviceGuard guard(device);
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, probe);
  } catch (const CudaError& no_context) {
    error = no_context.code;
  }
  if (error == cudaSuccess) return "";
  cudaGetLastError();
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction)
    return std::string("CUDA does not start there: ") + cudaGetErrorName(error) + " (" +
           cudaGetErrorString(error) + ")";
  const DeviceFacts facts = facts_of(device);
  return facts.name + " has compute capability " + facts.capability +
         ", which is not among those " + "that were built (" + architectures() +
         "); build with -C cmake.define." + "CMAKE_CUDA_ARCHITECTURES=native";
}

DeviceFacts facts_of(int device) {
  cudaDeviceProp properties;
  FASTACT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return {properties.name,
          std::to_string(properties.major) + "." + std::to_string(properties.minor),
          int64_t(properties.totalGlobalMem), properties.multiProcessorCount};
}

int device_count() {
  int count = 0;
  FASTACT_CUDA_CHECK(cudaGetDeviceCount(&count));
  return count;
}

std::string architectures() { return FASTACT_CUDA_ARCHITECTURES; }

std::string compiler() {
#if defined(__CUDACC_VER_MAJOR__)
  return "nvcc " + std::to_string(__CUDACC_VER_MAJOR__) + "." +
         std::to_string(__CUDACC_VER_MINOR__) + "." + std::to_string(__CUDACC_VER_BUILD__);
#else
  return "the host's, for the emulated device";
#endif
}

int driver_version() {
  int version = 0;
  cudaDriverGetVersion(&version);
  return version;
}

int device_of_stream(cudaStream_t stream) {
  int device = 0;
  FASTACT_CUDA_CHECK(cudaStreamGetDevice(stream, &device));
  return device;
}

int device_of_memory(const void* p) {
  if (!p) {
    int device = 0;
    FASTACT_CUDA_CHECK(cudaGetDevice(&device));
    return device;
  }
  cudaPointerAttributes attributes{};
  FASTACT_CUDA_CHECK(cudaPointerGetAttributes(&attributes, p));
  return attributes.type == cudaMemoryTypeUnregistered ? -1 : attributes.device;
}

void make_wait(int device, cudaStream_t waiting, cudaStream_t awaited) {
  if (waiting == awaited) return;
  const DeviceGuard guard(device);
  const Event event;
  FASTACT_CUDA_CHECK(cudaEventRecord(event.handle, awaited));
  FASTACT_CUDA_CHECK(cudaStreamWaitEvent(waiting, event.handle, 0));
}

void fill(void* p, int64_t item, uint64_t bits, cudaStream_t stream) {
  const Shape one{1, kWarp};
  if (item == 1)
    launch(fill_one<uint8_t>, one, stream, static_cast<uint8_t*>(p), bits);
  else if (item == 2)
    launch(fill_one<uint16_t>, one, stream, static_cast<uint16_t*>(p), bits);
  else if (item == 4)
    launch(fill_one<uint32_t>, one, stream, static_cast<uint32_t*>(p), bits);
  else
    launch(fill_one<uint64_t>, one, stream, static_cast<uint64_t*>(p), bits);
}

FASTACT_END_NAMESPACE
