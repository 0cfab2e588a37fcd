# What the C++ headers declare, and the module-wide imports.
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport (
    PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid,
    PyCapsule_New, PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.math cimport NAN
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strcmp
from libcpp cimport bool as cpp_bool
cimport numpy as cnp

from threading import Lock

cnp.import_array()

cdef extern from "Python.h":
    PyObject* PyDict_GetItem(dict, object) noexcept
    PyObject* PyTuple_GET_ITEM(tuple, Py_ssize_t) noexcept
    PyTypeObject* Py_TYPE(object) noexcept
    const char* PyUnicode_AsUTF8AndSize(str, Py_ssize_t*) except NULL
    object PyObject_Call(object, object, PyObject*)
    int PyObject_GenericSetAttr(object, object, object) except -1
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1

cdef extern from "numpy/arrayobject.h":
    enum: NPY_HALF
    bint PyArray_CheckExact(object) noexcept
    bint PyArray_ISALIGNED(cnp.ndarray) noexcept
    bint PyArray_ISNOTSWAPPED(cnp.ndarray) noexcept
    bint PyArray_IS_C_CONTIGUOUS(cnp.ndarray) noexcept
    object PyArray_NewLikeArray(cnp.ndarray, cnp.NPY_ORDER order, PyObject* dtype, int subok)

cdef extern from "common/core/dlpack.h" namespace "fastact" nogil:
    const int32_t kDLCPU
    const int32_t kDLCUDA
    const int32_t kDLCUDAHost
    const int32_t kDLCUDAManaged
    const uint8_t kDLFloat
    const uint8_t kDLBfloat
    const uint64_t kDLReadOnly

    ctypedef struct DLDevice:
        int32_t device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

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
        uint32_t minor

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

cdef extern from "cpu/core/runtime.h" namespace "fastact" nogil:
    const int kOpenMP
    int omp_limit() noexcept
    bint in_parallel() noexcept
    int& local_threads() noexcept
    void*& current_draft() noexcept
    int process_threads() noexcept
    void choose_process_threads(int) noexcept
    bint is_forked() noexcept
    void become_forked() noexcept
    const char* compiler() noexcept
    void run_shares[Job](
        int threads, void (*)(const Job*, int64_t, int64_t) noexcept, const Job*
    ) noexcept
    DLManagedTensorVersioned* describe_tensor(
        void*, DLDevice, int, const int64_t*, const int64_t*, DLDataType
    ) noexcept
    DLManagedTensorVersioned* with_strides(
        DLManagedTensorVersioned*, int, const int64_t*, const int64_t*
    ) noexcept
    DLManagedTensorVersioned* make_tensor(int, const int64_t*, const int64_t*, DLDataType) noexcept
    DLManagedTensor* unversioned(DLManagedTensorVersioned*) noexcept

cdef extern from "common/core/operand.h" namespace "fastact" nogil:
    enum: kMaxAxes
    const int kF16
    const int kBF16
    const int kF32
    const int kF64
    int64_t item_size(int) noexcept

    ctypedef struct Operand:
        char* data
        int ndim
        const int64_t* shape
        const int64_t* strides
        int64_t stride_unit

cdef extern from "common/core/device_table.h" namespace "fastact" nogil:
    ctypedef struct DeviceTable:
        void (*activation)(
            int, int, bint, bint, const Operand*, const double*, int, void*
        ) except +

cdef extern from "cpu/reductions/kernels.h" namespace "fastact" nogil:
    enum: kTerms
    const char* const kTermNames[1]

    ctypedef struct ReduceBlocks:
        pass

    ctypedef struct ReduceTable:
        ReduceBlocks terms[1][4]

cdef extern from "cpu/testing/compare_kernels.h" namespace "fastact" nogil:
    const int kErrorEdges

    ctypedef struct Comparison:
        double absolute, ulp, counted
        int64_t ulp_at, counted_at
        int64_t above[1]
        bint is_finite

    ctypedef void (*CompareBlock)(const float*, const double*, int64_t, double, const double*,
                                  Comparison*) noexcept

cdef extern from "cpu/core/kernel_table.h" namespace "fastact" nogil:
    const int kActivations
    const int kElementaries
    const char* const kElementaryNames[1]
    const double kElementaryUlps[1]
    ctypedef void (*Block)(char* const*, int64_t, const double*) noexcept

    ctypedef struct BlockTable:
        const char* isa
        Block forward[1][4]
        Block backward[1][4][2]
        Block identity[4][2]
        Block square_backward[4][2]
        Block moments_backward[4][2]
        Block elementary[1][2]
        const ReduceTable* reduce
        const CompareBlock* compare

    ctypedef struct IsaList:
        int count
        const BlockTable* tables[3]

    const IsaList& built_isas() noexcept
    bint cpu_supports(const char*) noexcept

    ctypedef struct CpuFeatures:
        uint32_t leaf1_ecx, leaf7_ebx, extended_ecx
        uint64_t xcr0

    int x86_level(const CpuFeatures&) noexcept
    const BlockTable* best_supported_isa() noexcept
    const char* const kActivationNames[1]

cdef extern from "cpu/core/tensor_iterator.h" namespace "fastact" nogil:
    const int64_t kBlock

    ctypedef struct Loop:
        int64_t size
        int64_t* items

    void prepare(Loop*, Block, const double*, int, bint, int, const Operand*) noexcept
    void run_share(const Loop*, int64_t, int64_t) noexcept

cdef extern from "cpu/reductions/reduce.h" namespace "fastact" nogil:
    ctypedef struct Reducer:
        double* partial

    void prepare_reduction "fastact::prepare"(
        Reducer*, const ReduceTable*, const ReduceBlocks*, const Operand&, const Operand&,
        const cpp_bool*, int, int, cpp_bool
    ) noexcept
    int64_t workspace_size(const Reducer*) noexcept
    void reduce_share(const Reducer*, int64_t, int64_t) noexcept
    void merge_share(const Reducer*, int64_t, int64_t) noexcept

cdef extern from "cpu/reductions/moments.h" namespace "fastact" nogil:
    ctypedef struct MomentReducer:
        Reducer reducer

    void prepare_moments "fastact::prepare"(
        MomentReducer*, const BlockTable*, const Operand&, const Operand*, const cpp_bool*, int, int,
        double
    ) noexcept
    int64_t moment_workspace_size "fastact::workspace_size"(const MomentReducer*) noexcept
    void moment_share "fastact::reduce_share"(const MomentReducer*, int64_t, int64_t) noexcept
    void merge_moment_share "fastact::merge_share"(
        const MomentReducer*, int64_t, int64_t
    ) noexcept

cdef extern from "cpu/reductions/squares.h" namespace "fastact" nogil:
    ctypedef struct SquareGrad:
        Reducer reducer

    void prepare_squares "fastact::prepare"(
        SquareGrad*, const BlockTable*, int, const Operand&, const Operand&, const Operand&
    ) noexcept
    void square_share(const SquareGrad*, int64_t, int64_t) noexcept

cdef extern from "cpu/norms/rows/plan.h" namespace "fastact" nogil:
    ctypedef struct Norm:
        Block activation
        const double* parameters
        cpp_bool is_identity
        cpp_bool is_centred
        cpp_bool accumulate
        double eps
        double* partial

    ctypedef struct NormArrays:
        const Operand* arrays
        int lead
        const cpp_bool* reduced
        const cpp_bool* of_parameter
        Operand mean
        Operand rstd
        Operand weight
        Operand bias
        Operand dweight
        Operand dbias
        int weight_dtype
        int bias_dtype

    void prepare_norm "fastact::prepare"(
        Norm*, const BlockTable*, int, const NormArrays&
    ) noexcept
    int64_t norm_workspace_size(const Norm*) noexcept
    void norm_forward_share(const Norm*, int64_t, int64_t) noexcept
    void norm_backward_share(const Norm*, int64_t, int64_t) noexcept
    void merge_norm_share(const Norm*, int64_t, int64_t) noexcept

cdef extern from "cpu/bias/bias.h" namespace "fastact" nogil:
    ctypedef struct BiasAct:
        int activation
        const double* parameters
        cpp_bool accumulate
        Reducer reducer

    void prepare_bias "fastact::prepare"(
        BiasAct*, const BlockTable*, cpp_bool, int, const Operand*, const Operand&, int, int
    ) noexcept
    void prepare_sum_of_bias "fastact::prepare_sum"(
        BiasAct*, const ReduceTable*, const Operand&, cpp_bool
    ) noexcept
    int64_t bias_workspace_size(int64_t, int64_t) noexcept
    void forward_share(const BiasAct*, int64_t, int64_t) noexcept
    void backward_share(const BiasAct*, int64_t, int64_t) noexcept

cdef extern from "cpu/norms/channels/batch_norm.h" namespace "fastact" nogil:
    ctypedef struct ChannelArray:
        char* data
        int64_t stride
        int dtype

    ctypedef struct BatchNorm:
        Block activation
        const double* parameters
        cpp_bool is_identity
        cpp_bool accumulate
        cpp_bool is_training
        int64_t channels
        int64_t count
        double* mean
        double* rstd
        double* sums

    int64_t batch_scratch(int64_t, int64_t) noexcept
    void prepare_batch_norm "fastact::prepare"(
        BatchNorm*, const BlockTable*, int, const Operand*, int, char*, const ChannelArray&,
        const ChannelArray&
    ) noexcept
    void take_moments(BatchNorm*, double) noexcept
    void take_statistics(
        BatchNorm*, const ChannelArray&, const ChannelArray&, cpp_bool, double
    ) noexcept
    void save_running(
        const BlockTable*, int64_t, char*, const ChannelArray&, const ChannelArray&, double,
        const ChannelArray&, const ChannelArray&
    ) noexcept
    void update_running(
        const BatchNorm&, double, const ChannelArray&, const ChannelArray&
    ) noexcept
    void read_channels(const BatchNorm&, const ChannelArray&, double, double*) noexcept
    void write_channels(
        const BatchNorm&, const double*, const ChannelArray&, cpp_bool
    ) noexcept
    void make_coefficients(const BatchNorm&) noexcept
    void make_slopes(const BatchNorm&, int64_t, int64_t) noexcept
    void batch_forward_share(const BatchNorm*, int64_t, int64_t) noexcept
    void batch_sums_share(const BatchNorm*, int64_t, int64_t) noexcept
    void batch_gradient_share(const BatchNorm*, int64_t, int64_t) noexcept
    void merge_batch_sums(const BatchNorm&, int64_t, int64_t) noexcept
    cpp_bool goes_by_channels(const BatchNorm&, int64_t) noexcept
    void batch_backward_share(const BatchNorm*, int64_t, int64_t) noexcept

cdef extern from "cpu/gates/gates.h" namespace "fastact" nogil:
    const int kLstm
    const int kGru
    const int kReset
    const int kBlend
    const double kGateUlps[2]

    ctypedef struct GateArrays:
        Operand gates, recurrent, state, cell, hidden, cell_gradient
        Operand gates_out, recurrent_out, state_out
        Operand bias, recurrent_bias
        int bias_dtype, recurrent_bias_dtype
        const int* places

    ctypedef struct Gates:
        pass

    void prepare_gates "fastact::prepare"(
        Gates*, const BlockTable*, int, int, cpp_bool, cpp_bool, cpp_bool, const GateArrays&
    ) noexcept
    void prepare_gate_sums(Gates*, const ReduceTable*, const Operand*, const int*) noexcept
    const int kGateKinds
    int gates_of(int) noexcept
    int gates_kept(int) noexcept
    cpp_bool gate_sums_apart(int, int, int64_t, int64_t, int) noexcept
    int64_t gate_workspace_size(int, int, int64_t, int64_t, int) noexcept
    cpp_bool use_gate_workspace "fastact::use_workspace"(Gates*, char*, int64_t, int) noexcept
    void gate_share(const Gates*, int64_t, int64_t) noexcept
    void gate_sum_share(const Gates*, int64_t, int64_t) noexcept
    void merge_gate_sums(const Gates*) noexcept
