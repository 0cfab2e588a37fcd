# What the headers of the norms declare.

cdef extern from "common/norms/rows.h" namespace "fastact" nogil:
    const int kRowNorms
    const char* const kRowNormNames[1]

cdef extern from "common/norms/call.h" namespace "fastact" nogil:
    const CallTable kNormForward, kNormBackward
    const int kNormX "fastact::NormCall::kX"
    const int kNormIn "fastact::NormCall::kIn"

    ctypedef struct NormCall:
        ArrayArgument[6] data
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

cdef extern from "common/norms/channel_call.h" namespace "fastact" nogil:
    const CallTable kBatchNormForward, kNormApply, kBatchNormBackward

    ctypedef struct BatchForward:
        ArrayArgument x, mean, spread, saved_mean, saved_rstd
        int axis
        double eps
        cpp_bool is_training

    ctypedef struct BatchBackward:
        ArrayArgument x, dx, mean, rstd, sum_p, sum_p_xhat, dweight, dbias
        int axis
        double count
        cpp_bool is_training, accumulate

cdef extern from "cpu/norms/channels/batch_norm.h" namespace "fastact" nogil:
    ctypedef struct ChannelArray:
        pass

    ctypedef struct BatchNorm:
        int64_t channels
        int64_t count
        double* mean
        double* rstd
        double* sums

    ChannelArray channels_of(const ArrayArgument&, int) noexcept
    int64_t batch_scratch(int64_t, int64_t) noexcept
    void prepare_batch_forward "fastact::prepare"(
        BatchNorm*, const KernelTable*, const BatchForward&, char*
    ) noexcept
    void prepare_batch_backward "fastact::prepare"(
        BatchNorm*, const KernelTable*, const BatchBackward&, char*
    ) noexcept
    void prepare_batch_moments "fastact::prepare_moments"(
        Reducer*, const KernelTable*, const BatchForward&, double*, double*
    ) noexcept
    void take_moments(BatchNorm*, double) noexcept
    void take_statistics(
        BatchNorm*, const ChannelArray&, const ChannelArray&, cpp_bool, double
    ) noexcept
    void save_of_nothing(const KernelTable*, const BatchForward&, char*) noexcept
    void update_running(const BatchNorm&, const BatchForward&) noexcept
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
