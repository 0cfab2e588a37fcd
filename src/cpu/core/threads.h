// Threads: how many a call may use, decided in one place, and the partitions that they run.
//
// The count is the thread's own (`with num_threads(n)`), else the process's (`set_num_threads`),
// never more than the work deserves, and 1 where threads would not help or would hang:
//   - inside another parallel region of the same OpenMP runtime;
//   - in a child made by fork: libgomp's pool does not survive it, and the first region of the
//     child would wait for ever for threads that are not there.
// threadpoolctl and omp_set_num_threads change omp_get_max_threads: when that has changed since
// this module was loaded, it is a limit.
#pragma once

#include "cpu/core/runtime.h"

namespace fastact {

inline const int g_omp_at_load = omp_limit();

// The most threads that a call made now may use.
inline int thread_limit() {
  const int omp = omp_limit();
  if (is_forked() || kOpenMP == 0 || in_parallel()) return 1;
  const int threads = local_threads() ? local_threads() : process_threads();
  return omp != g_omp_at_load && omp < threads ? omp : threads;
}

// The threads out of `limit` that so many elements are worth.
inline int threads_for(int64_t elements, int limit) {
  const int64_t worth = elements / kGrain;
  if (worth < 2 || limit < 2) return 1;
  return limit < worth ? limit : int(worth);
}

// The threads for a call over so many elements. The answer may be another one at any time: a native
// function asks once, and hands it down to all that it does (`threads_for`).
inline int resolve_threads(int64_t elements) {
  return elements >= 2 * kGrain ? threads_for(elements, thread_limit()) : 1;
}

// The parallel region, which is Cython's (binding/parallel.pyx). It is set when the module is
// imported.
using ParallelRegion = void (*)(int threads, Partitions* job);
inline ParallelRegion& parallel_region() {
  static ParallelRegion region = nullptr;
  return region;
}

// Runs function(job, number, threads) for each number below `threads`, one a thread. The partitions
// are fixed by that count, whoever runs them. One thread enters no parallel region: that costs more
// than a small job, and in a child made by fork it would wait for ever.
template <class Job>
void run_partitions(int threads, void (*function)(const Job*, int64_t, int64_t), const Job* job) {
  if (threads == 1) return function(job, 0, 1);
  Partitions partitions(function, job);
  parallel_region()(threads, &partitions);
}

}  // namespace fastact
