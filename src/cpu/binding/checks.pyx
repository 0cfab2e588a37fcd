# Checks of arguments of native functions that tests call, and of workspaces of any function:
# nothing is presumed to be long enough. Calls by table are checked by common/core/call_check.h.

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
