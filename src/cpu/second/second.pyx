# Second derivatives of rows of norms and of softmax (common/second/second.h, which describes the
# call).

cdef extern from "common/second/second.h" namespace "fastact" nogil:
    const CallTable kSecond
    const int kSecondSaved "fastact::SecondCall::kSaved"
    enum: kSecondKinds
    const char* const kSecondKindNames[1]

    ctypedef struct SecondCall:
        ArrayArgument[9] data

cdef extern from "cpu/second/second.h" namespace "fastact" nogil:
    ctypedef struct SecondJob:
        pass

    void prepare_second "fastact::prepare"(
        SecondJob*, const KernelTable*, const SecondCall&
    ) noexcept
    void second_partition(const SecondJob*, int64_t, int64_t) noexcept

SECOND_KINDS = names_of(kSecondKindNames, kSecondKinds)


cdef int run_second(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const SecondCall* call = <const SecondCall*>given
    cdef int64_t size = operand_size(operand_of(&call.data[kSecondSaved]))
    cdef SecondJob job
    cdef int threads
    if size == 0:
        return 0
    prepare_second(&job, table, call[0])
    threads = resolve_threads(size)
    with nogil:
        run_partitions(threads, partitions_of(second_partition, &job))
    return 0


add_function(&kSecond, NULL, run_second)
