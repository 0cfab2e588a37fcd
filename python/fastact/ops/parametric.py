"""Parametric activations: y = f(x, w), with a learnt parameter w for each channel.

Each is declared by a function: signature, defaults and its own documentation
(`engine/parametric.py`). The formulas are in `src/common/bias/channel_functions.h`, the oracle's in
`check/reference.py`. The kernels are those of `bias_act`, whose bias is another such number.
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

    `prelu.forward` saves ``(x, weight)``; `prelu.backward` gives dx and dweight. At 0 they are
    those of the negative side, as in torch.

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


if not TYPE_CHECKING:  # a type checker reads the functions
    __all__ = names_of_ops(globals())
