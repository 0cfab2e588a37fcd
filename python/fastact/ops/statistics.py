"""Statistics over any axes, of all elements or of those that count.

What NumPy calls by these names: the bits do not depend on the threads, nothing is allocated that
grows with x, and values far from 0 lose no digits.
"""

from typing import TYPE_CHECKING

from .engine.op import names_of_ops
from .engine.statistics import statistic, weighted_average
from .types import A, Array, ArrayOrNumber, Axes, Out, Stream


@statistic("mean")
def mean(
    x: A,
    /,
    axis: Axes = None,
    *,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Mean over axes.

    ``y = np.mean(x, axis)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The mean, of x's dtype and framework. Of no elements it is NaN, and a RuntimeWarning
        says so.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or weights or a `where` of another shape.

    See Also
    --------
    nanmean : Of the elements that are not NaN.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46 times the mean of the abs(x) that count from the
    true mean. Computed in double and rounded once. Infinities and NaN propagate as they do in
    NumPy.

    Terms are added up in the order of `fastact.sum`, with its promise of the same bits. On a
    GPU there is no warning.

    With weights it is ``sum(weights * x) / sum(weights)``, and the bound is of the mean of the
    abs(x) as they are weighted. A weight that is negative or not finite makes NaN, and a
    RuntimeWarning says so.

    `mean.forward` saves ``(x, weights, where)``; `mean.backward` gives dx. docs/conventions.md says
    what all ops share.

    References
    ----------
    T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
    (2005), https://doi.org/10.1137/030601818

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
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    returned: bool = False,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Weighted mean over axes.

    ``y = np.average(x, axis, weights)``, accumulated in double, without a product of x's size.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    returned : bool, default False
        Return the sum of the weights, too, as np.average does: the number of elements without any.
        A call that torch's or JAX's gradients record must not ask for it.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may share memory neither with x nor with the weights.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The average, of x's dtype and framework. Where all weights are 0 it is NaN, and a
        RuntimeWarning says so, as for no elements.
    sum_of_weights : array
        Where `returned` is True, of the average's shape, dtype and framework.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or weights or a
        `where` of another shape.

    See Also
    --------
    mean : The same; weights have no gradient there.
    nanmean : Of the elements that are not NaN.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    ``sum(weights * x) / sum(weights)``, at most 0.5 ULP of the result plus 2**-46 times the mean of
    the abs(x) as they are weighted from the true average. Computed in double and rounded once.
    Infinities and NaN that count propagate as they do in NumPy. A weight that is negative or not
    finite makes NaN, and a RuntimeWarning says so. On a GPU there is no warning.

    Terms are added up in the order of `fastact.sum`, with its promise of the same bits.

    `average.forward` saves ``(x, weights, where)``; `average.backward` gives dx and dweights.
    docs/conventions.md says what all ops share.

    References
    ----------
    T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
    (2005), https://doi.org/10.1137/030601818

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
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Variance over axes.

    ``y = np.var(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    correction : float, default 0
        Subtracted from the number of elements, or from the sum of the weights: 1 for the unbiased
        variance.
    ddof : float, optional
        NumPy\'s name of `correction`; one of the two may be given.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The variance, of x's dtype and framework. Of no more than `correction` elements it
        is infinite or NaN, and a RuntimeWarning says so.

    Raises
    ------
    TypeError
        For an axis that is no integer, a correction that is no real number, `correction` and `ddof`
        both given, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, a correction that is not finite, or weights or a
        `where` of another shape.

    See Also
    --------
    nanvar : Of the elements that are not NaN.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP, a share of 2**-33 of itself (float64: 2**-44) and of 2**-51 of abs(mean) /
    std from the true variance, also for data far from 0. Of equal values it is 0, and it is
    never negative. Computed in double and rounded once. Infinities and NaN propagate as they do
    in NumPy.

    Terms are added up in the order of `fastact.sum`, with its promise of the same bits. On a
    GPU there is no warning.

    Weights are frequencies: the result is as if each element of x were repeated so often, and n is
    the sum of the weights. Where they say how reliable elements are, and their scale has no
    meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased. Their
    sum has an error of 2**-46 of itself, which shows where a correction takes nearly all of it. A
    weight that is negative or not finite makes NaN, and a RuntimeWarning says so.

    `var.forward` saves ``(x, weights, where)``; `var.backward` gives dx. docs/conventions.md says
    what all ops share.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)

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
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Standard deviation over axes.

    ``y = np.std(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    correction : float, default 0
        Subtracted from the number of elements, or from the sum of the weights: 1 for the unbiased
        variance.
    ddof : float, optional
        NumPy\'s name of `correction`; one of the two may be given.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The standard deviation, of x's dtype and framework. Of no more than `correction`
        elements it is infinite or NaN, and a RuntimeWarning says so.

    Raises
    ------
    TypeError
        For an axis that is no integer, a correction that is no real number, `correction` and `ddof`
        both given, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, a correction that is not finite, or weights or a
        `where` of another shape.

    See Also
    --------
    nanstd : Of the elements that are not NaN.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP, a share of 2**-34 of itself (float64: 2**-45) and of 2**-52 of abs(mean) /
    std from the true deviation, also for data far from 0. Of equal values it is 0. Computed in
    double and rounded once. Infinities and NaN propagate as they do in NumPy.

    Terms are added up in the order of `fastact.sum`, with its promise of the same bits. On a
    GPU there is no warning.

    Weights are frequencies: the result is as if each element of x were repeated so often, and n is
    the sum of the weights. Where they say how reliable elements are, and their scale has no
    meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased. Their
    sum has an error of 2**-46 of itself, which shows where a correction takes nearly all of it. A
    weight that is negative or not finite makes NaN, and a RuntimeWarning says so.

    `std.forward` saves ``(x, weights, where)``; `std.backward` gives dx. docs/conventions.md says
    what all ops share.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)

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
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum over axes of the elements that are not NaN.

    ``y = np.nansum(x, axis)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The sum, of x's dtype and framework. Of no elements, or of NaN alone, it is 0.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or a `where` of another shape.

    See Also
    --------
    sum : Of all elements.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46 times the sum of the abs(x) that count from the
    true sum. Computed in double and rounded once. Infinities propagate as they do in NumPy.

    Without NaN, `fastact.sum` gives the same bits. Terms are added up in the order of
    `fastact.sum`, with its promise of the same bits.

    `nansum.forward` saves ``(x, where)``; `nansum.backward` gives dx, which is 0 where x is NaN.
    docs/conventions.md says what all ops share.

    References
    ----------
    T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
    (2005), https://doi.org/10.1137/030601818

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
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Mean over axes of the elements that are not NaN.

    ``y = np.nanmean(x, axis)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The mean, of x's dtype and framework. Of no elements, or of NaN alone, it is NaN,
        and a RuntimeWarning says so.

    Raises
    ------
    TypeError
        For an axis that is no integer, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, or weights or a `where` of another shape.

    See Also
    --------
    mean : Of all elements.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP of the result plus 2**-46 times the mean of the abs(x) that count from the
    true mean. Computed in double and rounded once. Infinities propagate as they do in NumPy.

    Without NaN the bits are as of sums in the order of `fastact.sum`. Terms are added up in
    the order of `fastact.sum`, with its promise of the same bits. On a GPU there is no warning.

    With weights it is ``sum(weights * x) / sum(weights)``, and the bound is of the mean of the
    abs(x) as they are weighted. A weight that is negative or not finite makes NaN, and a
    RuntimeWarning says so.

    `nanmean.forward` saves ``(x, weights, where)``; `nanmean.backward` gives dx, which is 0 where x
    is NaN. docs/conventions.md says what all ops share.

    References
    ----------
    T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
    (2005), https://doi.org/10.1137/030601818

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
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Variance over axes of the elements that are not NaN.

    ``y = np.nanvar(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    correction : float, default 0
        Subtracted from the number of elements, or from the sum of the weights: 1 for the unbiased
        variance.
    ddof : float, optional
        NumPy\'s name of `correction`; one of the two may be given.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The variance, of x's dtype and framework. Of no more than `correction` elements it
        is NaN, and a RuntimeWarning says so.

    Raises
    ------
    TypeError
        For an axis that is no integer, a correction that is no real number, `correction` and `ddof`
        both given, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, a correction that is not finite, or weights or a
        `where` of another shape.

    See Also
    --------
    var : Of all elements.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP, a share of 2**-33 of itself (float64: 2**-44) and of 2**-51 of abs(mean) /
    std from the true variance, also for data far from 0. Of equal values it is 0, and it is
    never negative. Computed in double and rounded once. Infinities propagate as they do in
    NumPy.

    Without NaN, `fastact.var` gives the same bits. Terms are added up in the order of
    `fastact.sum`, with its promise of the same bits. On a GPU there is no warning.

    Weights are frequencies: the result is as if each element of x were repeated so often, and n is
    the sum of the weights. Where they say how reliable elements are, and their scale has no
    meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased. Their
    sum has an error of 2**-46 of itself, which shows where a correction takes nearly all of it. A
    weight that is negative or not finite makes NaN, and a RuntimeWarning says so.

    `nanvar.forward` saves ``(x, weights, where)``; `nanvar.backward` gives dx, which is 0 where x
    is NaN. docs/conventions.md says what all ops share.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)

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
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Standard deviation over axes of the elements that are not NaN.

    ``y = np.nanstd(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides. Integers and booleans are
        computed, as NumPy does, as float64.
    axis : int or tuple of int, optional
        The axes to reduce, negative ones counted from the last; all of them without any. An empty
        tuple reduces none.
    correction : float, default 0
        Subtracted from the number of elements, or from the sum of the weights: 1 for the unbiased
        variance.
    ddof : float, optional
        NumPy\'s name of `correction`; one of the two may be given.
    weights : array, optional
        How often each element counts: what broadcasts to x's shape, or is along `axis` alone, as
        np.average has it; of any dtype that x may have. An element of weight 0 does not count,
        whatever it is.
    where : array of bool, or bool, optional
        What broadcasts to x's shape: True where an element counts.
    keepdims : bool, default False
        Leave the axes that were reduced in y, with length 1.
    out : array, optional
        Where to write y; it may not share memory with x.
    stream : optional
        For arrays on a GPU: the stream to work on.

    Returns
    -------
    array
        The standard deviation, of x's dtype and framework. Of no more than `correction`
        elements it is NaN, and a RuntimeWarning says so.

    Raises
    ------
    TypeError
        For an axis that is no integer, a correction that is no real number, `correction` and `ddof`
        both given, or a `where` that is not of bool.
    ValueError
        For an axis out of range or named twice, a correction that is not finite, or weights or a
        `where` of another shape.

    See Also
    --------
    std : Of all elements.
    mean_var : Mean and variance in one read.
    moments : Mean and m2 in float64, which merge with others.

    Notes
    -----
    At most 0.5 ULP, a share of 2**-34 of itself (float64: 2**-45) and of 2**-52 of abs(mean) /
    std from the true deviation, also for data far from 0. Of equal values it is 0. Computed in
    double and rounded once. Infinities propagate as they do in NumPy.

    Without NaN, `fastact.std` gives the same bits. Terms are added up in the order of
    `fastact.sum`, with its promise of the same bits. On a GPU there is no warning.

    Weights are frequencies: the result is as if each element of x were repeated so often, and n is
    the sum of the weights. Where they say how reliable elements are, and their scale has no
    meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased. Their
    sum has an error of 2**-46 of itself, which shows where a correction takes nearly all of it. A
    weight that is negative or not finite makes NaN, and a RuntimeWarning says so.

    `nanstd.forward` saves ``(x, weights, where)``; `nanstd.backward` gives dx, which is 0 where x
    is NaN. docs/conventions.md says what all ops share.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)

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
