"""Norms: (x - mean) rstd weight + bias, with any activation behind it.

Each is declared by a function: signature, defaults and its own documentation. Of norms over rows of
x `@norm` adds which elements make a normalization row, that is, share a mean and an rstd, the kind
of norm, and its parts, as a residual (`engine/norm_rows.py`). `batch_norm` and `norm_apply`
have one mean and one rstd a channel (`engine/norm_channels.py`). The formulas and the gradients are
in `src/common/norms`, the oracle in `check/reference.py`.
"""

from typing import TYPE_CHECKING, SupportsIndex, Unpack

from .activations import Parameters
from .engine.norm_channels import BatchNormOp, NormApply
from .engine.norm_rows import (
    CASTING,
    DROPPED_RESIDUAL,
    GATE,
    RESIDUAL,
    AddNormOut,
    NormOut,
    gated_groups,
    groups_of_channels,
    named_axes,
    norm,
    single_channels,
)
from .engine.op import float32_under_autocast, names_of_ops, register
from .types import A, ActivationLike, Array, ArrayOrNumber, Casting, Out, Stream


@float32_under_autocast("cuda")
@norm(named_axes, "CentredNorm")
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

    See Also
    --------
    fastact.rms_norm : The same without mean and bias.
    fastact.add_layer_norm : The same of a sum.

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
@norm(named_axes, "RmsNorm", CASTING)
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

    See Also
    --------
    fastact.layer_norm : The same about the mean, with a bias.
    fastact.add_rms_norm : The same of a sum.

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
@norm(named_axes, "CentredNorm", RESIDUAL)
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

    See Also
    --------
    fastact.layer_norm : The same of one array.
    fastact.add_rms_norm : The same without mean and bias.

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
@norm(named_axes, "RmsNorm", RESIDUAL, CASTING)
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

    See Also
    --------
    fastact.rms_norm : The same of one array.
    fastact.add_layer_norm : The same about the mean, with a bias.

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
@norm(named_axes, "CentredNorm", DROPPED_RESIDUAL)
def dropout_add_layer_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    p: float,
    seed: SupportsIndex,
    offset: SupportsIndex = 0,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Dropout, a sum with the residual, and layer normalization of it.

    ``total = dropout(x, p, seed=seed, offset=offset, residual=residual)`` and ``y = act((total -
    mean) / sqrt(variance + eps) * weight + bias)``, mean and variance of total over `axis`; on the
    CPU in one pass over memory.

    See Also
    --------
    fastact.add_layer_norm : The same without dropout.
    fastact.dropout : The mask, and what becomes of an element.
    fastact.dropout_add_rms_norm : The same without mean and bias.

    Notes
    -----
    total has the bits that `dropout` gives, so that it is rounded to x's dtype once.

    dresidual is the gradient with respect to total, the dx of other norms. From it `backward` makes
    dx, with the bits of ``dropout.backward(dresidual, p, seed=seed, offset=offset)``: the mask is
    drawn again. On a GPU it takes memory for dresidual where it adds to `out`.

    References
    ----------
    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, residual = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    >>> fa.dropout_add_layer_norm(x, residual, p=0.5, seed=3, eps=0)
    (array([ 1., -1.]), array([2., 1.]))
    >>> (y, total), saved = fa.dropout_add_layer_norm.forward(
    ...     x, residual, np.ones(2), p=0.5, seed=3, eps=0
    ... )
    >>> dx, dresidual, dweight, dbias = fa.dropout_add_layer_norm.backward(
    ...     1.0, *saved, p=0.5, seed=3, dtotal=np.array([3.0, 5.0])
    ... )
    >>> dx, dresidual
    (array([6., 0.]), array([3., 5.]))
    """


@float32_under_autocast("cuda")
@norm(named_axes, "RmsNorm", DROPPED_RESIDUAL, CASTING)
def dropout_add_rms_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    *,
    p: float,
    seed: SupportsIndex,
    offset: SupportsIndex = 0,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Dropout, a sum with the residual, and root-mean-square normalization of it.

    ``total = dropout(x, p, seed=seed, offset=offset, residual=residual)`` and ``y = act(total /
    sqrt(mean(total**2) + eps) * (weight + weight_offset))``, the mean over `axis`; on the CPU in
    one pass over memory.

    See Also
    --------
    fastact.add_rms_norm : The same without dropout.
    fastact.dropout_add_layer_norm : The same about the mean, with a bias; notes on the gradients.

    References
    ----------
    B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
    https://arxiv.org/abs/1910.07467

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, residual = np.array([1.5, 2.0]), np.array([0.0, 4.0])
    >>> fa.dropout_add_rms_norm(x, residual, p=0.5, seed=3, eps=0)
    (array([0.8485..., 1.1313...]), array([3., 4.]))
    >>> y, saved = fa.dropout_add_rms_norm.forward(x, residual, np.ones(2), p=0.5, seed=3, eps=0)
    >>> dx, dresidual, dweight = fa.dropout_add_rms_norm.backward(
    ...     np.array([1.0, 0.0]), *saved, p=0.5, seed=3
    ... )
    >>> dx, dresidual
    (array([0.3620..., 0.        ]), array([ 0.1810..., -0.1357...]))
    """


@norm(named_axes, "L2Norm")
def l2_normalize(
    x: A,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-12,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Division by the length: the root of the sum of the squares.

    ``y = act(x / max(sqrt(sum(x**2)), eps) * weight)``, the sum over `axis`, in one pass over
    memory.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes whose squares are added up, and along which the weight lies;
        `torch.nn.functional.normalize` has axis 1 by default.
    eps : float, default 1e-12
        The least length that x is divided by: 0, or from 1e-150 to 1e150.

    Raises
    ------
    ValueError
        For an eps out of range.

    See Also
    --------
    fastact.rms_norm : The same by the root of the mean of the squares.

    Notes
    -----
    The gradient has sums in the place of means: ``dx = rstd * (g - xhat * sum(g * xhat))``, rstd
    one over the length. Where that is at most eps, the divisor is a constant, and ``dx = g / eps``.
    By an infinite length a finite number is 0, and an infinity is NaN. rstd is of float32 (float64
    for float64), where it is infinite for lengths below 3e-39: with an eps as small, y is then no
    number.

    References
    ----------
    `torch.nn.functional.normalize`,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[3.0, 4.0], [0.0, 0.0]])
    >>> fa.l2_normalize(x)
    array([[0.6, 0.8],
           [0. , 0. ]])
    >>> fa.l2_normalize(np.array([3e160, 4e160]))
    array([0.6, 0.8])
    >>> y, saved = fa.l2_normalize.forward(np.array([3.0, 4.0]), np.ones(2))
    >>> fa.l2_normalize.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.128, -0.096]), array([0.6, 0. ]))
    """


@norm(gated_groups, "RmsNorm", GATE, CASTING)
def gated_rms_norm(
    x: A,
    gate: ArrayOrNumber,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    activation: ActivationLike = "silu",
    gate_first: bool = False,
    group_size: int | None = None,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Root-mean-square normalization, times an activation of a gate.

    ``y = x / sqrt(mean(x**2) + eps) * (weight + weight_offset) * act(gate)``, the mean over `axis`,
    in one pass over memory. With `gate_first` it is the norm of ``x * act(gate)``.

    Parameters
    ----------
    gate_first : bool, default False
        Multiply x by the gate, not what is normalised: ``norm_before_gate=False`` of Mamba-2.
    group_size : int, optional
        Normalise each so many neighbours along `axis` by themselves, which then is an integer; the
        weight lies along the whole axis.

    See Also
    --------
    fastact.rms_norm : The same without a gate.
    fastact.gated : The gate without the norm.

    References
    ----------
    T. Dao and A. Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", ICML 2024, https://arxiv.org/abs/2405.21060

    `MambaRMSNormGated` and `Qwen3NextRMSNormGated` of https://github.com/huggingface/transformers

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, gate = np.array([3.0, 4.0]), np.array([1.0, -1.0])
    >>> fa.gated_rms_norm(x, gate, eps=0)
    array([ 0.6203..., -0.3042...])
    >>> fa.gated_rms_norm(x, gate, eps=0, gate_first=True)
    array([ 1.2696..., -0.6227...])
    >>> y, saved = fa.gated_rms_norm.forward(x, gate, np.ones(2), eps=0, activation="sigmoid")
    >>> dx, dgate, dweight = fa.gated_rms_norm.backward(1.0, *saved, activation="sigmoid")
    >>> dgate
    array([0.1668..., 0.2224...])
    """


@float32_under_autocast("cuda")
@norm(groups_of_channels, "CentredNorm")
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
    num_groups : int
        How many groups; it divides the number of channels.

    See Also
    --------
    fastact.instance_norm : The same with each channel as a group.
    fastact.layer_norm : The same over axes.

    Notes
    -----
    A group of one value is its own mean: its xhat is 0. `F.group_norm` refuses such groups in a
    batch of one example, and takes them in a larger one; here an example does not depend on the
    others, and only the module `fastact.torch.nn.GroupNorm` refuses what torch does.

    `group_norm.backward` sees the number of groups by the shape of rstd.

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


@norm(single_channels, "CentredNorm")
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

    See Also
    --------
    fastact.group_norm : The same over groups of channels.
    fastact.batch_norm : The same over the batch, too.

    Notes
    -----
    A channel of one value is its own mean: its xhat is 0. `F.instance_norm` refuses it, and so do
    the modules `fastact.torch.nn.InstanceNorm1d` to `3d`, which keep running statistics, too.
    Normalized by those it is `fastact.batch_norm`; an example moves them by its
    ``fastact.mean_var(x, axes, correction=1)``.

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


@register
@BatchNormOp
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
    running_mean, running_var : array
        1-D, one value a channel; of x's dtype or a wider one. Used as they are, or in training
        moved towards the mean and the unbiased variance of x: ``running = (1 - momentum) * running
        + momentum * new``, once all has been checked and computed; an empty batch moves nothing. In
        training each may be None, but no list: only a copy of it could be updated.
    training : bool, default False
        Use the mean and the variance of x.
    momentum : float or None, default 0.1
        From 0 to 1. None: running statistics are the average over all batches, and `num_batches`
        batches came before.
    num_batches : int, optional
        With momentum=None: how many batches the running statistics are the average of.

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
    `batch_norm.backward_reduce` and `batch_norm.backward_apply` are the two halves of
    `batch_norm.backward` in training, for a batch that lies on several machines.

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
    mean, rstd : array
        One value a channel, 1-D or with the other axes of x of length 1; of x's dtype or a wider
        one.
    axis : int
        The axis of the channels.

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
    For `norm_apply.backward` mean and rstd are constants.

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
