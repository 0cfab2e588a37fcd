"""Bias: an activation of x + bias + residual in one pass, and its gradients in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, Unpack

from ..activations import Parameters
from ..bounds import BiasBounds
from ..types import ActivationLike, Array, ArrayOrNumber, Outs, Stream
from . import axes
from .entry import Arg, untyped
from .execute import Execution
from .fused import activation_op
from .op import Kernels, P, R, Traits
from .reductions import GRADIENT_SUM_BOUNDS
from .served import CachedOp


class Along(NamedTuple):
    """The axis of the bias, and its shape; what messages say of that."""

    axis: int
    bias: tuple[int, ...]
    given: Any
    like: str

    @property
    def bias_note(self) -> str:
        return f", the length of axis {self.given} of {self.like}"


class BiasAct(CachedOp[P, R]):
    """An activation of x + bias + residual, and backward."""

    # Two sums, and a wider bias that is rounded first.
    bounds = BiasBounds(sums=3, dbias=GRADIENT_SUM_BOUNDS)
    saves = ("x", "bias", "residual")
    gradients = ("dx", "dbias")
    args = MappingProxyType(
        {
            "bias": Arg(shape="bias", called="an array with one axis"),
            "residual": Arg(shares="x"),
            "x": Arg(unsaved=True),  # the identity's gradient needs no values
        }
    )
    traits = Traits(axis_of_bias=True)
    kernels = Kernels({"forward": "bias_act_forward"})

    def __init__(self, function: Callable[P, R]) -> None:
        call, backward = self._declare(function, "bias"), untyped(self.backward)
        self._enter_points(call, backward)

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        op = activation_op(self._where(), self._options(named).activation)
        return super().saved(named) if op is not None else (None, named["bias"], None)

    def saves_inputs(self, options: SimpleNamespace) -> tuple[str, ...]:
        is_identity = activation_op(self._where(), options.activation) is None
        return ("bias",) if is_identity else self.saves

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Along:
        like, data = next(iter(call.views.items()))
        axis = axes.one(call.where, options.axis, len(data.shape), of=like)
        return Along(axis, (data.shape[axis],), options.axis, like)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The activation of the sum, and what `backward` needs.

        The sum is not saved: `backward` adds it up again.

        Returns
        -------
        saved : tuple
            ``(x, bias, residual)``, not copied: do not change them before `backward`. With the
            identity ``(None, bias, None)``: its gradient needs no more than the bias's dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, bias = np.array([[-1.0, 1.0], [0.5, 2.0]]), np.array([0.0, -2.0])
        >>> y, saved = fa.bias_act.forward(x, bias, "mish")
        >>> dx, dbias = fa.bias_act.backward(np.ones((2, 2)), *saved, "mish")
        >>> dbias
        array([0.9456..., 0.6592...])
        """

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
        """The gradients with respect to x and bias, in one pass over the data.

        ``dx = dy * act'(x + bias + residual)``, with act' the activation's derivative, and
        ``dbias[k] = np.sum(np.take(dx, k, axis))``, for bias[k] is added to all elements of x at k
        along `axis`. The gradient with respect to the residual is dx.

        Parameters
        ----------
        x : array or None
            What `forward` saved; None with the identity, as the two that follow.
        out : tuple of two arrays or None, optional
            Where to write dx, which may be dy, x or residual itself, and dbias; one that is None is
            not computed (dx is, into memory of the call's own: `bias_grad` is for dbias alone).

        Returns
        -------
        dbias : array
            Of the bias's shape and dtype: the sum, in double, of gradients before they are rounded.
            For float32 and float64 it has the bits of ``bias_grad(dx, axis=axis)``.

        Notes
        -----
        dx is dy times the derivative that `backward` of the activation uses, within its bounds, of
        a sum that is off by 3 u (abs(x) + abs(bias) + abs(residual)), as for the call; the product
        is rounded, and then to x's dtype. dbias errs by what its terms do before they are rounded
        to x's dtype, 0.5 ULP, and 2**-46 of the sum of their magnitudes. Of the identity dx is dy.

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
