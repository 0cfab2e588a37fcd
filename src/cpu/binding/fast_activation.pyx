# The compiled half of activations: their calls, by the fast path (fast_path.pyx) where it
# serves them. Their native functions are described in common/activations/call.h.

from inspect import Parameter

# Stands for an argument that was not given; the Python half then raises, and names it. As a default
# it is to `inspect` as if there were none.
cdef object MISSING = Parameter.empty


cdef class FastActivation(CachedOp):
    """The compiled half of an activation: its entry points, the fast path first.

    The Python half gives three cached calls. They take the same arguments, and serve, or refuse
    with an explanation, whatever the fast path does not: parameters other than the defaults among
    it.
    """

    cdef readonly int _which
    cdef bint saves_value
    cdef Py_ssize_t parameters
    cdef ParameterValues defaults
    cdef CachedCall cached_forward, cached_backward

    def __init__(self, str native, int parameters, tuple numbers not None):
        """native: with the defaults. parameters: how many; numbers: those that are no strings."""
        self._which = ACTIVATIONS.index(native)
        self.saves_value = native in SAVE_VALUE
        self.parameters = parameters
        if len(numbers) > kMaxParameters:
            refuse(f"numbers must be a tuple of at most {kMaxParameters}, got {numbers}")
        for i, number in enumerate(numbers):
            self.defaults.value[<int>i] = number

    def _cache_entry_points(self, CachedCall call, CachedCall forward, CachedCall backward):
        self.entry, self.cached_forward, self.cached_backward = call, forward, backward

    cdef bint understand(
        self, tuple args, dict kwargs, PyObject** out, PyObject** accumulate
    ) noexcept:
        """Find out and accumulate; False: the Python half must look."""
        cdef Py_ssize_t understood = 0
        refuse_current_draft()
        if not call_cache_enabled or self.entry is None:
            return False
        if args:
            if len(args) > 1 or self.parameters or kwargs:
                return False
            out[0] = PyTuple_GET_ITEM(args, 0)
            return True
        if kwargs:
            out[0] = PyDict_GetItem(kwargs, "out")
            understood += out[0] is not NULL
            if accumulate is not NULL:
                accumulate[0] = PyDict_GetItem(kwargs, "accumulate")
                understood += accumulate[0] is not NULL
        return understood == <Py_ssize_t>len(kwargs)

    cdef object quick_forward(self, x, tuple args, dict kwargs, bint keep_inputs):
        """NotImplemented unless all is as the fast path knows it."""
        cdef PyObject* value = <PyObject*>x
        cdef PyObject* out = NULL
        cdef Work work
        if not self.understand(args, kwargs, &out, NULL):
            return NotImplemented
        work.which = self._which
        work.parameters = self.defaults.value
        work.kernels = &table.elementwise.forward[work.which][0]
        work.backward = work.accumulate = False
        work.casts = self.entry.casts and not keep_inputs  # not `forward`
        return quick(&work, 1, &value, None if out is NULL else <object>out, keep_inputs)

    def __call__(self, x=MISSING, /, *args, **kwargs):
        if x is MISSING:
            return enter(self.entry, args, kwargs)
        result = self.quick_forward(x, args, kwargs, False)
        if result is NotImplemented:
            return enter(self.entry, (x,) + args, kwargs)
        return result

    def forward(self, x=MISSING, /, *args, **kwargs):
        """forward(x, ..., out=None) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Parameters
        ----------
        x : array
            As for the call.
        ... : float
            The op's own parameters, as for the call.
        out : array, optional
            Where to write y. It may not share memory with x where that is saved.

        Returns
        -------
        y : array
        saved : tuple
            ``(x,)``, or ``(y,)`` where the op's documentation says so. It is not a copy: do not
            change it before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.mish.forward(np.array([-1.0, 0.0, 1.0]))
        >>> fa.mish.backward(np.ones(3), *saved)
        array([0.0592..., 0.6       , 1.0490...])
        """
        if x is MISSING:
            return enter(self.cached_forward, args, kwargs)
        result = self.quick_forward(x, args, kwargs, not self.saves_value)
        if result is NotImplemented:
            return enter(self.cached_forward, (x,) + args, kwargs)
        return result, (result if self.saves_value else x,)

    cdef object enter_backward(self, dy, saved, tuple args, dict kwargs):
        cdef PyObject** values = [<PyObject*>dy, <PyObject*>saved]
        cdef PyObject* out = NULL
        cdef PyObject* accumulate = NULL
        cdef Work work
        if saved is MISSING:
            return enter(self.cached_backward, () if dy is MISSING else (dy,), kwargs)
        if self.understand(args, kwargs, &out, &accumulate) and (
            accumulate is NULL or type(<object>accumulate) is bool
        ):
            work.which = self._which
            work.parameters = self.defaults.value
            work.kernels = &table.elementwise.backward_by_saved[work.which][0][0]
            work.backward, work.casts = True, False
            work.accumulate = accumulate is not NULL and <object>accumulate
            result = quick(&work, 2, values, None if out is NULL else <object>out, False)
            if result is not NotImplemented:
                return result
        return enter(self.cached_backward, (dy, saved) + args, kwargs)


def backward_of(FastActivation op not None):
    """The compiled half of an activation's `backward`: a function, which may have attributes."""
    def backward(dy=MISSING, saved=MISSING, /, *args, **kwargs):
        return op.enter_backward(dy, saved, args, kwargs)
    return backward


def keep_compiled_call(cls):
    """Let a call of an op of this class begin in compiled code, as a call of its base does.

    The class has a `__call__` in Python too, which would take its place: torch.compile traces
    Python and nothing else.
    """
    base = FastActivation if issubclass(cls, FastActivation) else CachedOp
    (<PyTypeObject*>cls).tp_call = (<PyTypeObject*>base).tp_call
