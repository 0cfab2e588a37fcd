"""Bias: an activation of x + bias + residual in one pass, and the gradients of broadcasting.

`bias_grad` and `unbroadcast` are sums over axes (`reductions`) under the names that a network's
backward pass knows them by. `bias_act` (`_bias_act.py`) fuses any activation of `fastact.ops`.
"""

from typing import Any

from . import _axes, _checks
from ._bias_act import bias_act as bias_act
from ._call import Call
from ._op import Op, SumBounds, register
from .reductions import IDENTITY, add_up

_BOUNDS = SumBounds(ulp=0.5, absolute=2.0**-46)
_SUM_KEYWORDS = frozenset({"axis", "out", "accumulate", "stream"})
_SUM_OPTIONS: dict[str, Any] = {"axis": -1, "out": None, "accumulate": False, "stream": None}
_SHAPE_OPTIONS = {name: value for name, value in _SUM_OPTIONS.items() if name != "axis"}


class BiasGrad(Op):
    """A sum over every axis but one, and the way back."""

    bounds = _BOUNDS

    def __init__(self, doc: str) -> None:
        self._introduce("bias_grad", "bias", ("dy",), doc)
        self._takes(("dy",), _SUM_OPTIONS, _SUM_KEYWORDS)

    def __call__(self, dy: Any, /, **kwargs: Any) -> Any:
        return self._reduce("fastact.bias_grad", dy, kwargs)[0]

    def forward(self, dy: Any, /, **kwargs: Any) -> tuple[Any, tuple[tuple[int, ...]]]:
        """forward(dy, *, axis=-1, out=None, accumulate=False) -> (dbias, saved)

        The sum, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        dbias : array
        saved : tuple
            ``(shape,)``, the shape of dy: the gradient of a sum needs nothing else of it.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dbias, saved = fa.bias_grad.forward(np.ones((2, 3)))
        >>> fa.bias_grad.backward(np.array([1.0, 2.0, 3.0]), *saved)
        array([[1., 2., 3.],
               [1., 2., 3.]])
        """
        dbias, shape = self._reduce("fastact.bias_grad.forward", dy, kwargs)
        return dbias, (shape,)

    def backward(self, dy: Any, shape: Any, /, **kwargs: Any) -> Any:
        """backward(dy, shape, *, axis=-1, out=None, accumulate=False) -> dx

        dx = dy, repeated along every axis but `axis`: what adding a bias does.

        Parameters
        ----------
        dy : array
            1-D: the gradient of the loss with respect to what `forward` gave.
        shape : tuple of int
            What `forward` saved.
        axis : int
            As told to `forward`.
        out : array, optional
            Where to write dx; it may not share memory with dy.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given, else a new array of dy's dtype and framework.
        """
        where = "fastact.bias_grad.backward"
        axis, out, accumulate, stream = _checks.bind(where, _SUM_OPTIONS, (), kwargs, _SUM_KEYWORDS)
        shape = _axes.lengths(where, "shape", shape)
        axis = _axes.one(where, axis, len(shape))
        others = _axes.all_but(axis, len(shape))
        return _repeat(where, dy, (shape[axis],), others, shape, out, accumulate, stream)

    def _reduce(self, where: str, dy: Any, kwargs: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
        """dbias, and the shape of dy."""
        axis, out, accumulate, stream = _checks.bind(where, _SUM_OPTIONS, (), kwargs, _SUM_KEYWORDS)
        (out,) = _checks.outputs(where, out)
        accumulate = _checks.flag(where, "accumulate", accumulate)
        _checks.needs_out(where, accumulate, out)
        with Call(where, stream, dy=dy) as call:
            view = call.views["dy"]
            axis = _axes.one(where, axis, view.ndim)
            shape = (view.shape[axis],)
            dbias, made = call.output("out", out, "dy", shape=shape, in_place=False)
            axes = _axes.all_but(axis, view.ndim)
            add_up(call, IDENTITY, view, dbias.with_axes(axes), axes, accumulate)
            return call.result(out, made), view.shape


class Unbroadcast(Op):
    """The gradient of broadcasting: a sum over the axes that broadcasting repeats."""

    bounds = _BOUNDS

    def __init__(self, doc: str) -> None:
        self._introduce("unbroadcast", "bias", ("dy", "shape"), doc)
        self._takes(("dy", "shape"), _SHAPE_OPTIONS, _SUM_KEYWORDS)

    def __call__(self, dy: Any, shape: Any, /, **kwargs: Any) -> Any:
        return self._reduce("fastact.unbroadcast", dy, shape, kwargs)[0]

    def forward(self, dy: Any, shape: Any, /, **kwargs: Any) -> tuple[Any, tuple[tuple[int, ...]]]:
        """forward(dy, shape, *, out=None, accumulate=False) -> (dx, saved)

        The sum, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        dx : array
        saved : tuple
            ``(shape,)``, the shape of dy.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dx, saved = fa.unbroadcast.forward(np.ones((2, 3)), (2, 1))
        >>> fa.unbroadcast.backward(dx, *saved)
        array([[3., 3., 3.],
               [3., 3., 3.]])
        """
        dx, saved = self._reduce("fastact.unbroadcast.forward", dy, shape, kwargs)
        return dx, (saved,)

    def backward(self, dy: Any, shape: Any, /, **kwargs: Any) -> Any:
        """backward(dy, shape, *, out=None, accumulate=False) -> dx

        dx = dy, broadcast to `shape` as NumPy does it.

        Parameters
        ----------
        dy : array
            The gradient of the loss with respect to what `forward` gave, of its shape.
        shape : tuple of int
            What `forward` saved.
        out : array, optional
            Where to write dx; it may not share memory with dy.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given, else a new array of dy's dtype and framework.
        """
        where = "fastact.unbroadcast.backward"
        out, accumulate, stream = _checks.bind(where, _SHAPE_OPTIONS, (), kwargs, _SUM_KEYWORDS)
        shape = _axes.lengths(where, "shape", shape)
        return _repeat(where, dy, None, None, shape, out, accumulate, stream)

    def _reduce(
        self, where: str, dy: Any, shape: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[int, ...]]:
        """dx, and the shape of dy."""
        out, accumulate, stream = _checks.bind(where, _SHAPE_OPTIONS, (), kwargs, _SUM_KEYWORDS)
        (out,) = _checks.outputs(where, out)
        shape = _axes.lengths(where, "shape", shape)
        accumulate = _checks.flag(where, "accumulate", accumulate)
        _checks.needs_out(where, accumulate, out)
        with Call(where, stream, dy=dy) as call:
            view = call.views["dy"]
            axes = _axes.unbroadcast(where, shape, view.shape)
            dx, made = call.output("out", out, "dy", shape=shape, in_place=False)
            extra = tuple(range(view.ndim - len(shape)))
            add_up(call, IDENTITY, view, dx.with_axes(extra), axes, accumulate)
            return call.result(out, made), view.shape


def _repeat(
    where: str,
    dy: Any,
    expected: tuple[int, ...] | None,
    others: tuple[int, ...] | None,
    shape: tuple[int, ...],
    out: Any,
    accumulate: Any,
    stream: Any,
) -> Any:
    """dx: dy repeated to `shape`.

    expected: dy's shape, and others: where `shape` has axes that it has not; None: broadcasting.
    """
    (out,) = _checks.outputs(where, out)
    accumulate = _checks.flag(where, "accumulate", accumulate)
    _checks.needs_out(where, accumulate, out)
    with Call(where, stream, dy=dy) as call:
        view = call.views["dy"]
        if expected is not None:
            _axes.has_shape(where, "dy", view, expected)
        elif not _axes.broadcasts(view.shape, shape):
            raise ValueError(
                f"{where}: dy must have a shape that broadcasts to {shape}, got {view.shape}"
            )
        if others is None:
            others = tuple(range(len(shape) - view.ndim))
        dx, made = call.output("out", out, "dy", shape=shape, in_place=False)
        repeated = view.with_axes(others).broadcast_to(shape)
        call.native.broadcast(repeated, dx, accumulate, call.stream)
        return call.result(out, made)


bias_grad = register(
    BiasGrad(
        """bias_grad(dy, *, axis=-1, out=None, accumulate=False)

        The gradient of a bias: the sum of dy over every axis but `axis`.

        Parameters
        ----------
        dy : array
            Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array
            of any framework with DLPack.
        axis : int
            The bias's axis: -1 for rows and channels last, 1 for NCHW.
        out : array, optional
            Where to write the gradient: its shape, and dtype, device and framework of dy. It may
            not share memory with dy.
        accumulate : bool
            Add the sum to `out`, before it is rounded, instead of overwriting it.

        Returns
        -------
        dbias : array
            1-D; `out` where it was given, else a new array of dy's framework and dtype.

        Raises
        ------
        TypeError
            For a dtype that is not supported, or an axis that is no integer.
        ValueError
            For an axis out of range; an `out` that does not fit or shares memory with dy.

        Notes
        -----
        As accurate as `fastact.sum`, and always of the same bits: 1600 ones in bfloat16 are 1600.
        One read of the data.

        References
        ----------
        T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
        (2005), https://doi.org/10.1137/030601818

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.bias_grad(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([4., 6.])
        >>> fa.bias_grad(np.ones((2, 3, 5, 5), np.float32), axis=1)
        array([50., 50., 50.], dtype=float32)
        """
    )
)

unbroadcast = register(
    Unbroadcast(
        """unbroadcast(dy, shape, *, out=None, accumulate=False)

        The gradient of broadcasting an array of `shape` to the shape of dy: the sum of dy over the
        axes that broadcasting repeats.

        Parameters
        ----------
        dy : array
            Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array
            of any framework with DLPack.
        shape : tuple of int
            A shape that NumPy broadcasts to that of dy.
        out : array, optional
            Where to write the gradient: of `shape`, and dtype, device and framework of dy. It may
            not share memory with dy.
        accumulate : bool
            Add the sum to `out`, before it is rounded, instead of overwriting it.

        Returns
        -------
        dx : array
            Of `shape`; `out` where it was given, else a new array of dy's framework and dtype.

        Raises
        ------
        TypeError
            For a dtype that is not supported, or a shape that is no tuple of integers.
        ValueError
            For a shape that does not broadcast to that of dy; an `out` that does not fit or shares
            memory with dy.

        Notes
        -----
        As accurate as `fastact.sum`, and always of the same bits.

        References
        ----------
        NumPy, "Broadcasting", https://numpy.org/doc/stable/user/basics.broadcasting.html

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.unbroadcast(np.ones((4, 2, 3)), (2, 1))
        array([[12.],
               [12.]])
        """
    )
)
