"""Sums and moments: over any axes, of the elements or of their squares; mean and variance.

Every dtype is summed in double, 16 bits after a few additions in float32, in one order whatever the
layout, the threads and the instruction set; the order and its error bound are derived in
`src/cpu/reductions/kernels.h`.
"""

from typing import TYPE_CHECKING

from .engine.axes import over_axes
from .engine.op import float32_under_autocast, names_of_ops, register
from .engine.reductions import reduction, square_reduction
from .engine.statistics import MeanVar, MomentsOp
from .moments import Moments
from .types import A, Array, ArrayOrNumber, Axes, DType, Out, Outs, Stream


@float32_under_autocast("cuda")
@reduction(over_axes)
def sum(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    initial: float | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum over axes.

    ``y = np.sum(x, axis, keepdims=keepdims)``, accumulated in double.

    See Also
    --------
    sum_squares : The sum of the squares.
    mean_var : Mean and variance.
    bias_grad : The sum over every axis but one.
    unbroadcast : The sum down to a shape.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46, for float16 and bfloat16 2**-21, times the sum of
    abs(x) from the true sum, for up to 2**40 terms: float32 is summed in double, of 16 bits up to
    eight terms are added in float32 before that; blocks of 2048 terms are added with compensation,
    and the sum is rounded once. 2**28 ones in bfloat16 sum to 2**28, and ``[3e38, 3e38, -3e38]`` in
    bfloat16 or float32 to 3e38. Infinities and NaN propagate as in a plain sum.

    Terms are added up in the order of the axes; where memory holds the axes that are summed over in
    another order, as in a transposed array, in memory's order. But for that the bits depend on the
    values and on the lengths that are summed over alone: they are the same for any number of
    threads, on AVX2 and AVX-512, alone and in any batch, wherever x begins, however far and
    whichever way its axes step. (On a GPU the strides of several axes that are summed over, and how
    the result lies in memory, may count.)

    `sum.forward` saves ``(shape, where, by, x_dtype)``, with the shape of x, and its dtype where
    `dtype` is given; `sum.backward` gives dx, which is dy repeated along the axes that were summed
    over.

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
    >>> fa.sum(np.array([1.0, 2.0, 4.0, 8.0]), by=[0, 2, 0, -1], groups=3)
    array([5., 0., 2.])
    >>> fa.sum(np.full(3, 3e4, np.float16), dtype=np.float32, initial=0.5)
    np.float32(90000.5)
    >>> y, saved = fa.sum.forward(np.ones((2, 3)), axis=0)
    >>> fa.sum.backward(np.array([1.0, 2.0, 3.0]), *saved, axis=0)
    array([[1., 2., 3.],
           [1., 2., 3.]])
    """


@square_reduction(over_axes)
def sum_squares(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum of squares over axes.

    ``y = np.sum(x**2, axis, keepdims=keepdims)``, squared and accumulated in double.

    See Also
    --------
    sum : The sum of the elements themselves.
    moments : The sum of the squared distances from the mean.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46, for float16 and bfloat16 2**-21, times the true sum
    from the true sum, for up to 2**40 terms: squares of float16, bfloat16 and float32 are exact,
    squares of float64 are rounded (and overflow from 1.3e154, vanish below 1.6e-162). Terms are
    added in the order of `fastact.sum`, and the bits are as independent of threads, instruction set
    and batch.

    With a mask, memory of an array of x's shape and dtype is taken.

    `sum_squares.forward` saves ``(x, where, by)``; `sum_squares.backward` gives dx = 2 x dy, with
    dy repeated along the axes that were summed over. `sum_squares.value_and_grad` gives the sum of
    the squares of all of x, and 2 x, in one pass.

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


@register
@MeanVar
def mean_var(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Outs[A] = None,
    stream: Stream = None,
) -> tuple[A, A]:
    """Mean and variance over axes, in one read of x.

    ``mean = np.mean(x, axis)`` and ``var = np.var(x, axis, ddof=correction)``, the sum of the
    squared distances from the mean over n - correction, of n elements a mean.

    Parameters
    ----------
    out : tuple of two arrays or None, optional
        Where to write mean and variance, which may share memory neither with x nor with each other;
        one that is None is allocated.

    Returns
    -------
    mean : array
        Of x's framework and dtype, or the one that `dtype` names; of integers it is float64.
    var : array
        Of the same shape, dtype and framework.

    See Also
    --------
    moments : Mean and m2 in float64, which merge with others.
    sum : The sum.

    Notes
    -----
    Computed in double and rounded once. The mean errs by at most 0.5 ULP and 2**-46 of the mean of
    abs(x), for types narrower than float64 of the largest abs(x) more; the variance by 0.5 ULP and
    a share of 2**-33 of itself (float64: 2**-44), and of 2**-51 of abs(mean) / std, also for data
    far from 0 and near the ends of the dtype's range. Of equal values it is 0, and it is never
    negative.

    Infinities and NaN give what NumPy gives, and so do no elements; a variance that exceeds the
    largest float64 is infinite. Terms are added up in the order of `fastact.sum`, with its promise
    of the same bits. A weight that is negative or not finite makes
    NaN, and a RuntimeWarning says so.

    `mean_var.forward` saves ``(x, weights, where)``; `mean_var.backward` takes a tuple of the
    gradients of mean and variance, and gives dx.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
    >>> fa.mean_var(x, axis=1, correction=1)
    (array([2., 4.]), array([2., 0.]))
    >>> fa.mean_var(np.float32([1e4, 1e4 + 1]))
    (np.float32(10000.5), np.float32(0.25))
    >>> fa.mean_var(x, axis=1, weights=np.array([3.0, 1.0]), where=x > 1)
    (array([3., 4.]), array([0., 0.]))
    >>> (mean, var), saved = fa.mean_var.forward(x, axis=1)
    >>> fa.mean_var.backward((None, np.ones(2)), *saved, axis=1)
    array([[-1.,  1.],
           [ 0.,  0.]])
    """


@register
@MomentsOp
def moments(
    x: Array,
    /,
    axis: Axes = None,
    *,
    weights: Array | None = None,
    skipna: bool = False,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Outs[Array] = None,
    stream: Stream = None,
) -> Moments:
    """Mean and m2 over axes, in one read of x, as `Moments`, which merge with others.

    ``mean = np.mean(x, axis)`` and ``m2 = n * np.var(x, axis)``, the sum of the squared distances
    from the mean, of n elements a mean.

    Parameters
    ----------
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along the axes that
        `axis` names, in its order, as np.average has it; of any dtype that x may have. An element
        of weight 0 does not count, whatever it is. The count is then the sum of the weights.
    skipna : bool, default False
        Leave out elements that are NaN.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts. With `skipna`, `weights` and
        `where` the count is an array of float64, of the mean's shape; where it is 0, the mean is
        NaN and m2 is 0.
    out : tuple of two arrays or None, optional
        Where to write mean and m2, both of float64, which may share memory neither with x nor with
        each other; one that is None is allocated. With an array for m2, memory of another one is
        taken, from which `Moments` know an m2 that float64 does not hold.

    Returns
    -------
    Moments
        The count, and mean and m2 in float64, of x's framework; of no elements, 0, NaN and 0.

    See Also
    --------
    Moments : The class of the result.
    mean_var : Mean and variance, in x's dtype.

    Notes
    -----
    Computed and returned in double. The mean errs by at most 2**-53 of itself and 2**-46 of the
    mean of abs(x), for types narrower than float64 of the largest abs(x) more, m2 by a share of
    2**-33 of itself (float64: 2**-44), and of 2**-51 of abs(mean) / std. Moments that merged err by
    at most twice that, whatever the split; the same split gives the same bits.

    Infinities and NaN give what NumPy gives, and so do no elements; an m2 that exceeds the largest
    float64 is infinite, where `Moments.std` is right nevertheless.
    Terms are added up in the order of `fastact.sum`, with its promise of the same bits.

    Weights are frequencies: the moments are as if each element of x were repeated so often, and
    merge with others as any do. A weight that is negative or not finite makes NaN, and a
    RuntimeWarning says so.

    `moments.forward` saves ``(x, weights, where, by)``; `moments.backward` takes a tuple of the
    gradients of mean and m2, and gives dx.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
    >>> fa.moments(x, axis=1)
    Moments(count=2, mean=array([2., 4.]), m2=array([2., 0.]))
    >>> fa.moments(x, axis=1, weights=np.array([3.0, 1.0]))
    Moments(count=array([4., 4.]), mean=array([1.5, 4. ]), m2=array([3., 0.]))
    >>> m, saved = fa.moments.forward(x, axis=1)
    >>> fa.moments.backward((1.0, None), *saved, axis=1)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
