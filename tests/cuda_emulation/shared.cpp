#include "shared.h"

#include <algorithm>
#include <vector>

#include "block.h"
#include "kernel_code.h"

namespace fastact::emulation {

namespace {

constexpr uint32_t kSeveralWarps = 0xffffffff;

// The last accesses to one granule of shared memory. Times are of the warp that made them.
struct Granule {
  uint32_t write_epoch, writer, write_time;
  uint32_t read_epoch, read_warp, read_lanes, read_time;
  uint32_t awaited;  // the block in which a copy is on its way
};

// Copies that a thread began and has not waited for; `closed`: how often it had closed some before.
struct Copy {
  SharedRegion* region;
  size_t begin;
  std::vector<char> bytes;
  uint32_t closed;
};
struct Copies {
  uint32_t block = 0, closed = 0;
  std::vector<Copy> begun;
};

}  // namespace

struct SharedRegion {
  const char* name;
  size_t granule;  // bytes
  std::vector<char> bytes;
  std::vector<Granule> granules;

  SharedRegion(const char* name_, size_t granule_, size_t size)
      : name(name_), granule(granule_), bytes(size), granules(size / granule_) {}
};

namespace {

// An access of thread `rank` since the last barrier, at `time` of its warp, comes before this one.
bool ordered(uint32_t rank, uint32_t time) {
  if (int(rank) == now.rank) return true;
  return int(rank) / kWarpLanes == now.rank / kWarpLanes && known_warp_time(int(rank)) > time;
}

std::string element(const SharedRegion& region, int64_t index) {
  return std::string(region.name) + "[" + std::to_string(index) + "]";
}

[[noreturn]] void fault_race(const char* verb, const SharedRegion& region, int64_t index,
                             const std::string& other) {
  fault("race in shared memory: " + std::string(verb) + " of " + element(region, index) + ", " +
            other + " with no barrier between",
        {});
}

std::string thread_text(uint32_t rank) {
  return "thread " + std::to_string(rank) + " of the block";
}

void check_writer(const char* verb, const SharedRegion& region, const Granule& granule,
                  int64_t index) {
  if (granule.write_epoch == now.epoch && !ordered(granule.writer, granule.write_time))
    fault_race(verb, region, index, "which " + thread_text(granule.writer) + " wrote");
}

void check_readers(const SharedRegion& region, const Granule& granule, int64_t index) {
  if (granule.read_epoch != now.epoch) return;
  if (granule.read_warp == kSeveralWarps)
    fault_race("write", region, index, "which threads of several warps read");
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const uint32_t rank = granule.read_warp * kWarpLanes + uint32_t(lane);
    if (granule.read_lanes >> lane & 1 && !ordered(rank, granule.read_time))
      fault_race("write", region, index, "which " + thread_text(rank) + " read");
  }
}

void check_arrived(const char* verb, const SharedRegion& region, const Granule& granule,
                   int64_t index) {
  if (granule.awaited == now.block)
    fault("asynchronous copy: " + std::string(verb) + " of " + element(region, index) +
              ", to which one is on its way",
          {});
}

Copies& copies_of_thread() {
  static auto* all = new std::vector<Copies>(kMaxThreads);
  Copies& copies = (*all)[size_t(now.rank)];
  if (copies.block != now.block) copies = {now.block, 0, {}};
  return copies;
}

void note_write(Granule& granule) {
  granule.write_epoch = now.epoch;
  granule.writer = uint32_t(now.rank);
  granule.write_time = warp_time();
  granule.read_epoch = 0;
}

void note_read(Granule& granule) {
  const auto warp = uint32_t(now.rank / kWarpLanes);
  const uint32_t lane = 1u << (now.rank % kWarpLanes);
  if (granule.read_epoch != now.epoch) {
    granule.read_epoch = now.epoch;
    granule.read_warp = warp;
    granule.read_lanes = lane;
  } else if (granule.read_warp == warp) {
    granule.read_lanes |= lane;
  } else {
    granule.read_warp = kSeveralWarps;
  }
  granule.read_time = warp_time();
}

// The first granule of an element.
Granule* locate(SharedRegion& region, size_t start, size_t item, size_t count, int64_t index) {
  if (index < 0 || uint64_t(index) >= count) shared_fault(region, count, index);
  return &region.granules[(start + size_t(index) * item) / region.granule];
}

}  // namespace

SharedRegion& static_shared(SharedSite& site) {
  if (site.block != now.block) {
    if (!site.region) site.region = new SharedRegion(site.name, site.item, site.item * site.count);
    const auto& arrays = static_arrays(running_kernel());
    if (std::find(arrays.begin(), arrays.end(), &site) == arrays.end())
      fault("static shared memory that the kernel's code does not name: " + std::string(site.name),
            {});
    site.block = now.block;
  }
  return *site.region;
}

SharedRegion& dynamic_shared_region() {
  static auto* region = new SharedRegion("dynamic_shared", 2, 0);
  return *region;
}

// Rounded down to whole granules: an odd byte at the end belongs to no element.
void set_dynamic_shared(size_t bytes) {
  SharedRegion& region = dynamic_shared_region();
  region.bytes.resize(bytes);
  region.granules.resize(bytes / region.granule);
}

size_t size_of(const SharedRegion& region) { return region.bytes.size(); }

void shared_fault(const SharedRegion& region, size_t count, int64_t index) {
  fault("shared memory out of bounds: " + element(region, index) + ", where there are " +
            std::to_string(count) + " elements",
        {});
}

void shared_read(SharedRegion& region, size_t start, size_t item, size_t count, int64_t index,
                 void* to) {
  Granule* granule = locate(region, start, item, count, index);
  for (size_t i = 0; i < item / region.granule; ++i, ++granule) {
    if (granule->write_epoch < now.block)
      fault("uninitialised shared memory: read of " + element(region, index) +
                ", which no thread of the block wrote",
            {});
    check_arrived("read", region, *granule, index);
    check_writer("read", region, *granule, index);
    note_read(*granule);
  }
  memcpy(to, region.bytes.data() + start + size_t(index) * item, item);
}

void shared_write(SharedRegion& region, size_t start, size_t item, size_t count, int64_t index,
                  const void* from) {
  Granule* granule = locate(region, start, item, count, index);
  for (size_t i = 0; i < item / region.granule; ++i, ++granule) {
    check_arrived("write", region, *granule, index);
    check_writer("write", region, *granule, index);
    check_readers(region, *granule, index);
    note_write(*granule);
  }
  memcpy(region.bytes.data() + start + size_t(index) * item, from, item);
}

void shared_write_later(SharedRegion& region, size_t start, size_t item, size_t count,
                        int64_t index, const void* from) {
  shared_write(region, start, item, count, index, from);
  Granule* granule = locate(region, start, item, count, index);
  for (size_t i = 0; i < item / region.granule; ++i) granule[i].awaited = now.block;
  const auto* bytes = static_cast<const char*>(from);
  Copies& copies = copies_of_thread();
  copies.begun.push_back(
      {&region, start + size_t(index) * item, {bytes, bytes + item}, copies.closed});
}

void end_copies() { ++copies_of_thread().closed; }

void await_copies(int newest) {
  Copies& copies = copies_of_thread();
  std::vector<Copy> left;
  for (Copy& copy : copies.begun) {
    if (copy.closed + uint32_t(newest) >= copies.closed) {
      left.push_back(std::move(copy));
      continue;
    }
    SharedRegion& region = *copy.region;
    Granule* granule = &region.granules[copy.begin / region.granule];
    for (size_t i = 0; i < copy.bytes.size() / region.granule; ++i, ++granule) {
      granule->awaited = 0;
      note_write(*granule);
    }
    memcpy(region.bytes.data() + copy.begin, copy.bytes.data(), copy.bytes.size());
  }
  copies.begun = std::move(left);
}

}  // namespace fastact::emulation
