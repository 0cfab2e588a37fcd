# Codes of 8 bits and their scales, and 16-bit data in float32 (common/quantize/quantize.h).

cdef extern from "common/quantize/quantize.h" namespace "fastact" nogil:
    const CallTable kQuantize
    const CallTable kEncode
    const CallTable kPeak
    const CallTable kWiden
    const int kWidenX "fastact::WidenCall::kX"

    ctypedef struct QuantizeCall:
        ArrayArgument x

    ctypedef struct WidenCall:
        ArrayArgument[4] data

cdef extern from "cpu/quantize/quantize.h" namespace "fastact" nogil:
    ctypedef struct Quantize:
        pass

    ctypedef struct Widen:
        pass

    void prepare_quantize "fastact::prepare"(
        Quantize*, const KernelTable*, const QuantizeCall&, cpp_bool
    ) noexcept
    void quantize_partition(const Quantize*, int64_t, int64_t) noexcept
    void prepare_widen "fastact::prepare"(
        Widen*, const KernelTable*, const WidenCall&
    ) noexcept
    void widen_partition(const Widen*, int64_t, int64_t) noexcept


cdef int run_quantize_call(const QuantizeCall* call, bint finds_scale) except -1:
    cdef int64_t size = operand_size(operand_of(&call.x))
    cdef Quantize quantize
    if size == 0:
        return 0
    prepare_quantize(&quantize, table, call[0], finds_scale)
    with nogil:
        run_partitions(resolve_threads(size), partitions_of(quantize_partition, &quantize))
    return 0


cdef int run_quantize(const void* call, char* workspace, int64_t bytes) except -1:
    return run_quantize_call(<const QuantizeCall*>call, True)


cdef int run_encode(const void* call, char* workspace, int64_t bytes) except -1:
    return run_quantize_call(<const QuantizeCall*>call, False)


cdef int run_widen(const void* given, char* workspace, int64_t bytes) except -1:
    cdef const WidenCall* call = <const WidenCall*>given
    cdef int64_t size = operand_size(operand_of(&call.data[kWidenX]))
    cdef Widen widen
    if size == 0:
        return 0
    prepare_widen(&widen, table, call[0])
    with nogil:
        run_partitions(resolve_threads(size), partitions_of(widen_partition, &widen))
    return 0


add_function(&kQuantize, NULL, run_quantize)
add_function(&kEncode, NULL, run_encode)
add_function(&kPeak, NULL, run_encode)  # without codes it finds peaks
add_function(&kWiden, NULL, run_widen)
