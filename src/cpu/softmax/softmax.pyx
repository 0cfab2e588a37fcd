# softmax, log_softmax, logsumexp and cross_entropy over the rows of an array, and their gradients.
#
# All arrays come with the axes of the first one; those with one element a row have length 1 along
# the axes of a row.
include "cpu/softmax/softmax.pxi"

SOFTMAX_KINDS = names_of(kSoftmaxKindNames, kSoftmaxKinds)
REDUCTIONS = names_of(kReductionNames, kReductions)

cdef enum:
    MOST_OPERANDS = 6


cdef struct SoftmaxCall:
    Softmax job
    int count
    Operand[MOST_OPERANDS] arrays
    int[MOST_OPERANDS] dtypes
    cpp_bool[kMaxAxes] reduced


cdef void add_operand(SoftmaxCall* call, View view, int otherwise) noexcept:
    """The next operand, or None."""
    call.arrays[call.count] = operand_or_nothing(view)
    call.dtypes[call.count] = otherwise if view is None else view.dtype
    call.count += 1


cdef void begin_softmax(SoftmaxCall* call, int kind, double scale, bint accumulate) noexcept:
    call.count = 0
    call.job.kind, call.job.scale, call.job.accumulate = kind, scale, accumulate
    call.job.mask_kind = 0
    call.job.partial = NULL


cdef int check_mask(SoftmaxCall* call, View mask, View x) except -1:
    """None, or with the axes of x: bool, or any other dtype that a View has."""
    if mask is None:
        return 0
    check_any(mask, "mask")
    check_broadcasts(mask, x, "mask")
    call.job.mask_kind = 1 if mask.dtype == kBool else 2
    return 0


cdef int check_memory(View view, const char* name) except -1:
    """An array that is there, in the CPU's memory, of any dtype that a View knows."""
    if view is None:
        refuse(f"{text(name)} must be an array, got None")
    if view.operand.shape is NULL or view.dtype < 0 or view.device_type != kDLCPU or (
        view.operand.data is NULL and element_count(view) > 0
    ):
        refuse(f"{text(name)} must be an array on the CPU with memory, got {view.dtype_name}")
    return 0


cdef int check_broadcasts(View view, View x, const char* name) except -1:
    """With the axes of x, each of its length or of length 1."""
    cdef int i
    if view.operand.ndim == x.operand.ndim:
        for i in range(x.operand.ndim):
            if view.shape_[i] != x.shape_[i] and view.shape_[i] != 1:
                break
        else:
            return 0
    return refuse(
        f"{text(name)} must broadcast to shape {x.shape} with as many axes, got {view.shape}"
    )


cdef int check_of_rows(
    SoftmaxCall* call, View view, View x, const char* name, bint writes
) except -1:
    """An array with one element a row."""
    check(view, name, writes)
    return check_kept(view, x, call.reduced, False, name)


def softmax_workspace(View x, tuple axes):
    """Bytes of scratch that `softmax_forward` and `softmax_backward` need."""
    return 0


def softmax_forward(
    int kind, View x, View mask, View y, View lse, tuple axes, double scale, View workspace,
    int64_t stream
):
    """y OUT of z = scale x IN + mask IN: softmax, log_softmax or logsumexp of each row along
    `axes`.

    mask: None; bool, whose False gives z = -inf; or numbers of any dtype. y is like x, and x itself
    or disjoint from it; of logsumexp it has length 1 along the axes, and lse OUT, or None, has
    the same in the compute type. workspace, stream: of a GPU; unused here.
    """
    cdef SoftmaxCall call
    cdef int threads
    check_index(kind, kSoftmaxKinds, "kind")
    check(x, "x", False)
    begin_softmax(&call, kind, scale, False)
    set_axes(&call.reduced[0], axes, x.operand.ndim)
    check_mask(&call, mask, x)
    if SOFTMAX_KINDS[kind] == "logsumexp":
        check_of_rows(&call, y, x, "y", True)
        check_dtype(y, x.dtype, "y")
        if lse is not None:
            check_of_rows(&call, lse, x, "lse", True)
            check_dtype(lse, computed_in(x.dtype), "lse")
    else:
        check_like(y, x, "y", True)
        if lse is not None:
            refuse("lse must be None but for logsumexp")
    if element_count(x) == 0:
        if SOFTMAX_KINDS[kind] == "logsumexp":
            fill(y, -INFINITY)
            fill(lse, -INFINITY)
        return
    add_operand(&call, x, 0)
    add_operand(&call, mask, x.dtype)
    add_operand(&call, y, 0)
    add_operand(&call, lse, x.dtype)
    plan_softmax(&call.job, table, call.count, call.arrays, call.dtypes, call.reduced, False)
    threads = resolve_threads(element_count(x))
    with nogil:
        run_partitions(threads, partitions_of(softmax_partition, &call.job))


def softmax_backward(
    int kind, View dy, View y, View dx, tuple axes, double scale, bint accumulate, View workspace,
    int64_t stream
):
    """dx OUT from dy IN and y IN of softmax or log_softmax; accumulate: IN/OUT, added to.

    softmax: dx = scale y (dy - sum(dy y)). log_softmax: dx = scale (dy - exp(y) sum(dy)), and 0
    where y is -inf. All of one shape and dtype; dx is dy, y or disjoint from both.
    """
    cdef SoftmaxCall call
    cdef int threads
    check_index(kind, 2, "kind")
    check(y, "y", False)
    check_like(dy, y, "dy", False)
    check_like(dx, y, "dx", True)
    begin_softmax(&call, kind, scale, accumulate)
    set_axes(&call.reduced[0], axes, y.operand.ndim)
    if element_count(y) == 0:
        return
    add_operand(&call, dy, 0)
    add_operand(&call, y, 0)
    add_operand(&call, dx, 0)
    plan_softmax(&call.job, table, call.count, call.arrays, call.dtypes, call.reduced, False)
    threads = resolve_threads(element_count(y))
    with nogil:
        run_partitions(threads, partitions_of(softmax_backward_partition, &call.job))


def logsumexp_backward(
    View dy, View x, View mask, View lse, View dx, tuple axes, double scale, bint accumulate,
    int64_t stream
):
    """dx OUT = scale dy IN exp(scale x IN + mask IN - lse IN); accumulate: IN/OUT, added to.

    dy: of x's dtype, and lse: of the compute type, with length 1 along the axes. dx is like x, and
    x itself or disjoint from all.
    """
    cdef SoftmaxCall call
    cdef int threads
    check(x, "x", False)
    begin_softmax(&call, 2, scale, accumulate)
    set_axes(&call.reduced[0], axes, x.operand.ndim)
    check_mask(&call, mask, x)
    check_of_rows(&call, dy, x, "dy", False)
    check_dtype(dy, x.dtype, "dy")
    check_of_rows(&call, lse, x, "lse", False)
    check_dtype(lse, computed_in(x.dtype), "lse")
    check_like(dx, x, "dx", True)
    if element_count(x) == 0:
        return
    add_operand(&call, x, 0)
    add_operand(&call, mask, x.dtype)
    add_operand(&call, dy, 0)
    add_operand(&call, lse, 0)
    add_operand(&call, dx, 0)
    plan_softmax(&call.job, table, call.count, call.arrays, call.dtypes, call.reduced, False)
    threads = resolve_threads(element_count(x))
    with nogil:
        run_partitions(threads, partitions_of(logsumexp_backward_partition, &call.job))


cdef int check_cross_entropy(
    SoftmaxCall* call, View logits, View target, View weight, View lse, int axis,
    int64_t ignore_index, double label_smoothing, bint writes_lse
) except -1:
    """What forward and backward take alike."""
    cdef int i
    check(logits, "logits", False)
    check_index(axis, logits.operand.ndim, "axis")
    for i in range(logits.operand.ndim):
        call.reduced[i] = i == axis
    check_memory(target, "target")
    call.job.has_indices = target.dtype == kI32 or target.dtype == kI64
    call.job.has_probabilities = not call.job.has_indices
    if call.job.has_indices:
        check_kept_shape(call, target, logits, "target")
    else:
        check_like(target, logits, "target", False)
    if weight is not None:
        check_any(weight, "weight")
        if weight.operand.ndim != 1 or weight.shape_[0] != logits.shape_[axis]:
            refuse(f"weight must have shape ({logits.shape_[axis]},), got {weight.shape}")
    if lse is not None or not writes_lse:
        check_of_rows(call, lse, logits, "lse", writes_lse)
        check_dtype(lse, computed_in(logits.dtype), "lse")
    if not 0.0 <= label_smoothing <= 1.0:
        refuse(f"label_smoothing must be from 0 to 1, got {label_smoothing}")
    call.job.ignore_index, call.job.label_smoothing = ignore_index, label_smoothing
    return 0


cdef int check_kept_shape(SoftmaxCall* call, View view, View x, const char* name) except -1:
    cdef int i
    if view.operand.ndim == x.operand.ndim:
        for i in range(x.operand.ndim):
            if view.shape_[i] != (1 if call.reduced[i] else x.shape_[i]):
                break
        else:
            return 0
    return refuse(
        f"{text(name)} has not the shape that shape {x.shape} leaves, got {view.shape}"
    )


cdef int check_scalar(View view, int dtype, const char* name, bint writes) except -1:
    """An array without axes."""
    check(view, name, writes)
    check_dtype(view, dtype, name)
    if view.operand.ndim != 0:
        refuse(f"{text(name)} must have no axes, got shape {view.shape}")
    return 0


cdef int check_targets(SoftmaxCall* call, View logits, int axis) except -1:
    cdef bint are_valid = True
    if call.job.has_indices:
        with nogil:
            are_valid = has_valid_targets(call.job)
    if not are_valid:
        raise ValueError(
            f"fastact.cross_entropy: target must hold classes from 0 to {logits.shape_[axis] - 1}, "
            f"or ignore_index, {call.job.ignore_index}; got another number"
        )
    return 0


cdef void add_logits(
    SoftmaxCall* call, View logits, View target, View weight, View lse
) noexcept:
    """The first operands; weight runs along the axis alone."""
    add_operand(call, logits, 0)
    add_operand(call, target, 0)
    add_operand(call, weight, logits.dtype)
    add_operand(call, lse, logits.dtype)


cdef View along_axis(View weight, View logits, int axis):
    """The weight with the axes of the logits."""
    cdef list others = []
    cdef int i
    if weight is None:
        return None
    for i in range(logits.operand.ndim):
        if i != axis:
            others.append(i)
    return weight.with_axes(tuple(others))


def cross_entropy_workspace(View logits, int axis):
    """Bytes of scratch that `cross_entropy_forward` needs for a mean or a sum."""
    check(logits, "logits", False)
    check_index(axis, logits.operand.ndim, "axis")
    if logits.shape_[axis] == 0:
        return 0
    return loss_partials(element_count(logits) // logits.shape_[axis]) * sizeof(double)


def cross_entropy_forward(
    View logits, View target, View weight, View lse, View losses, View loss, View divisor, int axis,
    int64_t ignore_index, double label_smoothing, int reduction, View workspace, int64_t stream
):
    """losses OUT (reduction "none"), or loss OUT and divisor OUT, of logits IN and target IN.

    target: int32 or int64 classes with length 1 along the axis, or probabilities like the logits.
    weight IN: of each class, of any dtype, or None. lse OUT: in the compute type, with length
    1 along the axis, or None. losses: the same shape, of logits' dtype. loss: one number of logits'
    dtype; divisor: one of float64. workspace: SCRATCH of `cross_entropy_workspace` bytes, for a
    mean or a sum.
    """
    cdef SoftmaxCall call
    cdef int threads
    cdef char* loss_at
    cdef char* divisor_at
    cdef View of_class
    begin_softmax(&call, 2, 1.0, False)
    check_index(reduction, kReductions, "reduction")
    check_cross_entropy(
        &call, logits, target, weight, lse, axis, ignore_index, label_smoothing, True
    )
    if reduction == 0:
        check_of_rows(&call, losses, logits, "losses", True)
        check_dtype(losses, logits.dtype, "losses")
        if loss is not None or divisor is not None:
            refuse("loss and divisor must be None for reduction none")
    else:
        check_scalar(loss, logits.dtype, "loss", True)
        check_scalar(divisor, kF64, "divisor", True)
        if losses is not None:
            refuse("losses must be None for a mean or a sum")
    if logits.shape_[axis] == 0:
        refuse("logits must have a class")
    if element_count(logits) == 0:
        if reduction > 0:
            fill(loss, NAN if reduction == 1 else 0)
            fill(divisor, 0 if reduction == 1 else 1)
        return
    of_class = along_axis(weight, logits, axis)
    add_logits(&call, logits, target, of_class, lse)
    add_operand(&call, losses, logits.dtype)
    plan_softmax(&call.job, table, call.count, call.arrays, call.dtypes, call.reduced, True)
    check_targets(&call, logits, axis)
    if reduction > 0:
        call.job.partial = <double*>memory_for(
            workspace, cross_entropy_workspace(logits, axis), "workspace"
        )
        loss_at, divisor_at = loss.operand.data, divisor.operand.data
    threads = resolve_threads(element_count(logits))
    with nogil:
        run_partitions(threads, partitions_of(cross_entropy_partition, &call.job))
    if reduction > 0:
        finish_loss(call.job, reduction, logits.dtype, loss_at, divisor_at)


def cross_entropy_backward(
    View dloss, View logits, View target, View weight, View lse, View divisor, View dlogits,
    int axis, int64_t ignore_index, double label_smoothing, bint accumulate, View workspace,
    int64_t stream
):
    """dlogits OUT from dloss IN; accumulate: IN/OUT, added to.

    dloss: of logits' dtype, without axes or with length 1 along the axis. lse IN, divisor IN (None:
    1) as `cross_entropy_forward` made them. dlogits is like the logits, and the logits themselves
    or disjoint from all. workspace: of a GPU; unused here.
    """
    cdef SoftmaxCall call
    cdef int threads
    cdef double by = 1.0
    cdef View of_class
    begin_softmax(&call, 2, 1.0, accumulate)
    check_cross_entropy(
        &call, logits, target, weight, lse, axis, ignore_index, label_smoothing, False
    )
    check(dloss, "dloss", False)
    check_dtype(dloss, logits.dtype, "dloss")
    if dloss.operand.ndim != 0:
        check_of_rows(&call, dloss, logits, "dloss", False)
    check_like(dlogits, logits, "dlogits", True)
    if divisor is not None:
        check_scalar(divisor, kF64, "divisor", False)
        memcpy(&by, divisor.operand.data, sizeof(by))
    if element_count(logits) == 0:
        return
    of_class = along_axis(weight, logits, axis)
    if dloss.operand.ndim == 0:
        dloss = dloss.with_axes(tuple(range(logits.operand.ndim)))
    add_logits(&call, logits, target, of_class, lse)
    add_operand(&call, dlogits, 0)
    add_operand(&call, dloss, 0)
    plan_softmax(&call.job, table, call.count, call.arrays, call.dtypes, call.reduced, False)
    check_targets(&call, logits, axis)
    call.job.gradient = 1.0 / by
    sum_weights(&call.job)
    threads = resolve_threads(element_count(logits))
    with nogil:
        run_partitions(threads, partitions_of(cross_entropy_backward_partition, &call.job))
