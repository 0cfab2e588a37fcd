# softmax, log_softmax, logsumexp and cross_entropy over the rows of an array, and their gradients.
# Their calls are described in common/softmax/call.h.

SOFTMAX_KINDS = names_of(kSoftmaxKindNames, kSoftmaxKinds)
REDUCTIONS = names_of(kReductionNames, kReductions)


cdef int64_t softmax_size(const SoftmaxCall* call) noexcept:
    """In elements of x."""
    return operand_size(operand_of(&call.arrays[kSoftmaxX]))


cdef int run_softmax_forward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SoftmaxCall* call = <const SoftmaxCall*>given
    cdef int64_t size = softmax_size(call)
    cdef Softmax job
    cdef int threads
    if size == 0:
        fill_argument(&call.arrays[kSoftmaxNumber], -INFINITY)
        fill_argument(&call.arrays[kSoftmaxLse], -INFINITY)
        fill_argument(&call.arrays[kSoftmaxShare], 0 if call.kind == kLogSumExp else 1)
        return 0
    plan_softmax_forward(&job, table, call[0])
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(softmax_partition, &job))
    return 0


cdef int run_softmax_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SoftmaxCall* call = <const SoftmaxCall*>given
    cdef int64_t size = softmax_size(call)
    cdef Softmax job
    cdef int threads
    if size == 0:
        return 0
    plan_softmax_backward(&job, table, call[0])
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(softmax_backward_partition, &job))
    return 0


cdef int run_softmax_sink(const void* given, char* workspace, int64_t bytes) except -1:
    with nogil:
        round_sink((<const SinkCall*>given)[0])
    return 0


cdef int run_logsumexp_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SoftmaxCall* call = <const SoftmaxCall*>given
    cdef int64_t size = softmax_size(call)
    cdef Softmax job
    cdef int threads
    if size == 0:
        return 0
    plan_logsumexp_backward(&job, table, call[0])
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(logsumexp_backward_partition, &job))
    return 0


cdef int check_targets(const SoftmaxCall* call, const Softmax* job) except -1:
    cdef bint are_valid
    with nogil:
        are_valid = has_valid_targets(job[0])
    if not are_valid:
        raise ValueError(
            f"fastact.cross_entropy: target must hold classes from 0 to "
            f"{softmax_columns(job[0]) - 1}, or ignore_index, {call.ignore_index}; got another "
            f"number"
        )
    return 0


cdef int64_t loss_bytes(const Softmax* job) noexcept:
    return loss_partials(softmax_rows(job[0])) * sizeof(double)


cdef int64_t cross_entropy_workspace(const void* given) noexcept:
    """For a mean or a sum."""
    cdef const SoftmaxCall* call = <const SoftmaxCall*>given
    cdef Softmax job
    if call.reduction == kNone or softmax_size(call) == 0:
        return 0
    plan_cross_entropy(&job, table, call[0])
    return loss_bytes(&job)


cdef int run_cross_entropy_forward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SoftmaxCall* call = <const SoftmaxCall*>given
    cdef int64_t size = softmax_size(call)
    cdef Softmax job
    cdef int threads
    if size == 0:
        fill_argument(&call.loss, NAN if call.reduction == kMean else 0)
        fill_argument(&call.divisor, 0 if call.reduction == kMean else 1)
        return 0
    plan_cross_entropy(&job, table, call[0])
    check_targets(call, &job)
    if call.reduction != kNone:
        check_workspace(
            CPU_MODULE, kCrossEntropyForward.name, workspace, bytes, loss_bytes(&job),
            sizeof(double),
        )
        job.partial = <double*>workspace
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(cross_entropy_partition, &job))
    if call.reduction != kNone:
        finish_loss(job, call.reduction, call.loss.dtype, call.loss.data, call.divisor.data)
    return 0


cdef int run_cross_entropy_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SoftmaxCall* call = <const SoftmaxCall*>given
    cdef int64_t size = softmax_size(call)
    cdef Softmax job
    cdef int threads
    if size == 0:
        return 0
    plan_cross_entropy_backward(&job, table, call[0])
    check_targets(call, &job)
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(cross_entropy_backward_partition, &job))
    return 0


add_function(&kSoftmaxForward, NULL, run_softmax_forward)
add_function(&kSoftmaxBackward, NULL, run_softmax_backward)
add_function(&kSoftmaxSink, NULL, run_softmax_sink)
add_function(&kLogSumExpBackward, NULL, run_logsumexp_backward)
add_function(&kCrossEntropyForward, cross_entropy_workspace, run_cross_entropy_forward)
add_function(&kCrossEntropyBackward, NULL, run_cross_entropy_backward)
