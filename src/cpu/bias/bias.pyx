# bias_act: y = f(x + bias + residual), and dx and dbias in one pass; and dropout. Their calls are
# described in common/bias/call.h.

# Functions of x and of its channel's parameter; kernels count them from the last activation on.
CHANNEL_FUNCTIONS = names_of(kChannelFunctionNames, kChannelFunctions)


cdef int run_bias_forward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const BiasCall* call = <const BiasCall*>given
    cdef BiasAct act
    cdef int64_t size = operand_size(operand_of(&call.data[kBiasX]))
    cdef int threads
    if size == 0:
        return 0
    prepare_bias(&act, table, call[0], False)
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(bias_forward_partition, &act))
    return 0


cdef int64_t bias_backward_workspace(const void* given) noexcept:
    cdef const BiasCall* call = <const BiasCall*>given
    return channel_workspace(&call.data[kBiasX], call.axis)


cdef int run_bias_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const BiasCall* call = <const BiasCall*>given
    cdef BiasAct act
    cdef int64_t size = operand_size(operand_of(&call.data[kBiasX]))
    cdef int threads
    if size == 0:
        if not call.accumulate_dbias:
            fill_argument(&call.dbias, 0)
        return 0
    prepare_bias(&act, table, call[0], True)
    threads = resolve_threads(size)
    divide_work(act.sums.each, act.sums.count, workspace, bytes, threads)
    with nogil:
        run_partitions(threads, partitions_of(bias_backward_partition, &act))
        merge_chunks(act.sums.each, act.sums.count, threads)
    return 0


cdef int64_t channel_workspace(const ArrayArgument* x, int axis) noexcept:
    """Bytes of scratch with which one sum of each channel is divided among many threads."""
    cdef int64_t size = operand_size(operand_of(x))
    if size == 0 or resolve_threads(size) == 1:
        return 0
    return sum_workspace_size(x.shape[axis], size // x.shape[axis])


cdef int run_dropout(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const DropoutCall* call = <const DropoutCall*>given
    cdef DropoutPass dropout
    cdef int64_t size = operand_size(operand_of(&call.data[0]))
    cdef int threads
    if size == 0:
        return 0
    prepare_dropout(&dropout, table, call[0])
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(dropout_partition, &dropout))
    return 0


add_function(&kBiasForward, NULL, run_bias_forward)
add_function(&kBiasBackward, bias_backward_workspace, run_bias_backward)
add_function(&kDropout, NULL, run_dropout)
