"""The op objects of the softmax family: functions of rows of x, and the loss behind them."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from ..bounds import CrossEntropyBounds, SoftmaxBounds
from ..types import A, Array, ArrayOrNumber, Out, Stream
from . import axes
from .op import COMPUTED, DOUBLE, CachedOp, Makes, P, R, register, signature_of
from .step import step

#: Axes of a row: one of x's, or several.
RowAxes = int | tuple[int, ...]


def _with_mask(call: Call, x: View) -> View | None:
    """The mask over x's shape, which it broadcasts to as NumPy has it; None where there is none."""
    mask = call.views.get("mask")
    if mask is None:
        return None
    axes.check_repeats(call.where, "mask", mask.shape, x.shape)
    return axes.repeated(mask, x.shape)


class RowShapes(NamedTuple):
    """The axes of a row, and the shape of what has one number a row."""

    over: tuple[int, ...]
    rows: tuple[int, ...]


class RowFunction(CachedOp[P, R]):
    """What softmax, log_softmax and logsumexp share: z = scale x + mask, over rows of x."""

    reduces = False
    backward: Callable[..., Any]
    reduces = False  # y is one number a row

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "softmax")
        self._which = _cpu.SOFTMAX_KINDS.index(self.name)
        self.bounds = SoftmaxBounds(self.name)
        backward = signature_of(call, ("dy", *self.saves), but=("mask",))
        self._enter_points(call, backward, extra=len(self.besides))

    def _shapes(self, call: Any, options: SimpleNamespace) -> RowShapes:
        shape = next(iter(call.views.values())).shape
        over = axes.axes(call.where, options.axis, len(shape))
        return RowShapes(over, axes.reduced(shape, over, options.keepdims) if self.reduces else ())

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and the tuple that `backward` needs.

        The lse that `logsumexp` saves is y before it was rounded to x's dtype. Its `out` may be a
        tuple that goes on with an array for lse, in the dtype in which x is computed; one that is
        None is allocated.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.softmax.forward(np.array([0.0, 0.0]))
        >>> fa.softmax.backward(np.array([1.0, 0.0]), *saved)
        array([ 0.25, -0.25])
        """

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, x, (over, _), scale = now.call, now.views["x"], now.shapes, now.options.scale
            y, lse = (self._of_rows(now.view(name), now) for name in ("y", "lse"))
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
            return now.results()

    def _of_rows(self, view: Any, now: step) -> Any:
        """An array that has one number a row, with the axes of x."""
        return view


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
        exp(y) * sum(dy))``, with sums over the row. An element whose y is 0 (of log_softmax: -inf)
        takes no part, and its dx is 0. Softmax leaves its dy out of the sum, an infinite one or a
        NaN too; log_softmax adds up every dy. The mask has no gradient.

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
        with step(self, "backward", args, kwargs) as now:
            call, views, result, taken = now.call, now.views, now.views["y"], now.options
            (over, _), scale, dx = now.shapes, taken.scale, now.view("dx")
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
            return now.results()


class LogSumExp(RowFunction[P, R]):
    """A function of rows that gives one number a row: `logsumexp`."""

    reduces = True
    saves = ("x", "mask", "lse")
    besides = of_forward = ("lse",)
    makes = MappingProxyType({"y": Makes(shape="rows"), "lse": Makes(shape="rows", dtype=COMPUTED)})
    roles = MappingProxyType({"lse": validate.STATISTIC})
    shapes = MappingProxyType({"dy": "rows", "lse": "rows"})
    apart = ("dy",)

    def _of_rows(self, view: Any, now: step) -> Any:
        return view if view is None or now.options.keepdims else view.with_axes(now.shapes.over)

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
        out : array, optional
            Where to write dx; it may be x.

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
        with step(self, "backward", args, kwargs) as now:
            call, data, taken, dx = now.call, now.views["x"], now.options, now.view("dx")
            (over, _), scale = now.shapes, taken.scale
            dy, lse = (self._of_rows(now.views[name], now) for name in ("dy", "lse"))
            call.run(
                "logsumexp_backward",
                x=data,
                axes=over,
                mask=_with_mask(call, data),
                dy=dy,
                lse=lse,
                dx=dx,
                scale=scale,
                accumulate=taken.accumulate,
            )
            return now.results()


class _LossPlan:
    """The options of a call of a loss, understood, and the shapes that follow from them.

    losses, of_loss : of one loss a row, and of the result.
    """

    one: tuple[int, ...] = ()

    def __init__(self, where: str, options: SimpleNamespace, shape: tuple[int, ...]) -> None:
        ndim = len(shape)
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
        self.losses = axes.reduced(shape, (self.axis,), keepdims=False)
        self.of_loss = () if self.is_one else self.losses


class CrossEntropy(CachedOp[P, R]):
    """The cross entropy of logits and a target, whose probabilities are never stored."""

    bounds = CrossEntropyBounds()
    results = ("loss",)
    saves = ("logits", "target", "weight", "lse", "divisor")
    gradients = ("dlogits",)
    of_forward, unsaved = ("lse", "divisor"), ("divisor",)
    roles = MappingProxyType(
        {"weight": validate.WEIGHTS, "lse": validate.STATISTIC, "divisor": validate.TOTAL}
    )
    makes = MappingProxyType(
        {
            "loss": Makes(shape="of_loss"),
            "lse": Makes(shape="losses", dtype=COMPUTED),
            "divisor": Makes(shape="one", dtype=DOUBLE),
        }
    )
    shapes = MappingProxyType(
        {"dloss": "of_loss", "lse": "losses", "divisor": "one", "target": None, "weight": None}
    )
    apart = ("dloss",)

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "softmax")
        self._enter_points(call, signature_of(call, ("dloss", *self.saves)), extra=1)

    def outputs_of(self, entry: str, options: SimpleNamespace) -> tuple[str, ...]:
        if entry != "forward":
            return super().outputs_of(entry, options)
        return ("loss", "lse") if options.reduction == "none" else ("loss", "lse", "divisor")

    def _shapes(self, call: Any, options: SimpleNamespace) -> _LossPlan:
        return _LossPlan(call.where, options, call.views["logits"].shape)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and the tuple that `backward` needs.

        ``loss, saved = op(...), (logits, target, weight, lse, divisor)``.

        Parameters
        ----------
        out : array or tuple, optional
            As for the call, or a tuple that goes on with an array for the lse that is saved, of the
            losses' shape, in the dtype in which logits are computed; one that is None is allocated.

        Returns
        -------
        saved : tuple
            The arrays of the call; logsumexp of the logits; and the divisor of the sum of the
            losses, None without a reduction. Arrays are not copied: do not change them before
            `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> loss, saved = fa.cross_entropy.forward(np.zeros((1, 2)), np.array([0]))
        >>> fa.cross_entropy.backward(1.0, *saved)
        array([[-0.5,  0.5]])
        """

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, logits, plan = now.call, now.views["logits"], now.shapes
            target, weight = self._arrays(call, plan)
            loss, lse, divisor = map(now.view, ("loss", "lse", "divisor"))
            lse = None if lse is None else lse.with_axes((plan.axis,))
            if plan.is_one and divisor is None:
                divisor = call.temporary("logits", (), validate.DOUBLE)
            call.run(
                "cross_entropy_forward",
                logits=logits,
                axes=(plan.axis,),
                **target,
                weight=weight,
                lse=lse,
                losses=None if plan.is_one else loss.with_axes((plan.axis,)),
                loss=loss if plan.is_one else None,
                divisor=divisor,
                ignore_index=plan.ignore_index,
                label_smoothing=plan.smoothing,
                reduction=plan.reduction,
            )
            return now.results()

    def _arrays(self, call: Call, plan: _LossPlan) -> tuple[dict[str, View], View | None]:
        """Target and weight, with the axes of the kernels."""
        views, where = call.views, call.where
        logits, target, weight = views["logits"], views["target"], views.get("weight")
        classes = logits.shape[plan.axis]
        if classes == 0:
            raise ValueError(f"{where}: logits must have a class along axis {plan.axis}, got none")
        if target.dtype_name in validate.INDICES.also:
            axes.has_shape(where, "target", target, plan.losses)
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
        out : array, optional
            Where to write dlogits; it may be logits itself.

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
        with step(self, "backward", args, kwargs) as now:
            call, views, plan, taken = now.call, now.views, now.shapes, now.options
            data, dy, dlogits = views["logits"], views["dloss"], now.view("dlogits")
            of_target, of_weight = self._arrays(call, plan)
            if ("divisor" in views) != plan.is_one:
                raise ValueError(
                    f"{now.where}: divisor must be an array, but None for reduction='none'"
                )
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
            return now.results()


def softmax_op(function: Callable[P, R]) -> Softmax[P, R]:
    """Make the op of rows that a function declares; the formulas are in src/common/softmax."""
    return register(Softmax(function))


def logsumexp_op(function: Callable[P, R]) -> LogSumExp[P, R]:
    """Make the op that gives one number a row."""
    return register(LogSumExp(function))


def loss_op(function: Callable[P, R]) -> CrossEntropy[P, R]:
    """Make the loss that a function declares."""
    return register(CrossEntropy(function))
