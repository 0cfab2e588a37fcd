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

cdef const char* CPU_MODULE = "fastact._cpu"
cdef const char* DEVICE_MODULE = "fastact._cuda"


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
    return 0


add_native_functions()


# The values that a field of each kind takes.
cdef tuple FIELD_VALUES = (
    "a View of an array, or None", "a tuple of an array's axes",
    f"a tuple of at most {kMaxParameters} numbers", "a number", "an integer",
    "an integer of 64 bits", "an integer from 0 to 2**64 - 1",
    f"a tuple of at most {kMostPlaces} integers", "a bool", "a str, or None",
)

FIELD_KINDS = (
    "array", "axes", "parameters", "number", "integer", "int64", "bits", "places", "flag", "text",
)
ROLES = ("in", "out", "in_out")
SHAPE_RULES = (
    "any", "like", "beside", "reduced", "kept", "grouped", "along", "channels", "packed",
    "along_packed", "one",
)
DTYPE_RULES = (
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
    cdef int k
    found = {}
    for k in range(table.count):
        field = table.fields[k]
        found[text(field.name)] = {
            "kind": FIELD_KINDS[<int>field.kind],
            "role": ROLES[<int>field.role],
            "optional": field.is_optional,
            "shape": SHAPE_RULES[<int>field.shape],
            "shape_of": None if field.shape_of is NULL else text(field.shape_of),
            "axes": None if field.axes is NULL else text(field.axes),
            "times": parts_by_number(table, field),
            "dtype": DTYPE_RULES[<int>field.dtype],
            "dtype_of": None if field.dtype_of is NULL else text(field.dtype_of),
            "end": field.end,
            "written_if": None if field.written_if is NULL else text(field.written_if),
        }
    return found


cdef tuple parts_by_number(const CallTable* table, const Field& field):
    """Count the parts of packed arrays by each value of the field that numbers them, or None."""
    cdef list found = []
    cdef int number, k = 0
    if field.times is NULL:
        return None
    while strcmp(table.fields[k].name, field.axes):
        k += 1
    for number in range(<int>table.fields[k].end):
        found.append(field.times[number])
    return tuple(found)


cdef class NativeCall:
    """A call of a native function: its arrays and numbers, checked.

    `memory` holds the struct. It points into the views, to shapes and strides, and into the texts.
    A recorded call (call_cache.pyx) keeps it, and writes addresses into it.
    """

    cdef const KnownFunction* function
    cdef const DeviceCall* remote  # NULL: it is the CPU's
    cdef void* memory
    cdef list views                # of each field; None: no array
    cdef list texts
    cdef int dtype, device         # of the first array
    cdef bint is_small             # no array has more than kGrain elements
    cdef char* workspace
    cdef int64_t workspace_bytes

    def __dealloc__(self):
        free(self.memory)

    cdef int allocate(self, const KnownFunction* function) except -1:
        self.memory = malloc(function.table.size)
        if self.memory is NULL:
            raise MemoryError
        self.function = function
        return 0

    cdef NativeCall copy(self):
        """With the same views, and without a workspace's memory."""
        cdef NativeCall other = NativeCall.__new__(NativeCall)
        other.allocate(self.function)
        memcpy(other.memory, self.memory, self.function.table.size)
        other.remote, other.dtype, other.device = self.remote, self.dtype, self.device
        other.views, other.texts, other.is_small = self.views, self.texts, self.is_small
        other.workspace_bytes = self.workspace_bytes
        return other

    cdef inline void* at(self, int k) noexcept:
        return self.function.table.fields[k].at(self.memory)

    cdef ArrayArgument* array(self, int k) noexcept:
        return <ArrayArgument*>self.at(k)

    cdef int fail(self, str what) except -1:
        raise ValueError(f"fastact._cpu: {text(self.function.table.name)}: {what}")

    cdef int fail_value(self, int k, error, value) except -1:
        cdef Field field = self.function.table.fields[k]
        raise error(
            f"fastact._cpu: {text(self.function.table.name)}: {text(field.name)} must be "
            f"{FIELD_VALUES[<int>field.kind]}, got {repr(value)[:80]}"
        )

    cdef int fill(self, dict numbers, dict given) except -1:
        cdef const CallTable* table = self.function.table
        cdef uint64_t is_given = 0
        cdef int k
        memset(self.memory, 0, table.size)
        self.views, self.texts = [None] * table.count, []
        for name, value in given.items():
            number = numbers.get(name)
            if number is None:
                raise TypeError(
                    f"fastact._cpu: {text(table.name)} takes {', '.join(numbers)}, got {name}"
                )
            k = number
            self.put(k, value)
            is_given |= <uint64_t>1 << k
        self.is_small = True
        for view in self.views:
            if view is not None:
                self.is_small &= element_count(view) <= kGrain
        for k in range(table.count):
            if not (
                is_given >> k & 1 or table.fields[k].is_optional
                or table.fields[k].kind == FieldKind.kArray
            ):
                raise TypeError(
                    f"fastact._cpu: {text(table.name)} must be given {text(table.fields[k].name)}"
                )
        return 0

    cdef int put(self, int k, value) except -1:
        try:
            self.convert(k, self.function.table.fields[k].kind, value)
        except TypeError:
            self.fail_value(k, TypeError, value)
        except (OverflowError, UnicodeError):
            self.fail_value(k, ValueError, value)
        return 0

    cdef int convert(self, int k, FieldKind kind, value) except -1:
        cdef void* to = self.at(k)
        if kind == FieldKind.kArray:
            self.convert_view(k, value)
        elif kind == FieldKind.kAxes:
            self.convert_axes(<AxisFlags*>to, value)
        elif kind == FieldKind.kParameters:
            self.convert_parameters(<ParameterValues*>to, value)
        elif kind == FieldKind.kPlaces:
            self.convert_places(<Places*>to, value)
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
        return 0

    cdef int convert_view(self, int k, value) except -1:
        cdef View view
        if value is None:
            return 0
        if not isinstance(value, View) or (<View>value).operand.shape is NULL:
            raise TypeError
        view = value
        self.views[k] = view
        set_argument(self.array(k), view)
        return 0

    cdef int convert_axes(self, AxisFlags* to, value) except -1:
        cdef int axis
        if type(value) is not tuple:
            raise TypeError
        for given in <tuple>value:
            axis = PyNumber_Index(given)
            if not 0 <= axis < kMaxAxes:
                raise OverflowError
            to.flags[axis] = True
        return 0

    cdef int convert_places(self, Places* to, value) except -1:
        cdef int k
        if type(value) is not tuple:
            raise TypeError
        if len(<tuple>value) > kMostPlaces:
            raise OverflowError
        for given in <tuple>value:
            to.at[to.count] = PyNumber_Index(given)
            to.count += 1
        for k in range(to.count, kMostPlaces):
            to.at[k] = k
        return 0

    cdef int convert_parameters(self, ParameterValues* to, value) except -1:
        cdef int i
        if type(value) is not tuple:
            raise TypeError
        if len(<tuple>value) > kMaxParameters:
            raise OverflowError
        for i in range(<int>len(<tuple>value)):
            to.value[i] = (<tuple>value)[i]
        return 0

    cdef int find_device(self) except -1:
        """Find out whose function it is: the first array tells."""
        cdef View first
        cdef const DeviceTable* device
        for view in self.views:
            if view is not None:
                break
        else:
            return 0  # which the check refuses
        first = view
        self.dtype, self.device = first.dtype, first.device_id
        if first.device_type == kDLCPU:
            return 0
        device = table_of(DLDevice(first.device_type, first.device_id))
        if device is NULL:
            self.fail(f"arrays must be on the CPU or on a GPU in use, got device {first.device}")
        self.remote = device_call(device, self.function.table[0])
        if self.remote is NULL:
            self.fail(f"device {first.device} has no such function, or another version of it")
        return 0

    cdef inline const char* module(self) noexcept:
        return CPU_MODULE if self.remote is NULL else DEVICE_MODULE

    def workspace_size(self):
        """Bytes of scratch memory that `run` needs."""
        if self.memory is NULL:
            refuse("NativeCall: native_call makes one")
        if self.remote is not NULL:
            return self.remote.workspace_size(self.memory, self.dtype, self.device)
        if self.function.native.workspace is NULL:
            return 0
        return self.function.native.workspace(self.memory, table)

    def run(self, View workspace, intptr_t stream):
        """workspace: SCRATCH, bytes in one piece, or None for none; stream: of a GPU, else 0."""
        if self.memory is NULL:
            refuse("NativeCall: native_call makes one")
        self.take_workspace(workspace)
        self.go(<void*>stream)

    cdef int take_workspace(self, View workspace) except -1:
        if self.remote is NULL:
            self.workspace = memory_of(workspace, &self.workspace_bytes)
            return 0
        self.workspace = NULL
        self.workspace_bytes = 0
        if workspace is None:
            return 0
        if (
            workspace.operand.ndim != 1 or workspace.device_type == kDLCPU
            or workspace.device_id != self.device or workspace.readonly
            or (workspace.shape_[0] > 1 and workspace.strides_[0] != workspace.itemsize)
        ):
            self.fail(
                "workspace must be bytes in one piece on the arrays' device, writable, got "
                f"{workspace.dtype_name} of shape {workspace.shape} on device {workspace.device}"
            )
        self.workspace = workspace.operand.data
        if self.workspace is not NULL:
            self.workspace_bytes = workspace.shape_[0] * workspace.itemsize
        return 0

    cdef int execute(self) except -1:
        """Run the CPU's function.

        Calls that take microseconds keep the interpreter's lock: to let go of it would take as
        long as some of them.
        """
        cdef Execution execution
        cdef int i
        execution.kernels, execution.workspace = table, self.workspace
        execution.bytes = self.workspace_bytes
        if self.is_small:
            self.function.native.run(self.memory, &execution)
        else:
            with nogil:
                self.function.native.run(self.memory, &execution)
        for i in range(execution.warning_count):
            warn(text(execution.warnings[i]))
        return 0

    cdef int go(self, void* stream) except -1:
        if self.remote is NULL:
            return self.execute()
        with nogil:  # a full queue waits
            self.remote.run(
                self.memory, self.dtype, self.device, self.workspace, self.workspace_bytes, stream
            )
        return 0


def warn(str what):
    """Give a RuntimeWarning at the line that called into this package."""
    level = 1
    frame = sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fastact."):
        level += 1
        frame = frame.f_back
    warnings.warn(what, RuntimeWarning, stacklevel=level)


cdef inline void set_argument(ArrayArgument* to, View view) noexcept:
    to.data, to.ndim = view.operand.data, view.operand.ndim
    to.shape, to.strides = view.shape_, view.strides_
    to.stride_unit = view.operand.stride_unit
    to.dtype, to.is_readonly = view.dtype, view.readonly
    to.device_type, to.device = view.device_type, view.device_id


def native_call(str name, dict arguments):
    """A call of a native function, of arguments by name: Views, numbers, tuples, or None."""
    cdef NativeCall call = NativeCall.__new__(NativeCall)
    number = function_numbers.get(name)
    if number is None:
        raise ValueError(
            f"fastact._cpu: native functions are {', '.join(function_numbers)}, got {name}"
        )
    call.allocate(&native_functions[<int>number])
    call.fill(field_numbers[number], arguments)
    call.find_device()
    check_call(call.module(), call.function.table[0], call.function.named, call.memory)
    return call
