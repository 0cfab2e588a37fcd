# Activations: y = f(x), and dx = dy f'(x), over whole arrays.

cdef enum:
    MAX_PARAMETERS = 4

ACTIVATIONS = tuple([kActivationNames[i].decode() for i in range(kActivations)])


cdef void run(
    Block block, const double* parameters, int dtype, bint reads_output, int operands,
    const Operand* arrays, int64_t size
) noexcept:
    """Run a block function over arrays of one shape. All of them are known to be right."""
    cdef Loop loop
    if size == 0:
        return
    prepare(&loop, block, parameters, dtype, reads_output, operands, arrays)
    with nogil:
        run_loop(&loop)


cdef void unpack(tuple values, double* parameters) except *:
    cdef int i
    for i in range(len(values)):
        parameters[i] = values[i]


def activation_forward(int which, View x, View y, tuple parameters):
    """y OUT = f(x IN); same shape, dtype and device, equal or disjoint memory."""
    cdef double p[MAX_PARAMETERS]
    cdef Operand[2] arrays = [x.operand, y.operand]
    unpack(parameters, p)
    run(table.forward[which][x.dtype], p, x.dtype, False, 2, arrays, x.size)


def activation_backward(int which, View dy, View x, View dx, tuple parameters, bint accumulate):
    """dx OUT = dy IN * f'(x IN), or dx IN/OUT += of the same."""
    cdef double p[MAX_PARAMETERS]
    cdef Operand[3] arrays = [dy.operand, x.operand, dx.operand]
    unpack(parameters, p)
    run(table.backward[which][x.dtype][accumulate], p, x.dtype, accumulate, 3, arrays, x.size)


def exponential(View x, View y):
    """y OUT = exp(x IN) by the exponential of math.h, within its range; for its tests."""
    cdef double p[1]
    cdef Operand[2] arrays = [x.operand, y.operand]
    run(table.exp[x.dtype == kF64], p, x.dtype, False, 2, arrays, x.size)


def exponential_bound():
    """The error that math.h states for `exponential`, in ULP."""
    return kExpUlp


def copy(cnp.ndarray destination, cnp.ndarray source):
    """Copy bytes by memcpy, each thread one share: the ceiling that benchmarks compare with.

    Both arrays are C-contiguous and of one size.
    """
    cdef int64_t size = source.nbytes
    cdef int threads = resolve_threads(source.size)
    cdef int64_t share = (size // threads + 63) // 64 * 64
    cdef char* to = <char*>cnp.PyArray_DATA(destination)
    cdef char* origin = <char*>cnp.PyArray_DATA(source)
    cdef int i
    with nogil:
        if threads == 1:
            memcpy(to, origin, size)
        else:
            for i in prange(threads, schedule="static", num_threads=threads):
                memcpy(to + i * share, origin + i * share, min(share, size - i * share))


# ---------------------------------------------------------------------------------------------
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


def register_tensor_type(object tensor_type, api_capsule):
    """Let tensors of exactly this type, on the CPU, take the short cut."""
    global tensor_type_count
    cdef int i
    for i in range(tensor_type_count):
        if tensor_types[i].type is <PyTypeObject*>tensor_type:
            return
    if tensor_type_count == MAX_TENSOR_TYPES:
        return
    api = <DLPackExchangeAPI*>PyCapsule_GetPointer(api_capsule, "dlpack_exchange_api")
    if api.version.major != 1 or api.borrow is NULL:
        return
    kept_alive.append((tensor_type, api_capsule))
    tensor_types[tensor_type_count] = TensorType(
        <PyTypeObject*>tensor_type,
        api,
        hasattr(tensor_type, "requires_grad"),
        hasattr(tensor_type, "is_neg"),
    )
    tensor_type_count += 1


cdef TensorType* tensor_type_of(object x) noexcept:
    cdef int i
    for i in range(tensor_type_count):
        if tensor_types[i].type is Py_TYPE(x):
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
    if dtype[0] < 0 or tensor.device.device_type != kDLCPU:
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
        kind = tensor_type_of(first)
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


cdef class FastActivation:
    """The compiled half of an activation: its three doors, short cut first.

    The Python half gives `_call`, `_forward` and `_backward`. They take the same arguments, and
    serve, or refuse with an explanation, whatever the short cut does not.
    """

    cdef readonly int _which
    cdef int parameter_count
    cdef double[MAX_PARAMETERS] defaults

    def __init__(self, str name, tuple defaults):
        self._which = ACTIVATIONS.index(name)
        self.parameter_count = len(defaults)
        unpack(defaults, self.defaults)

    cdef object quick_forward(self, x, tuple args, dict kwargs, bint keep_inputs):
        """NotImplemented unless the only argument beside x is `out`."""
        cdef PyObject* value = <PyObject*>x
        cdef object out = None
        if args:
            if kwargs or len(args) != 1 or self.parameter_count:
                return NotImplemented
            out = args[0]
        elif kwargs:
            if len(kwargs) != 1 or "out" not in kwargs:
                return NotImplemented
            out = kwargs["out"]
        return quick(
            &table.forward[self._which][0], self.defaults, 1, &value, out, False,
            keep_inputs,
        )

    def __call__(self, x, /, *args, **kwargs):
        result = self.quick_forward(x, args, kwargs, False)
        if result is NotImplemented:
            return self._call(x, *args, **kwargs)
        return result

    def forward(self, x, /, *args, **kwargs):
        """forward(x, ..., out=None) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Parameters
        ----------
        x : array
            As for the call. It is saved, not copied: do not change it before `backward`.
        ... : float
            The op's own parameters, as for the call.
        out : array, optional
            Where to write y. It may not share memory with x, which is saved.

        Returns
        -------
        y : array
        saved : tuple
            ``(x,)``

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.mish.forward(np.array([-1.0, 0.0, 1.0]))
        >>> fa.mish.backward(np.ones(3), *saved)
        array([0.0592..., 0.6       , 1.0490...])
        """
        result = self.quick_forward(x, args, kwargs, True)
        if result is NotImplemented:
            return self._forward(x, *args, **kwargs)
        return result, (x,)

    def backward(self, dy, x, /, *args, **kwargs):
        """backward(dy, x, ..., out=None, accumulate=False) -> dx

        dx = dy f'(x), in one pass over dy and x.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x : array
            What `forward` saved.
        ... : float
            The op's own parameters, as told to `forward`.
        out : array, optional
            Where to write dx; it may be dy or x itself.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([-1.0, 0.0, 1.0])
        >>> dx = np.zeros(3)
        >>> fa.mish.backward(1.0, x, out=dx, accumulate=True)
        array([0.0592..., 0.6       , 1.0490...])
        """
        cdef PyObject** values = [<PyObject*>dy, <PyObject*>x]
        cdef Py_ssize_t understood = 0
        out = None
        accumulate = False
        if kwargs:
            if "out" in kwargs:
                out = kwargs["out"]
                understood += 1
            if "accumulate" in kwargs:
                accumulate = kwargs["accumulate"]
                understood += 1
        if not args and len(kwargs) == understood and type(accumulate) is bool:
            result = quick(
                &table.backward[self._which][0][0], self.defaults, 2, values, out, accumulate,
                False,
            )
            if result is not NotImplemented:
                return result
        return self._backward(dy, x, *args, **kwargs)
