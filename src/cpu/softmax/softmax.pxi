# What the headers of the softmax family declare.

cdef extern from "common/softmax/call.h" namespace "fastact" nogil:
    const CallTable kSoftmaxForward, kSoftmaxBackward, kSoftmaxSink, kLogSumExpBackward
    const CallTable kCrossEntropyForward, kCrossEntropyBackward
    const int kSoftmaxX "fastact::softmax_roles::kX"
    const int kSoftmaxLse "fastact::softmax_roles::kLse"
    const int kSoftmaxNumber "fastact::softmax_roles::kNumber"
    const int kSoftmaxShare "fastact::softmax_roles::kShare"
    const int kNone, kMean
    enum: kSoftmaxKinds
    enum: kLogSumExp
    enum: kReductions
    const char* const kSoftmaxKindNames[1]
    const char* const kReductionNames[1]

    ctypedef struct SoftmaxCall:
        ArrayArgument[10] arrays
        ArrayArgument loss
        ArrayArgument divisor
        int kind
        int64_t ignore_index
        int reduction

    ctypedef struct SinkCall:
        pass

cdef extern from "cpu/softmax/softmax.h" namespace "fastact" nogil:
    ctypedef struct Softmax:
        double* partial

    void plan_softmax_forward(Softmax*, const KernelTable*, const SoftmaxCall&) noexcept
    void plan_softmax_backward(Softmax*, const KernelTable*, const SoftmaxCall&) noexcept
    void plan_logsumexp_backward(Softmax*, const KernelTable*, const SoftmaxCall&) noexcept
    void plan_cross_entropy(Softmax*, const KernelTable*, const SoftmaxCall&) noexcept
    void plan_cross_entropy_backward(Softmax*, const KernelTable*, const SoftmaxCall&) noexcept
    void round_sink(const SinkCall&) noexcept
    void softmax_partition(const Softmax*, int64_t, int64_t) noexcept
    void softmax_backward_partition(const Softmax*, int64_t, int64_t) noexcept
    void logsumexp_backward_partition(const Softmax*, int64_t, int64_t) noexcept
    int64_t loss_partials(int64_t) noexcept
    cpp_bool has_valid_targets(const Softmax&) noexcept
    void cross_entropy_partition(const Softmax*, int64_t, int64_t) noexcept
    void cross_entropy_backward_partition(const Softmax*, int64_t, int64_t) noexcept
    void finish_loss(const Softmax&, int, int, char*, char*) noexcept
    int64_t softmax_rows(const Softmax&) noexcept
    int64_t softmax_columns(const Softmax&) noexcept
