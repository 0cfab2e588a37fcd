"""Norms over rows of x: (x - mean) rstd weight + bias, with any activation behind it.

Each is declared by a function: signature, defaults and documentation; `@norm` adds which elements
of x make a normalization row, that is, share a mean and an rstd. What else a norm does follows from
its signature (`norm.py`). The formulas and the gradients are in `src/common/norms/norms.h`, the
oracle in `check/reference.py`.
"""

from typing import TYPE_CHECKING, Unpack

from .norm import AddNormOut, NormOut, groups_of_channels, named_axes, norm, single_channels
from .op import float32_under_autocast, names_of_ops
from .types import A, ActivationLike, Array, ArrayOrNumber, Casting, Parameters, Stream


@float32_under_autocast("cuda")
@norm(over=named_axes)
def layer_norm(
    x: A,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Layer normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, mean and variance over `axis`,
    in one pass over memory.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    weight, bias : array, optional
        Of the lengths of x along `axis`, in the order of x; of x's dtype or a wider one. Either may
        come without the other.
    axis : int or tuple of int, default -1
        The axes whose elements share statistics, and along which the parameters lie.
    eps : float, default 1e-5
        Added to the variance; not negative.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : array or tuple, optional
        Where to write y; it may be x itself. Of `forward`, also a tuple that goes on with arrays
        for the statistics.
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
        For a parameter of a dtype narrower than x's.
    ValueError
        For a parameter of another shape, an axis out of range or named twice, or a negative eps.

    See Also
    --------
    fastact.rms_norm : The same without mean and bias.
    fastact.add_layer_norm : The same of a sum.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 6 u
    abs(xhat weight) + u abs(z), and 2**-48 abs(mean weight) rstd for the rounding of the mean; for
    float64 instead 2**-52 abs(mean weight) rstd (1 + abs(xhat)) + 2**-46 abs(weight) (1 +
    abs(xhat)), for the roundings of the moments. Then the activation's own error, and one rounding
    to x's dtype; a bias wider than what x is computed in is rounded to that first. On a GPU, whose
    moments of 16-bit data are of float32 in part, there is 4 u abs(weight) (1 + abs(xhat) +
    abs(mean) rstd) more.

    The result for a normalization row does not depend on the other rows, nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order in
    which memory holds the axes (channels last), but not on how they step.

    `layer_norm.forward` saves ``(x, mean, rstd, weight, bias)``; `layer_norm.backward` gives ``(dx,
    dweight, dbias)``. docs/conventions.md says what all ops share.

    References
    ----------
    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]])
    >>> fa.layer_norm(x)
    array([[-1.2247...,  0.        ,  1.2247...],
           [-0.7071..., -0.7071...,  1.4142...]])
    >>> y, saved = fa.layer_norm.forward(x, np.full(3, 2.0), activation="mish")
    >>> y
    array([[-0.2023...,  0.        ,  2.4187...],
           [-0.3029..., -0.3029...,  2.8108...]])
    >>> dx, dweight, dbias = fa.layer_norm.backward(1.0, *saved, activation="mish")
    >>> dweight
    array([0.1707..., 0.0350..., 2.7304...])
    """


@float32_under_autocast("cuda")
@norm(over=named_axes)
def rms_norm(
    x: A,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Root-mean-square normalization.

    ``y = act(x / sqrt(mean(x**2) + eps) * (weight + weight_offset))``, the mean over `axis`, in one
    pass over memory.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    weight : array, optional
        Of the lengths of x along `axis`, in the order of x; of x's dtype or a wider one.
    axis : int or tuple of int, default -1
        The axes whose elements share statistics, and along which the parameters lie.
    eps : float, default 1e-6
        Added to the mean of the squares; not negative.
    weight_offset : float, optional
        Added to the weight, in the type in which x is computed; by default 0, with "gemma" 1.
    casting : {"exact", "llama", "gemma"}, default "exact"
        Where values are rounded. "exact": the result alone. "llama": the normalised x to x's dtype,
        and then the product with the weight, as Llama's published code does. "gemma": as "exact",
        with a weight that is learnt less 1, as Gemma's does.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : array or tuple, optional
        Where to write y; it may be x itself. Of `forward`, also a tuple that goes on with arrays
        for the statistics.
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
        For a parameter of a dtype narrower than x's.
    ValueError
        For a parameter of another shape, an axis out of range or named twice, a negative eps, or
        another casting.

    See Also
    --------
    fastact.layer_norm : The same about the mean, with a bias.
    fastact.add_rms_norm : The same of a sum.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 6 u
    abs(xhat weight) + u abs(z); for float64 also 2**-46 abs(weight) (1 + abs(xhat)), for the
    roundings of the moments. Then the activation's own error, and one rounding to x's dtype; a bias
    wider than what x is computed in is rounded to that first. On a GPU, whose moments of 16-bit
    data are of float32 in part, there is 4 u abs(weight) (1 + abs(xhat) + abs(mean) rstd) more.

    The result for a normalization row does not depend on the other rows, nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order in
    which memory holds the axes (channels last), but not on how they step.

    With casting="llama" and 16-bit data, `rms_norm.backward` rounds where the derivative of that
    code does: what reaches the normalised x, the terms of dweight, and with an activation what
    comes from it. Of float32 and float64 it rounds nothing that is not rounded anyway.

    `rms_norm.forward` saves ``(x, rstd, weight)``; `rms_norm.backward` gives ``(dx, dweight)``.
    docs/conventions.md says what all ops share.

    References
    ----------
    B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
    https://arxiv.org/abs/1910.07467

    `LlamaRMSNorm` and `GemmaRMSNorm` of https://github.com/huggingface/transformers

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([3.0, 4.0])
    >>> fa.rms_norm(x, eps=0)
    array([0.8485..., 1.1313...])
    >>> y, saved = fa.rms_norm.forward(x, np.ones(2), eps=0)
    >>> fa.rms_norm.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.1810..., -0.1357...]), array([0.8485..., 0.        ]))
    """


@float32_under_autocast("cuda")
@norm(over=named_axes)
def add_layer_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Sum of two arrays, and layer normalization of it.

    ``total = x + residual`` and ``y = act((total - mean) / sqrt(variance + eps) * weight + bias)``,
    mean and variance of total over `axis`, in one pass over memory.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    residual : array, or Python scalar
        Of x's shape and dtype.
    weight, bias : array, optional
        Of the lengths of x along `axis`, in the order of x; of x's dtype or a wider one. Either may
        come without the other.
    axis : int or tuple of int, default -1
        The axes whose elements share statistics, and along which the parameters lie.
    eps : float, default 1e-5
        Added to the variance; not negative.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : tuple of arrays or None, optional
        Where to write y and the sum; one that is None is allocated. The sum may be x or residual
        itself, and y too. Of `forward`, the tuple may go on with arrays for the statistics.
    stream : optional
        For arrays on a GPU: the stream to work on.
    **parameters : float or str
        The activation's own parameters.

    Returns
    -------
    y : array
        The normalised sum, of x's shape, dtype and framework.
    total : array
        The sum x + residual, rounded to x's dtype. It is normalised as rounded, so that y is what
        the norm of this sum gives; kernels that normalise the sum before they round it, as vLLM's
        and flash-attn's, differ by that rounding in 16 bits.

    Raises
    ------
    TypeError
        For a parameter of a dtype narrower than x's.
    ValueError
        For a parameter of another shape, an axis out of range or named twice, or a negative eps.

    See Also
    --------
    fastact.layer_norm : The same of one array.
    fastact.add_rms_norm : The same without mean and bias.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 6 u
    abs(xhat weight) + u abs(z), and 2**-48 abs(mean weight) rstd for the rounding of the mean; for
    float64 instead 2**-52 abs(mean weight) rstd (1 + abs(xhat)) + 2**-46 abs(weight) (1 +
    abs(xhat)), for the roundings of the moments. Then the activation's own error, and one rounding
    to x's dtype; a bias wider than what x is computed in is rounded to that first. On a GPU, whose
    moments of 16-bit data are of float32 in part, there is 4 u abs(weight) (1 + abs(xhat) +
    abs(mean) rstd) more.

    The result for a normalization row does not depend on the other rows, nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order in
    which memory holds the axes (channels last), but not on how they step.

    `add_layer_norm.forward` saves ``(x, mean, rstd, weight, bias)``, where x is the sum;
    `add_layer_norm.backward` gives ``(dx, dweight, dbias)``, where dx is the residual's gradient
    too. `dtotal` is the gradient with respect to the sum that was returned. docs/conventions.md
    says what all ops share.

    References
    ----------
    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, residual = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    >>> fa.add_layer_norm(x, residual, eps=0)
    (array([-1.,  1.]), array([1., 3.]))
    >>> (y, total), saved = fa.add_layer_norm.forward(x, residual, np.ones(2), eps=0)
    >>> fa.add_layer_norm.backward(1.0, *saved, dtotal=np.array([3.0, 5.0]))
    (array([3., 5.]), array([-1.,  1.]), None)
    """


@float32_under_autocast("cuda")
@norm(over=named_axes)
def add_rms_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Sum of two arrays, and root-mean-square normalization of it.

    ``total = x + residual`` and ``y = act(total / sqrt(mean(total**2) + eps) * (weight +
    weight_offset))``, the mean over `axis`, in one pass over memory.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    residual : array, or Python scalar
        Of x's shape and dtype.
    weight : array, optional
        Of the lengths of x along `axis`, in the order of x; of x's dtype or a wider one.
    axis : int or tuple of int, default -1
        The axes whose elements share statistics, and along which the parameters lie.
    eps : float, default 1e-6
        Added to the mean of the squares; not negative.
    weight_offset : float, optional
        Added to the weight, in the type in which x is computed; by default 0, with "gemma" 1.
    casting : {"exact", "llama", "gemma"}, default "exact"
        Where values are rounded. "exact": the result alone. "llama": the normalised x to x's dtype,
        and then the product with the weight, as Llama's published code does. "gemma": as "exact",
        with a weight that is learnt less 1, as Gemma's does.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : tuple of arrays or None, optional
        Where to write y and the sum; one that is None is allocated. The sum may be x or residual
        itself, and y too. Of `forward`, the tuple may go on with arrays for the statistics.
    stream : optional
        For arrays on a GPU: the stream to work on.
    **parameters : float or str
        The activation's own parameters.

    Returns
    -------
    y : array
        The normalised sum, of x's shape, dtype and framework.
    total : array
        The sum x + residual, rounded to x's dtype. It is normalised as rounded, so that y is what
        the norm of this sum gives; kernels that normalise the sum before they round it, as vLLM's
        and flash-attn's, differ by that rounding in 16 bits.

    Raises
    ------
    TypeError
        For a parameter of a dtype narrower than x's.
    ValueError
        For a parameter of another shape, an axis out of range or named twice, a negative eps, or
        another casting.

    See Also
    --------
    fastact.rms_norm : The same of one array.
    fastact.add_layer_norm : The same about the mean, with a bias.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 6 u
    abs(xhat weight) + u abs(z); for float64 also 2**-46 abs(weight) (1 + abs(xhat)), for the
    roundings of the moments. Then the activation's own error, and one rounding to x's dtype; a bias
    wider than what x is computed in is rounded to that first. On a GPU, whose moments of 16-bit
    data are of float32 in part, there is 4 u abs(weight) (1 + abs(xhat) + abs(mean) rstd) more.

    The result for a normalization row does not depend on the other rows, nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order in
    which memory holds the axes (channels last), but not on how they step.

    With casting="llama" and 16-bit data, `add_rms_norm.backward` rounds where the derivative of
    that code does: what reaches the normalised x, the terms of dweight, and with an activation what
    comes from it. Of float32 and float64 it rounds nothing that is not rounded anyway.

    `add_rms_norm.forward` saves ``(x, rstd, weight)``, where x is the sum; `add_rms_norm.backward`
    gives ``(dx, dweight)``, where dx is the residual's gradient too. `dtotal` is the gradient with
    respect to the sum that was returned. docs/conventions.md says what all ops share.

    References
    ----------
    B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
    https://arxiv.org/abs/1910.07467

    `LlamaRMSNorm` and `GemmaRMSNorm` of https://github.com/huggingface/transformers

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, residual = np.array([1.0, 2.0]), np.array([2.0, 2.0])
    >>> fa.add_rms_norm(x, residual, eps=0)
    (array([0.8485..., 1.1313...]), array([3., 4.]))
    >>> (y, total), saved = fa.add_rms_norm.forward(x, residual, np.ones(2), eps=0)
    >>> fa.add_rms_norm.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.1810..., -0.1357...]), array([0.8485..., 0.        ]))
    """


@float32_under_autocast("cuda")
@norm(over=groups_of_channels)
def group_norm(
    x: A,
    /,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    channel_axis: int = 1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Group normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, mean and variance over each
    group of neighbouring channels of each example.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    num_groups : int
        How many groups; it divides the number of channels.
    weight, bias : array, optional
        1-D, one value a channel; of x's dtype or a wider one. Either may come without the other.
    channel_axis : int, default 1
        The axis of the channels: 1 for NCHW, -1 for channels last. The batch is axis 0, unless the
        channels are.
    eps : float, default 1e-5
        Added to the variance; not negative.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : array or tuple, optional
        Where to write y; it may be x itself. Of `forward`, also a tuple that goes on with arrays
        for the statistics.
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
        For a parameter of a dtype narrower than x's.
    ValueError
        For a parameter of another shape, an axis out of range, a number of groups that does not
        fit, or a negative eps.

    See Also
    --------
    fastact.instance_norm : The same with each channel as a group.
    fastact.layer_norm : The same over axes.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 6 u
    abs(xhat weight) + u abs(z), and 2**-48 abs(mean weight) rstd for the rounding of the mean; for
    float64 instead 2**-52 abs(mean weight) rstd (1 + abs(xhat)) + 2**-46 abs(weight) (1 +
    abs(xhat)), for the roundings of the moments. Then the activation's own error, and one rounding
    to x's dtype; a bias wider than what x is computed in is rounded to that first. On a GPU, whose
    moments of 16-bit data are of float32 in part, there is 4 u abs(weight) (1 + abs(xhat) +
    abs(mean) rstd) more.

    The result for a normalization row does not depend on the other rows, nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order in
    which memory holds the axes (channels last), but not on how they step.

    A group of one value is its own mean: its xhat is 0. `F.group_norm` refuses such groups in a
    batch of one example, and takes them in a larger one; here an example does not depend on the
    others, and only the module `fastact.torch.nn.GroupNorm` refuses what torch does.

    `group_norm.forward` saves ``(x, mean, rstd, weight, bias)``; `group_norm.backward` gives ``(dx,
    dweight, dbias)``. It sees the number of groups by the shape of rstd. docs/conventions.md says
    what all ops share.

    References
    ----------
    Y. Wu and K. He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[1.0, 3.0, 5.0, 5.0]])
    >>> fa.group_norm(x, 2, eps=1e-12)
    array([[-1.,  1.,  0.,  0.]])
    >>> y, saved = fa.group_norm.forward(x, 2, np.ones(4), eps=1e-12)
    >>> dx, dweight, dbias = fa.group_norm.backward(2.0, *saved)
    >>> dweight
    array([-2.,  2.,  0.,  0.])
    """


@norm(over=single_channels)
def instance_norm(
    x: A,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    channel_axis: int = 1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Instance normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, mean and variance over each
    channel of each example.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; any shape and strides.
    weight, bias : array, optional
        1-D, one value a channel; of x's dtype or a wider one. Either may come without the other.
    channel_axis : int, default 1
        The axis of the channels: 1 for NCHW, -1 for channels last. The batch is axis 0, unless the
        channels are.
    eps : float, default 1e-5
        Added to the variance; not negative.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    out : array or tuple, optional
        Where to write y; it may be x itself. Of `forward`, also a tuple that goes on with arrays
        for the statistics.
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
        For a parameter of a dtype narrower than x's.
    ValueError
        For a parameter of another shape, an axis out of range, or a negative eps.

    See Also
    --------
    fastact.group_norm : The same over groups of channels.
    fastact.batch_norm : The same over the batch, too.

    Notes
    -----
    Computed in float32 (float64 for float64, and for the statistics). With u = 2**-24 (2**-53),
    xhat the normalised x and z the value before the activation, z has an error of at most 6 u
    abs(xhat weight) + u abs(z), and 2**-48 abs(mean weight) rstd for the rounding of the mean; for
    float64 instead 2**-52 abs(mean weight) rstd (1 + abs(xhat)) + 2**-46 abs(weight) (1 +
    abs(xhat)), for the roundings of the moments. Then the activation's own error, and one rounding
    to x's dtype; a bias wider than what x is computed in is rounded to that first. On a GPU, whose
    moments of 16-bit data are of float32 in part, there is 4 u abs(weight) (1 + abs(xhat) +
    abs(mean) rstd) more.

    The result for a normalization row does not depend on the other rows, nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order in
    which memory holds the axes (channels last), but not on how they step.

    A channel of one value is its own mean: its xhat is 0. `F.instance_norm` refuses it, and so do
    the modules `fastact.torch.nn.InstanceNorm1d` to `3d`, which keep running statistics, too.
    Normalized by those it is `fastact.batch_norm`; an example moves them by its
    ``fastact.mean_var(x, axes, correction=1)``.

    `instance_norm.forward` saves ``(x, mean, rstd, weight, bias)``; `instance_norm.backward` gives
    ``(dx, dweight, dbias)``. docs/conventions.md says what all ops share.

    References
    ----------
    D. Ulyanov, A. Vedaldi and V. Lempitsky, "Instance Normalization: The Missing Ingredient for
    Fast Stylization", https://arxiv.org/abs/1607.08022

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[[1.0, 3.0], [5.0, 9.0]]])
    >>> fa.instance_norm(x, eps=0)
    array([[[-1.,  1.],
            [-1.,  1.]]])
    >>> y, saved = fa.instance_norm.forward(x, np.ones(2), np.ones(2), eps=0)
    >>> dx, dweight, dbias = fa.instance_norm.backward(np.array([[[1.0, 0.0], [0.0, 1.0]]]), *saved)
    >>> dweight, dbias
    (array([-1.,  1.]), array([1., 1.]))
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
