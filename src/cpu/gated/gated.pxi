# What the header of gated activations declares.

cdef extern from "cpu/gated/gated.h" namespace "fastact" nogil:
    ctypedef struct GatedNumbers:
        double limit
        double offset

    ctypedef struct Gated:
        FusedPlan plan
        ChannelSums sums
        GatedNumbers numbers
        const double* parameters

    void prepare_gated "fastact::prepare"(
        Gated*, const KernelTable*, int, int, const Operand*, const Operand*, int, int, cpp_bool
    ) noexcept
    void prepare_sums_of_gated "fastact::prepare_sums"(
        Gated*, const ReduceTable*, const Operand*
    ) noexcept
    void gated_forward_partition(const Gated*, int64_t, int64_t) noexcept
    void gated_backward_partition(const Gated*, int64_t, int64_t) noexcept
