"""Norms with one mean, rstd, weight and bias for each channel: `batch_norm` and `norm_apply`.

`BatchNormOp` uses the statistics of the batch, or running ones; `NormApply` uses given statistics.
The formulas, their gradients and the error bound are in
`src/common/norms/batch_norm.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from ..interop import validate
from ..interop.call import Call
from .activations import FusedKwargs, Parameters
from .bounds import NormBounds
from .engine import axes
from .engine.entry import COMPUTED, DOUBLE, REQUIRED, Arg, Entry, Output, signature_of
from .engine.execute import Execution
from .engine.op import Kernels, P, R, Traits, declared, records
from .engine.quantized import Quantizes
from .engine.served import CachedOp
from .norms import CHANNEL, FAR, STATISTICS, TEXTS, WEIGHTS, Rows
from .types import A, ActivationLike, Array, ArrayOrNumber, Out, Stream

_RUNNING = ("running_mean", "running_var")
_SUMS = ("sum_dy", "sum_dy_xhat")
_SAVED = (*STATISTICS, *WEIGHTS)
_SPREAD = Arg(validate.PARAMETER, "kept or flat")


class Channels(NamedTuple):
    """The axis of the channels, and the shapes of arrays with one value per channel."""

    axis: int
    flat: tuple[int, ...]
    kept: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def normed(self) -> Rows:
        """The elements that are normalised together: one channel of the whole batch."""
        along = axes.others((self.axis,), len(self.shape))
        return Rows(self.shape, along, (self.axis,), self.kept, self.flat)


_BATCH = """S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by
Reducing Internal Covariate Shift", ICML 2015, https://arxiv.org/abs/1502.03167"""

_ORDER = """`forward` saves the statistics that were used. For `batch_norm` they are in the dtype in
which x is computed, with as many axes as x; for `norm_apply` they are the given ones.

Terms are added up as in `fastact.sum`: the bits do not depend on the number of threads, but may
depend on whether channels come last in memory."""


class ChannelNorm(Quantizes, CachedOp[P, R]):
    """A norm whose statistics and parameters have one value per channel."""

    family = "norms"
    # A channel's scale is weight rstd, rounded once: two roundings fewer than for rows.
    bounds = NormBounds(scaled=4, rough=4)
    saves = ("x", *_SAVED)
    gradients = ("dx", "dweight", "dbias")
    args: Mapping[str, Arg] = records(
        x=Arg(validate.ARRAY),
        **dict.fromkeys(STATISTICS, _SPREAD),
        **dict.fromkeys(WEIGHTS, Arg(shape="flat")),
    )
    # Only in training do the statistics depend on x. Sums come with a count of values.
    kernels = Kernels(
        {"backward": "batch_norm_backward"},
        {"sum_p": "sum_dy", "sum_p_xhat": "sum_dy_xhat"},
        {"training": False, "count": 1.0},
    )
    axis_name: str  # the option that says which axis the channels are
    given: str  # a text on the error of given statistics, and on a GPU's (rough), for docstrings
    rough: str = ""
    computes_alone = False  # a thread would need its own notes on the channels

    def _texts(self) -> str:
        texts: Any = dict.fromkeys(("batch", "notes", "out"), "")
        texts |= {"lengths": CHANNEL, "added": "the variance", "error": FAR}
        texts |= {"given": self.given, "rough": self.rough, "order": _ORDER, "reference": _BATCH}
        return TEXTS.format(b=self.bounds, **texts)

    def _shapes(self, call: Call, options: SimpleNamespace, entry: str = "call") -> Channels:
        shape = call.views["x"].shape
        given = getattr(options, self.axis_name)
        axis = axes.one(call.where, given, len(shape), self.axis_name)
        kept = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        return Channels(axis, (shape[axis],), kept, tuple(shape))

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        return axes.others((now.shapes.axis,), now.views["x"].ndim)

    def backward(
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[FusedKwargs[A]]
    ) -> tuple[A | None, ...]:
        """Compute the gradients with respect to x, weight and bias.

        Let ``xhat = (x - mean) * rstd``, ``z = xhat * weight + bias`` and ``p = dy * act'(z)``.
        Then ``dbias = sum(p)`` and ``dweight = sum(p * xhat)``. In training, ``dx = weight * rstd *
        (p - mean(p) - xhat * mean(p * xhat))``. Sums and means are over each channel. Otherwise,
        and for `norm_apply`, mean and rstd do not depend on x: ``dx = weight * rstd * p``.

        In training, with N values per channel, a change of ``x[j]`` moves the mean by ``1 / N`` and
        rstd by ``-rstd**2 * xhat[j] / N``, which gives the two terms that are subtracted.

        Notes
        -----
        Let u = 2**-24 (float64: 2**-53), xhat = (x - mean) rstd for the statistics as they were
        saved, p = dy act'(z) and g = p weight. dx has an error of at most u rstd (6 abs(g) + 18
        (mean abs(g) + abs(xhat) mean abs(g xhat))) in training, and otherwise of 3 u rstd abs(g);
        dweight of at most 18 u sum abs(p xhat), and dbias of at most 18 u sum abs(p). Sums of
        float64 are added up in float64; for n terms, read 18 + n / 8 for 18. The error of p is the
        derivative's own error, plus the error of z (4 u abs(xhat weight) + u abs(z)) times the
        second derivative, plus u abs(p); it enters dx, dweight and dbias by the same formulas.
        Without an activation p is exact. One rounding to the dtype follows.

        In training `backward` makes two passes over the data.
        """


class BatchNormOp(ChannelNorm[P, R]):
    """Normalization by moments of the batch, or running ones, with backward whole or in halves."""

    axis_name = "channel_axis"
    given = ", which running statistics do not have"
    rough = """On a GPU, which computes moments of 16-bit data and of float32 partly in float32, the
    bound for these is larger by 4 u abs(weight) (1 + abs(xhat))."""
    outs = records(
        **dict.fromkeys(STATISTICS, Output(shape="kept", dtype=COMPUTED)),
        **dict.fromkeys(_SUMS, Output(shape="kept", dtype=DOUBLE)),
    )
    args = records(
        **ChannelNorm.args,
        **dict.fromkeys(_RUNNING, Arg(shape="flat", written=True, optional=True)),
        **dict.fromkeys(_SUMS, _SPREAD),
    )

    def __init__(self, function: Callable[P, R]) -> None:
        call, arrays = self._declare(function), ("dy", "x")
        but = ("momentum", "eps", "num_batches")
        others: Any = {"but": (*but, *_RUNNING, "training")}
        reduce = signature_of(call, arrays, _SAVED, accumulates=False, **others)
        of_sums = (*STATISTICS, "weight", *_SUMS, "count", "bias")
        apply = signature_of(call, arrays, of_sums, weight=REQUIRED, **others)
        self._enter_points(
            but=but,
            extra=0,
            backward_reduce=self._entry("backward_reduce", reduce, _SUMS, skips=True),
            backward_apply=self._entry("backward_apply", apply, ("dx",)),
        )

    def writes(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        training = validate.flag(f"fastact.{self.name}", "training", named.get("training", False))
        return self.written if training else ()

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        where = entry.where
        if not entry.is_backward:
            options.momentum = _momentum(where, options)
            for name in _RUNNING:
                if getattr(options, name) is None and not options.training:
                    raise TypeError(
                        f"{where}: {name} must be an array unless training=True, got None"
                    )
        if entry.name == "backward_apply":
            options.count = validate.number(where, "count", options.count)
            if options.count <= 0:
                came = validate.describe(options.count)
                raise ValueError(f"{where}: count must be positive, got {came}")

    def _run_forward(self, now: Execution) -> None:
        if now.options.training:
            _may_train(now)
        now.run("batch_norm_forward")

    def backward_reduce(
        self, dy: ArrayOrNumber, x: Array, /, *saved: Any, **options: Unpack[FusedKwargs[Array]]
    ) -> tuple[Any, Any]:
        """Compute the first half of `backward` in training: the sums over the whole batch.

        These are ``sum_dy = sum(p)`` and ``sum_dy_xhat = sum(p * xhat)`` over each channel, with p
        and xhat as for `backward`. If a batch lies on several machines, each of them computes its
        part; `backward_apply` takes the sums over all parts.

        Parameters
        ----------
        dy, x, mean, rstd, weight, bias : array
            As for `backward`. weight and bias matter only with an activation.
        out : tuple of two arrays or None, optional
            Where to write each sum; None skips one.

        Returns
        -------
        sum_dy : array
            The sums of p, which are dbias, in float64 and with as many axes as x.
        sum_dy_xhat : array
            The sums of p xhat, which are dweight, likewise.

        Notes
        -----
        The sums have the errors that dbias and dweight of `backward` have before they are rounded.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, one = np.array([[1.0], [3.0]]), np.ones((1, 1))
        >>> fa.batch_norm.backward_reduce(np.ones((2, 1)), x, 2 * one, one)
        (array([[2.]]), array([[0.]]))
        """

    def _run_backward_reduce(self, now: Execution) -> None:
        sum_dy, sum_dy_xhat = map(now.view, _SUMS)
        now.run("batch_norm_backward", training=True, dweight=sum_dy_xhat, dbias=sum_dy)

    def backward_apply(
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[FusedKwargs[A]]
    ) -> A:
        """Compute the second half of `backward` in training.

        ``dx = weight * rstd * (p - sum_dy / count - xhat * sum_dy_xhat / count)``, with p and xhat
        as for `backward`.

        Parameters
        ----------
        dy, x, mean, rstd : array
            As for `backward`.
        weight : array or None
            As for `backward`. It must be given.
        sum_dy, sum_dy_xhat : array
            What `backward_reduce` returned, summed over all parts of the batch.
        count : float
            The number of values per channel in all parts of the batch.
        out : array, optional
            Where to write dx, which may be dy or x.

        Returns
        -------
        array
            The gradient dx, of x's shape and dtype.

        Notes
        -----
        dx has the error that `backward` states, for the given sums.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, dy, one = np.array([[1.0], [3.0]]), np.array([[1.0], [0.0]]), np.ones((1, 1))
        >>> sums = fa.batch_norm.backward_reduce(dy, x, 2 * one, one)
        >>> fa.batch_norm.backward_apply(dy, x, 2 * one, one, None, *sums, 2)
        array([[0.],
               [0.]])
        """

    def _run_backward_apply(self, now: Execution) -> None:
        now.run("batch_norm_backward", training=True)


class NormApply(ChannelNorm[P, R]):
    """Normalization by given statistics, which are constants in backward."""

    axis_name = "axis"
    given = ", which statistics from `Moments` have"
    traits = Traits(axis_of_bias=True)
    kernels = Kernels(
        {**ChannelNorm.kernels.runs, "forward": "norm_apply"}, *ChannelNorm.kernels[1:]
    )


def _may_train(now: Execution) -> None:
    """Check that there are moments to take and that the running ones may be updated."""
    where, call, shape, channel = now.where, now.call, now.views["x"].shape, now.shapes.axis
    if math.prod(axes.reduced(shape, (channel,), keepdims=True)) == 1 and shape[channel]:
        raise ValueError(
            f"{where}: x must have more than one value per channel in training, got shape {shape}"
        )
    for name in _RUNNING:
        if name in now.views:
            view = now.views[name]
            call.is_own(name, getattr(now.options, name), "x")
            validate.writable(where, name, view)
            validate.apart(where, name, view, {n: v for n, v in now.views.items() if n != name})
            call.writes(name, view, call.arrays[name])


def _momentum(where: str, options: SimpleNamespace) -> float:
    """Return the given momentum, or 1/(n + 1) for an average over n batches and this one."""
    if options.momentum is None:
        if options.num_batches is None:
            if not options.training:
                return 0.0
            raise TypeError(f"{where}: num_batches must be given with momentum=None")
        before = axes.integer(where, "num_batches", options.num_batches)
        if before < 0:
            raise ValueError(f"{where}: num_batches must not be negative, got {before}")
        return 1 / (before + 1)
    momentum = validate.number(where, "momentum", options.momentum)
    if not 0 <= momentum <= 1:
        raise ValueError(f"{where}: momentum must be from 0 to 1, or None, got {momentum!r}")
    return momentum


@declared(BatchNormOp)
def batch_norm(
    x: A,
    /,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
    activation: ActivationLike = "identity",
    num_batches: int | None = None,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Batch normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, with the running mean and
    variance of each channel, or in training x's own.

    Parameters
    ----------
    running_mean, running_var : array
        1-D arrays with one value per channel, of x's dtype or a wider one, or of any dtype if x is
        float64. In training they are updated with the mean and the unbiased variance of x, after
        everything has been checked and computed: ``running = (1 - momentum) * running + momentum *
        new``. An empty batch changes nothing. In training each may be None, but not a list, because
        only a copy of it could be updated.
    training : bool, default False
        If True, use the mean and the variance of x.
    momentum : float or None, default 0.1
        The weight of the new statistics, from 0 to 1. With None, running statistics are the average
        over all batches, of which `num_batches` came before.
    num_batches : int, optional
        The number of batches that the running statistics average, with momentum=None.

    Raises
    ------
    TypeError
        For an array of a dtype narrower than x's, no running statistics without training, or no
        num_batches with momentum=None in training.
    ValueError
        For an axis out of range, an array of another shape, a momentum outside [0, 1], a negative
        eps or num_batches; in training also for a single value per channel and for running
        statistics that are read-only or share memory.

    See Also
    --------
    fastact.norm_apply : The same by given statistics.
    fastact.instance_norm : The same over each example.

    Notes
    -----
    `batch_norm.backward_reduce` and `batch_norm.backward_apply` are the two halves of
    `batch_norm.backward` in training, for a batch that lies on several machines.

    ONNX, Keras and Flax update running_var with the biased variance, m2 / n for n values per
    channel, and call 1 - momentum the momentum. To get the same, scale running_var by n / (n - 1)
    before the call and back after it, as the last example shows.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> mean, var = np.zeros(2), np.ones(2)
    >>> fa.batch_norm(x, mean, var, training=True, eps=0)
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> mean, var
    (array([0.2, 0.4]), array([1.1, 1.7]))
    >>> fa.batch_norm(x, mean, var, np.ones(2), np.ones(2), activation="relu")
    array([[1.7627..., 2.2271...],
           [3.6696..., 5.2949...]])
    >>> y, saved = fa.batch_norm.forward(x, None, None, np.ones(2), training=True, eps=0)
    >>> dx, dweight, dbias = fa.batch_norm.backward(x, *saved, training=True)
    >>> dweight
    array([2., 4.])
    >>> var, n = np.ones(2), len(x)
    >>> var *= n / (n - 1)
    >>> y = fa.batch_norm(x, mean, var, training=True)
    >>> var /= n / (n - 1)
    >>> np.allclose(var, 0.9 * 1 + 0.1 * x.var(axis=0))
    True
    """


@declared(NormApply)
def norm_apply(
    x: A,
    /,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int,
    activation: ActivationLike = "identity",
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Normalization by given statistics, such as those of merged `Moments`.

    ``y = act((x - mean) * rstd * weight + bias)``.

    Parameters
    ----------
    mean, rstd : array
        One value per channel, in 1-D arrays or with the other axes of x of length 1; of x's dtype
        or a wider one.
    axis : int
        The axis of the channels.

    See Also
    --------
    fastact.moments : Statistics that merge.
    fastact.batch_norm : The same by the statistics of x.

    Notes
    -----
    `norm_apply.backward` treats mean and rstd as constants.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> m = fa.moments(x, 0)
    >>> fa.norm_apply(x, m.mean, 1 / m.std(), axis=1)
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> y, saved = fa.norm_apply.forward(x, m.mean, 1 / m.std(), np.ones(2), axis=1)
    >>> dx, dweight, dbias = fa.norm_apply.backward(1.0, *saved, axis=1)
    >>> dx
    array([[1. , 0.5],
           [1. , 0.5]])
    """
