"""Softmax and loss: `softmax`, `log_softmax` and `logsumexp` of rows, and `cross_entropy`.

Each is declared by a function: signature, defaults and its own documentation; the decorator adds
what the entry points do (`engine/softmax.py`). The formulas are in `src/common/softmax/softmax.h`,
the oracle in `check/reference.py`.
"""

from typing import TYPE_CHECKING

from .engine.op import float32_under_autocast, names_of_ops
from .engine.softmax import RowAxes, log_softmax_op, logsumexp_op, loss_op, softmax_op
from .types import A, Array, ArrayOrNumber, Out, Stream


@float32_under_autocast("cuda")
@softmax_op
def softmax(
    x: A,
    /,
    axis: RowAxes = -1,
    *,
    scale: float = 1.0,
    mask: ArrayOrNumber | None = None,
    sink: Array | None = None,
    softcap: float | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Softmax.

    ``y = exp(z) / (sum(exp(z)) + exp(sink))`` over `axis`, with ``z = scale * x + mask``; without a
    sink y adds up to 1. With a softcap ``z = softcap * tanh(scale * x / softcap) + mask``.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes of a row.
    sink : array, optional
        A logit that only takes part in the sum, as the sinks of gpt-oss's attention: it broadcasts
        to the shape of x without `axis`. Of heads along axis 1 of four it has shape (H, 1). It is
        neither scaled nor masked.
    softcap : float, optional
        Above zero: the limit of abs(z) before the mask, as Gemma 2's attention has it, with 50.

    See Also
    --------
    fastact.log_softmax : Its logarithm.
    fastact.logsumexp : The logarithm of what it divides by.

    Notes
    -----
    Computed in float32 (float64 for float64), sums in double; on a GPU a thread's elements are
    added up in float32 first. y is within 4 ULP of the exact value however far elements lie apart,
    also where it is subnormal; float64 has n / 32 u more for a row of n elements, u = 2**-53. With
    a scale or a mask z is rounded, which adds 4 u max (abs(scale x) + abs(mask)), relative to y;
    with a softcap 12 u and the capped scale x. 16-bit data is rounded once more.

    What a mask leaves out, False or -inf, is as if it were not there, be it NaN: its y and its
    gradient are 0. A row in which nothing takes part, all z -inf, gives 0 with a mask, and NaN
    without one. A NaN or +inf that takes part makes all others of its row NaN.

    Where z leaves the range of the type in which it is computed, y does not: it follows from the
    distances within the row.

    `forward` saves, besides y, the sink and its own probability in each row, share, in the type
    that is computed in; without a sink both are None. Of 16-bit data on a GPU a share below 2**-126
    may be 0. `share` may be written to the second array of a tuple `out`. With a scale or a mask
    abs(sink) counts as another abs(scale x) in the bound. With a softcap it saves x, too, which
    `out` may not be then; else None in its place. softcap / abs(scale) must be in the range of the
    type that is computed in, where z is to have its digits.

    References
    ----------
    M. Dukhan and A. Ablavatski, "The Two-Pass Softmax Algorithm", https://arxiv.org/abs/2001.04438

    G. Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023,
    https://arxiv.org/abs/2309.17453

    Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024 (softcap),
    https://arxiv.org/abs/2408.00118

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.softmax(np.array([[0.0, 0.0], [1.0, -np.inf]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    >>> fa.softmax(np.zeros(4), mask=np.array([True, True, False, False]))
    array([0.5, 0.5, 0. , 0. ])
    >>> fa.softmax(np.zeros((2, 2)), sink=np.array([0.0, -np.inf]))
    array([[0.3333..., 0.3333...],
           [0.5       , 0.5       ]])
    >>> fa.softmax(np.array([0.0, 1e9]), softcap=2.0)
    array([0.1192..., 0.8807...])
    >>> y, saved = fa.softmax.forward(np.zeros(2))
    >>> fa.softmax.backward(np.array([1.0, 0.0]), *saved)
    array([ 0.25, -0.25])
    """


@float32_under_autocast("cuda")
@log_softmax_op
def log_softmax(
    x: A,
    /,
    axis: RowAxes = -1,
    *,
    scale: float = 1.0,
    mask: ArrayOrNumber | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """The logarithm of softmax.

    ``y = z - logsumexp(z)`` over `axis`, with ``z = scale * x + mask``.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes of a row: exp(y) adds up to 1 over them.

    See Also
    --------
    fastact.softmax : Its exponential.
    fastact.cross_entropy : The loss that is made of it, without storing it.

    Notes
    -----
    ``y = (z - m) - log1p(s)``, m the maximum and s the sum of ``exp(z - m)`` without the maximum's
    own term, so that also the y of an element far above all others has all its digits. y is within
    4 ULP of the exact value; float64 has n / 32 u min(abs(y), 1) more for a row of n elements, u =
    2**-53. With a scale or a mask z is rounded, which adds 4 u max (abs(scale x) + abs(mask)).
    16-bit data is rounded once more.

    What a mask leaves out, False or -inf, is as if it were not there, be it NaN: its y is -inf and
    its gradient 0. A row in which nothing takes part, all z -inf, gives -inf with a mask, and NaN
    without one. A NaN or +inf that takes part makes all others of its row NaN.

    Where z leaves the range of the type in which it is computed, y does not: it follows from the
    distances within the row.

    References
    ----------
    P. Blanchard, D. J. Higham and N. J. Higham, "Accurately computing the log-sum-exp and softmax
    functions", IMA Journal of Numerical Analysis 41(4), 2021,
    https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.log_softmax(np.array([0.0, -40.0]))
    array([-4.2483...e-18, -4.0000...e+01])
    >>> y, saved = fa.log_softmax.forward(np.zeros(2))
    >>> fa.log_softmax.backward(np.array([1.0, 0.0]), *saved)
    array([ 0.5, -0.5])
    """


@float32_under_autocast("cuda")
@logsumexp_op
def logsumexp(
    x: A,
    /,
    axis: RowAxes = -1,
    *,
    scale: float = 1.0,
    mask: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """The logarithm of the sum of exponentials.

    ``y = log(sum(exp(z)))`` over `axis`, with ``z = scale * x + mask``, without overflow.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes to reduce.
    out : array, optional
        Where to write y, which may not share memory with x. Of `forward`, also a tuple that goes on
        with arrays for lse and rest, which are saved.

    Returns
    -------
    array
        The result y, of x's dtype and framework.

    See Also
    --------
    fastact.log_softmax : It subtracts this from z.

    Notes
    -----
    ``y = m + log1p(s)``, m the maximum and s the sum of ``exp(z - m)`` without the maximum's own
    term. y is within 4 ULP of the exact value or, near 0, where m and log1p(s) cancel, within 4 u,
    u = 2**-24; float64 has n / 32 u more for a row of n elements, u = 2**-53. With a scale or a
    mask z is rounded, which adds 4 u max (abs(scale x) + abs(mask)). 16-bit data is rounded once
    more.

    Of elements that are all -inf, of those that take no part and of none it is -inf; with +inf
    among them it is +inf, and with a NaN NaN. What a mask leaves out, False or -inf, is as if it
    were not there, be it NaN.

    A y that leaves the range is infinite. Its gradient is right all the same; on a GPU it is NaN.

    Weights b that are not negative, as in `scipy.special.logsumexp(x, b=b)`, are a mask of their
    logarithms: ``log(sum(b * exp(x)))`` is ``fa.logsumexp(x, mask=np.log(b))``, in the same pass.

    References
    ----------
    P. Blanchard, D. J. Higham and N. J. Higham, "Accurately computing the log-sum-exp and softmax
    functions", IMA Journal of Numerical Analysis 41(4), 2021,
    https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.logsumexp(np.array([[1000.0, 1000.0], [0.0, -np.inf]]))
    array([1000.6931...,    0.        ])
    >>> fa.logsumexp(np.zeros(2), mask=np.log([1.0, 3.0]))  # log(1 + 3)
    np.float64(1.3862...)
    >>> y, saved = fa.logsumexp.forward(np.zeros(2))
    >>> fa.logsumexp.backward(1.0, *saved)
    array([0.5, 0.5])
    """


@float32_under_autocast("cpu", "cuda")
@loss_op
def cross_entropy(
    logits: A,
    target: Array,
    /,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    axis: int | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Cross entropy of logits and a target, in one read of the logits.

    ``loss = sum(t * weight * (logsumexp(logits) - logits))`` over `axis`, with the smoothed target
    ``t = (1 - label_smoothing) * target + label_smoothing / C`` of C classes; with a `z_loss` each
    row that counts has ``z_loss * logsumexp(logits)**2`` more.

    Parameters
    ----------
    target : array
        The class of each row, of int32 or int64 and the shape of logits without `axis`; or a
        probability for each class, of logits' shape and dtype.
    weight : array, optional
        Of each class; of any dtype, and rounded to that in which logits are computed.
    ignore_index : int, default -100
        A target that counts nothing, for targets that are classes.
    label_smoothing : float, default 0.0
        From 0 to 1: how much of the target is spread over all classes.
    z_loss : float, default 0.0
        The factor of each row's squared logsumexp, not negative, as Liger's `lse_square_scale`: it
        holds logits near 0. It is not multiplied by `weight`, and a row that is ignored has none;
        the mean divides it as it divides the rest (Liger's divides it by the number of rows, which
        differs where there are weights).
    reduction : str, default "mean"
        "mean", "sum", or "none" for the loss of each row. The mean divides by the sum of the
        weights of the targets that count; for probabilities, by the number of rows.
    axis : int, optional
        Of the classes; by default 1, or 0 where logits have one axis. Language models have it last.
    out : array, optional
        Where to write the loss, which may share memory with no input. Of `forward`, also a tuple
        that goes on with arrays for lse and rest, which are saved.

    Returns
    -------
    array
        The loss, of logits' dtype and framework.

    Raises
    ------
    TypeError
        For a target of another dtype, or a weight of another dtype than logits are computed in.
    ValueError
        For a class that logits have not, before anything is written (on a GPU, which does not wait
        for the answer, the loss of that row is NaN); for shapes that do not fit; for a z_loss that
        is negative or not finite.

    See Also
    --------
    fastact.log_softmax : The loss is the mean of -log_softmax at the target.

    Notes
    -----
    ``lse - z = (m - z) + log1p(s)``, as for `logsumexp`, is a sum of terms that are not negative:
    nothing cancels. A class whose t weight is 0 adds 0, at a logit of -inf too. A loss is within 8
    u of the sum of t weight (m - z + log1p(s)), u = 2**-24 (float64: 2**-53 and n / 32 more of n
    classes), to which a z_loss adds z_loss abs(lse) (abs(m) + log1p(s)). Losses are added up in
    double, in one order for any number of threads; no loss depends on the other rows. No
    probability is stored: `backward` makes them again of logits, lse and what the rounding of lse
    left, so that an offset of all logits costs no digit. `out` of it may be the logits.

    References
    ----------
    C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015 (label
    smoothing), https://arxiv.org/abs/1512.00567

    A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (z loss),
    https://arxiv.org/abs/2204.02311

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> logits, target = np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([0, 1])
    >>> fa.cross_entropy(logits, target, reduction="none")
    array([0.1269..., 0.6931...])
    >>> loss, saved = fa.cross_entropy.forward(logits, target)
    >>> fa.cross_entropy.backward(1.0, *saved)
    array([[-0.0596...,  0.0596...],
           [ 0.25      , -0.25      ]])
    """


if not TYPE_CHECKING:  # a type checker reads the imports
    __all__ = names_of_ops(globals())
