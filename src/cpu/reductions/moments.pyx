# Moments: the mean of x over some axes, and m2, the sum of the squared distances from it.


# What becomes of m2; the order is OfM2's.
OF_M2 = (
    "nothing", "m2", "variance", "deviation", "mean slope", "variance slope", "deviation slope",
    "total",
)


cdef bint is_weighted(View x, View weights, View where) noexcept:
    """Whether elements count more or less than once, or have a dtype that is converted first."""
    return weights is not None or where is not None or not 0 <= x.dtype <= kF64


cdef void prepare_moments_of(
    Reducer* reducer, WeightedMoments* weighted, View x, View weights, View where, View mean,
    View low, View second, View count, tuple axes, int of_m2, double correction, bint skips
) except *:
    """Prepare one of the two, of checked arrays. The results have the strides of one of them."""
    cdef cpp_bool[kMaxAxes] reduced
    cdef Operand[4] results = [
        operand_or_nothing(mean), operand_or_nothing(low), operand_or_nothing(second),
        operand_or_nothing(count),
    ]
    cdef View y = first_of(mean, second, count)
    cdef View other
    cdef int i
    check_index(of_m2, kOfM2, "of_m2")
    cdef Operand[3] inputs
    cdef int[3] dtypes
    if of_m2 == kTotal and weighted is NULL:
        refuse("a total must be of weighted terms")
    if of_m2 in (0, kTotal) and not (low is None and second is None):
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
    if weighted is NULL:
        prepare_moments(
            reducer, table.reduce, x.operand, results, reduced, x.dtype, y.dtype, <OfM2>of_m2,
            correction, skips,
        )
        return
    inputs = [x.operand, operand_or_nothing(weights), operand_or_nothing(where)]
    dtypes = [x.dtype, dtype_or_double(weights), dtype_or_double(where)]
    prepare_weighted(
        weighted, table.reduce, table.convert, inputs, dtypes, results, reduced, y.dtype,
        <OfM2>of_m2, correction, skips,
    )


cdef View first_of(View a, View b, View c):
    """The first one that is given."""
    return a if a is not None else b if b is not None else c


cdef int dtype_or_double(View view) noexcept:
    return kF64 if view is None else view.dtype


cdef int check_inputs(View x, View weights, View where) except -1:
    check_any(x, "x")
    if weights is not None:
        check_any(weights, "weights")
        if not same_shape(weights, x):
            refuse(f"weights must have shape {x.shape}, got {weights.shape}")
    if where is not None:
        check_any(where, "where")
        check_dtype(where, kBool, "where")
        if not same_shape(where, x):
            refuse(f"where must have shape {x.shape}, got {where.shape}")
    return 0


def moments_workspace(View x, View weights, View where, View y, tuple axes, bint skips):
    """Bytes of scratch with which `moments` can divide its work among many threads; 0: none needed.

    y: mean or second. skips: NaN.
    """
    cdef Reducer reducer
    cdef WeightedMoments weighted
    check_inputs(x, weights, where)
    if y is None:
        refuse("y must be an array, got None")
    if element_count(x) == 0 or element_count(y) == 0 or resolve_threads(element_count(x)) == 1:
        return 0
    if is_weighted(x, weights, where):
        prepare_moments_of(
            NULL, &weighted, x, weights, where, y, None, None, None, axes, 1, 0, skips
        )
        return workspace_size(&weighted.reducer)
    prepare_moments_of(&reducer, NULL, x, None, None, y, None, None, None, axes, 1, 0, skips)
    return workspace_size(&reducer)


def moments(
    View x, View weights, View where, View mean, View low, View second, View count, tuple axes,
    int of_m2, double correction, bint skips, str warning, View workspace, int64_t stream
):
    """mean OUT = the mean of x IN over `axes`, sorted; low OUT = what its rounding lost; second OUT
    = what OF_M2[of_m2] says of m2; count OUT = how many elements that is of. x is not empty.

    weights IN, where IN: of x's shape, or None; then the count is how many elements `where` has
    True, or the sum of the weights. x and weights may have integers or bools, where has bools. The
    results have length 1 along the axes, one dtype and the same strides; low and two of the others
    may be None. skips: NaN. warning: what to warn of where there are too few elements; None: of
    nothing. workspace: SCRATCH of `moments_workspace` bytes, or None. stream: of a GPU; unused
    here.
    """
    cdef Reducer reducer
    check_inputs(x, weights, where)
    if element_count(x) == 0:
        refuse(f"x must have elements, got shape {x.shape}")
    check(first_of(mean, second, count), "mean, second or count", True)
    if is_weighted(x, weights, where):
        weighted_moments(
            x, weights, where, mean, low, second, count, axes, of_m2, correction, skips, warning,
            workspace,
        )
        return
    cdef int threads = resolve_threads(element_count(x)), is_degenerate = 0
    prepare_moments_of(
        &reducer, NULL, x, None, None, mean, low, second, count, axes, of_m2, correction, skips
    )
    if warning is not None:
        reducer.is_degenerate = &is_degenerate
    divide_work(&reducer, 1, workspace, threads)
    run_without_gil(&reducer, threads, element_count(x))
    if is_degenerate:
        warn(warning)


cdef int weighted_moments(
    View x, View weights, View where, View mean, View low, View second, View count, tuple axes,
    int of_m2, double correction, bint skips, str warning, View workspace
) except -1:
    """`moments` with weights or a mask; it takes more of the stack."""
    cdef WeightedMoments weighted
    cdef Reducer* reducer = &weighted.reducer
    cdef int threads = resolve_threads(element_count(x)), is_degenerate = 0
    prepare_moments_of(
        NULL, &weighted, x, weights, where, mean, low, second, count, axes, of_m2, correction, skips
    )
    if warning is not None or weights is not None:
        reducer.is_degenerate = &is_degenerate
    else:
        reducer.is_degenerate = NULL
    divide_work(reducer, 1, workspace, threads)
    with nogil:
        run_partitions(threads, partitions_of(weighted_partition, &weighted))
        merge_chunks(reducer, 1, threads)
    if is_degenerate & kNoWeights:
        warn("weights that are negative or not finite; what they are part of is NaN")
    if is_degenerate & kTooFew and warning is not None:
        warn(warning)
    return 0


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

    All of x's shape, with strides of 0 where they repeat, and of its dtype. low IN: of the mean,
    which for 16-bit data is float64 instead, and has none.
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
        &iterator, table.elementwise.moments_backward[x.dtype][accumulate], &parameters[0], x.dtype,
        accumulate, count, arrays,
    )
    iterator.items[1] = mean.itemsize
    with nogil:
        run_iterator(&iterator)


def statistic_backward(
    View dy, View slope, View x, View mean, View low, View dx, bint skips, bint accumulate,
    int64_t stream
):
    """dx OUT = slope IN dy IN (x IN - mean IN), without a mean slope dy, or dx IN/OUT += of the
    same.

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
        table.elementwise.slope_backward[dx.dtype][accumulate] if mean is None
        else table.elementwise.deviation_backward[dx.dtype][accumulate],
        &parameters[0], dx.dtype, accumulate, count, arrays,
    )
    iterator.items[2] = slope.itemsize
    if mean is not None:
        iterator.items[3] = mean.itemsize
    with nogil:
        run_iterator(&iterator)


def weighted_gradient(
    View dy, View slope, View x, View weights, View where, View mean, View to, bint of_weights,
    bint skips, bint accumulate, int64_t stream
):
    """to OUT, or IN/OUT +=, = what a statistic's gradient dy IN is for x IN, or for the weights IN.

    With w: w slope dy (x - mean), without a mean w slope dy; for the weights slope dy (x - mean);
    and 0 where an element does not count. All of one shape, with strides of 0 where they repeat;
    slope and mean, which are double, have the same strides. skips: NaN. weights, where and mean may
    be None.
    """
    cdef Operand[7] operands
    cdef int[7] dtypes
    cdef WeightedGradient gradient
    cdef int k, threads
    check(to, "to", True)
    check_inputs(x, weights, where)
    if of_weights and mean is None:
        refuse("the gradient for weights must come with a mean")
    cdef list given = [to, dy, slope, x, weights, where, mean]
    for k in range(7):
        view = <View>given[k]
        operands[k] = operand_or_nothing(view)
        dtypes[k] = dtype_or_double(view)
        if view is None and k >= 4:
            continue
        if k in (1, 2, 6):
            check(view, "dy, slope or mean", False)
        if k in (2, 6):
            check_dtype(view, kF64, "slope or mean")
        if not same_shape(view, to):
            refuse(f"all arrays must have shape {to.shape}, got {(<View>view).shape}")
    if mean is not None:
        for k in range(to.operand.ndim):
            if to.shape_[k] != 1 and slope.strides_[k] != mean.strides_[k]:
                refuse("slope and mean must have the same strides")
    if element_count(to) == 0:
        return
    threads = resolve_threads(element_count(to))
    prepare_gradient(
        &gradient, table.reduce, table.convert, operands, dtypes, of_weights, skips, accumulate
    )
    with nogil:
        run_partitions(threads, partitions_of(weighted_gradient_partition, &gradient))
