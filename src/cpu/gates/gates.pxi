# What the header of the gates declares.

cdef extern from "cpu/gates/gates.h" namespace "fastact" nogil:
    const int kLstm
    const int kGru
    const int kReset
    const double kGateUlps[2]

    ctypedef struct GateArrays:
        Operand gates, recurrent, state, cell, hidden, cell_gradient
        Operand gates_out, recurrent_out, state_out
        Operand bias, recurrent_bias
        int bias_dtype, recurrent_bias_dtype
        const int* gate_order

    ctypedef struct Gates:
        pass

    void prepare_gates "fastact::prepare"(
        Gates*, const KernelTable*, int, int, cpp_bool, cpp_bool, cpp_bool, const GateArrays&
    ) noexcept
    void prepare_gate_sums(Gates*, const ReduceTable*, const Operand*, const int*) noexcept
    const int kGateKinds
    const char* const kGateKindNames[1]
    const int kGatesOf[1]
    const int kSavedOf[1]
    cpp_bool gate_sums_apart(int, int, int64_t, int64_t, int) noexcept
    int64_t gate_workspace_size(int, int, int64_t, int64_t, int) noexcept
    cpp_bool use_gate_workspace "fastact::use_workspace"(Gates*, char*, int64_t, int) noexcept
    void gate_partition(const Gates*, int64_t, int64_t) noexcept
    void gate_sum_partition(const Gates*, int64_t, int64_t) noexcept
    void merge_gate_sums(const Gates*) noexcept
