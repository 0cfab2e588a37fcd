"""Bias: an activation of x + bias + residual in one pass, and its gradients in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np

from ...interop import validate
from ...interop.call import Call
from ..bounds import BiasBounds
from ..types import ActivationLike, Array, ArrayOrNumber, Outs, Parameters, Stream
from . import axes
from .fused import activation_op, bind
from .op import CachedOp, EntryPoint, P, R, untyped
from .reductions import SUM_BOUNDS


class BiasAct(CachedOp[P, R]):
    """An activation of x + bias + residual, and backward."""

    # Two sums, and a wider bias that is rounded first.
    bounds = BiasBounds(sums=3, dbias=SUM_BOUNDS)
    saves = ("x", "bias", "residual")
    gradients = ("dx", "dbias")
    shares = MappingProxyType({"residual": "x"})

    def __init__(self, function: Callable[P, R]) -> None:
        call, backward = self._declare(function, "bias"), untyped(self.backward)
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            backward=EntryPoint(self._where("backward"), backward, outputs=2, skips=True),
        )

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        bias = np.linspace(0.5, 1.5, x.shape[1]).astype(x.dtype) - x.dtype.type(1)
        return {"x": x, "bias": bias, "activation": "mish", "residual": dy}

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        op = activation_op(self._where(), self._options(named).activation)
        return super().saved(named) if op is not None else (None, named["bias"], None)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map("call", args, kwargs, saves=False)[0]

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

    def _forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, Any, Any]]:
        return self._map("forward", args, kwargs, saves=True)

    def _map(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        """The result, and what is saved."""
        entry = self.entry_points[name]
        op, which, numbers, options = bind(entry, args, kwargs)
        where, residual, (out,) = entry.where, options.residual, options.out
        saves = saves and op is not None
        arrays = {"x": options.x, "bias": validate.one_axis(where, "bias", options.bias)}
        arrays |= {} if residual is None else {"residual": residual}
        with Call(where, options.stream, **arrays) as call:
            views = call.views
            axis = _checked_axis(where, call, "x", options.axis)
            y, made = call.output("out", out, "x", in_place=not saves)
            validate.apart(where, "out", y, {"bias": views["bias"]})
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
            saved = (
                call.arrays["x"] if saves else None,
                call.arrays["bias"],
                call.arrays.get("residual", residual) if saves else None,
            )
            return call.result(out, made), saved

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
        entry = self.entry_points["backward"]
        op, which, numbers, options = bind(entry, args, kwargs)
        where, x, residual = entry.where, options.x, options.residual
        if op is not None and x is None:
            raise TypeError(f"{where}: x must be an array, as forward saved it, got None")
        arrays = {"dy": options.dy} if x is None else {"x": x, "dy": options.dy}
        arrays |= {"bias": validate.one_axis(where, "bias", options.bias)}
        arrays |= {} if residual is None else {"residual": residual}
        with Call(where, options.stream, **arrays) as call:
            like = next(iter(arrays))
            source = "dy" if op is None else "x"  # the identity needs no values of x
            views = call.views
            axis = _checked_axis(where, call, like, options.axis)
            made = [
                call.output(f"out[{i}]", out, name, in_place=i == 0)
                if wanted
                else (call.temporary(name), None)
                for i, (out, wanted, name) in enumerate(
                    zip(options.out, options.wanted, (like, "bias"), strict=True)
                )
            ]
            dx, dbias = (view for view, _ in made)
            validate.apart(where, "out[0]", dx, {"bias": views["bias"], "out[1]": dbias})
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
            return tuple(
                call.result(out, new) if wanted else None
                for out, wanted, (_, new) in zip(options.out, options.wanted, made, strict=True)
            )


def _checked_axis(where: str, call: Call, like: str, axis: Any) -> int:
    """The bias's axis, once all arrays are known to fit."""
    data, bias = call.views[like], call.views["bias"]
    for name, view in call.views.items():
        if name not in (like, "bias"):
            validate.same_as(where, name, view, like, data)
    number = axes.one(where, axis, data.ndim, of=like)
    validate.parameter_dtype(where, "bias", bias, like, data)
    if bias.shape != (data.shape[number],):
        raise ValueError(
            f"{where}: bias must have shape {(data.shape[number],)}, the length of axis {axis} of "
            f"{like}, got {bias.shape}"
        )
    return number
