"""Bias: an activation of x + bias + residual in one pass, and its gradients in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np

from ..interop import validate
from ..interop.call import Call
from . import axes
from .bounds import BiasBounds
from .fused import activation_op, bind
from .op import CachedOp, EntryPoint, P, R, register, untyped
from .reduction import SUM_BOUNDS
from .types import A, ActivationLike, Array, ArrayOrNumber, Out, Outs, Parameters, Stream


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

        ``saved = (x, bias, residual)``, from which `backward` adds up the sum again: this pass need
        not write it.

        Parameters
        ----------
        *args, **kwargs
            What calling the op takes.

        Returns
        -------
        y : array
            What calling the op gives.
        saved : tuple
            ``(x, bias, residual)``, not copied: do not change them before `backward`. With the
            identity ``(None, bias, None)``: its gradient needs no more than the bias's dtype.

        Notes
        -----
        Of the same bits, and so as accurate, as calling the op.

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
                "bias_act_forward",
                x=views["x"],
                residual=views.get("residual"),
                y=y,
                axis=axis,
                bias=views["bias"],
                which=which,
                parameters=numbers,
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


@register
@BiasAct
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
        Of float16, bfloat16, float32 or float64; any shape with one axis or more, and any strides.
    bias : array
        1-D, as long as the axis `axis` of x; of x's dtype or a wider one.
    activation : str or op, default "identity"
        The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
    axis : int, default -1
        The bias's axis: -1 for rows and channels last, 1 for NCHW.
    residual : array or float, optional
        Of x's shape and dtype.
    out : array, optional
        Where to write y; it may be x or residual itself.
    stream : optional
        For arrays on a GPU: the stream to work on.
    **parameters : float or str
        The activation's own parameters, by keyword.

    Returns
    -------
    array
        The result, of x's shape, dtype and framework.

    Raises
    ------
    TypeError
        For a bias narrower than x, or a keyword that the activation does not have.
    ValueError
        For an unknown activation, an axis out of range, a bias of another length, or an `out` that
        shares memory with bias.

    See Also
    --------
    bias_grad : The gradient of the bias alone.
    add_layer_norm : A residual that is added before a norm.

    Notes
    -----
    (x + bias) + residual is computed in float32 (float64 for float64), to which a wider bias is
    rounded first: with u = 2**-24 (2**-53), an error of at most 3 u (abs(x) + abs(bias) +
    abs(residual)). The activation follows within its own bounds, and one rounding to x's dtype. The
    activation of the sums has the same bits, for any number of threads.

    `bias_act.forward` saves ``(x, bias, residual)``, for the identity ``(None, bias, None)``;
    `bias_act.backward` gives dx, which is the residual's gradient too, and dbias.
    docs/conventions.md says what all ops share.

    References
    ----------
    D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", BMVC 2020,
    https://arxiv.org/abs/1908.08681

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x, bias = np.array([[-1.0, 1.0], [0.5, 2.0]]), np.array([0.0, -2.0])
    >>> fa.bias_act(x, bias, "mish")
    array([[-0.3034..., -0.3034...],
           [ 0.3752...,  0.        ]])
    >>> y, saved = fa.bias_act.forward(x, bias, "mish")
    >>> dx, dbias = fa.bias_act.backward(np.ones((2, 2)), *saved, "mish")
    >>> dbias
    array([0.9456..., 0.6592...])
    """
