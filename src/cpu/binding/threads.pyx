# Threads: how many a call may use, decided in one place. The only parallel region is in
# parallel.pyx.
#
# The count is the thread's own (`with num_threads(n)`), else the process's (`set_num_threads`),
# never more than the work deserves, and 1 where threads would not help or would hang:
#   - inside another parallel region of the same OpenMP runtime;
#   - in a child made by fork: libgomp's pool does not survive it, and the first region of the
#     child would wait for ever for threads that are not there.
# threadpoolctl and omp_set_num_threads change omp_get_max_threads: when that has changed
# since this module was imported, it is a limit.

cdef int omp_limit_at_import = omp_limit()


cdef int thread_limit() noexcept nogil:
    """The most threads that a call made now may use."""
    cdef int threads = local_threads()
    cdef int omp = omp_limit()
    if is_forked() or kOpenMP == 0 or in_parallel():
        return 1
    if threads == 0:
        threads = process_threads()
    if omp != omp_limit_at_import and omp < threads:
        threads = omp
    return threads


cdef int resolve_threads(int64_t elements) noexcept nogil:
    """The threads for a call over so many elements.

    The answer may be another one at any time: a native function asks once, and hands it down to all
    that it does (`threads_for`).
    """
    return threads_for(elements, thread_limit()) if elements >= 2 * kGrain else 1


cdef int threads_for(int64_t elements, int limit) noexcept nogil:
    """Of so many threads, those that are worth it."""
    cdef int64_t worth = elements // kGrain
    if worth < 2 or limit < 2:
        return 1
    return limit if limit < worth else <int>worth


cdef void run_iterator(const TensorIterator* iterator) noexcept nogil:
    """Run a prepared iterator, one partition a thread."""
    run_partitions(resolve_threads(iterator.size), partitions_of(run_partition, iterator))


def set_process_threads(int n):
    if n < 1:
        raise ValueError(f"set_process_threads: must be positive, got {n}")
    choose_process_threads(n)


def set_local_threads(int n):
    """Set this thread's own count (0: none) and return the one before."""
    cdef int before = local_threads()
    if n < 0:
        raise ValueError(f"set_local_threads: must not be negative, got {n}")
    (&local_threads())[0] = n
    return before


def get_thread_limit():
    return thread_limit()


def enable_back_off(bint enabled):
    """Without it every call that is worth several threads waits for them (core/back_off.h)."""
    choose_back_off(enabled)


def is_back_off_enabled():
    return backs_off()


def after_fork_in_child():
    """From now on every call is serial, and no lock is held by a thread that is not there."""
    global registering
    become_forked()
    registering = Lock()


def build_info():
    """What was compiled in: compiler, OpenMP's date (0: none), instruction sets."""
    return {
        "compiler": compiler().decode(),
        "openmp": kOpenMP,
        "isas": [built_isas().tables[i].isa.decode() for i in range(built_isas().count)],
    }


# The kernel table in use. It changes only by select_isa, which the checks and tests
# use to compare instruction sets in one process.
cdef const KernelTable* table = best_supported_isa()
cdef uint32_t isa_number = 0  # counts the changes


def isa():
    return None if table is NULL else table.isa.decode()


def supported_isas():
    """The instruction sets that are built and that this processor has, least capable first."""
    names = (built_isas().tables[i].isa for i in range(built_isas().count))
    return tuple(name.decode() for name in names if cpu_supports(name))


def select_isa(str name):
    """Use the kernels of one instruction set from now on, in every thread."""
    global table, isa_number
    cdef int i
    wanted = name.encode()
    for i in range(built_isas().count):
        if built_isas().tables[i].isa == wanted and cpu_supports(wanted):
            table = built_isas().tables[i]
            isa_number += 1
            return
    raise ValueError(name)
