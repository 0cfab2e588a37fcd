# The one parallel region: OpenMP over the partitions of a job. Each family defines its partitions,
# and runs them by `run_partitions` of core/threads.h, which calls this for several threads.
from cython.parallel cimport parallel, threadid


cdef void run_in_parallel(int threads, Partitions* job) noexcept nogil:
    """Run every partition of a job, one a thread.

    While others keep the cores busy, the calling thread runs all of them (core/back_off.h).
    """
    if job.begin(threads):
        with parallel(num_threads=threads):
            job.run_share(threadid(), threads)
        job.end()


(&parallel_region())[0] = run_in_parallel
