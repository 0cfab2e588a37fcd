"""Divergences: how far two distributions are apart, by their log-probabilities.

They are computed as sums with weights are, of other terms, which stand in
`src/common/reductions/pairs.h`; the oracle has its own in `check/expected/divergences.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _cpu
from .bounds import DivergenceBounds
from .engine.axes import Over, over_axes
from .engine.entry import Arg, Output, positional
from .engine.execute import Execution
from .engine.op import Kernels, P, R, called_as, declared, float32_under_autocast, records
from .engine.reductions import fill, over_x, reduce_moments, weighted_gradient
from .engine.served import CachedOp
from .types import A, ArrayOrNumber, Out, Outs, Stream

#: Words that the docstrings of all divergences share.
_TEXTS = """
Parameters
----------
axis : int or tuple of int
    The axes to sum over, negative ones counted from the last. Rows need not add up to 1.

Returns
-------
array
    The divergence, of log_q's framework and dtype. Over no elements it is 0.

Raises
------
TypeError
    log_p: log_p of another dtype
ValueError
    log_p: log_p of another shape
"""


class Divergence(CachedOp[P, R]):
    """A divergence of two arrays of log-probabilities, and backward.

    pair : the number of its term, which is given by its name in src/common/reductions/pairs.h.
    """

    family = "divergences"
    bounds = DivergenceBounds()
    outs = records(y=Output(shape="shape"))

    def __init__(self, function: Callable[P, R], pair: str) -> None:
        call = self._declare(function)
        self.pair = _cpu.PAIRS.index(pair)
        self.saves = positional(call)
        self.gradients = tuple(f"d{name}" for name in self.saves)
        each = Arg(may_be_out=False)
        self.args = {"dy": each._replace(shape="shape"), **dict.fromkeys(self.saves, each)}
        names = dict(zip(("x", "weights"), self.saves, strict=True))
        self.kernels = Kernels(names=names, numbers={"initial": 0.0})
        self._enter_points()

    def _texts(self) -> str:
        return _TEXTS

    def _shapes(self, call: Any, options: Any, entry: str = "call") -> Over:
        return over_axes(call.where, options, tuple(call.views[self.saves[0]].shape))

    def _run_forward(self, now: Execution) -> None:
        y = now.written("y")
        if now.views[self.saves[0]].size:
            reduce_moments(now, {"mean": y}, "total", pair=self.pair)
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

        Notes
        -----
        Computed in double, of 16 bits in float32: within 2**-44 abs(dy) p, or p (abs(log_p - log_q)
        + 1), of 16 bits 2**-20; of `js_div` of p abs(log_p - log_m), for q likewise; and rounded
        once.
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


@float32_under_autocast("cpu", "cuda")
@declared(Divergence, "kl")
def kl_div(
    log_q: A,
    log_p: A,
    /,
    axis: int | tuple[int, ...] = -1,
    *,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Kullback-Leibler divergence KL(p | q) of log-probabilities, a number a row.

    ``y = np.sum(np.exp(log_p) * (log_p - log_q), axis)``, as
    ``torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(axis)``. What
    has no probability, ``np.exp(log_p) == 0``, counts 0, also where log_q is infinite.

    Parameters
    ----------
    log_q : array
        The logarithms of q, of a student or a policy; torch's `input`. Of float16, bfloat16,
        float32 or float64; any shape and strides.
    log_p : array
        The logarithms of the distribution that weighs, of a teacher or a reference; torch's
        `target`. Of log_q's shape and dtype.

    See Also
    --------
    js_div : Of both from their mean: symmetric, and finite.
    cross_entropy : Of logits and a target.

    Notes
    -----
    Where q has nothing and p has something, y is infinite, and dlog_p is, too. NaN is passed on.

    Terms of either sign cancel where p is near q, so all is computed in double, terms and sums, and
    rounded once: y is within half a ULP and 2**-44 of the sum of ``p * abs(log_p - log_q)``. The
    bits depend neither on the strides nor on the number of threads.

    References
    ----------
    S. Kullback and R. A. Leibler, "On Information and Sufficiency", Annals of Mathematical
    Statistics 22 (1951), https://doi.org/10.1214/aoms/1177729694

    Examples
    --------
    >>> log_q, log_p = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    >>> fa.kl_div(log_q, log_p)
    np.float64(0.1308...)
    >>> fa.kl_div(np.array([-np.inf, 0.0]), np.array([-np.inf, 0.0]))
    np.float64(0.0)
    >>> y, saved = fa.kl_div.forward(log_q, log_p)
    >>> fa.kl_div.backward(1.0, *saved)[0]
    array([-0.25, -0.75])
    """


@declared(Divergence, "js")
@called_as(kl_div)
def js_div() -> None:
    """Jensen-Shannon divergence of log-probabilities, a number a row.

    ``y = (kl_div(log_m, log_p) + kl_div(log_m, log_q)) / 2`` of the mean m = (p + q) / 2: the
    generalized one of distillation at beta = 1/2. It is symmetric, and at most log(2) for
    distributions; what has no probability counts 0.

    Parameters
    ----------
    log_q, log_p : array
        The logarithms of both, of one shape and dtype: float16, bfloat16, float32 or float64; any
        strides.

    See Also
    --------
    kl_div : Of one from the other.

    Notes
    -----
    By log1p of a number from 0 to 1, without a logarithm of m, which would cancel where p is near
    q. NaN is passed on.

    Computed in double, terms and sums, and rounded once: y is within half a ULP and 2**-44 of the
    sum of ``p * abs(log_p - log_m) + q * abs(log_q - log_m)``. The bits depend neither on the
    strides nor on the number of threads.

    References
    ----------
    J. Lin, "Divergence Measures Based on the Shannon Entropy", IEEE Transactions on Information
    Theory 37 (1991), https://doi.org/10.1109/18.61115

    Examples
    --------
    >>> log_q, log_p = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    >>> fa.js_div(log_q, log_p)
    np.float64(0.0338...)
    >>> fa.js_div(np.array([-np.inf, 0.0]), np.array([0.0, -np.inf]))
    np.float64(0.6931...)
    >>> y, saved = fa.js_div.forward(log_q, log_p)
    >>> fa.js_div.backward(1.0, *saved)[0]
    array([ 0.0719..., -0.0557...])
    """
