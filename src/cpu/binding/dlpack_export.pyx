# New arrays for other frameworks than NumPy, as DLPack tensors that they take over.
#
# The caller's framework allocates, so that its pools, streams, graphs and profiler know of it:
# through its C exchange API, contiguous, and given the wanted axes here. On the CPU what is big
# asks for huge pages, which torch does not do; what is not big, and what belongs to a framework
# without that API, is ours.


cdef void set_error(void* context, const char* kind, const char* message) noexcept with gil:
    """How a framework tells why it could not allocate."""
    (<list>context).append(message.decode())


cdef DLManagedTensorVersioned* new_tensor(
    DLPackExchangeAPI* api, const ArrayArgument* like
) except NULL:
    """Make a tensor without gaps, of this shape, dtype, device and order of axes."""
    cdef int64_t[kMaxAxes] order, strides, inside
    cdef int64_t step = 1, bytes, axis
    cdef DLDevice device = DLDevice(like.device_type, like.device)
    cdef DLDataType type = dlpack_dtype(like.dtype)
    cdef DLTensor prototype = DLTensor(NULL, device, like.ndim, type, &inside[0], NULL, 0)
    cdef DLManagedTensorVersioned* made = NULL
    cdef int i
    if like.strides is not NULL:
        axes_in_order(like[0], order)
    for i in range(like.ndim - 1, -1, -1):
        axis = i if like.strides is NULL else order[i]
        strides[axis] = step
        inside[i] = like.shape[axis]
        step *= max(like.shape[axis], 1)
    bytes = size_of(like[0]) * (type.bits // 8)
    # A framework's allocator takes longer than a small kernel.
    if api is NULL or device.device_type == kDLCPU and bytes < kBigMemory:
        made = make_tensor(like.ndim, like.shape, strides, type)
    else:
        errors = []
        if api.allocate(&prototype, &made, <void*>errors, set_error) or made is NULL:
            reason = "; ".join(errors) or "the framework gave no memory"
            raise MemoryError(f"fastact: {reason}")
        if device.device_type == kDLCPU:
            advise_huge_pages(data_of(made), bytes)
        if like.strides is not NULL:
            made = with_strides(made, like.ndim, like.shape, strides)
    if made is NULL:
        raise MemoryError
    return made


cdef inline char* data_of(DLManagedTensorVersioned* tensor) noexcept:
    return <char*>tensor.dl_tensor.data + tensor.dl_tensor.byte_offset


cdef object hand_over(DLManagedTensorVersioned* tensor, DLPackExchangeAPI* api):
    """Make a framework's tensor of `tensor`, which it owns from then on."""
    cdef void* made = NULL
    api.object_from_managed(tensor, &made)
    cdef object result = <object>made
    Py_DECREF(result)  # the cast above took a second reference
    return result


cdef void drop_capsule(object capsule) noexcept:
    """The destructor of a capsule that nobody consumed."""
    cdef DLManagedTensorVersioned* tensor
    cdef DLManagedTensor* old
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        tensor = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        tensor.deleter(tensor)
    elif PyCapsule_IsValid(capsule, "dltensor"):
        old = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        old.deleter(old)


cdef DLPackExchangeAPI* exchange_api(capsule) except NULL:
    api = <DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    if api.version.major != 1 or api.borrow is NULL:
        raise BufferError("its C exchange API lends no tensors")
    return api


cdef void* stream_of(DLPackExchangeAPI* api, DLDevice device) except? NULL:
    """Give the stream on which a framework now works on a device."""
    cdef void* stream = NULL
    api.current_stream(device.device_type, device.device_id, &stream)
    return stream


def exchange_stream(api_capsule, tuple device):
    """Give that stream as an integer."""
    return <intptr_t>stream_of(exchange_api(api_capsule), DLDevice(device[0], device[1]))


cdef void let_go(DLManagedTensorVersioned* tensor) noexcept with gil:
    Py_DECREF(<object>tensor.manager_ctx)
    free(tensor)


cdef DLManagedTensorVersioned* tensor_of(View view, kept) except NULL:
    """Make a tensor of an array, which it holds, and what else is kept, until it is let go."""
    cdef int64_t strides[kMaxAxes]
    cdef DLManagedTensorVersioned* tensor
    cdef const ArrayArgument* a = &view.array
    cdef int i
    for i in range(a.ndim):
        strides[i] = a.strides[i] // view.itemsize
    holder = (view, kept)
    tensor = describe_tensor(
        a.data, DLDevice(a.device_type, a.device), a.ndim, a.shape, strides, dlpack_dtype(a.dtype)
    )
    if tensor is NULL:
        raise MemoryError
    Py_INCREF(holder)
    tensor.manager_ctx = <void*>holder
    tensor.deleter = let_go
    return tensor


cdef class Memory:
    """Memory that a framework takes over, once.

    It is new, in the shape, dtype, device and order of a model, and a kernel fills it. Or, with
    `wait`, it is the model's own, filled on a stream of ours: the framework asks for it with the
    stream on which it goes on, and `wait` makes that one wait. What is `kept`, as memory that
    kernels still read, is kept until the framework lets go of the result.
    """

    cdef DLManagedTensorVersioned* tensor
    cdef object wait
    cdef tuple device

    def __cinit__(self, View model not None, api_capsule=None, wait=None, kept=None):
        cdef DLPackExchangeAPI* api = NULL
        self.wait, self.device = wait, model.device
        if wait is not None:
            self.tensor = tensor_of(model, kept)
            return
        if api_capsule is not None:
            api = exchange_api(api_capsule)
        self.tensor = new_tensor(api, &model.array)

    def __dealloc__(self):
        if self.tensor is not NULL:
            self.tensor.deleter(self.tensor)

    cdef DLManagedTensorVersioned* held(self) except NULL:
        if self.tensor is NULL:
            raise BufferError("this memory has been handed over already")
        return self.tensor

    cdef DLManagedTensorVersioned* release(self) except NULL:
        tensor = self.held()
        self.tensor = NULL
        return tensor

    def view(self):
        cdef View view = View.__new__(View)
        view.owner = self
        view.take(&self.held().dl_tensor)
        return view

    def to_exchange(self, api_capsule):
        """The tensor of the framework whose C exchange API this is."""
        return hand_over(self.release(), exchange_api(api_capsule))

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self.wait is not None and (stream is None or stream != -1):
            self.wait(stream)
        if max_version is not None and max_version[0] >= 1:
            return PyCapsule_New(self.release(), "dltensor_versioned", drop_capsule)
        return PyCapsule_New(unversioned(self.release()), "dltensor", drop_capsule)
