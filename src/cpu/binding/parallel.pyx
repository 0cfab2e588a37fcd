# The one parallel region: OpenMP over the partitions of a job. Each family defines its partitions.
from cython.parallel cimport parallel, threadid


cdef void run_partitions(int threads, Partitions job) noexcept nogil:
    """Run every partition of a job, one a thread.

    The partitions are as many as the threads that the call may use (threads.pyx), and fixed by that
    count, whoever runs them. One thread enters no parallel region: that costs more than a small
    job, and in a child made by fork it would wait for ever. Nor do several while others keep the
    cores busy (core/back_off.h).
    """
    cdef Region region
    if threads == 1:
        job.run(0, 1)
        return
    if not region.begin(threads):
        job.run_all(threads)
        region.end_alone()
        return
    job.begin()
    with parallel(num_threads=threads):
        job.run_share(region, threadid(), threads)
    job.end()
    region.end()
