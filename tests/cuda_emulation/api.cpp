#include "api.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "block.h"
#include "cluster.h"
#include "common/core/macros.h"
#include "host_calls.h"
#include "kernel_code.h"
#include "memory.h"

#define FASTACT_TEXT_OF(x) #x
#define FASTACT_TEXT(x) FASTACT_TEXT_OF(x)

struct CUstream_st {
  int device;
};
struct CUevent_st {
  int device;
};

namespace fastact::emulation {

std::vector<Launch> launch_log;
std::vector<StreamCall> stream_log;
bool empty_launches = false;

namespace {

constexpr int kVersion = 12080;
constexpr int kMultiprocessors[kDevices] = {4, 3, 132};
constexpr size_t kMostShared[kDevices] = {64 << 10, 48 << 10, 227 << 10};  // that ask for it
constexpr int kMajor = 9, kMinor = 0;
constexpr int kNoClusters = 1;  // the device that has none

struct Injection {
  cudaError_t error;
  int times;
};

std::recursive_mutex& mutex() {
  static auto* one = new std::recursive_mutex;
  return *one;
}

// Streams and events live for the whole process: a test that uses one after its end is found by
// the checks and not by a crash.
std::unordered_map<cudaStream_t, int> streams;
std::unordered_set<cudaEvent_t> events;
std::map<std::string, Injection> injections;
// Not destroyed at the process's end: what is left may hold Python objects.
auto& afterwards = *new std::map<std::string, std::function<void()>>;
bool contexts[kDevices] = {true};  // as if the process had chosen device 0

std::map<std::pair<const void*, int>, size_t> asked_shared;  // of a kernel on a device

std::set<std::pair<const void*, int>> asked_clusters;  // larger than the portable ones

bool counting = false;
std::map<std::string, int64_t> counts;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

bool is_device(int device) { return device >= 0 && device < kDevices; }

// The streams that exist without being made: the legacy default and the thread's.
bool is_default(cudaStream_t stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

cudaError_t stream_device(cudaStream_t stream, int* device) {
  if (is_default(stream)) return *device = current_device, cudaSuccess;
  const auto found = streams.find(stream);
  if (found == streams.end()) return cudaErrorInvalidResourceHandle;
  return *device = found->second, cudaSuccess;
}

// Runs `body` as the function of the API that `call` names.
template <class Body>
cudaError_t api(const char* call, Body body) {
  std::function<void()> next;
  cudaError_t error;
  {
    const Lock lock;
    count_host_call(call);
    error = injected(call);
    if (error == cudaSuccess) error = body();
    set_last_error(error);
    if (!afterwards.empty()) {
      const auto found = afterwards.find(call);
      if (found != afterwards.end()) {
        next = std::move(found->second);
        afterwards.erase(found);
      }
    }
  }
  if (next) next();  // other threads may call meanwhile
  return error;
}

// The same for functions that need a context on the current device, and make it.
template <class Body>
cudaError_t api_with_context(const char* call, Body body) {
  return api(call, [&] {
    note_context(current_device);
    return body();
  });
}

// Demangled, without what every name of this library begins with.
std::string readable(const char* mangled) {
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
  std::string text = demangled ? demangled : mangled;
  free(demangled);
  for (const std::string noise :
       {"fastact::" FASTACT_TEXT(FASTACT_ISA) "::", "(anonymous namespace)::", "void "})
    for (size_t at; (at = text.find(noise)) != std::string::npos;) text.erase(at, noise.size());
  return text;
}

}  // namespace

Lock::Lock() : guard_(mutex()) {}

void fail(const std::string& call, cudaError_t error, int times) {
  const Lock lock;
  injections[call] = {error, times};
}

cudaError_t injected(const char* call) {
  if (injections.empty()) return cudaSuccess;
  const auto found = injections.find(call);
  if (found == injections.end()) return cudaSuccess;
  const cudaError_t error = found->second.error;
  if (--found->second.times <= 0) injections.erase(found);
  return error;
}

bool count_host_call(const char* call) {
  if (counting) ++counts[call];
  return counting;
}
void count_host_calls(bool wanted) {
  const Lock lock;
  counting = wanted;
  counts.clear();
}
const std::map<std::string, int64_t>& host_calls() { return counts; }

void set_last_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
}

cudaStream_t make_stream(int device) {
  const Lock lock;
  auto* made = new CUstream_st{device};
  streams[made] = device;
  return made;
}

int64_t dynamic_shared_limit(const void* kernel) {
  const auto found = asked_shared.find({kernel, current_device});
  if (found != asked_shared.end()) return int64_t(found->second);
  return int64_t(kMaxShared) - int64_t(static_shared_of(kernel));
}

unsigned most_of_cluster(const void* kernel) {
  constexpr int kFew = 8;  // multiprocessors that are no room for the largest
  if (current_device == kNoClusters) return 1;
  const bool large =
      asked_clusters.count({kernel, current_device}) && kMultiprocessors[current_device] >= kFew;
  return large ? kMostOfCluster : kPortableCluster;
}

bool has_context(int device) {
  const Lock lock;
  return contexts[device];
}
void forget_contexts() {
  const Lock lock;
  std::fill(contexts, contexts + kDevices, false);
}
void note_context(int device) { contexts[device] = true; }

void after(const std::string& call, std::function<void()> body) {
  const Lock lock;
  afterwards[call] = std::move(body);
}

const std::string& kernel_name(const Grid& grid) {
  static auto* names = new std::unordered_map<const void*, std::string>;
  std::string& name = (*names)[grid.kernel];
  if (!name.empty()) return name;
  Dl_info info;
  if (dladdr(grid.kernel, &info) && info.dli_sname && info.dli_saddr == grid.kernel)
    name = readable(info.dli_sname);
  else
    name = "kernel" + readable(grid.signature);
  return name;
}

void log_launch(const Grid& grid) {
  launch_log.push_back({kernel_name(grid), symbol_of(grid.kernel), now.device, grid.stream,
                        grid.grid, grid.block, grid.shared, static_shared_of(grid.kernel)});
}

}  // namespace fastact::emulation

using namespace fastact::emulation;

#define FASTACT_PAIR(name, code, text) {name, {#name, text}},
static const std::map<cudaError_t, std::pair<const char*, const char*>> kErrors = {
    FASTACT_EMULATED_ERRORS(FASTACT_PAIR)};
#undef FASTACT_PAIR

static std::pair<const char*, const char*> words_of(cudaError_t error) {
  const auto found = kErrors.find(error);
  constexpr const char* kNone = "unrecognized error code";
  return found == kErrors.end() ? std::pair(kNone, kNone) : found->second;
}
const char* cudaGetErrorName(cudaError_t error) { return words_of(error).first; }
const char* cudaGetErrorString(cudaError_t error) { return words_of(error).second; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return api("cudaGetDeviceCount", [&] { return *count = kDevices, cudaSuccess; });
}

cudaError_t cudaGetDevice(int* device) {
  return api("cudaGetDevice", [&] { return *device = current_device, cudaSuccess; });
}

cudaError_t cudaSetDevice(int device) {
  return api("cudaSetDevice", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    note_context(device);
    return current_device = device, cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api("cudaDeviceGetAttribute", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMaxSharedMemoryPerBlock:
        return *value = int(kMaxShared), cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return *value = int(kMostShared[device]), cudaSuccess;
      case cudaDevAttrClusterLaunch:
        return *value = device != kNoClusters, cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api("cudaGetDeviceProperties", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    *properties = {};
    strcpy(properties->name, "emulated device");
    properties->totalGlobalMem = size_t{1} << 36;
    properties->sharedMemPerBlock = kMaxShared;
    properties->warpSize = kWarpLanes;
    properties->maxThreadsPerBlock = properties->maxThreadsPerMultiProcessor = kMaxThreads;
    properties->multiProcessorCount = kMultiprocessors[device];
    properties->major = kMajor;
    properties->minor = kMinor;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api("cudaDriverGetVersion", [&] { return *version = kVersion, cudaSuccess; });
}

cudaError_t cudaMalloc(void** p, size_t size) {
  return api_with_context("cudaMalloc", [&] {
    *p = nullptr;
    if (size == 0) return cudaSuccess;
    *p = allocate(size, current_device);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

cudaError_t cudaFree(void* p) {
  return api("cudaFree", [&] { return !p || release(p) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return api("cudaPointerGetAttributes", [&] {
    const int device = device_of(p, 1);
    const bool known = device >= 0;
    void* here = known ? const_cast<void*>(p) : nullptr;
    *attributes = {known ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, known ? device : -2,
                   here, nullptr};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return api("cudaStreamGetDevice", [&] { return stream_device(stream, device); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return api_with_context("cudaEventCreateWithFlags", [&] {
    *event = new CUevent_st{current_device};
    events.insert(*event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api_with_context("cudaEventRecord", [&] {
    int device;
    const cudaError_t error = stream_device(stream, &device);
    if (error != cudaSuccess) return error;
    if (!events.count(event) || event->device != device) return cudaErrorInvalidResourceHandle;
    stream_log.push_back({"record", device, stream, event});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return api_with_context("cudaStreamWaitEvent", [&] {
    int device;
    const cudaError_t error = stream_device(stream, &device);
    if (error != cudaSuccess) return error;
    if (!events.count(event)) return cudaErrorInvalidResourceHandle;
    stream_log.push_back({"wait", device, stream, event});
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api("cudaEventDestroy", [&] {
    if (!events.erase(event)) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return api_with_context("cudaFuncSetAttribute", [&] {
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
      if (current_device == kNoClusters) return cudaErrorInvalidValue;
      if (value) asked_clusters.insert({kernel, current_device});
      return cudaSuccess;
    }
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        size_t(value) + static_shared_of(kernel) > kMostShared[current_device])
      return cudaErrorInvalidValue;
    asked_shared[{kernel, current_device}] = size_t(value);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return api_with_context("cudaFuncGetAttributes", [&] {
    *attributes = {};
    attributes->sharedSizeBytes = static_shared_of(kernel);
    attributes->maxDynamicSharedSizeBytes = int(dynamic_shared_limit(kernel));
    attributes->maxThreadsPerBlock = threads_of(kernel);
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = kMajor * 10 + kMinor;
    return cudaSuccess;
  });
}

// Some number: what is asked is whether it is 0.
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* kernel,
                                           const cudaLaunchConfig_t* config) {
  return api_with_context("cudaOccupancyMaxActiveClusters", [&] {
    if (config->numAttrs != 1 || config->attrs->id != cudaLaunchAttributeClusterDimension)
      return cudaErrorInvalidValue;
    *count = config->attrs->val.clusterDim.x <= most_of_cluster(kernel) &&
             int64_t(config->dynamicSmemBytes) <= dynamic_shared_limit(kernel);
    return cudaSuccess;
  });
}
