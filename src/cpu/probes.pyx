# For tests and benchmarks alone: an elementary function by itself, and the copy ceiling.

def exponential(View x, View y):
    """y OUT = exp(x IN) by the exponential of math.h, within its range; for its tests."""
    cdef double p[1]
    cdef Operand[2] arrays = [x.operand, y.operand]
    run(table.exp[x.dtype == kF64], p, x.dtype, False, 2, arrays, x.size)


def exponential_bound():
    """The error that math.h states for `exponential`, in ULP."""
    return kExpUlp


def copy(cnp.ndarray destination, cnp.ndarray source):
    """Copy bytes by memcpy, each thread one share: the ceiling that benchmarks compare with.

    Both arrays are C-contiguous and of one size.
    """
    cdef int64_t size = source.nbytes
    cdef int threads = resolve_threads(source.size)
    cdef int64_t share = (size // threads + 63) // 64 * 64
    cdef char* to = <char*>cnp.PyArray_DATA(destination)
    cdef char* origin = <char*>cnp.PyArray_DATA(source)
    cdef int i
    with nogil:
        if threads == 1:
            memcpy(to, origin, size)
        else:
            for i in prange(threads, schedule="static", num_threads=threads):
                memcpy(to + i * share, origin + i * share, min(share, size - i * share))
