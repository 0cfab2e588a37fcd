# Recurrent gates: the states of a step, and its gradients into packed arrays (gates.h). Their calls
# are described in common/gates/call.h.

GATE_KINDS = names_of(kGateKindNames, kGateKinds)
GATE_ULPS = (kGateUlps[0], kGateUlps[1])


# A call's sizes, and the threads that it is worth.
cdef struct GateSizes:
    int64_t rows
    int64_t columns
    int threads


cdef GateSizes sizes_of_gates(int kind, const Operand* state) noexcept:
    """Of a state that has an axis."""
    cdef GateSizes found
    cdef int64_t size = operand_size(state)
    # in elements of an activation, by which threads are counted
    cdef int64_t work = 5 if kind == kLstm else 3 if kind == kGru else 1 if kind == kReset else 2
    found.columns = state.shape[state.ndim - 1]
    found.rows = size // found.columns if size else 0
    found.threads = resolve_threads(size * work)
    return found


cdef GateSizes sizes_of_call(const GatesCall* call) noexcept:
    return sizes_of_gates(call.kind, operand_of(&call.role[kGateState]))


cdef int run_gates_forward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const GatesCall* call = <const GatesCall*>given
    cdef GateSizes sizes = sizes_of_call(call)
    cdef Gates step
    if sizes.rows == 0:
        return 0
    prepare_gates(&step, table, call[0], False)
    with nogil:
        run_partitions(sizes.threads, partitions_of(gate_partition, &step))
    return 0


cdef bint has_gate_sums(const GatesCall* call) noexcept:
    return call.bias_gradient[0].shape is not NULL or call.bias_gradient[1].shape is not NULL


cdef int64_t gates_backward_workspace(const void* given) noexcept:
    """With which sums of few columns are divided among threads."""
    cdef const GatesCall* call = <const GatesCall*>given
    cdef GateSizes sizes = sizes_of_call(call)
    if not has_gate_sums(call) or sizes.rows == 0 or sizes.threads == 1:
        return 0
    return gate_workspace_size(
        call.kind, call.role[kGateState].dtype, sizes.rows, sizes.columns, sizes.threads
    )


cdef int run_gates_backward(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const GatesCall* call = <const GatesCall*>given
    cdef GateSizes sizes = sizes_of_call(call)
    cdef Gates step
    cdef bint is_merging = False
    cdef int k
    if sizes.rows == 0:
        for k in range(0 if call.accumulate else 2):
            fill_argument(&call.bias_gradient[k], 0)
        return 0
    prepare_gates(&step, table, call[0], True)
    if not has_gate_sums(call):
        with nogil:
            run_partitions(sizes.threads, partitions_of(gate_partition, &step))
        return 0
    prepare_gate_sums(&step, table.reduce, call[0])
    if sizes.threads > 1 and workspace is not NULL:
        is_merging = use_gate_workspace(&step, workspace, bytes, sizes.threads)
    with nogil:
        run_partitions(sizes.threads, partitions_of(gate_sum_partition, &step))
        if is_merging:
            merge_gate_sums(&step)
    return 0


add_function(&kGatesForward, NULL, run_gates_forward)
add_function(&kGatesBackward, gates_backward_workspace, run_gates_backward)


def gates_sums_apart(int kind, View state not None):
    """Whether the biases' gradients are better the `sum` of the others, once those are stored.

    On a device they never are.
    """
    cdef GateSizes sizes
    check_index(kind, kGateKinds, "kind")
    if state.operand.ndim < 1 or state.device_type != kDLCPU:
        return False
    sizes = sizes_of_gates(kind, &state.operand)
    return sizes.rows > 0 and gate_sums_apart(
        kind, state.dtype, sizes.rows, sizes.columns, sizes.threads
    )
