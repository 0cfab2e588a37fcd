# Rotary position embedding, and its gradient (common/rotary/rotary.h, which describes the call).

cdef extern from "common/rotary/rotary.h" namespace "fastact" nogil:
    const CallTable kRotary
    const int kRotaryA "fastact::RotaryCall::kA"
    const int kRotaryCos "fastact::RotaryCall::kCos"
    const int kRotaryPositions "fastact::RotaryCall::kPositions"

    ctypedef struct RotaryCall:
        ArrayArgument[7] data
        const char* op

cdef extern from "cpu/rotary/rotary.h" namespace "fastact" nogil:
    ctypedef void (*TurnPairs)(const void*) noexcept

    ctypedef struct RotaryKernels:
        TurnPairs[4][2][2] turn

    ctypedef struct Rotary:
        pass

    void prepare_rotary "fastact::prepare"(
        Rotary*, const KernelTable*, const RotaryCall&
    ) noexcept
    cpp_bool has_valid_positions(const RotaryCall&) noexcept
    void rotary_partition(const Rotary*, int64_t, int64_t) noexcept


cdef int check_positions(const RotaryCall* call) except -1:
    cdef bint are_valid
    with nogil:
        are_valid = has_valid_positions(call[0])
    if not are_valid:
        raise ValueError(
            f"fastact.{'rotary' if call.op is NULL else text(call.op)}: positions must be from 0 "
            f"to {call.data[kRotaryCos].shape[0] - 1}, rows of cos, got another number"
        )
    return 0


cdef int run_rotary(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const KernelTable* kernels = table
    if (<const RotaryCall*>given).data[kRotaryPositions].shape is not NULL:
        check_positions(<const RotaryCall*>given)
    with nogil:
        turn_pairs(given, kernels)
    return 0


cdef void turn_pairs(const void* given, const KernelTable* kernels) noexcept nogil:
    """Unchecked: a position that the table lacks is taken for its first or its last row."""
    cdef const RotaryCall* call = <const RotaryCall*>given
    cdef int64_t size = operand_size(operand_of(&call.data[kRotaryA]))
    cdef Rotary rotary
    if size == 0:
        return
    prepare_rotary(&rotary, kernels, call[0])
    run_partitions(resolve_threads(2 * size), partitions_of(rotary_partition, &rotary))


add_function(&kRotary, NULL, run_rotary)
native_functions[<int>len(field_numbers) - 1].run_free = turn_pairs  # of loops over parts


def rotary_addresses(str isa):
    """The addresses of the kernels of an instruction set, by what they do and dtype: for tests."""
    cdef const RotaryKernels* of = kernels_of(isa).rotary
    cdef int dtype, wide, lie
    found = {}
    for dtype in range(kDTypes):
        for wide in range(2):
            for lie in range(2):
                name = ("halves", "neighbours")[lie] + (" by wide angles" if wide else "")
                found[name, text(kDTypeNames[dtype])] = <intptr_t>of.turn[dtype][lie][wide]
    return found
