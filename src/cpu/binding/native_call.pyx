# Calls of native functions, which common/<family>/call.h describes: on the CPU and on devices.
#
# One object is one call. It is filled from values by name, by the function's table, and checked
# (common/core/call_check.h); it tells how much scratch memory the function needs, and runs it. The
# device of the arrays decides whose function it is: the CPU's, which the families list in C++
# (core/native_function.h), or one that the device's module has under the same name
# (common/core/device_table.h). No function has code of its own here.

cdef enum:
    MAX_FUNCTIONS = 64
    MAX_FIELDS = 64  # bits of NativeCall.fill


# A native function that its family lists in C++, and its fields by number.
cdef struct KnownFunction:
    const CallTable* table
    const NativeFunction* native  # core/native_function.h
    NamedFields[MAX_FIELDS] named


cdef KnownFunction[MAX_FUNCTIONS] native_functions
cdef dict function_numbers = {}  # by name
cdef list field_numbers = []     # of each function, by name


cdef int add_native_functions() except -1:
    cdef const CallTable* call_table
    cdef int k, number
    for number in range(<int>list_native_functions().size()):
        call_table = list_native_functions()[number].table
        if number == MAX_FUNCTIONS or call_table.count > MAX_FIELDS:
            raise ValueError(f"no room for the native function {text(call_table.name)}")
        native_functions[number].table = call_table
        native_functions[number].native = &list_native_functions()[number]
        find_named_fields(call_table[0], native_functions[number].named)
        function_numbers[text(call_table.name)] = number
        field_numbers.append({text(call_table.fields[k].name): k for k in range(call_table.count)})


add_native_functions()


# The kinds of fields, in the order of FieldKind, and the values that each takes.
cdef dict FIELD_VALUES = {
    "array": "a View of an array, or None",
    "axes": "a tuple of an array's axes",
    "parameters": f"a tuple of at most {kMaxParameters} numbers",
    "number": "a number",
    "integer": "an integer",
    "int64": "an integer of 64 bits",
    "bits": "an integer from 0 to 2**64 - 1",
    "places": f"a tuple of at most {kMostPlaces} integers",
    "flag": "a bool",
    "text": "a str, or None",
}
cdef tuple FIELD_KINDS = tuple(FIELD_VALUES)
cdef tuple ROLES = ("in", "out", "in_out")
cdef tuple SHAPE_RULES = (
    "any", "like", "beside", "reduced", "kept", "grouped", "along", "channels", "packed",
    "along_packed", "one",
)
cdef tuple DTYPE_RULES = (
    "computed", "any", "double", "same", "compute_type", "wide_enough", "unrounded", "mask",
    "index",
)


def dtype_of_rule(str rule not None, int other):
    """The dtype that a rule of DTYPE_RULES asks for beside another array's."""
    return expected_dtype(<DTypeRule>(<int>DTYPE_RULES.index(rule)), other)


def has_dtype(str rule not None, int dtype, int other):
    """Whether a rule of DTYPE_RULES allows a dtype beside another array's."""
    return fits_dtype(<DTypeRule>(<int>DTYPE_RULES.index(rule)), dtype, other)


def native_calls():
    """The functions by name, each with what is known of its arguments by name."""
    return {name: table_of_fields(number) for name, number in function_numbers.items()}


cdef dict table_of_fields(int number):
    cdef const CallTable* table = native_functions[number].table
    cdef Field field
    cdef int k, part
    found = {}
    for k in range(table.count):
        field = table.fields[k]
        times = None  # the parts of packed arrays, by each value of the field that numbers them
        if field.times is not NULL:
            times = []
            for part in range(<int>found[text(field.axes)]["end"]):
                times.append(field.times[part])
        found[text(field.name)] = {
            "kind": FIELD_KINDS[<int>field.kind],
            "role": ROLES[<int>field.role],
            "optional": field.is_optional,
            "shape": SHAPE_RULES[<int>field.shape],
            "shape_of": text(field.shape_of),
            "axes": text(field.axes),
            "times": times,
            "dtype": DTYPE_RULES[<int>field.dtype],
            "dtype_of": text(field.dtype_of),
            "end": field.end,
            "written_if": text(field.written_if),
        }
    return found


# The beginning of a call's memory; the struct of its arguments follows.
cdef struct Block:
    char* workspace
    int64_t workspace_bytes


cdef class NativeCall:
    """A call of a native function: its arrays and numbers, checked.

    `block` holds the struct. It points into the views, to shapes and strides, and into the texts. A
    recorded call (call_cache.pyx) has views without memory, and runs copies of the block with other
    addresses.
    """

    cdef const KnownFunction* function
    cdef const DeviceCall* remote  # NULL: it is the CPU's
    cdef Block* block
    cdef int64_t bytes             # of it, with the struct
    cdef int64_t begin             # of its copies in the memory of a recorded call
    cdef list views                # of each field; None: no array
    cdef list texts
    cdef int dtype, device         # of the first array
    cdef bint is_small             # no array has more than kGrain elements
    cdef bint is_recorded          # a plan has taken it over

    def __dealloc__(self):
        free(self.block)

    cdef inline void* arguments(self) noexcept:
        return self.block + 1

    cdef inline void* at(self, int k) noexcept:
        return self.function.table.fields[k].at(self.arguments())

    cdef ArrayArgument* array(self, int k) noexcept:
        return <ArrayArgument*>self.at(k)

    cdef bytes copied_block(self):
        return PyBytes_FromStringAndSize(<char*>self.block, self.bytes)

    cdef int64_t address_of(self, int k) noexcept:
        """Tell where an array's address stands in the block."""
        return <char*>&self.array(k).data - <char*>self.block

    cdef int fail(self, str what) except -1:
        raise ValueError(f"fastact._cpu: {text(self.function.table.name)}: {what}")

    cdef int fill(self, dict numbers, dict given) except -1:
        cdef const CallTable* table = self.function.table
        cdef uint64_t is_given = 0
        cdef int k
        self.views, self.texts, self.is_small = [None] * table.count, [], True
        for name, value in given.items():
            number = numbers.get(name)
            if number is None:
                raise TypeError(
                    f"fastact._cpu: {text(table.name)} takes {', '.join(numbers)}, got {name}"
                )
            k = number
            try:
                self.convert(k, table.fields[k].kind, value)
            except (TypeError, OverflowError, UnicodeError) as error:
                raise (TypeError if isinstance(error, TypeError) else ValueError)(
                    f"fastact._cpu: {text(table.name)}: {name} must be "
                    f"{FIELD_VALUES[FIELD_KINDS[<int>table.fields[k].kind]]}, got "
                    f"{repr(value)[:80]}"
                )
            is_given |= <uint64_t>1 << k
        for k in range(table.count):
            if not (
                is_given >> k & 1 or table.fields[k].is_optional
                or table.fields[k].kind == FieldKind.kArray
            ):
                raise TypeError(
                    f"fastact._cpu: {text(table.name)} must be given {text(table.fields[k].name)}"
                )

    cdef int convert(self, int k, FieldKind kind, value) except -1:
        cdef void* to = self.at(k)
        if kind == FieldKind.kArray:
            if value is None:
                return 0
            if not isinstance(value, View) or (<View>value).array.shape is NULL:
                raise TypeError
            self.views[k] = value
            self.array(k)[0] = (<View>value).array
            self.is_small &= size_of((<View>value).array) <= kGrain
        elif kind == FieldKind.kAxes:
            convert_axes(<AxisFlags*>to, value)
        elif kind == FieldKind.kParameters:
            convert_parameters(<ParameterValues*>to, value)
        elif kind == FieldKind.kPlaces:
            convert_places(<Places*>to, value)
        elif kind == FieldKind.kNumber:
            (<double*>to)[0] = value
        elif kind == FieldKind.kInt64:
            (<int64_t*>to)[0] = PyNumber_Index(value)
        elif kind == FieldKind.kInteger:
            (<int*>to)[0] = PyNumber_Index(value)
        elif kind == FieldKind.kBits:
            (<uint64_t*>to)[0] = PyNumber_Index(value)
        elif kind == FieldKind.kFlag:
            (<cpp_bool*>to)[0] = True if value else False
        elif value is not None:
            (<const char**>to)[0] = PyUnicode_AsUTF8AndSize(value, NULL)
            self.texts.append(value)

    cdef int find_device(self) except -1:
        """Find out whose function it is: the first array tells."""
        cdef View first = next(filter(None, self.views), None)
        cdef const FitDevice* device
        if first is None:
            return 0  # which the check refuses
        self.dtype, self.device = first.array.dtype, first.array.device
        if first.array.device_type == kDLCPU:
            return 0
        device = fit_device_of(DLDevice(first.array.device_type, first.array.device))
        if device is NULL:
            self.fail(f"arrays must be on the CPU or on a GPU in use, got device {first.device}")
        self.remote = device_call(device.table, self.function.table[0])
        if self.remote is NULL:
            self.fail(f"device {first.device} has no such function, or another version of it")

    cdef int check_made(self) except -1:
        if self.block is NULL or self.is_recorded:
            refuse("NativeCall: native_call makes one, which runs until a plan has taken it over")

    def workspace_size(self):
        """Bytes of scratch memory that `run` needs."""
        self.check_made()
        if self.remote is not NULL:
            return self.remote.workspace_size(self.arguments(), self.dtype, self.device)
        if self.function.native.workspace is NULL:
            return 0
        return self.function.native.workspace(self.arguments(), table)

    def run(self, View workspace, intptr_t stream):
        """workspace: SCRATCH, bytes in one piece, or None for none; stream: of a GPU, else 0."""
        self.check_made()
        self.take_workspace(workspace)
        self.go(self.block, <void*>stream)

    cdef int take_workspace(self, View workspace) except -1:
        self.block.workspace = NULL
        self.block.workspace_bytes = 0
        if workspace is None:
            return 0
        if (
            workspace.array.ndim != 1 or workspace.array.is_readonly or workspace.shape_[0] < 0
            or (workspace.array.device_type == kDLCPU) != (self.remote is NULL)
            or (self.remote is not NULL and workspace.array.device != self.device)
            or (workspace.shape_[0] > 1 and workspace.strides_[0] != workspace.itemsize)
            or (workspace.array.data is NULL and workspace.shape_[0] > 0)
            or (self.remote is NULL and <uintptr_t>workspace.array.data % sizeof(double))
        ):
            self.fail(
                "workspace must be bytes in one piece on the arrays' device, writable and aligned "
                f"to 8 bytes, got {workspace.dtype_name} of shape {workspace.shape} on device "
                f"{workspace.device}"
            )
        self.block.workspace = workspace.array.data
        self.block.workspace_bytes = workspace.shape_[0] * workspace.itemsize

    cdef int go(self, Block* block, void* stream) except -1:
        """Run the function by a block of this call, or by a copy of it.

        Calls that take microseconds keep the interpreter's lock: to let go of it would take as
        long as some of them.
        """
        cdef Execution execution
        cdef int i
        if self.remote is not NULL:
            with nogil:  # a full queue waits
                self.remote.run(
                    block + 1, self.dtype, self.device, block.workspace, block.workspace_bytes,
                    stream,
                )
            return 0
        execution.kernels, execution.workspace = table, block.workspace
        execution.bytes = block.workspace_bytes
        if self.is_small:
            self.function.native.run(block + 1, &execution)
        else:
            with nogil:
                self.function.native.run(block + 1, &execution)
        for i in range(execution.warning_count):
            warn(text(execution.warnings[i]))


cdef int convert_axes(AxisFlags* to, tuple axes) except -1:
    cdef int axis
    for given in axes:
        axis = PyNumber_Index(given)
        if not 0 <= axis < kMaxAxes:
            raise OverflowError
        to.flags[axis] = True


cdef int convert_parameters(ParameterValues* to, tuple parameters) except -1:
    cdef int i
    if len(parameters) > kMaxParameters:
        raise OverflowError
    for i in range(<int>len(parameters)):
        to.value[i] = parameters[i]


cdef int convert_places(Places* to, tuple places) except -1:
    cdef int k
    if len(places) > kMostPlaces:
        raise OverflowError
    to.count = len(places)
    for k in range(kMostPlaces):
        to.at[k] = PyNumber_Index(places[k]) if k < to.count else k


def warn(str what):
    """Give a RuntimeWarning at the line that called into this package."""
    level = 1
    frame = sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fastact."):
        level += 1
        frame = frame.f_back
    warnings.warn(what, RuntimeWarning, stacklevel=level)


def native_call(str name, dict arguments):
    """A call of a native function, of arguments by name: Views, numbers, tuples, or None."""
    cdef NativeCall call = NativeCall.__new__(NativeCall)
    cdef const char* module
    number = function_numbers.get(name)
    if number is None:
        raise ValueError(
            f"fastact._cpu: native functions are {', '.join(function_numbers)}, got {name}"
        )
    call.function = &native_functions[<int>number]
    call.bytes = sizeof(Block) + (call.function.table.size + 15) // 16 * 16
    call.block = <Block*>calloc(1, call.bytes)
    if call.block is NULL:
        raise MemoryError
    call.fill(field_numbers[number], arguments)
    call.find_device()
    module = "fastact._cpu" if call.remote is NULL else "fastact._cuda"
    check_call(module, call.function.table[0], call.function.named, call.arguments())
    return call
