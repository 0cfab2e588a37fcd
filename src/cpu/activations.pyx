# Activations: y = f(x), and dx = dy f'(x), over whole arrays.

ACTIVATIONS = tuple([kActivationNames[i].decode() for i in range(kActivations)])


def activation_forward(int which, View x, View y, tuple parameters, stream):
    """y OUT = f(x IN); same shape, dtype and device, equal or disjoint memory.

    stream: for device modules, which have the same functions.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Operand[2] arrays = [x.operand, y.operand]
    unpack(parameters, p)
    run(table.forward[which][x.dtype], p, x.dtype, False, 2, arrays, element_count(x))


def activation_backward(
    int which, View dy, View x, View dx, tuple parameters, bint accumulate, stream
):
    """dx OUT = dy IN * f'(x IN), or dx IN/OUT += of the same."""
    cdef double p[MAX_PARAMETERS]
    cdef Operand[3] arrays = [dy.operand, x.operand, dx.operand]
    unpack(parameters, p)
    run(table.backward[which][x.dtype][accumulate], p, x.dtype, accumulate, 3, arrays, element_count(x))


cdef class FastActivation:
    """The compiled half of an activation: its three doors, short cut first.

    The Python half gives `_call`, `_forward` and `_backward`. They take the same arguments, and
    serve, or refuse with an explanation, whatever the short cut does not.
    """

    cdef readonly int _which
    cdef readonly dict _checked  # parameters that `_call` has accepted -> (which, the numbers)
    cdef tuple names
    cdef tuple usual
    cdef double[MAX_PARAMETERS] defaults

    def __init__(self, str native, tuple names, tuple usual, tuple numbers):
        """native: with the defaults. numbers: those of `usual` that are none but strings."""
        self._which = ACTIVATIONS.index(native)
        self._checked = {}
        self.names = names
        self.usual = usual
        unpack(numbers, self.defaults)

    cdef bint understand(
        self, Work* work, double* numbers, tuple args, dict kwargs, PyObject** out,
        PyObject** accumulate
    ) except -1:
        """Fill in what to run; False: the Python half must look.

        It has seen before whatever parameters pass here; no check of them stands twice.
        """
        cdef Py_ssize_t given = len(args), understood = 0, at
        cdef list values
        cdef PyObject* value
        work.which = self._which
        work.parameters = self.defaults
        if given > <Py_ssize_t>len(self.names):
            if given > <Py_ssize_t>len(self.names) + 1:
                return False
            out[0] = PyTuple_GET_ITEM(args, given - 1)
            given -= 1
        if kwargs:
            value = PyDict_GetItem(kwargs, "out")
            if value is not NULL:
                if out[0] is not NULL:
                    return False
                out[0] = value
                understood += 1
            if accumulate is not NULL:
                value = PyDict_GetItem(kwargs, "accumulate")
                if value is not NULL:
                    accumulate[0] = value
                    understood += 1
        if given == 0 and understood == <Py_ssize_t>len(kwargs):
            return True
        values = list(self.usual)
        for at in range(given):
            values[at] = args[at]
        for at in range(given, len(self.names)):
            if self.names[at] in kwargs:
                values[at] = kwargs[self.names[at]]
                understood += 1
        if understood != <Py_ssize_t>len(kwargs):
            return False
        try:
            found = self._checked.get(tuple(values))
        except TypeError:  # not hashable
            return False
        if found is None:
            return False
        work.which = found[0]
        unpack(found[1], numbers)
        work.parameters = numbers
        return True

    cdef object quick_forward(self, x, tuple args, dict kwargs, bint keep_inputs):
        """NotImplemented unless all is as the short cut knows it."""
        cdef PyObject* value = <PyObject*>x
        cdef PyObject* out = NULL
        cdef double[MAX_PARAMETERS] numbers
        cdef Work work
        if not self.understand(&work, numbers, args, kwargs, &out, NULL):
            return NotImplemented
        work.blocks = &table.forward[work.which][0]
        work.backward = work.accumulate = False
        return quick(&work, 1, &value, None if out is NULL else <object>out, keep_inputs)

    def __call__(self, x, /, *args, **kwargs):
        result = self.quick_forward(x, args, kwargs, False)
        if result is NotImplemented:
            return self._call(x, *args, **kwargs)
        return result

    def forward(self, x, /, *args, **kwargs):
        """forward(x, ..., out=None) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Parameters
        ----------
        x : array
            As for the call. It is saved, not copied: do not change it before `backward`.
        ... : float
            The op's own parameters, as for the call.
        out : array, optional
            Where to write y. It may not share memory with x, which is saved.

        Returns
        -------
        y : array
        saved : tuple
            ``(x,)``

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.mish.forward(np.array([-1.0, 0.0, 1.0]))
        >>> fa.mish.backward(np.ones(3), *saved)
        array([0.0592..., 0.6       , 1.0490...])
        """
        result = self.quick_forward(x, args, kwargs, True)
        if result is NotImplemented:
            return self._forward(x, *args, **kwargs)
        return result, (x,)

    def backward(self, dy, x, /, *args, **kwargs):
        """backward(dy, x, ..., out=None, accumulate=False) -> dx

        dx = dy f'(x), in one pass over dy and x.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x : array
            What `forward` saved.
        ... : float
            The op's own parameters, as told to `forward`.
        out : array, optional
            Where to write dx; it may be dy or x itself.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([-1.0, 0.0, 1.0])
        >>> dx = np.zeros(3)
        >>> fa.mish.backward(1.0, x, out=dx, accumulate=True)
        array([0.0592..., 0.6       , 1.0490...])
        """
        cdef PyObject** values = [<PyObject*>dy, <PyObject*>x]
        cdef PyObject* out = NULL
        cdef PyObject* accumulate = NULL
        cdef double[MAX_PARAMETERS] numbers
        cdef Work work
        if self.understand(&work, numbers, args, kwargs, &out, &accumulate) and (
            accumulate is NULL or type(<object>accumulate) is bool
        ):
            work.blocks = &table.backward[work.which][0][0]
            work.backward = True
            work.accumulate = accumulate is not NULL and <object>accumulate
            result = quick(&work, 2, values, None if out is NULL else <object>out, False)
            if result is not NotImplemented:
                return result
        return self._backward(dy, x, *args, **kwargs)
