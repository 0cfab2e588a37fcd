"""Bias: an activation of x + bias + residual in one pass, and its gradients in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, Unpack

import numpy as np

from ...interop import validate
from ..bounds import BiasBounds
from ..types import ActivationLike, Array, ArrayOrNumber, Outs, Parameters, Stream
from . import axes
from .fused import activation_op
from .op import CachedOp, P, R, untyped
from .reductions import SUM_BOUNDS
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
    bounds = BiasBounds(sums=3, dbias=SUM_BOUNDS)
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

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        bias = np.linspace(0.5, 1.5, x.shape[1]).astype(x.dtype) - x.dtype.type(1)
        return {"x": x, "bias": bias, "activation": "mish", "residual": dy}

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

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, views, y, axis = now.call, now.views, now.view("y"), now.shapes.axis
            which, numbers = now.which, now.parameters
            call.run(
                call.native.bias_act_forward,
                which,
                views["x"],
                views["bias"],
                views.get("residual"),
                y,
                axis,
                numbers,
                call.stream,
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
        dy : array or float
            The gradient with respect to y: shape and dtype of x.
        x : array or None
            What `forward` saved; None with the identity, as the two that follow.
        bias : array
            What `forward` saved.
        residual : array or float, optional
            What `forward` saved.
        activation : str or op, default "identity"
            As given to `forward`.
        axis : int, default -1
            As given to `forward`.
        out : tuple of two arrays or None, optional
            Where to write dx, which may be dy, x or residual itself, and dbias; one that is None is
            not computed (dx is, into memory of the call's own: `bias_grad` is for dbias alone).
        accumulate : bool, default False
            Add the gradients to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.
        **parameters : float or str
            The activation's own parameters, as given to `forward`.

        Returns
        -------
        dx : array
            Of x's shape, dtype and framework.
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
            size = call.native.bias_act_workspace(views[source], dbias, axis) if dbias.size else 0
            # what stands for a skipped gradient holds nothing to add to
            adds = [options.accumulate and wanted for wanted in options.wanted]
            call.run(
                call.native.bias_act_backward,
                which,
                views["dy"],
                views[source],
                views["bias"],
                None if op is None else views.get("residual"),
                dx,
                dbias,
                axis,
                numbers,
                adds[0],
                adds[1],
                call.workspace(size),
                call.stream,
            )
            return now.results()  # type: ignore[no-any-return]
