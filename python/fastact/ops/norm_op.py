"""What the norms share: their entry points, and how axes of x become normalization rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes
from .bounds import NormBounds
from .bounds_docs import norm_backward, noted
from .fused import IDENTITY, bind_fused
from .norm_arrays import WEIGHTS, apart, chosen, gradients, present, results
from .op_before import REQUIRED, QuickOp, Takes

Shape = tuple[int, ...]


class Units(NamedTuple):
    """Which elements share statistics, and which parameters.

    reduced, of_parameter : axes of x, after `split`.
    statistics, parameter : the shapes of mean and rstd, and of weight and bias.
    split : the channel axis, and into how many groups it is cut; None: no axis is.
    ndim : of x after that.
    """

    reduced: Shape
    of_parameter: Shape
    statistics: Shape
    parameter: Shape
    ndim: int
    split: tuple[int, int] | None = None

    def data(self, view: View | None) -> View | None:
        """x, or an array of its shape, with the axes of the kernels."""
        return view.split_axis(*self.split) if self.split and view is not None else view

    def of_units(self, view: View | None) -> View | None:
        """mean or rstd with those axes."""
        if view is None or view.ndim == self.ndim:
            return view
        return view.with_axes(self.reduced)

    def of_weight(self, view: View | None) -> View | None:
        """weight or bias, or their gradients, with those axes."""
        if view is None:
            return None
        if self.split:
            view = view.split_axis(0, self.split[1])
        others = [axis for axis in range(self.ndim) if axis not in self.of_parameter]
        return view.with_axes(tuple(others)) if others else view


def rows(where: str, x: View, axis: Any) -> Units:
    """Every axis but the named ones counts units, as of layer_norm."""
    if axis is None or (isinstance(axis, tuple | list) and not axis):
        raise TypeError(
            f"{where}: axis must be an integer or a tuple of integers, "
            f"got {validate.describe(axis)}"
        )
    reduced = axes.axes(where, axis, x.ndim)
    shape = x.shape
    statistics = axes.reduced(shape, reduced, keepdims=True)
    return Units(reduced, reduced, statistics, tuple(shape[a] for a in reduced), x.ndim)


def groups(where: str, x: View, num_groups: int, channel_axis: Any) -> Units:
    """A batch, which is axis 0 unless the channels are, and groups of channels."""
    channel = axes.one(where, channel_axis, x.ndim, "channel_axis")
    kept = (channel,) if channel == 0 else (0, channel)
    if x.ndim >= axes.MOST:  # the groups are an axis more
        raise ValueError(f"{where}: x must have at most {axes.MOST - 1} axes, got {x.ndim}")
    count = x.shape[channel]
    if num_groups < 1 or count % num_groups:
        raise ValueError(
            f"{where}: num_groups must divide the {count} channels along axis {channel_axis}, got "
            f"{validate.describe(num_groups)}"
        )
    statistics = (num_groups,) if channel == 0 else (x.shape[0], num_groups)
    reduced = tuple(axis for axis in range(x.ndim + 1) if axis not in kept)
    return Units(
        reduced, (channel, channel + 1), statistics, (count,), x.ndim + 1, (channel, num_groups)
    )


def instances(where: str, x: View, channel_axis: Any) -> Units:
    """A batch, which is axis 0 unless the channels are, and each channel by itself."""
    channel = axes.one(where, channel_axis, x.ndim, "channel_axis")
    reduced = tuple(axis for axis in range(x.ndim) if axis not in (0, channel))
    statistics = axes.reduced(x.shape, reduced, keepdims=True)
    return Units(reduced, (channel,), statistics, (x.shape[channel],), x.ndim)


class NormOp(QuickOp):
    """f((x - mean) rstd weight + bias) over units of x, and backward.

    units : from x and the op's own options to `Units`.
    options : those, by keyword and with their defaults; `required` come by position.
    inputs : ("x",), or ("x", "residual").
    is_centred : whether a mean is subtracted; without, there is no bias either.
    """

    bounds = NormBounds(scaled=6, rough=4)

    def __init__(
        self,
        name: str,
        doc: str,
        units: Callable[..., Units],
        options: Mapping[str, Any],
        *,
        eps: float,
        required: tuple[str, ...] = (),
        inputs: tuple[str, ...] = ("x",),
        is_centred: bool = True,
    ) -> None:
        self._units = units
        self._own = (*required, *options)
        self._inputs = inputs
        self._is_centred = is_centred
        self._weights = WEIGHTS if is_centred else WEIGHTS[:1]
        self._statistics = ("mean", "rstd") if is_centred else ("rstd",)
        weights = dict.fromkeys(self._weights)
        told = {**options, "eps": eps, "activation": IDENTITY}
        more = {"dtotal": None} if len(inputs) > 1 else {}
        self._takes = Takes({**dict.fromkeys(required, REQUIRED), **weights}, told)
        self._takes = replace(self._takes, outputs=len(inputs))
        self._forward = replace(self._takes, extra=len(self._statistics))
        self._backward = Takes(
            {**dict.fromkeys(self._statistics, REQUIRED), **weights},
            {**told, **more},
            accumulates=True,
            outputs=1 + len(weights),
            skips=True,
        )
        docs = {"call": doc, "backward": noted(NormOp.backward, norm_backward(self.bounds))}
        super().__init__(name, "norms", inputs, self._takes, docs, more="parameters")

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map(self._where(), self._takes, args, kwargs, saves=False)[0]

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """forward(x, ...) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Parameters
        ----------
        x, ...
            As for the call.
        out : array or tuple, optional
            As for the call, or a tuple that goes on with arrays for the statistics that are saved;
            one that is None is allocated. They may not share memory with what is saved.

        Returns
        -------
        y : array
            What calling the op returns.
        saved : tuple
            ``(x, mean, rstd, weight, bias)``, of `rms_norm` and `add_rms_norm` ``(x, rstd,
            weight)``; where a residual was added, x is the sum. The statistics have the dtype in
            which x is computed. Arrays are not copied: do not change them before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, weight = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]]), np.ones(3)
        >>> y, saved = fa.layer_norm.forward(x, weight, activation="mish")
        >>> dx, dweight, dbias = fa.layer_norm.backward(np.ones((2, 3)), *saved, activation="mish")
        >>> dweight
        array([-0.1176..., -0.1279...,  2.8592...])
        """
        return self._map(self._where("forward"), self._forward, (x, *args), kwargs, saves=True)

    def _map(
        self,
        where: str,
        takes: Takes,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        saves: bool,
    ) -> tuple[Any, tuple[Any, ...]]:
        count = len(self._inputs)
        if len(args) < count:
            raise TypeError(f"{where}: {self._inputs[len(args)]} must be given, by position")
        inputs = dict(zip(self._inputs, args, strict=False))
        _, which, parameters, options = bind_fused(where, takes, args[count:], kwargs)
        eps, outs = validate.epsilon(where, options.eps), options.out
        arrays = {**inputs, **chosen(options, self._weights)}
        with Call(where, options.stream, **present(where, arrays)) as call:
            x = call.views["x"]
            units = self._units_of(where, x, options)
            if count > 1:
                validate.same_as(where, "residual", call.views["residual"], "x", x)
            self._check_weights(where, call, units)
            # What is saved may not be written: x, or with a residual the sum, which is an output.
            in_place = not saves or count > 1
            of_units: dict[str, Any] = {"shape": units.statistics, "dtype": validate.computed_in(x)}
            names = ["out"] if len(outs) == 1 else [f"out[{i}]" for i in range(len(outs))]
            made = [
                call.output(name, out, "x", in_place=in_place)
                if i < count
                else call.output(name, out, "x", in_place=False, **of_units)
                for i, (name, out) in enumerate(zip(names, outs, strict=True))
            ]
            views = [view for view, _ in made]
            apart(call, dict(zip(names, views, strict=True)))
            statistics = [units.of_units(view) for view in views[count:]]
            mean, rstd = (None, None, *statistics)[-2:]
            size = call.native.norm_forward_workspace(
                units.data(x), units.reduced, units.of_parameter
            )
            call.run(
                "norm_forward",
                which,
                units.data(x),
                units.data(call.views["residual"]) if count > 1 else None,
                units.data(views[1]) if count > 1 else None,
                units.data(views[0]),
                mean,
                rstd,
                *self._native_weights(call, units),
                units.reduced,
                units.of_parameter,
                eps,
                self._is_centred,
                parameters,
                call.workspace(size),
            )
            found = results(call, outs, made)
            saved = (
                call.arrays["x"] if count == 1 else found[1],
                *found[count:],
                *map(call.arrays.get, self._weights),
            )
            return (found[0] if count == 1 else found[:count]), saved

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """backward(dy, *saved, activation="identity", out=None, accumulate=False, ...)
        -> (dx, dweight, dbias)

        The gradients with respect to x, weight and bias, in two passes over a unit of which the
        second one is in the cache.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        *saved
            What `forward` saved.
        axis, channel_axis, eps, activation, ...
            As told to `forward`.
        dtotal : array, or Python scalar, optional
            Of ops that add a residual: the gradient with respect to the sum that they returned, by
            way of which dx, which is the residual's gradient too, has one more term.
        out : tuple of arrays or None, optional
            Where to write each gradient; one that is None is not computed. dx may be dy or x.
        accumulate : bool
            Add the gradients to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            Of x's shape and dtype; None where `out` has None for it.
        dweight, dbias : array
            Of the shape and dtype of weight and bias, each None where there is none, and for
            `rms_norm` and `add_rms_norm` no dbias at all.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.rms_norm.forward(np.array([[3.0, 4.0]]), np.ones(2), eps=0)
        >>> fa.rms_norm.backward(np.array([[1.0, 0.0]]), *saved)
        (array([[ 0.181..., -0.135...]]), array([0.848..., 0.        ]))
        """
        where = self._where("backward")
        _, which, parameters, options = bind_fused(where, self._backward, args, kwargs)
        validate.epsilon(where, options.eps)
        arrays = {"x": x, "dy": dy, **chosen(options, (*self._statistics, *self._weights))}
        if len(self._inputs) > 1:
            arrays["dtotal"] = options.dtotal
        with Call(where, options.stream, **present(where, arrays)) as call:
            views = call.views
            data = views["x"]
            units = self._units_of(where, data, options, views["rstd"])
            for name in ("dy", "dtotal"):
                if name in views:
                    validate.same_as(where, name, views[name], "x", data)
            for name in self._statistics:
                validate.computed_dtype(where, name, views[name], "x", data)
                axes.has_shape(where, name, views[name], units.statistics)
            self._check_weights(where, call, units)
            made = gradients(call, options, self._weights)
            dx, *of_weights = [view for view, _ in made]
            dweight, dbias = (*map(units.of_weight, of_weights), None)[:2]
            native = self._native_weights(call, units)
            mean, rstd = (None, *(units.of_units(views[n]) for n in self._statistics))[-2:]
            size = call.native.norm_workspace(
                units.data(data), *native, dweight, dbias, units.reduced, units.of_parameter
            )
            call.run(
                "norm_backward",
                which,
                units.data(views["dy"]),
                units.data(data),
                units.data(views.get("dtotal")),
                units.data(dx),
                mean,
                rstd,
                *native,
                dweight,
                dbias,
                units.reduced,
                units.of_parameter,
                parameters,
                options.accumulate,
                call.workspace(size),
            )
            return results(call, options.out, made)

    def _units_of(
        self, where: str, x: View, options: SimpleNamespace, rstd: View | None = None
    ) -> Units:
        """rstd: in backward, where it tells the number of groups."""
        own = {name: getattr(options, name, None) for name in self._own}
        if "num_groups" in own:
            if rstd is None:
                own["num_groups"] = axes.integer(where, "num_groups", own["num_groups"])
            elif rstd.ndim:
                own["num_groups"] = rstd.shape[-1]
            else:
                raise ValueError(f"{where}: rstd must have the shape (N, G), got ()")
        return self._units(where, x, **own)

    def _check_weights(self, where: str, call: Call, units: Units) -> None:
        for name in self._weights:
            if name in call.views:
                view = call.views[name]
                validate.parameter_dtype(where, name, view, "x", call.views["x"])
                axes.has_shape(where, name, view, units.parameter)

    def _native_weights(self, call: Call, units: Units) -> tuple[View | None, View | None]:
        return units.of_weight(call.views.get("weight")), units.of_weight(call.views.get("bias"))
