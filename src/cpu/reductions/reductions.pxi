# What the functions of other families take from the reductions.

cdef extern from "cpu/reductions/reduce.h" namespace "fastact" nogil:
    int64_t workspace_size(const Reducer*) noexcept
    void divide_work(Reducer*, int, char*, int64_t, int) noexcept
    void merge_chunks(const Reducer*, int, int) noexcept
    void run_reduction(const Reducer*, int) noexcept

cdef extern from "cpu/core/fused_pass.h" namespace "fastact" nogil:
    ctypedef struct FusedPlan:
        cpp_bool accumulate

cdef extern from "cpu/reductions/summing_pass.h" namespace "fastact" nogil:
    int64_t sum_workspace_size(int64_t, int64_t) noexcept


cdef void fill_argument(const ArrayArgument* y, double value) noexcept:
    fill(y[0], value)
