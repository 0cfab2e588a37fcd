// Cores that others keep busy: whether a call's threads are worth waiting for.
//
// A parallel region ends with its last thread. Where another process keeps that thread's core busy,
// the region waits for the scheduler, for 4 to 12 ms, though the thread's part of the work takes
// microseconds. One thread would have finished long before. Results do not depend on who runs which
// partition, so that the calling thread may run all of them for a while (runtime.md).
//
// A region's threads note how long their parts took. Each calling thread keeps an account of its
// own, which no other one reads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>

#ifdef __linux__
#include <fcntl.h>
#include <unistd.h>
#endif

#include "cpu/core/tuning.h"

namespace fastact {

// When regions are left out, in this process: FASTACT_BACK_OFF=0 turns it off, and tests have all
// of them left out.
enum BackOffMode : int { kNeverBackOff, kBackOffWhereBusy, kAlwaysBackOff };
inline std::atomic<int> g_back_off{kBackOffWhereBusy};

inline int back_off_mode() { return g_back_off.load(std::memory_order_relaxed); }
inline void choose_back_off(int mode) { g_back_off.store(mode, std::memory_order_relaxed); }

// All times are in nanoseconds, of a clock that never goes back and is read without a system call.
inline int64_t now() {
  using std::chrono::steady_clock;
  return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
}

// Whether the machine has fewer free cores than so many threads would take beside the caller.
#ifdef __linux__
inline const int64_t g_cores = sysconf(_SC_NPROCESSORS_ONLN);

inline bool are_cores_taken(int threads) {
  const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[64] = "";
  const bool is_read = read(file, text, sizeof(text) - 1) > 0;
  close(file);
  int running = 0;  // the caller among them; the fourth word is "running/all"
  return is_read && sscanf(text, "%*s %*s %*s %d", &running) == 1 &&
         running + threads - 1 > g_cores;
}
#else
inline bool are_cores_taken(int) { return false; }
#endif

// The account of one calling thread: how much time its parallel regions gained over one thread.
class BackOff {
 public:
  // Whether a region that would begin now is left out, and its work done by the calling thread.
  // are_taken, which takes 5 us, is asked after losses alone.
  bool is_serial(int64_t time, int threads, bool (*are_taken)(int threads) = are_cores_taken) {
    if (time < serial_until_) return true;
    if (work_left_ > 0 && are_taken(threads)) {
      serial_until_ = time + kAskedAgain;
      return true;
    }
    work_left_ = 0;
    return false;
  }

  // The calling thread has done the work of a region that was left out.
  void note_alone(int64_t begin, int64_t end) { work_left_ -= end - begin; }

  // A region has ended, of parts that one thread would have needed so long for. Whether the next
  // ones are left out.
  bool note(int64_t begin, int64_t end, int64_t alone) {
    int64_t gain = alone - (end - begin);
    const int64_t forgiven = begin - last_end_ < kAwake ? kRegion : kWaking;
    if (gain < 0) gain = std::min<int64_t>(0, gain + forgiven);
    last_end_ = end;
    balance_ = std::min(kMostSaved, balance_ + gain);
    if (balance_ > -kTolerated) return false;
    balance_ = 0;
    serial_until_ = end + kPause;
    work_left_ = kMostWork;
    return true;
  }

 private:
  // Gains of regions before make up for a loss of this much: two of a scheduler's slices.
  static constexpr int64_t kMostSaved = 10'000'000;
  // How much they may lose after that.
  static constexpr int64_t kTolerated = 500'000;
  // The costs of a region, and of waking its threads, which sleep soon where they have no
  // work. Both happen on free cores, too.
  static constexpr int64_t kRegion = 3'000;
  static constexpr int64_t kAwake = 20'000;
  static constexpr int64_t kWaking = 200'000;
  // How long regions are left out. Then one is tried, which may take a slice again, unless the
  // cores seem to be taken, which is asked so often. After so much work on one thread a region is
  // tried anyhow: those that are taken may be others than this process has.
  static constexpr int64_t kPause = 40'000'000;
  static constexpr int64_t kAskedAgain = 5'000'000;
  static constexpr int64_t kMostWork = 200'000'000;

  int64_t balance_ = kMostSaved;
  int64_t last_end_ = 0;
  int64_t serial_until_ = 0;
  int64_t work_left_ = 0;  // for one thread, before a region is tried anyhow
};

// How long one thread would need for a region of so many threads, by the times of the first ones'
// parts, which this sorts. A part lasts longer than its work where its thread was interrupted: none
// counts for more than a few times the middle one.
inline int64_t time_alone(int64_t* parts, int count, int threads) {
  constexpr int64_t kNoWork = 100;  // less: there were fewer pieces of work than threads
  constexpr int64_t kUneven = 4;
  std::sort(parts, parts + count);
  const int64_t* working = std::lower_bound(parts, parts + count, kNoWork);
  const int64_t* end = parts + count;
  if (working == end) return 0;
  const int64_t most = kUneven * working[(end - working - 1) / 2];
  int64_t sum = 0;
  for (const int64_t* part = working; part != end; ++part) sum += std::min(*part, most);
  return sum * threads / count;
}

// The account of the calling thread's regions.
inline BackOff& own_back_off() {
  static thread_local BackOff back_off;
  return back_off;
}

// One region, from its beginning to its end.
class Region {
 public:
  // Whether it is to begin at all.
  bool begin(int threads) {
    const int mode = back_off_mode();
    own_ = mode == kNeverBackOff ? nullptr : &own_back_off();
    if (!own_) return true;
    threads_ = threads;
    begin_ = now();
    if (mode == kAlwaysBackOff || own_->is_serial(begin_, threads)) return false;
    for (int i = 0; i < timed(); ++i) parts_[i].time = 0;
    return true;
  }

  // A thread of the region does its part of the work.
  template <class Work>
  void time_part(int thread, const Work& work) {
    if (!own_ || thread >= timed()) return work();
    const int64_t begin = now();
    work();
    parts_[thread].time = now() - begin;
  }

  void end() {
    if (!own_) return;
    const int64_t end = now();
    int64_t parts[kTimed];
    for (int i = 0; i < timed(); ++i) parts[i] = parts_[i].time;
    own_->note(begin_, end, time_alone(parts, timed(), threads_));
  }

  // Ends a region that was not to begin, after its work.
  void end_alone() { own_->note_alone(begin_, now()); }

 private:
  // The threads whose times the caller reads: more would tell it little.
  static constexpr int kTimed = 8;

  int timed() const { return std::min(threads_, kTimed); }

  struct alignas(kCacheLine) Part {
    int64_t time;
  };
  Part parts_[kTimed];
  BackOff* own_;  // null: it is not timed
  int64_t begin_;
  int threads_;
};

}  // namespace fastact
