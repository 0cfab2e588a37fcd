# The key of a call: everything that decides which checks the call passes, which native functions it
# runs, and with what arguments but the addresses of its arrays. Two calls of an entry point with
# equal keys run the same call plan (call_cache.pyx).
#
#   arrays and tensors   dtype (by its address, where no kernel reads such bytes: codes), shape,
#                        strides, writability, device, which begin at one address,
#                        which of them require grad while gradients are recorded; on a device the
#                        alignment to 16 bytes, on which the choice of a kernel depends
#   numbers of NumPy's   beside NumPy's arrays as arrays without axes, in memory of their own
#   numbers and text     by type and value (NumPy's numbers beside tensors, too); keywords by name,
#                        apart from positional arguments
#   ops, dtypes          by their address; the plan keeps them alive. What may mean another dtype in
#                        the next call, as a class with an attribute of that name, has no key
#   surroundings         the thread count that a call made now may use, and the instruction set
#
# Anything else has no key (a list, an integer of NumPy's, an empty array), and its call takes the
# slow path. An array that turns out to be no operand of the op, as one without axes in the place of
# a number, makes the call unrecorded; a number of NumPy's there makes plans for each of its values:
# see PlanDraft. An entry point that records nothing takes what requires grad as it is.

cdef enum:
    MAX_WORDS = 160   # of a key
    MAX_ARRAYS = 12   # of a call
    MAX_KEY_AXES = 8


cdef struct CallKey:
    Py_ssize_t count
    int arrays
    int ops
    bint may_record, records  # gradients
    TensorType* kind  # NULL: NumPy
    DLDevice device
    uint64_t[MAX_WORDS] words
    PyObject* op[MAX_ARRAYS]           # ops, which words name by their address
    PyObject* array[MAX_ARRAYS]        # one for each time that an array is given
    bint is_scalar[MAX_ARRAYS]         # a number of NumPy's
    char* data[MAX_ARRAYS]
    int64_t[MAX_ARRAYS] low, high      # addresses of the first byte and past the last


cdef inline bint put(CallKey* key, uint64_t word) noexcept:
    """Add a word; True. A key that has counted more words than it holds is none in the end."""
    if key.count < MAX_WORDS:
        key.words[key.count] = word
    key.count += 1
    return True


cdef enum:
    IS_ARRAY = 1
    IS_INTEGER
    IS_FLOAT
    IS_TUPLE
    IS_TEXT
    IS_CONSTANT
    IS_OP
    IS_KEYWORDS

cdef enum:  # bits of an array's first word
    WRITABLE_BIT = 32
    RECORDS_BIT
    SCALAR_BIT
    RESIDUE_BIT  # on a device: the last bits of its address, kAlignedBits of them
    BYTES_BIT = RESIDUE_BIT + kAlignedBits  # its dtype stands before it


cdef bint put_array(CallKey* key, object x, const ArrayArgument* a, uint64_t flags) noexcept:
    cdef int64_t item = item_size(a.dtype)
    cdef int i, same
    if key.arrays == MAX_ARRAYS or a.ndim > MAX_KEY_AXES or size_of(a[0]) == 0:
        return False
    if <intptr_t>a.data & (item - 1):
        return False
    for same in range(key.arrays + 1):
        if same == key.arrays or key.data[same] == a.data:
            break
    put(
        key, IS_ARRAY | a.dtype << 4 | a.ndim << 8 | same << 16 | (a.strides is not NULL) << 24
        | <uint64_t>(not a.is_readonly) << WRITABLE_BIT | flags
    )
    for i in range(a.ndim):
        put(key, <uint64_t>a.shape[i])
    for i in range(a.ndim if a.strides is not NULL else 0):
        put(key, <uint64_t>(a.strides[i] * a.stride_unit))
    key.array[key.arrays] = <PyObject*>x
    key.is_scalar[key.arrays] = False
    key.data[key.arrays] = a.data
    find_reach(a, item, &key.low[key.arrays], &key.high[key.arrays])
    key.arrays += 1
    return True


# The classes of NumPy's numbers by dtype; those of bfloat16 are in no key.
cdef PyTypeObject* scalar_types[4]
scalar_types[:] = [&PyHalfArrType_Type, NULL, &PyFloatArrType_Type, &PyDoubleArrType_Type]


cdef bint put_scalar(CallKey* key, object x, int dtype) noexcept:
    """Enter a NumPy scalar: as an array; beside tensors as a value, its dtype with IS_FLOAT."""
    cdef ArrayArgument a
    # The numbers of all these dtypes lie there.
    cdef char* data = <char*>&(<PyDoubleScalarObject*>x).obval
    cdef uint64_t word = 0
    if key.kind is NULL:
        memset(&a, 0, sizeof(a))
        a.data, a.dtype, a.is_readonly = data, dtype, True
        if not put_array(key, x, &a, <uint64_t>1 << SCALAR_BIT):
            return False
        key.is_scalar[key.arrays - 1] = True
        return True
    memcpy(&word, data, item_size(dtype))
    return put(key, IS_FLOAT | <uint64_t>(1 + dtype) << 8) and put(key, word)


cdef bint put_tensor(CallKey* key, object x, TensorType* kind) except -1:
    cdef ArrayArgument a
    cdef DLDevice device
    cdef bint records, is_read
    cdef uint64_t flags
    a.stride_unit = 0
    if key.kind is NULL and is_for_dispatcher(kind):
        return False
    records = records_gradient(x, kind)
    is_read = read_tensor(x, kind, &a)
    if (
        key.arrays and (key.kind is NULL or key.kind.api is not kind.api)
        or records and kind.records_gradients is NULL or not is_read and a.stride_unit != 1
    ):
        return False
    key.records |= records and key.may_record
    device = DLDevice(a.device_type, a.device)
    if key.arrays and not same_device(key.device, device):
        return False
    if key.arrays == 0:
        key.kind = kind
        key.device = device
        put(key, <intptr_t>kind)
        put(key, <uint64_t>device.device_type << 32 | <uint32_t>device.device_id)
    flags = <uint64_t>records << RECORDS_BIT
    if device.device_type != kDLCPU:
        flags |= residue(a.data) << RESIDUE_BIT
    return put_array(key, x, &a, flags) if is_read else put_bytes(key, x, &a, flags)


cdef bint put_bytes(CallKey* key, object x, ArrayArgument* a, uint64_t flags) except -1:
    """Enter an array of codes, which kernels know as bools: its dtype by identity."""
    if a.stride_unit != 1 or not put_value(key, x.dtype, 0):
        return False
    a.dtype = kBool
    return put_array(key, x, a, flags | <uint64_t>1 << BYTES_BIT)


cdef inline uint64_t residue(const char* data) noexcept:
    """Give the part of an address on which launches on a device may depend."""
    return <uintptr_t>data & ((1 << kAlignedBits) - 1)


cdef bint put_text(CallKey* key, str text) except -1:
    cdef Py_ssize_t size, done
    cdef uint64_t word
    cdef const char* letters
    try:
        letters = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:  # it holds half of a character
        return False
    put(key, IS_TEXT | <uint64_t>size << 8)
    for done in range(0, size, sizeof(word)):
        word = 0
        memcpy(&word, letters + done, min(<Py_ssize_t>sizeof(word), size - done))
        put(key, word)
    return True


cdef inline bint is_fixed(PyTypeObject* cls) noexcept:
    """A class of the interpreter's or of an extension's: nobody gives it other attributes."""
    return not PyType_HasFeature(cls, Py_TPFLAGS_HEAPTYPE)


cdef bint is_dtype(object value) noexcept:
    """Tell whether a value means one dtype for good: NumPy asks others for their `dtype`."""
    if PyType_CheckExact(value):
        return is_fixed(<PyTypeObject*>value)
    if strcmp(Py_TYPE(value).tp_name, "torch.dtype") == 0:
        return is_fixed(Py_TYPE(value))
    return isinstance(value, cnp.dtype)


cdef bint put_value(CallKey* key, object value, int depth) except -1:
    """Enter an argument, by value or by identity; False: of a type that no key holds."""
    cdef ArrayArgument a
    cdef TensorType* kind
    cdef double number
    cdef uint64_t word
    cdef long long integer
    cdef int overflow = 0, dtype
    if cnp.PyArray_CheckExact(value):
        if key.kind is not NULL:
            return False
        if read_numpy(value, &a):
            return put_array(key, value, &a, 0)
        return cnp.PyArray_ITEMSIZE(value) == 1 and put_bytes(key, value, &a, 0)
    kind = tensor_type_known(Py_TYPE(value))
    if kind is not NULL:
        return put_tensor(key, value, kind)
    if value is None or value is True or value is False:
        return put(key, IS_CONSTANT) and put(key, <intptr_t><PyObject*>value)
    if PyLong_CheckExact(value):
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and put(key, IS_INTEGER) and put(key, <uint64_t>integer)
    if PyFloat_CheckExact(value):
        number = value
        memcpy(&word, &number, sizeof(word))
        return put(key, IS_FLOAT) and put(key, word)
    if PyTuple_CheckExact(value):
        if depth == 2:
            return False
        put(key, IS_TUPLE | <uint64_t>len(<tuple>value) << 8)
        for inside in <tuple>value:
            if not put_value(key, inside, depth + 1):
                return False
        return True
    if PyUnicode_CheckExact(value):
        return put_text(key, value)
    if key.ops < MAX_ARRAYS and (isinstance(value, CachedCall) or is_dtype(value)):
        key.op[key.ops] = <PyObject*>value
        key.ops += 1
        return put(key, IS_OP) and put(key, <intptr_t><PyObject*>value)
    for dtype in range(kF16, kF64 + 1):
        if Py_TYPE(value) is scalar_types[dtype]:
            return put_scalar(key, value, dtype)
    return False


cdef bint make_key(CallKey* key, tuple args, dict kwargs, bint may_record) except -1:
    """False: this call has no key. may_record: gradients; whether it does is in the key then."""
    cdef Py_ssize_t at = 0
    cdef PyObject* name
    cdef PyObject* value
    key.count = key.arrays = key.ops = 0
    key.may_record, key.records = may_record, False
    key.kind = NULL
    put(key, <uint64_t>get_thread_limit() << 32 | <uint32_t>isa_changes)
    for argument in args:
        if not put_value(key, argument, 0):
            return False
    if kwargs:
        put(key, IS_KEYWORDS)
        while PyDict_Next(kwargs, &at, &name, &value):
            if not PyUnicode_CheckExact(<object>name):
                return False
            if not put_text(key, <object>name) or not put_value(key, <object>value, 0):
                return False
    return key.arrays > 0 and key.count <= MAX_WORDS


cdef bint is_on_cpu(const CallKey* key) noexcept:
    return key.kind is NULL or key.device.device_type == kDLCPU
