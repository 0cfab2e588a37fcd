#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "block.h"
#include "cluster.h"

namespace fastact::emulation {
namespace {

constexpr size_t kSpace = size_t{64} << 30;  // addresses of a device; reserved, never mapped
constexpr size_t kAlignment = 256;
constexpr size_t kGap = 4096;  // at least, between two allocations
constexpr uint32_t kHostEpoch = 1;
// In place of the one thread that read a byte: several of one block (of a cluster's k-th, kSeveral
// - k), or of several blocks.
constexpr uint32_t kSeveral = 0xfffffffe, kBlocks = 0xffffffff;
bool are_several(uint32_t rank) { return rank <= kSeveral && rank > kSeveral - kMostOfCluster; }
uint32_t block_of_reader(uint32_t rank) {
  return are_several(rank) ? kSeveral - rank : block_of(rank);
}

using Allocations = std::map<uintptr_t, Allocation>;

struct Space {
  uintptr_t base = 0;
  size_t cursor = kGap;
};

// Not destroyed: arrays may outlive the order in which a process ends.
Allocations& allocations() {
  static auto* all = new Allocations;
  return *all;
}
Space spaces[kDevices];
size_t live = 0;
Allocation* latest = nullptr;  // of the last access

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Goes forward through the addresses and comes back only at their end, so that a freed address
// stays invalid for long.
uintptr_t find_hole(Space& space, size_t size) {
  const size_t needed = round_up(size, kAlignment) + kGap;
  if (needed + kGap > kSpace) return 0;
  for (int pass = 0; pass < 2; ++pass) {
    while (space.cursor + needed <= kSpace) {
      const uintptr_t candidate = space.base + space.cursor;
      auto next = allocations().upper_bound(candidate + needed);
      if (next == allocations().begin()) return candidate;
      const Allocation& below = std::prev(next)->second;
      if (below.address + below.size + kGap <= candidate || below.address < space.base)
        return candidate;
      space.cursor = round_up(below.address + below.size + kGap - space.base, kAlignment);
    }
    space.cursor = kGap;
  }
  return 0;
}

template <class T>
T* zeros(size_t n) {
  return static_cast<T*>(calloc(n, sizeof(T)));
}

Allocation* find(const void* p, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto holds = [&](const Allocation& a) {
    return address >= a.address && address - a.address <= a.size &&
           bytes <= a.size - (address - a.address);
  };
  if (latest && holds(*latest)) return latest;
  auto next = allocations().upper_bound(address);
  if (next == allocations().begin()) return nullptr;
  Allocation& below = std::prev(next)->second;
  if (!holds(below)) return nullptr;
  return latest = &below;
}

std::string describe(const Allocation& a) {
  return std::to_string(a.size) + " bytes on device " + std::to_string(a.device);
}

[[noreturn]] void fault_outside(const char* verb, const void* p, size_t bytes, const Site& site) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  std::string nearest = "no allocation is near";
  auto next = allocations().upper_bound(address);
  if (next != allocations().begin()) {
    const Allocation& below = std::prev(next)->second;
    const size_t offset = address - below.address;
    if (offset < below.size + kGap)
      nearest = "byte offset " + std::to_string(offset) + " of an allocation of " + describe(below);
  }
  if (next != allocations().end() && next->first - address < kGap)
    nearest = std::to_string(next->first - address) + " bytes before an allocation of " +
              describe(next->second);
  fault(std::string("global memory out of bounds: ") + verb + " of " + std::to_string(bytes) +
            " bytes, " + nearest,
        site);
}

std::string place(const Allocation& a, size_t offset) {
  return "byte offset " + std::to_string(offset) + " of an allocation of " + describe(a);
}

// Whether a touch of this cluster was by another block, or by several.
bool is_elsewhere(const Touch& then) {
  return then.rank == kBlocks || block_of_reader(then.rank) != block_of(uint32_t(now.rank));
}

[[noreturn]] void fault_conflict(const char* what, const Allocation& a, size_t offset,
                                 const Touch& before, const Site& site) {
  const std::string by = before.epoch < now.block || is_elsewhere(before) ? "another block"
                         : are_several(before.rank)
                             ? "other threads of the block"
                             : "thread " + std::to_string(before.rank) + " of the block";
  fault(std::string("conflict in global memory: ") + what + " by " + by +
            " in the same launch with no barrier between, " + place(a, offset),
        site);
}

// What the running thread does now and another did then have no order.
bool conflicts(const Touch& then) {
  return then.epoch >= now.launch && (then.epoch < now.block || is_elsewhere(then) ||
                                      (then.epoch == now.epoch && then.rank != uint32_t(now.rank)));
}

Allocation& check(const char* verb, const void* p, size_t bytes, size_t alignment,
                  const Site& site) {
  Allocation* a = find(p, bytes);
  if (!a) fault_outside(verb, p, bytes, site);
  if (a->device != now.device)
    fault(std::string("wrong device: ") + verb + " of memory of device " +
              std::to_string(a->device) + " by a kernel on device " + std::to_string(now.device),
          site);
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (address % alignment)
    fault(std::string("misaligned ") + verb + " of " + std::to_string(bytes) + " bytes: address " +
              "is " + std::to_string(address % alignment) + " past a multiple of " +
              std::to_string(alignment) + ", " + place(*a, address - a->address),
          site);
  return *a;
}

}  // namespace

void Allocation::Free::operator()(void* p) const { free(p); }

void* allocate(size_t size, int device) {
  Space& space = spaces[device];
  if (space.base == 0) {
    void* base =
        mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    space.base = reinterpret_cast<uintptr_t>(base);
  }
  const uintptr_t address = find_hole(space, size);
  if (address == 0) return nullptr;
  Allocation made;
  made.address = address;
  made.size = size;
  made.device = device;
  made.bytes.reset(zeros<char>(size));
  made.written.reset(zeros<Touch>(size));
  made.read.reset(zeros<Touch>(size));
  if (!made.bytes || !made.written || !made.read) return nullptr;
  space.cursor = address - space.base + round_up(size, kAlignment) + kGap;
  allocations().emplace(address, std::move(made));
  live += size;
  return reinterpret_cast<void*>(address);
}

bool release(void* p) {
  const auto found = allocations().find(reinterpret_cast<uintptr_t>(p));
  if (found == allocations().end()) return false;
  live -= found->second.size;
  latest = nullptr;
  allocations().erase(found);
  return true;
}

size_t live_bytes() { return live; }

int device_of(const void* p, size_t bytes) {
  const Allocation* a = find(p, bytes);
  return a ? a->device : -1;
}

void write_from_host(void* to, const void* from, size_t bytes) {
  Allocation* a = find(to, bytes);
  if (!a) fault_outside("write", to, bytes, {});
  const size_t offset = reinterpret_cast<uintptr_t>(to) - a->address;
  memcpy(a->bytes.get() + offset, from, bytes);
  std::fill_n(a->written.get() + offset, bytes, Touch{kHostEpoch, 0});
}

void read_to_host(void* to, const void* from, size_t bytes) {
  const Allocation* a = find(from, bytes);
  if (!a) fault_outside("read", from, bytes, {});
  const size_t offset = reinterpret_cast<uintptr_t>(from) - a->address;
  for (size_t i = offset; i < offset + bytes; ++i)
    if (a->written[i].epoch == 0)
      fault("uninitialised global memory: the host reads " + place(*a, i), {});
  memcpy(to, a->bytes.get() + offset, bytes);
}

void kernel_read(void* to, const void* from, size_t bytes, size_t alignment, const Site& site) {
  Allocation& a = check("load", from, bytes, alignment, site);
  const size_t offset = reinterpret_cast<uintptr_t>(from) - a.address;
  const auto rank = uint32_t(now.rank);
  for (size_t i = offset; i < offset + bytes; ++i) {
    const Touch written = a.written[i];
    if (written.epoch == 0) fault("uninitialised global memory: load of " + place(a, i), site);
    if (conflicts(written)) fault_conflict("load of what was stored", a, i, written, site);
    Touch& read = a.read[i];
    if (read.epoch >= now.launch && (read.epoch < now.block || is_elsewhere(read)))
      read = {now.epoch, kBlocks};
    else if (read.epoch < now.launch || (read.epoch < now.epoch && read.rank != kBlocks))
      read = {now.epoch, rank};
    else if (read.rank != rank && read.rank != kBlocks)
      read.rank = kSeveral - block_of(rank);
  }
  memcpy(to, a.bytes.get() + offset, bytes);
}

void kernel_bring_near(const void* p, size_t bytes, const Site& site) {
  check("prefetch", p, bytes, 16, site);
  if (bytes % 16) fault("a prefetch of " + std::to_string(bytes) + " bytes", site);
}

void kernel_write(void* to, const void* from, size_t bytes, size_t alignment, const Site& site) {
  Allocation& a = check("store", to, bytes, alignment, site);
  const size_t offset = reinterpret_cast<uintptr_t>(to) - a.address;
  for (size_t i = offset; i < offset + bytes; ++i) {
    const Touch written = a.written[i], read = a.read[i];
    if (conflicts(written)) fault_conflict("store to what was stored", a, i, written, site);
    if (conflicts(read)) fault_conflict("store to what was loaded", a, i, read, site);
    a.written[i] = {now.epoch, uint32_t(now.rank)};
  }
  memcpy(a.bytes.get() + offset, from, bytes);
}

}  // namespace fastact::emulation
