"""The op objects of the softmax family: functions of rows of x, and the loss behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes
from .bounds import CrossEntropyBounds, SoftmaxBounds
from .norm_arrays import Made, apart, results
from .op import COMPUTED, DOUBLE, CachedOp, EntryPoint, Model, P, R, register, signature_of
from .types import A, Array, ArrayOrNumber, Out, Stream

#: What backward gets of it; a number of NumPy's for one row (lse) or always (divisor).
_OF_FORWARD = ("lse", "divisor")

#: Axes of a row: one of x's, or several.
RowAxes = int | tuple[int, ...]


def _with_mask(call: Call, x: View) -> View | None:
    """The mask over x's shape, which it broadcasts to as NumPy has it; None where there is none."""
    mask = call.views.get("mask")
    if mask is None:
        return None
    axes.check_repeats(call.where, "mask", mask.shape, x.shape)
    return axes.repeated(mask, x.shape)


def _given(options: SimpleNamespace, *names: str) -> dict[str, Any]:
    """The arrays of these names; a mask or a weight is left out if None."""
    found = {name: getattr(options, name, None) for name in names}
    optional = ("mask", "weight", "divisor")
    return {name: a for name, a in found.items() if a is not None or name not in optional}


def _like(call: Call, name: str, value: Any, model: View) -> View:
    """A gradient over a shape: of a number, which came as an array of the first one's shape."""
    view = call.views[name]
    if name in call.arrays:
        return view
    # Of an array of no elements it has no memory.
    return view.repeats(model) if view.size else call.repeated(value, model)


class RowFunction(CachedOp[P, R]):
    """What softmax, log_softmax and logsumexp share: z = scale x + mask, over rows of x."""

    reduces = False
    backward: Callable[..., Any]

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "softmax")
        self._which = _cpu.SOFTMAX_KINDS.index(self.name)
        self.bounds = SoftmaxBounds(self.name)
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call, extra=int(self.reduces)),
            backward=EntryPoint(
                self._where("backward"),
                signature_of(call, ("dy", *self.saves), but=("mask",)),
            ),
        )

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        return {"x": x}

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map("call", args, kwargs)[0]

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and the tuple that `backward` needs.

        ``y, saved = op(x, ...), (y,)``; of `logsumexp`, ``(x, mask, lse)``.

        Parameters
        ----------
        *args, **kwargs
            As for the call. Of `logsumexp`, `out` may be a tuple that goes on with an array for the
            lse that is saved, in the dtype in which x is computed; one that is None is allocated.

        Returns
        -------
        y : array
            What calling the op returns.
        saved : tuple
            ``(y,)``; of `logsumexp` x, the mask or None, and y before it was rounded to x's dtype.
            Arrays are not copied: do not change them before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.softmax.forward(np.array([0.0, 0.0]))
        >>> fa.softmax.backward(np.array([1.0, 0.0]), *saved)
        array([ 0.25, -0.25])
        """
        return self._map("forward", args, kwargs)

    def _map(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The result, and what is saved."""
        entry = self.entry_points[name]
        options, where = entry.bind(args, kwargs), entry.where
        scale = validate.number(where, "scale", options.scale)
        given = _given(options, "x", "mask")
        with Call(where, options.stream, self.roles, **given) as call:
            x = call.views["x"]
            over = axes.axes(where, options.axis, x.ndim)
            made: list[Made] = [*self._outputs(call, x, over, options, saves=name == "forward")]
            y, *rest = (self._of_rows(view, over, options) for view, _ in made if view is not None)
            lse = rest[0] if rest else None
            call.run(
                "softmax_forward",
                x=x,
                axes=over,
                mask=_with_mask(call, x),
                y=None if self.reduces else y,
                number=y if self.reduces else None,
                lse=lse,
                kind=self._which,
                scale=scale,
            )
            found = results(call, options.out[: len(made)], made)
            return found[0], self._saved(call, options, found)

    def _outputs(
        self, call: Call, x: View, over: tuple[int, ...], options: SimpleNamespace, *, saves: bool
    ) -> list[tuple[View, Any]]:
        (out,) = options.out
        made = call.output("out", out, "x")
        apart_from_mask(call, {"out": made[0]})
        return [made]

    def _of_rows(self, view: View, over: tuple[int, ...], options: SimpleNamespace) -> View:
        """An output with the axes of x."""
        return view

    def _saved(
        self, call: Call, options: SimpleNamespace, found: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return found


def apart_from_mask(call: Call, outs: dict[str, View]) -> None:
    """No output is the mask: rows may read it again."""
    others = {"mask": call.views["mask"]} if "mask" in call.arrays else {}
    for name, view in outs.items():
        validate.apart(call.where, name, view, others)
        others[name] = view


class Softmax(RowFunction[P, R]):
    """A function of rows whose value has the shape of x: `softmax` and `log_softmax`."""

    saves = ("y",)

    def backward(
        self,
        dy: ArrayOrNumber,
        y: A,
        /,
        axis: RowAxes = -1,
        *,
        scale: float = 1.0,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to x, from the result alone.

        Of softmax ``dx = scale * y * (dy - sum(dy * y))``, of log_softmax ``dx = scale * (dy -
        exp(y) * sum(dy))``, with sums over the row. Where y is 0, of log_softmax -inf, nothing
        takes part and dx is 0; of softmax at any dy. The mask has no gradient.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of y.
        y : array
            What `forward` saved.
        axis, scale : optional
            As given to `forward`.
        out : array, optional
            Where to write dx; it may be dy or y.
        accumulate : bool, default False
            Add the gradient to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        array
            The gradient dx, of y's shape, dtype and framework.

        Notes
        -----
        Sums are in double. The gradient is computed from y as it was saved: with u = 2**-24
        (float64: 2**-53) an error is at most 4 u abs(scale y) (abs(dy) + sum abs(dy y)), of
        log_softmax 4 u abs(scale) (abs(dy) + exp(y) sum abs(dy)), for float64 n / 32 u more for
        sums of n terms, and the rounding to the dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.log_softmax.forward(np.array([0.0, 0.0]))
        >>> fa.log_softmax.backward(np.array([1.0, 0.0]), *saved)
        array([ 0.5, -0.5])
        """

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        taken, where = entry.bind(args, kwargs), entry.where
        scale = validate.number(where, "scale", taken.scale)
        with Call(where, taken.stream, y=taken.y, dy=taken.dy) as call:
            views, result = call.views, call.views["y"]
            over = axes.axes(where, taken.axis, result.ndim)
            validate.same_as(where, "dy", views["dy"], "y", result)
            dx, made = call.output("out", taken.out[0], "y")
            call.run(
                "softmax_backward",
                y=result,
                axes=over,
                dy=views["dy"],
                dx=dx,
                kind=self._which,
                scale=scale,
                accumulate=taken.accumulate,
            )
            return call.result(taken.out[0], made)


class LogSumExp(RowFunction[P, R]):
    """A function of rows that gives one number a row: `logsumexp`."""

    reduces = True
    saves = ("x", "mask", "lse")

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        x, options = named["x"], self._options(named)
        over = axes.axes(self._where(), options.axis, x.ndim)
        shape = axes.reduced(x.shape, over, options.keepdims)
        return [Model(shape)], {"lse": Model(shape, COMPUTED)}

    def _outputs(
        self, call: Call, x: View, over: tuple[int, ...], options: SimpleNamespace, *, saves: bool
    ) -> list[tuple[View, Any]]:
        shape = axes.reduced(x.shape, over, options.keepdims)
        names = [f"out[{i}]" for i in range(len(options.out))] if saves else ["out"]
        made = [call.output(names[0], options.out[0], "x", shape=shape, in_place=False)]
        if saves:
            wide = validate.computed_in(x)
            made.append(
                call.output(names[1], options.out[1], "x", shape=shape, dtype=wide, in_place=False)
            )
        apart_from_mask(call, dict(zip(names, (view for view, _ in made), strict=True)))
        return made

    def _of_rows(self, view: View, over: tuple[int, ...], options: SimpleNamespace) -> View:
        return view if options.keepdims else view.with_axes(over)

    def _saved(
        self, call: Call, options: SimpleNamespace, found: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return (call.arrays["x"], call.arrays.get("mask", options.mask), found[-1])

    def backward(
        self,
        dy: ArrayOrNumber,
        x: A,
        mask: ArrayOrNumber | None,
        lse: Array,
        /,
        axis: RowAxes = -1,
        *,
        scale: float = 1.0,
        keepdims: bool = False,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to x.

        ``dx = scale * dy * exp(scale * x + mask - lse)``: the derivative of logsumexp is softmax.
        Of a row in which nothing takes part it is 0. The mask has no gradient.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; of y's shape and x's dtype.
        x, mask, lse : array
            What `forward` saved.
        axis, scale, keepdims : optional
            As given to `forward`.
        out : array, optional
            Where to write dx; it may be x.
        accumulate : bool, default False
            Add the gradient to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        array
            The gradient dx, of x's shape, dtype and framework.

        Notes
        -----
        The gradient is that for the lse as it was saved. With u = 2**-24 (float64: 2**-53) an error
        is at most (8 + abs(scale x) + abs(mask)) u abs(dx), without a scale and a mask 8 u abs(dx),
        and the rounding to the dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.logsumexp.forward(np.array([0.0, 0.0]))
        >>> fa.logsumexp.backward(1.0, *saved)
        array([0.5, 0.5])
        """

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        taken, where = entry.bind(args, kwargs), entry.where
        scale = validate.number(where, "scale", taken.scale)
        given = _given(taken, "x", "mask", "dy", "lse")
        with Call(where, taken.stream, self.roles, of_forward=("lse",), **given) as call:
            views, data = call.views, call.views["x"]
            over = axes.axes(where, taken.axis, data.ndim)
            model = data.shaped(axes.reduced(data.shape, over, taken.keepdims))
            of_y = _like(call, "dy", taken.dy, model)
            validate.same_as(where, "dy", of_y, "y", model)
            validate.computed_dtype(where, "lse", views["lse"], "x", data)
            axes.has_shape(where, "lse", views["lse"], model.shape)
            dx, made = call.output("out", taken.out[0], "x")
            others = {n: v for n, v in views.items() if n in call.arrays and n != "x"}
            validate.apart(where, "out", dx, others)
            call.run(
                "logsumexp_backward",
                x=data,
                axes=over,
                mask=_with_mask(call, data),
                dy=self._of_rows(of_y, over, taken),
                lse=self._of_rows(views["lse"], over, taken),
                dx=dx,
                scale=scale,
                accumulate=taken.accumulate,
            )
            return call.result(taken.out[0], made)


class _LossPlan:
    """The options of a call of a loss, understood."""

    def __init__(self, where: str, options: SimpleNamespace, ndim: int) -> None:
        default = 1 if ndim > 1 else 0
        given = default if options.axis is None else options.axis
        self.axis = axes.one(where, given, ndim, of="logits")
        self.ignore_index = axes.integer(where, "ignore_index", options.ignore_index)
        if not -(2**63) <= self.ignore_index < 2**63:
            came = validate.describe(self.ignore_index)
            raise ValueError(f"{where}: ignore_index must be of 64 bits, got {came}")
        self.smoothing = validate.number(where, "label_smoothing", options.label_smoothing)
        if not 0 <= self.smoothing <= 1:
            raise ValueError(
                f"{where}: label_smoothing must be from 0 to 1, got {self.smoothing!r}"
            )
        allowed = {name: name for name in _cpu.REDUCTIONS}
        chosen = validate.choice(where, "reduction", options.reduction, allowed)
        self.reduction = _cpu.REDUCTIONS.index(chosen)
        self.is_one = chosen != "none"


class CrossEntropy(CachedOp[P, R]):
    """The cross entropy of logits and a target, whose probabilities are never stored."""

    bounds = CrossEntropyBounds()
    results = ("loss",)
    saves = ("logits", "target", "weight", "lse", "divisor")
    gradients = ("dlogits",)
    roles = MappingProxyType({"weight": validate.WEIGHTS})

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "softmax")
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call, extra=1),
            backward=EntryPoint(
                self._where("backward"), signature_of(call, ("dloss", *self.saves))
            ),
        )

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        return {"logits": x, "target": np.arange(x.shape[0]) % x.shape[1]}

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        logits = named["logits"]
        plan = _LossPlan(self._where(), self._options(named), logits.ndim)
        shape = axes.reduced(logits.shape, (plan.axis,), keepdims=False)
        lse = Model(shape, COMPUTED)
        if not plan.is_one:
            return [Model(shape)], {"lse": lse}
        return [Model(())], {"lse": lse, "divisor": Model((), DOUBLE)}

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._loss("call", args, kwargs)[0]

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and the tuple that `backward` needs.

        ``loss, saved = op(...), (logits, target, weight, lse, divisor)``.

        Parameters
        ----------
        *args, **kwargs
            As for the call. `out` may be a tuple that goes on with an array for the lse that is
            saved, of the losses' shape, in the dtype in which logits are computed; one that is None
            is allocated.

        Returns
        -------
        loss : array
            What calling the op returns.
        saved : tuple
            The arrays of the call; logsumexp of the logits; and what the sum of the losses was
            divided by, None without a reduction.
            Arrays are not copied: do not change them before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> loss, saved = fa.cross_entropy.forward(np.zeros((1, 2)), np.array([0]))
        >>> fa.cross_entropy.backward(1.0, *saved)
        array([[-0.5,  0.5]])
        """
        return self._loss("forward", args, kwargs)

    def _loss(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The loss, and what is saved."""
        entry, saves = self.entry_points[name], name == "forward"
        options, where = entry.bind(args, kwargs), entry.where
        given = _given(options, "logits", "target", "weight")
        with Call(where, options.stream, self.roles, **given) as call:
            logits = call.views["logits"]
            plan = _LossPlan(where, options, logits.ndim)
            target, weight = self._arrays(call, plan)
            shape = axes.reduced(logits.shape, (plan.axis,), keepdims=False)
            names = ["out[0]", "out[1]"] if saves else ["out"]
            made = [
                call.output(
                    names[0],
                    options.out[0],
                    "logits",
                    shape=() if plan.is_one else shape,
                    in_place=False,
                )
            ]
            if saves:
                wide = validate.computed_in(logits)
                made.append(
                    call.output(
                        names[1], options.out[1], "logits", shape=shape, dtype=wide, in_place=False
                    )
                )
            apart(call, dict(zip(names, (view for view, _ in made), strict=True)))
            divisor, of_divisor = self._divisor(call, plan, saves)
            lse = made[1][0].with_axes((plan.axis,)) if saves else None
            call.run(
                "cross_entropy_forward",
                logits=logits,
                axes=(plan.axis,),
                **target,
                weight=weight,
                lse=lse,
                losses=None if plan.is_one else made[0][0].with_axes((plan.axis,)),
                loss=made[0][0] if plan.is_one else None,
                divisor=divisor,
                ignore_index=plan.ignore_index,
                label_smoothing=plan.smoothing,
                reduction=plan.reduction,
            )
            found = results(call, options.out[: len(made)], made)
            if not saves:
                return found[0], ()
            kept = None if divisor is None else call.result(None, of_divisor)
            arrays = call.arrays
            return found[0], (
                arrays["logits"],
                arrays["target"],
                arrays.get("weight", options.weight),
                found[1],
                kept,
            )

    def _divisor(self, call: Call, plan: _LossPlan, saves: bool) -> tuple[View | None, Any]:
        if not plan.is_one:
            return None, None
        if saves:
            return call.output("divisor", None, "logits", shape=(), dtype=validate.DOUBLE)
        return call.temporary("logits", (), validate.DOUBLE), None

    def _arrays(self, call: Call, plan: _LossPlan) -> tuple[dict[str, View], View | None]:
        """Target and weight, with the axes of the kernels."""
        views, where = call.views, call.where
        logits, target, weight = views["logits"], views["target"], views.get("weight")
        classes = logits.shape[plan.axis]
        if classes == 0:
            raise ValueError(f"{where}: logits must have a class along axis {plan.axis}, got none")
        if target.dtype_name in validate.INDICES.also:
            kept = axes.reduced(logits.shape, (plan.axis,), keepdims=False)
            axes.has_shape(where, "target", target, kept)
            found = {"target": target.with_axes((plan.axis,))}
        else:
            validate.same_as(where, "target", target, "logits", logits)
            found = {"probabilities": target}
        if weight is not None:
            if not axes.broadcasts(weight.shape, (classes,)):
                raise ValueError(
                    f"{where}: weight must have shape ({classes},), or broadcast to it, got "
                    f"{weight.shape}"
                )
            others = tuple(i for i in range(logits.ndim) if i != plan.axis)
            weight = axes.repeated(weight, (classes,)).with_axes(others)
        return found, weight

    def backward(
        self,
        dloss: ArrayOrNumber,
        logits: A,
        target: Array,
        weight: Array | None,
        lse: Array,
        divisor: Array | None,
        /,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        axis: int | None = None,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to the logits, in one pass over them.

        ``dlogits = dloss / divisor * (p * sum(t * weight) - t * weight)``, with ``p = exp(logits -
        lse)`` and the smoothed target t; 0 where the target is ignored. Target and weight have no
        gradients.

        Parameters
        ----------
        dloss : array, or Python scalar
            The gradient with respect to the loss; of its shape and logits' dtype.
        logits, target, weight, lse, divisor : array
            What `forward` saved.
        ignore_index, label_smoothing, reduction, axis : optional
            As given to `forward`.
        out : array, optional
            Where to write dlogits; it may be logits itself.
        accumulate : bool, default False
            Add the gradient to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.

        Returns
        -------
        array
            The gradient dlogits, of logits' shape, dtype and framework.

        Raises
        ------
        ValueError
            For a class that logits have not.

        Notes
        -----
        The gradient is that for the lse as it was saved. With u = 2**-24 (float64: 2**-53), g =
        dloss / divisor and t the smoothed target, an error is at most 8 u abs(g) (p sum(t weight) +
        t weight), for float64 n / 32 u more for n classes, and the rounding to the dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> logits = np.zeros((2, 2))
        >>> losses, saved = fa.cross_entropy.forward(logits, np.array([0, 1]), reduction="none")
        >>> fa.cross_entropy.backward(np.array([1.0, 2.0]), *saved, reduction="none")
        array([[-0.5,  0.5],
               [ 1. , -1. ]])
        """

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        taken, where = entry.bind(args, kwargs), entry.where
        given = _given(taken, "logits", "target", "weight", "dloss", *_OF_FORWARD)
        with Call(where, taken.stream, self.roles, of_forward=_OF_FORWARD, **given) as call:
            views, data = call.views, call.views["logits"]
            plan = _LossPlan(where, taken, data.ndim)
            of_target, of_weight = self._arrays(call, plan)
            kept = axes.reduced(data.shape, (plan.axis,), keepdims=False)
            model = data.shaped(() if plan.is_one else kept)
            dy = _like(call, "dloss", taken.dloss, model)
            validate.same_as(where, "dloss", dy, "the loss", model)
            validate.computed_dtype(where, "lse", views["lse"], "logits", data)
            axes.has_shape(where, "lse", views["lse"], kept)
            if (views.get("divisor") is None) == plan.is_one:
                raise ValueError(
                    f"{where}: divisor must be an array, but None for reduction='none'"
                )
            if plan.is_one:
                axes.has_shape(where, "divisor", views["divisor"], ())
                validate.same_dtype(
                    where, "divisor", views["divisor"], "forward's", data.of_dtype(validate.DOUBLE)
                )
            dlogits, made = call.output("out", taken.out[0], "logits")
            others = {n: v for n, v in views.items() if n in call.arrays and n != "logits"}
            validate.apart(where, "out", dlogits, others)
            call.run(
                "cross_entropy_backward",
                logits=data,
                axes=(plan.axis,),
                dloss=dy.with_axes(tuple(range(data.ndim)) if plan.is_one else (plan.axis,)),
                **of_target,
                weight=of_weight,
                lse=views["lse"].with_axes((plan.axis,)),
                divisor=views.get("divisor"),
                dlogits=dlogits,
                ignore_index=plan.ignore_index,
                label_smoothing=plan.smoothing,
                accumulate=taken.accumulate,
            )
            return call.result(taken.out[0], made)


def softmax_op(function: Callable[P, R]) -> Softmax[P, R]:
    """Make the op of rows that a function declares; the formulas are in src/common/softmax."""
    return register(Softmax(function))


def logsumexp_op(function: Callable[P, R]) -> LogSumExp[P, R]:
    """Make the op that gives one number a row."""
    return register(LogSumExp(function))


def loss_op(function: Callable[P, R]) -> CrossEntropy[P, R]:
    """Make the loss that a function declares."""
    return register(CrossEntropy(function))
