"""The op object of one statistic over axes: the Python half of its entry points.

The sums are those of `fastact.sum`, the moments those of `fastact.moments`; elements that are NaN
are left out by the accumulators that `src/cpu/reductions/kernels.h` describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from .bounds import StatisticBounds
from .moment import (
    DEVIATION,
    DEVIATION_SLOPE,
    MEAN_SLOPE,
    MOMENT_BOUNDS,
    NOTHING,
    VARIANCE,
    VARIANCE_SLOPE,
    Over,
    fill,
    gradient_over,
    over_axes,
    reduce_moments,
    slope_over,
    slopes_over,
)
from .op import CachedOp, EntryPoint, Model, P, R, register, signature_of
from .reduction import IDENTITY, SUM_BOUNDS, VALID, add_up
from .types import ArrayOrNumber

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
    """

    def __init__(self, function: Callable[P, R], of: str, skips: bool) -> None:
        call = self._declare(function, "statistics")
        self.of, self.skips = of, skips
        self.results = (of,)
        self.bounds = StatisticBounds(of, SUM_BOUNDS, MOMENT_BOUNDS)
        of_backward = signature_of(call, ("dy", "x"), ("axis",))
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            backward=EntryPoint(self._where("backward"), of_backward),
        )

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        return {"x": x, "axis": 0}

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        return [Model(over_axes(self._where(), self._options(named), named["x"]).shape)], {}

    def _correction(self, where: str, options: Any) -> float:
        return validate.number(where, "correction", getattr(options, "correction", 0))

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._reduce("call", args, kwargs)[0]

    def _reduce(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The statistic, and x as it was computed on."""
        entry = self.entry_points[name]
        options, where = entry.bind(args, kwargs), entry.where
        (out,) = options.out
        with Call(where, options.stream, integers=np.float64, x=options.x) as call:
            x = call.views["x"]
            over = over_axes(where, options, x)
            correction = self._correction(where, options)
            y, made = call.output("out", out, "x", shape=over.shape, in_place=False)
            kept = y.with_axes(over.dropped)
            if not x.size:
                self._of_nothing(call, kept, correction)
            elif self.of == "sum":
                add_up(call, VALID if self.skips else IDENTITY, x, kept, over.axes)
            elif self.of == "mean" and not self.skips:
                add_up(call, IDENTITY, x, kept, over.axes, divisor=float(over.each))
            else:
                self._of_elements(call, over, kept, correction)
            return call.result(out, made), call.arrays["x"]

    def _of_elements(self, call: Call, over: Over, y: View, correction: float) -> None:
        warning = _WARNINGS[self.of]
        if self.of == "mean":
            reduce_moments(call, over.axes, y, of_m2=NOTHING, skips=True, warning=warning)
        else:
            reduce_moments(
                call,
                over.axes,
                second=y,
                of_m2=_OF_M2[self.of],
                correction=correction,
                skips=self.skips,
                warning=warning,
            )

    def _of_nothing(self, call: Call, y: View, correction: float) -> None:
        """Of no elements: NaN, or a sum of 0; a correction below 0 leaves a variance of 0 there."""
        is_zero = self.of == "sum" or (self.of != "mean" and correction < 0 and not self.skips)
        fill(call, y, 0.0 if is_zero else math.nan)
        if y.size and self.of != "sum":
            _cpu.warn(_WARNINGS[self.of])

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The statistic, and what `backward` needs.

        ``saved = (x,)``, for the derivative depends on which elements count, and on x - mean.

        Parameters
        ----------
        *args, **kwargs
            What calling the op takes.

        Returns
        -------
        y : array
            What calling the op gives.
        saved : tuple
            ``(x,)``. It is not copied: do not change it before `backward`.

        Notes
        -----
        Of the same bits, and so as accurate, as calling the op.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.nanmean.forward(np.array([1.0, np.nan, 3.0]))
        >>> fa.nanmean.backward(1.0, *saved)
        array([0.5, 0. , 0.5])
        """

    def _forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any]]:
        y, x = self._reduce("forward", args, kwargs)
        return y, (x,)

    def backward(self, dy: ArrayOrNumber, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The gradient with respect to x.

        Of n elements that count: a sum has ``dx = dy``, a mean ``dx = dy / n``, a variance
        ``dx = 2 * dy * (x - mean) / (n - correction)``, a standard deviation
        ``dx = dy * (x - mean) / ((n - correction) * std)``, and 0 where that is 0. The mean depends
        on x too, but what comes by way of it is 0, for the distances from the mean add up to 0.
        Elements that were skipped have a gradient of 0.

        Parameters
        ----------
        dy : array or float
            The gradient with respect to the statistic: of its shape, and of x's dtype.
        x : array
            What `forward` saved. Its moments are computed anew: for that, memory of up to three
            arrays of the statistic's shape is taken (for 16-bit data, of float64).
        *args, **kwargs
            The op's own options, as given to `forward`. By keyword also `out`, where to write dx,
            which may be x itself, but not share memory with dy; `accumulate`, True to add dx to
            `out` instead of overwriting it; and `stream`, for arrays on a GPU.

        Returns
        -------
        array
            The result, of x's shape, dtype and framework.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u of itself, and, for
        x - mean, that of the mean times its factor; then one rounding to x's dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.nanvar.backward(1.0, np.array([1.0, np.nan, 3.0]), correction=1)
        array([-2.,  0.,  2.])
        """

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        options, where = entry.bind(args, kwargs), entry.where
        (out,) = options.out
        with Call(where, options.stream, integers=np.float64, x=options.x, dy=options.dy) as call:
            x = call.views["x"]
            over = over_axes(where, options, x)
            correction = self._correction(where, options)
            dy = gradient_over(call, "dy", over)
            dx, made = call.output("out", out, "x")
            if "dy" in call.arrays:
                validate.apart(where, "out", dx, {"dy": call.views["dy"]})
            if x.size:
                slope, mean, low = self._slopes(call, over, correction)
                # What counts is asked of x itself, or, where all of it does, of a number.
                valid = x if self.skips or mean is not None else call.repeated(0.0, x)
                call.run(
                    call.native.statistic_backward,
                    dy,
                    slope,
                    valid,
                    mean,
                    low,
                    dx,
                    self.skips,
                    options.accumulate,
                    call.stream,
                )
            return call.result(out, made)

    def _slopes(
        self, call: Call, over: Over, correction: float
    ) -> tuple[View, View | None, View | None]:
        """What dy is multiplied by, and the mean and its low part where it is by x - mean, too."""
        x = call.views["x"]
        wide = x.of_dtype(_cpu.DTYPE_NAMES.index("float64")) if x.itemsize < 4 else x
        if self.of == "sum":
            return call.repeated(1.0, wide), None, None
        if self.of == "mean":
            if not self.skips:
                return call.repeated(1 / over.each, wide), None, None
            return slope_over(call, over.axes, MEAN_SLOPE, 0.0, True), None, None
        mean, low, slope = slopes_over(
            call, over.axes, _SLOPES[self.of], correction, skips=self.skips
        )
        assert slope is not None
        return slope, mean, low


def statistic(of: str, *, skips: bool = False) -> Callable[[Callable[P, R]], AxisStatistic[P, R]]:
    """The statistic over axes that a function declares."""
    return lambda function: register(AxisStatistic(function, of, skips))
