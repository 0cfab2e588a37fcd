# The norms: y = f((x - mean) rstd w + b) over units, and dx, dweight and dbias.
#
# All arrays come with the axes of x (group_norm: of x with its channels split), with length 1 where
# they have none. `reduced` tells the axes inside a unit, `of_parameter` those of weight and bias.

cdef int IDENTITY = ACTIVATIONS.index("identity") if "identity" in ACTIVATIONS else -1


cdef int computed_in(int dtype) noexcept:
    return kF64 if dtype == kF64 else kF32


cdef struct NormAxes:
    cpp_bool[kMaxAxes] reduced
    cpp_bool[kMaxAxes] of_parameter


cdef void prepare_axes(NormArrays* given, NormAxes* axes, int ndim, tuple reduced, tuple of_parameter):
    cdef int i
    for i in range(ndim):
        axes.reduced[i] = i in reduced
        axes.of_parameter[i] = i in of_parameter
    given.reduced = &axes.reduced[0]
    given.of_parameter = &axes.of_parameter[0]


cdef void set_parameters(NormArrays* given, int dtype, View weight, View bias) noexcept:
    given.weight = operand_or_nothing(weight)
    given.bias = operand_or_nothing(bias)
    given.weight_dtype = dtype if weight is None else weight.dtype
    given.bias_dtype = dtype if bias is None else bias.dtype


def norm_forward_workspace(View x, tuple reduced, tuple of_parameter):
    """Bytes of scratch that `norm_forward` needs."""
    return 0


def norm_forward(
    int which, View x, View residual, View total, View y, View mean, View rstd, View weight,
    View bias, tuple reduced, tuple of_parameter, double eps, bint is_centred, tuple parameters,
    View workspace, int64_t stream
):
    """y OUT = f((x IN - mean) rstd weight IN + bias IN), the statistics those of each unit.

    residual IN, total OUT: if given, x + residual, rounded, is normalised in x's place. mean, rstd
    OUT: in the compute type, or None; weight, bias: or None. is_centred: False for rms_norm, which
    has no mean. Of x, residual, total and y, each is another or disjoint from it, but y is not
    total. workspace, stream: of a GPU; unused here.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Norm norm
    cdef NormArrays given
    cdef NormAxes axes
    cdef Operand[4] arrays = [
        x.operand, operand_or_nothing(residual), operand_or_nothing(total), y.operand
    ]
    cdef int threads
    if x.size == 0:
        if rstd is not None and rstd.size > 0:
            fill(mean, NAN)
            fill(rstd, NAN)
        return
    unpack(parameters, p)
    given.arrays, given.lead = arrays, 0
    prepare_axes(&given, &axes, x.operand.ndim, reduced, of_parameter)
    given.mean, given.rstd = operand_or_nothing(mean), operand_or_nothing(rstd)
    given.dweight = given.dbias = operand_or_nothing(None)
    set_parameters(&given, x.dtype, weight, bias)
    norm.accumulate = False
    prepare_norm(&norm, table, x.dtype, given)
    norm.activation = table.forward[which][computed_in(x.dtype)]
    norm.parameters = p
    norm.is_identity, norm.is_centred = which == IDENTITY, is_centred
    norm.eps = eps
    threads = resolve_threads(x.size)
    with nogil:
        run_shares(threads, norm_forward_share, &norm)


cdef void prepare_backward(
    Norm* norm, NormArrays* given, NormAxes* axes, View x, View weight, View bias, View dweight,
    View dbias, tuple reduced, tuple of_parameter
):
    given.lead = 1
    prepare_axes(given, axes, x.operand.ndim, reduced, of_parameter)
    set_parameters(given, x.dtype, weight, bias)
    given.dweight, given.dbias = operand_or_nothing(dweight), operand_or_nothing(dbias)
    prepare_norm(norm, table, x.dtype, given[0])


def norm_workspace(
    View x, View weight, View bias, View dweight, View dbias, tuple reduced, tuple of_parameter
):
    """Bytes of scratch that `norm_backward` needs."""
    cdef Norm norm
    cdef NormArrays given
    cdef NormAxes axes
    cdef Operand nothing = operand_or_nothing(None)
    cdef Operand[4] arrays = [nothing, x.operand, nothing, nothing]
    if x.size == 0:
        return 0
    given.arrays = arrays
    given.mean = given.rstd = nothing
    norm.accumulate = False
    prepare_backward(
        &norm, &given, &axes, x, weight, bias, dweight, dbias, reduced, of_parameter
    )
    return norm_workspace_size(&norm)


def norm_backward(
    int which, View dy, View x, View dtotal, View dx, View mean, View rstd, View weight, View bias,
    View dweight, View dbias, tuple reduced, tuple of_parameter, tuple parameters, bint accumulate,
    View workspace, int64_t stream
):
    """dx OUT, dweight OUT and dbias OUT from dy IN; each of them or None.

    accumulate: they are IN/OUT, added to. mean IN (None: rms_norm), rstd IN: of `norm_forward`.
    dtotal IN: or None; added to dx. dweight has weight's dtype, dbias has bias's. dx is dy, x,
    dtotal or disjoint from them. workspace: SCRATCH of `norm_workspace` bytes, or None for none.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Norm norm
    cdef NormArrays given
    cdef NormAxes axes
    cdef Operand[4] arrays = [
        dy.operand, x.operand, operand_or_nothing(dtotal), operand_or_nothing(dx)
    ]
    cdef int threads
    if x.size == 0:
        if not accumulate:
            fill(dweight, 0)
            fill(dbias, 0)
        return
    unpack(parameters, p)
    given.arrays = arrays
    given.mean, given.rstd = operand_or_nothing(mean), rstd.operand
    norm.accumulate = accumulate
    prepare_backward(
        &norm, &given, &axes, x, weight, bias, dweight, dbias, reduced, of_parameter
    )
    norm.activation = table.backward[which][computed_in(x.dtype)][False]
    norm.parameters = p
    norm.is_identity, norm.is_centred = which == IDENTITY, mean is not None
    if workspace is not None:
        norm.partial = <double*>workspace.operand.data
    threads = resolve_threads(x.size)
    with nogil:
        run_shares(threads, norm_backward_share, &norm)
        if norm.partial is not NULL:
            merge_norm(&norm)


cdef void merge_norm(const Norm* norm) noexcept nogil:
    run_shares(resolve_threads(norm_workspace_size(norm) // 8), merge_norm_share, norm)


cdef void fill(View y, double value) noexcept:
    """y OUT, or None, = one value; of any dtype."""
    if y is not None and y.size > 0:
        if value == 0:
            fill_with_zero(y)
        elif y.dtype == kF64:
            fill_with(y, <char*>&value)
        else:
            fill_float(y, <float>value)


cdef void fill_float(View y, float value) noexcept:
    fill_with(y, <char*>&value)
