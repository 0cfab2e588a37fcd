"""Parametric activations: y = f(x, w), with a learnt parameter w for each channel.

The kernels of `bias_act` compute them: its bias is another such number. The formulas are in
`src/common/bias/channel_functions.h`, the oracle's in `check/expected/parametric.py`.
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

    is_single : it is one for all. Kernels then see one channel, along an axis in front.
    """

    axis: int
    parameter: tuple[int, ...]
    is_single: bool

    def seen_data(self, view: View) -> View:
        """An array of x's shape with the axes of the kernels."""
        return view.with_axes((0,)) if self.is_single else view

    def seen_parameter(self, view: View) -> View:
        """The parameter, or its gradient, with the one axis that it has for kernels."""
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
        """The gradients with respect to x and to the parameter, in one pass over the data.

        dx is dy times the derivative of the activation by x, and the parameter's gradient the sum
        of dy times the derivative by the parameter, over all elements that it meets.

        Notes
        -----
        The products of dy are rounded, and dx then to x's dtype. The terms of the sum are added in
        double: with their own errors it is within 2**-46 of the sum of their magnitudes, and 0.5
        ULP. Where dx is not wanted, it is computed into memory of the call's own.
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
    """Parametric ReLU, with a slope for each channel or one for all.

    ``y = np.where(x > 0, x, weight * x)``, with the weight along `channel_axis`.

    Parameters
    ----------
    weight : array
        1-D, one slope a channel; or with one element, the slope of all. Of x's dtype or a wider
        one.
    channel_axis : int, default 1
        The axis of the channels: 1 for NCHW, -1 for channels last. A single slope needs none.

    See Also
    --------
    leaky_relu : The same with a slope that is a number.
    bias_act : An activation of x + bias.

    Notes
    -----
    Computed in float32 (float64 for float64), to which a wider weight is rounded first, and rounded
    to x's dtype: y is within 1 u abs(y) of the true value before that, with u = 2**-24 (2**-53).

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

    The derivative by x is within 8 u, and the derivative by alpha within 10 u x**2 min(1, 1 /
    abs(alpha x)), up to abs(alpha x) = 2**44; from 2**52 on they are 1 and 0.

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
