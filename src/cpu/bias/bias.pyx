# bias_act: y = f(x + bias + residual), and dx and dbias in one pass.
include "cpu/bias/bias.pxi"

cdef void prepare_act(
    BiasAct* act, int which, bint backward, const double* parameters, const Operand* arrays,
    View out, View bias, int axis, bint accumulate
) noexcept:
    act.activation = which
    act.parameters = parameters
    act.plan.accumulate = accumulate
    prepare_bias(act, table, backward, out.dtype, arrays, bias.operand, bias.dtype, axis)


cdef int check_bias_act(
    int which, View like, View x, View bias, View residual, View out, int axis
) except -1:
    """like: checked."""
    check_index(which, kActivations, "which")
    check_like(x, like, "x", False)
    check_if_like(residual, like, "residual", False)
    check_like(out, like, "out", True)
    check_index(axis, like.operand.ndim, "axis")
    if bias is None:
        refuse("bias must be an array, got None")
    check_wide_enough(bias, like, "bias")
    return check_along(bias, like.shape_[axis], "bias", False)


def bias_act_forward(
    int which, View x, View bias, View residual, View y, int axis, tuple parameters,
    int64_t stream
):
    """y OUT = f(x IN + bias IN + residual IN), the bias along `axis`; residual: or None.

    x, residual and y have one shape and dtype, bias that dtype or a wider one. y is x, residual or
    disjoint from all of them. stream: of a GPU; unused here.
    """
    cdef double p[MAX_PARAMETERS]
    cdef BiasAct act
    cdef Operand[4] arrays
    cdef int threads
    check(x, "x", False)
    check_bias_act(which, x, x, bias, residual, y, axis)
    unpack(parameters, p)
    if element_count(y) == 0:
        return
    arrays = [operand_or_nothing(None), x.operand, operand_or_nothing(residual), y.operand]
    prepare_act(&act, which, False, p, arrays, y, bias, axis, False)
    threads = resolve_threads(element_count(y))
    with nogil:
        run_partitions(threads, partitions_of(bias_forward_partition, &act))


def bias_act_workspace(View x, View dbias, int axis):
    """Bytes of scratch with which `bias_act_backward` can divide its work among many threads."""
    cdef int64_t size
    check(x, "x", False)
    check_index(axis, x.operand.ndim, "axis")
    size = element_count(x)
    if size == 0 or resolve_threads(size) == 1:
        return 0
    return sum_workspace_size(x.shape_[axis], size // x.shape_[axis])


def bias_act_backward(
    int which, View dy, View x, View bias, View residual, View dx, View dbias, int axis,
    tuple parameters, bint accumulate_dx, bint accumulate_dbias, View workspace, int64_t stream
):
    """dx OUT = dy IN * f'(x IN + bias IN + residual IN), dbias OUT = its sum over all other axes.

    accumulate_dx, accumulate_dbias: that one is IN/OUT, added to. dbias has the bias's dtype. dx is
    dy, x, residual or disjoint from all of them. Where f is the identity, x is not read. workspace:
    SCRATCH of `bias_act_workspace` bytes, or None.
    """
    cdef double p[MAX_PARAMETERS]
    cdef BiasAct act
    cdef Operand[4] arrays
    cdef int threads
    check(dy, "dy", False)
    check_bias_act(which, dy, x, bias, residual, dx, axis)
    if dbias is None:
        refuse("dbias must be an array, got None")
    check_along(dbias, dy.shape_[axis], "dbias", True)
    check_dtype(dbias, bias.dtype, "dbias")
    unpack(parameters, p)
    if element_count(dx) == 0:
        if not accumulate_dbias and element_count(dbias) > 0:
            fill_with_zero(dbias)
        return
    arrays = [dy.operand, x.operand, operand_or_nothing(residual), dx.operand]
    prepare_act(&act, which, True, p, arrays, dx, bias, axis, accumulate_dx)
    prepare_sum_of_bias(&act, table.reduce, dbias.operand, accumulate_dbias)
    threads = resolve_threads(element_count(dx))
    divide_work(act.sums.each, act.sums.count, workspace, threads)
    with nogil:
        run_partitions(threads, partitions_of(bias_backward_partition, &act))
        merge_chunks(act.sums.each, act.sums.count, threads)
