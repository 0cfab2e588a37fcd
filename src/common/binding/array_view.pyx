# Arrays as the kernels see them: where the data lies, its shape, strides, dtype and device.
# They lie on a CPU or on a GPU: nothing here depends on which.
#
# Three ways lead in: NumPy's C API, the DLPack C exchange API (types that carry
# __dlpack_c_exchange_api__: a borrow costs some 60 ns and imports nothing), and DLPack capsules
# from anyone else. One way leads out for foreign frameworks: a DLPack tensor with its own memory.

# The dtypes that are computed, and those that a View has besides: of masks and of indices.
VIEW_DTYPE_NAMES = names_of(kDTypeNames, kViewDTypes)
DTYPE_NAMES = VIEW_DTYPE_NAMES[:kDTypes]

# NumPy's numbers of the dtypes from kF16 to kBool; bfloat16's is -1 until an array of it was seen.
cdef int[5] numpy_types = [NPY_HALF, -1, cnp.NPY_FLOAT, cnp.NPY_DOUBLE, cnp.NPY_BOOL]


# The dtypes by NumPy's numbers; -1: no kernel reads it.
cdef int[24] dtypes_by_number = [-1] * 24
dtypes_by_number[<int>NPY_HALF], dtypes_by_number[<int>cnp.NPY_FLOAT] = kF16, kF32
dtypes_by_number[<int>cnp.NPY_DOUBLE], dtypes_by_number[<int>cnp.NPY_BOOL] = kF64, kBool
dtypes_by_number[<int>cnp.NPY_INT32], dtypes_by_number[<int>cnp.NPY_INT64] = kI32, kI64
dtypes_by_number[<int>cnp.NPY_LONGLONG] = kI64


cdef inline int dtype_of_numpy(cnp.ndarray a) noexcept:
    """Give a dtype's number, a mask's or indices' too."""
    cdef int number = cnp.PyArray_TYPE(a)
    if number < 24:
        return dtypes_by_number[number]
    return kBF16 if number == numpy_types[kBF16] else -1


def learn_bfloat16(dtype):
    """Remember the number NumPy gave to the registered bfloat16 dtype."""
    numpy_types[kBF16] = dtype.num


cdef inline DLDevice plain(DLDevice device) noexcept:
    """Give pinned host memory's device, which is the CPU, and managed memory's, its GPU."""
    if device.device_type == kDLCPU or device.device_type == kDLCUDAHost:
        return DLDevice(kDLCPU, 0)
    if device.device_type == kDLCUDAManaged:
        device.device_type = kDLCUDA
    return device


def plain_device(int device_type, int device_id):
    """Give the device that DLPack's pair means."""
    cdef DLDevice device = plain(DLDevice(device_type, device_id))
    return device.device_type, device.device_id


# The two readers of arrays. A contiguous array is described without strides, and a description
# lives as long as the array keeps its shape.
cdef inline bint read_numpy(cnp.ndarray a, ArrayArgument* to) noexcept:
    """Describe an array of NumPy's; False: no kernel reads it."""
    to.dtype = dtype_of_numpy(a)
    to.data, to.ndim = <char*>cnp.PyArray_DATA(a), cnp.PyArray_NDIM(a)
    to.shape, to.stride_unit = <const int64_t*>cnp.PyArray_DIMS(a), 1
    to.strides = NULL
    if not cnp.PyArray_IS_C_CONTIGUOUS(a):
        to.strides = <const int64_t*>cnp.PyArray_STRIDES(a)
    to.device_type, to.device = kDLCPU, 0
    to.is_readonly = not cnp.PyArray_ISWRITEABLE(a)
    return to.dtype >= 0 and cnp.PyArray_ISNOTSWAPPED(a)


cdef inline bint is_contiguous(const ArrayArgument* a, int64_t step) noexcept:
    """Whether an array lies in C order without gaps; step: of its last axis, as in `strides`."""
    cdef bint contiguous = True
    cdef int i
    for i in range(a.ndim - 1, -1, -1):
        contiguous &= a.shape[i] == 1 or a.strides[i] == step
        step *= a.shape[i]
    return contiguous


cdef inline bint read_dlpack(const DLTensor* tensor, ArrayArgument* to) noexcept:
    """Describe a tensor of which `problem_of` says nothing; False: no kernel reads it."""
    cdef DLDevice device = plain(tensor.device)
    to.dtype = dtype_of_dlpack(tensor.dtype)
    to.data, to.ndim = <char*>tensor.data + tensor.byte_offset, tensor.ndim
    to.shape, to.strides = tensor.shape, tensor.strides
    to.stride_unit = (tensor.dtype.bits * tensor.dtype.lanes + 7) // 8
    to.device_type, to.device = device.device_type, device.device_id
    to.is_readonly = False
    if to.strides is not NULL and is_contiguous(to, 1):
        to.strides = NULL
    return to.dtype >= 0


cdef inline void find_reach(
    const ArrayArgument* a, int64_t item, int64_t* low, int64_t* high
) noexcept:
    """Find the addresses of an array's first byte, which it has, and of the one past its last."""
    cdef int64_t step
    cdef int i
    low[0] = <intptr_t>a.data
    high[0] = low[0] + (item * size_of(a[0]) if a.strides is NULL else item)
    for i in range(a.ndim if a.strides is not NULL else 0):
        step = a.strides[i] * a.stride_unit * (a.shape[i] - 1)
        if step < 0:
            low[0] += step
        else:
            high[0] += step


# Lists are filled by append and not by a comprehension, which in Cython 3.3 drops a reference too
# many where there is no memory for the list to grow.
cdef tuple tuple_of(const int64_t* numbers, int count):
    cdef list found = []
    cdef int i
    for i in range(count):
        found.append(numbers[i])
    return tuple(found)


cdef int check_lengths(View view) except -1:
    """Check that no length is negative, and that all sizes in bytes and C strides can be told."""
    cdef int64_t bytes = 16  # the widest element and some room
    cdef int i
    for i in range(view.array.ndim):
        if view.shape_[i] < 0:
            raise ValueError(f"fastact: arrays have no negative lengths, got shape {view.shape}")
        if view.shape_[i] > 0:
            if bytes > (<int64_t>1 << 62) // view.shape_[i]:
                raise ValueError(
                    f"fastact: arrays have less than 2**58 elements, got shape {view.shape}"
                )
            bytes *= view.shape_[i]


cdef str name_of_dlpack(DLDataType d):
    """Name a dtype that no kernel reads."""
    kinds = ("int", "uint", "float", "opaque", "bfloat", "complex", "bool")
    kind = kinds[d.code] if d.code < 7 else f"dlpack-type-{d.code}-"
    name = "bool" if kind == "bool" else f"{kind}{d.bits}"
    return name if d.lanes == 1 else f"{name}x{d.lanes}"


cdef class View:
    """One array, of any framework, as the native code sees it. Holds the array alive.

    dtype is an index into VIEW_DTYPE_NAMES, or -1 for one that is not supported (then dtype_name
    tells it). device is DLPack's pair. Strides are in bytes.
    """

    cdef ArrayArgument array  # whose shape and strides are its own:
    cdef int64_t shape_[kMaxAxes]
    cdef int64_t strides_[kMaxAxes]
    cdef readonly str dtype_name
    cdef readonly int64_t itemsize
    cdef object owner
    cdef DLManagedTensorVersioned* versioned
    cdef DLManagedTensor* unversioned

    def __dealloc__(self):
        if self.versioned is not NULL and self.versioned.deleter is not NULL:
            self.versioned.deleter(self.versioned)
        if self.unversioned is not NULL and self.unversioned.deleter is not NULL:
            self.unversioned.deleter(self.unversioned)

    cdef int hold(self, const ArrayArgument* a, int64_t itemsize, str name) except -1:
        """Take over what was described, which has kMaxAxes axes at most.

        name: of a dtype that no kernel reads.
        """
        cdef int64_t stride = itemsize
        cdef int i
        self.array, self.itemsize = a[0], itemsize
        self.array.shape, self.array.strides, self.array.stride_unit = self.shape_, self.strides_, 1
        self.dtype_name = VIEW_DTYPE_NAMES[a.dtype] if a.dtype >= 0 else name
        for i in range(a.ndim - 1, -1, -1):
            self.shape_[i], self.strides_[i] = a.shape[i], stride
            if a.strides is not NULL:
                # An axis of one element may have any number as its stride: the product may wrap.
                self.strides_[i] = <int64_t>(<uint64_t>a.strides[i] * <uint64_t>a.stride_unit)
            stride *= a.shape[i]

    cdef int take(self, DLTensor* tensor) except -1:
        cdef ArrayArgument a
        cdef const char* problem = problem_of(tensor[0])
        if problem is not NULL:
            raise ValueError((<bytes>problem).decode())
        name = None if read_dlpack(tensor, &a) else name_of_dlpack(tensor.dtype)
        a.strides = tensor.strides
        return self.hold(&a, a.stride_unit, name)

    @staticmethod
    def from_numpy(cnp.ndarray a not None):
        cdef View view = View.__new__(View)
        cdef ArrayArgument described
        read_numpy(a, &described)
        described.strides = <const int64_t*>cnp.PyArray_STRIDES(a)
        view.owner = a
        # the name of a dtype costs NumPy 4 us
        view.hold(&described, a.dtype.itemsize, None if described.dtype >= 0 else a.dtype.name)
        return view

    @staticmethod
    def on_device(cnp.ndarray a not None, tuple device not None):
        """Memory of a device that an array of NumPy's describes, and that nobody reads by it."""
        cdef View view = View.from_numpy(a)
        view.array.device_type, view.array.device = device
        return view

    cdef View shown(self, shape, strides, int64_t offset=0):
        """Show this memory, from `offset` bytes on, with other axes."""
        cdef View view = View.__new__(View)
        cdef int i
        if len(shape) > kMaxAxes:
            raise ValueError(f"fastact: arrays have at most {kMaxAxes} axes, got {len(shape)}")
        view.array, view.dtype_name, view.itemsize = self.array, self.dtype_name, self.itemsize
        view.array.data, view.array.ndim = self.array.data + offset, len(shape)
        view.array.shape, view.array.strides = view.shape_, view.strides_
        view.owner = self  # which holds what it views
        for i in range(len(shape)):
            view.shape_[i], view.strides_[i] = shape[i], strides[i]
        return view

    cdef View model(self, shape, strides):
        """Make a model of an array in other memory: it holds nothing."""
        cdef View view = self.shown(shape, strides)
        view.owner = None
        view.array.data = NULL
        return view

    cdef View without_memory(self):
        """Make a model of this very shape and these strides."""
        return self.model(self.shape, self.strides)

    def shaped(self, tuple shape not None):
        """A model for a new array: this dtype and device, another shape.

        Its axes are in this one's order in memory where it has as many, else in C order.
        """
        cdef bint alike = len(shape) == self.array.ndim
        cdef View view = self.model(shape, self.strides if alike else range(len(shape), 0, -1))
        check_lengths(view)
        return view

    def of_dtype(self, int dtype):
        """A model for a new array of another dtype."""
        cdef View view = self.without_memory()
        if not 0 <= dtype < kViewDTypes:
            raise ValueError(f"of_dtype: dtype must be from 0 to {kViewDTypes - 1}, got {dtype}")
        view.array.dtype, view.dtype_name = dtype, VIEW_DTYPE_NAMES[dtype]
        view.itemsize = item_size(dtype)
        return view

    def repeats(self, View like not None):
        """Show this memory as one element of `like`'s dtype, read at every position of `like`."""
        cdef View view = self.shown(like.shape, (0,) * like.array.ndim)
        low, high = self.reach
        if size_of(like.array) > 0 and high - low < like.itemsize:
            raise ValueError("repeats: the memory must hold one element")
        view.array.dtype, view.dtype_name = like.array.dtype, like.dtype_name
        view.itemsize = like.itemsize
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
        if len({*named}) < len(named) or not {*named} <= {*range(self.array.ndim)}:
            raise ValueError(
                f"placed: places must name axes from 0 to {self.array.ndim - 1} once, or be -1, "
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
        if not 0 <= axis < self.array.ndim:
            raise ValueError(f"{name}: axis must be from 0 to {self.array.ndim - 1}, got {axis}")

    def broadcast_to(self, tuple shape not None):
        """Show this array over a shape of its rank: its axes of length 1 repeat."""
        cdef View view
        cdef int i
        if len(shape) != self.array.ndim:
            raise ValueError(f"broadcast_to: {self.shape} has not the rank of {shape}")
        view = self.shown(shape, self.strides)
        for i in range(view.array.ndim):
            if self.shape_[i] != view.shape_[i]:
                if self.shape_[i] != 1:
                    raise ValueError(f"broadcast_to: {self.shape} does not broadcast to {shape}")
                view.strides_[i] = 0
        check_lengths(view)
        return view

    @staticmethod
    def from_exchange(tensor, api_capsule):
        """Borrow a tensor through its type's C exchange API."""
        cdef DLTensor borrowed
        cdef View view = View.__new__(View)
        exchange_api(api_capsule).borrow(<void*>tensor, &borrowed)
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
            view.take(&view.versioned.dl_tensor)
            view.array.is_readonly = (view.versioned.flags & kDLReadOnly) != 0
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
    def dtype(self):
        return self.array.dtype

    @property
    def device(self):
        return self.array.device_type, self.array.device

    @property
    def readonly(self):
        return self.array.is_readonly

    @property
    def ndim(self):
        return self.array.ndim

    @property
    def shape(self):
        return tuple_of(self.shape_, self.array.ndim)

    @property
    def strides(self):
        return tuple_of(self.strides_, self.array.ndim)

    @property
    def size(self):
        return size_of(self.array)

    @property
    def address(self):
        return <intptr_t>self.array.data

    @property
    def reach(self):
        """The addresses of the first byte of the array, and of the one past its last."""
        cdef int64_t low = <intptr_t>self.array.data, high = low
        if size_of(self.array) > 0:
            find_reach(&self.array, self.itemsize, &low, &high)
        return (low, high)

    @property
    def overlaps_itself(self):
        """Whether an axis may step onto what the axes inside it cover; False is certain."""
        cdef int64_t order[kMaxAxes]
        cdef int64_t covered = self.itemsize, step, axis
        cdef int i
        if size_of(self.array) == 0:
            return False
        axes_in_order(self.array, order)
        for i in range(self.array.ndim - 1, -1, -1):
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
        cdef int64_t axes[kMaxAxes]
        axes_in_order(self.array, axes)
        return tuple_of(axes, self.array.ndim)

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


cdef View whole_of(View view):
    """The array that a view is of."""
    while type(view.owner) is View:
        view = view.owner
    return view
