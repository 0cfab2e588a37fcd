# Moments: the mean of x over some axes, and m2, the sum of the squared distances from it.


# What becomes of m2; the order is OfM2's.
OF_M2 = (
    "nothing", "m2", "variance", "deviation", "mean slope", "variance slope", "deviation slope",
)


cdef void prepare_moments_of(
    Reducer* reducer, View x, View mean, View low, View second, View count, tuple axes, int of_m2,
    double correction, bint skips
) except *:
    """x: checked. All of the results go by the strides of one of them."""
    cdef cpp_bool[kMaxAxes] reduced
    cdef Operand[4] results = [
        operand_or_nothing(mean), operand_or_nothing(low), operand_or_nothing(second),
        operand_or_nothing(count),
    ]
    cdef View y = first_of(mean, second, count)
    cdef View other
    cdef int i
    check_index(of_m2, kOfM2, "of_m2")
    if of_m2 == 0 and not (low is None and second is None):
        refuse("low and second must be None where nothing becomes of m2")
    set_axes(&reduced[0], axes, x.operand.ndim)
    check_kept(y, x, reduced, False, "mean, second or count")
    for other in (low, second, count):
        if other is None or other is y:
            continue
        check_like(other, y, "low, second or count", True)
        for i in range(y.operand.ndim):
            if y.shape_[i] != 1 and y.strides_[i] != other.strides_[i]:
                refuse("mean, low, second and count must have the same strides")
    prepare_moments(
        reducer, table.reduce, x.operand, results, reduced, x.dtype, y.dtype, <OfM2>of_m2,
        correction, skips,
    )


cdef View first_of(View a, View b, View c):
    """The first one that is given."""
    return a if a is not None else b if b is not None else c


def moments_workspace(View x, View y, tuple axes, bint skips):
    """Bytes of scratch with which `moments` can divide its work among many threads; 0: none needed.

    y: mean or second. skips: NaN.
    """
    cdef Reducer reducer
    check(x, "x", False)
    if y is None:
        refuse("y must be an array, got None")
    if element_count(x) == 0 or element_count(y) == 0 or resolve_threads(element_count(x)) == 1:
        return 0
    prepare_moments_of(&reducer, x, y, None, None, None, axes, 1, 0, skips)
    return workspace_size(&reducer)


def moments(
    View x, View mean, View low, View second, View count, tuple axes, int of_m2, double correction,
    bint skips, str warning, View workspace, int64_t stream
):
    """mean OUT = the mean of x IN over `axes`, sorted; low OUT = what its rounding lost; second OUT =
    what OF_M2[of_m2] says of m2; count OUT = how many elements that is of. x is not empty.

    The results have length 1 along the axes, one dtype and the same strides; low and two of the
    others may be None. skips: NaN. warning: what to warn of where there are too few elements;
    None: of nothing. workspace: SCRATCH of `moments_workspace` bytes, or None. stream: of a GPU;
    unused here.
    """
    cdef Reducer reducer
    cdef int threads, is_degenerate = 0
    check(x, "x", False)
    if element_count(x) == 0:
        refuse(f"x must have elements, got shape {x.shape}")
    check(first_of(mean, second, count), "mean, second or count", True)
    threads = resolve_threads(element_count(x))
    prepare_moments_of(&reducer, x, mean, low, second, count, axes, of_m2, correction, skips)
    if warning is not None:
        reducer.is_degenerate = &is_degenerate
    use_workspace(&reducer, 1, workspace, threads)
    with nogil:
        run_reduction(&reducer, threads)
    if is_degenerate:
        warn(warning)


def warn(str what):
    """A RuntimeWarning at the line that called into this package."""
    level = 1
    frame = sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fastact."):
        level += 1
        frame = frame.f_back
    warnings.warn(what, RuntimeWarning, stacklevel=level)


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


def statistic_backward(
    View dy, View slope, View x, View mean, View low, View dx, bint skips, bint accumulate,
    int64_t stream
):
    """dx OUT = slope IN dy IN (x IN - mean IN), without a mean slope dy, or dx IN/OUT += of the same.

    All of dx's shape, with strides of 0 where they repeat, and of its dtype; but slope and mean of
    16-bit data are double, and low, of the mean, is None. skips: where x is NaN, 0; else NaN.
    """
    cdef double[1] parameters = [0.0 if skips else <double>NAN]
    cdef Operand[6] arrays
    cdef TensorIterator iterator
    cdef int wide, count = 0
    check(dx, "dx", True)
    check_like(dy, dx, "dy", False)
    check_like(x, dx, "x", False)
    wide = kF64 if dx.dtype < kF32 else dx.dtype  # 16 bits
    for view in (slope, mean):
        if view is None and view is not slope:
            continue
        check(view, "slope or mean", False)
        check_dtype(view, wide, "slope or mean")
        if not same_shape(view, dx):
            refuse(f"slope and mean must have shape {dx.shape}, got {(<View>view).shape}")
    if (low is None) != (mean is None or dx.dtype < kF32):
        refuse("low must come with a mean of data of 32 bits or more, and only there")
    if low is not None:
        check_like(low, dx, "low", False)
    if element_count(dx) == 0:
        return
    for view in (x, dy, slope, mean, low, dx):
        if view is not None:
            arrays[count] = (<View>view).operand
            count += 1
    prepare(
        &iterator,
        table.slope_backward[dx.dtype][accumulate] if mean is None
        else table.deviation_backward[dx.dtype][accumulate],
        &parameters[0], dx.dtype, accumulate, count, arrays,
    )
    iterator.items[2] = slope.itemsize
    if mean is not None:
        iterator.items[3] = mean.itemsize
    with nogil:
        run_iterator(&iterator)
