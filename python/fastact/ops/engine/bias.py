"""Bias: an activation of x + bias + residual in one pass, and its gradients in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, Unpack

from ...interop import validate
from ..bounds import BiasBounds
from ..types import ActivationLike, Array, ArrayOrNumber, Outs, Parameters, Stream
from . import axes
from .fused import activation_op
from .op import CachedOp, P, R, untyped
from .reductions import GRADIENT_SUM_BOUNDS
from .step import step


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
    shares = MappingProxyType({"residual": "x"})
    roles = MappingProxyType({"residual": validate.DATA})
    shapes = MappingProxyType({"bias": "bias"})
    called = MappingProxyType({"bias": "an array with one axis"})
    unsaved = ("x",)  # the identity's gradient needs no values

    def __init__(self, function: Callable[P, R]) -> None:
        call, backward = self._declare(function, "bias"), untyped(self.backward)
        self._enter_points(call, backward)

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        op = activation_op(self._where(), self._options(named).activation)
        return super().saved(named) if op is not None else (None, named["bias"], None)

    def saves_inputs(self, options: SimpleNamespace) -> tuple[str, ...]:
        is_identity = activation_op(self._where(), options.activation) is None
        return ("bias",) if is_identity else self.saves

    def _shapes(self, call: Any, options: SimpleNamespace) -> Along:
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

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, views, y, axis = now.call, now.views, now.view("y"), now.shapes.axis
            which, numbers = now.which, now.parameters
            call.run(
                "bias_act_forward",
                x=views["x"],
                residual=views.get("residual"),
                y=y,
                axis=axis,
                bias=views["bias"],
                which=which,
                parameters=numbers,
            )
            return now.results()

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

    def _backward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with step(self, "backward", args, kwargs) as now:
            call, views, options, axis = now.call, now.views, now.options, now.shapes.axis
            op, which, numbers = now.activation, now.which, now.parameters
            if op is not None and "x" not in views:
                raise TypeError(f"{now.where}: x must be an array, as forward saved it, got None")
            source = "dy" if op is None else "x"  # the identity needs no values of x
            # Memory of the call's own stands for a gradient that is skipped.
            dx = now.view("dx") or call.temporary(now.leader)
            dbias = now.view("dbias") or call.temporary("bias")
            # what stands for a skipped gradient holds nothing to add to
            adds = [options.accumulate and wanted for wanted in options.wanted]
            call.run(
                "bias_act_backward",
                x=views[source],
                dy=views["dy"],
                residual=None if op is None else views.get("residual"),
                dx=dx,
                axis=axis,
                bias=views["bias"],
                dbias=dbias,
                which=which,
                parameters=numbers,
                accumulate_dx=adds[0],
                accumulate_dbias=adds[1],
            )
            return now.results()  # type: ignore[no-any-return]
