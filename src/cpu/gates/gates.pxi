# What the headers of the gates declare.

cdef extern from "common/gates/call.h" namespace "fastact" nogil:
    const CallTable kGatesForward, kGatesBackward
    const int kGateState "fastact::gate_roles::kState"

    ctypedef struct GatesCall:
        ArrayArgument[9] role
        ArrayArgument[2] bias_gradient
        int kind
        cpp_bool accumulate

cdef extern from "cpu/gates/gates.h" namespace "fastact" nogil:
    const int kLstm
    const int kGru
    const int kReset
    const double kGateUlps[2]

    ctypedef struct Gates:
        pass

    void prepare_gates "fastact::prepare"(
        Gates*, const KernelTable*, const GatesCall&, cpp_bool
    ) noexcept
    void prepare_gate_sums(Gates*, const ReduceTable*, const GatesCall&) noexcept
    const int kGateKinds
    const char* const kGateKindNames[1]
    cpp_bool gate_sums_apart(int, int, int64_t, int64_t, int) noexcept
    int64_t gate_workspace_size(int, int, int64_t, int64_t, int) noexcept
    cpp_bool use_gate_workspace "fastact::use_workspace"(Gates*, char*, int64_t, int) noexcept
    void gate_partition(const Gates*, int64_t, int64_t) noexcept
    void gate_sum_partition(const Gates*, int64_t, int64_t) noexcept
    void merge_gate_sums(const Gates*) noexcept
