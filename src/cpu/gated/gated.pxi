# What the headers of gated activations declare.

cdef extern from "common/gated/call.h" namespace "fastact" nogil:
    const CallTable kGatedForward, kGatedBackward
    const int kGatedA "fastact::GatedCall::kA"

    ctypedef struct GatedCall:
        ArrayArgument[5] data
        ArrayArgument[2] dbias
        int axis
        cpp_bool accumulate

cdef extern from "cpu/gated/gated.h" namespace "fastact" nogil:
    ctypedef struct Gated:
        ChannelSums sums

    void prepare_gated "fastact::prepare"(Gated*, const KernelTable*, const GatedCall&) noexcept
    void gated_forward_partition(const Gated*, int64_t, int64_t) noexcept
    void gated_backward_partition(const Gated*, int64_t, int64_t) noexcept
