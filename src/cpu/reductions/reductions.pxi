# What the headers of the reductions declare.

cdef extern from "common/reductions/of_m2.h" namespace "fastact" nogil:
    ctypedef enum OfM2:
        pass
    enum: kOfM2, kVariance, kTotal

cdef extern from "cpu/reductions/reduce.h" namespace "fastact" nogil:
    enum: kTooFew, kNoWeights

    ctypedef struct Reducer:
        int64_t tile
        int64_t tasks
        double* partial
        double divisor
        int* is_degenerate

    void prepare_reduction "fastact::prepare"(
        Reducer*, const ReduceTable*, int, const Operand&, const Operand&, const cpp_bool*,
        int, int, cpp_bool
    ) noexcept
    void prepare_moments(
        Reducer*, const ReduceTable*, const Operand&, const Operand*, const cpp_bool*, int, int,
        OfM2, double, cpp_bool
    ) noexcept
    int64_t workspace_size(const Reducer*) noexcept
    int64_t partial_size(const Reducer*) noexcept
    void share_columns(Reducer*, int, int) noexcept
    void reduce_partition(const Reducer*, int64_t, int64_t) noexcept
    void merge_partition(const Reducer*, int64_t, int64_t) noexcept

cdef extern from "cpu/reductions/weighted.h" namespace "fastact" nogil:
    ctypedef struct WeightedMoments:
        Reducer reducer

    ctypedef struct WeightedGradient:
        pass

    void prepare_weighted "fastact::prepare"(
        WeightedMoments*, const ReduceTable*, const ConvertKernels*, const Operand*, const int*,
        const Operand*, const cpp_bool*, int, OfM2, double, cpp_bool
    ) noexcept
    void weighted_partition(const WeightedMoments*, int64_t, int64_t) noexcept
    void prepare_gradient "fastact::prepare"(
        WeightedGradient*, const ReduceTable*, const ConvertKernels*, const Operand*, const int*,
        cpp_bool, cpp_bool, cpp_bool
    ) noexcept
    void weighted_gradient_partition(const WeightedGradient*, int64_t, int64_t) noexcept

cdef extern from "cpu/core/fused_pass.h" namespace "fastact" nogil:
    ctypedef struct FusedPlan:
        cpp_bool accumulate

cdef extern from "cpu/reductions/summing_pass.h" namespace "fastact" nogil:
    enum: kMostSums

    ctypedef struct ChannelSums:
        Reducer* each
        int count

    int64_t sum_workspace_size(int64_t, int64_t) noexcept

cdef extern from "cpu/reductions/squares.h" namespace "fastact" nogil:
    ctypedef struct SquareGrad:
        Reducer reducer

    void prepare_squares "fastact::prepare"(
        SquareGrad*, const KernelTable*, int, const Operand&, const Operand&, const Operand&
    ) noexcept
    void square_partition(const SquareGrad*, int64_t, int64_t) noexcept
