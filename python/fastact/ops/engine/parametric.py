"""The op object of an activation with a parameter for each channel, or with one for all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ..bounds import ParametricBounds
from ..types import A, Array, Outs, Stream
from . import axes
from .entry import Arg, positional, signature_of
from .execute import Execution
from .op import Kernels, P, R, register
from .served import CachedOp


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

    def __init__(self, function: Callable[P, R], bounds: ParametricBounds) -> None:
        call = self._declare(function, "parametric")
        self.bounds = bounds
        self.saves = positional(call)
        _, self.parameter = self.saves
        self.gradients = tuple(f"d{name}" for name in self.saves)
        self.args = {self.parameter: Arg(validate.PARAMETER, "parameter")}
        # Kernels count them from the last activation on.
        which = len(_cpu.ACTIVATIONS) + _cpu.CHANNEL_FUNCTIONS.index(self.name)
        self.kernels = Kernels(
            {"forward": "bias_act_forward"},
            {"bias": self.parameter, "dbias": self.gradients[1]},
            {"which": which},
        )
        self._enter_points(call, signature_of(call, ("dy", *self.saves)))

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

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The op's value, as calling the op gives it, and what `backward` needs: its arguments.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.prelu.forward(np.array([-1.0, 2.0]), np.array([0.25]))
        >>> y
        array([-0.25,  2.  ])
        """

    def _run_forward(self, now: Execution) -> None:
        now.run("bias_act_forward", residual=None, parameters=())

    def backward(
        self,
        dy: A,
        x: A,
        /,
        *saved: Array,
        channel_axis: int = 1,
        out: Outs[Array] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> tuple[Any, Any]:
        """The gradients with respect to x and to the parameter, in one pass over the data.

        dx is dy times the derivative of the activation by x, and the parameter's gradient the sum
        of dy times the derivative by the parameter, over all elements that it meets.

        Parameters
        ----------
        out : tuple of two arrays or None, optional
            Where to write dx, which may be dy or x itself, and the parameter's gradient; one that
            is None is not computed (dx is, into memory of the call's own).

        Notes
        -----
        The products of dy are rounded, and dx then to x's dtype. The terms of the sum are added in
        double: with their own errors it is within 2**-46 of the sum of their magnitudes, and 0.5
        ULP.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dy, x = np.array([2.0, 2.0]), np.array([-1.0, 3.0])
        >>> fa.prelu.backward(dy, x, np.array([0.25]))
        (array([0.5, 2. ]), array([-2.]))
        """

    def _run_backward(self, now: Execution) -> None:
        adds = now.adds(self.gradients[1])
        now.run("bias_act_backward", residual=None, parameters=(), accumulate_dbias=adds)


def parametric(bounds: ParametricBounds) -> Callable[[Callable[P, R]], ParametricOp[P, R]]:
    """The parametric activation that a function declares."""
    return lambda function: register(ParametricOp(function, bounds))
