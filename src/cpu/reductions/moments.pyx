# Moments: the mean of x over some axes, and m2, the sum of the squared distances from it.


# What becomes of m2; the order is OfM2's.
OF_M2 = (
    "nothing", "m2", "variance", "deviation", "mean slope", "variance slope", "deviation slope",
    "total", "m2 or root",
)


cdef bint is_weighted(const MomentsCall* call) noexcept:
    """Whether elements count more or less than once, or have a dtype that is converted first."""
    return call.is_weighted() or call.inputs[kMomentsX].dtype > kF64


cdef int64_t elements_of(const MomentsCall* call) noexcept:
    return operand_size(<const Operand*>&call.inputs[kMomentsX])


cdef int64_t moments_workspace(const void* given) noexcept:
    cdef const MomentsCall* call = <const MomentsCall*>given
    cdef Reducer reducer
    if resolve_threads(elements_of(call)) == 1:
        return 0
    if is_weighted(call):
        return weighted_workspace(call)
    prepare_moments(&reducer, table.reduce, call[0])
    return workspace_size(&reducer)


cdef int64_t weighted_workspace(const MomentsCall* call) noexcept:
    cdef WeightedMoments weighted
    prepare_weighted(&weighted, table.reduce, table.convert, call[0])
    return workspace_size(&weighted.reducer)


cdef int run_moments(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const MomentsCall* call = <const MomentsCall*>given
    cdef Reducer reducer
    cdef int64_t size = elements_of(call)
    cdef int threads = resolve_threads(size), is_degenerate = 0
    if is_weighted(call):
        return run_weighted_moments(call, workspace, bytes, threads)
    prepare_moments(&reducer, table.reduce, call[0])
    if call.warning is not NULL:
        reducer.is_degenerate = &is_degenerate
    divide_work(&reducer, 1, workspace, bytes, threads)
    run_without_gil(&reducer, threads, size)
    if is_degenerate:
        warn(text(call.warning))
    return 0


cdef int run_weighted_moments(
    const MomentsCall* call, char* workspace, int64_t bytes, int threads
) except -1:
    """With weights or a mask; it takes more of the stack."""
    cdef WeightedMoments weighted
    cdef Reducer* reducer = &weighted.reducer
    cdef int is_degenerate = 0
    prepare_weighted(&weighted, table.reduce, table.convert, call[0])
    reducer.is_degenerate = NULL
    if call.warning is not NULL or call.inputs[kMomentsWeights].shape is not NULL:
        reducer.is_degenerate = &is_degenerate
    divide_work(reducer, 1, workspace, bytes, threads)
    with nogil:
        run_partitions(threads, partitions_of(weighted_partition, &weighted))
        merge_chunks(reducer, 1, threads)
    warn_of(is_degenerate, call)
    return 0


cdef int warn_of(int is_degenerate, const MomentsCall* call) except -1:
    """Of results that have no weights, or too few elements."""
    if is_degenerate & kNoWeights:
        warn("weights that are negative or not finite; what they are part of is NaN")
    if is_degenerate & kTooFew and call.warning is not NULL:
        warn(text(call.warning))
    return 0


cdef int run_moments_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const MomentsBackwardCall* call = <const MomentsBackwardCall*>given
    cdef double[2] parameters = [call.share, call.scale]
    run_call(
        table.elementwise.moments_backward[call.arrays[0].dtype][call.accumulate], parameters,
        call.accumulate, 6, call.arrays,
    )
    return 0


cdef int run_statistic_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const StatisticBackwardCall* call = <const StatisticBackwardCall*>given
    cdef double[1] parameters = [0.0 if call.skips else <double>NAN]
    cdef int dtype = call.arrays[0].dtype
    run_call(
        table.elementwise.slope_backward[dtype][call.accumulate]
        if call.arrays[kStatisticMean].shape is NULL
        else table.elementwise.deviation_backward[dtype][call.accumulate],
        parameters, call.accumulate, 6, call.arrays,
    )
    return 0


cdef int run_spread_backward(const void* given, char* workspace, int64_t bytes) except -1:
    """Only devices have it: the check refuses arrays on the CPU."""
    return 0


cdef int run_weighted_gradient(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const WeightedGradientCall* call = <const WeightedGradientCall*>given
    cdef WeightedGradient gradient
    cdef int threads, has_wrong_label = 0
    if is_empty(<const Operand&>call.arrays[0]):
        return 0
    threads = resolve_threads(operand_size(<const Operand*>&call.arrays[0]))
    prepare_gradient(&gradient, table.reduce, table.convert, call[0])
    gradient.has_wrong_label = &has_wrong_label
    if gradient.groups >= 0:
        with nogil:
            run_partitions(threads, partitions_of(gradient_labels_partition, &gradient))
        if has_wrong_label:
            refuse_labels(call.op, gradient.groups)
    with nogil:
        run_partitions(threads, partitions_of(weighted_gradient_partition, &gradient))
    return 0


add_function(&kMomentsCall, moments_workspace, run_moments)
add_function(&kMomentsBackwardCall, NULL, run_moments_backward)
add_function(&kStatisticBackwardCall, NULL, run_statistic_backward)
add_function(&kSpreadBackwardCall, NULL, run_spread_backward)
add_function(&kWeightedGradientCall, NULL, run_weighted_gradient)
add_function(&kGroupedGradientCall, NULL, run_weighted_gradient)
