"""Bias and residual: an activation of x + bias + residual, and the gradients of broadcasting.

`bias_grad` and `unbroadcast` are sums over axes (`PlainSum`), under the names that they have in the
backward pass of a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from .activations import Parameters
from .bounds import BiasBounds
from .engine import axes
from .engine.axes import Over
from .engine.entry import Arg
from .engine.execute import Execution
from .engine.fused import IDENTITY, activation_op
from .engine.op import Kernels, P, R, Traits, declared, records
from .engine.quantized import Quantizes
from .engine.reductions import GRADIENT_SUM_BOUNDS, PlainSum, Shape
from .engine.served import CachedOp
from .types import A, ActivationLike, Array, ArrayOrNumber, Out, Outs, Sliced, Stream


class Along(NamedTuple):
    """The axis of the bias, and its shape."""

    axis: int
    bias: tuple[int, ...]


class BiasAct(Quantizes, CachedOp[P, R]):
    """An activation of x + bias + residual, and backward."""

    family = "bias"
    # Two sums, and a wider bias that is rounded first.
    bounds = BiasBounds(sums=3, dbias=GRADIENT_SUM_BOUNDS)
    saves = ("x", "bias", "residual")
    gradients = ("dx", "dbias")
    args = records(
        bias=Arg(
            shape="bias",
            called="an array with one axis",
            note=", the length of axis {axis} of {leader}",
        ),
        residual=Arg(shares="x"),
        x=Arg(unsaved=True),  # the identity's gradient needs no values
    )
    traits = Traits(axis_of_bias=True)
    kernels = Kernels({"forward": "bias_act_forward"})

    def unsaved(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        is_identity = activation_op(self._where(), named.get("activation", IDENTITY)) is None
        return ("x", "residual") if is_identity else ()

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Along:
        like, data = next(iter(call.views.items()))
        axis = axes.one(call.where, options.axis, len(data.shape), of=like)
        return Along(axis, (data.shape[axis],))

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        return axes.others((now.shapes.axis,), now.views["x"].ndim)

    def backward(
        self,
        dy: ArrayOrNumber,
        x: Array | None,
        bias: Array,
        /,
        residual: ArrayOrNumber | None = None,
        activation: ActivationLike = "identity",
        *,
        axis: int = -1,
        out: Outs[Array] = None,
        accumulate: bool = False,
        stream: Stream = None,
        **parameters: Unpack[Parameters],
    ) -> tuple[Any, Any]:
        """Compute the gradients with respect to x and bias, in one pass over the data.

        They are ``dx = dy * act'(x + bias + residual)``, with act' the activation's derivative, and
        ``dbias[k] = np.sum(np.take(dx, k, axis))``, because bias[k] is added to all elements of x
        at k along `axis`. The gradient with respect to the residual is dx.

        Parameters
        ----------
        x : array or None
            What `forward` saved. With the identity it is None, and so is the residual.

        Returns
        -------
        dbias : array
            The gradient with respect to the bias, of its shape and dtype. It is the sum, in double,
            of the gradients before they are rounded. For float32 and float64 it has the bits of
            ``bias_grad(dx, axis=axis)``.

        Notes
        -----
        The activation's derivative is within its own bounds, at a sum that is off by 3 u (abs(x) +
        abs(bias) + abs(residual)), as for the call. dx is its product with dy, which is rounded,
        and rounded again to x's dtype. dbias has the errors of its terms before they are rounded to
        x's dtype, plus 0.5 ULP and 2**-46 of the sum of their magnitudes. For the identity dx is
        dy. A skipped dx is still computed, into temporary memory; use `bias_grad` for dbias alone.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dy = np.ones((3, 2), np.float32)
        >>> dx, dbias = fa.bias_act.backward(dy, None, np.zeros(2))  # the identity needs no x
        >>> dbias
        array([3., 3.])
        """

    def _run_backward(self, now: Execution) -> None:
        if now.activation is None:  # the identity needs no values
            now.run("bias_act_backward", x=now.views["dy"], residual=None)
        elif "x" not in now.views:
            raise TypeError(f"{now.where}: x must be an array, as forward saved it, got None")
        else:
            now.run("bias_act_backward")


def _all_but_one(where: str, options: Any, shape: Shape) -> Over:
    """Reduce every axis but `axis`."""
    axis = axes.one(where, options.axis, len(shape), of="dy")
    others = axes.others((axis,), len(shape))
    return Over(others, (shape[axis],), others, shape)


def _repeated(where: str, options: Any, shape: Shape) -> Over:
    """Reduce the axes along which an array of the shape `shape` repeats when it is broadcast."""
    to = axes.lengths(where, "shape", options.shape)
    repeats = axes.unbroadcast(where, to, shape)
    return Over(repeats, to, tuple(range(len(shape) - len(to))), shape)


def _leading(where: str, given: Shape, shape: Shape) -> tuple[int, ...]:
    """Find the leading axes, which an array that broadcasts lacks."""
    if not axes.broadcasts(given, shape):
        raise ValueError(f"{where}: dy must have a shape that broadcasts to {shape}, got {given}")
    return tuple(range(len(shape) - len(given)))


@declared(BiasAct)
def bias_act(
    x: A,
    bias: Array,
    /,
    activation: ActivationLike = "identity",
    *,
    axis: int = -1,
    residual: ArrayOrNumber | None = None,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """An activation of x + bias + residual, in one pass.

    ``y = act(x + bias + residual)``, with the bias along `axis`.

    Parameters
    ----------
    x : array
        Data of dtype float16, bfloat16, float32 or float64, with at least one axis and any strides.
    bias : array
        A 1-D array as long as x along `axis`, of x's dtype or a wider one, or any if x is float64.
    axis : int, default -1
        The axis of the bias: -1 for rows and channels last, 1 for NCHW.

    See Also
    --------
    bias_grad : The gradient of the bias alone.
    add_layer_norm : A residual added before a norm.

    Notes
    -----
    (x + bias) + residual is computed in float32 (float64 for float64), to which a wider bias is
    rounded first. With u = 2**-24 (2**-53), its error is at most 3 u (abs(x) + abs(bias) +
    abs(residual)). The activation follows within its own bounds, and then one rounding to x's
    dtype. The bits are those of the activation of the sums, for any number of threads.

    `bias_act.forward` saves ``(x, bias, residual)`` and not the sum, which `backward` computes
    again. For the identity it saves ``(None, bias, None)``, since that gradient needs only the
    bias's dtype. `bias_act.backward` gives dx, which is also the residual's gradient, and dbias.

    References
    ----------
    D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", BMVC 2020,
    https://arxiv.org/abs/1908.08681

    Examples
    --------
    >>> x, bias = np.array([[-1.0, 1.0], [0.5, 2.0]]), np.array([0.0, -2.0])
    >>> fa.bias_act(x, bias, "mish")
    array([[-0.3034..., -0.3034...],
           [ 0.3752...,  0.        ]])
    >>> y, saved = fa.bias_act.forward(x, bias, "mish")
    >>> dx, dbias = fa.bias_act.backward(np.ones((2, 2)), *saved, "mish")
    >>> dbias
    array([0.9456..., 0.6592...])
    """


@declared(PlainSum, _all_but_one, family="bias", result="dbias")
def bias_grad(
    dy: Sliced[A],
    /,
    *,
    axis: int = -1,
    out: Out[A] = None,
    accumulate: bool = False,
    stream: Stream = None,
) -> A:
    """Gradient of a bias.

    ``dbias[k] = np.sum(np.take(dy, k, axis))``, the sum over all axes but `axis`, in double.

    Parameters
    ----------
    dy : array
        Data of dtype float16, bfloat16, float32 or float64, with at least one axis and any strides.
        Integers and booleans are computed as float64; lists are converted as in NumPy.
    axis : int, default -1
        The axis of the bias: -1 for rows and channels last, 1 for NCHW.

    Returns
    -------
    array
        The 1-D sum, of dy's dtype and framework; float64 for integers. Over no elements it is 0.

    See Also
    --------
    bias_act : An activation of x + bias, whose backward gives dx and dbias in one pass.
    unbroadcast : The gradient of any broadcasting.

    Notes
    -----
    As accurate as `fastact.sum`, with the same bits every time: 1600 ones in bfloat16 sum to 1600.
    The data is read once.

    `bias_grad.forward` saves ``(shape,)``, the shape of dy. `bias_grad.backward` repeats its
    gradient along every axis but `axis`, as adding a bias does.

    Examples
    --------
    >>> fa.bias_grad(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([4., 6.])
    >>> fa.bias_grad(np.ones((2, 3, 5, 5), np.float32), axis=1)
    array([50., 50., 50.], dtype=float32)
    >>> dbias, saved = fa.bias_grad.forward(np.ones((2, 3)))
    >>> fa.bias_grad.backward(np.array([1.0, 2.0, 3.0]), *saved)
    array([[1., 2., 3.],
           [1., 2., 3.]])
    """


@declared(PlainSum, _repeated, family="bias", result="dx", lacks=_leading)
def unbroadcast(
    dy: Sliced[A],
    /,
    shape: tuple[int, ...],
    *,
    out: Out[A] = None,
    accumulate: bool = False,
    stream: Stream = None,
) -> A:
    """Gradient of broadcasting an array of `shape` to the shape of dy.

    ``dx = np.sum(dy, axes, keepdims=True).reshape(shape)``, accumulated in double, over the axes
    along which ``np.broadcast_to(np.empty(shape), dy.shape)`` repeats.

    Parameters
    ----------
    shape : tuple of int
        A shape that NumPy broadcasts to dy's.

    Returns
    -------
    array
        The sum, of the shape `shape` and of dy's dtype and framework; for integers it is float64.
        Over no elements it is 0.

    Raises
    ------
    TypeError
        For a shape that is not a tuple of integers.
    ValueError
        For a shape that does not broadcast to dy's.

    See Also
    --------
    sum : The sum over given axes.
    bias_grad : The gradient of a bias, which is 1-D.

    Notes
    -----
    As accurate as `fastact.sum`, with the same bits every time.

    `unbroadcast.forward` saves ``(shape,)``, the shape of dy. `unbroadcast.backward` broadcasts its
    gradient to that shape, as NumPy does.

    References
    ----------
    NumPy, "Broadcasting", https://numpy.org/doc/stable/user/basics.broadcasting.html

    Examples
    --------
    >>> fa.unbroadcast(np.ones((4, 2, 3)), (2, 1))
    array([[12.],
           [12.]])
    >>> dx, saved = fa.unbroadcast.forward(np.ones((2, 3)), (2, 1))
    >>> fa.unbroadcast.backward(dx, *saved)
    array([[3., 3., 3.],
           [3., 3., 3.]])
    >>> fa.unbroadcast.backward(np.array([1.0, 2.0]), (3, 2))
    array([[1., 2.],
           [1., 2.],
           [1., 2.]])
    """
