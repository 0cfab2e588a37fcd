# For tests and benchmarks alone: an elementary function by itself, the copy ceiling, how results
# are stored, when regions are left out, where kernels lie, and what plans do.

ELEMENTARY = names_of(kElementaryNames, kElementaries)


def elementary(str name, cnp.ndarray x not None):
    """Give a function of math/elementary.h of x, which is within its range; for its tests."""
    cdef int dtype = dtype_of_numpy(x)
    cdef object y = PyArray_NewLikeArray(x, cnp.NPY_CORDER, NULL, 0)
    cdef char** operands = [<char*>cnp.PyArray_DATA(x), <char*>cnp.PyArray_DATA(y)]
    if dtype not in (kF32, kF64) or not PyArray_IS_C_CONTIGUOUS(x):
        raise ValueError("elementary: x must be float32 or float64, and contiguous")
    table.elementwise.elementary[<int>ELEMENTARY.index(name)][dtype == kF64](
        operands, x.size, NULL, 0
    )
    return y


def elementary_bounds():
    """The error that math/elementary.h states for each, in ULP."""
    return {name: kElementaryUlps[i] for i, name in enumerate(ELEMENTARY)}


def own_parallel_regions():
    """(run, left out): how many parallel regions this thread's calls had while it backs off."""
    return own_regions().run, own_regions().left_out


cdef cpp_bool always(int threads) noexcept nogil:
    return True


cdef cpp_bool never(int threads) noexcept nogil:
    return False


def are_other_cores_taken(int threads):
    """Whether the machine seems to lack cores for so many threads."""
    return are_cores_taken(threads)


cdef class Account:
    """A `BackOff` (core/back_off.h) that is told of regions that nobody ran; in nanoseconds."""

    cdef BackOff back_off

    def is_serial(self, int64_t time, bint cores_are_taken):
        return self.back_off.is_serial(time, 2, always if cores_are_taken else never)

    def note(self, int64_t begin, int64_t end, int64_t alone):
        return self.back_off.note(begin, end, alone)

    def note_alone(self, int64_t begin, int64_t end):
        self.back_off.note_alone(begin, end)

    def become_own(self):
        """From now on it is this thread's."""
        (&own_regions()).back_off = self.back_off


def time_of_one_thread(list parts, int threads):
    """Give the time that one thread would need for a region whose first parts took so long."""
    cdef int64_t[8] times
    cdef int i
    for i in range(len(parts)):
        times[i] = parts[i]
    return time_alone(times, len(parts), threads)


cdef struct Copy:
    char* to
    const char* origin
    int64_t size


cdef void copy_partition(const Copy* job, int64_t number, int64_t partitions) noexcept nogil:
    """Copy a thread's share, in whole cache lines."""
    cdef int64_t length = ((job.size + partitions - 1) // partitions + 63) // 64 * 64
    cdef int64_t begin = number * length
    if begin < job.size:  # of very many partitions the last may be empty
        memcpy(job.to + begin, job.origin + begin, min(length, job.size - begin))


def copy(cnp.ndarray destination not None, cnp.ndarray source not None):
    """Copy bytes by memcpy, each thread one partition: the ceiling that benchmarks compare with.

    Both arrays are C-contiguous and of one size.
    """
    cdef int threads = resolve_threads(source.size)
    cdef Copy job
    if (
        source.nbytes != destination.nbytes or not cnp.PyArray_ISWRITEABLE(destination)
        or not PyArray_IS_C_CONTIGUOUS(source) or not PyArray_IS_C_CONTIGUOUS(destination)
    ):
        raise ValueError("copy: both arrays must be contiguous and of one size")
    job.to = <char*>cnp.PyArray_DATA(destination)
    job.origin = <char*>cnp.PyArray_DATA(source)
    job.size = source.nbytes
    with nogil:
        run_partitions(threads, copy_partition, &job)


def bypass_caches_from(int64_t size):
    """Set from how many bytes on rows are stored past the caches; return the size before."""
    return c_bypass_caches_from(size)


cdef extern from *:
    """
    namespace fastact {  // kernel_list.cpp
    std::map<std::pair<std::string, int>, uintptr_t> kernel_addresses(const KernelTable& table);
    }
    """
    map[pair[string, int], uintptr_t] list_kernels "fastact::kernel_addresses" (const KernelTable&)


def kernel_addresses(str isa):
    """Give the addresses of an instruction set's kernels by name (kernel_list.cpp) and dtype.

    It need not be one that this processor has: who disassembles the kernels does not run them.
    """
    cdef dict found = list_kernels(kBuiltIsas[<int>isa_numbers[isa]][0])
    return {(key[0].decode(), DTYPE_NAMES[key[1]]): at for key, at in found.items()}


def plans_of(entry):
    """How many plans an entry point has, and how many of them queue their launches themselves."""
    cdef CachedCall calls = (<CachedOp>entry).entry if isinstance(entry, CachedOp) else entry
    cdef int plans = 0, queueing = 0
    for plan in calls.plans.values():
        if type(plan) is CallPlan:
            plans += 1
            queueing += (<CallPlan>plan).launches is not NULL
    return plans, queueing
