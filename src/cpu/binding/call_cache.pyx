# The call cache: a repeated call skips the Python layer and replays what an earlier call with the
# same key (call_key.pyx) ran.
#
# The first call of a key takes the slow path: Python functions that check, allocate and run native
# functions. The second one takes it again, and while it runs it states its plan to a PlanDraft:
# which memory each native function gets (an array of the call, an output, a workspace), what it
# writes, what it returns. From the third call on the plan is run: new memory for outputs and
# workspaces of the stated sizes, the addresses put into the calls that were checked
# (native_call.pyx), the same native functions. No check and no message stands twice, and no op has
# code here.
#
# What makes that safe:
#   - the key holds whatever a size or a choice of a kernel depends on, so an equal key passes the
#     same checks; what is left open, memory shared in part, is checked at each run;
#   - every array in the arguments must be claimed as an operand, as often as it is given: a 0-d
#     array that an op has read as a number leaves its call unrecorded; where it has read a number
#     of NumPy's, which nobody can change, the plan is for the bits of that number, and another
#     value is another key;
#   - where a check reads numbers of an array, which the next call may have changed, each run
#     repeats it, and leaves a call that fails to Python;
#   - native functions write every array that the call states as written or new, and no other; where
#     Python code has written one, or memory that they read, the call is unrecorded;
#   - a native function is given the size of every workspace, and refuses one that is short, or does
#     without it;
#   - a call in which another op was called, that was given a stream, or whose result or arguments
#     are of a type that is not listed here, is unrecorded;
#   - on a device what the native functions of a plan would queue is queued at once, with the same
#     parameters but for the addresses: see record_launches;
#   - of calls that record gradients no memory is planned: what is kept is how the framework's
#     bridge records calls of that key (`recorder`), whose steps are calls of other entry points;
#   - an entry point keeps its MAX_PLANS newest keys; FASTACT_CALL_CACHE=0 keeps none.
#
# Measurements: docs/design/runtime.md.

cdef enum:
    LEGACY_STREAM = 1
    MAX_VIEWS = 64    # of a plan, all native functions together
    MAX_WORDS_OF_CALLS = 1024  # of 8 bytes, of a plan's calls
    MAX_BUFFERS = 20  # arrays of a call, outputs that it makes, workspaces
    MAX_PLANS = 64    # of an entry point; 64 KiB to 512 KiB of views, and of launches on a device
    SCRATCH_STEP = 256  # between workspaces, which come in one piece
    RECORDING_RUNS = 3
    CONSTANT = -1     # in the place of a buffer index

# Values in the place of a plan, for keys that were seen once, or that can have none.
cdef object SEEN = "seen once"
cdef object NEVER = "never"

cdef bint call_cache_enabled = True

# Types of results that are made of others: type -> names of its fields.
cdef dict result_types = {}


def enable_call_cache(bint enabled):
    """Without it every call takes the slow path, and gives the same bits."""
    global call_cache_enabled
    call_cache_enabled = enabled


def is_call_cache_enabled():
    return call_cache_enabled


def register_result_type(cls, tuple fields):
    """Let plans return objects of a type that has these fields, of arrays, numbers and tuples."""
    result_types[cls] = fields


class Unrecorded(Exception):
    """A call that no plan can repeat."""


cdef class PlanDraft:
    """The statements of a call on the slow path, which make the plan for calls with its key.

    A buffer index numbers the memory of a call: its arrays in the order of the key, then the
    outputs that it makes, and its workspaces.
    """

    cdef const CallKey* key      # for the time of the call
    cdef bint[MAX_ARRAYS] claimed
    cdef bint begun
    cdef public bint refused     # this call can't be repeated by a plan
    cdef dict numbers            # by a View of all of its memory, of an array or MAX_ARRAYS + made
    cdef list made               # (View, what the framework made of it; None: a workspace)
    cdef list written            # indexes of arrays of the key
    cdef bint[MAX_BUFFERS] filled  # by the steps, in their order
    cdef list steps              # (NativeCall or NativeLoop, its calls, workspaces of these)
    cdef list seen               # (array of an output, the same as another dtype, this dtype)
    cdef list scales             # Views of arrays of the call

    def __cinit__(self):
        self.numbers, self.made, self.written, self.steps, self.seen = {}, [], [], [], []
        self.scales = []

    def operand(self, View view not None, value):
        """An array of the call, and the view of it that native functions get."""
        self.numbers[whole_of(view)] = self.claim(value)

    def scale(self, View view not None, value):
        """An operand whose numbers each run holds to `are_scales`."""
        self.operand(view, value)
        self.scales.append(view)

    def writes(self, View view not None, value):
        """An array of the call that native functions write, and may read by the same view."""
        cdef int index = self.numbers.get(whole_of(view), CONSTANT)
        if not 0 <= index < MAX_ARRAYS:
            index = self.numbers[whole_of(view)] = self.claim(value)
        self.written.append(index)

    def output(self, View view not None, made):
        """New memory, and what the framework's array will be made of; None: a workspace."""
        self.numbers[whole_of(view)] = MAX_ARRAYS + len(self.made)
        self.made.append((view, made))

    def finished(self, made, array):
        """The array that came of an output."""
        for k, (view, other) in enumerate(self.made):
            if other is made:
                self.made[k] = (view, array)

    def constant(self, View view not None):
        """A number that stands for an array: the view holds its own memory, which nobody writes."""
        self.numbers[whole_of(view)] = CONSTANT

    def native(self, NativeCall call not None, View workspace):
        """A call of a native function, and the scratch memory that it is given."""
        self.steps.append((call, [call], [workspace]))

    def loop(self, NativeLoop loop not None):
        """Calls for many parts, each with a workspace."""
        self.steps.append((loop, loop.calls, loop.workspaces))

    def seen_as(self, array, seen, dtype):
        """An array that came of an output, and the same memory as another dtype."""
        self.seen.append((array, seen, dtype))

    cdef int claim(self, value) noexcept:
        """The index in the key of an array that is an operand; -1, and refused, if it has none."""
        cdef int k, found = -1
        if self.key is NULL:  # of no call, or of one that is over
            self.refused = True
            return -1
        for k in range(self.key.arrays - 1, -1, -1):
            if self.key.array[k] is <PyObject*>value:
                if not self.claimed[k]:
                    self.claimed[k] = True
                    return k
                found = k
        self.refused |= found < 0
        return found

    cdef bint is_constant(self, View view) except -1:
        return self.numbers.get(whole_of(view)) == CONSTANT

    cdef int buffer_index(self, View view) except -1:
        cdef int found = self.numbers.get(whole_of(view), CONSTANT)
        if found == CONSTANT:
            raise Unrecorded("a view whose memory the call has not stated")
        return found if found < MAX_ARRAYS else found - MAX_ARRAYS + self.key.arrays

    cdef CallPlan plan(self, result):
        """The plan, once the call is done."""
        cdef CallPlan plan = CallPlan.__new__(CallPlan)
        cdef View view
        cdef int k
        if self.refused or not self.begun:
            raise Unrecorded("the call refused, or stated nothing")
        plan.fixed = plan.ops = ()
        for k in range(self.key.ops):
            plan.ops += (<object>self.key.op[k],)
        for k in range(self.key.arrays):
            if not self.claimed[k]:
                if not self.key.is_scalar[k]:
                    raise Unrecorded("an array that is no operand")
                plan.fixed += (k,)
        plan.arrays, plan.count = self.key.arrays, len(self.made)
        if plan.arrays + plan.count > MAX_BUFFERS or len(self.written) > MAX_ARRAYS:
            raise Unrecorded("more arrays than a plan holds")
        plan.made = []
        for k, (view, array) in enumerate(self.made):
            if array is None:
                plan.made.append(None)
                plan.scratch_at[k] = plan.scratch
                plan.scratch += size_of(view.array) * view.itemsize + SCRATCH_STEP - 1
                plan.scratch -= plan.scratch % SCRATCH_STEP
            else:
                plan.made.append(without_gaps(view))
                plan.is_number[k] = view.array.ndim == 0 and not cnp.PyArray_Check(array)
        for k in self.written:
            plan.written[plan.writes] = k
            plan.writes += 1
        plan.scales = []
        for view in self.scales:
            plan.scales.append((self.buffer_index(view), view.without_memory()))
        plan.steps, plan.blocks = [], b""
        for step, calls, workspaces in self.steps:
            for call, workspace in zip(calls, workspaces):
                self.take_over(plan, call, workspace)
            if type(step) is NativeLoop:
                (<NativeLoop>step).workspaces = None
            plan.steps.append(step)
        for k in range(plan.arrays + plan.count):
            if k >= plan.arrays and plan.made[k - plan.arrays] is None:
                continue
            if self.filled[k] != (k >= plan.arrays or k in self.written):
                raise Unrecorded("native functions write other arrays than the call has stated")
        plan.result = self.part_of_result(result)
        if not is_on_cpu(self.key):
            record_launches(plan, self.key)
        return plan

    cdef int take_over(self, CallPlan plan, NativeCall call, View workspace) except -1:
        """Leave a call without memory, except where a view is a constant, and note what it writes.

        It reads nothing but what plans know the values of. These are arrays of the call, constants,
        and what native functions before it have written.
        """
        cdef const KnownFunction* function = call.function
        cdef const Field* fields = function.table.fields
        cdef View view
        cdef int k, index
        if call.is_recorded:
            raise Unrecorded("a call that was stated twice")
        for k, view in enumerate(call.views):
            if view is None or fields[k].role == Role.kOut or self.is_constant(view):
                continue
            index = self.buffer_index(view)
            if index >= self.key.arrays and not self.filled[index]:
                raise Unrecorded("memory is read that no native function has written")
        call.begin, call.is_recorded = len(plan.blocks), True
        for k, view in enumerate(call.views):
            if view is None:
                continue
            if is_written(fields[k], function.named[k], call.arguments()):
                self.filled[self.buffer_index(view)] = True
            if not self.is_constant(view):
                self.note(plan, call.begin + call.address_of(k), view)
                call.views[k] = view = view.without_memory()
                call.array(k)[0] = view.array
        if workspace is not None:  # whose address stands first
            self.note(plan, call.begin, workspace)
        plan.blocks += call.copied_block()
        if len(plan.blocks) > sizeof(uint64_t) * MAX_WORDS_OF_CALLS:
            raise Unrecorded("larger calls than a plan holds")

    cdef int note(self, CallPlan plan, int64_t place, View view) except -1:
        """Note an address that each run puts in."""
        cdef int k = plan.addresses
        if k == MAX_VIEWS:
            raise Unrecorded("more views than a plan holds")
        plan.place[k], plan.buffer[k] = place, self.buffer_index(view)
        plan.offset[k] = view.array.data - whole_of(view).array.data
        plan.addresses += 1

    cdef object part_of_result(self, result):
        """A buffer index, [a number or None], a tuple of parts, [a part, the dtype as which it is
        seen], or [a type, its fields, parts]."""
        cdef int k
        if result is None or type(result) in (int, float):
            return [result]
        for k in range(self.key.arrays):
            if result is <object>self.key.array[k]:
                return k
        for k, (_, array) in enumerate(self.made):
            if result is array:
                return self.key.arrays + k
        for array, seen, dtype in self.seen:
            if result is seen:
                return [self.part_of_result(array), dtype]
        values = []
        if type(result) is tuple:
            for part in <tuple>result:
                values.append(self.part_of_result(part))
            return tuple(values)
        fields = result_types.get(type(result))
        if fields is None:
            raise Unrecorded("a result of a type that plans do not hold")
        for name in fields:
            values.append(self.part_of_result(getattr(result, name)))
        return [type(result), fields, tuple(values)]


cdef bint are_positive(const char* data, const ArrayArgument* a) noexcept:
    """Whether all numbers of an array of float32 or float64 on the CPU are positive and finite."""
    cdef const char* at
    cdef int64_t i, rest
    cdef float number  # which may begin anywhere
    cdef double wide
    cdef int axis
    if a.device_type != kDLCPU:
        return True
    for i in range(size_of(a[0])):
        at, rest = data, i
        for axis in range(a.ndim - 1, -1, -1):
            at += rest % a.shape[axis] * a.strides[axis]
            rest //= a.shape[axis]
        if a.dtype == kF64:
            memcpy(&wide, at, sizeof(wide))
        else:
            memcpy(&number, at, sizeof(number))
            wide = number
        if not 0 < wide < INFINITY:
            return False
    return True


def are_scales(View view not None):
    """Whether all numbers of an array are positive and finite; on a GPU nobody looks."""
    return are_positive(view.array.data, &view.array)


cdef View without_gaps(View made):
    """A model of an output, which plans can make again: axes in any order, without gaps.

    Where that is C's order, its description has no strides.
    """
    cdef View model = made.without_memory()
    cdef int64_t bytes = size_of(made.array) * made.itemsize
    if not bytes or made.overlaps_itself or made.reach != (made.address, made.address + bytes):
        raise Unrecorded("an output that is empty or has gaps")
    if is_contiguous(&model.array, model.itemsize):
        model.array.strides = NULL
    return model


def begin_call():
    """The draft that a call on the slow path states itself to; None: it is not being recorded."""
    if current_draft() is NULL:
        return None
    draft = <PlanDraft>current_draft()
    if draft.begun:  # a second call inside the entry point: no plan holds two
        draft.refused = True
        return None
    draft.begun = True
    return draft


cdef inline void refuse_current_draft() noexcept:
    """An op runs inside a call that is being recorded, whose plan would not know of it."""
    if current_draft() is not NULL:
        (<PlanDraft>current_draft()).refused = True


cdef int record_launches(CallPlan plan, const CallKey* key) except -1:
    """Find the launches that a plan's native functions queue, for addresses that each run puts in.

    They are found out once, by calling these with the buffers at addresses where no memory is, and
    with a stream that takes launches instead of queueing them (DeviceTable). A launch may depend on
    a buffer's address by its residue, which is in the key, and by which buffers begin at one, which
    is there too. Whether it depends on more shows: the addresses of several runs have nothing else
    in common, and where kernels, grids or parameters differ by more than where buffers are, the
    native functions are called as before. So they are where new memory has another residue than 0.
    """
    cdef char* data[MAX_BUFFERS]
    cdef const FitDevice* fit = fit_device_of(key.device)
    cdef const DeviceTable* device
    cdef void* recording
    cdef int run
    cdef bint failed = False
    if fit is NULL:
        return 0
    device = fit.table
    recording = device.begin_recording()
    try:
        for run in range(RECORDING_RUNS):
            plan.place_nowhere(key, run, data)
            device.begin_run(
                recording, <const char* const*>data, plan.arrays + plan.count
            )
            plan.call_functions(data, recording)
    except Exception:  # a run that has memory finds out why
        failed = True
    finally:
        plan.device = device
        plan.launches = device.end_recording(recording, key.device.device_id)
    if failed:
        plan.drop_launches()


cdef class CallPlan:
    """The native calls that calls of one key run."""

    cdef int arrays, count, writes  # count: of outputs and workspaces
    cdef tuple fixed                # NumPy scalars among the arrays: the plan is for their values
    cdef int[MAX_ARRAYS] written    # buffer indices
    cdef int64_t scratch            # bytes of the workspaces together
    cdef int64_t[MAX_BUFFERS] scratch_at  # where each of them begins
    cdef list made                  # a model of each output; None: a workspace
    cdef bint[MAX_BUFFERS] is_number  # NumPy's caller gets a scalar, not an array
    cdef list scales                # (buffer index, a model) of arrays for `are_scales`
    cdef object result              # PlanDraft.part_of_result
    cdef list steps                 # NativeCall or NativeLoop, without memory
    cdef bytes blocks               # of these calls, of which each run has a copy
    cdef int addresses              # that a run puts into it:
    cdef int64_t[MAX_VIEWS] place   # where,
    cdef int[MAX_VIEWS] buffer      # the index of the buffer,
    cdef int64_t[MAX_VIEWS] offset  # and bytes from where that begins
    cdef const DeviceTable* device
    cdef void* launches             # of the device; NULL: native functions are called
    cdef tuple ops                  # that the key names by their addresses

    def __dealloc__(self):
        self.drop_launches()

    cdef void drop_launches(self) noexcept:
        if self.launches is not NULL:
            self.device.drop(self.launches)
        self.launches = NULL

    cdef object run(self, const CallKey* key):
        """NotImplemented where memory is shared that was not before, or scales are wrong."""
        cdef char* data[MAX_BUFFERS]
        cdef Buffers buffers = None
        cdef void* stream = NULL
        cdef int i, k, w
        for i in range(self.writes):
            w = self.written[i]
            for k in range(self.arrays):
                if (
                    key.data[k] != key.data[w]
                    and key.low[k] < key.high[w] and key.low[w] < key.high[k]
                ):
                    return NotImplemented
        for k in range(self.arrays):
            data[k] = key.data[k]
        for k, model in self.scales:
            if not are_positive(data[k], &(<View>model).array):
                return NotImplemented
        if self.count:
            buffers = Buffers.__new__(Buffers)
            buffers.make(self, key, &data[self.arrays])
        try:
            if not is_on_cpu(key):
                stream = stream_of(key.kind.api, key.device) or <void*>LEGACY_STREAM
            if self.launches is not NULL and self.new_memory_is_aligned(data):
                with nogil:  # a full queue waits
                    self.device.replay(self.launches, data, key.device.device_id, stream)
            else:
                self.call_functions(data, stream)
        finally:  # a warning that is an error comes after the arrays were written
            if self.writes and key.kind is not NULL and key.kind.mark_written is not NULL:
                written = []
                for i in range(self.writes):
                    written.append(<object>key.array[self.written[i]])
                mark_written(key.kind, tuple(written))
        return self.answer(self.result, key, buffers)

    cdef int call_functions(self, char** data, void* stream) except -1:
        cdef uint64_t[MAX_WORDS_OF_CALLS] words
        cdef char* memory = <char*>words
        cdef int i
        memcpy(memory, <const char*>self.blocks, len(self.blocks))
        for i in range(self.addresses):
            (<char**>(memory + self.place[i]))[0] = data[self.buffer[i]] + self.offset[i]
        for step in self.steps:
            if type(step) is NativeCall:
                (<NativeCall>step).go(<Block*>(memory + (<NativeCall>step).begin), stream)
            else:
                first = <NativeCall>(<NativeLoop>step).calls[0]
                (<NativeLoop>step).go(memory + first.begin, stream)

    cdef bint new_memory_is_aligned(self, char** data) noexcept:
        cdef int k
        for k in range(self.arrays, self.arrays + self.count):
            if residue(data[k]):
                return False
        return True

    cdef void place_nowhere(self, const CallKey* key, int run, char** data) noexcept:
        """Addresses that no memory has, in another order and at other distances in each run."""
        cdef int[RECORDING_RUNS] step = [1, 31, 7]  # odd: a permutation of 32
        cdef uint64_t address
        cdef int k, first
        for k in range(self.arrays + self.count):
            first = k
            if k < self.arrays:
                for first in range(k + 1):
                    if key.data[first] == key.data[k]:
                        break
            address = <uint64_t>(1 + step[run] * first % 32) << 52
            address += <uint64_t>(1 + first) * (1 + run) * 0x9E3779B97F4A7C15 >> 20 << kAlignedBits
            data[k] = <char*>(address + (residue(key.data[k]) if k < self.arrays else 0))

    cdef object answer(self, result, const CallKey* key, Buffers buffers):
        cdef int index
        if type(result) is int:
            index = result
            if index < self.arrays:
                return <object>key.array[index]
            return buffers.give(self, index - self.arrays)
        if type(result) is tuple:
            found = []
            for part in <tuple>result:
                found.append(self.answer(part, key, buffers))
            return tuple(found)
        if len(<list>result) == 1:
            return (<list>result)[0]
        if len(<list>result) == 2:
            return self.answer((<list>result)[0], key, buffers).view((<list>result)[1])
        cls, names, fields = <list>result
        made = cls.__new__(cls)  # without its checks, which the recorded call has passed
        for index, name in enumerate(<tuple>names):
            PyObject_GenericSetAttr(made, name, self.answer((<tuple>fields)[index], key, buffers))
        return made


cdef class Buffers:
    """The memory of one run: outputs, and workspaces.

    It is made at every run, and holds Python objects by C pointers alone: then it is no container
    to the garbage collector, which would count each one.
    """

    cdef PyObject* arrays[MAX_BUFFERS]  # the outputs, as the caller gets them; NULL: not yet
    cdef double numbers[MAX_BUFFERS]    # the memory of outputs that are NumPy's numbers
    cdef void* scratch
    cdef DLManagedTensorVersioned* scratch_on_device
    cdef int count

    cdef int make(self, CallPlan plan, const CallKey* key, char** data) except -1:
        cdef DLManagedTensorVersioned* tensor
        cdef ArrayArgument scratch
        cdef View model
        cdef char* base = NULL
        cdef int k
        self.count = plan.count
        if plan.scratch and is_on_cpu(key):
            self.scratch = base = <char*>malloc(plan.scratch)
            if base is NULL:
                raise MemoryError
        elif plan.scratch:
            memset(&scratch, 0, sizeof(scratch))
            scratch.dtype, scratch.ndim, scratch.shape = -1, 1, &plan.scratch
            scratch.device_type, scratch.device = key.device.device_type, key.device.device_id
            self.scratch_on_device = new_tensor(key.kind.api, &scratch)
            base = data_of(self.scratch_on_device)
        for k in range(plan.count):
            model = plan.made[k]
            if model is None:
                data[k] = base + plan.scratch_at[k]
            elif key.kind is not NULL:
                tensor = new_tensor(key.kind.api, &model.array)
                data[k] = data_of(tensor)
                self.keep(k, hand_over(tensor, key.kind.api))
            elif plan.is_number[k]:
                data[k] = <char*>&self.numbers[k]
            else:
                array = cnp.PyArray_New(
                    cnp.ndarray, model.array.ndim, <cnp.npy_intp*>model.shape_,
                    numpy_types[model.array.dtype], <cnp.npy_intp*>model.array.strides, NULL, 0, 0,
                    None
                )
                data[k] = <char*>cnp.PyArray_DATA(array)
                self.keep(k, array)

    cdef object give(self, CallPlan plan, int k):
        if self.arrays[k] is NULL:
            dtype = cnp.PyArray_DescrFromType(numpy_types[(<View>plan.made[k]).array.dtype])
            self.keep(k, PyArray_Scalar(&self.numbers[k], dtype, None))
        return <object>self.arrays[k]

    cdef void keep(self, int k, object array) noexcept:
        Py_INCREF(array)
        self.arrays[k] = <PyObject*>array

    def __dealloc__(self):
        cdef int k
        for k in range(self.count):
            Py_XDECREF(self.arrays[k])
        if self.scratch_on_device is not NULL:
            self.scratch_on_device.deleter(self.scratch_on_device)
        free(self.scratch)


cdef class CachedCall(FastPath):
    """An entry point of an op: its function of the Python layer behind the plans of its calls.

    The op itself is the entry point that calling it is.
    """

    cdef dict __dict__  # its name, docstring and signature
    cdef object function
    cdef object owner    # the op, and
    cdef str attribute   # the name under which the op has this entry point
    cdef object recorder  # (args, kwargs) -> who records calls of that key; None: nobody does
    cdef dict plans

    def __init__(self, function, owner, str attribute, recorder=None):
        self.function, self.recorder = function, recorder
        self.owner, self.attribute = owner, attribute
        self.plans = {}

    def __reduce__(self):
        return getattr, (self.owner, self.attribute)

    def __call__(self, *args, **kwargs):
        return call_entry(self, args, <PyObject*>kwargs)

    cdef object enter(self, tuple args, dict kwargs):
        cdef CallKey key
        cdef tuple fixed = None
        if self.function is None:
            raise TypeError("fastact._cpu: an op that was not declared can't be called")
        refuse_current_draft()
        if (
            not call_cache_enabled or current_draft() is not NULL
            or not make_key(&key, args, kwargs, self.recorder is not None)
            or self.casts and key.kind is not NULL and may_cast(key.kind)
        ):
            return self.function(*args, **kwargs)
        words = PyBytes_FromStringAndSize(<char*>key.words, key.count * sizeof(uint64_t))
        plan = self.plans.get(words)
        if type(plan) is tuple:  # numbers of NumPy's whose values plans are for
            fixed = plan
            words = with_values(words, &key, fixed)
            plan = self.plans.get(words)
        if type(plan) is CallPlan:
            result = (<CallPlan>plan).run(&key)
            return self.function(*args, **kwargs) if result is NotImplemented else result
        if key.records:
            if plan is None:
                plan = self.recorder(args, dict(kwargs))
                self.remember(words, plan)
            return plan(args, dict(kwargs))
        if plan is SEEN:
            return self.record(&key, words, fixed, args, kwargs)
        result = self.function(*args, **kwargs)
        if plan is None:
            self.remember(words, SEEN)
        return result

    cdef object record(
        self, const CallKey* key, object words, tuple fixed, tuple args, dict kwargs
    ):
        """fixed: the numbers whose values are in `words`; None: it is not known which should be."""
        cdef PlanDraft draft = PlanDraft.__new__(PlanDraft)
        draft.key = key
        (&current_draft())[0] = <void*>draft
        try:
            try:
                result = self.function(*args, **kwargs)
            finally:
                (&current_draft())[0] = NULL
            plan = draft.plan(result)
            if fixed is None and (<CallPlan>plan).fixed:
                self.remember(words, (<CallPlan>plan).fixed)
                words = with_values(words, key, (<CallPlan>plan).fixed)
            elif fixed is not None and (<CallPlan>plan).fixed != fixed:
                raise Unrecorded("another number was read than in earlier calls")
        except Unrecorded:
            plan = NEVER
        finally:
            draft.key = NULL
        self.remember(words, plan)
        return result

    cdef int remember(self, object words, object plan) except -1:
        if len(self.plans) >= MAX_PLANS and words not in self.plans:
            del self.plans[next(iter(self.plans))]  # the oldest: a dict keeps the order
        self.plans[words] = plan

    def _take_fast_path(self, int which, int parameters, tuple numbers not None):
        """Let calls of an activation, and of its `forward` and `backward`, take the fast path.

        which: with the defaults. parameters: how many; numbers: those that are no strings.
        """
        cdef CachedCall point
        if not 0 <= which < kActivations:
            refuse(f"activations have numbers from 0 to {kActivations - 1}, got {which}")
        for i, point in enumerate((self, self.forward, self.backward)):
            if point is None:
                raise TypeError("fastact._cpu: an op that was not declared has no fast path")
            convert_parameters(&point.defaults, numbers)
            point.which, point.parameters = which, parameters
            point.inputs, point.gives_saved = 1 + (i == 2), i == 1
            point.saves_value = kActivationSavesValue[which]

    def _watch_autocast(self):
        """Under autocast leave calls of the op, though not of its entry points, to Python."""
        self.casts = True

    def _cached_calls(self):
        """Count the keys of calls that are remembered, and those that queue launches themselves."""
        cdef int queueing = 0
        for plan in (self.plans or {}).values():
            queueing += type(plan) is CallPlan and (<CallPlan>plan).launches is not NULL
        return len(self.plans or ()), queueing


cdef tuple with_values(bytes words, const CallKey* key, tuple fixed):
    """The key with the bits of these of its numbers."""
    cdef int k
    values = []
    for k in fixed:
        values.append(PyBytes_FromStringAndSize(key.data[k], key.high[k] - key.low[k]))
    return words, *values


cdef dict NO_NAMES = {}


# Slots that take the interpreter's tuple and dict as they are: a `__call__` of Cython's copies the
# dict, which takes 30 ns. Nobody changes it. One that somebody else holds, too, is copied: he may
# take arrays out of it while kernels write them, and nobody but the dict holds these.
cdef object call_entry(CachedCall entry, tuple args, PyObject* kwargs):
    cdef dict named = NO_NAMES
    if kwargs is not NULL:
        named = <dict>kwargs if references(kwargs) == 1 else dict(<dict>kwargs)
    if entry.inputs and call_cache_enabled:
        refuse_current_draft()
        result = entry.serve(args, named)
        if result is not NotImplemented:
            return result
    return entry.enter(args, named)


(<PyTypeObject*>CachedCall).tp_call = <ternaryfunc>call_entry


def keep_compiled_call(cls):
    """Let a call of an object of this class begin in compiled code.

    Ops have a `__call__` in Python too, which would take its place: torch.compile traces Python and
    nothing else. Entry points would have the slot that Cython made.
    """
    (<PyTypeObject*>cls).tp_call = <ternaryfunc>call_entry
