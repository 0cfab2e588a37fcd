# Moments: the mean of x over some axes, and m2, the sum of the squared distances from it.


cdef void prepare_moments_of(
    Reducer* reducer, View x, View mean, View low, View second, tuple axes, double divisor
) except *:
    """x: checked. All of the results go by the strides of one of them."""
    cdef cpp_bool[kMaxAxes] reduced
    cdef Operand[3] results = [
        operand_or_nothing(mean), operand_or_nothing(low), operand_or_nothing(second)
    ]
    cdef View y = second if mean is None else mean
    cdef View other
    cdef int i, k
    set_axes(&reduced[0], axes, x.operand.ndim)
    check_kept(y, x, reduced, False, "mean or second")
    for k in range(2):
        other = second if k else low
        if other is None or other is y:
            continue
        check_like(other, y, "second" if k else "low", True)
        for i in range(y.operand.ndim):
            if y.shape_[i] != 1 and y.strides_[i] != other.strides_[i]:
                refuse("mean, low and second must have the same strides")
    prepare_moments(reducer, table.reduce, x.operand, results, reduced, x.dtype, y.dtype, divisor)


def moments_workspace(View x, View y, tuple axes):
    """Bytes of scratch with which `moments` can divide its work among many threads; 0: none needed.

    y: mean or second.
    """
    cdef Reducer reducer
    check(x, "x", False)
    if y is None:
        refuse("y must be an array, got None")
    if element_count(x) == 0 or element_count(y) == 0 or resolve_threads(element_count(x)) == 1:
        return 0
    prepare_moments_of(&reducer, x, y, None, None, axes, 1)
    return workspace_size(&reducer)


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
    cdef Reducer reducer
    cdef int threads
    check(x, "x", False)
    if element_count(x) == 0:
        refuse(f"x must have elements, got shape {x.shape}")
    check(second if mean is None else mean, "mean or second", True)
    threads = resolve_threads(element_count(x))
    prepare_moments_of(&reducer, x, mean, low, second, axes, divisor)
    use_workspace(&reducer, 1, workspace, threads)
    with nogil:
        run_reduction(&reducer, threads)


def moments_backward(
    View dmean, View dsecond, View x, View mean, View low, View dx, double share, double scale,
    bint accumulate, int64_t stream
):
    """dx OUT = share dmean IN + scale (x IN - mean IN) dsecond IN, or dx IN/OUT += of the same.

    All of x's shape, with strides of 0 where they repeat, and of its dtype. low IN: of the mean, which
    for 16-bit data is float64 instead, and has none.
    """
    cdef double[2] parameters = [share, scale]
    cdef Operand[6] arrays
    cdef TensorIterator iterator
    cdef int count = 0
    check(x, "x", False)
    check(mean, "mean", False)
    if not same_shape(mean, x):
        refuse(f"mean must have shape {x.shape}, got {mean.shape}")
    if x.dtype < kF32:  # 16 bits
        check_dtype(mean, kF64, "mean")
        if low is not None:
            refuse("low must be None for 16-bit data")
    else:
        check_dtype(mean, x.dtype, "mean")
        check_like(low, x, "low", False)
    check_like(dmean, x, "dmean", False)
    check_like(dsecond, x, "dsecond", False)
    check_like(dx, x, "dx", True)
    if element_count(x) == 0:
        return
    for view in (x, mean, low, dmean, dsecond, dx):
        if view is not None:
            arrays[count] = (<View>view).operand
            count += 1
    prepare(
        &iterator, table.moments_backward[x.dtype][accumulate], &parameters[0], x.dtype, accumulate,
        count, arrays,
    )
    iterator.items[1] = mean.itemsize
    with nogil:
        run_iterator(&iterator)
