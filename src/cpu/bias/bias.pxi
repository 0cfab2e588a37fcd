# What the header of bias_act declares.

cdef extern from "cpu/bias/bias.h" namespace "fastact" nogil:
    ctypedef struct BiasAct:
        FusedPlan plan
        ChannelSums sums
        int activation
        const double* parameters

    void prepare_bias "fastact::prepare"(
        BiasAct*, const KernelTable*, cpp_bool, int, const Operand*, const Operand&, int, int
    ) noexcept
    void prepare_sum_of_bias "fastact::prepare_sum"(
        BiasAct*, const ReduceTable*, const Operand&, cpp_bool
    ) noexcept
    void bias_forward_partition(const BiasAct*, int64_t, int64_t) noexcept
    void bias_backward_partition(const BiasAct*, int64_t, int64_t) noexcept
