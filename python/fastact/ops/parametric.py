"""Parametric activations: y = f(x, w), with a learnt parameter w for each channel.

Each is declared by a function: signature, defaults and its own documentation
(`engine/parametric.py`). The formulas are in `src/common/bias/channel_functions.h`, the oracle's in
`check/reference.py`. The kernels of `bias_act` compute them: its bias is another such number.
"""

from typing import TYPE_CHECKING

from .bounds import ParametricBounds
from .engine.op import names_of_ops
from .engine.parametric import parametric
from .types import A, Array, Out, Stream


@parametric(ParametricBounds(value=1, by_x=0, by_parameter=0))
def prelu(
    x: A,
    weight: Array,
    /,
    *,
    channel_axis: int = 1,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Parametric ReLU, with a slope for each channel or one for all.

    ``y = np.where(x > 0, x, weight * x)``, with the weight along `channel_axis`.

    Parameters
    ----------
    weight : array
        1-D, one slope a channel; or with one element, the slope of all. Of x's dtype or a wider
        one.
    channel_axis : int, default 1
        The axis of the channels: 1 for NCHW, -1 for channels last. A single slope needs none.

    Raises
    ------
    TypeError
        For a weight narrower than x.
    ValueError
        For an axis out of range, a weight of another length, or an `out` that shares memory with
        weight.

    See Also
    --------
    leaky_relu : The same with a slope that is a number.
    bias_act : An activation of x + bias.

    Notes
    -----
    Computed in float32 (float64 for float64), to which a wider weight is rounded first, and rounded
    to x's dtype: y is within 1 u abs(y) of the true value before that, with u = 2**-24 (2**-53).

    `prelu.forward` saves ``(x, weight)``; `prelu.backward` gives dx and dweight. 0 belongs to
    the negative side, as in torch.

    References
    ----------
    K. He, X. Zhang, S. Ren and J. Sun, "Delving Deep into Rectifiers: Surpassing Human-Level
    Performance on ImageNet Classification", ICCV 2015, https://arxiv.org/abs/1502.01852

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.array([[-1.0, 2.0], [3.0, -4.0]])
    >>> fa.prelu(x, np.array([0.25, 0.5]))
    array([[-0.25,  2.  ],
           [ 3.  , -2.  ]])
    >>> y, saved = fa.prelu.forward(x, np.array([0.25]))
    >>> fa.prelu.backward(np.ones((2, 2)), *saved)
    (array([[0.25, 1.  ],
           [1.  , 0.25]]), array([-5.]))
    """


@parametric(ParametricBounds(value=5, by_x=8, by_parameter=10))
def snake(
    x: A,
    alpha: Array,
    /,
    *,
    channel_axis: int = 1,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Snake, with a frequency for each channel or one for all.

    ``y = x + np.sin(alpha * x)**2 / alpha``, with alpha along `channel_axis`; x where alpha is 0.

    Parameters
    ----------
    alpha : array
        1-D, one number a channel; or with one element, the number of all. Of x's dtype or a wider
        one.
    channel_axis : int, default 1
        The axis of the channels: 1 for (N, C, L), -1 for channels last. A single alpha needs none.

    Raises
    ------
    TypeError
        For an alpha narrower than x.
    ValueError
        For an axis out of range, an alpha of another length, or an `out` that shares memory with
        alpha.

    See Also
    --------
    prelu : Another activation with a parameter for each channel.

    Notes
    -----
    Computed in float32 (float64 for float64), to which a wider alpha is rounded first, and rounded
    to x's dtype: y is within 5 u abs(x) of the true value before that, with u = 2**-24 (2**-53),
    for all x and alpha. alpha x is exact, and the sine is of it as it is, not of a rounded product.
    There is no division by alpha: small ones are as good as others.

    `snake.forward` saves ``(x, alpha)``; `snake.backward` gives dx and dalpha. The derivative by x
    is within 8 u, and the derivative by alpha within 10 u x**2 min(1, 1 / abs(alpha x)), up to
    abs(alpha x) = 2**44; from 2**52 on they are 1 and 0.

    References
    ----------
    L. Ziyin, T. Hartwig and M. Ueda, "Neural Networks Fail to Learn Periodic Functions and How to
    Fix It", NeurIPS 2020, https://arxiv.org/abs/2006.08195

    `Snake` of https://github.com/NVIDIA/BigVGAN

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> fa.snake(np.array([[0.5, 1.0]]), np.array([1.0, 2.0]))
    array([[0.7298..., 1.4134...]])
    >>> y, saved = fa.snake.forward(np.array([0.5, 1.0]), np.array([2.0]))
    >>> fa.snake.backward(np.ones(2), *saved)
    (array([1.9092..., 0.2431...]), array([-0.5348...]))
    """


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
