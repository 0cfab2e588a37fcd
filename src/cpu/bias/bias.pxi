# What the headers of bias_act and of dropout declare.

cdef extern from "common/bias/channel_functions.h" namespace "fastact" nogil:
    const int kChannelFunctions
    const char* const kChannelFunctionNames[1]

cdef extern from "common/bias/call.h" namespace "fastact" nogil:
    const CallTable kBiasForward, kBiasBackward, kDropout
    const int kBiasX "fastact::BiasCall::kX"

    ctypedef struct BiasCall:
        ArrayArgument[4] data
        ArrayArgument dbias
        int axis
        cpp_bool accumulate_dbias

    ctypedef struct DropoutCall:
        ArrayArgument[3] data

cdef extern from "cpu/bias/bias.h" namespace "fastact" nogil:
    ctypedef struct BiasAct:
        ChannelSums sums

    void prepare_bias "fastact::prepare"(
        BiasAct*, const KernelTable*, const BiasCall&, cpp_bool
    ) noexcept
    void bias_forward_partition(const BiasAct*, int64_t, int64_t) noexcept
    void bias_backward_partition(const BiasAct*, int64_t, int64_t) noexcept

    ctypedef struct DropoutPass:
        pass

    void prepare_dropout "fastact::prepare"(
        DropoutPass*, const KernelTable*, const DropoutCall&
    ) noexcept
    void dropout_partition(const DropoutPass*, int64_t, int64_t) noexcept
