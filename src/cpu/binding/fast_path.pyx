# Arrays and tensors as compiled code takes them, without the Python layer: for the fast path of
# activations and for the call cache.
#
# The fast path serves exact NumPy arrays and tensors of registered types that are contiguous and
# need no conversion, with the op's default parameters, and says NotImplemented to everything else,
# errors included: the call cache and the Python layer then serve or explain it. It must therefore
# check whatever the Python layer checks, before anything is written. It has no key and no plan:
# shapes may change from call to call.
#
# Tensors on a GPU go the same way, once the Python layer has found their device fit and registered
# it: their framework's allocator, its current stream, and the device module's C functions.

cdef enum:
    MAX_TENSOR_TYPES = 8


cdef struct FitDevice:
    DLDevice device
    const DeviceTable* table
    const DeviceCall* activation[2]  # forward, backward


cdef vector[FitDevice] fit_devices


def register_device(tuple device, table_capsule):
    """Let tensors on this device, which has been found fit, take the fast path."""
    cdef FitDevice row
    row.device = DLDevice(device[0], device[1])
    row.table = <DeviceTable*>PyCapsule_GetPointer(table_capsule, "fastact_device_table")
    row.activation[0] = device_call(row.table, kActivationForward)
    row.activation[1] = device_call(row.table, kActivationBackward)
    kept_alive.append(table_capsule)
    fit_devices.push_back(row)


cdef const FitDevice* fit_device_of(DLDevice device) noexcept:
    """Find a device, until the next one is registered; NULL: it is not in use."""
    cdef size_t i
    for i in range(fit_devices.size()):
        if same_device(fit_devices[i].device, device):
            return &fit_devices[i]
    return NULL


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


def register_tensor_type(object tensor_type, api_capsule, tuple state=None):
    """Let tensors of exactly this type take the fast path and the call cache.

    state: of torch, what `foreign.torch_state` tells.
    """
    global tensor_type_count
    cdef TensorType row
    memset(&row, 0, sizeof(row))
    row.type, row.api = <PyTypeObject*>tensor_type, exchange_api(api_capsule)
    kept_alive.append((tensor_type, api_capsule, state))
    row.has_gradients = hasattr(tensor_type, "requires_grad")
    row.has_negation = hasattr(tensor_type, "is_neg")
    if state is not None:
        row.mark_written = PyTuple_GET_ITEM(state, 0)
        row.records_gradients = PyTuple_GET_ITEM(state, 1)
        row.any_autocast = PyTuple_GET_ITEM(state, 2)
        row.forward_mode = PyTuple_GET_ITEM(state, 3)
    # From here on no Python code runs, so that the interpreter's lock is held throughout.
    if tensor_type_known(row.type) is NULL and tensor_type_count < MAX_TENSOR_TYPES:
        tensor_types[tensor_type_count] = row
        tensor_type_count += 1


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


cpdef bint is_watched() except -1:
    """Whether a tracer, a mode or a profiler looks at each of torch's operations in this thread."""
    if watchers.is_included is NULL:
        return False
    if (
        watchers.is_included(watchers.modes) or watchers.is_included(watchers.tracer)
        or watchers.has_callbacks()
    ):
        return not inside_operator()
    return watchers.has_function_mode() and not inside_operator() and (<object>watchers.looks)()


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
    cdef PyObject* level
    if kind.forward_mode is NULL:
        return False
    # With a level of forward mode open, a tensor may carry what memory does not.
    level = PyDict_GetItem(<dict>kind.forward_mode, "_current_level")
    return level is not NULL and <object>level >= 0 or is_watched()


cdef bint may_cast(TensorType* kind) except -1:
    """Whether autocast is on."""
    return kind.any_autocast is not NULL and (<object>kind.any_autocast)()


cdef int mark_written(TensorType* kind, tuple tensors) except -1:
    """Raise the version counters of tensors that were written, as an operation in place does."""
    if kind.mark_written is not NULL:
        (<object>kind.mark_written)(tensors)


cdef bint same_device(DLDevice a, DLDevice b) noexcept:
    return a.device_type == b.device_type and a.device_id == b.device_id


cdef bint read_tensor(object x, TensorType* kind, ArrayArgument* to) except -1:
    """Describe a tensor as `read_dlpack` does; False: Python finds out why.

    One of torch's may be negated: its memory holds the values with the other sign.
    """
    cdef DLTensor tensor
    if kind.has_negation and x.is_neg():
        return False
    try:
        kind.api.borrow(<void*>x, &tensor)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False
    return problem_of(tensor) is NULL and read_dlpack(&tensor, to)


cdef inline bint is_plain(object x, TensorType* kind, ArrayArgument* to) except -1:
    """Describe a contiguous array of a kind (NULL: NumPy's); False if it is anything else."""
    cdef TensorType* own
    if kind is NULL:
        if not cnp.PyArray_CheckExact(x) or not read_numpy(x, to):
            return False
    else:
        own = tensor_type_known(Py_TYPE(x))
        if (
            own is NULL or own.api is not kind.api or records_gradient(x, kind)
            or not read_tensor(x, kind, to)
        ):
            return False
    return to.strides is NULL and to.dtype < kDTypes and (
        not <intptr_t>to.data & (item_size(to.dtype) - 1) or size_of(to[0]) == 0
    )


cdef inline bint is_alike(const ArrayArgument* a, const ArrayArgument* b) noexcept:
    """Tell whether they have one dtype, device and shape."""
    cdef bint alike = (
        a.dtype == b.dtype and a.device_type == b.device_type and a.device == b.device
        and a.ndim == b.ndim
    )
    cdef int i
    for i in range(a.ndim if alike else 0):
        alike &= a.shape[i] == b.shape[i]
    return alike


cdef class FastPath:
    """The fast path of an entry point, before its cached calls."""

    cdef int which, inputs  # inputs: 0 where there is none, but of activations
    cdef Py_ssize_t parameters
    cdef bint gives_saved, saves_value  # `forward`
    cdef bint casts                     # under autocast the call may be one in another dtype
    cdef ParameterValues defaults

    cdef object serve(self, tuple args, dict kwargs):
        """NotImplemented unless all is as the fast path knows it."""
        cdef Py_ssize_t given = len(args), understood = 0
        cdef PyObject* out = NULL
        cdef PyObject* accumulate = NULL
        if given > self.inputs:
            if given > 2 or self.inputs == 2 or self.parameters or kwargs:
                return NotImplemented
            out = PyTuple_GET_ITEM(args, 1)
        elif kwargs:
            out = PyDict_GetItem(kwargs, "out")
            understood = out is not NULL
            if self.inputs == 2:
                accumulate = PyDict_GetItem(kwargs, "accumulate")
                understood += accumulate is not NULL
            if understood < <Py_ssize_t>len(kwargs) or (
                accumulate is not NULL and type(<object>accumulate) is not bool
            ):
                return NotImplemented
        if given < self.inputs:
            return NotImplemented
        result = self.run(
            args, None if out is NULL else <object>out,
            accumulate is not NULL and <object>accumulate is True,
        )
        if self.gives_saved and result is not NotImplemented:
            return result, (result if self.saves_value else args[0],)
        return result

    cdef object run(self, tuple args, object out, bint accumulate):
        cdef ArrayArgument[3] arrays
        cdef ArrayArgument* made = &arrays[self.inputs]
        cdef DLManagedTensorVersioned* memory
        cdef TensorType* kind = NULL
        cdef const FitDevice* fit
        cdef const DeviceCall* remote = NULL
        cdef ActivationCall call
        cdef DLDevice device
        cdef int64_t size, bytes
        cdef bint is_new = out is None
        cdef int k
        first = args[0]
        if not cnp.PyArray_CheckExact(first):
            kind = tensor_type_known(Py_TYPE(first))
            if kind is NULL or is_for_dispatcher(kind) or (self.casts and may_cast(kind)):
                return NotImplemented
        for k in range(self.inputs):
            if not is_plain(<object>PyTuple_GET_ITEM(args, k), kind, &arrays[k]) or (
                k and not is_alike(&arrays[0], &arrays[k])
            ):
                return NotImplemented
        device = DLDevice(arrays[0].device_type, arrays[0].device)
        if device.device_type != kDLCPU:
            fit = fit_device_of(device)
            if fit is not NULL:
                remote = fit.activation[self.inputs - 1]
            if remote is NULL:
                return NotImplemented
        size = size_of(arrays[0])
        bytes = size * item_size(arrays[0].dtype)
        made[0] = arrays[0]
        if not is_new:
            if not is_plain(out, kind, made) or not is_alike(&arrays[0], made) or made.is_readonly:
                return NotImplemented
            if self.gives_saved and not self.saves_value and made.data == arrays[0].data:
                return NotImplemented  # it would destroy what the caller saves for backward
            for k in range(self.inputs):  # equal or disjoint
                if (
                    bytes and made.data != arrays[k].data
                    and arrays[k].data < made.data + bytes and made.data < arrays[k].data + bytes
                ):
                    return NotImplemented
        elif accumulate:
            return NotImplemented
        elif kind is NULL:
            out = PyArray_NewLikeArray(first, cnp.NPY_CORDER, NULL, 0)
            made.data = <char*>cnp.PyArray_DATA(out)
            self.compute(arrays, size, accumulate)
            return out[()] if made.ndim == 0 else out
        else:
            memory = new_tensor(kind.api, made)
            made.data = data_of(memory)
            out = hand_over(memory, kind.api)
        if remote is NULL:
            self.compute(arrays, size, accumulate)
        elif size > 0:
            # It is what a call by name would run, without its checks, which these arrays passed.
            memset(&call, 0, sizeof(call))
            memcpy(call.data, arrays, (self.inputs + 1) * sizeof(ArrayArgument))
            call.which, call.parameters, call.accumulate = self.which, self.defaults, accumulate
            remote.run(&call, made.dtype, made.device, NULL, 0, stream_of(kind.api, device))
        if kind is not NULL and not is_new:
            mark_written(kind, (out,))
        return out

    cdef inline void compute(
        self, const ArrayArgument* arrays, int64_t size, bint accumulate
    ) noexcept:
        """Run the kernel; without an iterator, whose preparation takes most of a small array's
        time."""
        cdef char* pointers[3]
        cdef int dtype = arrays[0].dtype, k
        cdef ElementwiseKernel kernel = table.elementwise.forward[self.which][dtype]
        if self.inputs == 2:
            kernel = table.elementwise.backward_by_saved[self.which][dtype][accumulate]
        if size > kBlock:
            with nogil:
                run_elementwise(kernel, self.defaults.value, accumulate, self.inputs + 1, arrays)
            return
        for k in range(self.inputs + 1):
            pointers[k] = arrays[k].data
        kernel(pointers, size, self.defaults.value, 0)
