# Gated activations: y = f(min(a', limit)) (clamp(b', -limit, limit) + offset), a' = a + bias_a,
# b' = b + bias_b (common/gated/gated.h).
include "cpu/gated/gated.pxi"


cdef int check_gated(
    int which, View a, View b, View bias_a, View bias_b, int axis, double limit
) except -1:
    """What both directions read."""
    check_index(which, kActivations, "which")
    check(a, "a", False)
    check_like(b, a, "b", False)
    if not limit > 0:
        refuse(f"limit must be above 0, got {limit}")
    if (bias_a is None) != (bias_b is None):
        refuse("bias_a and bias_b must both be arrays, or both None")
    if bias_a is not None:
        check_index(axis, a.operand.ndim, "axis")
        check_wide_enough(bias_a, a, "bias_a")
        check_along(bias_a, a.shape_[axis], "bias_a", False)
        check_along(bias_b, a.shape_[axis], "bias_b", False)
        check_dtype(bias_b, bias_a.dtype, "bias_b")
    return 0


cdef void prepare_both(
    Gated* gated, int which, const double* parameters, double limit, double offset,
    const Operand* arrays, View a, View bias_a, View bias_b, int axis, bint sums
) noexcept:
    cdef Operand[2] biases
    biases = [operand_or_nothing(bias_a), operand_or_nothing(bias_b)]
    gated.numbers.limit, gated.numbers.offset = limit, offset
    gated.parameters = parameters
    prepare_gated(
        gated, table, which, a.dtype, arrays, biases,
        a.dtype if bias_a is None else bias_a.dtype, axis, sums
    )


def gated_forward(
    int which, View a, View b, View bias_a, View bias_b, View y, int axis, tuple parameters,
    double limit, double offset, int64_t stream
):
    """y OUT, of a IN and b IN; f and its parameters as for `activation_forward`.

    a, b and y have one shape and dtype. bias_a IN, bias_b IN: both or neither, of one dtype, which
    is a's or a wider one, along `axis`, which counts for nothing without them. limit: above 0,
    infinity for none. y is a, b or disjoint from both, and disjoint from the biases. stream: of a
    GPU; unused here.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Gated gated
    cdef Operand[5] arrays
    cdef int threads
    check_gated(which, a, b, bias_a, bias_b, axis, limit)
    check_like(y, a, "y", True)
    unpack(parameters, p)
    if element_count(y) == 0:
        return
    arrays = [
        operand_or_nothing(None), a.operand, b.operand, y.operand, operand_or_nothing(None)
    ]
    gated.plan.accumulate = False
    prepare_both(&gated, which, p, limit, offset, arrays, a, bias_a, bias_b, axis, False)
    threads = resolve_threads(element_count(y))
    with nogil:
        run_partitions(threads, partitions_of(gated_forward_partition, &gated))


def gated_workspace(View a, int axis):
    """Bytes of scratch with which `gated_backward` can divide its work among many threads.

    Where it computes dbias_a and dbias_b; else it needs none.
    """
    cdef int64_t size
    check(a, "a", False)
    check_index(axis, a.operand.ndim, "axis")
    size = element_count(a)
    if size == 0 or resolve_threads(size) == 1:
        return 0
    return 2 * sum_workspace_size(a.shape_[axis], size // a.shape_[axis])


def gated_backward(
    int which, View dy, View a, View b, View bias_a, View bias_b, View da, View db, View dbias_a,
    View dbias_b, int axis, tuple parameters, double limit, double offset, bint accumulate,
    View workspace, int64_t stream
):
    """da OUT, db OUT, and dbias_a OUT, dbias_b OUT: the sums of da and db over all axes but `axis`.

    Of dy IN, a IN, b IN, bias_a IN and bias_b IN, as for `gated_forward`; accumulate: all are
    IN/OUT, added to. Each may be None and is not computed then, but for one; dbias_a and dbias_b
    are both given or neither, with the biases alone, and of their dtype. Their summands are not
    rounded to a's dtype. da and db are each dy, a, b or disjoint from all three, and disjoint from
    each other and from the biases and their gradients. workspace: SCRATCH of `gated_workspace`
    bytes, or None.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Gated gated
    cdef Operand[5] arrays
    cdef Operand[2] dbiases
    cdef int threads
    check_gated(which, a, b, bias_a, bias_b, axis, limit)
    check_like(dy, a, "dy", False)
    check_if_like(da, a, "da", True)
    check_if_like(db, a, "db", True)
    if (dbias_a is None) != (dbias_b is None):
        refuse("dbias_a and dbias_b must both be arrays, or both None")
    if dbias_a is not None:
        if bias_a is None:
            refuse("dbias_a must be None without a bias")
        check_along(dbias_a, a.shape_[axis], "dbias_a", True)
        check_along(dbias_b, a.shape_[axis], "dbias_b", True)
        check_dtype(dbias_a, bias_a.dtype, "dbias_a")
        check_dtype(dbias_b, bias_a.dtype, "dbias_b")
    elif da is None and db is None:
        refuse("da, db or dbias_a must be an array")
    unpack(parameters, p)
    if element_count(a) == 0:
        if dbias_a is not None and not accumulate and element_count(dbias_a) > 0:
            fill_with_zero(dbias_a)
            fill_with_zero(dbias_b)
        return
    arrays = [
        dy.operand, a.operand, b.operand, operand_or_nothing(da), operand_or_nothing(db)
    ]
    gated.plan.accumulate = accumulate
    prepare_both(
        &gated, which, p, limit, offset, arrays, a, bias_a, bias_b, axis, dbias_a is not None
    )
    threads = resolve_threads(element_count(a))
    if dbias_a is not None:
        dbiases = [dbias_a.operand, dbias_b.operand]
        prepare_sums_of_gated(&gated, table.reduce, dbiases)
        divide_work(gated.sums.each, gated.sums.count, workspace, threads)
    with nogil:
        run_partitions(threads, partitions_of(gated_backward_partition, &gated))
        merge_chunks(gated.sums.each, gated.sums.count, threads)
