# Declarations for all families: arrays, threads, the kernel table and the iterator over arrays.

cdef extern from "common/core/dlpack.h" namespace "fastact" nogil:
    const int32_t kDLCPU
    const int32_t kDLCUDA
    const int32_t kDLCUDAHost
    const int32_t kDLCUDAManaged
    const uint64_t kDLReadOnly

    ctypedef struct DLDevice:
        int32_t device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    DLDataType dlpack_dtype(int) noexcept
    int dtype_of_dlpack(DLDataType) noexcept

    ctypedef struct DLTensor:
        void* data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset

    ctypedef struct DLPackVersion:
        uint32_t major

    ctypedef struct DLManagedTensor:
        DLTensor dl_tensor
        void (*deleter)(DLManagedTensor*) noexcept

    ctypedef struct DLManagedTensorVersioned:
        DLPackVersion version
        void* manager_ctx
        void (*deleter)(DLManagedTensorVersioned*) noexcept
        uint64_t flags
        DLTensor dl_tensor

    const char* problem_of(const DLTensor&) noexcept

    ctypedef struct DLPackExchangeAPI:
        DLPackVersion version
        int (*allocate)(
            DLTensor*, DLManagedTensorVersioned**, void*,
            void (*)(void*, const char*, const char*) noexcept
        ) noexcept
        int (*object_from_managed)(DLManagedTensorVersioned*, void**) except -1
        int (*borrow)(void*, DLTensor*) except -1
        int (*current_stream)(int32_t, int32_t, void**) except -1

cdef extern from "cpu/core/back_off.h" namespace "fastact" nogil:
    cpdef int get_back_off "fastact::back_off_mode" () noexcept
    cpdef void set_back_off "fastact::choose_back_off" (int mode) noexcept

cdef extern from "cpu/core/runtime.h" namespace "fastact" nogil:
    const int kOpenMP
    int& local_threads() noexcept
    void*& current_draft() noexcept
    cpp_bool& inside_operator() noexcept
    void choose_process_threads(int) noexcept
    cpdef void after_fork_in_child "fastact::become_forked" () noexcept
    const char* compiler() noexcept
    cppclass Partitions:
        bint begin(int count) noexcept
        void run_share(int thread, int count) noexcept
        void end() noexcept
    DLManagedTensorVersioned* describe_tensor(
        void*, DLDevice, int, const int64_t*, const int64_t*, DLDataType
    ) noexcept
    DLManagedTensorVersioned* with_strides(
        DLManagedTensorVersioned*, int, const int64_t*, const int64_t*
    ) noexcept
    DLManagedTensorVersioned* make_tensor(int, const int64_t*, const int64_t*, DLDataType) noexcept
    void advise_huge_pages(void*, int64_t) noexcept
    DLManagedTensor* unversioned(DLManagedTensorVersioned*) noexcept

cdef extern from "cpu/core/threads.h" namespace "fastact" nogil:
    cpdef int get_thread_limit "fastact::thread_limit" () noexcept
    int resolve_threads(int64_t elements) noexcept
    ctypedef void (*ParallelRegion)(int threads, Partitions* job) noexcept nogil
    ParallelRegion& parallel_region() noexcept
    void run_partitions[Job](
        int threads, void (*)(const Job*, int64_t, int64_t) noexcept, const Job*
    ) noexcept

cdef extern from "common/core/operand.h" namespace "fastact" nogil:
    enum: kMaxAxes
    const int kF16
    const int kBF16
    const int kF32
    const int kF64
    const int kBool
    const int kI32
    const int kI64
    const int kDTypes
    const int kViewDTypes
    const char* const kDTypeNames[1]
    int64_t item_size(int) noexcept

cdef extern from "common/core/call.h" namespace "fastact" nogil:
    const int kMaxParameters

    ctypedef struct ArrayArgument:  # which is an Operand
        char* data
        int ndim
        const int64_t* shape
        const int64_t* strides
        int64_t stride_unit
        int dtype
        int device_type
        int device
        cpp_bool is_readonly

    ctypedef struct AxisFlags:
        cpp_bool[kMaxAxes] flags

    ctypedef struct ParameterValues:
        double[4] value

    const int kMostPlaces

    ctypedef struct Places:
        int count
        int[4] at

    cdef enum class FieldKind(int):
        kArray
        kAxes
        kParameters
        kNumber
        kInteger
        kInt64
        kBits
        kPlaces
        kFlag

    cdef enum class Role(int):
        kOut

    ctypedef int ShapeRule
    ctypedef int DTypeRule

    ctypedef struct Field:
        const char* name
        void* (*at)(void*) noexcept
        FieldKind kind
        Role role
        cpp_bool is_optional
        ShapeRule shape
        const char* shape_of
        const char* axes
        const int* times
        DTypeRule dtype
        const char* dtype_of
        int64_t end
        const char* written_if

    ctypedef struct CallTable:
        const char* name
        const Field* fields
        int count
        int64_t size

cdef extern from "common/core/axes.h" namespace "fastact" nogil:
    int64_t size_of(const ArrayArgument&) noexcept
    void axes_in_order(const ArrayArgument&, int64_t* order) noexcept

cdef extern from "common/core/call_check.h" namespace "fastact" nogil:
    int expected_dtype(DTypeRule, int)
    cpp_bool fits_dtype(DTypeRule, int, int)

    ctypedef struct NamedFields:
        pass

    cpp_bool is_written(const Field&, const NamedFields&, void*)
    void find_named_fields(const CallTable&, NamedFields*) except +
    void check_call(const char*, const CallTable&, const NamedFields*, void*) except +

cdef extern from "common/core/device_table.h" namespace "fastact" nogil:
    ctypedef struct DeviceCall:
        const char* name
        int64_t size
        int64_t (*workspace_size)(const void*, int, int) except +
        void (*run)(const void*, int, int, void*, int64_t, void*) except + nogil

    ctypedef struct DeviceTable:
        const DeviceCall* calls
        int call_count
        void* (*begin_recording)() except +
        void (*begin_run)(void*, const char* const*, int) except +
        void* (*end_recording)(void*, int) except +
        void (*replay)(const void*, char* const*, int, void*) except + nogil
        void (*drop)(void*) noexcept
    const int kAlignedBits

cdef extern from "cpu/core/chunk_reader.h" namespace "fastact" nogil:
    cpdef int64_t bypass_caches_from(int64_t size) noexcept

cdef extern from "cpu/activations/kernels.h" namespace "fastact" nogil:
    const int kActivations
    const bint kActivationSavesValue[1]

    ctypedef void (*ElementwiseKernel)(char* const*, int64_t, const double*, int64_t) noexcept
    ctypedef struct ElementwiseTable:
        ElementwiseKernel forward[1][4]
        ElementwiseKernel backward_by_saved[1][4][2]

cdef extern from "common/activations/call.h" namespace "fastact" nogil:
    const CallTable kActivationForward, kActivationBackward

    ctypedef struct ActivationCall:
        ArrayArgument[4] data
        int which
        ParameterValues parameters
        cpp_bool accumulate

cdef extern from "cpu/core/kernel_table.h" namespace "fastact" nogil:
    ctypedef struct KernelTable:
        const char* isa
        const ElementwiseTable* elementwise

    const KernelTable* kBuiltIsas[3]
    const int kBuiltIsaCount
    bint cpu_supports(const char*) noexcept
    const KernelTable* best_supported_isa() noexcept

ctypedef void (*RunPart)(const void*, const KernelTable*) noexcept nogil

cdef extern from "cpu/core/native_function.h" namespace "fastact" nogil:
    cppclass Execution:
        const KernelTable* kernels
        char* workspace
        int64_t bytes
        const char* warnings[2]
        int warning_count

    ctypedef struct NativeFunction:
        const CallTable* table
        int64_t (*workspace)(const void*, const KernelTable*) noexcept
        void (*run)(const void*, Execution*) except + nogil
        RunPart run_part

    const vector[NativeFunction]& list_native_functions "fastact::native_functions" () noexcept

cdef extern from "cpu/core/tuning.h" namespace "fastact" nogil:
    const int64_t kBigMemory
    const int64_t kBlock
    const int64_t kFarElements
    const int64_t kGrain

cdef extern from "cpu/core/tensor_iterator.h" namespace "fastact" nogil:
    cpp_bool& computes_parts() noexcept
    void run_elementwise(
        ElementwiseKernel, const double*, bint reads_output, int, const ArrayArgument*
    ) noexcept
