"""The docstrings of mean_var and moments."""

from ._docs import ARRAY, STREAM, paragraph

_AXIS = """\
axis : int or tuple of int, optional
    The axes to reduce, negative ones counted from the last; all of them without any. An empty tuple
    reduces none.
"""

_REST = f"""\
{STREAM}

Returns
-------
{{returns}}

Raises
------
TypeError
    For a dtype that is not supported, mixed frameworks, a tensor that requires grad, or an axis
    that is no integer.
ValueError
    For an axis out of range or named twice; an `out` of another shape or device, read-only, or that
    shares memory with x.

Notes
-----
{{notes}}

Infinities and NaN give what NumPy gives, and so do no elements. The bits depend on the values and
on the lengths of the axes that are reduced alone: not on the number of threads, AVX2 or AVX-512,
or the other axes. (Which of several axes comes first depends on their strides.)

References
----------
T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances", Stanford University, STAN-CS-79-773 (1979)

Examples
--------
>>> import numpy as np, fastact as fa
"""

MEAN_VAR = (
    f"""\
mean_var(x, axis=None, *, correction=0, keepdims=False, out=None)

The mean of x and its variance over the axes `axis`, in one read of x.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
{_AXIS}correction : float
    The variance is m2 / (n - correction) of n elements: 1 for the unbiased one.
keepdims : bool
    Leave the axes that were reduced in the results, with length 1.
out : tuple of two arrays or None, optional
    Where to write mean and variance: their shape, and dtype, device and framework of x; one that is
    None is allocated.
"""
    + _REST.format(
        returns="""\
mean, var : array
    Those of `out` where they were given, else new arrays of x's framework and dtype.""",
        notes="""\
Computed in double and rounded once. The mean errs by at most 0.5 ULP and 2**-46 of the mean of
abs(x); the variance by 0.5 ULP and a share of 2**-33 of itself (float64: 2**-44, and 2**-51 of
abs(mean) / std), also for data far from 0 and near the ends of the dtype's range. Of equal
values it is 0, and it is never negative.""",
    )
    + """\
>>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
>>> fa.mean_var(x, axis=1, correction=1)
(array([2., 4.]), array([2., 0.]))
>>> fa.mean_var(np.float32([1e4, 1e4 + 1]))
(np.float32(10000.5), np.float32(0.25))
"""
)

MOMENTS = (
    f"""\
moments(x, axis=None, *, keepdims=False, out=None)

The moments of x over the axes `axis`, in one read of x: a `Moments`, which merges with others.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
{_AXIS}keepdims : bool
    Leave the axes that were reduced in the results, with length 1.
out : tuple of two arrays or None, optional
    Where to write mean and m2: float64, of their shape, and device and framework of x; one that is
    None is allocated.
"""
    + _REST.format(
        returns="""\
moments : Moments
    count, mean and m2; of no elements, 0, NaN and 0.""",
        notes="""\
Computed and returned in double. The mean errs by at most 2**-53 of itself and 2**-46 of the mean of
abs(x), m2 by 2**-33 of itself (float64: 2**-44), and by 2**-51 of abs(mean) / std. Moments
that merged err by at most twice that, whatever the split; the same split gives the same bits.""",
    )
    + """\
>>> fa.moments(np.float32([[1, 3], [4, 4]]), axis=1)
Moments(count=2, mean=array([2., 4.]), m2=array([2., 0.]))
"""
)
