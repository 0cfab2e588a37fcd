# New arrays for other frameworks than NumPy, as DLPack tensors that they take over.
#
# The caller's framework allocates, so that its pools, streams, graphs and profiler know of it:
# through its C exchange API, contiguous, and given the wanted axes here. On the CPU what is big
# asks for huge pages, which torch does not do; what is not big, and what belongs to a framework
# without that API, is ours.


cdef void set_error(void* context, const char* kind, const char* message) noexcept with gil:
    """How a framework tells why it could not allocate."""
    (<list>context).append((kind.decode(), message.decode()))


cdef DLManagedTensorVersioned* allocate_by(
    DLPackExchangeAPI* api, DLDevice device, DLDataType dtype, int ndim, const int64_t* shape
) except NULL:
    """A contiguous tensor from the framework itself."""
    cdef DLTensor prototype = DLTensor(NULL, device, ndim, dtype, <int64_t*>shape, NULL, 0)
    cdef DLManagedTensorVersioned* made = NULL
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
    return count_of(ndim, shape) * (dtype.bits // 8)


cdef DLManagedTensorVersioned* new_tensor(
    DLPackExchangeAPI* api, DLDevice device, int dtype, int ndim, const int64_t* shape,
    const int* order
) except NULL:
    """Make a tensor without gaps; `order`: its axes as they lie in memory, NULL for C order."""
    cdef int64_t[kMaxAxes] strides
    cdef int64_t[kMaxAxes] inside
    cdef int64_t step = 1
    cdef DLDataType type = dlpack_dtype(dtype)
    cdef DLManagedTensorVersioned* made
    cdef int i, axis
    for i in range(ndim - 1, -1, -1):
        axis = i if order is NULL else order[i]
        strides[axis] = step
        inside[i] = shape[axis]
        step *= max(shape[axis], 1)
    # A framework's allocator takes longer than a small kernel.
    if api is NULL or device.device_type == kDLCPU and bytes_of(type, ndim, shape) < kBigMemory:
        made = make_tensor(ndim, shape, strides, type)
    else:
        made = allocate_by(api, device, type, ndim, inside)
        if order is not NULL:
            made = with_strides(made, ndim, shape, strides)
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
        cdef DLPackExchangeAPI* api = NULL
        cdef int order[kMaxAxes]
        if api_capsule is not None:
            api = exchange_api(api_capsule)
        axes_in_order(model, order)
        self.tensor = new_tensor(
            api, DLDevice(model.device_type, model.device_id), model.dtype, model.operand.ndim,
            model.shape_, order,
        )

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
        cdef int64_t strides[kMaxAxes]
        cdef int i
        if stream is None or stream != -1:
            self.wait(stream)
        for i in range(self.array.operand.ndim):
            strides[i] = self.array.strides_[i] // self.array.itemsize
        holder = (self.array, self.kept)
        tensor = describe_tensor(
            self.array.operand.data, DLDevice(self.array.device_type, self.array.device_id),
            self.array.operand.ndim, self.array.shape_, strides, dlpack_dtype(self.array.dtype),
        )
        if tensor is NULL:
            raise MemoryError
        Py_INCREF(holder)
        tensor.manager_ctx = <void*>holder
        tensor.deleter = let_go
        return capsule_of(tensor, max_version)
