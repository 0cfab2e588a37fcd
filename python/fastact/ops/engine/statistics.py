"""The op objects of statistics over axes: a mean, a variance, ..., or several of them at once.

`fastact.sum` computes sums, and the accumulators that `src/cpu/reductions/kernels.h` describes the
rest: in double by blocks of fixed size, whose means and squared deviations merge by Chan's formula.
`src/cpu/reductions/weighted.h` reads data with weights or a mask, and integers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ..bounds import MomentBounds, StatisticBounds
from ..moments import FIELDS, Moments
from ..types import A, Array, ArrayOrNumber, Axes, DType, Out, Stream
from . import axes as _axes
from .axes import Over, over_axes
from .entry import DOUBLE, TOLD, Arg, Output, signature_of, untyped
from .execute import Execution
from .moments import (
    DEVIATION,
    DEVIATION_SLOPE,
    IDENTITY,
    M2,
    M2_OR_ROOT,
    MEAN_SLOPE,
    NOTHING,
    TOTAL,
    VARIANCE,
    VARIANCE_SLOPE,
    fill,
    is_weighted,
    over_x,
    reduce_moments,
    weighted_gradient,
)
from .op import Kernels, Model, P, R, Traits, register
from .reductions import INTEGERS, SUM_BOUNDS, VALID, add_up
from .served import CachedOp
from .weighting import SAVED, by_groups, places_of

#: Their derivation is in src/cpu/reductions/kernels.h.
MOMENT_BOUNDS = MomentBounds(2.0**-46, m2=2.0**-33, m2_double=2.0**-44, far=2.0**-51, merged=2)

_cpu.register_result_type(Moments, FIELDS)

#: NumPy warns of these where a statistic has too few elements.
_WARNINGS = {
    "mean": "Mean of empty slice",
    "var": "Degrees of freedom <= 0 for slice.",
    "std": "Degrees of freedom <= 0 for slice.",
}

#: The kernels make one of these of m2, and have the gradient's factor, where it is no number.
_OF_M2 = {"sum": TOTAL, "mean": NOTHING, "var": VARIANCE, "std": DEVIATION, "m2": M2}
_SLOPES = {"mean": MEAN_SLOPE, "var": VARIANCE_SLOPE, "std": DEVIATION_SLOPE}
_STEADY = {"sum": 1.0, "m2": 2.0}

#: Statistics of the distances from the mean; the others need x alone.
_SPREADS = ("m2", "var", "std")


class StatisticsOp(CachedOp[P, R]):
    """Statistics over some axes: `results` are "sum", "mean", "var", "std", "m2", or two of them.

    summed : the number of a term whose sum it is, or (the mean) the sum over n.
    skips : elements that are NaN are left out; `skipna` says it of a call.
    warning : what NumPy warns of.
    """

    traits = Traits(integers=INTEGERS)
    skips = False
    summed: int | None = None
    warning: str | None = None
    args = MappingProxyType(
        {
            "dy": Arg(validate.OF_RESULT, "shape", may_be_out=False),
            "where": Arg(shape="whole"),
        }
    )
    kernels = Kernels(names={"dmean": "dy[0]", "dsecond": "dy[1]"}, numbers={"initial": -0.0})
    backward: Callable[..., Any]

    def _shapes(self, call: Any, options: Any, entry: str = "call") -> Over:
        shape = tuple(call.views["x"].shape)
        over = by_groups(call, options, over_axes(call.where, options, shape))
        weights = call.views.get("weights")
        if weights is None:
            return over
        return over._replace(of_weights=places_of(call.where, options.axis, weights.shape, shape))

    def _run_forward(self, now: Execution) -> None:
        x, options = now.views["x"], now.options
        made = {name: now.written(name) for name in (*self.results, "count", "squares")}
        skips, correction = self._skips(now), getattr(options, "correction", 0.0)
        is_plain = x.dtype_name in _cpu.DTYPE_NAMES and not is_weighted(now)
        if not x.size:
            self._of_nothing(now, made, correction)
        elif is_plain and self.summed is not None and made["count"] is None:
            now.run("sum", y=made[self.results[0]], term=self.summed, divisor=self._each(now))
        else:
            results = {"second" if n in _SPREADS else "mean": made[n] for n in self.results}
            results["count"] = made["count"]
            if made["squares"] is not None:
                results["second"] = made["squares"]
            reduce_moments(now, results, self._of_m2(now), correction, skips, self.warning)

    def _of_m2(self, now: Execution) -> int:
        """The number by which the kernels know what becomes of m2."""
        return _OF_M2[self.results[-1]]

    def _skips(self, now: Execution) -> bool:
        return bool(getattr(now.options, "skipna", self.skips))

    def _each(self, now: Execution) -> float:
        """How many elements a mean is of; a sum is divided by 1."""
        lengths = [now.views["x"].shape[axis] for axis in now.shapes.axes]
        return 1.0 if "sum" in self.results else float(math.prod(lengths))

    def _of_nothing(
        self, now: Execution, made: Mapping[str, View | None], correction: float
    ) -> None:
        """Fill results of no elements: NaN, or 0 (a variance, too, with a correction below 0)."""
        nothing = 0.0 + now.options.initial
        zeros = {"sum", "m2", "count", "squares"}
        zeros |= {"var", "std"} if correction < 0 and not self.skips else set()
        for name, y in made.items():
            if y is not None:
                fill(now.call, y, nothing if name in zeros else math.nan)
                if y.size and name == self.results[-1] and self.warning is not None:
                    _cpu.warn(self.warning)

    def _run_backward(self, now: Execution) -> None:
        x, parts, skips = now.views["x"], now.entry.parts, self._skips(now)
        # x is read for each result
        is_apart = bool(parts) and (skips or is_weighted(now) or self._is_other(now))
        if is_apart:
            validate.may_write(now.where, "out", now.view("dx"), {"x": x}, in_place=False)
        of_second = bool(parts) and not self._is_none(now, parts[1])
        if x.size and parts and not is_apart:
            self._run_both(now)
        elif x.size and of_second and self._takes_weights(now):
            self._run_both_counted(now)
        elif x.size:
            accumulate = now.options.accumulate
            for of, name in zip(self.results, parts or ("dy",), strict=True):
                if not (accumulate and self._is_none(now, name)):
                    self._add_gradient(now, of, over_x(now, now.seen(name)), accumulate)
                accumulate = True

    def _is_none(self, now: Execution, part: str) -> bool:
        """Whether a gradient of a tuple is 0."""
        return part in now.entry.parts and now.options.dy[now.entry.parts.index(part)] is None

    def _run_both(self, now: Execution) -> None:
        """Compute the gradient by way of the mean and the second result, in one pass."""
        each, correction = self._each(now), getattr(now.options, "correction", 0.0)
        divisor = 1.0 if self.results[1] == "m2" else max(each - correction, 0.0)
        scale = 2 / divisor if divisor else math.inf
        scale = 0.0 if self._is_none(now, now.entry.parts[1]) else scale
        if now.call.is_on_gpu:
            dy, dsecond = (over_x(now, now.seen(name)) for name in now.entry.parts)
            both = {"dy": dy, "dsecond": dsecond, "share": 1 / each, "scale": scale}
            now.run("spread_backward", **both, of_m2=M2, skips=False, correction=0.0)
            return
        found = self._computed(now, "m2")
        now.run("moments_backward", **found, share=1 / each, scale=scale)

    def _run_both_counted(self, now: Execution) -> None:
        """Compute it for elements that count more than once, or not at all.

        In two passes dx of 16 bits would be rounded twice.
        """
        dy, dsecond = (over_x(now, now.seen(name)) for name in now.entry.parts)
        of_mean = self._computed(now, "mean", is_mean=False)["slope"]
        to = of_mean
        for axis in now.shapes.axes:  # a number of each result
            dy, to = dy.sliced(axis, 0, 1, 1), to.sliced(axis, 0, 1, 1)
        product: Any = {"x": to, "dy": dy, "slope": to, "weights": None, "where": None}
        weighted_gradient(now, to, **product, accumulate=False)
        found = self._computed(now, self.results[1])
        given = {"dy": dsecond, "of_mean": of_mean, "skips": self._skips(now)}
        weighted_gradient(now, now.view("dx"), **found, **given)

    def _add_gradient(self, now: Execution, of: str, dy: View, accumulate: bool) -> None:
        """The gradient by way of one result: a multiple of dy, or of dy (x - mean)."""
        x, skips, weighted = now.views["x"], self._skips(now), is_weighted(now)
        is_number = of in _STEADY or (of == "mean" and not skips and not weighted)
        is_far = of in _SPREADS
        is_found = is_far or not is_number
        is_other = self._is_other(now)
        if is_found and of in _SLOPES and now.call.is_on_gpu and not is_other:
            one: Any = {"dsecond": None, "share": 0.0, "scale": 0.0, "accumulate": accumulate}
            one |= {"correction": getattr(now.options, "correction", 0.0)}
            now.run("spread_backward", dy=dy, of_m2=_SLOPES[of], skips=skips, **one)
            return
        found = self._computed(now, of, is_mean=is_far) if is_found else {}
        if "slope" not in found:
            number = _STEADY[of] if of in _STEADY else 1 / self._each(now)
            like = self._hardly_rounded(now).shaped(now.shapes.grouped or x.shape)
            found["slope"] = now.call.repeated(number, like)
        given = {"dy": dy, "mean": None, **found, "skips": skips, "accumulate": accumulate}
        if weighted or is_other:
            weighted_gradient(now, now.view("dx"), **given)
            return
        if not skips and given["mean"] is None:  # all elements count, and a number stands for them
            x = now.call.repeated(0.0, x)
        now.run("statistic_backward", **{"low": None, "x": x, **given})

    def _takes_weights(self, now: Execution) -> bool:
        """Whether the native functions of the gradient are the ones that weights have."""
        return is_weighted(now) or self._is_other(now)

    def _is_other(self, now: Execution) -> bool:
        """Whether gradients have another dtype than x, as results have it that were told theirs."""
        dtype = now.views["x"].dtype
        return any(now.views[name].dtype != dtype for name in now.entry.parts or ("dy",))

    def _hardly_rounded(self, now: Execution) -> View:
        """A view of the dtype that factors of a gradient have.

        Of 16-bit data a low part of their own dtype would leave the mean 17 bits or 22.
        """
        x: View = now.views["x"]
        is_wide = self._takes_weights(now) or x.itemsize < 4
        return x.of_dtype(validate.DOUBLE) if is_wide else x

    def _computed(self, now: Execution, of: str, is_mean: bool = True) -> dict[str, View]:
        """Compute anew what a gradient takes of x, over x's shape.

        The factor of dy, where that depends on x, and the mean in two parts.
        """
        x, like = now.views["x"], self._hardly_rounded(now)
        names = {"mean": "mean", "low": "low"} if is_mean else {}
        if like is not x:
            names.pop("low", None)
        if of in _SLOPES or self._takes_weights(now):
            names["slope"] = "second"
        shape = now.shapes.grouped or _axes.reduced(x.shape, now.shapes.axes, keepdims=True)
        made = {name: now.call.temporary("x", shape, like.dtype) for name in names}
        results = {names[name]: view for name, view in made.items()}
        if of not in _SLOPES and "second" in results:  # a number, but as the mean lies
            fill(now.call, results.pop("second"), _STEADY[of])
        correction = getattr(now.options, "correction", 0.0)
        reduce_moments(now, results, _SLOPES.get(of, M2), correction, self._skips(now))
        return {name: over_x(now, view) for name, view in made.items()}


class PairOp(StatisticsOp[P, R]):
    """A mean and what becomes of m2, and backward by the gradients of both."""

    bounds = MOMENT_BOUNDS

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "reductions")
        self.saves = ("x", *(name for name in SAVED if name in call.parameters))
        dtype = DOUBLE if self.traits.reads_whole else TOLD
        made = (*self.results, "count", "squares")
        self.outs = {name: Output(shape="shape", dtype=dtype) for name in made}
        self._enter_points(call, untyped(self.backward))

    def _takes_weights(self, now: Execution) -> bool:
        is_narrow = now.views["x"].itemsize < 4
        return super()._takes_weights(now) or (is_narrow and self._skips(now))


class MeanVar(PairOp[P, R]):
    """Mean and variance, in x's dtype."""

    results = ("mean", "var")

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """Mean and variance, and what `backward` needs.

        The derivative of the variance is a multiple of x - mean.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> (mean, var), saved = fa.mean_var.forward(np.array([1.0, 3.0]))
        >>> fa.mean_var.backward((0.0, 1.0), *saved)
        array([-1.,  1.])
        """

    def backward(
        self,
        dy: tuple[ArrayOrNumber | None, ArrayOrNumber | None],
        x: A,
        /,
        weights: Array | None = None,
        where: ArrayOrNumber | None = None,
        axis: Axes = None,
        *,
        dtype: DType = None,
        correction: float = 0,
        keepdims: bool = False,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to x.

        ``dx = dmean / n + 2 * dvar * (x - mean) / (n - correction)``, of n elements a mean. In
        var = sum((x - mean)**2) / (n - correction) the mean depends on x too, but what comes by way
        of it is 0, for the distances from the mean add up to 0. With weights w of sum W it is ``w *
        (dmean / W + 2 * dvar * (x - mean) / (W - correction))``, and 0 where an element does not
        count; weights have no gradient here (`average` has).

        Parameters
        ----------
        dy : tuple of two arrays, floats or None
            The gradients dmean and dvar with respect to mean and variance, of their shape and of
            x's dtype; None for 0.
        x : array
            What `forward` saved. Its mean is computed anew, and used unrounded: for that, memory of
            two arrays of the mean's shape is taken (for 16-bit data, of one of float64; with
            weights or a mask, of three of float64).
        out : array, optional
            Where to write dx; it may be x itself, but with weights, a mask or `dtype`, and share no
            memory with a gradient.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u times the magnitudes of
        its two terms, and, for x - mean, 2**-46 of the mean of abs(x), for types narrower than
        float64 of the largest abs(x) more, times 2 abs(dvar) / (n - correction); then one rounding
        to x's dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
        >>> fa.mean_var.backward((None, np.ones(2)), x, axis=1, correction=1)
        array([[-2.,  2.],
               [ 0.,  0.]])
        """


class MomentsOp(PairOp[P, R]):
    """`Moments`, in float64."""

    results = ("mean", "m2")
    traits = Traits(reads_whole=True, integers=INTEGERS)

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        """With a count, where that is an array, and with `squares`, where m2 is the caller's.

        `Moments` know m2 or a root in its place, and make m2 of that by arithmetic, which Numba's
        arrays don't have.
        """
        found = super().outputs_of(entry, options)
        if entry == "backward":
            return found
        is_apart = options.out and options.out[1] is not None and hasattr(options.x, "__mul__")
        return (*found, *["count"] * _counts(options), *["squares"] * bool(is_apart))

    def _of_m2(self, now: Execution) -> int:
        return M2_OR_ROOT if hasattr(now.options.x, "__mul__") else M2

    def _run_forward(self, now: Execution) -> None:
        super()._run_forward(now)
        squares, m2 = now.written("squares"), now.written("m2")
        if squares is None or not now.views["x"].size:
            return
        # m2 = max(squares, 0) + squares * min(squares, 0): the second is the square of a root.
        relu, hardtanh = map(_cpu.ACTIVATIONS.index, ("relu", "hardtanh"))
        now.call.run("activation_forward", x=squares, y=m2, which=relu, parameters=())
        both: Any = {"a": squares, "b": squares, "dy": squares, "da": None, "db": m2}
        both |= dict.fromkeys(("bias_a", "bias_b", "dbias_a", "dbias_b")) | {"axis": 0}
        both |= {"which": hardtanh, "parameters": (-sys.float_info.max, 0.0)}
        both |= {"limit": math.inf, "offset": 0.0, "accumulate": True}
        now.call.run("gated_backward", **both)

    def result_of(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> Moments:
        (mean, m2, *_), shape = arrays, self.shape_of(named)
        over = _axes.axes(self._where(), named.get("axis"), len(shape))
        each: Any = math.prod([shape[a] for a in over])  # torch.compile traces no generator
        count, squares = named.get("count", each), named.get("squares")
        if squares is None:
            return Moments.of_checked(count, mean, m2)
        return Moments.of_checked(count, mean, squares, m2)

    def has_operator(self, named: Mapping[str, Any]) -> bool:
        """Whether the count is a number."""
        return not _counts(self._options(named))

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        if not self.has_operator(named):
            raise TypeError(
                f"{self._where()}: skipna must be False, and weights, where and by None, where "
                f"torch traces the call, whose count would be an array"
            )
        return super().models(named)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The moments, and what `backward` needs.

        The derivative of m2 is a multiple of x - mean.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> m, saved = fa.moments.forward(np.array([1.0, 3.0]))
        >>> fa.moments.backward((0.0, 1.0), *saved)
        array([-2.,  2.])
        """

    def backward(
        self,
        dy: tuple[ArrayOrNumber | None, ArrayOrNumber | None],
        x: A,
        /,
        weights: Array | None = None,
        where: ArrayOrNumber | None = None,
        by: Array | None = None,
        axis: Axes = None,
        *,
        skipna: bool = False,
        groups: int | None = None,
        keepdims: bool = False,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to x.

        ``dx = dmean / n + 2 * dm2 * (x - mean)``, of n elements a mean. In m2 = sum((x - mean)**2)
        the mean depends on x too, but what comes by way of it is 0, for the distances from the mean
        add up to 0. With weights of sum W, ``dx = w * (dmean / W + 2 * dm2 * (x - mean))``, and 0
        where an element does not count; weights have no gradient here (`average` has).

        Parameters
        ----------
        dy : tuple of two arrays, floats or None
            The gradients dmean and dm2 with respect to mean and m2, of their shape and of x's
            dtype; None for 0.
        x : array
            What `forward` saved. Its mean is computed anew, and used unrounded: for that, memory of
            two arrays of the mean's shape is taken (for 16-bit data, of one of float64; with
            weights or a mask, and for 16-bit data with `skipna`, of three of float64).
        skipna : bool, default False
            As given to `forward`. Elements that were skipped have a gradient of 0.
        out : array, optional
            Where to write dx; it may be x itself, but for `skipna`, `weights` and `where`, and
            share no memory with a gradient.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u times the magnitudes of
        its two terms, and, for x - mean, 2**-46 of the mean of abs(x), for types narrower than
        float64 of the largest abs(x) more, times 2 abs(dm2); then one rounding to x's dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.moments.backward((1.0, None), np.array([[1.0, 3.0], [4.0, 4.0]]))
        array([[0.25, 0.25],
               [0.25, 0.25]])
        """


def _counts(options: Any) -> bool:
    """Whether some elements count less than once, or more, or each for a group."""
    return options.skipna or any(getattr(options, name) is not None for name in SAVED)


class AxisStatistic(StatisticsOp[P, R]):
    """A sum, mean, variance or standard deviation over some axes, of x's dtype.

    of : which of them: "sum", "mean", "var" or "std".
    term : of a sum, what is summed, as a sum's own.
    """

    traits = Traits(reads_whole=True, integers=INTEGERS)

    def __init__(self, function: Callable[P, R], of: str, skips: bool) -> None:
        call = self._declare(function, "statistics")
        self.of, self.skips, self.warning = of, skips, _WARNINGS.get(of)
        self.term = (VALID if skips else IDENTITY) if of == "sum" else None
        self.summed = IDENTITY if of == "mean" and not skips else self.term
        self.results = (of,)
        self.bounds = StatisticBounds(of, SUM_BOUNDS, MOMENT_BOUNDS)
        self.saves = ("x", *(name for name in SAVED if name in call.parameters))
        arrays = self.differentiated
        either = [name for name in (*self.saves, "axis") if name not in arrays]
        made = Output(shape="shape", dtype=TOLD)
        self.outs = {**self.outs, **dict.fromkeys((of, "count"), made)}
        backward = signature_of(call, ("dy", *arrays), either, but=("returned", "initial"))
        self._enter_points(call, backward)

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        found = super().outputs_of(entry, options)
        return (*found, "count") if getattr(options, "returned", False) else found

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The statistic, and what `backward` needs.

        The derivative depends on which elements count, and on x - mean.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.nanmean.forward(np.array([1.0, np.nan, 3.0]))
        >>> fa.nanmean.backward(1.0, *saved)
        array([0.5, 0. , 0.5])
        """

    def backward(self, dy: ArrayOrNumber, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The gradient with respect to x.

        Of n elements that count: a sum has ``dx = dy``, a mean ``dx = dy / n``, a variance
        ``dx = 2 * dy * (x - mean) / (n - correction)``, a standard deviation
        ``dx = dy * (x - mean) / ((n - correction) * std)``, and 0 where that is 0. The mean depends
        on x too, but what comes by way of it is 0, for the distances from the mean add up to 0.
        Elements that were skipped have a gradient of 0. With weights, n is their sum, and dx is
        multiplied by each; weights have no gradient here (`average` has).

        Parameters
        ----------
        x : array
            What `forward` saved. Its moments are computed anew: for that, memory of up to three
            arrays of the statistic's shape is taken (for 16-bit data, with weights and with a mask,
            of float64).
        out : array, optional
            Where to write dx; it may be x itself, but not share memory with dy.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u of itself, and, for x -
        mean, the mean's error times its factor; then one rounding to x's dtype. With weights, n has
        the error that the op's notes tell.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.nanvar.backward(1.0, np.array([1.0, np.nan, 3.0]), correction=1)
        array([-2.,  0.,  2.])
        """


class Average(AxisStatistic[P, R]):
    """A mean whose weights have a gradient."""

    gradients = ("dx", "dweights")
    outs = MappingProxyType({"dx": Output()})
    # The sum of the weights has no gradient.
    traits = replace(AxisStatistic.traits, unrecorded=("returned",))

    def __init__(self, function: Callable[P, R]) -> None:
        super().__init__(function, "mean", False)

    def _takes_weights(self, now: Execution) -> bool:
        return True

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The average, and what `backward` needs.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.average.forward(np.array([1.0, 5.0]), weights=np.array([3.0, 1.0]))
        >>> fa.average.backward(1.0, *saved)
        (array([0.75, 0.25]), array([-0.25,  0.75]))
        """

    def backward(
        self, dy: ArrayOrNumber, x: Any, weights: Array | None, /, *args: Any, **kwargs: Any
    ) -> Any:
        """The gradients with respect to x and to the weights.

        With weights w of sum W and the average y, ``dx = dy * w / W`` and
        ``dweights = dy * (x - y) / W``, added up over what the weights repeat along; 0 where an
        element is masked.

        Parameters
        ----------
        x, weights : array
            What `forward` saved. The average is computed anew: for that, memory of two arrays of
            its shape and float64 is taken, and where the weights repeat, of one of x's shape.
        out : tuple of two arrays, optional
            Where to write the gradients; one that is None is not computed.

        Returns
        -------
        dweights : array or None
            Of the weights' shape and dtype; None without weights, and for integers.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u of itself, and dweights,
        for x - y, y's error times its factor, too; then one rounding to their dtype. Where the
        weights repeat, dweights is added up in the order of `fastact.sum`, over the axes along
        which they do.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([[1.0, 5.0], [2.0, 2.0]])
        >>> fa.average.backward(1.0, x, np.array([1.0, 3.0]), axis=1)[1]
        array([-0.75,  0.25])
        """

    def _run_backward(self, now: Execution) -> None:
        x, dx, dweights = now.views["x"], now.view("dx"), now.view("dweights")
        accumulate = now.options.accumulate
        if dweights is not None:
            dweights = now.shapes.seen_weights(dweights)
        if not x.size:
            if dweights is not None and not accumulate:
                fill(now.call, dweights, 0.0)
            return
        repeats: tuple[int, ...] = ()
        each, adds = dweights, accumulate
        if dweights is not None:
            repeats = tuple(i for i, n in enumerate(x.shape) if dweights.shape[i] != n)
            if repeats:
                each, adds = now.call.temporary("x", x.shape, dweights.dtype), False
        dy = over_x(now, now.seen("dy"))
        if now.call.is_on_gpu and is_weighted(now) and not self._is_other(now):
            one: Any = {"dsecond": None, "share": 0.0, "scale": 0.0, "correction": 0.0}
            one |= {"of_m2": MEAN_SLOPE, "dweights": each, "accumulate_dweights": adds}
            now.run("spread_backward", dy=dy, skips=False, **one)
        else:
            given = {"dy": dy, **self._computed(now, "mean")}
            if dx is not None:
                weighted_gradient(now, dx, **{**given, "mean": None})
            if each is not None:
                weighted_gradient(now, each, **given, of_weights=True, accumulate=adds)
        if repeats:
            add_up(now.call, IDENTITY, each, dweights, repeats, accumulate)


def statistic(of: str, *, skips: bool = False) -> Callable[[Callable[P, R]], AxisStatistic[P, R]]:
    """The statistic over axes that a function declares."""
    return lambda function: register(AxisStatistic(function, of, skips))


def weighted_average(function: Callable[P, R]) -> Average[P, R]:
    """The average that a function declares."""
    return register(Average(function))
