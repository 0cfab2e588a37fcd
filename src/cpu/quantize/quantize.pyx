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


cdef void run_quantize_call(
    const QuantizeCall* call, const KernelTable* kernels, bint finds_scale
) noexcept nogil:
    cdef int64_t size = operand_size(operand_of(&call.x))
    cdef Quantize quantize
    if size == 0:
        return
    prepare_quantize(&quantize, kernels, call[0], finds_scale)
    run_partitions(resolve_threads(size), partitions_of(quantize_partition, &quantize))


cdef void run_quantize(const void* call, const KernelTable* kernels) noexcept nogil:
    run_quantize_call(<const QuantizeCall*>call, kernels, True)


cdef void run_encode(const void* call, const KernelTable* kernels) noexcept nogil:
    run_quantize_call(<const QuantizeCall*>call, kernels, False)


cdef void run_widen(const void* given, const KernelTable* kernels) noexcept nogil:
    cdef const WidenCall* call = <const WidenCall*>given
    cdef int64_t size = operand_size(operand_of(&call.data[kWidenX]))
    cdef Widen widen
    if size == 0:
        return
    prepare_widen(&widen, kernels, call[0])
    run_partitions(resolve_threads(size), partitions_of(widen_partition, &widen))


add_free_function(&kQuantize, run_quantize)
add_free_function(&kEncode, run_encode)
add_free_function(&kPeak, run_encode)  # without codes it finds peaks
add_free_function(&kWiden, run_widen)
