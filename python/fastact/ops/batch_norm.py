"""batch_norm: statistics a channel, of the batch or running, and backward whole or in halves.

The formulas, their gradients and the error bound are in `src/common/norms/batch_norm.h`.
"""

import math
from typing import Any

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes
from .batch_norm_docs import BATCH_NORM
from .bounds_docs import norm_backward, noted
from .channel_norm import (
    RUNNING,
    STATISTICS,
    ChannelNorm,
    one_a_channel,
    run_backward,
    scratch,
)
from .fused import IDENTITY, bind_fused
from .norm_arrays import WEIGHTS, Made, apart, chosen, present, results
from .op_before import REQUIRED, Takes, register

_DOUBLE = _cpu.DTYPE_NAMES.index("float64")
_SUMS = ("sum_dy", "sum_dy_xhat")
_STATISTICS = dict.fromkeys(STATISTICS, REQUIRED)
_WEIGHTS = dict.fromkeys(WEIGHTS)
_TOLD = {"channel_axis": 1, "activation": IDENTITY}


class BatchNorm(ChannelNorm):
    """Normalised by the moments of the batch, or by running ones; and backward."""

    axis_name = "channel_axis"
    _takes = Takes(
        {
            **dict.fromkeys(RUNNING, REQUIRED),
            **_WEIGHTS,
            "training": False,
            "momentum": 0.1,
            "eps": 1e-5,
        },
        {**_TOLD, "num_batches": None},
    )
    _takes_back = Takes(
        {**_STATISTICS, **_WEIGHTS, "training": False},
        _TOLD,
        accumulates=True,
        outputs=3,
        skips=True,
    )
    _takes_reduce = Takes({**_STATISTICS, **_WEIGHTS}, _TOLD, outputs=2, skips=True)
    _takes_apply = Takes(
        {
            **_STATISTICS,
            "weight": REQUIRED,
            **dict.fromkeys(_SUMS, REQUIRED),
            "count": REQUIRED,
            "bias": None,
        },
        _TOLD,
        accumulates=True,
    )

    def __init__(self, doc: str) -> None:
        docs = {
            "call": doc,
            "backward": noted(type(self).backward, norm_backward(self.bounds, given=True)),
        }
        super().__init__("batch_norm", "norms", ("x",), self._takes, docs, more="parameters")

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._map(self._where(), x, args, kwargs, saves=False)[0]

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """forward(x, running_mean, running_var, weight=None, bias=None, training=False,
        momentum=0.1, eps=1e-5, *, channel_axis=1, activation="identity", ...) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        y : array
        saved : tuple
            ``(x, mean, rstd, weight, bias)``, the statistics that were used in the dtype in which x
            is computed, with as many axes as x. Arrays are not copied: do not change them before
            `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
        >>> y, saved = fa.batch_norm.forward(x, None, None, np.ones(2), training=True)
        >>> fa.batch_norm.backward(x, *saved, training=True)[1]
        array([1.9999..., 3.9999...])
        """
        return self._map(self._where("forward"), x, args, kwargs, saves=True)

    def _map(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        _, which, parameters, options = bind_fused(where, self._takes, args, kwargs)
        training, eps = options.training, validate.epsilon(where, options.eps)
        momentum = _momentum(where, options)
        running = chosen(options, RUNNING)
        for name, value in running.items():
            if value is None and not training:
                raise TypeError(f"{where}: {name} must be an array unless training=True, got None")
        arrays = {"x": x, **running, **chosen(options, WEIGHTS)}
        with Call(where, options.stream, **present(where, arrays)) as call:
            views = call.views
            view = views["x"]
            axis = self._axis_of(call, options)
            if training:
                _may_train(call, axis)
            y, made = call.output("out", options.out[0], "x", in_place=not saves)
            apart(call, {"out": y})
            kept = one_a_channel(view.shape, axis)
            saved = [
                call.output(name, None, "x", shape=kept, dtype=validate.computed_in(view))
                for name in STATISTICS
                if saves
            ]
            mean, rstd = (view for view, _ in saved) if saves else (None, None)
            call.run(
                "batch_norm_forward",
                which,
                view,
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
                scratch(call, axis),
                _workspace(call, axis) if training else None,
            )
            return call.result(options.out[0], made), (
                call.arrays["x"],
                *(call.result(None, new) for _, new in saved),
                *map(call.arrays.get, WEIGHTS),
            )

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """backward(dy, x, mean, rstd, weight=None, bias=None, training=False, *, channel_axis=1,
        activation="identity", out=None, accumulate=False, ...) -> (dx, dweight, dbias)

        The gradients with respect to x, weight and bias, in two passes over the data. With
        p = dy act'(z) and xhat = (x - mean) rstd: dbias = sum p, dweight = sum p xhat, and
        dx = weight rstd (p - mean of p - xhat mean of p xhat), or without training weight rstd p.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x, mean, rstd, weight, bias
            What `forward` saved.
        training, channel_axis, activation, ...
            As told to `forward`.
        out : tuple of three arrays or None, optional
            Where to write each gradient; one that is None is not computed. dx may be dy or x.
        accumulate : bool
            Add the gradients to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            Of x's shape and dtype.
        dweight, dbias : array
            Of the shape and dtype of weight and bias; None where there is none.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, weight = np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([2.0, 1.0])
        >>> y, saved = fa.batch_norm.forward(x, np.zeros(2), np.ones(2), weight, eps=0)
        >>> fa.batch_norm.backward(np.ones((2, 2)), *saved)
        (array([[2., 1.],
               [2., 1.]]), array([4., 8.]), None)
        """
        return self._gradients(self._takes_back, dy, x, args, kwargs)

    def backward_reduce(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """backward_reduce(dy, x, mean, rstd, weight=None, bias=None, *, channel_axis=1,
        activation="identity", out=None, ...) -> (sum_dy, sum_dy_xhat)

        The first half of `backward` in training: what has to be summed over all parts of a batch
        that lies on several machines, before `backward_apply`.

        Parameters
        ----------
        dy, x, mean, rstd, weight, bias, channel_axis, activation, ...
            As for `backward`. weight and bias matter with an activation alone.
        out : tuple of two arrays or None, optional
            Where to write each sum; one that is None is not computed.

        Returns
        -------
        sum_dy, sum_dy_xhat : array
            float64, with as many axes as x: the sums of p = dy act'(z), which is dbias, and of
            p xhat, which is dweight.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, one = np.array([[1.0], [3.0]]), np.ones((1, 1))
        >>> fa.batch_norm.backward_reduce(np.ones((2, 1)), x, 2 * one, one)
        (array([[2.]]), array([[0.]]))
        """
        where = self._where("backward_reduce")
        _, which, parameters, options = bind_fused(where, self._takes_reduce, args, kwargs)
        arrays = {"x": x, "dy": dy, **chosen(options, (*STATISTICS, *WEIGHTS))}
        with Call(where, options.stream, **present(where, arrays)) as call:
            axis = self._axis_of(call, options)
            kept = one_a_channel(call.views["x"].shape, axis)
            made: list[Made] = [
                call.output(f"out[{i}]", out, "x", shape=kept, dtype=_DOUBLE, in_place=False)
                if options.wanted[i]
                else (None, None)
                for i, out in enumerate(options.out)
            ]
            apart(call, {f"out[{i}]": view for i, (view, _) in enumerate(made)})
            outs = {"dbias": made[0][0], "dweight": made[1][0]}
            run_backward(call, which, axis, parameters, outs, training=True, accumulate=False)
            return results(call, options.out, made)

    def backward_apply(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward_apply(dy, x, mean, rstd, weight, sum_dy, sum_dy_xhat, count, bias=None, *,
        channel_axis=1, activation="identity", out=None, accumulate=False, ...) -> dx

        The second half of `backward` in training.

        Parameters
        ----------
        dy, x, mean, rstd, weight, bias, channel_axis, activation, ...
            As for `backward`; weight: or None.
        sum_dy, sum_dy_xhat : array
            What `backward_reduce` returned, summed over all parts of the batch.
        count : float
            Values a channel, in all parts of the batch.
        out : array, optional
            Where to write dx, which may be dy or x.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, dy, one = np.array([[1.0], [3.0]]), np.array([[1.0], [0.0]]), np.ones((1, 1))
        >>> sums = fa.batch_norm.backward_reduce(dy, x, 2 * one, one)
        >>> fa.batch_norm.backward_apply(dy, x, 2 * one, one, None, *sums, 2)
        array([[0.],
               [0.]])
        """
        where = self._where("backward_apply")
        _, which, parameters, options = bind_fused(where, self._takes_apply, args, kwargs)
        count = validate.number(where, "count", options.count)
        if count <= 0:
            raise ValueError(f"{where}: count must be positive, got {validate.describe(count)}")
        arrays = {"x": x, "dy": dy, **chosen(options, (*STATISTICS, *WEIGHTS, *_SUMS))}
        with Call(where, options.stream, **present(where, arrays)) as call:
            axis = self._axis_of(call, options)
            dx, made = call.output("out", options.out[0], "x")
            apart(call, {"out": dx})
            run_backward(
                call,
                which,
                axis,
                parameters,
                {"dx": dx},
                training=True,
                accumulate=options.accumulate,
                count=count,
            )
            return call.result(options.out[0], made)


def _may_train(call: Call, axis: int) -> None:
    """There are moments to take, and the running ones may be moved."""
    where, x = call.where, call.views["x"]
    count = math.prod(n for i, n in enumerate(x.shape) if i != axis)
    if count < 2 and x.shape[axis]:
        raise ValueError(
            f"{where}: x must have more than one value a channel in training, got shape {x.shape}"
        )
    for name in RUNNING:
        if name in call.views:
            view = call.views[name]
            validate.writable(where, name, view)
            validate.apart(where, name, view, {n: v for n, v in call.views.items() if n != name})
            call.writes(view, call.arrays[name])


def _workspace(call: Call, axis: int) -> View | None:
    """Scratch with which many threads can share the moments."""
    x = call.views["x"]
    model = x.shaped(one_a_channel(x.shape, axis))
    return call.workspace(call.native.moments_workspace(x, model, axes.all_but(axis, x.ndim)))


def _momentum(where: str, options: Any) -> float:
    """The share of what is new: told, or that of one batch more in an average over all."""
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


batch_norm = register(BatchNorm(BATCH_NORM))
