# What the headers of the norms declare.

cdef extern from "common/norms/call.h" namespace "fastact" nogil:
    const CallTable kNormForward, kNormBackward
    const int kNormX "fastact::NormCall::kX"
    const int kNormIn "fastact::NormCall::kIn"

    ctypedef struct NormCall:
        ArrayArgument[4] data
        ArrayArgument mean, rstd, dweight, dbias
        cpp_bool accumulate

cdef extern from "cpu/norms/rows/plan.h" namespace "fastact" nogil:
    ctypedef struct Norm:
        double* partial

    void prepare_norm "fastact::prepare"(Norm*, const KernelTable*, const NormCall&, int) noexcept
    int64_t norm_workspace_size(const Norm*) noexcept
    void norm_forward_partition(const Norm*, int64_t, int64_t) noexcept
    void norm_backward_partition(const Norm*, int64_t, int64_t) noexcept
    void merge_norm_partition(const Norm*, int64_t, int64_t) noexcept

cdef extern from "cpu/norms/channels/batch_norm.h" namespace "fastact" nogil:
    ctypedef struct ChannelArray:
        char* data
        int64_t stride
        int dtype

    ctypedef struct BatchNorm:
        ElementwiseKernel activation
        const double* parameters
        cpp_bool is_identity
        cpp_bool accumulate
        cpp_bool is_training
        int64_t channels
        int64_t count
        double* mean
        double* rstd
        double* sums

    int64_t batch_scratch(int64_t, int64_t) noexcept
    void prepare_batch_norm "fastact::prepare"(
        BatchNorm*, const KernelTable*, int, const Operand*, int, char*, const ChannelArray&,
        const ChannelArray&
    ) noexcept
    void take_moments(BatchNorm*, double) noexcept
    void take_statistics(
        BatchNorm*, const ChannelArray&, const ChannelArray&, cpp_bool, double
    ) noexcept
    void save_of_nothing(
        const KernelTable*, int64_t, char*, const ChannelArray&, const ChannelArray&, cpp_bool,
        double, const ChannelArray&, const ChannelArray&
    ) noexcept
    void update_running(
        const BatchNorm&, double, const ChannelArray&, const ChannelArray&
    ) noexcept
    void read_channels(const BatchNorm&, const ChannelArray&, double, double*) noexcept
    void write_channels(
        const BatchNorm&, const double*, const ChannelArray&, cpp_bool
    ) noexcept
    void make_coefficients(const BatchNorm&) noexcept
    void make_slopes(const BatchNorm&, int64_t, int64_t) noexcept
    void batch_norm_forward_partition(const BatchNorm*, int64_t, int64_t) noexcept
    void batch_norm_sums_partition(const BatchNorm*, int64_t, int64_t) noexcept
    void batch_norm_gradient_partition(const BatchNorm*, int64_t, int64_t) noexcept
    void merge_batch_sums(const BatchNorm&, int64_t, int64_t) noexcept
    cpp_bool goes_by_channels(const BatchNorm&, int64_t) noexcept
    void batch_norm_backward_partition(const BatchNorm*, int64_t, int64_t) noexcept
