# Threads: how many a call may use, decided in one place. The one parallel region is run_shares of
# runtime.h.
#
# The count is the thread's own (`with num_threads(n)`), else the process's (`set_num_threads`),
# never more than the work deserves, and 1 where threads would not help or would hang:
#   - inside another parallel region of the same OpenMP runtime;
#   - in a child made by fork: libgomp's pool does not survive it, and the first region of the
#     child would wait for ever for threads that are not there.
# threadpoolctl (and omp_set_num_threads) speak through omp_get_max_threads: when that has changed
# since this module was imported, it is a limit.

# Elements a thread must have before a second one pays. A region costs 0.8 us and some 1.5 us of
# cold caches; float32 mish breaks even at 8192 in all, and 16384 take 4.7 us instead of 6.4.
cdef int64_t GRAIN = 8192

cdef int process_threads = 1
cdef bint forked = False
cdef int omp_limit_at_import = omp_limit()


cdef int thread_limit() noexcept nogil:
    """The most threads that a call made now may use."""
    cdef int threads = local_threads()
    cdef int omp = omp_limit()
    if forked or kOpenMP == 0 or in_parallel():
        return 1
    if threads == 0:
        threads = process_threads
    if omp != omp_limit_at_import and omp < threads:
        threads = omp
    return threads


cdef int resolve_threads(int64_t elements) noexcept nogil:
    """The threads for a call over so many elements."""
    if elements < 2 * GRAIN:
        return 1
    cdef int64_t worth = elements // GRAIN
    cdef int threads = thread_limit()
    return threads if threads < worth else <int>worth


cdef void run_loop(const Loop* loop) noexcept nogil:
    """Run a prepared loop, one share a thread."""
    run_shares(resolve_threads(loop.size), run_share, loop)


def set_process_threads(int n):
    global process_threads
    process_threads = n


def set_local_threads(int n):
    """Set this thread's own count (0: none) and return the one before."""
    cdef int before = local_threads()
    (&local_threads())[0] = n
    return before


def get_thread_limit():
    return thread_limit()


def after_fork_in_child():
    global forked
    forked = True


def build_info():
    """What was compiled in: compiler, OpenMP's date (0: none), instruction sets."""
    return {
        "compiler": compiler().decode(),
        "openmp": kOpenMP,
        "isas": [built_isas().tables[i].isa.decode() for i in range(built_isas().count)],
    }


# The table of block functions in use. It changes only by select_isa, which the checks and tests
# use to compare instruction sets in one process.
cdef const BlockTable* table = best_supported_isa()


def isa():
    return None if table is NULL else table.isa.decode()


def supported_isas():
    """The instruction sets that are built and that this processor has, least capable first."""
    names = (built_isas().tables[i].isa for i in range(built_isas().count))
    return tuple(name.decode() for name in names if cpu_supports(name))


def select_isa(str name):
    """Use the blocks of one instruction set from now on, in every thread."""
    global table
    cdef int i
    wanted = name.encode()
    for i in range(built_isas().count):
        if built_isas().tables[i].isa == wanted and cpu_supports(wanted):
            table = built_isas().tables[i]
            return
    raise ValueError(name)
