// Functions of OpenMP and of the operating system for the Cython code, with stand-ins where a
// platform lacks them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "common/core/dlpack.h"
#include "cpu/core/back_off.h"
#include "cpu/core/tuning.h"

namespace fastact {

#ifdef _OPENMP
constexpr int kOpenMP = _OPENMP;
inline int omp_limit() { return omp_get_max_threads(); }
inline bool in_parallel() { return omp_in_parallel(); }
inline int team_size() { return omp_get_num_threads(); }  // of the region that calls this
#else
constexpr int kOpenMP = 0;
inline int omp_limit() { return 1; }
inline bool in_parallel() { return false; }
inline int team_size() { return 1; }
#endif

// The thread count that this thread has asked for by `with num_threads(n)`; 0: none.
inline int& local_threads() {
  static thread_local int value = 0;
  return value;
}

// The PlanDraft (call_cache.pyx) of the call that this thread is recording; null: none.
inline void*& current_draft() {
  static thread_local void* draft = nullptr;
  return draft;
}

// Whether this thread computes an operator of a framework: who looks at operators has seen it.
inline bool& inside_operator() {
  static thread_local bool inside = false;
  return inside;
}

// Settings of the process, which are read without the GIL while another thread may set them.
// Nothing else depends on them: the order of other memory does not matter.
inline std::atomic<int> g_process_threads{1};
inline std::atomic<bool> g_forked{false};

inline int process_threads() { return g_process_threads.load(std::memory_order_relaxed); }
inline void choose_process_threads(int n) { g_process_threads.store(n, std::memory_order_relaxed); }
inline bool is_forked() { return g_forked.load(std::memory_order_relaxed); }
inline void become_forked() { g_forked.store(true, std::memory_order_relaxed); }

inline const char* compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GCC " __VERSION__;
#else
  return "unknown";
#endif
}

#ifdef __SANITIZE_THREAD__
inline void tsan_acquire(void* at) { __tsan_acquire(at); }
inline void tsan_release(void* at) { __tsan_release(at); }
#else
inline void tsan_acquire(void*) {}
inline void tsan_release(void*) {}
#endif

// A job of any type, cut into partitions: function(job, number, count) does the one of that number.
// How many they are, and which one writes what, is the job's; who runs them is not. The parallel
// region is Cython's (binding/parallel.pyx).
//
// libgomp waits by futexes, which ThreadSanitizer does not see: it is told that what was written
// before the region is read in it, and what is written in it is read after. Two partitions of one
// region stay unordered, so that a race between them is found.
class Partitions {
 public:
  template <class Job>
  Partitions(void (*function)(const Job*, int64_t, int64_t), const Job* job)
      : function_(reinterpret_cast<Any>(function)),
        job_(job),
        call_([](const Partitions& self, int64_t number, int64_t count) {
          reinterpret_cast<void (*)(const Job*, int64_t, int64_t)>(self.function_)(
              static_cast<const Job*>(self.job_), number, count);
        }) {}

  // Begins the region. false: it is left out, and the calling thread has run all partitions.
  bool begin(int count) {
    if (region_.begin(count)) {
      tsan_release(&begun_);
      return true;
    }
    for (int number = 0; number < count; ++number) call_(*this, number, count);
    region_.end_alone();
    return false;
  }
  // A thread's own of them: one, unless the region has fewer threads than were asked for.
  void run_share(int thread, int count) {
    tsan_acquire(&begun_);
    region_.time_part(thread, [&] {
      for (int number = thread; number < count; number += team_size()) call_(*this, number, count);
    });
    tsan_release(&done_);
  }
  void end() {
    tsan_acquire(&done_);
    region_.end();
  }

 private:
  using Any = void (*)();
  Any function_;
  const void* job_;
  void (*call_)(const Partitions&, int64_t, int64_t);
  Region region_;
  char begun_ = 0, done_ = 0;
};

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

// For memory that is about to be written. Where it had huge pages before, nothing changes.
inline void advise_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes < kBigMemory) return;
  const uintptr_t first = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (first + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (first + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

// Memory for an output that another framework will own, aligned to a cache line and no more: what
// malloc aligns to a huge page it gives back to the system each time, and takes with new faults.
inline void* allocate(size_t bytes) {
  const size_t rounded = (bytes / kCacheLine + 1) * kCacheLine;
  void* memory = nullptr;
  if (posix_memalign(&memory, kCacheLine, rounded)) return nullptr;
  advise_huge_pages(memory, int64_t(rounded));
  return memory;
}

// A tensor over given memory, its axes in the same allocation as itself: one free() releases it.
// Whoever asks for it sets manager_ctx and deleter. Null when memory runs out.
// shape IN (ndim), strides IN (ndim, in elements).
inline DLManagedTensorVersioned* describe_tensor(void* data, DLDevice device, int ndim,
                                                 const int64_t* shape, const int64_t* strides,
                                                 DLDataType dtype) {
  struct Owned {
    DLManagedTensorVersioned tensor;
    int64_t axes[1];  // shape, then strides
  };
  auto* owned = static_cast<Owned*>(malloc(sizeof(Owned) + 2 * ndim * sizeof(int64_t)));
  if (!owned) return nullptr;
  for (int i = 0; i < ndim; ++i) {
    owned->axes[i] = shape[i];
    owned->axes[ndim + i] = strides[i];
  }
  owned->tensor = {
      {1, 1}, nullptr, nullptr, 0, {data, device, ndim, dtype, owned->axes, owned->axes + ndim, 0}};
  return &owned->tensor;
}

// A tensor with its own memory on the CPU, ready to hand over; null when memory runs out.
// strides: of a layout without gaps.
inline DLManagedTensorVersioned* make_tensor(int ndim, const int64_t* shape, const int64_t* strides,
                                             DLDataType dtype) {
  int64_t bytes = dtype.bits / 8;
  for (int i = 0; i < ndim; ++i) bytes *= shape[i];
  void* data = allocate(size_t(bytes));
  auto* tensor = data ? describe_tensor(data, {kDLCPU, 0}, ndim, shape, strides, dtype) : nullptr;
  if (!tensor) {
    free(data);
    return nullptr;
  }
  tensor->deleter = [](DLManagedTensorVersioned* self) {
    free(self->dl_tensor.data);
    free(self);
  };
  return tensor;
}

// The deleter of a tensor that shows another one's memory, which it holds.
template <class Tensor>
void release_inner(Tensor* self) {
  auto* inner = static_cast<DLManagedTensorVersioned*>(self->manager_ctx);
  inner->deleter(inner);
  free(self);
}

// Shows a tensor's memory under other axes; takes `whole` over. Null, with `whole` released, when
// memory runs out.
inline DLManagedTensorVersioned* with_strides(DLManagedTensorVersioned* whole, int ndim,
                                              const int64_t* shape, const int64_t* strides) {
  const DLTensor& t = whole->dl_tensor;
  auto* tensor = describe_tensor(static_cast<char*>(t.data) + t.byte_offset, t.device, ndim, shape,
                                 strides, t.dtype);
  if (!tensor) {
    whole->deleter(whole);
    return nullptr;
  }
  tensor->manager_ctx = whole;
  tensor->deleter = release_inner;
  return tensor;
}

// Wraps a tensor for a consumer that knows only the capsules from before version 1.
inline DLManagedTensor* unversioned(DLManagedTensorVersioned* tensor) {
  auto* wrapper = static_cast<DLManagedTensor*>(malloc(sizeof(DLManagedTensor)));
  if (wrapper) *wrapper = {tensor->dl_tensor, tensor, release_inner};
  return wrapper;
}

}  // namespace fastact
