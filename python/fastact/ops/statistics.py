"""Statistics: over any axes, of all elements or of those that count.

What NumPy calls by these names: the bits do not depend on the threads, nothing is allocated that
grows with x, and values far from 0 lose no digits.
"""

from typing import TYPE_CHECKING

from .engine.op import names_of_ops
from .engine.statistics import statistic, weighted_average
from .types import A, Array, ArrayOrNumber, Axes, DType, Out, Stream


@statistic("mean")
def mean(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Mean over axes.

    ``y = np.mean(x, axis)``, accumulated in double, in one read of x.

    See Also
    --------
    nanmean : Of the elements that are not NaN.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.mean(np.array([[1.0, 3.0], [4.0, 4.0]]), axis=1)
    array([2., 4.])
    >>> y, saved = fa.mean.forward(np.array([1.0, 3.0]))
    >>> fa.mean.backward(1.0, *saved)
    array([0.5, 0.5])
    """


@weighted_average
def average(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    returned: bool = False,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Weighted mean over axes.

    ``y = np.average(x, axis, weights)``, accumulated in double, without a product of x's size.

    Parameters
    ----------
    returned : bool, default False
        Return the sum of the weights, too, as np.average does: the number of elements without any.
        A call that torch's or JAX's gradients record must not ask for it.
    out : array, optional
        Where to write y; it may share memory neither with x nor with the weights.

    Returns
    -------
    array
        The average, of x's framework and dtype, or the one that `dtype` names. Where all weights
        are 0 it is NaN, and a RuntimeWarning says so, as for no elements.
    sum_of_weights : array
        Where `returned` is True, of the average's shape, dtype and framework.

    See Also
    --------
    mean : The same; weights have no gradient there.
    nanmean : Of the elements that are not NaN.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, weights = np.array([[1.0, 5.0], [2.0, 2.0]]), np.array([3.0, 1.0])
    >>> fa.average(x, axis=1, weights=weights)
    array([2., 2.])
    >>> fa.average(x, axis=1, weights=weights, where=[True, False], returned=True)
    (array([1., 2.]), array([3., 3.]))
    >>> y, saved = fa.average.forward(x, axis=1, weights=weights)
    >>> fa.average.backward(np.ones(2), *saved, axis=1)[0]
    array([[0.75, 0.25],
           [0.75, 0.25]])
    """


@statistic("var")
def var(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Variance over axes.

    ``y = np.var(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    See Also
    --------
    nanvar : Of the elements that are not NaN.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.var(np.array([[1.0, 3.0], [4.0, 4.0]]), axis=1, correction=1)
    array([2., 0.])
    >>> fa.var(np.array([[1.0, 3.0]]), axis=1, ddof=1)
    array([2.])
    >>> y, saved = fa.var.forward(np.array([1.0, 3.0]))
    >>> fa.var.backward(1.0, *saved)
    array([-1.,  1.])
    """


@statistic("std")
def std(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Standard deviation over axes.

    ``y = np.std(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    See Also
    --------
    nanstd : Of the elements that are not NaN.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.std(np.array([[1.0, 3.0], [4.0, 4.0]]), axis=1)
    array([1., 0.])
    >>> fa.std(np.array([[1.0, 4.0, 7.0]]), axis=1, ddof=1)
    array([3.])
    >>> y, saved = fa.std.forward(np.array([1.0, 3.0]))
    >>> fa.std.backward(1.0, *saved)
    array([-0.5,  0.5])
    """


@statistic("sum", skips=True)
def nansum(
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
    """Sum over axes of the elements that are not NaN.

    ``y = np.nansum(x, axis)``, accumulated in double, in one read of x.

    See Also
    --------
    sum : Of all elements.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.nansum(np.array([[1.0, np.nan], [4.0, 4.0]]), axis=1)
    array([1., 8.])
    >>> y, saved = fa.nansum.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nansum.backward(1.0, *saved)
    array([1., 0., 1.])
    """


@statistic("mean", skips=True)
def nanmean(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Mean over axes of the elements that are not NaN.

    ``y = np.nanmean(x, axis)``, accumulated in double, in one read of x.

    See Also
    --------
    mean : Of all elements.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.nanmean(np.array([[1.0, np.nan], [4.0, 6.0]]), axis=1)
    array([1., 5.])
    >>> y, saved = fa.nanmean.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nanmean.backward(1.0, *saved)
    array([0.5, 0. , 0.5])
    """


@statistic("var", skips=True)
def nanvar(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Variance over axes of the elements that are not NaN.

    ``y = np.nanvar(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    See Also
    --------
    var : Of all elements.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.nanvar(np.array([[1.0, np.nan, 3.0], [4.0, 4.0, 4.0]]), axis=1)
    array([1., 0.])
    >>> fa.nanvar(np.array([[1.0, np.nan, 3.0]]), axis=1, ddof=1)
    array([2.])
    >>> y, saved = fa.nanvar.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nanvar.backward(1.0, *saved)
    array([-1.,  0.,  1.])
    """


@statistic("std", skips=True)
def nanstd(
    x: A,
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Standard deviation over axes of the elements that are not NaN.

    ``y = np.nanstd(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    See Also
    --------
    std : Of all elements.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.nanstd(np.array([[1.0, np.nan, 3.0], [4.0, 4.0, 4.0]]), axis=1)
    array([1., 0.])
    >>> fa.nanstd(np.array([[1.0, 4.0, np.nan, 7.0]]), axis=1, ddof=1)
    array([3.])
    >>> y, saved = fa.nanstd.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nanstd.backward(1.0, *saved)
    array([-0.5,  0. ,  0.5])
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
