"""Divergences: how far apart two distributions are, by their log-probabilities.

They are computed like weighted sums, from other terms, which are in
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
    The axes to sum over; negative axes count from the last. Rows need not add up to 1.

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

    pair : the number of its term, given by the term's name in src/common/reductions/pairs.h.
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
        """Compute the gradients with respect to both arrays.

        For `kl_div` they are ``dlog_q = -dy * p`` and ``dlog_p = dy * p * (log_p - log_q + 1)``;
        for `js_div`, ``dlog_q = dy * q * (log_q - log_m) / 2`` and ``dlog_p = dy * p * (log_p -
        log_m) / 2``. Where the probability is 0, the gradient is 0.

        Notes
        -----
        They are computed in double, for 16-bit data in float32, and rounded once. dlog_q of
        `kl_div` is within 2**-44 abs(dy) p, and its dlog_p within 2**-44 abs(dy) p (abs(log_p -
        log_q) + 1). dlog_p of `js_div` is within 2**-44 abs(dy) p abs(log_p - log_m), and its
        dlog_q likewise. For 16-bit data the factor is 2**-20; it replaces 2**-44.
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
    """Kullback-Leibler divergence KL(p | q) of log-probabilities, one number per row.

    ``y = np.sum(np.exp(log_p) * (log_p - log_q), axis)``, like ``torch.nn.functional.kl_div(log_q,
    log_p, reduction="none", log_target=True).sum(axis)``. An element without probability,
    ``np.exp(log_p) == 0``, adds 0, even where log_q is infinite.

    Parameters
    ----------
    log_q : array
        The logarithms of q, the distribution of a student or a policy; torch's `input`. Its dtype
        is float16, bfloat16, float32 or float64, with any shape and strides.
    log_p : array
        The logarithms of p, the distribution of a teacher or a reference, which weighs the terms;
        torch's `target`. Its shape and dtype are log_q's.

    See Also
    --------
    js_div : The divergence of both from their mean, which is symmetric and finite.
    cross_entropy : The loss of logits and a target.

    Notes
    -----
    Where q is 0 and p is not, y and dlog_p are infinite. NaN propagates.

    Terms of opposite sign cancel where p is near q, so terms and sums are computed in double and
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
    """Jensen-Shannon divergence of log-probabilities, one number per row.

    ``y = (kl_div(log_m, log_p) + kl_div(log_m, log_q)) / 2``, with the mean m = (p + q) / 2. It is
    the generalized divergence of distillation at beta = 1/2. It is symmetric, and at most log(2)
    for distributions; an element without probability adds 0.

    Parameters
    ----------
    log_q, log_p : array
        The logarithms of both distributions, of the same shape and dtype: float16, bfloat16,
        float32 or float64, with any strides.

    See Also
    --------
    kl_div : The divergence of one from the other.

    Notes
    -----
    It uses log1p of a number from 0 to 1 instead of the logarithm of m, which would cancel where p
    is near q. NaN propagates.

    Terms and sums are computed in double and rounded once: y is within half a ULP and 2**-44 of the
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
