# Recurrent gates: the states of a step, and its gradients into packed arrays (gates.h).
#
# All arrays have the axes of the state, packed ones with several gates along the last of them.
include "cpu/gates/gates.pxi"

GATE_KINDS = names_of(kGateKindNames, kGateKinds)
GATE_ULPS = (kGateUlps[0], kGateUlps[1])


cdef int check_packed(View view, View state, int gates, const char* name, bint writes) except -1:
    """None, or so many gates along the last axis of the state's shape."""
    cdef int i, last = state.operand.ndim - 1
    if view is None:
        return 0
    check(view, name, writes)
    check_dtype(view, state.dtype, name)
    if view.operand.ndim == last + 1:
        for i in range(last):
            if view.shape_[i] != state.shape_[i]:
                break
        else:
            if view.shape_[last] == gates * state.shape_[last]:
                return 0
    return refuse(
        f"{text(name)} must hold {gates} gates for a state of shape {state.shape}, got "
        f"shape {view.shape}"
    )


cdef int check_state(int kind, View state) except -1:
    check_index(kind, kGateKinds, "kind")
    check(state, "state", False)
    if state.operand.ndim < 1:
        refuse("state must have an axis")
    return 0


cdef int check_gates(
    int kind, View gates, int count, View recurrent, View bias, View recurrent_bias, View state,
    tuple places
) except -1:
    """The arguments of forward and backward. count: of gates in `gates`."""
    cdef int64_t packed
    cdef int place
    check_state(kind, state)
    packed = kGatesOf[kind] * state.shape_[state.operand.ndim - 1]
    if gates is None:
        refuse("gates must be an array, got None")
    check_packed(gates, state, count, "gates", False)
    check_packed(recurrent, state, kGatesOf[kind], "recurrent", False)
    check_along(bias, packed, "bias", False)
    check_wide_enough(bias, state, "bias")
    check_along(recurrent_bias, packed, "recurrent_bias", False)
    check_wide_enough(recurrent_bias, state, "recurrent_bias")
    if places is None or len(places) != kGatesOf[kind]:
        refuse(f"places must be a tuple of {kGatesOf[kind]}, got {places}")
    for place in places:
        check_index(place, kGatesOf[kind], "a place")
    return 0


cdef void set_gates(
    GateArrays* given, int* at, View gates, View recurrent, View bias, View recurrent_bias,
    View state, tuple places
) noexcept:
    cdef int i
    for i in range(4):
        at[i] = places[i] if i < len(places) else i
    given.gate_order = at
    given.gates, given.recurrent = operand_or_nothing(gates), operand_or_nothing(recurrent)
    given.bias = operand_or_nothing(bias)
    given.recurrent_bias = operand_or_nothing(recurrent_bias)
    given.bias_dtype = 0 if bias is None else bias.dtype
    given.recurrent_bias_dtype = 0 if recurrent_bias is None else recurrent_bias.dtype
    given.state = state.operand


def gates_forward(
    int kind, View gates, View recurrent, View bias, View recurrent_bias, View state, View hidden,
    View cell, View kept, tuple places, int64_t stream
):
    """hidden OUT and, of "lstm", cell OUT: the states after the step from `state` IN.

    gates, recurrent IN: packed pre-activations, which are added up; of "gru", both, else recurrent
    may be None. bias, recurrent_bias IN: of one axis, or None. kept OUT: the activated gates,
    packed as gates are (of "gru" r, z, n and what r scales), or None. places: where each gate of
    the kernels (i f g o; r z n; r; z n) lies in packed arrays. Each output is an input or disjoint
    from all of them. stream: of a GPU; unused here.
    """
    cdef Gates step
    cdef GateArrays given
    cdef int[4] at
    cdef int64_t size
    cdef int threads
    check_gates(
        kind, gates, kGatesOf[check_kind(kind)], recurrent, bias, recurrent_bias, state, places
    )
    check_like(hidden, state, "hidden", True)
    check_if_like(cell, state, "cell", True)
    check_packed(kept, state, kSavedOf[kind], "kept", True)
    if kind == kLstm and cell is None:
        refuse("cell must be an array, got None")
    if kind == kGru and recurrent is None:
        refuse("recurrent must be an array, got None")
    size = element_count(state)
    if size == 0:
        return
    set_gates(&given, at, gates, recurrent, bias, recurrent_bias, state, places)
    given.hidden, given.cell = hidden.operand, operand_or_nothing(cell)
    given.gates_out = operand_or_nothing(kept)
    given.cell_gradient = given.recurrent_out = given.state_out = operand_or_nothing(None)
    prepare_gates(&step, table, kind, state.dtype, False, False, False, given)
    threads = resolve_threads(gate_work(kind, size))
    with nogil:
        run_partitions(threads, partitions_of(gate_partition, &step))


cdef int check_kind(int kind) except -1:
    check_index(kind, kGateKinds, "kind")
    return kind


cdef int64_t gate_work(int kind, int64_t size) noexcept:
    """In elements of an activation, by which threads are counted."""
    return size * (5 if kind == kLstm else 3 if kind == kGru else 1 if kind == kReset else 2)


def gates_workspace(int kind, View state):
    """Bytes of scratch with which `gates_backward` divides sums of few columns among threads."""
    cdef int64_t size, columns
    cdef int threads
    check_state(kind, state)
    size = element_count(state)
    threads = resolve_threads(gate_work(kind, size))
    if size == 0 or threads == 1:
        return 0
    columns = state.shape_[state.operand.ndim - 1]
    return gate_workspace_size(kind, state.dtype, size // columns, columns, threads)


def gates_sums_apart(int kind, View state):
    """Whether the biases' gradients are better the `sum` of the others, once those are stored."""
    cdef int64_t size, columns
    cdef int threads
    check_state(kind, state)
    size = element_count(state)
    if size == 0:
        return False
    columns = state.shape_[state.operand.ndim - 1]
    threads = resolve_threads(gate_work(kind, size))
    return gate_sums_apart(kind, state.dtype, size // columns, columns, threads)


def gates_backward(
    int kind, View gates, View recurrent, View bias, View recurrent_bias, View state, View cell,
    View hidden_gradient, View cell_gradient, View gates_gradient, View recurrent_gradient,
    View state_gradient, View bias_gradient, View recurrent_bias_gradient, tuple places,
    bint recomputes, bint accumulate, View workspace, int64_t stream
):
    """The gradients of `gates_forward`, each OUT or None; of "gru" alone, recurrent_gradient.

    gates IN: what it kept, with recurrent and the biases None; or if it recomputes, what it took.
    cell IN: of "lstm", what it gave; unused if it recomputes. hidden_gradient IN; cell_gradient IN
    or None. accumulate: the gradients are IN/OUT, added to. Those of the biases have their dtypes.
    workspace: SCRATCH of `gates_workspace` bytes, or None.
    """
    cdef Gates step
    cdef GateArrays given
    cdef int[4] at
    cdef Operand[2] sums = [
        operand_or_nothing(bias_gradient), operand_or_nothing(recurrent_bias_gradient)
    ]
    cdef int[2] dtypes = [0, 0]
    cdef int64_t size, capacity, packed
    cdef int threads, i
    cdef char* memory = memory_of(workspace, &capacity)
    cdef bint is_merging = False
    check_kind(kind)
    check_gates(
        kind, gates, kGatesOf[kind] if recomputes else kSavedOf[kind], recurrent, bias,
        recurrent_bias, state, places,
    )
    packed = kGatesOf[kind] * state.shape_[state.operand.ndim - 1]
    check_like(hidden_gradient, state, "hidden_gradient", False)
    check_if_like(cell, state, "cell", False)
    check_if_like(cell_gradient, state, "cell_gradient", False)
    check_packed(gates_gradient, state, kGatesOf[kind], "gates_gradient", True)
    check_packed(recurrent_gradient, state, kGatesOf[kind], "recurrent_gradient", True)
    check_if_like(state_gradient, state, "state_gradient", True)
    check_along(bias_gradient, packed, "bias_gradient", True)
    check_along(recurrent_bias_gradient, packed, "recurrent_bias_gradient", True)
    if kind == kLstm and cell is None and not recomputes:
        refuse("cell must be an array, got None")
    if kind == kGru and recurrent is None and recomputes:
        refuse("recurrent must be an array, got None")
    if kind != kGru and recurrent_gradient is not None:
        refuse("recurrent_gradient must be None")
    size = element_count(state)
    if size == 0:
        if not accumulate:
            for gradient in (bias_gradient, recurrent_bias_gradient):
                if gradient is not None and element_count(gradient) > 0:
                    fill_with_zero(gradient)
        return
    set_gates(&given, at, gates, recurrent, bias, recurrent_bias, state, places)
    given.hidden, given.cell = hidden_gradient.operand, operand_or_nothing(cell)
    given.cell_gradient = operand_or_nothing(cell_gradient)
    given.gates_out = operand_or_nothing(gates_gradient)
    given.recurrent_out = operand_or_nothing(recurrent_gradient)
    given.state_out = operand_or_nothing(state_gradient)
    prepare_gates(&step, table, kind, state.dtype, True, recomputes, accumulate, given)
    threads = resolve_threads(gate_work(kind, size))
    if bias_gradient is None and recurrent_bias_gradient is None:
        with nogil:
            run_partitions(threads, partitions_of(gate_partition, &step))
        return
    for i, gradient in enumerate((bias_gradient, recurrent_bias_gradient)):
        if gradient is not None:
            dtypes[i] = gradient.dtype
    prepare_gate_sums(&step, table.reduce, sums, dtypes)
    if threads > 1 and memory is not NULL:
        is_merging = use_gate_workspace(&step, memory, capacity, threads)
    with nogil:
        run_partitions(threads, partitions_of(gate_sum_partition, &step))
        if is_merging:
            merge_gate_sums(&step)
