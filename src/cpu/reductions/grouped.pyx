# Statistics by groups of elements, and their gradients.


cdef int64_t grouped_workspace(const void* given) noexcept:
    cdef const MomentsCall* call = <const MomentsCall*>given
    cdef Grouped grouped
    plan_grouped(&grouped, call, resolve_threads(elements_of(call)))
    return grouped_size(&grouped)


cdef void plan_grouped(Grouped* grouped, const MomentsCall* call, int threads) noexcept:
    prepare_grouped(grouped, table.reduce, table.grouped, table.convert, call[0], threads)


cdef int run_grouped(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const MomentsCall* call = <const MomentsCall*>given
    cdef Grouped grouped
    cdef int threads = resolve_threads(elements_of(call)), is_degenerate = 0, has_wrong_label = 0
    cdef int is_far = 0
    plan_grouped(&grouped, call, threads)
    if bytes < grouped_size(&grouped):  # it was sized for fewer threads
        threads = 1
        plan_grouped(&grouped, call, threads)
    check_workspace(
        CPU_MODULE, kGroupedCall.name, workspace, bytes, grouped_size(&grouped), sizeof(double)
    )
    grouped.lanes = workspace
    grouped.has_wrong_label = &has_wrong_label
    grouped.reducer.is_degenerate = NULL
    if call.warning is not NULL or call.inputs[kMomentsWeights].shape is not NULL:
        grouped.reducer.is_degenerate = &is_degenerate
    grouped.is_far = &is_far
    with nogil:
        if grouped.ranked:
            rank_labels(&grouped)
        elif grouped.is_listed and grouped.all_groups:
            list_terms(&grouped)
        elif not grouped.holds_all or not grouped.all_groups:
            run_partitions(threads, partitions_of(check_labels_partition, &grouped))
        if grouped.ranked and not has_wrong_label:
            run_partitions(threads, partitions_of(store_nothing_partition, &grouped))
            if grouped.is_listed:
                list_terms(&grouped)
        if grouped.all_groups and not has_wrong_label:
            run_partitions(threads, partitions_of(grouped_partition, &grouped))
            if grouped.holds_all and not has_wrong_label:
                run_partitions(threads, partitions_of(store_groups_partition, &grouped))
                if is_far:
                    run_partitions(threads, partitions_of(rescale_groups_partition, &grouped))
    if has_wrong_label:
        refuse_labels(call.op, grouped.all_groups)
    warn_of(is_degenerate, call)
    return 0


cdef int refuse_labels(const char* op, int64_t groups) except -1:
    cdef const char* where
    where = CPU_MODULE if op is NULL else op
    allowed = f"groups from 0 to {groups - 1}, or -1 for none"
    if groups == 0:
        allowed = "-1 alone for no groups"
    raise ValueError(f"{text(where)}: by must hold {allowed}; got another number")


add_function(&kGroupedCall, grouped_workspace, run_grouped)
