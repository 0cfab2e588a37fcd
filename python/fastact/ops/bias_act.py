"""bias_act: an activation of x + bias + residual in one pass, and its gradients in another."""

from typing import Any

from ..interop import validate
from ..interop.call import Call
from . import axes
from .bounds import BiasBounds
from .bounds_docs import bias_backward, bias_forward, noted
from .docs import ACTIVATION, ARRAY, LIKE_X, OWN, STREAM, paragraph
from .fused import IDENTITY, bind_fused
from .op_before import QuickOp, Takes, register
from .reduction import SUM_BOUNDS

_FORWARD = Takes({"activation": IDENTITY}, {"axis": -1, "residual": None})
_BACKWARD = Takes(
    {"residual": None, "activation": IDENTITY},
    {"axis": -1},
    accumulates=True,
    outputs=2,
    skips=True,
)


class BiasAct(QuickOp):
    """act(x + bias + residual), and backward."""

    # Two sums, and a wider bias that is rounded first.
    bounds = BiasBounds(sums=3, dbias=SUM_BOUNDS)

    def __init__(self, doc: str) -> None:
        docs = {"call": doc, "backward": noted(BiasAct.backward, bias_backward(self.bounds))}
        super().__init__("bias_act", "bias", ("x", "bias"), _FORWARD, docs, more="parameters")

    def _call(self, x: Any, bias: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._map(self._where(), x, bias, args, kwargs, saves=False)[0]

    def forward(
        self, x: Any, bias: Any, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        """forward(x, bias, activation="identity", *, axis=-1, residual=None, out=None, ...)
        -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        y : array
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
        return self._map(self._where("forward"), x, bias, args, kwargs, saves=True)

    def backward(self, dy: Any, x: Any, bias: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward(dy, x, bias, residual=None, activation="identity", *, axis=-1, out=None,
        accumulate=False, ...) -> (dx, dbias)

        dx = dy act'(x + bias + residual), and dbias, its sum over every axis but `axis`, in one
        pass over the data. The gradient with respect to the residual is dx.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x, bias, residual
            What `forward` saved.
        activation, axis, ...
            As told to `forward`.
        out : tuple of two arrays or None, optional
            Where to write dx, which may be dy, x or residual itself, and dbias; one that is None is
            not computed (dx is, into memory of the call's own: `bias_grad` is for dbias alone).
        accumulate : bool
            Add the gradients to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            Of x's dtype.
        dbias : array
            Of the bias's dtype: the sum, in double, of gradients before they are rounded. For
            float32 and float64 it has the bits of ``bias_grad(dx, axis=axis)``.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dy = np.ones((3, 2), np.float32)
        >>> dx, dbias = fa.bias_act.backward(dy, None, np.zeros(2))  # the identity needs no x
        >>> dbias
        array([3., 3.])
        """
        where = self._where("backward")
        op, which, numbers, options = bind_fused(where, _BACKWARD, args, kwargs)
        residual = options.residual
        if op is not None and x is None:
            raise TypeError(f"{where}: x must be an array, as forward saved it, got None")
        arrays = {"dy": dy} if x is None else {"x": x, "dy": dy}
        arrays |= {"bias": _array(where, bias)}
        arrays |= {} if residual is None else {"residual": residual}
        with Call(where, options.stream, **arrays) as call:
            like = next(iter(arrays))
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
            size = call.native.bias_act_workspace(views[like], dbias, axis) if dbias.size else 0
            call.run(
                "bias_act_backward",
                which,
                views["dy"],
                views["dy" if op is None else "x"],  # the identity needs no values of x
                views["bias"],
                None if op is None else views.get("residual"),
                dx,
                dbias,
                axis,
                numbers,
                # what stands for a skipped gradient holds nothing to add to
                options.accumulate and options.wanted[0],
                options.accumulate and options.wanted[1],
                call.workspace(size),
            )
            return tuple(
                call.result(out, new) if wanted else None
                for out, wanted, (_, new) in zip(options.out, options.wanted, made, strict=True)
            )

    def _map(
        self,
        where: str,
        x: Any,
        bias: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        saves: bool,
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        op, which, numbers, options = bind_fused(where, _FORWARD, args, kwargs)
        residual, (out,) = options.residual, options.out
        saves = saves and op is not None
        arrays = {} if residual is None else {"residual": residual}
        with Call(where, options.stream, x=x, bias=_array(where, bias), **arrays) as call:
            views = call.views
            axis = _checked_axis(where, call, "x", options.axis)
            y, made = call.output("out", out, "x", in_place=not saves)
            validate.apart(where, "out", y, {"bias": views["bias"]})
            residual_view = views.get("residual")
            call.run(
                "bias_act_forward",
                which,
                views["x"],
                views["bias"],
                residual_view,
                y,
                axis,
                numbers,
            )
            saved = (
                call.arrays["x"] if saves else None,
                call.arrays["bias"],
                call.arrays.get("residual", residual) if saves else None,
            )
            return call.result(out, made), saved


def _array(where: str, bias: Any) -> Any:
    """A bias is an array with one axis; a number is none."""
    if bias is None or isinstance(bias, bool | int | float):
        raise TypeError(
            f"{where}: bias must be an array with one axis, got {validate.describe(bias)}"
        )
    return bias


def _checked_axis(where: str, call: Call, like: str, axis: Any) -> int:
    """The bias's axis, once all arrays are known to fit."""
    data, bias = call.views[like], call.views["bias"]
    for name, view in call.views.items():
        if name not in (like, "bias"):
            validate.same_as(where, name, view, like, data)
    number = axes.one(where, axis, data.ndim)
    validate.parameter_dtype(where, "bias", bias, like, data)
    if bias.shape != (data.shape[number],):
        raise ValueError(
            f"{where}: bias must have shape {(data.shape[number],)}, the length of axis {axis} of "
            f"{like}, got {bias.shape}"
        )
    return number


_DOC = f"""\
bias_act(x, bias, activation="identity", *, axis=-1, residual=None, out=None, ...)

y = act(x + bias + residual), in one pass.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
bias : array
    1-D, as long as the axis `axis` of x; of x's dtype or a wider one.
{ACTIVATION}
axis : int
    The bias's axis: -1 for rows and channels last, 1 for NCHW.
residual : array, or Python scalar, optional
    Of x's shape and dtype.
out : array, optional
    Where to write y: shape, dtype, device and framework of x. It may be x or residual
    itself.
{STREAM}
{OWN}

Returns
-------
{LIKE_X}

Raises
------
TypeError
    For a dtype that is not supported or a bias narrower than x, mixed frameworks, a tensor
    that requires grad, or an unknown keyword.
ValueError
    For an unknown activation, an axis out of range, a bias of another length; an `out` that
    does not fit, that overlaps x or residual in part, or that shares memory with bias.

Notes
-----
{paragraph(bias_forward(BiasAct.bounds))}

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
"""

bias_act = register(BiasAct(_DOC))
