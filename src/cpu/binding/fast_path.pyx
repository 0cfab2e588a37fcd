# The fast path of activations. It serves exact NumPy arrays and tensors of registered types that
# are contiguous and need no conversion, with the op's default parameters, and says NotImplemented
# to everything else, errors included: the call cache and the Python layer then serve or explain it.
# It must therefore check whatever the Python layer checks, before anything is written.
#
# Tensors on a GPU go the same way, once the Python layer has found their device fit and registered
# it: their framework's allocator, its current stream, and the device module's C functions.

cdef enum:
    MAX_TENSOR_TYPES = 8
    MAX_DEVICES = 64


# The fast path's work: an op's kernels by dtype (and accumulation), and what a device module has
# to know to do the same.
cdef struct Work:
    const ElementwiseKernel* kernels
    const double* parameters
    int which
    bint backward  # 0 or 1
    bint accumulate
    bint casts  # under autocast it may be computed in another dtype


cdef struct FitDevice:
    DLDevice device
    const DeviceTable* table
    const DeviceCall* activation[2]  # forward, backward


cdef FitDevice[MAX_DEVICES] fit_devices
cdef int fit_device_count = 0


def register_device(tuple device, table_capsule):
    """Let tensors on this device, which has been found fit, take the fast path."""
    global fit_device_count
    cdef FitDevice row
    row.device = DLDevice(device[0], device[1])
    row.table = <DeviceTable*>PyCapsule_GetPointer(table_capsule, "fastact_device_table")
    row.activation[0] = device_call(row.table, kActivationForward)
    row.activation[1] = device_call(row.table, kActivationBackward)
    kept_alive.append(table_capsule)
    with registering:
        if fit_device_count < MAX_DEVICES:
            fit_devices[fit_device_count] = row
            fit_device_count += 1  # last: readers take no lock


cdef const FitDevice* fit_device_of(DLDevice device) noexcept:
    cdef int i
    for i in range(fit_device_count):
        if same_device(fit_devices[i].device, device):
            return &fit_devices[i]
    return NULL


cdef const DeviceTable* table_of(DLDevice device) noexcept:
    cdef const FitDevice* fit = fit_device_of(device)
    if fit is NULL:
        return NULL
    return fit.table


cdef const DeviceCall* device_call(const DeviceTable* device, const CallTable& table) noexcept:
    """The device's function for calls of a table; NULL: it has none for these."""
    cdef int k
    for k in range(device.call_count):
        if not strcmp(device.calls[k].name, table.name) and device.calls[k].size == table.size:
            return &device.calls[k]
    return NULL


# A class of tensors, and what to ask its framework. `kept_alive` holds the objects; NULL: none.
cdef struct TensorType:
    PyTypeObject* type
    DLPackExchangeAPI* api
    bint has_gradients
    bint has_negation
    # Functions of torch (`foreign.torch_state`), or NULL; `kept_alive` holds them.
    PyObject* mark_written       # (tuple of tensors): raise their version counters
    PyObject* records_gradients  # (): whether operations on tensors are recorded now
    PyObject* any_autocast       # (): whether autocast is on, for any kind of device
    PyObject* forward_mode       # dict whose "_current_level" is >= 0 while tangents may be there


cdef TensorType[MAX_TENSOR_TYPES] tensor_types
cdef int tensor_type_count = 0
cdef list kept_alive = []
cdef object registering = Lock()


def register_tensor_type(object tensor_type, api_capsule, tuple state=None):
    """Let tensors of exactly this type take the fast path and the call cache.

    state: of torch, what `foreign.torch_state` tells.
    """
    global tensor_type_count
    api = <DLPackExchangeAPI*>PyCapsule_GetPointer(api_capsule, "dlpack_exchange_api")
    if api.version.major != 1 or api.borrow is NULL:
        return
    # All that takes Python code happens before the lock, which a fork may find held: nothing else
    # is done under it than filling in a row.
    row = TensorType(
        <PyTypeObject*>tensor_type,
        api,
        hasattr(tensor_type, "requires_grad"),
        hasattr(tensor_type, "is_neg"),
        NULL,
        NULL,
        NULL,
        NULL,
    )
    if state is not None:
        row.mark_written = PyTuple_GET_ITEM(state, 0)
        row.records_gradients = PyTuple_GET_ITEM(state, 1)
        row.any_autocast = PyTuple_GET_ITEM(state, 2)
        row.forward_mode = PyTuple_GET_ITEM(state, 3)
    if tensor_type_known(row.type) is not NULL:
        return
    kept_alive.append((tensor_type, api_capsule, state))
    with registering:
        if tensor_type_known(row.type) is NULL and tensor_type_count < MAX_TENSOR_TYPES:
            tensor_types[tensor_type_count] = row
            tensor_type_count += 1  # last: readers take no lock


cdef TensorType* tensor_type_known(PyTypeObject* tensor_type) noexcept:
    cdef int i
    for i in range(tensor_type_count):
        if tensor_types[i].type is tensor_type:
            return &tensor_types[i]
    return NULL


cdef bint records_gradient(object x, TensorType* kind) except -1:
    """Whether a gradient of it would have to be recorded."""
    if not (kind.has_gradients and x.requires_grad):
        return False
    return kind.records_gradients is NULL or (<object>kind.records_gradients)()


cdef bint is_negated(object x, TensorType* kind) except -1:
    """Whether its memory holds the values with the other sign."""
    return kind.has_negation and x.is_neg()


cdef bint may_have_tangents(TensorType* kind) except -1:
    """Whether a level of forward mode is open, so that a tensor may carry what memory does not."""
    cdef PyObject* level
    level = PyDict_GetItem(<dict>kind.forward_mode, "_current_level")
    return level is not NULL and <object>level >= 0


# Questions to torch's libraries, so that an operation that somebody looks at goes by torch's
# dispatcher (`foreign._ask_torch`): C++'s functions by their addresses; before that, none.
ctypedef cpp_bool (*AsksKey)(uint16_t) noexcept
ctypedef cpp_bool (*Asks)() noexcept


cdef struct Watchers:
    AsksKey is_included  # whether this thread's dispatch has a key
    uint16_t modes, tracer  # keys
    Asks has_callbacks, has_function_mode
    PyObject* looks  # (): whether a mode of functions is more than a device's


cdef Watchers watchers


def ask_torch(
    size_t is_included, uint16_t modes, uint16_t tracer, size_t has_callbacks,
    size_t has_function_mode, looks
):
    """Learn how torch is asked whether somebody looks at each operation: see `is_watched`."""
    kept_alive.append(looks)
    watchers.looks = <PyObject*>looks
    watchers.has_callbacks = <Asks>has_callbacks
    watchers.has_function_mode = <Asks>has_function_mode
    watchers.modes, watchers.tracer = modes, tracer
    watchers.is_included = <AsksKey>is_included  # last: readers take no lock


cdef bint watched() except -1:
    if watchers.is_included is NULL:
        return False
    if (
        watchers.is_included(watchers.modes) or watchers.is_included(watchers.tracer)
        or watchers.has_callbacks()
    ):
        return not inside_operator()
    return watchers.has_function_mode() and not inside_operator() and (<object>watchers.looks)()


def is_watched():
    """Whether a tracer, a mode or a profiler looks at each of torch's operations in this thread."""
    return watched()


def is_inside_operator():
    """Whether this thread computes an operator: its tensors are plain."""
    return inside_operator()


def enter_operator(bint inside):
    """Tell whether this thread computes an operator, at which nobody looks again; give what was."""
    cdef bint before = inside_operator()
    (&inside_operator())[0] = inside
    return before


cdef bint is_for_dispatcher(TensorType* kind) except -1:
    """Whether torch's dispatcher, not memory alone, is to say what becomes of tensors."""
    return kind.forward_mode is not NULL and (may_have_tangents(kind) or watched())


cdef bint may_cast(TensorType* kind) except -1:
    """Whether autocast is on."""
    return kind.any_autocast is not NULL and (<object>kind.any_autocast)()


cdef int mark_written(TensorType* kind, tuple tensors) except -1:
    """Raise the version counters of tensors that were written, as an operation in place does."""
    if kind.mark_written is not NULL:
        (<object>kind.mark_written)(tensors)
    return 0


cdef bint same_device(DLDevice a, DLDevice b) noexcept:
    return a.device_type == b.device_type and a.device_id == b.device_id


cdef inline bint borrow(object x, TensorType* kind, DLTensor* to) except -1:
    """Describe a tensor, a contiguous one without strides; False: Python finds out why."""
    cdef int64_t expected = 1
    cdef bint contiguous = True
    cdef int i
    try:
        kind.api.borrow(<void*>x, to)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False
    if problem_of(to[0]) is not NULL:
        return False
    if to.strides is not NULL:
        for i in range(to.ndim - 1, -1, -1):
            contiguous &= to.shape[i] == 1 or to.strides[i] == expected
            expected *= to.shape[i]
    if contiguous:
        to.strides = NULL
    return True


cdef inline bint quick_numpy(object x, ArrayArgument* to, bint writes) except -1:
    """Describe a C-contiguous, aligned, native array; False if it is anything else."""
    cdef cnp.ndarray a
    if not PyArray_CheckExact(x):
        return False
    a = x
    to.dtype = dtype_of_numpy(a)
    if to.dtype < 0 or not (
        PyArray_IS_C_CONTIGUOUS(a) and PyArray_ISALIGNED(a) and PyArray_ISNOTSWAPPED(a)
    ):
        return False
    if writes and not cnp.PyArray_ISWRITEABLE(a):
        return False
    to.data, to.ndim = <char*>cnp.PyArray_DATA(a), cnp.PyArray_NDIM(a)
    to.shape = <const int64_t*>cnp.PyArray_DIMS(a)
    to.strides = NULL
    to.device_type, to.device = kDLCPU, 0
    return True


cdef bint quick_tensor(object x, TensorType* kind, ArrayArgument* to) except -1:
    """Describe a contiguous tensor that may be used as it is; False if it is anything else."""
    cdef DLTensor tensor
    cdef TensorType* own
    if Py_TYPE(x) is not kind.type:
        own = tensor_type_known(Py_TYPE(x))
        if own is NULL or own.api is not kind.api:
            return False
    if records_gradient(x, kind) or is_negated(x, kind):
        return False
    if not borrow(x, kind, &tensor) or tensor.strides is not NULL:
        return False
    to.dtype = dtype_of_dlpack(tensor.dtype)
    if not 0 <= to.dtype < kDTypes:
        return False
    to.data, to.ndim = <char*>tensor.data + tensor.byte_offset, tensor.ndim
    to.shape = tensor.shape
    to.strides = NULL
    to.device_type, to.device = tensor.device.device_type, tensor.device.device_id
    return not <intptr_t>to.data % item_size(to.dtype) or count_of(to.ndim, to.shape) == 0


cdef inline bint quick_match(const ArrayArgument* a, const ArrayArgument* b) noexcept:
    """Tell whether they have one dtype, device and shape."""
    cdef int i
    if a.dtype != b.dtype or a.device_type != b.device_type or a.device != b.device:
        return False
    if a.ndim != b.ndim:
        return False
    for i in range(a.ndim):
        if a.shape[i] != b.shape[i]:
            return False
    return True


cdef inline bint quick_apart(
    const ArrayArgument* a, const ArrayArgument* b, int64_t bytes
) noexcept:
    """Tell whether the memory is equal or disjoint."""
    return not bytes or a.data == b.data or a.data + bytes <= b.data or b.data + bytes <= a.data


cdef object quick(
    const Work* work, int inputs, PyObject** values, object out, bint keep_inputs
):
    """Run an op by the fast path. NotImplemented: the Python layer must look.

    keep_inputs: an output that is an input would destroy what the caller saves for backward.
    """
    cdef ArrayArgument[3] arrays
    cdef int k
    cdef int64_t size, bytes
    cdef object first = <object>values[0]
    cdef TensorType* kind = NULL
    cdef const FitDevice* fit = NULL
    cdef const DeviceCall* remote = NULL
    if not PyArray_CheckExact(first):
        kind = tensor_type_known(Py_TYPE(first))
        if kind is NULL or is_for_dispatcher(kind) or (work.casts and may_cast(kind)):
            return NotImplemented
    for k in range(inputs):
        x = <object>values[k]
        if not (
            quick_numpy(x, &arrays[k], False) if kind is NULL
            else quick_tensor(x, kind, &arrays[k])
        ) or (k and not quick_match(&arrays[0], &arrays[k])):
            return NotImplemented
    if arrays[0].device_type != kDLCPU:
        fit = fit_device_of(DLDevice(arrays[0].device_type, arrays[0].device))
        if fit is not NULL:
            remote = fit.activation[work.backward]
        if remote is NULL:
            return NotImplemented
    size = count_of(arrays[0].ndim, arrays[0].shape)
    bytes = size * item_size(arrays[0].dtype)
    if out is not None:
        if not (
            quick_numpy(out, &arrays[inputs], True) if kind is NULL
            else quick_tensor(out, kind, &arrays[inputs])
        ) or not quick_match(&arrays[0], &arrays[inputs]):
            return NotImplemented
        for k in range(inputs):
            if not quick_apart(&arrays[k], &arrays[inputs], bytes):
                return NotImplemented
        if keep_inputs and arrays[0].data == arrays[inputs].data:
            return NotImplemented
    elif work.accumulate:
        return NotImplemented
    else:
        arrays[inputs] = arrays[0]
    if kind is not NULL:
        return quick_on_tensors(work, kind, remote, inputs + 1, arrays, size, out)
    fresh = out is None
    if fresh:
        out = PyArray_NewLikeArray(first, cnp.NPY_CORDER, NULL, 0)
        arrays[inputs].data = <char*>cnp.PyArray_DATA(out)
    run_quick(work, inputs + 1, arrays, size)
    return out[()] if fresh and arrays[0].ndim == 0 else out


cdef object quick_on_tensors(
    const Work* work, TensorType* kind, const DeviceCall* remote, int operands,
    ArrayArgument* arrays, int64_t size, object out
):
    """The rest of `quick` for tensors that passed it, on the CPU (remote: NULL) or a device."""
    cdef DLManagedTensorVersioned* made = NULL
    cdef DLDevice device = DLDevice(arrays[0].device_type, arrays[0].device)
    cdef void* stream = NULL
    if out is None:
        made = new_tensor(
            kind.api, device, arrays[0].dtype, arrays[0].ndim, arrays[0].shape, NULL
        )
        arrays[operands - 1].data = <char*>made.dl_tensor.data + made.dl_tensor.byte_offset
    try:
        if remote is NULL:
            run_quick(work, operands, arrays, size)
        elif size > 0:
            kind.api.current_stream(device.device_type, device.device_id, &stream)
            run_remote(work, remote, stream, operands, arrays)
    except BaseException:
        if made is not NULL:
            made.deleter(made)
        raise
    if made is not NULL:
        return hand_over(made, kind.api)
    mark_written(kind, (out,))
    return out


cdef int run_remote(
    const Work* work, const DeviceCall* remote, void* stream, int operands,
    const ArrayArgument* arrays
) except -1:
    """Run what a call by name would run, without its checks, which these arrays have passed."""
    cdef ActivationCall call
    memset(&call, 0, sizeof(call))
    memcpy(call.data, arrays, operands * sizeof(ArrayArgument))
    call.which, call.accumulate = work.which, work.accumulate
    memcpy(&call.parameters, work.parameters, sizeof(call.parameters))
    remote.run(&call, arrays[0].dtype, arrays[0].device, NULL, 0, stream)
    return 0


cdef inline void run_quick(
    const Work* work, int operands, const ArrayArgument* arrays, int64_t size
) noexcept:
    """Run the kernel; without an iterator, whose preparation takes most of a small array's time."""
    cdef char* pointers[3]
    cdef int k
    cdef int width = 2 if work.backward else 1
    cdef ElementwiseKernel kernel = work.kernels[arrays[0].dtype * width + work.accumulate]
    if size > kBlock:
        with nogil:
            run_elementwise(kernel, work.parameters, work.accumulate, operands, arrays)
        return
    for k in range(operands):
        pointers[k] = arrays[k].data
    kernel(pointers, size, work.parameters, 0)
