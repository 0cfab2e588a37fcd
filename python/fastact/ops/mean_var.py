"""Mean and variance over any axes, and moments that merge."""

from typing import TYPE_CHECKING

from .engine.moments import MeanVar, MomentsOp
from .engine.op import names_of_ops, register
from .moments import Moments
from .types import A, Array, ArrayOrNumber, Axes, Outs, Stream


@register
@MeanVar
def mean_var(
    x: A,
    /,
    axis: Axes = None,
    *,
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
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        reduced as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    correction : float, default 0
        Subtracted from n, or from the sum of the weights: 1 for the unbiased variance.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in the results, with length 1.
    out : tuple of two arrays or None, optional
        Where to write mean and variance, which may share memory neither with x nor with each other;
        one that is None is allocated.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    mean : array
        Of x's dtype and framework; of integers it is float64.
    var : array
        Of the same shape, dtype and framework.

    Raises
    ------
    TypeError
        For an axis that is no integer, a correction that is no real number, or a `where` that is
        not of bool.
    ValueError
        For an axis out of range or named twice, a correction that is not finite, or weights or a
        `where` of another shape.

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

    Infinities and NaN give what NumPy gives, and so do no elements; sums and squared deviations of
    float64 data that exceed the largest float64 are infinite. Terms are added up in the order of
    `fastact.sum`, with its promise of the same bits. A weight that is negative or not finite makes
    NaN, and a RuntimeWarning says so.

    `mean_var.forward` saves ``(x, weights, where)``; `mean_var.backward` takes a tuple of the
    gradients of mean and variance, and gives dx. docs/conventions.md says what all ops share.

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
    keepdims: bool = False,
    out: Outs[Array] = None,
    stream: Stream = None,
) -> Moments:
    """Mean and m2 over axes, in one read of x, as `Moments`, which merge with others.

    ``mean = np.mean(x, axis)`` and ``m2 = n * np.var(x, axis)``, the sum of the squared distances
    from the mean, of n elements a mean.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans, too.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is. The count is then the sum of the weights.
    skipna : bool, default False
        Leave out elements that are NaN.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts. With `skipna`, `weights` and
        `where` the count is an array of float64, of the mean's shape; where it is 0, the mean is
        NaN and m2 is 0.
    keepdims : bool, default False
        Leave the axes that were reduced in the results, with length 1.
    out : tuple of two arrays or None, optional
        Where to write mean and m2, both of float64, which may share memory neither with x nor with
        each other; one that is None is allocated.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    Moments
        The count, and mean and m2 in float64, of x's framework; of no elements, 0, NaN and 0.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or weights or a `where` of another shape.

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

    Infinities and NaN give what NumPy gives, and so do no elements; sums and squared deviations of
    float64 data that exceed the largest float64 are infinite. Terms are added up in the order of
    `fastact.sum`, with its promise of the same bits.

    Weights are frequencies: the moments are as if each element of x were repeated so often, and
    merge with others as any do. A weight that is negative or not finite makes NaN, and a
    RuntimeWarning says so.

    `moments.forward` saves ``(x, weights, where)``; `moments.backward` takes a tuple of the
    gradients of mean and m2, and gives dx. docs/conventions.md says what all ops share.

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
