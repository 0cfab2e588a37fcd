# Threads: how many a call may use (core/threads.h), and which instruction set it runs.


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


cdef struct Copy:
    char* to
    const char* origin
    int64_t size


cdef void copy_partition(const Copy* job, int64_t number, int64_t partitions) noexcept nogil:
    """Copy a thread's share."""
    cdef int64_t begin = job.size * number // partitions
    memcpy(job.to + begin, job.origin + begin, job.size * (number + 1) // partitions - begin)


def copy(cnp.ndarray destination not None, cnp.ndarray source not None):
    """Copy bytes by memcpy, each thread one partition: the ceiling that benchmarks compare with.

    Both arrays are C-contiguous and of one size.
    """
    cdef int threads = resolve_threads(source.size)
    cdef Copy job
    if (
        source.nbytes != destination.nbytes or not cnp.PyArray_ISWRITEABLE(destination)
        or not cnp.PyArray_IS_C_CONTIGUOUS(source) or not cnp.PyArray_IS_C_CONTIGUOUS(destination)
    ):
        raise ValueError("copy: both arrays must be contiguous and of one size")
    job.to = <char*>cnp.PyArray_DATA(destination)
    job.origin = <char*>cnp.PyArray_DATA(source)
    job.size = source.nbytes
    with nogil:
        run_partitions(threads, copy_partition, &job)


# The kernel tables that are built, by the names of their instruction sets, least capable first.
cdef dict isa_numbers = {kBuiltIsas[i].isa.decode(): i for i in range(kBuiltIsaCount)}

# The kernel table in use. It changes only by select_isa, which the checks and tests
# use to compare instruction sets in one process.
cdef const KernelTable* table = best_supported_isa()
cdef uint32_t isa_changes = 0


def build_info():
    """Tell what was compiled in: compiler, OpenMP's date (0: none), instruction sets."""
    return {"compiler": compiler().decode(), "openmp": kOpenMP, "isas": list(isa_numbers)}


def isa():
    return None if table is NULL else table.isa.decode()


def supported_isas():
    """The instruction sets that are built and that this processor has, least capable first."""
    return tuple(name for name in isa_numbers if cpu_supports(name.encode()))


def select_isa(str name):
    """Use the kernels of one instruction set from now on, in every thread."""
    global table, isa_changes
    if name not in supported_isas():
        raise ValueError(name)
    table = kBuiltIsas[<int>isa_numbers[name]]
    isa_changes += 1
