# For tests, checks and benchmarks alone: an elementary function by itself, the errors of results,
# and the copy ceiling.

ELEMENTARY = tuple([kElementaryNames[i].decode() for i in range(kElementaries)])


def elementary(str name, View x, View y):
    """y OUT = a function of math.h of x IN, within its range; for its tests."""
    cdef double p[1]
    cdef Operand[2] arrays = [x.operand, y.operand]
    cdef int which = ELEMENTARY.index(name)
    run(table.elementary[which][x.dtype == kF64], p, x.dtype, False, 2, arrays, x.size)


def elementary_bounds():
    """The error that math.h states for each, in ULP."""
    return {name: kElementaryUlps[i] for i, name in enumerate(ELEMENTARY)}


def compare(cnp.ndarray y, cnp.ndarray exact, double allowed, tuple edges):
    """(absolute, ulp, ulp_at, counted, counted_at, above) of float32 y against float64 exact.

    Both are contiguous and of one size. None where an infinity or a NaN takes part.
    """
    cdef double[16] limits
    cdef Comparison found
    cdef int k
    if len(edges) != kErrorEdges or y.size != exact.size:
        raise ValueError("compare: wrong number of edges or of elements")
    for k in range(kErrorEdges):
        limits[k] = edges[k]
    cdef const float* results = <const float*>cnp.PyArray_DATA(y)
    cdef const double* truth = <const double*>cnp.PyArray_DATA(exact)
    cdef int64_t n = y.size
    # The judge is the same, whoever is judged.
    cdef CompareBlock block = best_supported_isa().compare[0]
    with nogil:
        block(results, truth, n, allowed, limits, &found)
    if not found.is_finite:
        return None
    above = [found.above[k] for k in range(kErrorEdges)]
    return found.absolute, found.ulp, found.ulp_at, found.counted, found.counted_at, above


cdef struct Copy:
    char* to
    const char* origin
    int64_t size


cdef void copy_share(const Copy* job, int64_t number, int64_t shares) noexcept nogil:
    """Of whole cache lines."""
    cdef int64_t length = (job.size // shares + 63) // 64 * 64
    cdef int64_t begin = number * length
    memcpy(job.to + begin, job.origin + begin, min(length, job.size - begin))


def copy(cnp.ndarray destination, cnp.ndarray source):
    """Copy bytes by memcpy, each thread one share: the ceiling that benchmarks compare with.

    Both arrays are C-contiguous and of one size.
    """
    cdef int threads = resolve_threads(source.size)
    cdef Copy job
    job.to = <char*>cnp.PyArray_DATA(destination)
    job.origin = <char*>cnp.PyArray_DATA(source)
    job.size = source.nbytes
    with nogil:
        run_shares(threads, copy_share, &job)
