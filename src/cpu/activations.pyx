# Activations: y = f(x), and dx = dy f'(x), over whole arrays.

ACTIVATIONS = tuple([kActivationNames[i].decode() for i in range(kActivations)])


def activation_forward(int which, View x, View y, tuple parameters, stream):
    """y OUT = f(x IN); same shape, dtype and device, equal or disjoint memory.

    stream: for device modules, which have the same functions.
    """
    cdef double p[MAX_PARAMETERS]
    cdef Operand[2] arrays = [x.operand, y.operand]
    unpack(parameters, p)
    run(table.forward[which][x.dtype], p, x.dtype, False, 2, arrays, x.size)


def activation_backward(
    int which, View dy, View x, View dx, tuple parameters, bint accumulate, stream
):
    """dx OUT = dy IN * f'(x IN), or dx IN/OUT += of the same."""
    cdef double p[MAX_PARAMETERS]
    cdef Operand[3] arrays = [dy.operand, x.operand, dx.operand]
    unpack(parameters, p)
    run(table.backward[which][x.dtype][accumulate], p, x.dtype, accumulate, 3, arrays, x.size)


cdef class FastActivation:
    """The compiled half of an activation: its three doors, short cut first.

    The Python half gives `_call`, `_forward` and `_backward`. They take the same arguments, and
    serve, or refuse with an explanation, whatever the short cut does not.
    """

    cdef readonly int _which
    cdef int parameter_count
    cdef double[MAX_PARAMETERS] defaults

    def __init__(self, str name, tuple defaults):
        self._which = ACTIVATIONS.index(name)
        self.parameter_count = len(defaults)
        unpack(defaults, self.defaults)

    cdef object quick_forward(self, x, tuple args, dict kwargs, bint keep_inputs):
        """NotImplemented unless the only argument beside x is `out`."""
        cdef PyObject* value = <PyObject*>x
        cdef object out = None
        cdef Work work
        if args:
            if kwargs or len(args) != 1 or self.parameter_count:
                return NotImplemented
            out = args[0]
        elif kwargs:
            if len(kwargs) != 1 or "out" not in kwargs:
                return NotImplemented
            out = kwargs["out"]
        work.blocks = &table.forward[self._which][0]
        work.parameters = self.defaults
        work.which = self._which
        work.backward = work.accumulate = False
        return quick(&work, 1, &value, out, keep_inputs)

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
        cdef Py_ssize_t understood = 0
        cdef Work work
        out = None
        accumulate = False
        if kwargs:
            if "out" in kwargs:
                out = kwargs["out"]
                understood += 1
            if "accumulate" in kwargs:
                accumulate = kwargs["accumulate"]
                understood += 1
        if not args and len(kwargs) == understood and type(accumulate) is bool:
            work.blocks = &table.backward[self._which][0][0]
            work.parameters = self.defaults
            work.which = self._which
            work.backward = True
            work.accumulate = accumulate
            result = quick(&work, 2, values, out, False)
            if result is not NotImplemented:
                return result
        return self._backward(dy, x, *args, **kwargs)
