"""The op object of one statistic over axes: the Python half of its entry points.

`fastact.sum` computes the sums, and `fastact.moments` the moments. The accumulators that
`src/cpu/reductions/kernels.h` describes leave out elements that are NaN.
`src/cpu/reductions/weighted.h` reads data with weights or a mask, and integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from ..bounds import StatisticBounds
from ..types import Array, ArrayOrNumber
from .axes import Over, over_axes
from .moments import (
    MOMENT_BOUNDS,
    each_of,
    fill,
    gradient_over,
    slope_over,
    slopes_over,
    weighted_slopes,
)
from .op import CachedOp, Makes, P, R, register, signature_of
from .reductions import INTEGERS, SUM_BOUNDS, VALID, add_up
from .step import step
from .weighting import (
    DEVIATION,
    DEVIATION_SLOPE,
    IDENTITY,
    MEAN_SLOPE,
    NOTHING,
    ROLES,
    TOTAL,
    UNWEIGHTED,
    VARIANCE,
    VARIANCE_SLOPE,
    Weighting,
    aligned_weights,
    arrays_with_weights,
    reduce_moments,
    weighted_gradient,
    weighting_of,
)

#: What NumPy warns of where a statistic has too few elements.
_WARNINGS = {
    "mean": "Mean of empty slice",
    "var": "Degrees of freedom <= 0 for slice.",
    "std": "Degrees of freedom <= 0 for slice.",
}
_OF_M2 = {"var": VARIANCE, "std": DEVIATION}
_SLOPES = {"mean": MEAN_SLOPE, "var": VARIANCE_SLOPE, "std": DEVIATION_SLOPE}


class AxisStatistic(CachedOp[P, R]):
    """A sum, mean, variance or standard deviation over some axes, of x's dtype.

    of : which of them: "sum", "mean", "var" or "std".
    skips : elements that are NaN are left out.
    term : of a sum, what is summed, as a sum's own.
    """

    integers = INTEGERS
    reads_whole = True
    roles = MappingProxyType({"dy": validate.DATA})
    shapes = MappingProxyType({"dy": "shape"})
    apart = ("dy",)

    def __init__(self, function: Callable[P, R], of: str, skips: bool) -> None:
        call = self._declare(function, "statistics")
        self.of, self.skips = of, skips
        self.term = (VALID if skips else IDENTITY) if of == "sum" else None
        self.results = (of,)
        self.bounds = StatisticBounds(of, SUM_BOUNDS, MOMENT_BOUNDS)
        self.saves = ("x", *(name for name in ROLES if name in call.parameters))
        arrays = self.differentiated
        either = [name for name in (*self.saves, "axis") if name not in arrays]
        self.makes = {name: Makes(shape="shape") for name in (of, "count")}
        backward = signature_of(call, ("dy", *arrays), either, but=("returned",))
        self._enter_points(call, backward)

    def _shapes(self, call: Any, options: Any) -> Over:
        return over_axes(call.where, options, tuple(call.views["x"].shape))

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        found = super().outputs_of(entry, options)
        return (*found, "count") if getattr(options, "returned", False) else found

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, x, over = now.call, now.views["x"], now.shapes
            weighting = weighting_of(call, now.options.axis)
            correction = getattr(now.options, "correction", 0.0)
            is_whole = x.dtype_name not in _cpu.DTYPE_NAMES
            kept = now.view(self.of).with_axes(over.dropped)
            if now.view("count") is not None:
                self._with_count(call, over, kept, now.view("count"), weighting)
            elif not x.size:
                self._of_nothing(call, kept, correction)
            elif weighting.given or is_whole:
                self._of_elements(call, over, kept, correction, weighting)
            elif self.term is not None:
                add_up(call, self.term, x, kept, over.axes)
            elif self.of == "mean" and not self.skips:
                each = float(each_of(x, over))
                add_up(call, IDENTITY, x, kept, over.axes, divisor=each)
            else:
                self._of_elements(call, over, kept, correction)
            return now.results()

    def _with_count(
        self, call: Call, over: Over, y: View, count: View, weighting: Weighting
    ) -> None:
        """The mean, and how much counts, which is an array of its shape."""
        count = count.with_axes(over.dropped)
        if call.views["x"].size:
            warning = _WARNINGS[self.of]
            reduce_moments(
                call, over.axes, y, count=count, of_m2=NOTHING, warning=warning, weighting=weighting
            )
        else:
            self._of_nothing(call, y, 0.0)
            fill(call, count, 0.0)

    def _of_elements(
        self,
        call: Call,
        over: Over,
        y: View,
        correction: float,
        weighting: Weighting = UNWEIGHTED,
    ) -> None:
        warning = _WARNINGS.get(self.of)
        if self.of in ("sum", "mean"):
            reduce_moments(
                call,
                over.axes,
                y,
                of_m2=NOTHING if self.of == "mean" else TOTAL,
                skips=self.skips,
                warning=warning,
                weighting=weighting,
            )
        else:
            reduce_moments(
                call,
                over.axes,
                second=y,
                of_m2=_OF_M2[self.of],
                correction=correction,
                skips=self.skips,
                warning=warning,
                weighting=weighting,
            )

    def _of_nothing(self, call: Call, y: View, correction: float) -> None:
        """Of no elements: NaN, or a sum of 0; a correction below 0 leaves a variance of 0 there."""
        is_zero = self.of == "sum" or (self.of != "mean" and correction < 0 and not self.skips)
        fill(call, y, 0.0 if is_zero else math.nan)
        if y.size and self.of != "sum":
            _cpu.warn(_WARNINGS[self.of])

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

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        with step(self, "backward", args, kwargs) as now:
            call, x, over, options = now.call, now.views["x"], now.shapes, now.options
            weighting = weighting_of(call, options.axis)
            correction = getattr(options, "correction", 0.0)
            dy, dx = over.spread(now.views["dy"], x), now.view("dx")
            if x.size and weighting.given:
                self._of_weighted(call, over, correction, weighting, dy, dx, options.accumulate)
            elif x.size:
                slope, mean, low = self._slopes(call, over, correction)
                # x itself says which elements count, or, where all of them do, a number.
                valid = x if self.skips or mean is not None else call.repeated(0.0, x)
                call.run(
                    "statistic_backward",
                    x=valid,
                    dy=dy,
                    slope=slope,
                    mean=mean,
                    low=low,
                    dx=dx,
                    skips=self.skips,
                    accumulate=options.accumulate,
                )
            return now.results()

    def _of_weighted(
        self,
        call: Call,
        over: Over,
        correction: float,
        weighting: Weighting,
        dy: View,
        dx: View,
        accumulate: bool,
    ) -> None:
        x, mean = call.views["x"], None
        if self.of == "sum":
            slope = call.repeated(1.0, x.of_dtype(validate.DOUBLE))
        else:
            slope, found = weighted_slopes(
                call, over.axes, _SLOPES[self.of], correction, self.skips, weighting
            )
            mean = None if self.of == "mean" else found
        weighted_gradient(
            call, dy, slope, dx, weighting, self.skips, mean=mean, accumulate=accumulate
        )

    def _slopes(
        self, call: Call, over: Over, correction: float
    ) -> tuple[View, View | None, View | None]:
        """The factor of dy; the mean and its low part, where x - mean is a factor too."""
        x = call.views["x"]
        wide = x.of_dtype(validate.DOUBLE) if x.itemsize < 4 else x
        if self.of == "sum":
            return call.repeated(1.0, wide), None, None
        if self.of == "mean":
            if not self.skips:
                return call.repeated(1 / each_of(x, over), wide), None, None
            return slope_over(call, over.axes, MEAN_SLOPE, 0.0, True), None, None
        mean, low, slope = slopes_over(
            call, over.axes, _SLOPES[self.of], correction, skips=self.skips
        )
        assert slope is not None
        return slope, mean, low


class Average(AxisStatistic[P, R]):
    """A mean whose weights have a gradient."""

    gradients = ("dx", "dweights")
    unrecorded = ("returned",)  # the sum of the weights has no gradient

    def __init__(self, function: Callable[P, R]) -> None:
        super().__init__(function, "mean", False)

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

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        options, where = entry.bind(args, kwargs), entry.where
        arrays = arrays_with_weights(where, options, x=options.x, dy=options.dy)
        with Call(where, options.stream, ROLES, INTEGERS, **arrays) as call:
            over = over_axes(where, options, call.views["x"].shape)
            weighting = weighting_of(call, options.axis)
            dy = gradient_over(call, "dy", over)
            of_weights = "weights" in call.arrays and options.wanted[1]
            if of_weights and options.out[1] is None:  # whole numbers have no gradient
                of_weights = call.views["weights"].dtype_name in _cpu.DTYPE_NAMES
            elif of_weights:
                validate.supported_dtype(where, "weights", call.views["weights"])
            wanted = {"x": options.wanted[0], "weights": of_weights}
            made = {
                name: call.output(f"out[{i}]", options.out[i], name, in_place=False)
                for i, name in enumerate(wanted)
                if wanted[name]
            }
            if len(made) == 2:
                validate.apart(where, "out[1]", made["weights"][0], {"out[0]": made["x"][0]})
            views = {name: view for name, (view, _) in made.items()}
            self._of_both(call, over, options, weighting, dy, views)
            found = [
                call.result(out, made[name][1]) if name in made else None
                for name, out in zip(wanted, options.out, strict=True)
            ]
            return tuple(found)

    def _of_both(
        self,
        call: Call,
        over: Over,
        options: Any,
        weighting: Weighting,
        dy: View,
        to: Mapping[str, View],
    ) -> None:
        accumulate = options.accumulate
        dweights = None
        if "weights" in to:
            dweights = aligned_weights(call, options.axis, to["weights"])
        x = call.views["x"]
        if not x.size:
            if dweights is not None and not accumulate:
                fill(call, dweights, 0.0)
            return
        slope, mean = weighted_slopes(call, over.axes, MEAN_SLOPE, 0.0, False, weighting)
        if "x" in to:
            weighted_gradient(call, dy, slope, to["x"], weighting, False, accumulate=accumulate)
        if dweights is None:
            return
        pairs = zip(dweights.shape, x.shape, strict=True)
        repeats = tuple(i for i, (n, m) in enumerate(pairs) if n != m)
        each = call.temporary("x", x.shape, dweights.dtype) if repeats else dweights
        weighted_gradient(
            call,
            dy,
            slope,
            each,
            weighting,
            False,
            mean=mean,
            of_weights=True,
            accumulate=accumulate and not repeats,
        )
        if repeats:
            add_up(call, IDENTITY, each, dweights, repeats, accumulate)


def statistic(of: str, *, skips: bool = False) -> Callable[[Callable[P, R]], AxisStatistic[P, R]]:
    """The statistic over axes that a function declares."""
    return lambda function: register(AxisStatistic(function, of, skips))


def weighted_average(function: Callable[P, R]) -> Average[P, R]:
    """The average that a function declares."""
    return register(Average(function))
