"""The op object of divergences: sums over axes of a term of two arrays, and both gradients.

They go the way of sums with weights, with another term (src/common/reductions/pairs.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ... import _cpu
from ..bounds import DivergenceBounds
from ..types import A, ArrayOrNumber, Outs, Stream
from .axes import Over, over_axes
from .entry import Arg, Output, positional, untyped
from .execute import Execution
from .moments import TOTAL, fill, over_x, reduce_moments, weighted_gradient
from .op import Kernels, P, R, register
from .served import CachedOp


class Divergence(CachedOp[P, R]):
    """A divergence of two arrays of log-probabilities, and backward.

    pair : the number of its term.
    """

    bounds = DivergenceBounds()
    outs = MappingProxyType({"y": Output(shape="shape")})

    def __init__(self, function: Callable[P, R], pair: str) -> None:
        call = self._declare(function, "divergences")
        self.pair = _cpu.PAIRS.index(pair)
        self.saves = positional(call)
        self.gradients = tuple(f"d{name}" for name in self.saves)
        each = Arg(may_be_out=False)
        self.args = {"dy": replace(each, shape="shape"), **dict.fromkeys(self.saves, each)}
        names = dict(zip(("x", "weights"), self.saves, strict=True))
        self.kernels = Kernels(names=names, numbers={"initial": 0.0})
        self._enter_points(call, untyped(self.backward))

    def _shapes(self, call: Any, options: Any, entry: str = "call") -> Over:
        return over_axes(call.where, options, tuple(call.views[self.saves[0]].shape))

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The divergence, and what `backward` needs: its arguments.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> log_q, log_p = np.log([0.5, 0.5]), np.log([0.25, 0.75])
        >>> y, saved = fa.kl_div.forward(log_q, log_p)
        >>> y
        np.float64(0.1308...)
        """

    def _run_forward(self, now: Execution) -> None:
        y = now.written("y")
        if now.views[self.saves[0]].size:
            reduce_moments(now, {"mean": y}, TOTAL, pair=self.pair)
        else:
            fill(now.call, y, 0.0)

    def backward(
        self,
        dy: ArrayOrNumber,
        log_q: A,
        log_p: A,
        /,
        axis: int | tuple[int, ...] = -1,
        *,
        keepdims: bool = False,
        out: Outs[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> tuple[A, A]:
        """The gradients with respect to both arrays.

        Of `kl_div`, ``dlog_q = -dy * p`` and ``dlog_p = dy * p * (log_p - log_q + 1)``; of
        `js_div`, ``dlog_q = dy * q * (log_q - log_m) / 2`` and ``dlog_p = dy * p * (log_p - log_m)
        / 2``. What has no probability has a gradient of 0, and so has all where dy is 0.

        Parameters
        ----------
        out : tuple of two arrays or None, optional
            Where to write the gradients, which may share no memory with what is read; one that is
            None is not computed.

        Notes
        -----
        Computed in double, of 16 bits in float32: within 2**-44 abs(dy) p, or p (abs(log_p - log_q)
        + 1), of 16 bits 2**-20; of `js_div` of p abs(log_p - log_m), for q likewise; and rounded
        once.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> log_q, log_p = np.log([0.5, 0.5]), np.log([0.25, 0.75])
        >>> fa.kl_div.backward(1.0, log_q, log_p)
        (array([-0.25, -0.75]), array([0.0767..., 1.0540...]))
        """

    def _run_backward(self, now: Execution) -> None:
        if not now.views[self.saves[0]].size:
            return
        dy = over_x(now, now.seen("dy"))
        of_first, of_second = map(now.view, self.gradients)
        given: Any = {"dy": dy, "pair": self.pair}
        if of_first is not None:
            weighted_gradient(now, of_first, to_weights=of_second, **given)
        elif of_second is not None:
            weighted_gradient(now, of_second, of_weights=True, **given)


def divergence(pair: str) -> Callable[[Callable[P, R]], Divergence[P, R]]:
    """The divergence that a function declares; pair: its term, of src/common/reductions/pairs.h."""
    return lambda function: register(Divergence(function, pair))
