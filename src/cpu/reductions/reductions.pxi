# What the headers of the reductions declare.

cdef extern from "common/reductions/call.h" namespace "fastact" nogil:
    const CallTable kSumCall, kSumBackwardCall, kSquareCall, kBroadcastCall, kFillCall
    const CallTable kMomentsCall, kMomentsBackwardCall, kStatisticBackwardCall
    const CallTable kWeightedGradientCall, kGroupedCall, kGroupedGradientCall
    const int kMomentsX "fastact::MomentsCall::kX"
    const int kMomentsWeights "fastact::MomentsCall::kWeights"
    const int kStatisticMean "fastact::StatisticBackwardCall::kMean"

    ctypedef struct SumCall:
        ArrayArgument x, y
        AxisFlags axes
        int term
        double divisor, initial
        cpp_bool accumulate

    ctypedef struct SumBackwardCall:
        ArrayArgument[3] arrays
        int term
        cpp_bool accumulate

    ctypedef struct SquareCall:
        ArrayArgument x, y

    ctypedef struct BroadcastCall:
        ArrayArgument[2] arrays
        cpp_bool accumulate

    ctypedef struct FillCall:
        ArrayArgument y
        uint64_t bits

    cppclass MomentsCall:
        ArrayArgument[3] inputs
        const char* warning
        const char* op
        cpp_bool is_weighted() noexcept

    ctypedef struct MomentsBackwardCall:
        ArrayArgument[6] arrays
        double share, scale
        cpp_bool accumulate

    ctypedef struct StatisticBackwardCall:
        ArrayArgument[6] arrays
        cpp_bool skips, accumulate

    ctypedef struct WeightedGradientCall:
        ArrayArgument[8] arrays
        const char* op

cdef extern from "common/reductions/spread_call.h" namespace "fastact" nogil:
    const CallTable kSpreadBackwardCall

cdef extern from "cpu/reductions/reduce.h" namespace "fastact" nogil:
    enum: kTooFew, kNoWeights

    void prepare_reduction "fastact::prepare"(
        Reducer*, const ReduceTable*, int, const Operand&, const Operand&, const cpp_bool*,
        int, int, cpp_bool
    ) noexcept
    void prepare_moments "fastact::prepare"(
        Reducer*, const ReduceTable*, const MomentsCall&
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
        int64_t groups
        int* has_wrong_label

    void prepare_weighted "fastact::prepare"(
        WeightedMoments*, const ReduceTable*, const ConvertKernels*, const MomentsCall&
    ) noexcept
    void weighted_partition(const WeightedMoments*, int64_t, int64_t) noexcept
    void prepare_gradient "fastact::prepare"(
        WeightedGradient*, const ReduceTable*, const ConvertKernels*, const WeightedGradientCall&
    ) noexcept
    void weighted_gradient_partition(const WeightedGradient*, int64_t, int64_t) noexcept
    void gradient_labels_partition(const WeightedGradient*, int64_t, int64_t) noexcept

cdef extern from "cpu/reductions/grouped.h" namespace "fastact" nogil:
    ctypedef struct Grouped:
        Reducer reducer
        int64_t all_groups, ranked
        cpp_bool holds_all, is_listed
        char* lanes
        int* has_wrong_label
        int* is_far

    void prepare_grouped "fastact::prepare"(
        Grouped*, const ReduceTable*, const GroupedKernels*, const ConvertKernels*,
        const MomentsCall&, int
    ) noexcept
    int64_t grouped_size "fastact::workspace_size"(const Grouped*) noexcept
    void rank_labels(Grouped*) noexcept
    void store_nothing_partition(const Grouped*, int64_t, int64_t) noexcept
    void list_terms(const Grouped*) noexcept
    void check_labels_partition(const Grouped*, int64_t, int64_t) noexcept
    void grouped_partition(const Grouped*, int64_t, int64_t) noexcept
    void store_groups_partition(const Grouped*, int64_t, int64_t) noexcept
    void rescale_groups_partition(const Grouped*, int64_t, int64_t) noexcept

cdef extern from "cpu/reductions/squares.h" namespace "fastact" nogil:
    ctypedef struct SquareGrad:
        Reducer reducer

    void prepare_squares "fastact::prepare"(
        SquareGrad*, const KernelTable*, const SquareCall&
    ) noexcept
    void square_partition(const SquareGrad*, int64_t, int64_t) noexcept
