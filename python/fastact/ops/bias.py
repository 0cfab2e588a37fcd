"""Bias: the gradients of broadcasting, and of adding a bias in particular.

`bias_grad` and `unbroadcast` are sums over axes (`reduction`) under the names that the backward
pass of a network knows them by. `bias_act` (`bias_act.py`) adds a bias, with an activation behind.
"""

from typing import TYPE_CHECKING, Any

from . import axes as _axes
from .bias_act import bias_act as bias_act
from .op import names_of_ops
from .reduction import Over, Shape, reduction
from .types import A, Out, Stream


def _all_but_one(where: str, options: Any, shape: Shape) -> Over:
    """Over every axis but `axis`."""
    axis = _axes.one(where, options.axis, len(shape), of="dy")
    others = _axes.all_but(axis, len(shape))
    return Over(others, (shape[axis],), others)


def _repeated(where: str, options: Any, shape: Shape) -> Over:
    """Over the axes along which an array of the shape `shape` repeats when it is broadcast."""
    to = _axes.lengths(where, "shape", options.shape)
    axes = _axes.unbroadcast(where, to, shape)
    return Over(axes, to, tuple(range(len(shape) - len(to))))


def _leading(where: str, given: Shape, shape: Shape) -> tuple[int, ...]:
    """The first axes, which an array lacks that broadcasts."""
    if not _axes.broadcasts(given, shape):
        raise ValueError(f"{where}: dy must have a shape that broadcasts to {shape}, got {given}")
    return tuple(range(len(shape) - len(given)))


@reduction(_all_but_one, family="bias", result="dbias")
def bias_grad(
    dy: A,
    /,
    *,
    axis: int = -1,
    out: Out[A] = None,
    accumulate: bool = False,
    stream: Stream = None,
) -> A:
    """Gradient of a bias.

    ``dbias[k] = np.sum(np.take(dy, k, axis))``, the sum over every axis but `axis`, accumulated in
    double.

    Parameters
    ----------
    dy : array
        Of float16, bfloat16, float32 or float64; any shape with one axis or more, and any strides.
        Integers are summed as float64.
    axis : int, default -1
        The bias's axis: -1 for rows and channels last, 1 for NCHW.
    out : array, optional
        Where to write dbias; it may not share memory with dy.
    accumulate : bool, default False
        Add the sum to `out`, before it is rounded, instead of overwriting it.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The sum: 1-D, of dy's dtype and framework; of integers it is float64. Over no elements it is
        0.

    Raises
    ------
    TypeError
        For an axis that is no integer.
    ValueError
        For an axis out of range.

    See Also
    --------
    bias_act : An activation of x + bias, whose backward gives dx and dbias in one pass.
    unbroadcast : The gradient of any broadcasting.

    Notes
    -----
    As accurate as `fastact.sum`, and always of the same bits: 1600 ones in bfloat16 are 1600. One
    read of the data.

    `bias_grad.forward` saves ``(shape,)``, the shape of dy; `bias_grad.backward` repeats its
    gradient along every axis but `axis`: what adding a bias does. docs/conventions.md says what all
    ops share.

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
    >>> dbias, saved = fa.bias_grad.forward(np.ones((2, 3)))
    >>> fa.bias_grad.backward(np.array([1.0, 2.0, 3.0]), *saved)
    array([[1., 2., 3.],
           [1., 2., 3.]])
    """


@reduction(
    _repeated,
    family="bias",
    result="dx",
    lacks=_leading,
)
def unbroadcast(
    dy: A,
    /,
    shape: tuple[int, ...],
    *,
    out: Out[A] = None,
    accumulate: bool = False,
    stream: Stream = None,
) -> A:
    """Gradient of broadcasting an array of `shape` to the shape of dy.

    ``dx = np.sum(dy, axes, keepdims=True).reshape(shape)``, accumulated in double, over the axes
    along which ``np.broadcast_to(np.empty(shape), dy.shape)`` repeats.

    Parameters
    ----------
    dy : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers are summed as
        float64.
    shape : tuple of int
        A shape that NumPy broadcasts to dy's.
    out : array, optional
        Where to write dx; it may not share memory with dy.
    accumulate : bool, default False
        Add the sum to `out`, before it is rounded, instead of overwriting it.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The sum: of the shape `shape`, and of dy's dtype and framework; of integers it is float64.
        Over no elements it is 0.

    Raises
    ------
    TypeError
        For a shape that is no tuple of integers.
    ValueError
        For a shape that does not broadcast to dy's.

    See Also
    --------
    sum : The sum over axes that are named.
    bias_grad : The gradient of a bias, which is 1-D.

    Notes
    -----
    As accurate as `fastact.sum`, and always of the same bits.

    `unbroadcast.forward` saves ``(shape,)``, the shape of dy; `unbroadcast.backward` broadcasts its
    gradient to that, as NumPy does it. docs/conventions.md says what all ops share.

    References
    ----------
    NumPy, "Broadcasting", https://numpy.org/doc/stable/user/basics.broadcasting.html

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.unbroadcast(np.ones((4, 2, 3)), (2, 1))
    array([[12.],
           [12.]])
    >>> dx, saved = fa.unbroadcast.forward(np.ones((2, 3)), (2, 1))
    >>> fa.unbroadcast.backward(dx, *saved)
    array([[3., 3., 3.],
           [3., 3., 3.]])
    >>> fa.unbroadcast.backward(np.array([1.0, 2.0]), (3, 2))
    array([[1., 2.],
           [1., 2.],
           [1., 2.]])
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
