"""The docstrings of mean_var and moments."""

from .bounds import MomentBounds
from .bounds_docs import mean_var_notes, moments_notes
from .docs import ARRAY, STREAM, paragraph

#: Their derivation is in src/cpu/reductions/moment_kernels.h.
MOMENT_BOUNDS = MomentBounds(2.0**-46, m2=2.0**-33, m2_double=2.0**-44, far=2.0**-51, merged=2)

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

Infinities and NaN give what NumPy gives, and so do no elements; sums and squared deviations of
float64 data that exceed the largest float64 are infinite. Terms are added up in the
order of `fastact.sum`, with its promise of the same bits.

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
        notes=paragraph(mean_var_notes(MOMENT_BOUNDS)),
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
        notes=paragraph(moments_notes(MOMENT_BOUNDS)),
    )
    + """\
>>> fa.moments(np.float32([[1, 3], [4, 4]]), axis=1)
Moments(count=2, mean=array([2., 4.]), m2=array([2., 0.]))
"""
)
