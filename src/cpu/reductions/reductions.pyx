# Reductions: y = the sum over some axes of a term of x, and its gradient.
include "cpu/reductions/reductions.pxi"

TERMS = names_of(kTermNames, kTerms)


cdef void prepare_sum(
    Reducer* reducer, int term, View x, View y, tuple axes, bint accumulate
) except *:
    cdef cpp_bool[kMaxAxes] reduced
    set_axes(&reduced[0], axes, x.operand.ndim)
    check_kept(y, x, reduced, False, "y")
    prepare_reduction(
        reducer, table.reduce, term, x.operand, y.operand, reduced, x.dtype, y.dtype,
        accumulate,
    )


def sum_workspace(int term, View x, View y, tuple axes):
    """Bytes of scratch with which `sum` can divide its work among many threads; 0: none needed."""
    cdef Reducer reducer
    check_index(term, kTerms, "term")
    check(x, "x", False)
    if y is None:
        refuse("y must be an array, got None")
    if element_count(x) == 0 or element_count(y) == 0 or resolve_threads(element_count(x)) == 1:
        return 0
    prepare_sum(&reducer, term, x, y, axes, False)
    return workspace_size(&reducer)


def sum(
    int term, View x, View y, tuple axes, double divisor, View workspace, bint accumulate,
    int64_t stream
):
    """y OUT = the sum of an input made of x IN over `axes`, sorted, / divisor, or y IN/OUT += of
    that.

    y has length 1 along the axes. term: an index into TERMS. workspace: SCRATCH of `sum_workspace`
    bytes, or None. stream: of a GPU; unused here.
    """
    cdef Reducer reducer
    cdef int64_t size
    cdef int threads
    check_index(term, kTerms, "term")
    check(x, "x", False)
    check(y, "y", True)
    size = element_count(x)
    if element_count(y) == 0:
        return
    if size == 0:
        if not accumulate:
            fill_with_zero(y)
        return
    threads = resolve_threads(size)
    prepare_sum(&reducer, term, x, y, axes, accumulate)
    reducer.divisor = divisor
    divide_work(&reducer, 1, workspace, threads)
    run_without_gil(&reducer, threads, size)


cdef void run_without_gil(const Reducer* reducer, int threads, int64_t size) noexcept:
    """But of so few elements that they take microseconds: to let go of it would take as long."""
    if size <= kGrain:
        run_reduction(reducer, threads)
        return
    with nogil:
        run_reduction(reducer, threads)


cdef void run_reduction(const Reducer* reducer, int threads) noexcept nogil:
    run_partitions(threads, partitions_of(reduce_partition, reducer))
    merge_chunks(reducer, 1, threads)


cdef int divide_work(Reducer* reducers, int count, View workspace, int threads) except -1:
    """Make work for so many threads: the bits are the same.

    Cut the terms too, where that helps and the workspace is enough for it, and then columns. Of all
    `count` reductions, which are of one kind.
    """
    cdef int64_t bytes
    cdef char* memory = memory_of(workspace, &bytes)
    divide_work_in(reducers, count, memory, bytes, threads)
    return 0


cdef void divide_work_in(
    Reducer* reducers, int count, char* memory, int64_t bytes, int threads
) noexcept:
    """The same with so many bytes of workspace."""
    cdef int64_t needed = workspace_size(reducers)
    cdef int k
    if threads > 1 and 0 < count * needed <= bytes:
        for k in range(count):
            reducers[k].partial = <double*>(memory + k * needed)
    share_columns(reducers, count, threads)


cdef void merge_chunks(const Reducer* reducers, int count, int threads) noexcept nogil:
    cdef int k
    for k in range(count):
        if reducers[k].partial is not NULL:
            run_partitions(
                threads_for(partial_size(&reducers[k]), threads),
                partitions_of(merge_partition, &reducers[k]),
            )


cdef void fill_with_zero(View y) noexcept:
    cdef double zero = 0
    fill_with(y, <char*>&zero)


cdef void fill_with(View y, char* value) noexcept:
    fill_operand_with(y.operand, y.dtype, value)


cdef void fill_operand_with(const Operand& y, int dtype, char* value) noexcept:
    """y OUT = one element of its dtype."""
    cdef int64_t[kMaxAxes] strides
    cdef int i
    for i in range(y.ndim):
        strides[i] = 0
    cdef Operand[2] arrays = [y, y]
    arrays[0].data = value
    arrays[0].strides = &strides[0]
    run(NULL, NULL, dtype, False, 2, arrays, operand_size(&y))


def broadcast(View x, View y, bint accumulate, int64_t stream):
    """y OUT = x IN, or y IN/OUT += x; of one shape, x with strides of 0 where it repeats."""
    cdef Operand[2] arrays
    check(x, "x", False)
    check_like(y, x, "y", True)
    arrays = [x.operand, y.operand]
    run(
        table.elementwise.added[y.dtype] if accumulate else NULL, NULL, y.dtype, accumulate, 2,
        arrays, element_count(y),
    )


def sum_backward(int term, View dy, View x, View dx, bint accumulate, int64_t stream):
    """dx OUT = dy IN times the term's derivative at x IN, or dx IN/OUT += of the same.

    dy has strides of 0 where it repeats.
    """
    cdef Operand[3] arrays
    check_index(term, kTerms, "term")
    check(x, "x", False)
    check_like(dy, x, "dy", False)
    check_like(dx, x, "dx", True)
    arrays = [dy.operand, x.operand, dx.operand]
    run(
        table.elementwise.term_backward[term][x.dtype][accumulate], NULL, x.dtype, accumulate, 3,
        arrays, element_count(x),
    )


def square_value_and_grad(View x, View y, View grad, View workspace, int64_t stream):
    """y OUT (one element) = the sum of the squares of x IN, grad OUT (of x's shape) = 2 x.

    workspace: SCRATCH as of `sum` over all axes, or None.
    """
    cdef SquareGrad square
    cdef int64_t size
    cdef int threads
    check(x, "x", False)
    check(y, "y", True)
    check_dtype(y, x.dtype, "y")
    if element_count(y) != 1:
        refuse(f"y must have one element, got shape {y.shape}")
    check_like(grad, x, "grad", True)
    size = element_count(x)
    if size == 0:
        fill_with_zero(y)
        return
    threads = resolve_threads(size)
    prepare_squares(&square, table, x.dtype, x.operand, grad.operand, y.operand)
    divide_work(&square.reducer, 1, workspace, threads)
    with nogil:
        run_partitions(threads, partitions_of(square_partition, &square))
        merge_chunks(&square.reducer, 1, threads)
