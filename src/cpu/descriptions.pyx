# What a call looks like: all that decides which checks it passes and which native functions it runs,
# as words that are the key of its plan (doors.pyx), and its arrays.
#
# Arrays and tensors are described by dtype, shape, strides, writability and which of them are one
# another; numbers and text by value; ops by their address, which the plan keeps alive. Anything else
# is not described, and its call takes the long way.

cdef enum:
    MAX_WORDS = 160   # of a description
    MAX_ARRAYS = 12   # of a call
    MAX_QUICK_AXES = 8


# One call: what decides which checks it passes and what it runs, as words, and its arrays.
cdef struct Description:
    int count
    int arrays
    int ops
    TensorType* kind  # NULL: NumPy
    DLDevice device
    int64_t largest   # elements
    uint64_t[MAX_WORDS] words
    PyObject* op[MAX_ARRAYS]           # ops, which words name by their address
    PyObject* array[MAX_ARRAYS]
    char* data[MAX_ARRAYS]
    int64_t[MAX_ARRAYS] low, high      # addresses of the first byte and past the last


cdef inline bint put(Description* call, uint64_t word) noexcept:
    if call.count == MAX_WORDS:
        return False
    call.words[call.count] = word
    call.count += 1
    return True


cdef enum:
    IS_ARRAY = 1
    IS_INTEGER
    IS_FLOAT
    IS_TUPLE
    IS_TEXT
    IS_CONSTANT
    IS_OP


cdef bint describe_array(
    Description* call, object x, char* data, int dtype, int ndim, const int64_t* shape,
    const int64_t* strides, int64_t unit, uint64_t flags
) noexcept:
    """Enter an array; strides: in `unit` bytes, NULL for C-contiguous."""
    cdef int64_t item = item_size(dtype), size = 1, low = 0, high = 0, step
    cdef int i, same
    if call.arrays == MAX_ARRAYS or ndim > MAX_QUICK_AXES or <intptr_t>data % item:
        return False
    for i in range(ndim):
        size *= shape[i]
    if size == 0:
        return False
    for same in range(call.arrays + 1):
        if same == call.arrays or call.data[same] == data:
            break
    if not put(
        call, IS_ARRAY | dtype << 4 | ndim << 8 | same << 16 | (strides is not NULL) << 24 | flags
    ):
        return False
    for i in range(ndim):
        if not put(call, <uint64_t>shape[i]):
            return False
    if strides is NULL:
        high = (size - 1) * item
    else:
        for i in range(ndim):
            step = strides[i] * unit
            if not put(call, <uint64_t>step):
                return False
            if step < 0:
                low += step * (shape[i] - 1)
            else:
                high += step * (shape[i] - 1)
    call.array[call.arrays] = <PyObject*>x
    call.data[call.arrays] = data
    call.low[call.arrays] = <intptr_t>data + low
    call.high[call.arrays] = <intptr_t>data + high + item
    call.arrays += 1
    call.largest = max(call.largest, size)
    return True


cdef bint describe_numpy(Description* call, cnp.ndarray a) noexcept:
    cdef int dtype = dtype_of_numpy(a)
    cdef const int64_t* strides = NULL
    if not PyArray_IS_C_CONTIGUOUS(a):
        strides = <const int64_t*>cnp.PyArray_STRIDES(a)
    if dtype < 0 or not PyArray_ISNOTSWAPPED(a) or call.kind is not NULL:
        return False
    return describe_array(
        call, a, <char*>cnp.PyArray_DATA(a), dtype, cnp.PyArray_NDIM(a),
        <const int64_t*>cnp.PyArray_DIMS(a), strides, 1, <uint64_t>cnp.PyArray_ISWRITEABLE(a) << 32,
    )


cdef bint describe_tensor_of(Description* call, object x, TensorType* kind) except -1:
    cdef DLTensor tensor
    cdef int64_t expected = 1
    cdef bint contiguous = True
    cdef int dtype, i
    if call.arrays and call.kind is not kind:
        return False
    if kind.has_gradients and x.requires_grad:
        return False
    if kind.has_negation and x.is_neg():
        return False
    try:
        kind.api.borrow(<void*>x, &tensor)
    except Exception:
        return False  # the Python layer finds out why
    dtype = dtype_of_dlpack(tensor.dtype)
    if dtype < 0 or tensor.data is NULL or (
        call.arrays and not same_device(call.device, tensor.device)
    ):
        return False
    if call.arrays == 0:
        call.kind = kind
        call.device = tensor.device
        if not put(call, <intptr_t>kind) or not put(
            call, <uint64_t>tensor.device.device_type << 32 | <uint32_t>tensor.device.device_id
        ):
            return False
    if tensor.strides is not NULL:
        for i in range(tensor.ndim - 1, -1, -1):
            contiguous &= tensor.shape[i] == 1 or tensor.strides[i] == expected
            expected *= tensor.shape[i]
    if contiguous:
        tensor.strides = NULL
    return describe_array(
        call, x, <char*>tensor.data + tensor.byte_offset, dtype, tensor.ndim, tensor.shape,
        tensor.strides, item_size(dtype), 0,
    )


cdef bint describe_text(Description* call, str text) except -1:
    cdef Py_ssize_t size, done
    cdef uint64_t word
    cdef const char* letters
    try:
        letters = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:  # it holds half of a character
        return False
    if not put(call, IS_TEXT | <uint64_t>size << 8):
        return False
    for done in range(0, size, sizeof(word)):
        word = 0
        memcpy(&word, letters + done, min(<Py_ssize_t>sizeof(word), size - done))
        if not put(call, word):
            return False
    return True


cdef bint describe_value(Description* call, object value, int depth) except -1:
    """Enter an argument, by value or by identity; False: of a kind that is not described."""
    cdef TensorType* kind
    cdef double number
    cdef uint64_t word
    cdef long long integer
    cdef int overflow = 0
    if PyArray_CheckExact(value):
        return describe_numpy(call, value)
    if value is None or value is True or value is False:
        return put(call, IS_CONSTANT) and put(call, <intptr_t><PyObject*>value)
    if PyLong_CheckExact(value):
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and put(call, IS_INTEGER) and put(call, <uint64_t>integer)
    if PyFloat_CheckExact(value):
        number = value
        memcpy(&word, &number, sizeof(word))
        return put(call, IS_FLOAT) and put(call, word)
    if PyTuple_CheckExact(value):
        if depth == 2 or not put(call, IS_TUPLE | <uint64_t>len(<tuple>value) << 8):
            return False
        for inside in <tuple>value:
            if not describe_value(call, inside, depth + 1):
                return False
        return True
    if PyUnicode_CheckExact(value):
        return describe_text(call, value)
    if isinstance(value, (FastActivation, Doors)) and call.ops < MAX_ARRAYS:
        call.op[call.ops] = <PyObject*>value
        call.ops += 1
        return put(call, IS_OP) and put(call, <intptr_t><PyObject*>value)
    kind = tensor_type_known(Py_TYPE(value))
    return kind is not NULL and describe_tensor_of(call, value, kind)


cdef bint describe(Description* call, tuple args, dict kwargs) except -1:
    cdef Py_ssize_t at = 0
    cdef PyObject* name
    cdef PyObject* value
    call.count = 1  # the first word follows last
    call.arrays = call.ops = 0
    call.kind = NULL
    call.largest = 0
    for argument in args:
        if not describe_value(call, argument, 0):
            return False
    while PyDict_Next(kwargs, &at, &name, &value):
        if not describe_text(call, <object>name) or not describe_value(call, <object>value, 0):
            return False
    call.words[0] = resolve_threads(call.largest) > 1  # with many, workspaces are asked for
    return call.arrays > 0


cdef bint is_on_cpu(const Description* call) noexcept:
    return call.kind is NULL or call.device.device_type == kDLCPU
