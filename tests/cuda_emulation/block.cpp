#include "block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "block_state.h"
#include "host_calls.h"
#include "kernel_code.h"
#include "shared.h"

// The coordinates of the running thread, which kernels read through threadIdx and its likes.
uint3 fastact_thread_index, fastact_block_index;
dim3 fastact_block_size, fastact_grid_size;

namespace fastact::emulation {

Now now;
Running self;

namespace {

uint32_t clock = now.epoch;  // the last epoch that began
Order order = Order::kAlternate;
std::minstd_rand shuffler;

std::string triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}
std::string text(const uint3& v) { return triple(v.x, v.y, v.z); }

// Runs threads that have not begun, until one fails or none is left; comes back on this fiber.
void run_fresh() {
  while (self.next_fresh < self.order.size() && !self.error) {
    const int rank = self.order[self.next_fresh++];
    make_current(rank);
    try {
      self.grid->call(self.grid->arguments);
    } catch (const Cancelled&) {
    } catch (...) {
      if (!self.error) self.error = std::current_exception();
    }
    // The thread that ends here may be another than the one that began: now.rank is right for both.
    self.threads[size_t(now.rank)].state = State::kDone;
    ++this_block().done;
    this_warp().done |= 1u << this_lane();
  }
}

std::vector<Fiber*>& idle_fibers() {
  static auto* idle = new std::vector<Fiber*>;
  return *idle;
}

Fiber* take_fiber() {
  auto& idle = idle_fibers();
  if (idle.empty())
    return new Fiber([](Fiber& fiber) {
      for (;;) {
        run_fresh();
        idle_fibers().push_back(&fiber);
        fiber.suspend();
      }
    });
  Fiber* taken = idle.back();
  idle.pop_back();
  return taken;
}

void resume(Fiber* fiber) {
  self.running = fiber;
  fiber->resume();
}

// Lets all threads go on that wait for a state which has come about. False if there are none.
bool open_cluster() {
  bool opened = false;
  for (size_t i = 0; i < self.threads.size(); ++i) {
    Thread& thread = self.threads[i];
    const Block& block = self.blocks[i / now.size];
    if ((thread.state == State::kAtCluster && self.opened == self.threads.size()) ||
        (thread.state == State::kAtMailbox && block.has_all(thread))) {
      thread.state = State::kReady;
      opened = true;
    }
  }
  return opened;
}

// Opens the barriers at which all threads of a block wait. False if there are none.
bool open_barriers() {
  bool opened = false;
  for (size_t b = 0; b < self.blocks.size(); ++b) {
    const auto first = self.threads.begin() + ptrdiff_t(b * now.size), end = first + now.size;
    const auto waits = [&](const Thread& thread) {
      return thread.state == State::kAtBarrier && thread.site == first->site;
    };
    if (!std::all_of(first, end, waits)) continue;
    for (auto thread = first; thread != end; ++thread) thread->state = State::kReady;
    self.blocks[b].epoch = ++clock;
    opened = true;
  }
  return opened;
}

// No thread can go on: opens what all wait for. False if all have returned.
bool settle() {
  if (open_cluster() || open_barriers()) return true;
  const auto is_done = [](const Thread& thread) { return thread.state == State::kDone; };
  if (std::all_of(self.threads.begin(), self.threads.end(), is_done)) return false;
  for (int w = 0; w < self.warp_count; ++w)
    if (!self.warps[w].meetings.empty()) fault_meeting(w, self.warps[w].meetings.front());
  const auto find_first = [](State state) {
    const auto waits = [&](const Thread& thread) { return thread.state == state; };
    const auto found = std::find_if(self.threads.begin(), self.threads.end(), waits);
    return found == self.threads.end() ? -1 : int(found - self.threads.begin());
  };
  const int waits = find_first(State::kAtBarrier);
  if (waits < 0) {
    const int last = std::max(find_first(State::kAtCluster), find_first(State::kAtMailbox));
    make_current(last);
    fault("a wait for the cluster that never ends: " + whereabouts(last), this_thread().site);
  }
  const Site site = self.threads[size_t(waits)].site;
  const auto first = waits / int(now.size) * int(now.size);
  for (int i = first; i < first + int(now.size); ++i)
    if (self.threads[size_t(i)].state != State::kAtBarrier ||
        !(self.threads[size_t(i)].site == site)) {
      make_current(waits);
      fault("divergent __syncthreads: " + whereabouts(i), site);
    }
  return true;
}

// number: of the cluster in its grid; first: its first block.
void begin_cluster(uint32_t number, const uint3& first) {
  Order direction = order;
  if (direction == Order::kAlternate)
    direction = (now.launch ^ number) & 1 ? Order::kBackward : Order::kForward;
  std::iota(self.order.begin(), self.order.end(), 0);
  if (direction == Order::kBackward) std::reverse(self.order.begin(), self.order.end());
  if (direction == Order::kShuffle) std::shuffle(self.order.begin(), self.order.end(), shuffler);
  self.next_fresh = 0;
  for (Thread& thread : self.threads) {
    thread.state = State::kFresh;
    thread.opened = thread.knows_cluster = false;
    thread.round = -1;
  }
  for (int w = 0; w < self.warp_count; ++w) {
    Warp& warp = self.warps[w];
    warp.done = 0;
    if (warp.time == 0) continue;
    warp.time = 0;
    memset(warp.known, 0, sizeof(warp.known));
  }
  now.block = ++clock;
  self.opened = 0;
  for (size_t b = 0; b < self.blocks.size(); ++b) {
    const uint3 index{first.x + unsigned(b), first.y, first.z};
    self.blocks[b] = {index, ++clock, 0, {}};
  }
}

void run_cluster() {
  for (bool backward = false;; backward = !backward) {
    bool advanced = false;
    for (size_t i = 0; i < self.order.size() && !self.error; ++i) {
      const int rank = self.order[backward ? self.order.size() - 1 - i : i];
      const Thread& thread = self.threads[size_t(rank)];
      if (thread.state == State::kFresh)
        resume(take_fiber());
      else if (thread.state == State::kReady)
        resume(thread.fiber);
      else
        continue;
      advanced = true;
    }
    if (self.error) std::rethrow_exception(self.error);
    if (!advanced && !settle()) return;
  }
}

// Unwinds every thread that still waits, so that its fiber can be used again.
void cancel() {
  if (!self.error) self.error = std::make_exception_ptr(Cancelled());
  self.cancelling = true;
  for (Thread& thread : self.threads)
    if (thread.state != State::kFresh && thread.state != State::kDone) resume(thread.fiber);
  self.cancelling = false;
  self.error = nullptr;
  for (Warp& warp : self.warps) warp.meetings.clear();
}

void prepare_threads(const dim3& size, unsigned cluster) {
  now.size = size.x * size.y * size.z;
  self.blocks.resize(cluster);
  const size_t count = size_t{now.size} * cluster;
  self.threads.assign(count, Thread{});
  self.order.resize(count);
  self.warp_count = int((count + kWarpLanes - 1) / kWarpLanes);
  for (int w = 0; w < self.warp_count; ++w) self.warps[w].present = 0;
  size_t rank = 0;
  for (unsigned b = 0; b < cluster; ++b)
    for (unsigned z = 0; z < size.z; ++z)
      for (unsigned y = 0; y < size.y; ++y)
        for (unsigned x = 0; x < size.x; ++x, ++rank) {
          self.threads[rank].index = {x, y, z};
          self.warps[rank / kWarpLanes].present |= 1u << (rank % kWarpLanes);
        }
}

void run_grid(const Grid& grid) {
  self.grid = &grid;
  fastact_block_size = grid.block;
  fastact_grid_size = grid.grid;
  prepare_threads(grid.block, grid.cluster);
  set_dynamic_shared(grid.shared);
  now.launch = now.epoch = ++clock;
  const uint64_t row = grid.grid.x / grid.cluster, plane = row * grid.grid.y;
  const uint64_t count = plane * grid.grid.z;
  const bool backward =
      order == Order::kBackward || (order == Order::kAlternate && (now.launch & 1));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t number = backward ? count - 1 - i : i;
    begin_cluster(uint32_t(number), {unsigned(number % row) * grid.cluster,
                                     unsigned(number % plane / row), unsigned(number / plane)});
    run_cluster();
  }
}

cudaError_t check(const Grid& grid) {
  const dim3 &g = grid.grid, &b = grid.block;
  if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0 || g.x > 0x7fffffff ||
      g.y > 65535 || g.z > 65535 || b.x > kMaxThreads || b.y > kMaxThreads || b.z > 64 ||
      size_t{b.x} * b.y * b.z > kMaxThreads)
    return cudaErrorInvalidConfiguration;
  if (size_t{b.x} * b.y * b.z > size_t(threads_of(grid.kernel)) ||
      int64_t(grid.shared) > dynamic_shared_limit(grid.kernel))
    return cudaErrorInvalidValue;
  if (grid.cluster > 1) {
    if (grid.cluster > most_of_cluster(grid.kernel) || g.x % grid.cluster)
      return cudaErrorInvalidClusterSize;
    if (size_t{b.x} * b.y * b.z % kWarpLanes)
      throw std::invalid_argument("clusters of parts of warps are not emulated");
  }
  int device = -1;
  if (cudaStreamGetDevice(grid.stream, &device) != cudaSuccess || device != now.device)
    return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

}  // namespace

void make_current(int rank) {
  now.rank = rank;
  fastact_thread_index = self.threads[size_t(rank)].index;
  fastact_block_index = this_block().index;
  now.epoch = this_block().epoch;
}

void wait(State state, const Site& site) {
  const int rank = now.rank;
  Thread& thread = this_thread();
  thread.state = state;
  thread.site = site;
  thread.fiber = self.running;
  thread.fiber->suspend();
  make_current(rank);
  if (self.cancelling) throw Cancelled();
}

std::string whereabouts(int rank) {
  const Thread& thread = self.threads[size_t(rank)];
  const std::string who = "thread " + text(thread.index);
  switch (thread.state) {
    case State::kDone:
      return who + " has returned";
    case State::kAtBarrier:
      return who + " waits at __syncthreads in " + thread.site.text();
    case State::kAtCluster:
      return who + " waits for all blocks of its cluster in " + thread.site.text();
    case State::kAtMailbox:
      return who + " waits for numbers in " + thread.site.text();
    case State::kAtMeeting:
      return who + " waits for its warp in " + thread.site.text();
    default:
      return who + " has not come";
  }
}

bool Site::operator==(const Site& other) const {
  return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
}

std::string Site::text() const {
  const char* slash = strrchr(file, '/');
  return std::string(function) + " at " + (slash ? slash + 1 : file) + ":" + std::to_string(line);
}

void fault(const std::string& what, const Site& site) {
  std::string message = what;
  if (now.rank >= 0)
    message += "; thread " + text(fastact_thread_index) + " of block " + text(fastact_block_index) +
               " of " + kernel_name(*self.grid);
  if (site.file) message += ", in " + site.text();
  throw Fault(message);
}

void barrier(const Site& site) { wait(State::kAtBarrier, site); }

const void* running_kernel() { return self.grid->kernel; }

void run(const Grid& grid) {
  const Lock lock;
  const bool counted = count_host_call("launch");
  if (empty_launches) {
    if (counted) log_launch(grid);
    return;
  }
  if (now.rank >= 0) fault("a kernel launches another kernel", {});
  cudaGetDevice(&now.device);
  note_context(now.device);
  cudaError_t error = check(grid);
  if (error == cudaSuccess) error = injected("launch");
  if (error != cudaSuccess) return set_last_error(error);
  log_launch(grid);
  try {
    run_grid(grid);
  } catch (...) {
    cancel();
    now.rank = -1;
    throw;
  }
  now.rank = -1;
}

void set_order(Order new_order, uint32_t seed) {
  const Lock lock;
  order = new_order;
  shuffler.seed(seed);
}

}  // namespace fastact::emulation
