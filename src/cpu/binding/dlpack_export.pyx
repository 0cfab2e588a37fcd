# New arrays for other frameworks than NumPy, as DLPack tensors that they take over.
#
# The caller's framework allocates, so that its pools, streams, graphs and profiler know of it:
# through its C exchange API, contiguous, and given the wanted axes here. On the CPU what is big
# asks for huge pages, which torch does not do; what is not big, and what belongs to a framework
# without that API, is ours.


cdef void kept_order_strides(View like, int64_t* strides) noexcept:
    """Element strides without gaps, axes in the order of `like`'s strides (axes_in_order)."""
    cdef int order[kMaxAxes]
    cdef int i
    cdef int64_t step = 1
    axes_in_order(like, order)
    for i in range(like.operand.ndim - 1, -1, -1):
        strides[order[i]] = step
        step *= like.shape_[order[i]] if like.shape_[order[i]] else 1


cdef void set_error(void* context, const char* kind, const char* message) noexcept with gil:
    """How a framework tells why it could not allocate."""
    (<list>context).append((kind.decode(), message.decode()))


cdef DLManagedTensorVersioned* allocate_by(
    DLPackExchangeAPI* api, DLDevice device, DLDataType dtype, int ndim, const int64_t* shape
) except NULL:
    """A contiguous tensor from the framework itself."""
    cdef DLTensor prototype
    cdef DLManagedTensorVersioned* made = NULL
    prototype.data = NULL
    prototype.device = device
    prototype.ndim = ndim
    prototype.dtype = dtype
    prototype.shape = <int64_t*>shape
    prototype.strides = NULL
    prototype.byte_offset = 0
    errors = []
    if api.allocate(&prototype, &made, <void*>errors, set_error) or made is NULL:
        reason = "; ".join(message for _, message in errors) or "the framework gave no memory"
        raise MemoryError(f"fastact: {reason}")
    if device.device_type == kDLCPU:
        advise_huge_pages(
            <char*>made.dl_tensor.data + made.dl_tensor.byte_offset, bytes_of(dtype, ndim, shape)
        )
    return made


cdef int64_t bytes_of(DLDataType dtype, int ndim, const int64_t* shape) noexcept:
    cdef int64_t bytes = dtype.bits // 8
    cdef int axis
    for axis in range(ndim):
        bytes *= shape[axis]
    return bytes


cdef bint is_ours(DLDevice device, DLDataType dtype, int ndim, const int64_t* shape) noexcept:
    """Small memory on the CPU: a framework's allocator takes longer than a small kernel."""
    return device.device_type == kDLCPU and bytes_of(dtype, ndim, shape) < kBigMemory


cdef DLManagedTensorVersioned* new_tensor(
    DLPackExchangeAPI* api, DLDevice device, int dtype, int ndim, const int64_t* shape
) except NULL:
    """A contiguous tensor."""
    cdef int64_t[kMaxAxes] strides
    cdef int64_t step = 1
    cdef int axis
    cdef DLManagedTensorVersioned* made
    if not is_ours(device, dlpack_dtype(dtype), ndim, shape):
        return allocate_by(api, device, dlpack_dtype(dtype), ndim, shape)
    for axis in range(ndim - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    made = make_tensor(ndim, shape, strides, dlpack_dtype(dtype))
    if made is NULL:
        raise MemoryError
    return made


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


cdef object capsule_of(DLManagedTensorVersioned* tensor, max_version):
    if max_version is not None and max_version[0] >= 1:
        return PyCapsule_New(tensor, "dltensor_versioned", drop_capsule)
    return PyCapsule_New(unversioned(tensor), "dltensor", drop_capsule)


cdef DLPackExchangeAPI* exchange_api(capsule) except NULL:
    return <DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")


def exchange_stream(api_capsule, tuple device):
    """The stream on which a framework now works on a device, as an integer."""
    cdef void* stream = NULL
    exchange_api(api_capsule).current_stream(device[0], device[1], &stream)
    return <intptr_t>stream


cdef str HANDED_OVER = "this memory has been handed over already"


cdef class Memory:
    """New memory in the shape, dtype, device and order of a model.

    A kernel fills it; then a framework takes it over, once.
    """

    cdef DLManagedTensorVersioned* tensor

    def __cinit__(self, View model not None, api_capsule=None):
        cdef int64_t strides[kMaxAxes]
        cdef int64_t inside[kMaxAxes]
        cdef int order[kMaxAxes]
        cdef int i, n = model.operand.ndim
        cdef DLDevice device
        kept_order_strides(model, strides)
        device.device_type, device.device_id = model.device
        if api_capsule is None or is_ours(device, dlpack_dtype(model.dtype), n, model.shape_):
            self.tensor = make_tensor(n, model.shape_, strides, dlpack_dtype(model.dtype))
        else:
            axes_in_order(model, order)
            for i in range(n):
                inside[i] = model.shape_[order[i]]
            self.tensor = with_strides(
                allocate_by(
                    exchange_api(api_capsule), device, dlpack_dtype(model.dtype), n, inside
                ),
                n, model.shape_, strides,
            )
        if self.tensor is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.tensor is not NULL:
            self.tensor.deleter(self.tensor)

    cdef DLManagedTensorVersioned* release(self) except NULL:
        if self.tensor is NULL:
            raise BufferError(HANDED_OVER)
        tensor = self.tensor
        self.tensor = NULL
        return tensor

    def view(self):
        cdef View view = View.__new__(View)
        if self.tensor is NULL:
            raise BufferError(HANDED_OVER)
        view.owner = self
        view.take(&self.tensor.dl_tensor)
        return view

    def to_exchange(self, api_capsule):
        """The tensor of the framework whose C exchange API this is."""
        return hand_over(self.release(), exchange_api(api_capsule))

    def __dlpack_device__(self):
        return (kDLCPU, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return capsule_of(self.release(), max_version)


cdef void let_go(DLManagedTensorVersioned* tensor) noexcept with gil:
    Py_DECREF(<object>tensor.manager_ctx)
    free(tensor)


cdef class Handover:
    """An array that goes back to its framework, filled on a stream of ours.

    The framework asks for it with the stream on which it goes on, and `wait` makes that one wait
    for ours. Memory that kernels still read is kept until the framework lets go of the result.
    """

    cdef View array
    cdef object wait
    cdef object kept

    def __init__(self, View array, wait, kept):
        self.array = array
        self.wait = wait
        self.kept = kept

    def __dlpack_device__(self):
        return self.array.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        cdef DLManagedTensorVersioned* tensor
        cdef DLDevice device
        cdef int64_t strides[kMaxAxes]
        cdef int i
        if stream is None or stream != -1:
            self.wait(stream)
        for i in range(self.array.operand.ndim):
            strides[i] = self.array.strides_[i] // self.array.itemsize
        device.device_type, device.device_id = self.array.device
        holder = (self.array, self.kept)
        tensor = describe_tensor(
            self.array.operand.data, device, self.array.operand.ndim, self.array.shape_, strides,
            dlpack_dtype(self.array.dtype),
        )
        if tensor is NULL:
            raise MemoryError
        Py_INCREF(holder)
        tensor.manager_ctx = <void*>holder
        tensor.deleter = let_go
        return capsule_of(tensor, max_version)
