# batch_norm and norm_apply: y = f((x - mean) rstd weight + bias) per channel, and its gradients.
# Their calls are described in common/norms/channel_call.h.


cdef int64_t batch_forward_workspace(const void* given) noexcept:
    """What the kernels note of each channel, and with which many threads can share the moments."""
    cdef const BatchForward* call = <const BatchForward*>given
    cdef int64_t size = operand_size(<const Operand*>&call.x)
    cdef int64_t needed = batch_scratch(call.x.shape[call.axis], size)
    cdef Reducer moments
    if call.is_training and size > 0 and resolve_threads(size) > 1:
        prepare_batch_moments(&moments, table, call[0], NULL, NULL)
        needed += workspace_size(&moments)
    return needed


cdef int run_batch_norm_forward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const BatchForward* call = <const BatchForward*>given
    cdef int64_t size = operand_size(<const Operand*>&call.x)
    cdef int64_t needed = batch_scratch(call.x.shape[call.axis], size)
    cdef BatchNorm norm
    cdef Reducer moments
    cdef int threads = resolve_threads(size)
    check_workspace(CPU_MODULE, kBatchNormForward.name, workspace, bytes, needed, sizeof(double))
    if size == 0:
        if call.x.shape[call.axis] > 0:
            save_of_nothing(table, call[0], workspace)
        return 0
    prepare_batch_forward(&norm, table, call[0], workspace)
    if call.is_training:
        prepare_batch_moments(&moments, table, call[0], norm.mean, norm.sums)
        divide_work(&moments, 1, workspace + needed, bytes - needed, threads)
        with nogil:
            run_reduction(&moments, threads)
            take_moments(&norm, call.eps)
    else:
        take_statistics(
            &norm, channels_of(call.mean, call.axis), channels_of(call.spread, call.axis), False,
            call.eps
        )
    apply_batch_norm(&norm, threads)
    write_channels(norm, norm.mean, channels_of(call.saved_mean, call.axis), False)
    write_channels(norm, norm.rstd, channels_of(call.saved_rstd, call.axis), False)
    if call.is_training:
        update_running(norm, call[0])
    return 0


cdef int run_norm_apply(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const BatchForward* call = <const BatchForward*>given
    cdef int64_t size = operand_size(<const Operand*>&call.x)
    cdef int64_t needed = batch_scratch(call.x.shape[call.axis], size)
    cdef BatchNorm norm
    check_workspace(CPU_MODULE, kNormApply.name, workspace, bytes, needed, sizeof(double))
    if size == 0:
        return 0
    prepare_batch_forward(&norm, table, call[0], workspace)
    take_statistics(
        &norm, channels_of(call.mean, call.axis), channels_of(call.spread, call.axis), True, 0
    )
    apply_batch_norm(&norm, resolve_threads(size))
    return 0


cdef void apply_batch_norm(const BatchNorm* norm, int threads) noexcept:
    with nogil:
        make_coefficients(norm[0])
        run_partitions(threads, partitions_of(batch_norm_forward_partition, norm))


cdef int64_t batch_backward_workspace(const void* given) noexcept:
    cdef const BatchBackward* call = <const BatchBackward*>given
    return batch_scratch(call.x.shape[call.axis], operand_size(<const Operand*>&call.x))


cdef int run_batch_norm_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const BatchBackward* call = <const BatchBackward*>given
    cdef int axis = call.axis
    cdef BatchNorm norm
    cdef int threads, i
    cdef bint needs_sums, by_channels, has_dx = call.dx.shape is not NULL
    check_workspace(
        CPU_MODULE, kBatchNormBackward.name, workspace, bytes, batch_backward_workspace(given),
        sizeof(double)
    )
    if is_empty(<const Operand&>call.x):
        if not call.accumulate:
            fill_argument(&call.dweight, 0)
            fill_argument(&call.dbias, 0)
        return 0
    prepare_batch_backward(&norm, table, call[0], workspace)
    take_statistics(&norm, channels_of(call.mean, axis), channels_of(call.rstd, axis), True, 0)
    threads = resolve_threads(operand_size(<const Operand*>&call.x))
    needs_sums = call.sum_p.shape is NULL and (
        call.is_training or call.dweight.shape is not NULL or call.dbias.shape is not NULL
    )
    by_channels = has_dx and goes_by_channels(norm, threads)
    if call.sum_p.shape is not NULL:
        norm.count = 1
        read_channels(norm, channels_of(call.sum_p, axis), 0, norm.sums)
        read_channels(norm, channels_of(call.sum_p_xhat, axis), 0, norm.sums + norm.channels)
        for i in range(2 * norm.channels):
            norm.sums[i] /= call.count
    with nogil:
        make_coefficients(norm)
        if needs_sums and by_channels:
            run_partitions(threads, partitions_of(batch_norm_backward_partition, &norm))
        else:
            if needs_sums:
                run_partitions(threads, partitions_of(batch_norm_sums_partition, &norm))
                merge_batch_sums(norm, 0, norm.channels)
            if has_dx:
                make_slopes(norm, 0, norm.channels)
                run_partitions(threads, partitions_of(batch_norm_gradient_partition, &norm))
    write_channels(norm, norm.sums, channels_of(call.dbias, axis), call.accumulate)
    write_channels(
        norm, norm.sums + norm.channels, channels_of(call.dweight, axis), call.accumulate
    )
    return 0


add_function(&kBatchNormForward, batch_forward_workspace, run_batch_norm_forward)
add_function(&kNormApply, batch_forward_workspace, run_norm_apply)
add_function(&kBatchNormBackward, batch_backward_workspace, run_batch_norm_backward)
