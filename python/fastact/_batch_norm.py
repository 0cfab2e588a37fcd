"""batch_norm, and norm_apply: statistics per channel, with any activation fused behind.

The formulas, their gradients and the error bound are in `src/common/batch_norm.h`.
"""

import math
from typing import Any

from . import _axes, _checks, _cpu
from ._call import Call
from ._cpu import View
from ._docs import ARRAY, STREAM, paragraph
from ._fused import IDENTITY, bind_fused
from ._op import REQUIRED, QuickOp, Takes, register

_DOUBLE = _cpu.DTYPE_NAMES.index("float64")
_WEIGHTS: dict[str, Any] = {"weight": None, "bias": None}
_CHANNEL: dict[str, Any] = {"channel_axis": 1, "activation": IDENTITY}


class _Channels(QuickOp):
    """A norm whose statistics and parameters have one value a channel.

    axis_name : of the option that says which axis the channels are.
    """

    on_devices = False
    axis_name: str

    def _channel_axis(self, call: Call, options: Any) -> int:
        _checks.on_cpu(call.where, call.place.device)
        axis = getattr(options, self.axis_name)
        return _axes.one(call.where, axis, call.views["x"].ndim)

    def _gradients(
        self,
        where: str,
        options: Any,
        fused: tuple[Any, int, tuple[float, ...]],
        arrays: dict[str, Any],
        *,
        training: bool,
        is_given: bool,
    ) -> tuple[Any, ...]:
        """dx, dweight and dbias; is_given: `out` was, and None in it means not to compute one."""
        _, which, parameters = fused
        if options.accumulate and not is_given:
            _checks.needs_out(where, True, *options.out)
        with Call(where, options.stream, **_present(where, arrays)) as call:
            views = call.views
            axis = self._channel_axis(call, options)
            _fit(call, axis)
            made: list[tuple[View | None, Any]] = []
            for i, name in enumerate(("x", "weight", "bias")):
                out = options.out[i]
                if name not in views and out is not None:
                    raise ValueError(f"{where}: out[{i}] must be None, for there is no {name}")
                if name in views and not (is_given and out is None):
                    made.append(call.output(f"out[{i}]", out, name, in_place=i == 0))
                else:
                    made.append((None, None))
            dx, dweight, dbias = (view for view, _ in made)
            inputs = [name for name in views if name not in ("x", "dy")]
            _apart(call, {f"out[{i}]": view for i, (view, _) in enumerate(made)}, inputs)
            call.run(
                "batch_norm_backward",
                which,
                views["dy"],
                views["x"],
                views["mean"],
                views["rstd"],
                views.get("weight"),
                views.get("bias"),
                None,
                None,
                1.0,
                dx,
                dweight,
                dbias,
                axis,
                parameters,
                training,
                options.accumulate,
                _scratch(call, axis),
            )
            return tuple(
                None if view is None else call.result(out, new)
                for out, (view, new) in zip(options.out, made, strict=True)
            )


def _present(where: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None; x leads, and dy alone may be a number."""
    for name, value in arrays.items():
        is_number = isinstance(value, bool | int | float)
        if (value is None and name in ("x", "mean", "rstd")) or (is_number and name != "dy"):
            raise TypeError(f"{where}: {name} must be an array, got {value!r}")
    return {"x": arrays["x"]} | {n: value for n, value in arrays.items() if value is not None}


def _statistics(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Of one value a channel, and as many axes as x."""
    return tuple(n if i == axis else 1 for i, n in enumerate(shape))


def _fit(call: Call, axis: int) -> None:
    """Every array of a call fits x: dy as it is, all others by one value a channel."""
    where, x = call.where, call.views["x"]
    for name, view in call.views.items():
        if name == "dy":
            _checks.same_as(where, name, view, "x", x)
        elif name != "x":
            _checks.parameter_dtype(where, name, view, "x", x)
            is_parameter = name in ("weight", "bias", "running_mean", "running_var")
            kept = _statistics(x.shape, axis)
            if view.shape != (x.shape[axis],) and (is_parameter or view.shape != kept):
                _axes.has_shape(where, name, view, (x.shape[axis],) if is_parameter else kept)


def _apart(call: Call, outs: dict[str, View | None], inputs: list[str]) -> None:
    """No output shares memory with another one, or with these inputs."""
    others = {name: call.views[name] for name in inputs}
    for name, view in outs.items():
        if view is not None:
            _checks.apart(call.where, name, view, others)
            others[name] = view


def _scratch(call: Call, axis: int) -> View | None:
    return call.workspace(call.native.batch_norm_scratch(call.views["x"], axis))


class BatchNorm(_Channels):
    """Normalised by the moments of the batch, or by running ones; and the way back."""

    axis_name = "channel_axis"
    _takes = Takes(
        {
            "running_mean": REQUIRED,
            "running_var": REQUIRED,
            **_WEIGHTS,
            "training": False,
            "momentum": 0.1,
            "eps": 1e-5,
        },
        {**_CHANNEL, "num_batches": None},
    )
    _takes_back = Takes(
        {"mean": REQUIRED, "rstd": REQUIRED, **_WEIGHTS, "training": False},
        {**_CHANNEL, "accumulate": False},
        outputs=3,
    )
    _takes_reduce = Takes({"mean": REQUIRED, "rstd": REQUIRED, **_WEIGHTS}, _CHANNEL, outputs=2)
    _takes_apply = Takes(
        {
            "mean": REQUIRED,
            "rstd": REQUIRED,
            "weight": REQUIRED,
            "sum_dy": REQUIRED,
            "sum_dy_xhat": REQUIRED,
            "count": REQUIRED,
            "bias": None,
        },
        _CHANNEL,
        accumulates=True,
    )

    def __init__(self, doc: str) -> None:
        super().__init__(
            "batch_norm", "norms", ("x",), self._takes, {"call": doc}, more="parameters"
        )

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
        training, eps = options.training, _checks.epsilon(where, options.eps)
        momentum = _momentum(where, options)
        running = {name: getattr(options, name) for name in ("running_mean", "running_var")}
        for name, value in running.items():
            if value is None and not training:
                raise TypeError(f"{where}: {name} must be an array unless training=True, got None")
        arrays = {"x": x, **running, "weight": options.weight, "bias": options.bias}
        with Call(where, options.stream, **_present(where, arrays)) as call:
            views = call.views
            view = views["x"]
            axis = self._channel_axis(call, options)
            _fit(call, axis)
            count = math.prod(n for i, n in enumerate(view.shape) if i != axis)
            if training and count < 2 and view.shape[axis]:
                raise ValueError(
                    f"{where}: x must have more than one value a channel in training, got shape "
                    f"{view.shape}"
                )
            if training:
                for name in running:
                    if name in views:
                        self._may_update(call, name)
            y, made = call.output("out", options.out[0], "x", in_place=not saves)
            _apart(call, {"out": y}, [name for name in views if name != "x"])
            kept = _statistics(view.shape, axis)
            saved = [
                call.output(name, None, "x", shape=kept, dtype=_checks.computed_in(view))
                for name in ("mean", "rstd")
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
                _scratch(call, axis),
                self._workspace(call, axis) if training else None,
            )
            return call.result(options.out[0], made), (
                call.arrays["x"],
                *(call.result(None, new) for _, new in saved),
                call.arrays.get("weight"),
                call.arrays.get("bias"),
            )

    def _may_update(self, call: Call, name: str) -> None:
        view = call.views[name]
        _checks.writable(call.where, name, view)
        others = {n: v for n, v in call.views.items() if n != name}
        _checks.apart(call.where, name, view, others)
        call.written.append(view)

    def _workspace(self, call: Call, axis: int) -> View | None:
        x = call.views["x"]
        model = x.shaped(_statistics(x.shape, axis))
        return call.workspace(call.native.moments_workspace(x, model, _axes.all_but(axis, x.ndim)))

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
        where = self._where("backward")
        *fused, options = bind_fused(where, self._takes_back, args, kwargs)
        arrays = {"x": x, "dy": dy, "mean": options.mean, "rstd": options.rstd}
        arrays |= {"weight": options.weight, "bias": options.bias}
        return self._gradients(
            where,
            options,
            tuple(fused),
            arrays,
            training=options.training,
            is_given=kwargs.get("out") is not None,
        )

    def backward_reduce(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """backward_reduce(dy, x, mean, rstd, weight=None, bias=None, *, channel_axis=1,
        activation="identity", out=None, ...) -> (sum_dy, sum_dy_xhat)

        The first half of `backward` in training: what has to be summed over all parts of a batch
        that lies on several machines, before `backward_apply`.

        Parameters
        ----------
        dy, x, mean, rstd, weight, bias, channel_axis, activation, ...
            As for `backward`. weight and bias matter with an activation alone.
        out : tuple of two arrays or None, optional
            Where to write the sums.

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
        arrays = {"x": x, "dy": dy, "mean": options.mean, "rstd": options.rstd}
        arrays |= {"weight": options.weight, "bias": options.bias}
        with Call(where, options.stream, **_present(where, arrays)) as call:
            views = call.views
            axis = self._channel_axis(call, options)
            _fit(call, axis)
            kept = _statistics(views["x"].shape, axis)
            made = [
                call.output(f"out[{i}]", out, "x", shape=kept, dtype=_DOUBLE, in_place=False)
                for i, out in enumerate(options.out)
            ]
            _apart(call, {f"out[{i}]": view for i, (view, _) in enumerate(made)}, [])
            call.run(
                "batch_norm_backward",
                which,
                views["dy"],
                views["x"],
                views["mean"],
                views["rstd"],
                views.get("weight"),
                views.get("bias"),
                None,
                None,
                1.0,
                None,
                made[1][0],
                made[0][0],
                axis,
                parameters,
                True,
                False,
                _scratch(call, axis),
            )
            return call.result(options.out[0], made[0][1]), call.result(options.out[1], made[1][1])

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
        count = _checks.number(where, "count", options.count)
        if count <= 0:
            raise ValueError(f"{where}: count must be positive, got {options.count!r}")
        names = ("mean", "rstd", "weight", "bias", "sum_dy", "sum_dy_xhat")
        arrays = {"x": x, "dy": dy} | {name: getattr(options, name) for name in names}
        for name in names[4:]:
            if arrays[name] is None:
                raise TypeError(f"{where}: {name} must be an array, got None")
        with Call(where, options.stream, **_present(where, arrays)) as call:
            views = call.views
            axis = self._channel_axis(call, options)
            _fit(call, axis)
            dx, made = call.output("out", options.out[0], "x")
            _apart(call, {"out": dx}, [name for name in views if name not in ("x", "dy")])
            call.run(
                "batch_norm_backward",
                which,
                views["dy"],
                views["x"],
                views["mean"],
                views["rstd"],
                views.get("weight"),
                views.get("bias"),
                views["sum_dy"],
                views["sum_dy_xhat"],
                count,
                dx,
                None,
                None,
                axis,
                parameters,
                True,
                options.accumulate,
                _scratch(call, axis),
            )
            return call.result(options.out[0], made)


def _momentum(where: str, options: Any) -> float:
    """The share of what is new: told, or that of one batch more in an average over all."""
    if options.momentum is None:
        if options.num_batches is None:
            if not options.training:
                return 0.0
            raise TypeError(f"{where}: num_batches must be given with momentum=None")
        before = _axes.integer(where, "num_batches", options.num_batches)
        if before < 0:
            raise ValueError(f"{where}: num_batches must not be negative, got {before}")
        return 1 / (before + 1)
    momentum = _checks.number(where, "momentum", options.momentum)
    if not 0 <= momentum <= 1:
        raise ValueError(f"{where}: momentum must be from 0 to 1, or None, got {momentum!r}")
    return momentum


class NormApply(_Channels):
    """Normalised by given statistics, which count as constants on the way back."""

    axis_name = "axis"
    _takes = Takes(
        {"mean": REQUIRED, "rstd": REQUIRED, **_WEIGHTS},
        {"axis": REQUIRED, "activation": IDENTITY},
    )
    _takes_back = Takes(
        {"mean": REQUIRED, "rstd": REQUIRED, **_WEIGHTS},
        {"axis": REQUIRED, "activation": IDENTITY, "accumulate": False},
        outputs=3,
    )

    def __init__(self, doc: str) -> None:
        super().__init__(
            "norm_apply", "norms", ("x",), self._takes, {"call": doc}, more="parameters"
        )

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._map(self._where(), x, args, kwargs, saves=False)[0]

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """forward(x, mean, rstd, weight=None, bias=None, *, axis, ...) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        y : array
        saved : tuple
            ``(x, mean, rstd, weight, bias)``, not copied: do not change them before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> one = np.ones(1)
        >>> y, saved = fa.norm_apply.forward(np.array([[3.0]]), one, one, one, axis=1)
        >>> fa.norm_apply.backward(1.0, *saved, axis=1)
        (array([[1.]]), array([2.]), None)
        """
        return self._map(self._where("forward"), x, args, kwargs, saves=True)

    def _map(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        _, which, parameters, options = bind_fused(where, self._takes, args, kwargs)
        names = ("mean", "rstd", "weight", "bias")
        arrays = {"x": x} | {name: getattr(options, name) for name in names}
        with Call(where, options.stream, **_present(where, arrays)) as call:
            views = call.views
            axis = self._channel_axis(call, options)
            _fit(call, axis)
            y, made = call.output("out", options.out[0], "x", in_place=not saves)
            _apart(call, {"out": y}, [name for name in views if name != "x"])
            call.run(
                "norm_apply",
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
            )
            saved = tuple(call.arrays.get(name) for name in ("x", *names))
            return call.result(options.out[0], made), saved

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """backward(dy, x, mean, rstd, weight=None, bias=None, *, axis, activation="identity",
        out=None, accumulate=False, ...) -> (dx, dweight, dbias)

        The gradients with respect to x, weight and bias, for mean and rstd that do not depend on x:
        those of `batch_norm.backward` without training.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x, mean, rstd, weight, bias
            What `forward` saved.
        axis, activation, ...
            As told to `forward`.
        out : tuple of three arrays or None, optional
            Where to write each gradient; one that is None is not computed. dx may be dy or x.
        accumulate : bool
            Add the gradients to `out` instead of overwriting it.

        Returns
        -------
        dx, dweight, dbias : array
            As of `batch_norm.backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.norm_apply.backward(1.0, np.ones((1, 2)), np.zeros(2), np.full(2, 0.5), axis=1)[0]
        array([[0.5, 0.5]])
        """
        where = self._where("backward")
        *fused, options = bind_fused(where, self._takes_back, args, kwargs)
        names = ("mean", "rstd", "weight", "bias")
        arrays = {"x": x, "dy": dy} | {name: getattr(options, name) for name in names}
        return self._gradients(
            where,
            options,
            tuple(fused),
            arrays,
            training=False,
            is_given=kwargs.get("out") is not None,
        )


_PARAMETERS = """\
weight, bias : array, optional
    1-D, one value a channel; of x's dtype or a wider one. Either may come without the other.
"""
_REST = f"""\
activation : str or op
    The name of an activation of `fastact.ops`, or the op itself; "identity" for none.
out : array, optional
    Where to write y: shape, dtype, device and framework of x. It may be x itself.
{STREAM}
... : float
    The activation's own parameters, by keyword.

Returns
-------
y : array
    `out` where it was given, else a new array of x's framework, in x's layout.

Raises
------
TypeError
    For a dtype that is not supported, a parameter narrower than x, mixed frameworks, a tensor that
    requires grad, or an unknown keyword.
ValueError
    For an axis out of range, an array of another shape, an unknown activation; an `out` that does
    not fit, that overlaps x in part, or that shares memory with another argument{{errors}}.
NotImplementedError
    For arrays that are not on the CPU.

Notes
-----
Computed in float32 (float64 for float64), moments in double. With u = 2**-24 (2**-53), xhat the
normalised x and z the value before the activation, z has an error of at most 4 u abs(xhat weight)
+ u abs(z), and 2**-48 abs(mean weight) rstd (float64: u) for the rounding of the mean; then the
activation's own, and one rounding to x's dtype. The bits do not depend on the number of threads.

References
----------
S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
Internal Covariate Shift", ICML 2015, https://arxiv.org/abs/1502.03167

Examples
--------
>>> import numpy as np, fastact as fa
"""

batch_norm = register(
    BatchNorm(
        f"""\
batch_norm(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1,
eps=1e-5, *, channel_axis=1, activation="identity", num_batches=None, out=None, ...)

y = act((x - mean) / sqrt(variance + eps) weight + bias), mean and variance of each channel.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
running_mean, running_var : array
    1-D, one value a channel; of x's dtype or a wider one. Used as they are, or in training moved
    towards the mean and the unbiased variance of x: running = (1 - momentum) running + momentum
    new, once all has been checked and computed. In training each may be None.
{_PARAMETERS}training : bool
    Use the mean and the variance of x.
momentum : float or None
    From 0 to 1. None: running statistics are the average over all batches, of which
    `num_batches` came before.
eps : float
    Added to the variance; not negative.
channel_axis : int
    1 for NCHW, -1 for channels last.
num_batches : int, optional
    With momentum=None: how many batches the running statistics are the average of.
"""
        + _REST.format(
            errors="""; in training
    one value a channel, running statistics that are read-only or share memory; a momentum outside
    [0, 1], a negative eps"""
        )
        + """\
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
"""
    )
)

norm_apply = register(
    NormApply(
        f"""\
norm_apply(x, mean, rstd, weight=None, bias=None, *, axis, activation="identity", out=None, ...)

y = act((x - mean) rstd weight + bias), with statistics that come from elsewhere: of merged
`Moments`, for one.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
mean, rstd : array
    One value a channel, 1-D or with the other axes of x of length 1; of x's dtype or a wider one.
{_PARAMETERS}axis : int
    The axis of the channels.
"""
        + _REST.format(errors="")
        + """\
>>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
>>> m = fa.moments(x, 0)
>>> fa.norm_apply(x, m.mean, 1 / m.std(), axis=1)
array([[-1., -1.],
       [ 1.,  1.]])
"""
    )
)
