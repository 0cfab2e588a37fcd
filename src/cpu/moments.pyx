# Moments: the mean of x over some axes, and m2, the sum of the squared distances from it.


cdef void prepare_moments_of(
    MomentReducer* moments, View x, View mean, View low, View second, tuple axes, double divisor
) noexcept:
    cdef cpp_bool[kMaxAxes] reduced
    cdef Operand[3] results = [
        operand_or_nothing(mean), operand_or_nothing(low), operand_or_nothing(second)
    ]
    cdef View y = second if mean is None else mean
    cdef int i
    for i in range(x.operand.ndim):
        reduced[i] = i in axes
    prepare_moments(
        moments, table, x.operand, results, reduced, x.dtype, y.dtype, divisor
    )


def moments_workspace(View x, View y, tuple axes):
    """Bytes of scratch with which `moments` can share its work among many threads; 0: none needed.

    y: mean or second.
    """
    cdef MomentReducer reducer
    if x.size == 0 or y.size == 0 or resolve_threads(x.size) == 1:
        return 0
    prepare_moments_of(&reducer, x, y, None, None, axes, 1)
    return moment_workspace_size(&reducer)


def moments(
    View x, View mean, View low, View second, tuple axes, double divisor, View workspace,
    int64_t stream
):
    """mean OUT = the mean of x IN over `axes`, sorted; low OUT = what its rounding lost; second OUT =
    m2 / divisor. x is not empty.

    The results have length 1 along the axes, one dtype and the same strides; low and one of the
    others may be None. workspace: SCRATCH of `moments_workspace` bytes, or None. stream: of a GPU;
    unused here.
    """
    cdef MomentReducer reducer
    cdef int64_t size = x.size
    cdef int threads = resolve_threads(size)
    prepare_moments_of(&reducer, x, mean, low, second, axes, divisor)
    use_moment_workspace(&reducer, workspace, threads)
    with nogil:
        run_moments(&reducer, threads)


cdef void use_moment_workspace(MomentReducer* reducer, View workspace, int threads) noexcept:
    """As `use_workspace` of sums."""
    if threads > 1 and workspace is not None:
        if 0 < moment_workspace_size(reducer) <= element_count(workspace):
            reducer.reducer.partial = <double*>workspace.operand.data


cdef void run_moments(const MomentReducer* reducer, int threads) noexcept nogil:
    run_shares(threads, moment_share, reducer)
    if reducer.reducer.partial is not NULL:
        run_shares(
            resolve_threads(moment_workspace_size(reducer) // 8), merge_moment_share, reducer
        )


def moments_backward(
    View dmean, View dsecond, View x, View mean, View low, View dx, double share, double scale,
    bint accumulate, int64_t stream
):
    """dx OUT = share dmean IN + scale (x IN - mean IN) dsecond IN, or dx IN/OUT += of the same.

    All of x's shape and dtype, with strides of 0 where they repeat. low IN: of the mean.
    """
    cdef Operand[6] arrays = [
        x.operand, mean.operand, low.operand, dmean.operand, dsecond.operand, dx.operand
    ]
    cdef double[2] parameters = [share, scale]
    run(
        table.moments_backward[x.dtype][accumulate], &parameters[0], x.dtype, accumulate, 6, arrays,
        x.size,
    )
