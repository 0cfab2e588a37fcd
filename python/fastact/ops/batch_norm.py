"""Norms by one mean and one rstd a channel, with any activation behind them.

Each is declared by a function: signature, defaults and documentation; its class makes the op of it
(`engine/norm_channels.py`). The formulas are in `src/common/norms/batch_norm.h`, the oracle in
`check/reference.py`.
"""

from typing import TYPE_CHECKING, Unpack

from .engine.norm_channels import BatchNorm, NormApply
from .engine.op import names_of_ops, register
from .types import A, ActivationLike, Array, Out, Parameters, Stream


@register
@BatchNorm
def batch_norm(
    x: A,
    /,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
    activation: ActivationLike = "identity",
    num_batches: int | None = None,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Batch normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, mean and variance of each
    channel: the running ones, or in training x's own.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    running_mean, running_var : array
        1-D, one value a channel; of x's dtype or a wider one. Used as they are, or in training
        moved towards the mean and the unbiased variance of x: ``running = (1 - momentum) * running
        + momentum * new``, once all has been checked and computed; an empty batch moves nothing. In
        training each may be None, but no list: only a copy of it could be updated.
    weight, bias : array, optional
        1-D, one value a channel; of x's dtype or a wider one. Either may come without the other.
    training : bool, default False
        Use the mean and the variance of x.
    momentum : float or None, default 0.1
        From 0 to 1. None: running statistics are the average over all batches, and `num_batches`
        batches came before.
    eps : float, default 1e-5
        Added to the variance; not negative.
    channel_axis : int, default 1
        1 for NCHW, -1 for channels last.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    num_batches : int, optional
        With momentum=None: how many batches the running statistics are the average of.
    out : array, optional
        Where to write y; it may be x itself.
    stream : optional
        For arrays on a GPU: the stream to work on.
    **parameters : float or str
        The activation's own parameters.

    Returns
    -------
    array
        The result y, of x's shape, dtype and framework.

    Raises
    ------
    TypeError
        For an array of a dtype narrower than x's, no running statistics without training, or no
        num_batches with momentum=None in training.
    ValueError
        For an axis out of range, an array of another shape, a momentum outside [0, 1], a negative
        eps or num_batches; in training for one value a channel, and for running statistics that are
        read-only or share memory.

    See Also
    --------
    fastact.norm_apply : The same by statistics that come from elsewhere.
    fastact.instance_norm : The same over each example by itself.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 4 u
    abs(xhat weight) + u abs(z), and 2**-48 abs(mean weight) rstd for the rounding of the mean; for
    float64 instead 2**-52 abs(mean weight) rstd (1 + abs(xhat)) + 2**-46 abs(weight) (1 +
    abs(xhat)), for the roundings of the moments; running statistics have none. Then the
    activation's own error, and one rounding to x's dtype; a bias wider than what x is computed in
    is rounded to that first. On a GPU, whose moments of 16-bit data and of float32 are of float32
    in part, there is 4 u abs(weight) (1 + abs(xhat)) more.

    Terms are added up as by `fastact.sum`: the bits do not depend on the number of threads, but may
    on whether channels come last in memory.

    `batch_norm.forward` saves ``(x, mean, rstd, weight, bias)``; `batch_norm.backward` gives ``(dx,
    dweight, dbias)``. `batch_norm.backward_reduce` and `batch_norm.backward_apply` are its two
    halves in training, for a batch that lies on several machines. docs/conventions.md says what all
    ops share.

    References
    ----------
    S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
    Internal Covariate Shift", ICML 2015, https://arxiv.org/abs/1502.03167

    Examples
    --------
    >>> import numpy as np, fastact as fa
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
    >>> y, saved = fa.batch_norm.forward(x, None, None, np.ones(2), training=True, eps=0)
    >>> dx, dweight, dbias = fa.batch_norm.backward(x, *saved, training=True)
    >>> dweight
    array([2., 4.])
    """


@register
@NormApply
def norm_apply(
    x: A,
    /,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int,
    activation: ActivationLike = "identity",
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Normalization by given statistics, such as merged `Moments` have.

    ``y = act((x - mean) * rstd * weight + bias)``.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    mean, rstd : array
        One value a channel, 1-D or with the other axes of x of length 1; of x's dtype or a wider
        one.
    weight, bias : array, optional
        1-D, one value a channel; of x's dtype or a wider one. Either may come without the other.
    axis : int
        The axis of the channels.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : array, optional
        Where to write y; it may be x itself.
    stream : optional
        For arrays on a GPU: the stream to work on.
    **parameters : float or str
        The activation's own parameters.

    Returns
    -------
    array
        The result y, of x's shape, dtype and framework.

    Raises
    ------
    TypeError
        For an array of a dtype narrower than x's.
    ValueError
        For an axis out of range, or an array of another shape.

    See Also
    --------
    fastact.moments : Statistics that can be merged.
    fastact.batch_norm : The same by the statistics of x.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 4 u
    abs(xhat weight) + u abs(z), and 2**-48 abs(mean weight) rstd for the rounding of the mean; for
    float64 instead 2**-52 abs(mean weight) rstd (1 + abs(xhat)) + 2**-46 abs(weight) (1 +
    abs(xhat)), for the roundings of the moments; of `Moments` they are in the arguments. Then the
    activation's own error, and one rounding to x's dtype; a bias wider than what x is computed in
    is rounded to that first.

    Terms are added up as by `fastact.sum`: the bits do not depend on the number of threads, but may
    on whether channels come last in memory.

    `norm_apply.forward` saves ``(x, mean, rstd, weight, bias)``; `norm_apply.backward` gives ``(dx,
    dweight, dbias)``, for which mean and rstd are constants. docs/conventions.md says what all ops
    share.

    References
    ----------
    S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
    Internal Covariate Shift", ICML 2015, https://arxiv.org/abs/1502.03167

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> m = fa.moments(x, 0)
    >>> fa.norm_apply(x, m.mean, 1 / m.std(), axis=1)
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> y, saved = fa.norm_apply.forward(x, m.mean, 1 / m.std(), np.ones(2), axis=1)
    >>> dx, dweight, dbias = fa.norm_apply.backward(1.0, *saved, axis=1)
    >>> dx
    array([[1. , 0.5],
           [1. , 0.5]])
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
