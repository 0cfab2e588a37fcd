# Doors: the short cut of every op that is no activation, and of strided activations.
#
# A door is a function of the Python layer, which checks, allocates and runs native functions, with
# what it ran for earlier calls. A call that looks the same as an earlier one (same
# dtypes, shapes, strides, frameworks and devices, same options, the same arrays being one another)
# passes the same checks and runs the same native functions with the same arguments: only addresses
# differ. So the second call of a kind is written down as a plan, and from the third on the plan is
# run, and the Python layer is not asked. No check and no message stands twice, no op has code here,
# and what a plan cannot hold takes the long way for ever.
#
# What a description of a call leaves open is checked at each run: no array that is written may
# share memory with another one, unless it begins where it did in the call that was written down.
#
# Microseconds a call, float32 (8, 8), `out=` given: by the Python layer, by a plan, torch eager
#   NumPy arrays   sum 13.9, 0.7, -      bias_act relu 16.0, 0.9, -     its backward 25.0, 1.2, -
#   tensors        sum 18.7, 1.2, 1.3    bias_act relu 21.9, 1.6, 2.0   its backward 33.3, 2.4, 4.0
# Activations keep their own short cut (shortcut.pyx): a plan takes 0.46 where that takes 0.24 (mish
# of 64 elements; np.tanh 0.31), half of it for the key and the call of the native function.

cdef enum:
    LEGACY_STREAM = 1
    MAX_VIEWS = 32    # of a plan, all native functions together
    MAX_PLACES = 20   # arrays of a call, outputs that it makes, workspaces
    MAX_PLANS = 64    # of a door; 64 KiB to 512 KiB of views

cdef enum:
    CONSTANT = -1  # no place


# What stands in place of a plan for calls that were seen once, or that cannot be planned.
cdef object SEEN = "seen once"
cdef object NEVER = "never"

cdef object recordings = local()  # calls: of the thread's call that is being written down


class Impossible(Exception):
    """A call that no plan can hold."""


cdef class Frame:
    """The arguments of a plan's native functions; for one run at a time, for addresses go in."""

    cdef list functions
    cdef list arguments  # a tuple for each; views without memory
    cdef int count
    cdef PyObject* views[MAX_VIEWS]  # held by `arguments`
    cdef int[MAX_VIEWS] places

    cdef View take(self, View view, int place):
        cdef View own = view.without_memory()
        if self.count == MAX_VIEWS:
            raise Impossible
        self.views[self.count] = <PyObject*>own
        self.places[self.count] = place
        self.count += 1
        return own

    cdef Frame copy(self):
        cdef Frame other = Frame.__new__(Frame)
        cdef int at = 0
        other.functions = self.functions
        other.arguments = []
        for arguments in self.arguments:
            own = []
            for value in <tuple>arguments:
                if at < self.count and <PyObject*>value is self.views[at]:
                    value = other.take(value, self.places[at])
                    at += 1
                own.append(value)
            other.arguments.append(tuple(own))
        return other

    cdef int run(self, const Description* call) except -1:
        cdef Py_ssize_t k
        cdef void* stream = NULL
        if is_on_cpu(call):
            for k in range(len(self.functions)):
                PyObject_Call(self.functions[k], self.arguments[k], NULL)
            return 0
        call.kind.api.current_stream(call.device.device_type, call.device.device_id, &stream)
        for k in range(len(self.functions)):
            arguments = <tuple>self.arguments[k]
            self.functions[k](
                *arguments[: len(arguments) - 1], <intptr_t>stream or LEGACY_STREAM
            )
        return 0


cdef class Plan:
    """What a call of one description runs.

    A place is an array of the call, an output that it makes, or a workspace, in this order.
    """

    cdef int arrays, outputs, workspaces, writes
    cdef int[MAX_ARRAYS] written    # places
    cdef int64_t[MAX_PLACES] sizes  # of the workspaces, in bytes
    cdef list made                  # a View for each output: dtype, shape
    cdef object result              # a place, a tuple of results, or a list with a constant
    cdef Frame model
    cdef list frames                # that no thread uses now
    cdef tuple ops                  # that the description names by their addresses

    cdef object run(self, const Description* call):
        """NotImplemented where memory is shared that was not when the plan was made."""
        cdef char* data[MAX_PLACES]
        cdef Buffers buffers = None
        cdef Frame frame
        cdef int i, k, w
        for i in range(self.writes):
            w = self.written[i]
            for k in range(self.arrays):
                if (
                    call.data[k] != call.data[w]
                    and call.low[k] < call.high[w] and call.low[w] < call.high[k]
                ):
                    return NotImplemented
        for k in range(self.arrays):
            data[k] = call.data[k]
        if self.outputs or self.workspaces:
            buffers = Buffers.__new__(Buffers)
            buffers.make(self, call, &data[self.arrays])
        try:
            frame = self.frames.pop()
        except IndexError:  # the first run, or one beside another
            frame = self.model.copy()
        for i in range(frame.count):
            (<View>frame.views[i]).operand.data = data[frame.places[i]]
        frame.run(call)
        self.frames.append(frame)
        return self.answer(self.result, call, buffers)

    cdef object answer(self, result, const Description* call, Buffers buffers):
        cdef int place
        if type(result) is int:
            place = result
            if place < self.arrays:
                return <object>call.array[place]
            return buffers.give(place - self.arrays)
        if type(result) is tuple:
            return tuple([self.answer(part, call, buffers) for part in <tuple>result])
        return (<list>result)[0]


cdef class Buffers:
    """The memory of one run: outputs, until they are given away, and workspaces."""

    cdef list arrays  # the outputs, as the caller gets them; None: not yet
    cdef DLManagedTensorVersioned* owned[MAX_PLACES]  # a framework's outputs, and memory of a device
    cdef void* scratch[MAX_PLACES]
    cdef DLPackExchangeAPI* api

    cdef int make(self, Plan plan, const Description* call, char** data) except -1:
        cdef View model
        cdef int64_t size
        cdef int k
        if call.kind is not NULL:
            self.api = call.kind.api
        self.arrays = []
        for k in range(plan.outputs):
            model = plan.made[k]
            if call.kind is NULL:
                array = cnp.PyArray_SimpleNew(
                    model.operand.ndim, <cnp.npy_intp*>model.shape_, numpy_type(model.dtype)
                )
                self.arrays.append(array)
                data[k] = <char*>cnp.PyArray_DATA(array)
            else:
                self.arrays.append(None)
                data[k] = self.own(k, call.device, model.dtype, model.operand.ndim, model.shape_)
        for k in range(plan.outputs, plan.outputs + plan.workspaces):
            size = plan.sizes[k - plan.outputs]
            if is_on_cpu(call):
                data[k] = <char*>malloc(size)
                if data[k] is NULL:
                    raise MemoryError
                self.scratch[k] = data[k]
            else:
                data[k] = self.own(k, call.device, -1, 1, &size)
        return 0

    cdef char* own(
        self, int k, DLDevice device, int dtype, int ndim, const int64_t* shape
    ) except NULL:
        self.owned[k] = new_tensor(self.api, device, dtype, ndim, shape)
        return <char*>self.owned[k].dl_tensor.data + self.owned[k].dl_tensor.byte_offset

    cdef object give(self, int k):
        cdef DLManagedTensorVersioned* tensor = self.owned[k]
        array = self.arrays[k]
        if self.api is NULL:
            return array[()] if cnp.PyArray_NDIM(array) == 0 else array
        if array is None:
            self.owned[k] = NULL
            array = self.arrays[k] = hand_over(tensor, self.api)
        return array

    def __dealloc__(self):
        cdef int k
        for k in range(MAX_PLACES):
            if self.owned[k] is not NULL:
                self.owned[k].deleter(self.owned[k])
            free(self.scratch[k])


# --- from a call that is done to its plan ---------------------------------------------------------


def note(call):
    """A `Call` begins: if it is one to be written down, its door hears of it."""
    calls = getattr(recordings, "calls", None)
    if calls is not None:
        calls.append(call)


cdef Plan plan_of(object call, const Description* description, object result):
    """call: a `Call` that is done."""
    cdef Plan plan = Plan.__new__(Plan)
    cdef Frame model = Frame.__new__(Frame)
    cdef View view
    cdef int k
    plan.arrays = description.arrays
    plan.outputs, plan.workspaces = len(call.made), len(call.scratch)
    if (
        plan.arrays + plan.outputs + plan.workspaces > MAX_PLACES
        or len(call.written) > MAX_ARRAYS or call.given
    ):
        raise Impossible
    plan.made = [contiguous(made[0]) for made in call.made]
    for k in range(plan.workspaces):
        view = call.scratch[k][0]
        plan.sizes[k] = view.size * view.itemsize
    model.functions, model.arguments = [], []
    for function, arguments in call.runs:
        model.functions.append(function)
        own = []
        for value in arguments:
            k = place_of(plan, call, description, value) if type(value) is View else CONSTANT
            own.append(value if k == CONSTANT else model.take(value, k))
        model.arguments.append(tuple(own))
    for view in call.written:
        plan.written[plan.writes] = place_of(plan, call, description, view)
        plan.writes += 1
    plan.result = place_in_result(plan, call, description, result)
    plan.model, plan.frames = model, []
    plan.ops = tuple([<object>description.op[k] for k in range(description.ops)])
    return plan


cdef View contiguous(View made):
    """`made`, which plans can make again."""
    cdef int64_t step = made.itemsize
    cdef int i
    for i in range(made.operand.ndim - 1, -1, -1):
        if made.shape_[i] != 1 and made.strides_[i] != step:
            raise Impossible
        step *= made.shape_[i]
    if step == 0:
        raise Impossible
    return made.without_memory()


cdef int place_of(Plan plan, object call, const Description* description, View view) except -2:
    """Where the memory of a view comes from; CONSTANT: from a number, which the plan may keep."""
    cdef View root = view
    cdef int k
    while type(root.owner) is View:
        root = root.owner
    if root.operand.data == view.operand.data:
        for k in range(plan.arrays):
            if root.owner is <object>description.array[k]:
                if root.operand.data == description.data[k]:
                    return k
        for k in range(plan.outputs):
            if root is call.made[k][0]:
                return plan.arrays + k
        for k in range(plan.workspaces):
            if root is call.scratch[k][0]:
                return plan.arrays + plan.outputs + k
        if any(root is constant for constant in call.constants):
            return CONSTANT
    raise Impossible


cdef object place_in_result(Plan plan, object call, const Description* description, object result):
    cdef int k
    for k in range(plan.arrays):
        if result is <object>description.array[k]:
            return k
    for k in range(plan.outputs):
        if result is call.made[k][1]:
            return plan.arrays + k
    if type(result) is tuple:
        return tuple([place_in_result(plan, call, description, part) for part in result])
    if type(result) in (int, float, type(None)):
        return [result]
    raise Impossible


cdef class Door:
    """A function of the Python layer, behind its plans."""

    cdef dict __dict__  # its name, docstring and signature
    cdef object function
    cdef dict plans

    def __init__(self, function):
        self.function = function
        self.plans = {}

    def __call__(self, *args, **kwargs):
        return self.enter(args, kwargs)

    cdef object enter(self, tuple args, dict kwargs):
        cdef Description call
        if not describe(&call, args, kwargs):
            return self.function(*args, **kwargs)
        key = PyBytes_FromStringAndSize(<char*>call.words, call.count * sizeof(uint64_t))
        plan = self.plans.get(key)
        if type(plan) is Plan:
            result = (<Plan>plan).run(&call)
            return self.function(*args, **kwargs) if result is NotImplemented else result
        if plan is SEEN:
            return self.write_down(&call, key, args, kwargs)
        result = self.function(*args, **kwargs)
        if plan is None:
            self.remember(key, SEEN)
        return result

    cdef object write_down(self, const Description* call, bytes key, tuple args, dict kwargs):
        outer, recordings.calls = getattr(recordings, "calls", None), []
        try:
            result = self.function(*args, **kwargs)
            calls = recordings.calls
        finally:
            recordings.calls = outer
        plan = NEVER
        if len(calls) == 1:
            try:
                plan = plan_of(calls[0], call, result)
            except Impossible:
                pass
        self.remember(key, plan)
        return result

    cdef int remember(self, bytes key, object plan) except -1:
        if len(self.plans) >= MAX_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        return 0


cdef class Doors:
    """An op whose call is a door."""

    cdef Door door

    def _open(self, Door door):
        self.door = door

    def __call__(self, *args, **kwargs):
        return self.door.enter(args, kwargs)
