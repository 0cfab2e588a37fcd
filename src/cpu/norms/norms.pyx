# The norms over rows: y = f((x - mean) rstd w + b), and dx, dweight and dbias. Their calls are
# described in common/norms/call.h.

ROW_NORMS = names_of(kRowNormNames, kRowNorms)


cdef void run_norm_forward(const void* given, const KernelTable* kernels) noexcept nogil:
    cdef const NormCall* call = <const NormCall*>given
    cdef Norm norm
    cdef int threads
    if is_empty(<const Operand&>call.data[kNormX]):
        with gil:
            fill_argument(&call.mean, NAN)
            fill_argument(&call.rstd, NAN)
        return
    prepare_norm(&norm, kernels, call[0], kNormX)
    threads = resolve_threads(operand_size(<const Operand*>&call.data[kNormX]))
    run_partitions(threads, partitions_of(norm_forward_partition, &norm))


cdef int64_t norm_backward_workspace(const void* given) noexcept:
    cdef const NormCall* call = <const NormCall*>given
    cdef Norm norm
    if is_empty(<const Operand&>call.data[kNormIn]):
        return 0
    prepare_norm(&norm, table, call[0], kNormIn)
    return norm_workspace_size(&norm)


cdef int run_norm_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const NormCall* call = <const NormCall*>given
    cdef Norm norm
    cdef int64_t needed
    cdef int threads
    if is_empty(<const Operand&>call.data[kNormIn]):
        if not call.accumulate:
            fill_argument(&call.dweight, 0)
            fill_argument(&call.dbias, 0)
        return 0
    prepare_norm(&norm, table, call[0], kNormIn)
    needed = norm_workspace_size(&norm)
    check_workspace(CPU_MODULE, kNormBackward.name, workspace, bytes, needed, sizeof(double))
    norm.partial = <double*>workspace if needed > 0 else NULL
    threads = resolve_threads(operand_size(<const Operand*>&call.data[kNormIn]))
    with nogil:
        run_partitions(threads, partitions_of(norm_backward_partition, &norm))
        if needed > 0:
            merge_norm(&norm, needed, threads)
    return 0


cdef void merge_norm(const Norm* norm, int64_t bytes, int threads) noexcept nogil:
    run_partitions(
        threads_for(bytes // 8, threads), partitions_of(merge_norm_partition, norm)
    )


add_free_function(&kNormForward, run_norm_forward)
add_function(&kNormBackward, norm_backward_workspace, run_norm_backward)
