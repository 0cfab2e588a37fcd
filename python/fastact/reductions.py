"""Reductions: sums over any axes, of the elements or of their squares.

Every dtype is summed in double, in one order whatever the layout, the threads and the instruction
set; the order and its error bound are derived in `src/cpu/reduce_blocks.h`.
"""

from typing import Any

from . import _axes, _checks, _cpu
from ._call import Call
from ._cpu import View
from ._op import Op, SumBounds, register

_KEYWORD_ONLY = frozenset({"keepdims", "out", "accumulate", "stream"})
_OPTIONS: dict[str, Any] = {"axis": None, "keepdims": False, "out": None, "stream": None}

IDENTITY, SQUARE = (_cpu.TERMS.index(term) for term in ("identity", "square"))


def add_up(
    call: Call, term: int, x: View, y: View, axes: tuple[int, ...], accumulate: bool = False
) -> None:
    """y = the sum of a term of x over `axes`, along which y has length 1."""
    workspace = call.workspace(call.native.sum_workspace(term, x, y, axes))
    call.native.sum(term, x, y, axes, workspace, accumulate, call.stream)


class _Reduction(Op):
    """A sum over some axes."""

    bounds: SumBounds
    term: int

    def __init__(self, name: str, bounds: SumBounds, doc: str) -> None:
        self._introduce(name, "reductions", ("x",), doc)
        self._takes(("x",), _OPTIONS, _KEYWORD_ONLY)
        self.bounds = bounds

    def __call__(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._reduce(f"fastact.{self.name}", x, args, kwargs)[0]

    def _reduce(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, tuple[int, ...]]:
        """y, and x as it was computed on and its shape."""
        axis, keepdims, out, stream = _checks.bind(where, _OPTIONS, args, kwargs, _KEYWORD_ONLY)
        (out,) = _checks.outputs(where, out)
        keepdims = _checks.flag(where, "keepdims", keepdims)
        with Call(where, stream, x=x) as call:
            view = call.views["x"]
            axes = _axes.axes(where, axis, view.ndim)
            shape = _axes.reduced(view.shape, axes, keepdims)
            y, made = call.output("out", out, "x", shape=shape, in_place=False)
            add_up(call, self.term, view, y if keepdims else y.with_axes(axes), axes)
            return call.result(out, made), call.arrays["x"], view.shape


class Sum(_Reduction):
    """The sum itself, and the way back: a gradient repeated along the axes."""

    term = IDENTITY

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[tuple[int, ...]]]:
        """forward(x, axis=None, *, keepdims=False, out=None) -> (y, saved)

        The sum, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        y : array
        saved : tuple
            ``(shape,)``, the shape of x: the gradient of a sum needs nothing else of it.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.sum.forward(np.ones((2, 3)), axis=0)
        >>> fa.sum.backward(np.array([1.0, 2.0, 3.0]), *saved, axis=0)
        array([[1., 2., 3.],
               [1., 2., 3.]])
        """
        y, _, shape = self._reduce(f"fastact.{self.name}.forward", x, args, kwargs)
        return y, (shape,)

    def backward(self, dy: Any, shape: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward(dy, shape, axis=None, *, keepdims=False, out=None, accumulate=False) -> dx

        dx = dy, repeated along the axes that were summed over.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y, of y's shape.
        shape : tuple of int
            What `forward` saved: the shape of x.
        axis, keepdims
            As told to `forward`.
        out : array, optional
            Where to write dx; it may not share memory with dy.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given, else a new array of dy's dtype and framework.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dx = np.ones(3)
        >>> fa.sum.backward(0.5, (3,), out=dx, accumulate=True)
        array([1.5, 1.5, 1.5])
        """
        where = f"fastact.{self.name}.backward"
        allowed = {**_OPTIONS, "accumulate": False}
        axis, keepdims, out, stream, accumulate = _checks.bind(
            where, allowed, args, kwargs, _KEYWORD_ONLY
        )
        (out,) = _checks.outputs(where, out)
        shape = _axes.lengths(where, "shape", shape)
        axes = _axes.axes(where, axis, len(shape))
        keepdims = _checks.flag(where, "keepdims", keepdims)
        accumulate = _checks.flag(where, "accumulate", accumulate)
        _checks.needs_out(where, accumulate, out)

        # A number has no dtype of its own: it takes that of `out`, or else float64.
        is_number = isinstance(dy, bool | int | float)
        arrays = {"out": out, "dy": dy} if is_number and out is not None else {"dy": dy}
        with Call(where, stream, **arrays) as call:
            gradient = call.views["dy"]
            if not is_number:
                _axes.has_shape(where, "dy", gradient, _axes.reduced(shape, axes, keepdims))
                gradient = gradient if keepdims else gradient.with_axes(axes)
            elif out is None:
                gradient = gradient.with_axes(tuple(range(len(shape))))
            dx, made = call.output("out", out, next(iter(arrays)), shape=shape, in_place=is_number)
            call.native.broadcast(gradient.broadcast_to(shape), dx, accumulate, call.stream)
            return call.result(out, made)


class SumSquares(_Reduction):
    """The sum of the squares, and the way back."""

    term = SQUARE

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any]]:
        """forward(x, axis=None, *, keepdims=False, out=None) -> (y, saved)

        The sum of the squares, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        y : array
        saved : tuple
            ``(x,)``. It is not copied: do not change it before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.sum_squares.forward(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
        >>> fa.sum_squares.backward(np.array([1.0, 0.5]), *saved, axis=0)
        array([[2., 2.],
               [6., 4.]])
        """
        y, x, _ = self._reduce(f"fastact.{self.name}.forward", x, args, kwargs)
        return y, (x,)

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward(dy, x, axis=None, *, keepdims=False, out=None, accumulate=False) -> dx

        dx = 2 x dy, with dy repeated along the axes that were summed over.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y, of y's shape and of x's dtype.
        x : array
            What `forward` saved.
        axis, keepdims
            As told to `forward`.
        out : array, optional
            Where to write dx; it may be x itself, but not share memory with dy.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given, else a new array of x's dtype and framework.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.sum_squares.backward(1.0, np.array([1.0, 2.0, 3.0]))
        array([2., 4., 6.])
        """
        where = f"fastact.{self.name}.backward"
        allowed = {**_OPTIONS, "accumulate": False}
        axis, keepdims, out, stream, accumulate = _checks.bind(
            where, allowed, args, kwargs, _KEYWORD_ONLY
        )
        (out,) = _checks.outputs(where, out)
        keepdims = _checks.flag(where, "keepdims", keepdims)
        accumulate = _checks.flag(where, "accumulate", accumulate)
        _checks.needs_out(where, accumulate, out)
        with Call(where, stream, x=x, dy=dy) as call:
            view, gradient = call.views["x"], call.views["dy"]
            axes = _axes.axes(where, axis, view.ndim)
            if "dy" in call.arrays:
                _checks.same_dtype(where, "dy", gradient, "x", view)
                _axes.has_shape(where, "dy", gradient, _axes.reduced(view.shape, axes, keepdims))
                gradient = (gradient if keepdims else gradient.with_axes(axes)).broadcast_to(
                    view.shape
                )
            dx, made = call.output("out", out, "x")
            call.native.square_backward(gradient, view, dx, accumulate, call.stream)
            return call.result(out, made)

    def value_and_grad(self, x: Any, out: Any = None, *, stream: Any = None) -> tuple[Any, Any]:
        """value_and_grad(x, out=None) -> (value, grad)

        The sum of the squares of all of x, and its gradient 2 x, in one pass over x.

        Parameters
        ----------
        x : array
            As for the call.
        out : tuple of two arrays or None, optional
            Where to write the value, of shape (), and the gradient, of x's shape; both of x's
            dtype. The gradient's may be x itself.

        Returns
        -------
        value : array
            With the bits of calling the op.
        grad : array

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> value, grad = fa.sum_squares.value_and_grad(np.array([1.0, 2.0, 3.0]))
        >>> print(value, grad)
        14.0 [2. 4. 6.]
        """
        where = f"fastact.{self.name}.value_and_grad"
        outs = _checks.outputs(where, out, 2)
        with Call(where, stream, x=x) as call:
            view = call.views["x"]
            axes = tuple(range(view.ndim))
            y, value = call.output("out[0]", outs[0], "x", shape=(), in_place=False)
            grad, made = call.output("out[1]", outs[1], "x")
            _checks.apart(where, "out[1]", grad, {"out[0]": y})
            kept = y.with_axes(axes)
            workspace = call.workspace(call.native.sum_workspace(SQUARE, view, kept, axes))
            call.native.square_value_and_grad(view, kept, grad, workspace, call.stream)
            return call.result(outs[0], value), call.result(outs[1], made)


sum = register(
    Sum(
        "sum",
        SumBounds(ulp=0.5, absolute=2.0**-46),
        """sum(x, axis=None, *, keepdims=False, out=None)

        y = the sum of x over the axes `axis`, accumulated in double.

        Parameters
        ----------
        x : array
            Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array
            of any framework with DLPack. Integers, lists and scalars are taken as np.tanh takes
            them.
        axis : int or tuple of int, optional
            The axes to sum over, negative ones counted from the last; all of them without any. An
            empty tuple sums over none.
        keepdims : bool
            Leave the axes that were summed over in y, with length 1.
        out : array, optional
            Where to write y: its shape, and dtype, device and framework of x. It may not share
            memory with x.

        Returns
        -------
        y : array
            `out` where it was given, else a new array of x's framework and dtype. A sum over no
            elements is 0.

        Raises
        ------
        TypeError
            For a dtype that is not supported, mixed frameworks, a tensor that requires grad, or an
            axis that is no integer.
        ValueError
            For an axis out of range or named twice; an `out` of another shape or device, read-only,
            or that shares memory with x.

        Notes
        -----
        At most 0.5 ULP of the result plus 2**-46 times the sum of abs(x) from the true sum, for up
        to 2**40 terms: float16, bfloat16 and float32 are summed in double and rounded once, blocks
        of 2048 terms are added with compensation. 2**28 ones in bfloat16 sum to 2**28, and
        ``[3e38, 3e38, -3e38]`` in float32 to 3e38. Infinities and NaN propagate as in a plain sum.

        The terms are added in an order that depends on nothing but the lengths that are summed
        over: the bits are the same for any number of threads, on AVX2 and AVX-512, alone and
        in any batch. (Which of several axes comes first depends on their strides.)

        References
        ----------
        T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
        (2005), https://doi.org/10.1137/030601818
        N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., chapter 4

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.sum(np.ones((2, 3), np.float32), axis=0)
        array([2., 2., 2.], dtype=float32)
        >>> fa.sum(np.array([[3e38], [3e38], [-3e38]], np.float32), axis=0)
        array([3.e+38], dtype=float32)
        """,
    )
)

sum_squares = register(
    SumSquares(
        "sum_squares",
        SumBounds(ulp=0.5, absolute=2.0**-46),
        """sum_squares(x, axis=None, *, keepdims=False, out=None)

        y = the sum of x**2 over the axes `axis`, squared and accumulated in double.

        Parameters
        ----------
        x : array
            Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array
            of any framework with DLPack. Integers, lists and scalars are taken as np.tanh takes
            them.
        axis : int or tuple of int, optional
            The axes to sum over, negative ones counted from the last; all of them without any. An
            empty tuple sums over none.
        keepdims : bool
            Leave the axes that were summed over in y, with length 1.
        out : array, optional
            Where to write y: its shape, and dtype, device and framework of x. It may not share
            memory with x.

        Returns
        -------
        y : array
            `out` where it was given, else a new array of x's framework and dtype. A sum over no
            elements is 0.

        Raises
        ------
        TypeError
            For a dtype that is not supported, mixed frameworks, a tensor that requires grad, or an
            axis that is no integer.
        ValueError
            For an axis out of range or named twice; an `out` of another shape or device, read-only,
            or that shares memory with x.

        Notes
        -----
        At most 0.5 ULP of the result plus 2**-46 times the true sum from the true sum, for up to
        2**40 terms: the squares of float16, bfloat16 and float32 are exact in double, those of
        float64 are rounded (and overflow from 1.3e154, vanish below 1.6e-162). The order of
        addition is that of `fastact.sum`, and the bits are as independent of threads, instruction
        set and batch.

        References
        ----------
        T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
        (2005), https://doi.org/10.1137/030601818

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.sum_squares(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1)
        array([ 5., 25.])
        """,
    )
)
