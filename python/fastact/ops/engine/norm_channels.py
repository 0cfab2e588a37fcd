"""The op objects of norms with a mean, an rstd, a weight and a bias a channel.

`BatchNorm` takes the statistics of the batch, or running ones; `NormApply` such that come from
elsewhere. The formulas, their gradients and the error bound are in
`src/common/norms/batch_norm.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType, SimpleNamespace
from typing import Any, Generic, NamedTuple, Required, Unpack

from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from ..bounds import NormBounds
from ..types import A, ActivationLike, Array, ArrayOrNumber, Out, Outs, Parameters, Stream
from . import axes
from .norm_rows import STATISTICS, WEIGHTS, sample_arrays
from .op import COMPUTED, DOUBLE, CachedOp, EntryPoint, Makes, P, R, signature_of
from .step import step

_RUNNING = ("running_mean", "running_var")
_SUMS = ("sum_dy", "sum_dy_xhat")
_SAVED = (*STATISTICS, *WEIGHTS)


class _Saved(Parameters, total=False):
    """Options by keyword of all entry points of backward; those that follow have more."""

    mean: Array
    rstd: Array
    weight: Array | None
    bias: Array | None
    activation: ActivationLike
    stream: Stream


class BatchNormOptions(_Saved, Generic[A], total=False):
    """Of `batch_norm.backward`."""

    training: bool
    channel_axis: int
    out: Outs[A]
    accumulate: bool


class ReduceOptions(_Saved, total=False):
    """Of `batch_norm.backward_reduce`."""

    channel_axis: int
    out: tuple[Array | None, ...] | None


class ApplyOptions(_Saved, Generic[A], total=False):
    """Of `batch_norm.backward_apply`."""

    sum_dy: Array
    sum_dy_xhat: Array
    count: float
    channel_axis: int
    out: Out[A]
    accumulate: bool


class NormApplyOptions(_Saved, Generic[A], total=False):
    """Of `norm_apply.backward`."""

    axis: Required[int]
    out: Outs[A]
    accumulate: bool


class Channels(NamedTuple):
    """The axis of the channels, and the shapes of what has one value a channel."""

    axis: int
    flat: tuple[int, ...]
    kept: tuple[int, ...]


class ChannelNorm(CachedOp[P, R]):
    """A norm whose statistics and parameters have one value a channel.

    axis_name : of the option that says which axis the channels are.
    """

    # A channel's scale is weight rstd, rounded once: two roundings fewer than for rows.
    bounds = NormBounds(scaled=4, rough=4)
    saves = ("x", *_SAVED)
    gradients = ("dx", "dweight", "dbias")
    roles = MappingProxyType({"x": validate.ARRAY, **dict.fromkeys(_SAVED, validate.PARAMETER)})
    shapes = MappingProxyType(
        {**dict.fromkeys(WEIGHTS, "flat"), **dict.fromkeys(STATISTICS, "kept or flat")}
    )
    axis_name: str

    def _shapes(self, call: Call, options: SimpleNamespace) -> Channels:
        shape = call.views["x"].shape
        given = getattr(options, self.axis_name)
        axis = axes.one(call.where, given, len(shape), self.axis_name)
        kept = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        return Channels(axis, (shape[axis],), kept)

    def _backward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute dx, dweight and dbias; only in training do the statistics depend on x."""
        with step(self, "backward", args, kwargs) as now:
            written = [now.view(name) for name in self.gradients]
            _run_backward(now, getattr(now.options, "training", False), *written)
            return now.results()  # type: ignore[no-any-return]


class BatchNorm(ChannelNorm[P, R]):
    """Normalised by the moments of the batch, or by running ones; backward whole or in halves."""

    axis_name = "channel_axis"
    written = optional = _RUNNING
    besides = STATISTICS
    makes = MappingProxyType(
        {
            **dict.fromkeys(STATISTICS, Makes(shape="kept", dtype=COMPUTED)),
            **dict.fromkeys(_SUMS, Makes(shape="kept", dtype=DOUBLE)),
        }
    )
    roles = MappingProxyType({**ChannelNorm.roles, **dict.fromkeys(_SUMS, validate.PARAMETER)})
    shapes = MappingProxyType(
        {
            **ChannelNorm.shapes,
            **dict.fromkeys(_RUNNING, "flat"),
            **dict.fromkeys(_SUMS, "kept or flat"),
        }
    )

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "norms")
        of_forward = [*_RUNNING, "momentum", "eps", "num_batches"]
        backward = signature_of(call, ("dy", "x"), _SAVED, but=of_forward)
        reduce = signature_of(
            call, ("dy", "x"), _SAVED, but=[*of_forward, "training"], accumulates=False
        )
        self._enter_points(
            call,
            backward,
            backward_reduce=EntryPoint(
                self._where("backward_reduce"), reduce, outputs=2, skips=True
            ),
            backward_apply=EntryPoint(self._where("backward_apply"), signature(_of_backward_apply)),
        )

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        named = sample_arrays(x, dy)
        running = dict.fromkeys(_RUNNING)
        return {"x": x, **running, **{w: named[w] for w in WEIGHTS}, "training": True}

    def writes(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        return self.written if self._options(named).training else ()

    def outputs_of(self, entry: str, options: SimpleNamespace) -> tuple[str, ...]:
        halves = {"backward_reduce": _SUMS, "backward_apply": ("dx",)}
        return halves.get(entry) or super().outputs_of(entry, options)

    def _check_options(self, where: str, options: SimpleNamespace) -> None:
        if hasattr(options, "momentum"):
            options.momentum = _momentum(where, options)
            for name in _RUNNING:
                if getattr(options, name) is None and not options.training:
                    raise TypeError(
                        f"{where}: {name} must be an array unless training=True, got None"
                    )
        if hasattr(options, "count"):
            options.count = validate.number(where, "count", options.count)
            if options.count <= 0:
                came = validate.describe(options.count)
                raise ValueError(f"{where}: count must be positive, got {came}")

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, views, options = now.call, now.views, now.options
            which, parameters, axis = now.which, now.parameters, now.shapes.axis
            training, momentum, eps = options.training, options.momentum, options.eps
            x, y = views["x"], now.view("y")
            mean, rstd = map(now.view, STATISTICS)
            if training:
                _may_train(call, axis, options)
            call.run(
                call.native.batch_norm_forward,
                which,
                x,
                y,
                views.get("running_mean"),
                views.get("running_var"),
                views.get("weight"),
                views.get("bias"),
                mean,
                rstd,
                axis,
                parameters,
                training,
                momentum,
                eps,
                _scratch(call, axis),
                _workspace(now) if training else None,
                call.stream,
            )
            return now.results()

    # PR02: the parameters by keyword stand in a type
    def backward(  # numpydoc ignore=PR02
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[BatchNormOptions[A]]
    ) -> tuple[A | None, ...]:
        """The gradients with respect to x, weight and bias.

        With ``xhat = (x - mean) * rstd``, ``z = xhat * weight + bias`` and ``p = dy * act'(z)``,
        ``dbias = sum(p)``, ``dweight = sum(p * xhat)`` and, in training,
        ``dx = weight * rstd * (p - mean(p) - xhat * mean(p * xhat))``, sums and means over each
        channel; without training, ``dx = weight * rstd * p``.

        In training a change of ``x[j]`` moves the mean by ``1 / N`` and rstd by
        ``-rstd**2 * xhat[j] / N``, of N values a channel; hence the two terms that are taken away.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x, *saved : array
            What `forward` saved.
        training, channel_axis, activation, **parameters : optional
            As given to `forward`.
        out : tuple of three arrays or None, optional
            Where to write each gradient; one that is None is not computed. dx may be dy or x.
        accumulate : bool, default False
            Add the gradients to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        dx : array
            Of x's shape and dtype.
        dweight, dbias : array
            Of the shape and dtype of weight and bias; None where there is none.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), xhat = (x - mean) rstd for the statistics as they were
        saved, p = dy act'(z) and g = p weight, dx has an error of at most u rstd (6 abs(g) + 18
        (mean abs(g) + abs(xhat) mean abs(g xhat))) in training, else 3 u rstd abs(g), dweight one
        of 18 u sum abs(p xhat), dbias one of 18 u sum abs(p). Sums of float64 are added up in
        float64: of n terms, read 18 + n / 8 for 18. p is off by the derivative's own error, by z's
        (4 u abs(xhat weight) + u abs(z)) times the second derivative, and by u abs(p), with which
        dx, dweight and dbias follow by the same formulas; without an activation it is exact. Then
        one rounding to the dtype.

        There are two passes over the data.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, weight = np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([2.0, 1.0])
        >>> y, saved = fa.batch_norm.forward(x, np.zeros(2), np.ones(2), weight, eps=0)
        >>> fa.batch_norm.backward(np.ones((2, 2)), *saved)
        (array([[2., 1.],
               [2., 1.]]), array([4., 8.]), None)
        """

    # PR02: as above
    def backward_reduce(  # numpydoc ignore=PR02
        self, dy: ArrayOrNumber, x: Array, /, *saved: Any, **options: Unpack[ReduceOptions]
    ) -> tuple[Any, ...]:
        """The first half of `backward` in training: what has to be summed over the whole batch.

        ``sum_dy = sum(p)`` and ``sum_dy_xhat = sum(p * xhat)`` over each channel, with p and xhat
        as for `backward`. Of a batch that lies on several machines each of them does its part; the
        sums over all parts go to `backward_apply`.

        Parameters
        ----------
        dy, x, *saved : array
            As for `backward`. weight and bias matter with an activation alone.
        channel_axis, activation, **parameters : optional
            As for `backward`.
        out : tuple of two arrays or None, optional
            Where to write each sum; one that is None is not computed.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        sum_dy : array
            The sums of p, which are dbias; float64, with as many axes as x.
        sum_dy_xhat : array
            The sums of p xhat, which are dweight; as sum_dy.

        Notes
        -----
        The sums have the errors of dbias and dweight of `backward`, before those are rounded to
        their dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, one = np.array([[1.0], [3.0]]), np.ones((1, 1))
        >>> fa.batch_norm.backward_reduce(np.ones((2, 1)), x, 2 * one, one)
        (array([[2.]]), array([[0.]]))
        """

    def _backward_reduce(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with step(self, "backward_reduce", args, kwargs) as now:
            sum_dy, sum_dy_xhat = map(now.view, _SUMS)
            _run_backward(now, True, dweight=sum_dy_xhat, dbias=sum_dy)
            return now.results()  # type: ignore[no-any-return]

    # PR02: as above
    def backward_apply(  # numpydoc ignore=PR02
        self,
        dy: ArrayOrNumber,
        x: A,
        /,
        *saved_and_sums: Any,
        **options: Unpack[ApplyOptions[A]],
    ) -> A:
        """The second half of `backward` in training.

        ``dx = weight * rstd * (p - sum_dy / count - xhat * sum_dy_xhat / count)``, with p and xhat
        as for `backward`.

        Parameters
        ----------
        dy, x, mean, rstd : array
            As for `backward`.
        weight : array or None
            As for `backward`; it must be given.
        sum_dy, sum_dy_xhat : array
            What `backward_reduce` returned, summed over all parts of the batch.
        count : float
            Values a channel, in all parts of the batch.
        bias : array, optional
            As for `backward`.
        channel_axis, activation, **parameters : optional
            As for `backward`.
        out : array, optional
            Where to write dx, which may be dy or x.
        accumulate : bool, default False
            Add dx to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        array
            The gradient dx, of x's shape and dtype.

        Notes
        -----
        dx has the error that `backward` states, for the sums as they were given.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, dy, one = np.array([[1.0], [3.0]]), np.array([[1.0], [0.0]]), np.ones((1, 1))
        >>> sums = fa.batch_norm.backward_reduce(dy, x, 2 * one, one)
        >>> fa.batch_norm.backward_apply(dy, x, 2 * one, one, None, *sums, 2)
        array([[0.],
               [0.]])
        """

    def _backward_apply(self, *args: Any, **kwargs: Any) -> Any:
        with step(self, "backward_apply", args, kwargs) as now:
            _run_backward(now, True, now.view("dx"), count=now.options.count)
            return now.results()


def _of_backward_apply(  # type: ignore[no-untyped-def]
    dy, x, /, mean, rstd, weight, sum_dy, sum_dy_xhat, count, bias=None, *, channel_axis=1,
    activation="identity", out=None, accumulate=False, stream=None, **parameters,
):  # fmt: skip
    """What `batch_norm.backward_apply` takes; weight and the sums must be given, in this order."""


class NormApply(ChannelNorm[P, R]):
    """Normalised by given statistics, which count as constants in backward."""

    axis_name = "axis"

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "norms")
        backward = signature_of(call, ("dy", "x"), _SAVED)
        self._enter_points(call, backward)

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        named = sample_arrays(x, dy)
        weight, bias = named["weight"], named["bias"]
        return {"x": x, "mean": bias, "rstd": weight, "weight": weight, "bias": bias, "axis": 1}

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, views, y, axis = now.call, now.views, now.view("y"), now.shapes.axis
            which, parameters = now.which, now.parameters
            call.run(
                call.native.norm_apply,
                which,
                views["x"],
                y,
                views["mean"],
                views["rstd"],
                views.get("weight"),
                views.get("bias"),
                axis,
                parameters,
                _scratch(call, axis),
                call.stream,
            )
            return now.results()

    # PR02: the parameters by keyword stand in a type
    def backward(  # numpydoc ignore=PR02
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[NormApplyOptions[A]]
    ) -> tuple[A | None, ...]:
        """The gradients with respect to x, weight and bias, for given mean and rstd.

        With ``xhat = (x - mean) * rstd``, ``z = xhat * weight + bias`` and ``p = dy * act'(z)``,
        ``dx = weight * rstd * p``, ``dweight = sum(p * xhat)`` and ``dbias = sum(p)``, with sums
        over each channel. These are the gradients of `batch_norm.backward` without training: mean
        and rstd do not depend on x.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x, *saved : array
            What `forward` saved.
        axis : int
            As given to `forward`.
        activation, **parameters : optional
            As given to `forward`.
        out : tuple of three arrays or None, optional
            Where to write each gradient; one that is None is not computed. dx may be dy or x.
        accumulate : bool, default False
            Add the gradients to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        dx : array
            Of x's shape and dtype.
        dweight, dbias : array
            Of the shape and dtype of weight and bias; None where there is none.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), xhat = (x - mean) rstd for the statistics as they were
        saved, p = dy act'(z) and g = p weight, dx has an error of at most 3 u rstd abs(g), dweight
        one of 18 u sum abs(p xhat), dbias one of 18 u sum abs(p). Sums of float64 are added up in
        float64: of n terms, read 18 + n / 8 for 18. p is off by the derivative's own error, by z's
        (4 u abs(xhat weight) + u abs(z)) times the second derivative, and by u abs(p), with which
        dx, dweight and dbias follow by the same formulas; without an activation it is exact. Then
        one rounding to the dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.norm_apply.backward(1.0, np.ones((1, 2)), np.zeros(2), np.full(2, 0.5), axis=1)[0]
        array([[0.5, 0.5]])
        """


def _scratch(call: Call, axis: int) -> View | None:
    """What the kernels note of each channel."""
    return call.workspace(call.native.batch_norm_scratch(call.views["x"], axis))


def _workspace(now: step) -> View | None:
    """Scratch with which many threads can share the moments."""
    call, x, (axis, _, kept) = now.call, now.views["x"], now.shapes
    model, axes_of = x.shaped(kept), axes.all_but(axis, x.ndim)
    return call.workspace(call.native.moments_workspace(x, None, None, model, axes_of, False))


def _run_backward(
    now: step,
    training: bool,
    dx: View | None = None,
    dweight: View | None = None,
    dbias: View | None = None,
    *,
    count: float = 1.0,
) -> None:
    """Run the kernels of backward, for the gradients that are wanted.

    count : of values that the call's sum_dy and sum_dy_xhat, if it has them, are over.
    """
    call, views, axis = now.call, now.views, now.shapes.axis
    which, parameters = now.which, now.parameters
    accumulate = getattr(now.options, "accumulate", False)
    call.run(
        call.native.batch_norm_backward,
        which,
        views["dy"],
        views["x"],
        views["mean"],
        views["rstd"],
        views.get("weight"),
        views.get("bias"),
        views.get("sum_dy"),
        views.get("sum_dy_xhat"),
        count,
        dx,
        dweight,
        dbias,
        axis,
        parameters,
        training,
        accumulate,
        _scratch(call, axis),
        call.stream,
    )


def _may_train(call: Call, axis: int, options: SimpleNamespace) -> None:
    """There are moments to take, and the running ones may be moved."""
    where, x = call.where, call.views["x"]
    count = math.prod(n for i, n in enumerate(x.shape) if i != axis)
    if count == 1 and x.shape[axis]:
        raise ValueError(
            f"{where}: x must have more than one value a channel in training, got shape {x.shape}"
        )
    for name in _RUNNING:
        if name in call.views:
            view = call.views[name]
            call.is_own(name, getattr(options, name), "x")
            validate.writable(where, name, view)
            validate.apart(where, name, view, {n: v for n, v in call.views.items() if n != name})
            call.writes(name, view, call.arrays[name])


def _momentum(where: str, options: SimpleNamespace) -> float:
    """The momentum as given, or 1/(n + 1) of a cumulative average over n batches and this one."""
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
