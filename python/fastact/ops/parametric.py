"""Parametric activations: y = f(x, w), with a learnt parameter w for each channel.

The kernels of `bias_act` compute them, since its bias is such a parameter, too. The formulas are in
`src/common/bias/channel_functions.h`, the oracle's are in `check/expected/parametric.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from .. import _cpu
from .._cpu import View
from ..interop import validate
from .bounds import ParametricBounds
from .engine import axes
from .engine.entry import Arg, positional
from .engine.op import Kernels, P, R, declared
from .engine.served import CachedOp
from .types import A, Array, Kwargs, Out, Stream


class ParameterAxis(NamedTuple):
    """The axis of the channels, and the shape of the parameter.

    is_single : whether one parameter serves all. Kernels then see one channel, on a leading axis.
    """

    axis: int
    parameter: tuple[int, ...]
    is_single: bool

    def seen_data(self, view: View) -> View:
        """Give an array of x's shape the axes of the kernels."""
        return view.with_axes((0,)) if self.is_single else view

    def seen_parameter(self, view: View) -> View:
        """Give the parameter, or its gradient, the one axis that it has for kernels."""
        return view if view.ndim else view.with_axes((0,))


class ParametricOp(CachedOp[P, R]):
    """Functions y = f(x, w) with w along an axis, and backward, which gives dx and dw.

    parameter : the name of w.
    """

    family = "parametric"

    def __init__(self, function: Callable[P, R], bounds: ParametricBounds) -> None:
        call = self._declare(function)
        self.bounds = bounds
        self.saves = positional(call)
        _, self.parameter = self.saves
        self.gradients = tuple(f"d{name}" for name in self.saves)
        self.args = {self.parameter: Arg(validate.PARAMETER, "parameter")}
        # Kernels count them from the last activation on.
        which = len(_cpu.ACTIVATIONS) + _cpu.CHANNEL_FUNCTIONS.index(self.name)
        self.kernels = Kernels(
            {"forward": "bias_act_forward", "backward": "bias_act_backward"},
            {"bias": self.parameter, "dbias": self.gradients[1]},
            {"which": which, "parameters": ()},
        )
        self._enter_points()

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> ParameterAxis:
        like, data = next(iter(call.views.items()))
        given = call.views.get(self.parameter)
        shape, ndim = tuple(data.shape), len(data.shape)
        own = None if given is None else tuple(given.shape)
        if own in ((), (1,)):
            if ndim >= axes.MOST:
                raise ValueError(
                    f"{call.where}: {like} must have at most {axes.MOST - 1} axes with one "
                    f"{self.parameter} for all, got {ndim}"
                )
            axis = options.channel_axis
            if type(axis) is not int or axis != 1:  # the default, which x need not have
                axes.one(call.where, axis, ndim, "channel_axis", of=like)
            return ParameterAxis(0, own, True)
        axis = axes.one(call.where, options.channel_axis, ndim, "channel_axis", of=like)
        return ParameterAxis(axis, shape[axis : axis + 1], False)

    def backward(
        self, dy: A, x: A, /, *saved: Array, **options: Unpack[Kwargs[A]]
    ) -> tuple[Any, Any]:
        """Compute the gradients with respect to x and the parameter, in one pass over the data.

        dx is dy times the derivative of the activation by x. The parameter's gradient is the sum of
        dy times the derivative by the parameter, over all elements that share it.

        Notes
        -----
        The products with dy are rounded, and dx is then rounded to x's dtype. The terms of the sum
        are added in double: besides their own errors, it is within 2**-46 of the sum of their
        magnitudes and 0.5 ULP. If dx is skipped, it is still computed, into temporary memory.
        """


@declared(ParametricOp, ParametricBounds(value=1, by_x=0, by_parameter=0))
def prelu(
    x: A,
    weight: Array,
    /,
    *,
    channel_axis: int = 1,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Parametric ReLU, with one slope per channel or one for all.

    ``y = np.where(x > 0, x, weight * x)``, with the weight along `channel_axis`.

    Parameters
    ----------
    weight : array
        A 1-D array with one slope per channel, or an array with one element, the slope of all
        channels. Its dtype is x's or a wider one.
    channel_axis : int, default 1
        The axis of the channels: 1 for NCHW, -1 for channels last. A single slope needs none.

    See Also
    --------
    leaky_relu : The same with a number as the slope.
    bias_act : An activation of x + bias.

    Notes
    -----
    The op computes in float32 (float64 for float64), to which a wider weight is rounded first, and
    rounds the result to x's dtype. Before that, y is within 1 u abs(y) of the true value, with u =
    2**-24 (2**-53).

    0 belongs to the negative side, as in torch.

    References
    ----------
    K. He, X. Zhang, S. Ren and J. Sun, "Delving Deep into Rectifiers: Surpassing Human-Level
    Performance on ImageNet Classification", ICCV 2015, https://arxiv.org/abs/1502.01852

    Examples
    --------
    >>> x = np.array([[-1.0, 2.0], [3.0, -4.0]])
    >>> fa.prelu(x, np.array([0.25, 0.5]))
    array([[-0.25,  2.  ],
           [ 3.  , -2.  ]])
    >>> y, saved = fa.prelu.forward(x, np.array([0.25]))
    >>> fa.prelu.backward(np.ones((2, 2)), *saved)
    (array([[0.25, 1.  ],
           [1.  , 0.25]]), array([-5.]))
    """


@declared(ParametricOp, ParametricBounds(value=5, by_x=8, by_parameter=10))
def snake(
    x: A,
    alpha: Array,
    /,
    *,
    channel_axis: int = 1,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Snake, with one frequency per channel or one for all.

    ``y = x + np.sin(alpha * x)**2 / alpha``, with alpha along `channel_axis`; y is x where alpha is
    0.

    Parameters
    ----------
    alpha : array
        A 1-D array with one number per channel, or an array with one element, the number of all
        channels. Its dtype is x's or a wider one.
    channel_axis : int, default 1
        The axis of the channels: 1 for (N, C, L), -1 for channels last. A single alpha needs none.

    Raises
    ------
    TypeError
        For an alpha narrower than x.
    ValueError
        For an axis out of range, an alpha of another length, or an `out` that overlaps alpha.

    See Also
    --------
    prelu : Another activation with a parameter per channel.

    Notes
    -----
    The op computes in float32 (float64 for float64), to which a wider alpha is rounded first, and
    rounds the result to x's dtype. Before that, y is within 5 u abs(x) of the true value, with u =
    2**-24 (2**-53), for all x and alpha. The sine is taken of the exact alpha x, not of a rounded
    product. There is no division by alpha, so small values are as accurate as others.

    Up to abs(alpha x) = 2**44, the derivative by x is within 8 u, and the derivative by alpha
    within 10 u x**2 min(1, 1 / abs(alpha x)). From 2**52 on they are 1 and 0.

    References
    ----------
    L. Ziyin, T. Hartwig and M. Ueda, "Neural Networks Fail to Learn Periodic Functions and How to
    Fix It", NeurIPS 2020, https://arxiv.org/abs/2006.08195

    `Snake` of https://github.com/NVIDIA/BigVGAN

    Examples
    --------
    >>> fa.snake(np.array([[0.5, 1.0]]), np.array([1.0, 2.0]))
    array([[0.7298..., 1.4134...]])
    >>> y, saved = fa.snake.forward(np.array([0.5, 1.0]), np.array([2.0]))
    >>> fa.snake.backward(np.ones(2), *saved)
    (array([1.9092..., 0.2431...]), array([-0.5348...]))
    """
