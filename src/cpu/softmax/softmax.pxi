# What the headers of the softmax family declare.

cdef extern from "cpu/softmax/softmax.h" namespace "fastact" nogil:
    enum: kSoftmaxKinds
    enum: kReductions
    const char* const kSoftmaxKindNames[1]
    const char* const kReductionNames[1]

    ctypedef struct Softmax:
        int kind
        int mask_kind
        double scale
        cpp_bool accumulate
        cpp_bool has_indices
        cpp_bool has_probabilities
        int64_t ignore_index
        double label_smoothing
        double* partial
        double gradient

    void plan_softmax(
        Softmax*, const KernelTable*, int, const Operand*, const int*, const cpp_bool*, cpp_bool
    ) noexcept
    void softmax_partition(const Softmax*, int64_t, int64_t) noexcept
    void softmax_backward_partition(const Softmax*, int64_t, int64_t) noexcept
    void logsumexp_backward_partition(const Softmax*, int64_t, int64_t) noexcept
    int64_t loss_partials(int64_t) noexcept
    cpp_bool has_valid_targets(const Softmax&) noexcept
    void sum_weights(Softmax*) noexcept
    void cross_entropy_partition(const Softmax*, int64_t, int64_t) noexcept
    void cross_entropy_backward_partition(const Softmax*, int64_t, int64_t) noexcept
    void finish_loss(const Softmax&, int, int, char*, char*) noexcept
    int64_t softmax_rows(const Softmax&) noexcept
