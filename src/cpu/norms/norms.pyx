# The norms: y = f((x - mean) rstd w + b) over normalization rows, and dx, dweight and dbias.
#
# All arrays come with the axes of x (group_norm: of x with its channels split), with length 1 where
# they have none. `reduced` tells the axes inside a row, `of_parameter` the axes of weight and bias.
include "cpu/norms/norms.pxi"

cdef int IDENTITY = ACTIVATIONS.index("identity") if "identity" in ACTIVATIONS else -1


cdef int computed_in(int dtype) noexcept:
    return kF64 if dtype == kF64 else kF32


cdef struct NormAxes:
    cpp_bool[kMaxAxes] reduced
    cpp_bool[kMaxAxes] of_parameter


cdef int prepare_axes(
    NormArrays* given, NormAxes* axes, int ndim, tuple reduced, tuple of_parameter
) except -1:
    set_axes(&axes.reduced[0], reduced, ndim)
    set_axes(&axes.of_parameter[0], of_parameter, ndim)
    given.reduced = &axes.reduced[0]
    given.of_parameter = &axes.of_parameter[0]
    return 0


cdef int set_arrays(NormArrays* given, View x, tuple views) except -1:
    """views: the operands in the order of Norm, each a View or None."""
    cdef View view
    cdef int i
    for i, view in enumerate(views):
        given.arrays[i] = operand_or_nothing(view)
        given.dtypes[i] = x.dtype if view is None else view.dtype
    return 0


cdef int set_casts(Norm* norm, bint casts, int dtype, View bias, bint is_centred) except -1:
    """Rounding between the steps, which only data of 16 bits can tell from none."""
    if casts and (bias is not None or is_centred):
        refuse("casts must be False with a bias or a mean")
    norm.casts = casts and item_size(dtype) == 2
    return 0


def norm_forward_workspace(View x, tuple reduced, tuple of_parameter):
    """Bytes of scratch that `norm_forward` needs."""
    return 0


def norm_forward(
    int which, View x, View residual, View total, View y, View mean, View rstd, View weight,
    View bias, tuple reduced, tuple of_parameter, double eps, bint is_centred,
    double weight_offset, bint casts, tuple parameters, View workspace, int64_t stream
):
    """y OUT = f((x IN - mean) rstd weight IN + bias IN), with the statistics of each row.

    residual IN, total OUT: if given, x + residual, rounded, is normalised in x's place. mean, rstd
    OUT: in the compute type, or None; weight, bias: or None. is_centred: False for rms_norm, which
    has no mean. weight_offset is added to the weight, in the compute type. casts, of rms_norm: xhat
    and what is made of it are rounded to x's dtype step by step (common/norms/norms.h). Of x,
    residual, total and y, each is another or disjoint from it, but y is not total. workspace,
    stream: of a GPU; unused here.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Norm norm
    cdef NormArrays given
    cdef NormAxes axes
    cdef int threads
    check_index(which, kActivations, "which")
    check(x, "x", False)
    check_if_like(residual, x, "residual", False)
    check_if_like(total, x, "total", True)
    check_like(y, x, "y", True)
    if (residual is None) != (total is None):
        refuse("residual and total must both be arrays, or None")
    unpack(parameters, p)
    prepare_axes(&given, &axes, x.operand.ndim, reduced, of_parameter)
    set_casts(&norm, casts, x.dtype, bias, is_centred)
    if rstd is None:
        if mean is not None:
            refuse("mean must be None without rstd")
    else:
        check(rstd, "rstd", True)
        check_kept(rstd, x, axes.reduced, False, "rstd")
        check_dtype(rstd, computed_in(x.dtype), "rstd")
        if (mean is not None) != is_centred:
            refuse("mean must be an array where it is subtracted, and only there")
        if mean is not None:
            check_like(mean, rstd, "mean", True)
    check_parameters(x, weight, bias)
    if element_count(x) == 0:
        if rstd is not None and element_count(rstd) > 0:
            fill(mean, NAN)
            fill(rstd, NAN)
        return
    set_arrays(&given, x, (x, residual, total, y, mean, rstd, weight, bias, None, None))
    given.lead, given.weight_offset = 0, weight_offset
    norm.accumulate, norm.is_centred = False, is_centred
    prepare_norm(&norm, table, given)
    norm.activation = table.elementwise.forward[which][computed_in(x.dtype)]
    norm.parameters = p
    norm.is_identity = which == IDENTITY
    norm.eps = eps
    threads = resolve_threads(element_count(x))
    with nogil:
        run_partitions(threads, partitions_of(norm_forward_partition, &norm))


cdef int check_parameters(View x, View weight, View bias) except -1:
    check_beside(weight, x, "weight", False)
    check_wide_enough(weight, x, "weight")
    check_beside(bias, x, "bias", False)
    return check_wide_enough(bias, x, "bias")


cdef int check_gradient(
    View gradient, View parameter, View x, const cpp_bool* of_parameter, const char* name
) except -1:
    """None, or of the parameter's dtype, with length 1 along the axes that are not its own."""
    if gradient is None:
        return 0
    check(gradient, name, True)
    check_kept(gradient, x, of_parameter, True, name)
    return check_dtype(gradient, x.dtype if parameter is None else parameter.dtype, name)


cdef int prepare_backward(
    Norm* norm, NormAxes* axes, tuple views, tuple reduced, tuple of_parameter,
    double weight_offset
) except -1:
    """views: dy, x (checked, not empty), dtotal, dx, mean, rstd, weight, bias, dweight, dbias."""
    cdef NormArrays given
    cdef View x = views[1]
    given.lead, given.weight_offset = 1, weight_offset
    prepare_axes(&given, axes, x.operand.ndim, reduced, of_parameter)
    check_parameters(x, views[6], views[7])
    check_gradient(views[8], views[6], x, axes.of_parameter, "dweight")
    check_gradient(views[9], views[7], x, axes.of_parameter, "dbias")
    set_arrays(&given, x, views)
    prepare_norm(norm, table, given)
    return 0


def norm_workspace(
    View x, View weight, View bias, View dweight, View dbias, tuple reduced, tuple of_parameter
):
    """Bytes of scratch that `norm_backward` needs."""
    cdef Norm norm
    cdef NormAxes axes
    check(x, "x", False)
    if element_count(x) == 0:
        return 0
    norm.accumulate, norm.is_centred = False, True  # which takes more, if anything
    prepare_backward(
        &norm, &axes, (None, x, None, None, None, None, weight, bias, dweight, dbias), reduced,
        of_parameter, 0
    )
    return norm_workspace_size(&norm)


def norm_backward(
    int which, View dy, View x, View dtotal, View dx, View mean, View rstd, View weight, View bias,
    View dweight, View dbias, tuple reduced, tuple of_parameter, double weight_offset, bint casts,
    tuple parameters, bint accumulate, View workspace, int64_t stream
):
    """dx OUT, dweight OUT and dbias OUT from dy IN; each of them or None.

    accumulate: they are IN/OUT, added to. mean IN (None: rms_norm), rstd IN: of `norm_forward`.
    weight_offset, casts: as given to that. dtotal IN: or None; added to dx. dweight has weight's
    dtype, dbias has bias's. dx is dy, x, dtotal or disjoint from them. workspace: SCRATCH of
    `norm_workspace` bytes, or None for none.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Norm norm
    cdef NormAxes axes
    cdef int threads
    cdef char* memory
    check_index(which, kActivations, "which")
    check(x, "x", False)
    check_like(dy, x, "dy", False)
    check_if_like(dtotal, x, "dtotal", False)
    check_if_like(dx, x, "dx", True)
    if rstd is None:
        refuse("rstd must be an array, got None")
    check_beside(rstd, x, "rstd", False)
    check_dtype(rstd, computed_in(x.dtype), "rstd")
    check_beside(mean, x, "mean", False)
    check_dtype(mean, computed_in(x.dtype), "mean")
    set_casts(&norm, casts, x.dtype, bias, mean is not None)
    unpack(parameters, p)
    if element_count(x) == 0:
        for gradient in (dweight, dbias):
            if gradient is not None:
                check(gradient, "a gradient", True)
        if not accumulate:
            fill(dweight, 0)
            fill(dbias, 0)
        return
    norm.accumulate, norm.is_centred = accumulate, mean is not None
    prepare_backward(
        &norm, &axes, (dy, x, dtotal, dx, mean, rstd, weight, bias, dweight, dbias), reduced,
        of_parameter, weight_offset
    )
    norm.activation = table.elementwise.backward[which][computed_in(x.dtype)][False]
    norm.parameters = p
    norm.is_identity = which == IDENTITY
    memory = memory_for(workspace, norm_workspace_size(&norm), "workspace")
    if norm_workspace_size(&norm) > 0:
        norm.partial = <double*>memory
    threads = resolve_threads(element_count(x))
    with nogil:
        run_partitions(threads, partitions_of(norm_backward_partition, &norm))
        if norm.partial is not NULL:
            merge_norm(&norm, threads)


cdef void merge_norm(const Norm* norm, int threads) noexcept nogil:
    run_partitions(
        threads_for(norm_workspace_size(norm) // 8, threads),
        partitions_of(merge_norm_partition, norm),
    )


cdef void fill(View y, double value) noexcept:
    """y OUT, or None, = one value, rounded to its dtype."""
    cdef double element  # room for one of any dtype
    if y is not None and y.size > 0:
        store_as(y.dtype, <char*>&element, value)
        fill_with(y, <char*>&element)
