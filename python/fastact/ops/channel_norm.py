"""The op objects of norms with a mean, an rstd, a weight and a bias a channel.

`BatchNorm` takes the statistics of the batch, or running ones; `NormApply` such that come from
elsewhere. The formulas, their gradients and the error bound are in
`src/common/norms/batch_norm.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any, Generic, Required, Unpack

from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes
from .bounds import NormBounds
from .fused import bind
from .norm_arrays import (
    STATISTICS,
    WEIGHTS,
    Made,
    apart,
    gradients,
    present,
    results,
    sample_arrays,
)
from .op import COMPUTED, CachedOp, EntryPoint, Model, P, R, signature_of
from .types import A, ActivationLike, Array, ArrayOrNumber, Out, Outs, Parameters, Stream

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


class ChannelNorm(CachedOp[P, R]):
    """A norm whose statistics and parameters have one value a channel.

    axis_name : of the option that says which axis the channels are.
    """

    # A channel's scale is weight rstd, rounded once: two roundings fewer than for rows.
    bounds = NormBounds(scaled=4, rough=4)
    saves = ("x", *_SAVED)
    gradients = ("dx", "dweight", "dbias")
    axis_name: str

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map(self.entry_points["call"], args, kwargs, saves=False)[0]

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The op's value, as calling the op gives it, and the tuple that `backward` needs.

        ``y = act((x - mean) * rstd * weight + bias)``.

        Parameters
        ----------
        *args, **kwargs
            As for the call.

        Returns
        -------
        y : array
            What calling the op returns.
        saved : tuple
            ``(x, mean, rstd, weight, bias)``, with the statistics that were used: of `batch_norm`
            in the dtype in which x is computed, with as many axes as x, of `norm_apply` those that
            were given. Arrays are not copied: do not change them before `backward`.

        Notes
        -----
        y is as accurate as the result of the call.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
        >>> y, saved = fa.batch_norm.forward(x, None, None, np.ones(2), training=True)
        >>> fa.batch_norm.backward(x, *saved, training=True)[1]
        array([1.9999..., 3.9999...])
        >>> one = np.ones(1)
        >>> y, saved = fa.norm_apply.forward(np.array([[3.0]]), one, one, one, axis=1)
        >>> fa.norm_apply.backward(1.0, *saved, axis=1)
        (array([[1.]]), array([2.]), None)
        """
        return self._map(self.entry_points["forward"], args, kwargs, saves=True)

    def _map(
        self, entry: EntryPoint, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Compute y, and what is saved for backward."""
        raise NotImplementedError

    def _backward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute dx, dweight and dbias; only in training do the statistics depend on x."""
        entry = self.entry_points["backward"]
        _, which, parameters, options = bind(entry, args, kwargs)
        given = present(entry.where, options, ("x", "dy", *_SAVED))
        with Call(entry.where, options.stream, **given) as call:
            axis = self._axis_of(call, options)
            made = gradients(call, options)
            training = getattr(options, "training", False)
            written = [view for view, _ in made]
            _run_backward(call, which, axis, parameters, training, options.accumulate, *written)
            return results(call, options.out, made)

    def _axis_of(self, call: Call, options: SimpleNamespace) -> int:
        """The channels' axis of x, once every array of the call is known to fit x."""
        where, x = call.where, call.views["x"]
        axis = axes.one(where, getattr(options, self.axis_name), x.ndim, self.axis_name)
        for name, view in call.views.items():
            if name == "dy":
                validate.same_as(where, name, view, "x", x)
            elif name != "x":
                validate.parameter_dtype(where, name, view, "x", x)
                flat, kept = (x.shape[axis],), _one_a_channel(x, axis)
                is_flat = name in WEIGHTS or name in _RUNNING
                if view.shape != flat and (is_flat or view.shape != kept):
                    axes.has_shape(where, name, view, flat if is_flat else kept)
        return axis


class BatchNorm(ChannelNorm[P, R]):
    """Normalised by the moments of the batch, or by running ones; backward whole or in halves."""

    axis_name = "channel_axis"
    written = _RUNNING

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "norms")
        of_forward = [*_RUNNING, "momentum", "eps", "num_batches"]
        backward = signature_of(call, ("dy", "x"), _SAVED, but=of_forward)
        reduce = signature_of(
            call, ("dy", "x"), _SAVED, but=[*of_forward, "training"], accumulates=False
        )
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            backward=EntryPoint(self._where("backward"), backward, outputs=3, skips=True),
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

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        x = named["x"]
        axis = axes.one(self._where(), self._options(named).channel_axis, x.ndim)
        results, _ = super().models(named)
        return results, {name: Model(_one_a_channel(x, axis), COMPUTED) for name in STATISTICS}

    def _map(
        self, entry: EntryPoint, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        _, which, parameters, options = bind(entry, args, kwargs)
        where, training = entry.where, options.training
        eps, momentum = validate.epsilon(where, options.eps), _momentum(where, options)
        for name in _RUNNING:
            if getattr(options, name) is None and not training:
                raise TypeError(f"{where}: {name} must be an array unless training=True, got None")
        given = present(where, options, ("x", *_RUNNING, *WEIGHTS))
        with Call(where, options.stream, **given) as call:
            views, x = call.views, call.views["x"]
            axis = self._axis_of(call, options)
            if training:
                _may_train(call, axis, options)
            y, made = call.output("out", options.out[0], "x", in_place=not saves)
            apart(call, {"out": y})
            kept, wide = _one_a_channel(x, axis), validate.computed_in(x)
            saved = [
                call.output(name, None, "x", shape=kept, dtype=wide) for name in STATISTICS if saves
            ]
            mean, rstd = (view for view, _ in saved) if saves else (None, None)
            call.run(
                "batch_norm_forward",
                x=x,
                y=y,
                axis=axis,
                running_mean=views.get("running_mean"),
                running_var=views.get("running_var"),
                weight=views.get("weight"),
                bias=views.get("bias"),
                mean=mean,
                rstd=rstd,
                which=which,
                parameters=parameters,
                momentum=momentum,
                eps=eps,
                training=training,
            )
            return call.result(options.out[0], made), (
                call.arrays["x"],
                *(call.result(None, new) for _, new in saved),
                *map(call.arrays.get, WEIGHTS),
            )

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
        entry = self.entry_points["backward_reduce"]
        _, which, parameters, taken = bind(entry, args, kwargs)
        given = present(entry.where, taken, ("x", "dy", *_SAVED))
        with Call(entry.where, taken.stream, **given) as call:
            axis = self._axis_of(call, taken)
            kept = _one_a_channel(call.views["x"], axis)
            made: list[Made] = [
                call.output(
                    f"out[{i}]", out, "x", shape=kept, dtype=validate.DOUBLE, in_place=False
                )
                if taken.wanted[i]
                else (None, None)
                for i, out in enumerate(taken.out)
            ]
            apart(call, {f"out[{i}]": view for i, (view, _) in enumerate(made)})
            sum_dy, sum_dy_xhat = (view for view, _ in made)
            _run_backward(
                call, which, axis, parameters, True, False, dweight=sum_dy_xhat, dbias=sum_dy
            )
            return results(call, taken.out, made)

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
        entry = self.entry_points["backward_apply"]
        _, which, parameters, taken = bind(entry, args, kwargs)
        where, count = entry.where, validate.number(entry.where, "count", taken.count)
        if count <= 0:
            raise ValueError(f"{where}: count must be positive, got {validate.describe(count)}")
        given = present(where, taken, ("x", "dy", *_SAVED, *_SUMS))
        with Call(where, taken.stream, **given) as call:
            axis = self._axis_of(call, taken)
            dx, made = call.output("out", taken.out[0], "x")
            apart(call, {"out": dx})
            _run_backward(call, which, axis, parameters, True, taken.accumulate, dx, count=count)
            return call.result(taken.out[0], made)


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
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            backward=EntryPoint(self._where("backward"), backward, outputs=3, skips=True),
        )

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        named = sample_arrays(x, dy)
        weight, bias = named["weight"], named["bias"]
        return {"x": x, "mean": bias, "rstd": weight, "weight": weight, "bias": bias, "axis": 1}

    def _map(
        self, entry: EntryPoint, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        _, which, parameters, options = bind(entry, args, kwargs)
        given = present(entry.where, options, ("x", *_SAVED))
        with Call(entry.where, options.stream, **given) as call:
            views = call.views
            axis = self._axis_of(call, options)
            y, made = call.output("out", options.out[0], "x", in_place=not saves)
            apart(call, {"out": y})
            call.run(
                "norm_apply",
                x=views["x"],
                y=y,
                axis=axis,
                mean=views["mean"],
                rstd=views["rstd"],
                weight=views.get("weight"),
                bias=views.get("bias"),
                which=which,
                parameters=parameters,
            )
            return call.result(options.out[0], made), tuple(map(call.arrays.get, self.saves))

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


def _one_a_channel(x: View, axis: int) -> tuple[int, ...]:
    """The shape of statistics with as many axes as x."""
    return tuple(n if i == axis else 1 for i, n in enumerate(x.shape))


def _run_backward(
    call: Call,
    which: int,
    axis: int,
    parameters: tuple[float, ...],
    training: bool,
    accumulate: bool,
    dx: View | None = None,
    dweight: View | None = None,
    dbias: View | None = None,
    *,
    count: float = 1.0,
) -> None:
    """Run the kernels of backward, for the gradients that are wanted.

    count : of values that the call's sum_dy and sum_dy_xhat, if it has them, are over.
    """
    views = call.views
    call.run(
        "batch_norm_backward",
        x=views["x"],
        dy=views["dy"],
        dx=dx,
        axis=axis,
        mean=views["mean"],
        rstd=views["rstd"],
        weight=views.get("weight"),
        bias=views.get("bias"),
        sum_p=views.get("sum_dy"),
        sum_p_xhat=views.get("sum_dy_xhat"),
        dweight=dweight,
        dbias=dbias,
        which=which,
        parameters=parameters,
        count=count,
        training=training,
        accumulate=accumulate,
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
