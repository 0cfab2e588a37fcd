# batch_norm: y = f((x - mean) rstd weight + bias) per channel, and its gradients.


cdef ChannelArray channels_of(View view, int axis) noexcept:
    """An array with one element a channel: along its only axis, or along `axis`."""
    cdef ChannelArray channels
    channels.data = NULL
    channels.stride = channels.dtype = 0
    if view is not None:
        channels.data = view.operand.data
        channels.stride = view.strides_[0 if view.operand.ndim == 1 else axis]
        channels.dtype = view.dtype
    return channels


def batch_norm_scratch(View x, int axis):
    """Bytes of scratch for the functions below."""
    check(x, "x", False)
    check_index(axis, x.operand.ndim, "axis")
    return batch_scratch(x.shape_[axis], x.size)


cdef int check_channels(View view, View x, int axis, const char* name, bint writes) except -1:
    """None, or one element a channel: of one axis, or with the axes of x."""
    cdef int along
    if view is None:
        return 0
    check(view, name, writes)
    along = 0 if view.operand.ndim == 1 else axis
    if (
        (view.operand.ndim != 1 and view.operand.ndim != x.operand.ndim)
        or view.shape_[along] != x.shape_[axis]
    ):
        refuse(
            f"{text(name)} must have an element for each of {x.shape_[axis]} channels, "
            f"got shape {view.shape}"
        )
    return 0


cdef int check_batch(int which, View x, View weight, View bias, int axis) except -1:
    check_index(which, kActivations, "which")
    check(x, "x", False)
    check_index(axis, x.operand.ndim, "axis")
    check_channels(weight, x, axis, "weight", False)
    check_wide_enough(weight, x, "weight")
    check_channels(bias, x, axis, "bias", False)
    return check_wide_enough(bias, x, "bias")


cdef int prepare_channels(
    BatchNorm* norm, int which, ElementwiseKernel activation, const double* parameters, View dy,
    View x, View out, View weight, View bias, int axis, View scratch
) except -1:
    """All arrays but the scratch: checked; x is not empty."""
    cdef char* memory = memory_for(
        scratch, batch_scratch(x.shape_[axis], element_count(x)), "scratch"
    )
    cdef Operand[3] arrays = [
        operand_or_nothing(dy), operand_or_nothing(x), operand_or_nothing(out)
    ]
    norm.activation = activation
    norm.parameters = parameters
    norm.is_identity = which == IDENTITY
    norm.accumulate = norm.is_training = False
    prepare_batch_norm(
        norm, table, x.dtype, arrays, axis, memory, channels_of(weight, axis),
        channels_of(bias, axis),
    )
    return 0


def batch_norm_forward(
    int which, View x, View y, View running_mean, View running_var, View weight, View bias,
    View mean, View rstd, int axis, tuple parameters, bint training, double momentum, double eps,
    View scratch, View workspace, int64_t stream
):
    """y OUT = f((x IN - mean) rstd weight IN + bias IN); mean, rstd OUT or None.

    training: by the moments of x, and running statistics IN/OUT, or None, move towards them unless
    x is empty; else by the running statistics IN. Of one element a channel: 1-D, or with the others
    of length 1. scratch: `batch_norm_scratch` bytes; workspace: SCRATCH of `moments_workspace`
    bytes, or None.
    """
    cdef double p[MAX_PARAMETERS]
    cdef BatchNorm norm
    cdef Reducer moments
    cdef Operand[4] results
    cdef int64_t[kMaxAxes] shape
    cdef int64_t[kMaxAxes] strides
    cdef cpp_bool[kMaxAxes] reduced
    cdef int threads, i
    check_batch(which, x, weight, bias, axis)
    check_like(y, x, "y", True)
    check_channels(running_mean, x, axis, "running_mean", training)
    check_channels(running_var, x, axis, "running_var", training)
    check_channels(mean, x, axis, "mean", True)
    check_channels(rstd, x, axis, "rstd", True)
    unpack(parameters, p)
    if element_count(x) == 0:
        if x.shape_[axis] > 0:
            save_of_nothing(
                table, x.shape_[axis],
                memory_for(scratch, batch_scratch(x.shape_[axis], 0), "scratch"),
                channels_of(running_mean, axis), channels_of(running_var, axis), training, eps,
                channels_of(mean, axis), channels_of(rstd, axis),
            )
        return
    prepare_channels(
        &norm, which, table.elementwise.forward[which][computed_in(x.dtype)], p, None, x, y,
        weight, bias, axis, scratch,
    )
    threads = resolve_threads(element_count(x))
    if training:
        for i in range(x.operand.ndim):
            reduced[i] = i != axis
            shape[i] = x.shape_[i] if i == axis else 1
            strides[i] = 8
        for i in range(4):
            results[i].ndim = x.operand.ndim
            results[i].shape = &shape[0]
            results[i].strides = &strides[0]
            results[i].stride_unit = 1
        results[0].data = <char*>norm.mean
        results[1].data = NULL
        results[2].data = <char*>norm.sums
        results[3].data = NULL
        prepare_moments(
            &moments, table.reduce, x.operand, results, reduced, x.dtype, kF64, <OfM2>kVariance,
            0, False,
        )
        divide_work(&moments, 1, workspace, threads)
        with nogil:
            run_reduction(&moments, threads)
            take_moments(&norm, eps)
    else:
        take_statistics(
            &norm, channels_of(running_mean, axis), channels_of(running_var, axis), False, eps
        )
    with nogil:
        make_coefficients(norm)
        run_partitions(threads, partitions_of(batch_norm_forward_partition, &norm))
    write_channels(norm, norm.mean, channels_of(mean, axis), False)
    write_channels(norm, norm.rstd, channels_of(rstd, axis), False)
    if training:
        update_running(
            norm, momentum, channels_of(running_mean, axis), channels_of(running_var, axis)
        )


def norm_apply(
    int which, View x, View y, View mean, View rstd, View weight, View bias, int axis,
    tuple parameters, View scratch, int64_t stream
):
    """y OUT = f((x IN - mean IN) rstd IN weight IN + bias IN), as batch_norm_forward."""
    cdef double p[MAX_PARAMETERS]
    cdef BatchNorm norm
    cdef int threads
    check_batch(which, x, weight, bias, axis)
    check_like(y, x, "y", True)
    check_channels(mean, x, axis, "mean", False)
    check_channels(rstd, x, axis, "rstd", False)
    unpack(parameters, p)
    if element_count(x) == 0:
        return
    prepare_channels(
        &norm, which, table.elementwise.forward[which][computed_in(x.dtype)], p, None, x, y,
        weight, bias, axis, scratch,
    )
    threads = resolve_threads(element_count(x))
    take_statistics(&norm, channels_of(mean, axis), channels_of(rstd, axis), True, 0)
    with nogil:
        make_coefficients(norm)
        run_partitions(threads, partitions_of(batch_norm_forward_partition, &norm))


def batch_norm_backward(
    int which, View dy, View x, View mean, View rstd, View weight, View bias, View sum_p,
    View sum_p_xhat, double count, View dx, View dweight, View dbias, int axis, tuple parameters,
    bint training, bint accumulate, View scratch, int64_t stream
):
    """dx OUT, dweight OUT = the sum of p xhat, dbias OUT = the sum of p; each of them or None.

    p = dy IN * f'(z). sum_p, sum_p_xhat IN: both, with the count of values a channel that they are
    over; or None: they are computed.
    accumulate: the results are IN/OUT, added to. training: as given to forward.
    """
    cdef double p[MAX_PARAMETERS]
    cdef BatchNorm norm
    cdef int threads, i
    cdef bint needs_sums, by_channels
    check_batch(which, x, weight, bias, axis)
    check_like(dy, x, "dy", False)
    check_if_like(dx, x, "dx", True)
    check_channels(mean, x, axis, "mean", False)
    check_channels(rstd, x, axis, "rstd", False)
    check_channels(sum_p, x, axis, "sum_p", False)
    check_channels(sum_p_xhat, x, axis, "sum_p_xhat", False)
    check_channels(dweight, x, axis, "dweight", True)
    check_channels(dbias, x, axis, "dbias", True)
    unpack(parameters, p)
    if element_count(dy) == 0:
        if not accumulate:
            for gradient in (dweight, dbias):
                if gradient is not None and gradient.size:
                    fill_with_zero(gradient)
        return
    prepare_channels(
        &norm, which, table.elementwise.backward[which][computed_in(x.dtype)][False], p, dy, x, dx,
        weight, bias, axis, scratch,
    )
    norm.accumulate = accumulate
    norm.is_training = training
    take_statistics(&norm, channels_of(mean, axis), channels_of(rstd, axis), True, 0)
    threads = resolve_threads(element_count(x))
    needs_sums = sum_p is None and (
        training or dweight is not None or dbias is not None
    )
    by_channels = dx is not None and goes_by_channels(norm, threads)
    if sum_p is not None:
        norm.count = 1
        read_channels(norm, channels_of(sum_p, axis), 0, norm.sums)
        read_channels(norm, channels_of(sum_p_xhat, axis), 0, norm.sums + norm.channels)
        for i in range(2 * norm.channels):
            norm.sums[i] /= count
    with nogil:
        make_coefficients(norm)
        if needs_sums and by_channels:
            run_partitions(threads, partitions_of(batch_norm_backward_partition, &norm))
        else:
            if needs_sums:
                run_partitions(threads, partitions_of(batch_norm_sums_partition, &norm))
                merge_batch_sums(norm, 0, norm.channels)
            if dx is not None:
                make_slopes(norm, 0, norm.channels)
                run_partitions(threads, partitions_of(batch_norm_gradient_partition, &norm))
    write_channels(norm, norm.sums, channels_of(dbias, axis), accumulate)
    write_channels(norm, norm.sums + norm.channels, channels_of(dweight, axis), accumulate)
