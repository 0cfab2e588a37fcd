# Reductions: y = the sum over some axes of a term of x, and its gradient.

TERMS = names_of(kTermNames, kTerms)
PAIRS = names_of(kPairNames, kPairs)


cdef int64_t sum_workspace(const void* given) noexcept:
    cdef const SumCall* call = <const SumCall*>given
    cdef Reducer reducer
    if (
        is_empty(<const Operand&>call.y)
        or resolve_threads(operand_size(<const Operand*>&call.x)) == 1
    ):
        return 0
    prepare_sum(&reducer, call)
    return workspace_size(&reducer)


cdef int run_sum(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SumCall* call = <const SumCall*>given
    cdef int64_t size = operand_size(<const Operand*>&call.x)
    cdef Reducer reducer
    cdef int threads
    if is_empty(<const Operand&>call.y):
        return 0
    if size == 0:
        if not call.accumulate:
            fill_argument(&call.y, 0 + call.initial)
        return 0
    threads = resolve_threads(size)
    prepare_sum(&reducer, call)
    divide_work(&reducer, 1, workspace, bytes, threads)
    run_without_gil(&reducer, threads, size)
    return 0


cdef void prepare_sum(Reducer* reducer, const SumCall* call) noexcept:
    prepare_reduction(
        reducer, table.reduce, call.term, <const Operand&>call.x, <const Operand&>call.y,
        call.axes.flags, call.x.dtype, call.y.dtype, call.accumulate
    )
    reducer.divisor, reducer.initial = call.divisor, call.initial


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


cdef void divide_work(
    Reducer* reducers, int count, char* workspace, int64_t bytes, int threads
) noexcept:
    """Make work for so many threads: the bits are the same.

    Cut the terms too, where that helps and the workspace is enough for it, and then columns. Of all
    `count` reductions, which are of one kind.
    """
    cdef int64_t needed = workspace_size(reducers)
    cdef int k
    if threads > 1 and 0 < count * needed <= bytes:
        for k in range(count):
            reducers[k].partial = <double*>(workspace + k * needed)
    share_columns(reducers, count, threads)


cdef void merge_chunks(const Reducer* reducers, int count, int threads) noexcept nogil:
    cdef int k
    for k in range(count):
        if reducers[k].partial is not NULL:
            run_partitions(
                threads_for(partial_size(&reducers[k]), threads),
                partitions_of(merge_partition, &reducers[k]),
            )


cdef void fill_argument(const ArrayArgument* y, double value) noexcept:
    fill(y[0], value)


cdef int run_broadcast(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const BroadcastCall* call = <const BroadcastCall*>given
    run_call(
        table.elementwise.added[call.arrays[0].dtype] if call.accumulate else NULL, NULL,
        call.accumulate, 2, call.arrays,
    )
    return 0


cdef int run_fill(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const FillCall* call = <const FillCall*>given
    memcpy(call.y.data, &call.bits, item_size(call.y.dtype))
    return 0


cdef int run_sum_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SumBackwardCall* call = <const SumBackwardCall*>given
    run_call(
        table.elementwise.term_backward[call.term][call.arrays[0].dtype][call.accumulate], NULL,
        call.accumulate, 3, call.arrays,
    )
    return 0


cdef int64_t square_workspace(const void* given) noexcept:
    cdef const SquareCall* call = <const SquareCall*>given
    cdef SquareGrad square
    if resolve_threads(operand_size(<const Operand*>&call.x)) == 1:
        return 0
    prepare_squares(&square, table, call[0])
    return workspace_size(&square.reducer)


cdef int run_square(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SquareCall* call = <const SquareCall*>given
    cdef SquareGrad square
    cdef int threads
    if is_empty(<const Operand&>call.x):
        fill_argument(&call.y, 0)
        return 0
    threads = resolve_threads(operand_size(<const Operand*>&call.x))
    prepare_squares(&square, table, call[0])
    divide_work(&square.reducer, 1, workspace, bytes, threads)
    with nogil:
        run_partitions(threads, partitions_of(square_partition, &square))
        merge_chunks(&square.reducer, 1, threads)
    return 0


add_function(&kSumCall, sum_workspace, run_sum)
add_function(&kSumBackwardCall, NULL, run_sum_backward)
add_function(&kSquareCall, square_workspace, run_square)
add_function(&kBroadcastCall, NULL, run_broadcast)
add_function(&kFillCall, NULL, run_fill)
