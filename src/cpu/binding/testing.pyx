# For tests, checks and benchmarks alone: an elementary function by itself, the errors of results,
# the copy ceiling, how results are stored, how work is shared, where kernels lie, and what plans
# do.

def level_of_features(
    uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint32_t extended_ecx, uint64_t xcr0
):
    """The x86-64 micro-architecture level of a processor whose CPUID and XGETBV tell this."""
    return x86_level(CpuFeatures(leaf1_ecx, leaf7_ebx, extended_ecx, xcr0))


ELEMENTARY = names_of(kElementaryNames, kElementaries)


def elementary(str name, View x, View y):
    """y OUT = a function of math/elementary.h of x IN, within its range; for its tests."""
    cdef double p[1]
    cdef Operand[2] arrays
    cdef int which = ELEMENTARY.index(name)
    check(x, "x", False)
    check_like(y, x, "y", True)
    if x.dtype != kF32 and x.dtype != kF64:
        refuse(f"x must have dtype float32 or float64, got {x.dtype_name}")
    arrays = [x.operand, y.operand]
    run(table.elementwise.elementary[which][x.dtype == kF64], p, x.dtype, False, 2, arrays, x.size)


def elementary_bounds():
    """The error that math/elementary.h states for each, in ULP."""
    return {name: kElementaryUlps[i] for i, name in enumerate(ELEMENTARY)}


def compare(
    cnp.ndarray y not None, cnp.ndarray exact not None, double allowed, tuple edges not None
):
    """(absolute, ulp, ulp_at, counted, counted_at, above) of float32 y against float64 exact.

    Both are contiguous and of one size. None where an infinity or a NaN takes part.
    """
    cdef double[16] limits
    cdef Comparison found
    cdef int k
    if len(edges) != kErrorEdges or y.size != exact.size:
        raise ValueError("compare: wrong number of edges or of elements")
    if (
        dtype_of_numpy(y) != kF32 or dtype_of_numpy(exact) != kF64
        or not PyArray_IS_C_CONTIGUOUS(y) or not PyArray_IS_C_CONTIGUOUS(exact)
        or kErrorEdges > 16
    ):
        raise ValueError("compare: y must be float32, exact float64, and both contiguous")
    for k in range(kErrorEdges):
        limits[k] = edges[k]
    cdef const float* results = <const float*>cnp.PyArray_DATA(y)
    cdef const double* truth = <const double*>cnp.PyArray_DATA(exact)
    cdef int64_t n = y.size
    # The judge is the same, whoever is judged.
    cdef const CompareKernels* judge = best_supported_isa().compare
    with nogil:
        judge.compare(results, truth, n, allowed, limits, &found)
    if not found.is_finite:
        return None
    above = [found.above[k] for k in range(kErrorEdges)]
    return found.absolute, found.ulp, found.ulp_at, found.counted, found.counted_at, above


cdef extern from "cpu/reductions/reduce.h" namespace "fastact" nogil:
    ctypedef struct SumCall:
        pass

    void prepare_sum "fastact::prepare"(Reducer*, const ReduceTable*, const SumCall&) noexcept
    void share_columns(Reducer*, int, int) noexcept


def shares_of_columns(dict arguments, int threads):
    """(outputs a task, tasks) of a call of sum by so many threads, without a workspace."""
    cdef Reducer reducer
    cdef NativeCall call = native_call("sum", arguments)
    prepare_sum(&reducer, table.reduce, (<const SumCall*>call.memory)[0])
    share_columns(&reducer, 1, threads)
    return reducer.tile, reducer.tasks


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


def slowed_down(int64_t cpu, int64_t passed, int64_t alone, int regions):
    """Give the time that regions take a thread that ran `cpu` of the time that passed."""
    cdef Slowdown slowdown
    slowdown.start(0)
    slowdown.add(passed)
    slowdown.stop(cpu)
    return [slowdown.of(alone) for _ in range(regions)]


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


def gradient_by_input(int which, View dy, View x, View dx):
    """dx OUT = dy IN * f'(x IN), as fused ops compute it, of an activation without parameters."""
    cdef Operand[3] arrays
    check_index(which, kActivations, "which")
    check(x, "x", False)
    check_like(dy, x, "dy", False)
    check_like(dx, x, "dx", True)
    arrays = [dy.operand, x.operand, dx.operand]
    run(
        table.elementwise.backward[which][x.dtype][False], NULL, x.dtype, False, 3, arrays,
        element_count(x),
    )


cdef const KernelTable* kernels_of(str isa) except NULL:
    cdef int i
    for i in range(built_isas().count):
        if built_isas().tables[i].isa == isa.encode():
            return built_isas().tables[i]
    raise ValueError(isa)


def kernel_addresses(str isa):
    """The addresses of an instruction set's element-wise kernels, by name and dtype.

    It need not be one that this processor has: who disassembles the kernels does not run them.
    """
    cdef const ElementwiseTable* of = kernels_of(isa).elementwise
    cdef int i, k
    found = {}
    for k, dtype in enumerate(("float16", "bfloat16", "float32", "float64")):
        for i, name in enumerate(ACTIVATIONS):
            found[f"{name} forward", dtype] = <intptr_t>of.forward[i][k]
            found[f"{name} backward", dtype] = <intptr_t>of.backward[i][k][0]
            found[f"{name} backward, accumulated", dtype] = <intptr_t>of.backward[i][k][1]
            found[f"{name} second", dtype] = <intptr_t>of.second[i][k][0]
            found[f"{name} second, accumulated", dtype] = <intptr_t>of.second[i][k][1]
            if name in SAVE_VALUE:
                found[f"{name} backward by y", dtype] = <intptr_t>of.backward_by_saved[i][k][0]
                found[f"{name} backward by y, accumulated", dtype] = (
                    <intptr_t>of.backward_by_saved[i][k][1]
                )
        found["added", dtype] = <intptr_t>of.added[k]
        for i, name in enumerate(TERMS):
            found[f"{name} term backward", dtype] = <intptr_t>of.term_backward[i][k][0]
            found[f"{name} term backward, accumulated", dtype] = <intptr_t>of.term_backward[i][k][1]
        found["moments backward", dtype] = <intptr_t>of.moments_backward[k][0]
        found["moments backward, accumulated", dtype] = <intptr_t>of.moments_backward[k][1]
    return found


def weighting_addresses(str isa):
    """Likewise, of the kernels of weights and masks, all of which compute in double."""
    cdef const WeightingKernels* of = kernels_of(isa).reduce.weighting
    cdef int i
    found = {"choose": <intptr_t>of.choose, "mask": <intptr_t>of.mask}
    for i in range(kWeightedGradients):
        found[f"gradient {i}"] = <intptr_t>of.gradient[i][0]
        found[f"gradient {i}, accumulated"] = <intptr_t>of.gradient[i][1]
    return found


def sum_addresses(str isa):
    """Likewise, of the kernels that add up the terms of whole blocks."""
    cdef const ReduceTable* of = kernels_of(isa).reduce
    cdef int i, k
    return {
        (name, dtype): <intptr_t>of.accumulators[i].kernels[k].blocks
        for i, name in enumerate(TERMS)
        for k, dtype in enumerate(("float16", "bfloat16", "float32", "float64"))
    }


def gate_addresses(str isa):
    """Likewise, of the kernels of gates that convert what they read; empty where there are none."""
    cdef const GateTable* of = kernels_of(isa).gate
    cdef int i, k, adds, saves
    found = {}
    for k, dtype in enumerate(("float16", "bfloat16")):
        for i, name in enumerate(GATE_KINDS):
            if of.backward[i][k] is NULL:
                continue
            found[f"{name} backward", dtype] = <intptr_t>of.backward[i][k]
            for adds in range(2):
                found[f"{name} recompute {adds}", dtype] = <intptr_t>of.recompute[i][k][adds]
                for saves in range(2):
                    found[f"{name} forward {adds}{saves}", dtype] = (
                        <intptr_t>of.forward[i][k][adds][saves]
                    )
    return found


def rotary_addresses(str isa):
    """Likewise, of the kernels that turn pairs, by what they do and dtype."""
    cdef const RotaryKernels* of = kernels_of(isa).rotary
    cdef int dtype, wide, lie
    found = {}
    for dtype in range(kDTypes):
        for wide in range(2):
            for lie in range(2):
                name = ("halves", "neighbours")[lie] + (" by wide angles" if wide else "")
                found[name, text(kDTypeNames[dtype])] = <intptr_t>of.turn[dtype][lie][wide]
    return found


def plans_of(entry):
    """How many plans an entry point has, and how many of them queue their launches themselves."""
    cdef CachedCall calls = (<CachedOp>entry).entry if isinstance(entry, CachedOp) else entry
    cdef int plans = 0, queueing = 0
    for plan in calls.plans.values():
        if type(plan) is CallPlan:
            plans += 1
            queueing += (<CallPlan>plan).launches is not None
    return plans, queueing
