"""Reductions: sums over any axes, of the elements or of their squares.

Every dtype is summed in double, in one order whatever the layout, the threads and the instruction
set; the order and its error bound are derived in `src/cpu/reductions/kernels.h`.
"""

from typing import TYPE_CHECKING, Any

from . import axes as _axes
from .op import float32_under_autocast, names_of_ops
from .reduction import Over, Shape, reduction, square_reduction
from .types import A, ArrayOrNumber, Axes, Out, Stream


def _over_axes(where: str, options: Any, shape: Shape) -> Over:
    """Over the axes that `axis` names, which stay with `keepdims`."""
    axes = _axes.axes(where, options.axis, len(shape))
    left = _axes.reduced(shape, axes, options.keepdims)
    return Over(axes, left, () if options.keepdims else axes)


@float32_under_autocast("cuda")
@reduction(_over_axes)
def sum(
    x: A,
    /,
    axis: Axes = None,
    *,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum over axes.

    ``y = np.sum(x, axis, keepdims=keepdims)``, accumulated in double.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans
        are summed as float64; lists and scalars are taken as NumPy takes them.
    axis : int or tuple of int, optional
        The axes to sum over, negative ones counted from the last; all of them without any. An empty
        tuple sums over none.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element is added. The others are not read as
        numbers: they may be NaN.
    keepdims : bool, default False
        Leave the axes that were summed over in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The sum, of x's dtype and framework; of integers it is float64. Over no elements it is 0.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or a `where` of another shape.

    See Also
    --------
    sum_squares : The sum of the squares.
    mean_var : Mean and variance.
    bias_grad : The sum over every axis but one.
    unbroadcast : The sum down to a shape.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46 times the sum of abs(x) from the true sum, for up to
    2**40 terms: float16, bfloat16 and float32 are summed in double and rounded once, blocks of 2048
    terms are added with compensation. 2**28 ones in bfloat16 sum to 2**28, and
    ``[3e38, 3e38, -3e38]`` in float32 to 3e38. Infinities and NaN propagate as in a plain sum.

    Terms are added up in the order of the axes; where memory holds the axes that are summed over in
    another order, as in a transposed array, in memory's order. But for that the bits depend on the
    values and on the lengths that are summed over alone: they are the same for any number of
    threads, on AVX2 and AVX-512, alone and in any batch, wherever x begins, however far and
    whichever way its axes step. (On a GPU the strides of several axes that are summed over, and how
    the result lies in memory, may count.)

    `sum.forward` saves ``(shape, where)``, with the shape of x; `sum.backward` gives dx, which is
    dy repeated along the axes that were summed over. docs/conventions.md says what all ops share.

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
    >>> fa.sum(np.array([[1.0, np.nan], [2.0, 3.0]]), axis=1, where=[[True, False], [True, True]])
    array([1., 5.])
    >>> y, saved = fa.sum.forward(np.ones((2, 3)), axis=0)
    >>> fa.sum.backward(np.array([1.0, 2.0, 3.0]), *saved, axis=0)
    array([[1., 2., 3.],
           [1., 2., 3.]])
    """


@square_reduction(_over_axes)
def sum_squares(
    x: A,
    /,
    axis: Axes = None,
    *,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum of squares over axes.

    ``y = np.sum(x**2, axis, keepdims=keepdims)``, squared and accumulated in double.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans
        are summed as float64; lists and scalars are taken as NumPy takes them.
    axis : int or tuple of int, optional
        The axes to sum over, negative ones counted from the last; all of them without any. An empty
        tuple sums over none.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element is added. The others are not read as
        numbers: they may be NaN.
    keepdims : bool, default False
        Leave the axes that were summed over in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The sum, of x's dtype and framework; of integers it is float64. Over no elements it is 0.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or a `where` of another shape.

    See Also
    --------
    sum : The sum of the elements themselves.
    moments : The sum of the squared distances from the mean.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46 times the true sum from the true sum, for up to 2**40
    terms: squares of float16, bfloat16 and float32 are exact in double, squares of float64 are
    rounded (and overflow from 1.3e154, vanish below 1.6e-162). Terms are added in the order of
    `fastact.sum`, and the bits are as independent of threads, instruction set and batch.

    With a mask, memory of an array of x's shape and dtype is taken.

    `sum_squares.forward` saves ``(x, where)``; `sum_squares.backward` gives dx = 2 x dy, with dy
    repeated along the axes that were summed over. `sum_squares.value_and_grad` gives the sum of the
    squares of all of x, and 2 x, in one pass. docs/conventions.md says what all ops share.

    References
    ----------
    T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
    (2005), https://doi.org/10.1137/030601818

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> fa.sum_squares(x, axis=1)
    array([ 5., 25.])
    >>> fa.sum_squares(x, axis=1, where=x > 1)
    array([ 4., 25.])
    >>> y, saved = fa.sum_squares.forward(x, axis=0)
    >>> fa.sum_squares.backward(np.array([1.0, 0.5]), *saved, axis=0)
    array([[2., 2.],
           [6., 4.]])
    >>> value, grad = fa.sum_squares.value_and_grad(x)
    >>> print(value)
    30.0
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
