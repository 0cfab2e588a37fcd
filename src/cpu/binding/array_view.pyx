# Arrays as the kernels see them: where the data lies, its shape, strides, dtype and device.
#
# Three ways lead in: NumPy's C API, the DLPack C exchange API (types that carry
# __dlpack_c_exchange_api__: a borrow costs some 60 ns and imports nothing), and DLPack capsules
# from anyone else. One way leads out for foreign frameworks: a DLPack tensor with its own memory.

# The dtypes that are computed, and those that a View has besides: of masks and of indices.
DTYPE_NAMES = names_of(kDTypeNames, kDTypes)
VIEW_DTYPE_NAMES = names_of(kDTypeNames, kViewDTypes)

cdef int numpy_bfloat16 = -1  # type number of ml_dtypes.bfloat16, once an array of it was seen


cdef int dtype_of_numpy(cnp.ndarray a) noexcept:
    cdef int number = cnp.PyArray_TYPE(a)
    if number == cnp.NPY_FLOAT:
        return kF32
    if number == cnp.NPY_DOUBLE:
        return kF64
    if number == NPY_HALF:
        return kF16
    if number == numpy_bfloat16:
        return kBF16
    return -1


cdef int view_dtype_of_numpy(cnp.ndarray a) noexcept:
    """Give a dtype's number, a mask's or indices' too; -1: no kernel reads it."""
    cdef int number = cnp.PyArray_TYPE(a), dtype = dtype_of_numpy(a)
    cdef DLDataType type = dlpack_dtype(kBool)
    if dtype >= 0:
        return dtype
    if number == cnp.NPY_BOOL:
        return kBool
    if cnp.PyTypeNum_ISSIGNED(number) and cnp.PyTypeNum_ISINTEGER(number):
        type.code, type.bits = kDLInt, <uint8_t>(8 * cnp.PyArray_ITEMSIZE(a))
        return dtype_of_dlpack(type)
    return -1


cdef int numpy_type(int dtype) noexcept:
    if dtype == kF32:
        return cnp.NPY_FLOAT
    if dtype == kF64:
        return cnp.NPY_DOUBLE
    if dtype == kBool:
        return cnp.NPY_BOOL
    return NPY_HALF if dtype == kF16 else numpy_bfloat16


def learn_bfloat16(dtype):
    """Remember the number NumPy gave to the registered bfloat16 dtype."""
    global numpy_bfloat16
    numpy_bfloat16 = dtype.num


cpdef tuple plain_device(int device_type, int device_id):
    """Give DLPack's pair: pinned host memory is the CPU's, managed memory is its GPU's."""
    if device_type == kDLCPU or device_type == kDLCUDAHost:
        return (kDLCPU, 0)
    return (kDLCUDA if device_type == kDLCUDAManaged else device_type, device_id)


# Lists are filled by append and not by a comprehension, which in Cython 3.3 drops a reference too
# many where there is no memory for the list to grow.
cdef tuple tuple_of(const int64_t* numbers, int count):
    cdef list found = []
    cdef int i
    for i in range(count):
        found.append(numbers[i])
    return tuple(found)


cdef inline int64_t count_of(int ndim, const int64_t* shape) noexcept nogil:
    """Count the elements of a shape."""
    cdef int64_t size = 1
    cdef int i
    for i in range(ndim):
        size *= shape[i]
    return size


cdef int64_t element_count(View view) noexcept:
    return count_of(view.operand.ndim, view.shape_)


# The owner of a view's memory, as a call states it to its PlanDraft (call_cache.pyx).
cdef enum Source:
    UNSTATED = 0
    FROM_ARRAY
    FROM_OUTPUT
    FROM_WORKSPACE
    FROM_CONSTANT


cdef int check_axes(Py_ssize_t count) except -1:
    """A View has room for so many."""
    if count > kMaxAxes:
        raise ValueError(f"fastact: arrays have at most {kMaxAxes} axes, got {count}")
    return 0


cdef int check_lengths(View view) except -1:
    """Check that no length is negative, and that all sizes in bytes and C strides can be told."""
    cdef int64_t bytes = 16  # the widest element and some room
    cdef int i
    for i in range(view.operand.ndim):
        if view.shape_[i] < 0:
            raise ValueError(f"fastact: arrays have no negative lengths, got shape {view.shape}")
        if view.shape_[i] > 0:
            if bytes > (<int64_t>1 << 62) // view.shape_[i]:
                raise ValueError(
                    f"fastact: arrays have less than 2**58 elements, got shape {view.shape}"
                )
            bytes *= view.shape_[i]
    return 0


cdef class View:
    """One array, of any framework, as the native code sees it. Holds the array alive.

    dtype is an index into VIEW_DTYPE_NAMES, or -1 for one that is not supported (then dtype_name
    tells it). device is DLPack's pair. Strides are in bytes.
    """

    cdef Operand operand
    cdef int64_t shape_[kMaxAxes]
    cdef int64_t strides_[kMaxAxes]
    cdef readonly int dtype
    cdef readonly str dtype_name
    cdef readonly tuple device
    cdef int device_type, device_id  # of `device`
    cdef readonly bint readonly
    cdef readonly int64_t itemsize
    cdef readonly object owner
    cdef DLManagedTensorVersioned* versioned
    cdef DLManagedTensor* unversioned
    cdef Source source     # and of the views made of this one
    cdef int source_index
    cdef char* base        # where that memory begins

    def __dealloc__(self):
        if self.versioned is not NULL and self.versioned.deleter is not NULL:
            self.versioned.deleter(self.versioned)
        if self.unversioned is not NULL and self.unversioned.deleter is not NULL:
            self.unversioned.deleter(self.unversioned)

    cdef take(self, DLTensor* tensor):
        cdef int i
        cdef int64_t stride
        cdef DLDataType d = tensor.dtype
        cdef const char* problem = problem_of(tensor[0])
        if problem is not NULL:
            raise ValueError((<bytes>problem).decode())
        self.dtype = dtype_of_dlpack(d)
        self.itemsize = (d.bits * d.lanes + 7) // 8
        if self.dtype >= 0:
            self.dtype_name = VIEW_DTYPE_NAMES[self.dtype]
        else:
            kinds = ("int", "uint", "float", "opaque", "bfloat", "complex", "bool")
            kind = kinds[d.code] if d.code < 7 else f"dlpack-type-{d.code}-"
            self.dtype_name = "bool" if kind == "bool" else f"{kind}{d.bits}"
            if d.lanes != 1:
                self.dtype_name += f"x{d.lanes}"
        self.put_on(plain_device(tensor.device.device_type, tensor.device.device_id))
        stride = 1
        for i in range(tensor.ndim - 1, -1, -1):
            self.shape_[i] = tensor.shape[i]
            # An axis of one element may have any number as its stride: the product may wrap.
            self.strides_[i] = <int64_t>(
                <uint64_t>(tensor.strides[i] if tensor.strides else stride)
                * <uint64_t>self.itemsize
            )
            stride *= tensor.shape[i]
        self.finish(<char*>tensor.data + tensor.byte_offset, tensor.ndim)

    cdef int put_on(self, tuple device) except -1:
        self.device_type, self.device_id = device
        self.device = device
        return 0

    cdef void finish(self, char* data, int ndim) noexcept:
        self.operand.data = data
        self.operand.ndim = ndim
        self.operand.shape = self.shape_
        self.operand.strides = self.strides_
        self.operand.stride_unit = 1

    @staticmethod
    def from_numpy(cnp.ndarray a not None):
        cdef View view = View.__new__(View)
        cdef int i
        check_axes(a.ndim)
        view.dtype = view_dtype_of_numpy(a)
        # the name of a dtype costs NumPy 4 us
        view.dtype_name = VIEW_DTYPE_NAMES[view.dtype] if view.dtype >= 0 else a.dtype.name
        view.itemsize = a.dtype.itemsize
        view.put_on((kDLCPU, 0))
        view.readonly = not cnp.PyArray_ISWRITEABLE(a)
        view.owner = a
        for i in range(a.ndim):
            view.shape_[i] = a.shape[i]
            view.strides_[i] = a.strides[i]
        view.finish(<char*>cnp.PyArray_DATA(a), a.ndim)
        return view

    @staticmethod
    def on_device(cnp.ndarray a not None, tuple device not None):
        """Memory of a device that an array of NumPy's describes, and that nobody reads by it."""
        cdef View view = View.from_numpy(a)
        view.put_on(device)
        return view

    @staticmethod
    def bytes(int64_t count, tuple device not None):
        """A model for `count` bytes on a device."""
        cdef View view = View.__new__(View)
        view.dtype, view.dtype_name, view.itemsize = -1, "uint8", 1
        view.put_on(device)
        view.shape_[0], view.strides_[0] = count, 1
        view.finish(NULL, 1)
        check_lengths(view)
        return view

    cdef View shown(self, shape, strides, int64_t offset=0):
        """Show this memory, from `offset` bytes on, with other axes."""
        cdef View view = View.__new__(View)
        cdef int i
        check_axes(len(shape))
        view.dtype, view.dtype_name, view.itemsize = self.dtype, self.dtype_name, self.itemsize
        view.put_on(self.device)
        view.readonly = self.readonly
        view.owner = self  # which holds what it views
        view.source, view.source_index, view.base = self.source, self.source_index, self.base
        for i in range(len(shape)):
            view.shape_[i], view.strides_[i] = shape[i], strides[i]
        view.finish(self.operand.data + offset, len(shape))
        return view

    cdef View model(self, shape, strides):
        """Make a model of an array in other memory: it holds nothing."""
        cdef View view = self.shown(shape, strides)
        view.owner, view.source = None, UNSTATED
        view.operand.data = NULL
        return view

    cdef View without_memory(self):
        """Make a model of this very shape and these strides."""
        return self.model(self.shape, self.strides)

    def shaped(self, tuple shape not None):
        """A model for a new array: this dtype and device, another shape.

        Its axes are in this one's order in memory where it has as many, else in C order.
        """
        cdef bint alike = len(shape) == self.operand.ndim
        cdef View view = self.model(shape, self.strides if alike else range(len(shape), 0, -1))
        check_lengths(view)
        return view

    def of_dtype(self, int dtype):
        """A model for a new array of another dtype."""
        cdef View view = self.without_memory()
        if not 0 <= dtype < kViewDTypes:
            raise ValueError(f"of_dtype: dtype must be from 0 to {kViewDTypes - 1}, got {dtype}")
        view.dtype, view.dtype_name = dtype, VIEW_DTYPE_NAMES[dtype]
        view.itemsize = item_size(dtype)
        return view

    def repeats(self, View like not None):
        """Show this memory as one element of `like`'s dtype, read at every position of `like`."""
        cdef View view = self.shown(like.shape, (0,) * like.operand.ndim)
        low, high = self.reach
        if element_count(like) > 0 and high - low < like.itemsize:
            raise ValueError("repeats: the memory must hold one element")
        view.dtype, view.dtype_name, view.itemsize = like.dtype, like.dtype_name, like.itemsize
        return view

    def with_axes(self, tuple axes not None):
        """Show this array with axes of length 1 at these places of the result, in rising order."""
        cdef list shape = list(self.shape), strides = list(self.strides)
        cdef Py_ssize_t count = len(shape) + len(axes)
        for i, axis in enumerate(axes):
            if not 0 <= axis < count or (i and axis <= axes[i - 1]):
                raise ValueError(f"with_axes: axes must rise from 0 to {count - 1}, got {axes}")
            shape.insert(axis, 1)
            strides.insert(axis, 0)
        return self.shown(shape, strides)

    def placed(self, tuple places not None):
        """Show these axes of the array, in this order; -1 stands for an axis of length 1."""
        cdef list shape = [], strides = []
        named = list(filter((-1).__ne__, places))
        if len({*named}) < len(named) or not {*named} <= {*range(self.operand.ndim)}:
            raise ValueError(
                f"placed: places must name axes from 0 to {self.operand.ndim - 1} once, or be -1, "
                f"got {places}"
            )
        for axis in places:
            shape.append(1 if axis < 0 else self.shape_[axis])
            strides.append(0 if axis < 0 else self.strides_[axis])
        return self.shown(shape, strides)

    def split_axis(self, int axis, int64_t groups):
        """Show this array with an axis cut in two: `groups`, then the elements of each."""
        cdef list shape = list(self.shape), strides = list(self.strides)
        cdef int64_t inner, step
        self.check_axis("split_axis", axis)
        if groups < 0 or (shape[axis] % groups if groups else shape[axis]):
            raise ValueError(
                f"split_axis: groups must divide the length {shape[axis]}, got {groups}"
            )
        inner, step = self.shape_[axis] // groups if groups else 0, self.strides_[axis]
        shape[axis : axis + 1] = (groups, inner)
        strides[axis : axis + 1] = (step * inner, step)
        return self.shown(shape, strides)

    def sliced(self, int axis, int64_t first, int64_t step, int64_t count):
        """Show this array with `count` elements of an axis: every `step`-th, from `first` on."""
        cdef list shape = list(self.shape), strides = list(self.strides)
        self.check_axis("sliced", axis)
        if first < 0 or step < 1 or not 0 <= count <= len(range(first, shape[axis], step)):
            raise ValueError(
                f"sliced: an axis of length {self.shape_[axis]} has no {count} elements from "
                f"{first} on in steps of {step}"
            )
        shape[axis], strides[axis] = count, <int64_t>(self.strides_[axis] * step)
        return self.shown(shape, strides, first * self.strides_[axis] if count else 0)

    cdef int check_axis(self, str name, int axis) except -1:
        if not 0 <= axis < self.operand.ndim:
            raise ValueError(f"{name}: axis must be from 0 to {self.operand.ndim - 1}, got {axis}")
        return 0

    def broadcast_to(self, tuple shape not None):
        """Show this array over a shape of its rank: its axes of length 1 repeat."""
        cdef View view
        cdef int i
        if len(shape) != self.operand.ndim:
            raise ValueError(f"broadcast_to: {self.shape} has not the rank of {shape}")
        view = self.shown(shape, self.strides)
        for i in range(view.operand.ndim):
            if self.shape_[i] != view.shape_[i]:
                if self.shape_[i] != 1:
                    raise ValueError(f"broadcast_to: {self.shape} does not broadcast to {shape}")
                view.strides_[i] = 0
        check_lengths(view)
        return view

    @staticmethod
    def from_exchange(tensor, api_capsule):
        """Borrow a tensor through its type's C exchange API."""
        cdef DLPackExchangeAPI* api = exchange_api(api_capsule)
        cdef DLTensor borrowed
        cdef View view = View.__new__(View)
        if api.version.major != 1 or api.borrow is NULL:
            raise BufferError("its C exchange API lends no tensors")
        api.borrow(<void*>tensor, &borrowed)
        view.owner = tensor
        view.take(&borrowed)
        return view

    @staticmethod
    def from_capsule(capsule):
        """Consume a DLPack capsule, versioned or old."""
        cdef View view = View.__new__(View)
        if not PyCapsule_CheckExact(capsule):
            raise TypeError(f"__dlpack__ must return a capsule, got {type(capsule).__name__}")
        if PyCapsule_IsValid(capsule, "dltensor_versioned"):
            view.versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(
                capsule, "dltensor_versioned"
            )
            PyCapsule_SetName(capsule, "used_dltensor_versioned")
            if view.versioned.version.major != 1:
                raise BufferError(
                    f"DLPack version {view.versioned.version.major} is not supported, only 1"
                )
            view.readonly = (view.versioned.flags & kDLReadOnly) != 0
            view.take(&view.versioned.dl_tensor)
        else:
            if not PyCapsule_IsValid(capsule, "dltensor"):
                name = PyCapsule_GetName(capsule)
                found = "no name" if name is NULL else f"the name {(<bytes>name).decode()!r}"
                raise BufferError(f"its capsule has {found}, so that it holds no tensor any more")
            view.unversioned = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
            PyCapsule_SetName(capsule, "used_dltensor")
            view.take(&view.unversioned.dl_tensor)
        return view

    @property
    def ndim(self):
        return self.operand.ndim

    @property
    def shape(self):
        return tuple_of(self.shape_, self.operand.ndim)

    @property
    def strides(self):
        return tuple_of(self.strides_, self.operand.ndim)

    @property
    def size(self):
        return element_count(self)

    @property
    def address(self):
        return <intptr_t>self.operand.data

    @property
    def reach(self):
        """The addresses of the first byte of the array, and of the one past its last."""
        cdef int64_t low = <intptr_t>self.operand.data, high = low + self.itemsize
        cdef int64_t step
        cdef int i
        if element_count(self) == 0:
            return (low, low)
        for i in range(self.operand.ndim):
            step = self.strides_[i] * (self.shape_[i] - 1)
            if step < 0:
                low += step
            else:
                high += step
        return (low, high)

    @property
    def overlaps_itself(self):
        """Whether an axis may step onto what the axes inside it cover; False is certain."""
        cdef int order[kMaxAxes]
        cdef int64_t covered = self.itemsize, step
        cdef int i, axis
        if element_count(self) == 0:
            return False
        axes_in_order(self, order)
        for i in range(self.operand.ndim - 1, -1, -1):
            axis = order[i]
            if self.shape_[axis] == 1:
                continue
            step = abs(self.strides_[axis])
            if step < covered:
                return True
            covered += step * (self.shape_[axis] - 1)
        return False

    @property
    def order(self):
        """The axes from the largest stride to the smallest; axes of stride 0 in their places."""
        cdef int axes[kMaxAxes]
        axes_in_order(self, axes)
        cdef list found = []
        for i in range(self.operand.ndim):
            found.append(axes[i])
        return tuple(found)

    @property
    def __array_interface__(self):
        """Raw items, for NumPy's exact overlap test: no dtype, so bfloat16 is no special case."""
        return {
            "version": 3,
            "typestr": f"|V{self.itemsize}",
            "shape": self.shape,
            "strides": self.strides,
            "data": (self.address, True),
        }


cdef inline uint64_t magnitude(int64_t stride) noexcept:
    """Give the magnitude of any number: a stride may be the least that there is."""
    return -<uint64_t>stride if stride < 0 else <uint64_t>stride


cdef void axes_in_order(View like, int* order) noexcept:
    """The axes by falling stride; equal ones keep their order.

    One of stride 0, along which an array repeats itself, keeps its place, as in results of torch,
    and of NumPy's ufuncs where the other axes are in order.
    """
    cdef int i, j, at
    cdef uint64_t outer, inner
    for i in range(like.operand.ndim):
        order[i] = i
        at = i
        for j in range(i - 1, -1, -1):
            outer = magnitude(like.strides_[order[j]])
            inner = magnitude(like.strides_[order[at]])
            if outer == 0 or inner == 0:
                continue
            if outer >= inner:
                break
            order[j], order[at] = order[at], order[j]
            at = j
