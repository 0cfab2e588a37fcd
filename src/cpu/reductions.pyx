# Reductions: y = the sum of x over some of its axes, and the gradient's way back.

cdef void prepare_sum(Reducer* reducer, View x, View y, tuple axes) noexcept:
    cdef cpp_bool[kMaxAxes] reduced
    cdef int i
    for i in range(x.operand.ndim):
        reduced[i] = i in axes
    prepare_reduction(
        reducer, table.reduce, &table.reduce.sum[x.dtype], x.operand, y.operand, reduced, x.dtype
    )


def sum_workspace(View x, View y, tuple axes):
    """Bytes of scratch with which `sum` can share its work among many threads; 0: none needed."""
    cdef Reducer reducer
    if x.size == 0 or y.size == 0 or resolve_threads(x.size) == 1:
        return 0
    prepare_sum(&reducer, x, y, axes)
    return workspace_size(&reducer)


def sum(View x, View y, tuple axes, View workspace, int64_t stream):
    """y OUT = the sum of x IN over `axes`, sorted; y has length 1 along them.

    workspace: SCRATCH of `sum_workspace` bytes, or None. stream: of a GPU; unused here.
    """
    cdef Reducer reducer
    cdef int64_t size = x.size
    cdef int threads, i
    if y.size == 0:
        return
    if size == 0:
        fill_with_zero(y)
        return
    threads = resolve_threads(size)
    prepare_sum(&reducer, x, y, axes)
    if threads > 1 and workspace is not None and workspace_size(&reducer) > 0:
        reducer.partial = <double*>workspace.operand.data
    with nogil:
        if threads == 1:
            reduce_share(&reducer, 0, 1)
        else:
            for i in prange(threads, schedule="static", num_threads=threads):
                reduce_share(&reducer, i, threads)
            if reducer.partial is not NULL:
                merge_chunks(&reducer, resolve_threads(workspace_size(&reducer) // 8))


cdef void merge_chunks(const Reducer* reducer, int threads) noexcept nogil:
    cdef int i
    if threads == 1:
        merge_share(reducer, 0, 1)
    else:
        for i in prange(threads, schedule="static", num_threads=threads):
            merge_share(reducer, i, threads)


cdef void fill_with_zero(View y) noexcept:
    cdef double zero = 0
    cdef int64_t[kMaxAxes] strides
    cdef int i
    for i in range(y.operand.ndim):
        strides[i] = 0
    cdef Operand[2] arrays = [y.operand, y.operand]
    arrays[0].data = <char*>&zero
    arrays[0].strides = &strides[0]
    run(table.identity[y.dtype][False], NULL, y.dtype, False, 2, arrays, y.size)


def broadcast(View x, View y, bint accumulate, int64_t stream):
    """y OUT = x IN, or y IN/OUT += x; of one shape, x with strides of 0 where it repeats."""
    cdef Operand[2] arrays = [x.operand, y.operand]
    run(table.identity[y.dtype][accumulate], NULL, y.dtype, accumulate, 2, arrays, y.size)
