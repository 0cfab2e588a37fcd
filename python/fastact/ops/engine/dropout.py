"""The op object of dropout."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, SupportsIndex

from ...interop import validate
from ..bounds import DropoutBounds
from ..types import Array, ArrayOrNumber, Out, Stream
from . import axes
from .entry import Arg, untyped
from .execute import Execution
from .op import Kernels, P, R, Traits
from .served import CachedOp


def _probability(where: str, name: str, value: Any) -> float:
    p = validate.number(where, name, value)
    validate.rule(where, f"{name} must be from 0 to 1", lambda p: 0 <= p <= 1, {name: p})
    return p


def _count(where: str, name: str, value: Any) -> int:
    return axes.within(where, name, value, 0, 2**63 - 1)


def _seed(where: str, name: str, value: Any) -> int:
    return axes.within(where, name, value, -(2**63), 2**64 - 1) % 2**64


class DropoutOp(CachedOp[P, R]):
    """Dropout by an element's number, and backward, which draws the mask again."""

    bounds = DropoutBounds(scale=2)
    saves = ()
    args = MappingProxyType({"residual": Arg(shares="y")})
    kernels = Kernels({"forward": "dropout"})
    checks = MappingProxyType({"p": _probability, "seed": _seed, "offset": _count})
    traits = Traits(counts_elements=True)

    def __init__(self, function: Callable[P, R]) -> None:
        call, backward = self._declare(function, "dropout"), untyped(self.backward)
        self._enter_points(call, backward)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The op's value, as calling the op gives it, and an empty tuple.

        Returns
        -------
        saved : tuple
            Nothing: `backward` is told p, seed and offset again.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.dropout.forward(np.ones(4), 0.5, seed=3)
        (array([2., 0., 2., 2.]), ())
        """

    def backward(
        self,
        dy: ArrayOrNumber,
        /,
        p: float,
        *,
        seed: SupportsIndex,
        offset: SupportsIndex = 0,
        out: Out[Array] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> Any:
        """The gradient with respect to x: ``dx = np.where(kept, dy / (1 - p), 0)``.

        What dropout makes of dy, by the same mask. The gradient with respect to the residual is dy.

        Parameters
        ----------
        out : array, optional
            Where to write dx; it may be dy itself.

        Notes
        -----
        Before it is rounded to dy's dtype, dx is within 2 u abs(dy) / (1 - p) of the true value.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.dropout.backward(np.ones(4), 0.5, seed=3)
        array([2., 0., 2., 2.])
        """

    def _run_backward(self, now: Execution) -> None:
        now.run("dropout", x=now.views["dy"], residual=None, y=now.view("dx"))
