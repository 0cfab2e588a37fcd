# Gated activations: y = f(min(a', limit)) (clamp(b', -limit, limit) + offset), a' = a + bias_a,
# b' = b + bias_b (common/gated/gated.h). Their calls are described in common/gated/call.h.


cdef void run_gated_forward(const void* given, const KernelTable* kernels) noexcept nogil:
    cdef const GatedCall* call = <const GatedCall*>given
    cdef Gated gated
    cdef int64_t size = operand_size(operand_of(&call.data[kGatedA]))
    if size == 0:
        return
    prepare_gated(&gated, kernels, call[0])
    run_partitions(resolve_threads(size), partitions_of(gated_forward_partition, &gated))


cdef int64_t gated_backward_workspace(const void* given) noexcept:
    cdef const GatedCall* call = <const GatedCall*>given
    return 0 if call.dbias[0].shape is NULL else 2 * channel_workspace(
        &call.data[kGatedA], call.axis
    )


cdef int run_gated_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const GatedCall* call = <const GatedCall*>given
    cdef Gated gated
    cdef int64_t size = operand_size(operand_of(&call.data[kGatedA]))
    cdef int threads, k
    if size == 0:
        for k in range(0 if call.accumulate else 2):
            fill_argument(&call.dbias[k], 0)
        return 0
    prepare_gated(&gated, table, call[0])
    threads = resolve_threads(size)
    if gated.sums.count:
        divide_work(gated.sums.each, gated.sums.count, workspace, bytes, threads)
    with nogil:
        run_partitions(threads, partitions_of(gated_backward_partition, &gated))
        merge_chunks(gated.sums.each, gated.sums.count, threads)
    return 0


add_free_function(&kGatedForward, run_gated_forward)
add_function(&kGatedBackward, gated_backward_workspace, run_gated_backward)
