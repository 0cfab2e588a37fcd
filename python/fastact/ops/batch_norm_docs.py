"""The docstrings of batch_norm and norm_apply."""

from .bounds import NormBounds
from .bounds_docs import norm_forward
from .docs import ACTIVATION, ARRAY, LIKE_X, OWN, STREAM, paragraph

#: A channel's scale is weight rstd, rounded once: two roundings fewer than of a unit's.
CHANNEL_BOUNDS = NormBounds(scaled=4)

_PARAMETERS = """\
weight, bias : array, optional
    1-D, one value a channel; of x's dtype or a wider one. Either may come without the other.
"""
_REST = f"""\
{ACTIVATION}
out : array, optional
    Where to write y: shape, dtype, device and framework of x. It may be x itself.
{STREAM}
{OWN}

Returns
-------
{LIKE_X}

Raises
------
TypeError
    For a dtype that is not supported, a parameter narrower than x, mixed frameworks, a tensor that
    requires grad, or an unknown keyword.
ValueError
    For an axis out of range, an array of another shape, an unknown activation; an `out` that does
    not fit, that overlaps x in part, or that shares memory with another argument{{errors}}.

Notes
-----
{{accuracy}}
Terms are added up as by `fastact.sum`: the bits do not depend on the number of threads, but may on
whether channels come last in memory.

References
----------
S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
Internal Covariate Shift", ICML 2015, https://arxiv.org/abs/1502.03167

Examples
--------
>>> import numpy as np, fastact as fa
"""


def _notes(moments: str) -> str:
    last = " The bits do not depend on the number of threads."
    return paragraph(norm_forward(CHANNEL_BOUNDS, moments=moments) + last)


BATCH_NORM = (
    f"""\
batch_norm(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1,
eps=1e-5, *, channel_axis=1, activation="identity", num_batches=None, out=None, ...)

y = act((x - mean) / sqrt(variance + eps) weight + bias), mean and variance of each channel.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
running_mean, running_var : array
    1-D, one value a channel; of x's dtype or a wider one. Used as they are, or in training moved
    towards the mean and the unbiased variance of x: running = (1 - momentum) running + momentum
    new, once all has been checked and computed. In training each may be None.
{_PARAMETERS}training : bool
    Use the mean and the variance of x.
momentum : float or None
    From 0 to 1. None: running statistics are the average over all batches, of which
    `num_batches` came before.
eps : float
    Added to the variance; not negative.
channel_axis : int
    1 for NCHW, -1 for channels last.
num_batches : int, optional
    With momentum=None: how many batches the running statistics are the average of.
"""
    + _REST.format(
        accuracy=_notes("; running statistics have none"),
        errors="""; in training
    one value a channel, running statistics that are read-only or share memory; a momentum outside
    [0, 1], a negative eps""",
    )
    + """\
>>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
>>> mean, var = np.zeros(2), np.ones(2)
>>> fa.batch_norm(x, mean, var, training=True, eps=0)
array([[-1., -1.],
       [ 1.,  1.]])
>>> mean, var
(array([0.2, 0.4]), array([1.1, 1.7]))
>>> fa.batch_norm(x, mean, var, np.ones(2), np.ones(2), activation="relu")
array([[1.7627..., 2.2271...],
       [3.6696..., 5.2949...]])
"""
)

NORM_APPLY = (
    f"""\
norm_apply(x, mean, rstd, weight=None, bias=None, *, axis, activation="identity", out=None, ...)

y = act((x - mean) rstd weight + bias), with statistics that come from elsewhere: of merged
`Moments`, for one.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
mean, rstd : array
    One value a channel, 1-D or with the other axes of x of length 1; of x's dtype or a wider one.
{_PARAMETERS}axis : int
    The axis of the channels.
"""
    + _REST.format(accuracy=_notes("; of `Moments` they are in the arguments"), errors="")
    + """\
>>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
>>> m = fa.moments(x, 0)
>>> fa.norm_apply(x, m.mean, 1 / m.std(), axis=1)
array([[-1., -1.],
       [ 1.,  1.]])
"""
)
