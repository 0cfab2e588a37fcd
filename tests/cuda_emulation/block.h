// Running a grid: its blocks one after another, the threads of a block as fibers.
//
// A cluster's blocks run at the same time (cluster.h). A fiber runs threads to their end, one after
// another, until one has to wait: at a barrier, or for the other lanes of a shuffle. That thread
// keeps the fiber and another fiber goes on. A kernel without barriers thus runs whole blocks on
// one fiber.
#pragma once

#include <cstdint>
#include <exception>

#include "api.h"
#include "fault.h"

namespace fastact::emulation {

constexpr int kWarpLanes = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxShared = 48 << 10;

// The running thread, and the time as its block sees it. Epochs count barriers, blocks (all of a
// cluster as one) and launches alike and are never reset: the epoch that an access left behind
// shows by itself whether it was in this launch, in this block, and before or after the last
// barrier.
struct Now {
  uint32_t launch = 0, block = 0;  // the epochs in which they began
  uint32_t epoch = 2;              // 0: never; 1: the host
  int rank = -1;                   // of the thread in its cluster; -1: no kernel runs
  uint32_t size = 1;               // threads of a block
  int device = 0;
};
extern Now now;

// The block of a cluster to which a thread belongs.
inline uint32_t block_of(uint32_t rank) { return rank / now.size; }

// The same within a warp, where __syncwarp orders: how many there were, and the number of the first
// one after which another lane's accesses are not yet known to this thread to have happened.
uint32_t warp_time();
uint32_t known_warp_time(int rank);  // of a thread in this thread's warp

// Waits for all threads of the block.
void barrier(const Site& site);

// What lanes of a warp do together.
enum class Call { kSync, kIndex, kDown, kXor, kAny };

// Waits for all lanes of the mask; what this lane gets from them.
// bytes: of the value, which the lanes must agree on.
uint64_t meet(Call call, unsigned mask, uint64_t value, int bytes, int argument, int width,
              const Site& site);

// The kernel that runs.
const void* running_kernel();

struct Grid {
  const void* kernel;     // address of the function
  const char* signature;  // its type's mangled name
  dim3 grid, block;
  size_t shared;
  unsigned cluster;  // blocks, along x
  cudaStream_t stream;
  void (*call)(const void* arguments);  // runs the kernel for the thread that is now the current
  const void* arguments;
};

// Runs a grid on the current device, to its end. Throws Fault; what CUDA reports by a code is left
// to cudaGetLastError.
void run(const Grid& grid);

enum class Order { kAlternate, kForward, kBackward, kShuffle };
// In which order the threads of a block and the blocks of a grid take their turns.
void set_order(Order order, uint32_t seed);

}  // namespace fastact::emulation
