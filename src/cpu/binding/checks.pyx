# What native functions ask of their arguments before they write anything.
#
# The Python layer has checked all of it, with messages for users. Here it is checked again, because
# anyone can call these functions, and a call plan (call_cache.pyx) calls them with the memory of
# another call. Whatever a size or an index is taken from is compared with the memory that is there,
# which costs a few comparisons for each array: no buffer is presumed to be long enough.

cdef int refuse(str what) except -1:
    raise ValueError(f"fastact._cpu: {what}")


cdef str text(const char* name):
    return (<bytes>name).decode()


cdef tuple names_of(const char* const* names, int count):
    cdef list found = []
    cdef int i
    for i in range(count):
        found.append(text(names[i]))
    return tuple(found)


cdef Operand operand_or_nothing(View view) noexcept:
    cdef Operand nothing
    if view is not None:
        return view.operand
    nothing.data = NULL
    nothing.ndim = 0
    nothing.shape = nothing.strides = NULL
    nothing.stride_unit = 0
    return nothing


cdef inline int check_index(int value, int end, const char* name) except -1:
    if not 0 <= value < end:
        refuse(f"{text(name)} must be from 0 to {end - 1}, got {value}")
    return 0


cdef int unfit(View view, const char* name, bint writes) except -1:
    """Say why `check` refused."""
    what = text(name)
    if view is None:
        return refuse(f"{what} must be an array, got None")
    if view.operand.ndim < 0 or view.operand.shape is NULL:
        return refuse(f"{what} must be an array, got a view of none")
    if not 0 <= view.dtype < <int>len(DTYPE_NAMES):
        return refuse(f"{what} must have a dtype that is computed, got {view.dtype_name}")
    if view.device_type != kDLCPU:
        return refuse(f"{what} must be on the CPU, got device {view.device}")
    if writes and view.readonly:
        return refuse(f"{what} must be writable")
    return refuse(f"{what} must have memory, got a model of shape {view.shape}")


cdef inline int check(View view, const char* name, bint writes) except -1:
    """An array that is there, in memory that the CPU reaches."""
    if (
        view is None or view.operand.shape is NULL or not 0 <= view.dtype <= kF64
        or view.device_type != kDLCPU or (writes and view.readonly)
        or (view.operand.data is NULL and element_count(view) > 0)
    ):
        unfit(view, name, writes)
    return 0


cdef inline int check_any(View view, const char* name) except -1:
    """The same of one that is read, of any dtype that a View has."""
    if (
        view is not None and view.operand.shape is not NULL and kF64 < view.dtype < kViewDTypes
        and view.device_type == kDLCPU
        and (view.operand.data is not NULL or element_count(view) == 0)
    ):
        return 0
    return check(view, name, False)


cdef inline bint same_shape(View a, View b) noexcept:
    cdef int i
    if a.operand.ndim != b.operand.ndim:
        return False
    for i in range(a.operand.ndim):
        if a.shape_[i] != b.shape_[i]:
            return False
    return True


cdef inline int check_like(View view, View like, const char* name, bint writes) except -1:
    """An array of another one's shape and dtype, which has been checked."""
    check(view, name, writes)
    if view.dtype != like.dtype or not same_shape(view, like):
        refuse(
            f"{text(name)} must be {like.dtype_name} of shape {like.shape}, got "
            f"{view.dtype_name} of shape {view.shape}"
        )
    return 0


cdef inline int check_if_like(View view, View like, const char* name, bint writes) except -1:
    return 0 if view is None else check_like(view, like, name, writes)


cdef inline int check_along(View view, int64_t length, const char* name, bint writes) except -1:
    """An array of one axis, or None."""
    if view is None:
        return 0
    check(view, name, writes)
    if view.operand.ndim != 1 or view.shape_[0] != length:
        refuse(f"{text(name)} must have shape ({length},), got {view.shape}")
    return 0


cdef inline int check_dtype(View view, int dtype, const char* name) except -1:
    if view is not None and view.dtype != dtype:
        refuse(
            f"{text(name)} must have dtype {VIEW_DTYPE_NAMES[dtype]}, got {view.dtype_name}"
        )
    return 0


cdef inline int check_wide_enough(View view, View x, const char* name) except -1:
    """None, or x's dtype or a wider one: of a narrower one kernels would read too many bytes."""
    if view is not None and view.dtype != x.dtype and view.itemsize <= x.itemsize:
        refuse(
            f"{text(name)} must have dtype {x.dtype_name} or a wider one, got {view.dtype_name}"
        )
    return 0


cdef inline int check_beside(View view, View x, const char* name, bint writes) except -1:
    """None, or an array with the axes of x, each of its length or of length 1."""
    cdef int i
    if view is None:
        return 0
    check(view, name, writes)
    if view.operand.ndim == x.operand.ndim:
        for i in range(x.operand.ndim):
            if view.shape_[i] != x.shape_[i] and view.shape_[i] != 1:
                break
        else:
            return 0
    return refuse(
        f"{text(name)} must broadcast to shape {x.shape} with as many axes, got "
        f"{view.shape}"
    )


cdef int check_kept(
    View view, View x, const cpp_bool* reduced, bint are_kept, const char* name
) except -1:
    """Length 1 along the axes that are reduced (or are not kept), else x's."""
    cdef int i
    if view is None or not 0 <= view.dtype <= kF64:
        unfit(view, name, False)
    if view.operand.ndim == x.operand.ndim:
        for i in range(x.operand.ndim):
            if view.shape_[i] != (1 if reduced[i] != are_kept else x.shape_[i]):
                break
        else:
            return 0
    return refuse(
        f"{text(name)} has not the shape that shape {x.shape} leaves, got {view.shape}"
    )


cdef int set_axes(cpp_bool* flags, tuple axes, int ndim) except -1:
    """flags OUT (ndim): which axes are named."""
    cdef int i, axis
    if axes is None:
        refuse("axes must be a tuple, got None")
    for i in range(ndim):
        flags[i] = False
    for axis in axes:
        if not 0 <= axis < ndim:
            refuse(f"axes must be from 0 to {ndim - 1}, got {axis}")
        flags[axis] = True
    return 0


cdef inline char* memory_of(View workspace, int64_t* bytes) except? NULL:
    """A workspace's memory, and how much of it there is; None: nothing."""
    bytes[0] = 0
    if workspace is None:
        return NULL
    if (
        workspace.operand.ndim != 1 or workspace.device_type != kDLCPU or workspace.readonly
        or workspace.shape_[0] < 0
        or (workspace.shape_[0] > 1 and workspace.strides_[0] != workspace.itemsize)
        or (workspace.operand.data is NULL and workspace.shape_[0] > 0)
        or <uintptr_t>workspace.operand.data % sizeof(double)
    ):
        refuse(
            "workspace must be bytes in one piece on the CPU, writable and aligned to 8 bytes, got "
            f"{workspace.dtype_name} of shape {workspace.shape}"
        )
    bytes[0] = workspace.shape_[0] * workspace.itemsize
    return workspace.operand.data


cdef inline char* memory_for(View workspace, int64_t needed, const char* name) except? NULL:
    """A workspace's memory where nothing can be done without it."""
    cdef int64_t there
    cdef char* memory = memory_of(workspace, &there)
    if there < needed:
        refuse(f"{text(name)} must have {needed} bytes, got {there}")
    return memory
