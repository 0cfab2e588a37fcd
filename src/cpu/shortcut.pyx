# The short cut. It serves exact NumPy arrays and tensors of registered types that are contiguous
# and need no conversion, and says "not mine" to everything else, errors included, which the
# Python layer then handles or explains. It must therefore check whatever the Python layer checks,
# before anything is written.

cdef enum:
    MAX_TENSOR_TYPES = 8


cdef struct TensorType:
    PyTypeObject* type
    DLPackExchangeAPI* api
    bint has_gradients
    bint has_negation


cdef TensorType[MAX_TENSOR_TYPES] tensor_types
cdef int tensor_type_count = 0
cdef list kept_alive = []
cdef object registering = Lock()


def register_tensor_type(object tensor_type, api_capsule):
    """Let tensors of exactly this type, on the CPU, take the short cut."""
    api = <DLPackExchangeAPI*>PyCapsule_GetPointer(api_capsule, "dlpack_exchange_api")
    if api.version.major != 1 or api.borrow is NULL:
        return
    with registering:
        if tensor_type_known(<PyTypeObject*>tensor_type) is NULL:
            add_tensor_type(tensor_type, api, api_capsule)


cdef void add_tensor_type(object tensor_type, DLPackExchangeAPI* api, object api_capsule) except *:
    global tensor_type_count
    if tensor_type_count == MAX_TENSOR_TYPES:
        return
    kept_alive.append((tensor_type, api_capsule))
    tensor_types[tensor_type_count] = TensorType(
        <PyTypeObject*>tensor_type,
        api,
        hasattr(tensor_type, "requires_grad"),
        hasattr(tensor_type, "is_neg"),
    )
    tensor_type_count += 1  # last: readers take no lock


cdef TensorType* tensor_type_known(PyTypeObject* tensor_type) noexcept:
    cdef int i
    for i in range(tensor_type_count):
        if tensor_types[i].type is tensor_type:
            return &tensor_types[i]
    return NULL


cdef bint quick_numpy(object x, Operand* to, int* dtype, bint writes) except -1:
    """Describe a C-contiguous, aligned, native array; False if it is anything else."""
    cdef cnp.ndarray a
    if not PyArray_CheckExact(x):
        return False
    a = x
    dtype[0] = dtype_of_numpy(a)
    if dtype[0] < 0 or not (
        PyArray_IS_C_CONTIGUOUS(a) and PyArray_ISALIGNED(a) and PyArray_ISNOTSWAPPED(a)
    ):
        return False
    if writes and not cnp.PyArray_ISWRITEABLE(a):
        return False
    to.data = <char*>cnp.PyArray_DATA(a)
    to.ndim = cnp.PyArray_NDIM(a)
    to.shape = <const int64_t*>cnp.PyArray_DIMS(a)
    to.strides = NULL
    return True


cdef bint quick_tensor(object x, TensorType* kind, Operand* to, int* dtype) except -1:
    """Describe a contiguous CPU tensor that may be used as it is; False if it is anything else."""
    cdef DLTensor tensor
    cdef int64_t expected = 1
    cdef int i
    if Py_TYPE(x) is not kind.type:
        return False
    if kind.has_gradients and x.requires_grad:
        return False
    if kind.has_negation and x.is_neg():
        return False
    try:
        kind.api.borrow(<void*>x, &tensor)
    except Exception:
        return False  # the Python layer finds out why
    dtype[0] = dtype_of_dlpack(tensor.dtype)
    if dtype[0] < 0 or tensor.device.device_type != kDLCPU or tensor.ndim > kMaxAxes:
        return False
    if tensor.strides is not NULL:
        for i in range(tensor.ndim - 1, -1, -1):
            if tensor.shape[i] != 1 and tensor.strides[i] != expected:
                return False
            expected *= tensor.shape[i]
    fill_operand(to, &tensor, item_size(dtype[0]))
    to.strides = NULL
    if expected != 0 and (tensor.data is NULL or <intptr_t>to.data % item_size(dtype[0])):
        return False
    return True


cdef int64_t quick_size(const Operand* a) noexcept nogil:
    cdef int64_t size = 1
    cdef int i
    for i in range(a.ndim):
        size *= a.shape[i]
    return size


cdef bint quick_match(const Operand* a, const Operand* b, int64_t bytes, bint overlap) noexcept:
    """Same shape, and memory that is equal or disjoint (asked for by `overlap`)."""
    cdef int i
    if a.ndim != b.ndim:
        return False
    for i in range(a.ndim):
        if a.shape[i] != b.shape[i]:
            return False
    return not overlap or a.data == b.data or a.data + bytes <= b.data or b.data + bytes <= a.data


cdef object quick(
    const Block* blocks, const double* parameters, int inputs, PyObject** values, object out,
    bint accumulate, bint keep_inputs
):
    """Run a block function by the short cut. NotImplemented: the Python layer must look.

    blocks: this op's row of the table, by dtype (and accumulation). keep_inputs: an output that
    is an input would destroy what the caller saves for backward.
    """
    cdef Operand[3] arrays
    cdef int[3] dtypes
    cdef int k, stride = 2 if inputs == 2 else 1
    cdef bint fresh
    cdef int64_t size, bytes
    cdef object first = <object>values[0]
    cdef TensorType* kind = NULL
    cdef DLManagedTensorVersioned* made = NULL
    cdef int64_t[kMaxAxes] strides
    if not PyArray_CheckExact(first):
        kind = tensor_type_known(Py_TYPE(first))
        if kind is NULL:
            return NotImplemented
    for k in range(inputs):
        x = <object>values[k]
        if not (
            quick_numpy(x, &arrays[k], &dtypes[k], False) if kind is NULL
            else quick_tensor(x, kind, &arrays[k], &dtypes[k])
        ):
            return NotImplemented
    size = quick_size(&arrays[0])
    bytes = size * item_size(dtypes[0])
    if inputs == 2 and (
        dtypes[1] != dtypes[0] or not quick_match(&arrays[0], &arrays[1], 0, False)
    ):
        return NotImplemented
    arrays[inputs] = arrays[0]
    fresh = out is None
    if not fresh:
        if not (
            quick_numpy(out, &arrays[inputs], &dtypes[2], True) if kind is NULL
            else quick_tensor(out, kind, &arrays[inputs], &dtypes[2])
        ):
            return NotImplemented
        if dtypes[2] != dtypes[0]:
            return NotImplemented
        for k in range(inputs):
            if not quick_match(&arrays[k], &arrays[inputs], bytes, size != 0):
                return NotImplemented
        if keep_inputs and arrays[0].data == arrays[inputs].data:
            return NotImplemented
    elif accumulate:
        return NotImplemented
    elif kind is NULL:
        out = PyArray_NewLikeArray(first, cnp.NPY_CORDER, NULL, 0)
        arrays[inputs].data = <char*>cnp.PyArray_DATA(out)
    else:
        bytes = 1
        for k in range(arrays[0].ndim - 1, -1, -1):
            strides[k] = bytes
            bytes *= arrays[0].shape[k]
        made = make_tensor(arrays[0].ndim, arrays[0].shape, strides, dlpack_dtype(dtypes[0]))
        if made is NULL:
            raise MemoryError
        arrays[inputs].data = <char*>made.dl_tensor.data
    run_quick(
        blocks[dtypes[0] * stride + accumulate], parameters, dtypes[0], accumulate, inputs + 1,
        arrays, size,
    )
    if made is not NULL:
        return hand_over(made, kind.api)
    return out[()] if fresh and arrays[0].ndim == 0 else out


cdef void run_quick(
    Block block, const double* parameters, int dtype, bint reads_output, int operands,
    const Operand* arrays, int64_t size
) noexcept:
    """`run`, without preparing a loop for the small arrays whose time would go into it."""
    cdef char* pointers[3]
    cdef int k
    if size > kBlock:
        run(block, parameters, dtype, reads_output, operands, arrays, size)
        return
    for k in range(operands):
        pointers[k] = arrays[k].data
    block(pointers, size, parameters)
