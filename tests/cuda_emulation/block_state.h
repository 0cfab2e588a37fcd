// The state of the running block, for block.cpp and warp.cpp alone.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "block.h"
#include "cluster.h"
#include "fiber.h"

namespace fastact::emulation {

enum class State { kFresh, kReady, kAtBarrier, kAtMeeting, kAtCluster, kAtMailbox, kDone };

struct Thread {
  State state;
  uint3 index;
  Fiber* fiber;  // on which it waits
  Site site;     // where it waits
  uint64_t result;
  bool opened, knows_cluster;  // of mailboxes
  int round;                   // for which it waits or waited last; -1: none
};

// Lanes that wait for one another.
struct Meeting {
  Call call;
  unsigned mask, arrived;
  int bytes;
  Site site;
  uint64_t value[kWarpLanes];
  int argument[kWarpLanes], width[kWarpLanes];
};

struct Warp {
  unsigned present = 0, done = 0;
  std::vector<Meeting> meetings;
  uint32_t time = 0;
  uint32_t known[kWarpLanes][kWarpLanes] = {};  // lane b knows what lane a did before known[b][a]
};

// One of two mailboxes in turn. `rounds`: how many it has had; of[i]: in which the i-th number
// came.
struct Box {
  int rounds = 0, expected = -1, received = 0;
  std::vector<double> numbers;
  std::vector<int> of;
};

// A block of the cluster that runs, and its mailboxes.
struct Block {
  uint3 index;
  uint32_t epoch;
  int done = 0;  // threads
  Box boxes[2];

  // Whether all numbers have come for which a thread waits.
  bool has_all(const Thread& thread) const {
    return boxes[thread.round & 1].rounds > thread.round / 2;
  }
};

struct Cancelled {};  // unwinds a thread that waits when another has failed

// The running cluster, mostly of one block.
struct Running {
  const Grid* grid = nullptr;
  std::vector<Thread> threads;
  std::vector<int> order;
  size_t next_fresh = 0;
  std::vector<Block> blocks;
  size_t opened = 0;  // threads that opened a mailbox
  Warp warps[kMostOfCluster * kMaxThreads / kWarpLanes];
  int warp_count = 0;
  Fiber* running = nullptr;
  bool cancelling = false;
  std::exception_ptr error;
};
extern Running self;

inline Thread& this_thread() { return self.threads[size_t(now.rank)]; }
inline Block& this_block() { return self.blocks[size_t(block_of(uint32_t(now.rank)))]; }
inline Warp& this_warp() { return self.warps[now.rank / kWarpLanes]; }
inline int this_lane() { return now.rank % kWarpLanes; }

// Makes a thread the current one: for the kernel that runs, and for what a fault says.
void make_current(int rank);
// Gives the launching context its turn, until the thread is ready again.
void wait(State state, const Site& site);
// What a thread does, in words.
std::string whereabouts(int rank);
// Reports lanes of a warp that wait in vain.
[[noreturn]] void fault_meeting(int warp, const Meeting& m);

}  // namespace fastact::emulation
