"""The op objects of mean_var and moments: the Python half of their entry points.

The statistics are computed in double by blocks of fixed size, whose means and squared deviations
merge by Chan's formula; order, error bound and derivation are in
`src/cpu/reductions/kernels.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from ..bounds import MomentBounds
from ..moments import Moments
from ..types import A, Array, ArrayOrNumber, Axes, Out, Stream
from . import axes as _axes
from .axes import Over, over_axes
from .op import DATA, DOUBLE, CachedOp, Makes, Model, P, R, untyped
from .reductions import INTEGERS
from .step import step
from .weighting import (
    M2,
    M2_OR_ROOT,
    MEAN_SLOPE,
    ROLES,
    VARIANCE,
    VARIANCE_SLOPE,
    Weighting,
    arrays_with_weights,
    reduce_moments,
    weighted_gradient,
    weighting_of,
)

#: Their derivation is in src/cpu/reductions/kernels.h.
MOMENT_BOUNDS = MomentBounds(2.0**-46, m2=2.0**-33, m2_double=2.0**-44, far=2.0**-51, merged=2)


# The call cache takes a result apart, and makes it anew, by these names.
_cpu.register_result_type(Moments, ("count", "mean", "squares"))


def each_of(x: View, over: Over) -> int:
    """How many elements of x a mean is of."""
    return math.prod(x.shape[axis] for axis in over.axes)


class AxisMoments(CachedOp[P, R]):
    """The mean over some axes, and m2, the sum of the squared distances from it, over a divisor."""

    bounds = MOMENT_BOUNDS
    dtype: int | None  # of the results; None: as x
    of_m2: int  # what the second one is
    backward: Callable[..., Any]

    integers = INTEGERS

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "reductions")
        dtype = DATA if self.dtype is None else DOUBLE
        self.reads_whole = self.dtype is not None
        self.makes = {n: Makes(shape="shape", dtype=dtype) for n in (*self.results, "count")}
        self._enter_points(call, untyped(self.backward))

    def _shapes(self, call: Any, options: Any) -> Over:
        return over_axes(call.where, options, tuple(call.views["x"].shape))

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        """With a count, where that is an array."""
        skips, weights, where = (getattr(options, n, None) for n in ("skipna", "weights", "where"))
        found = super().outputs_of(entry, options)
        counts = skips or weights is not None or where is not None
        return (*found, "count") if counts and self.of_m2 == M2 else found

    def _correction(self, where: str, options: Any) -> float:
        """The correction, which the count loses before m2 is divided by it."""
        return 0.0

    def _divisor(self, where: str, count: int, options: Any) -> float:
        """The divisor of m2 of so many elements; 0 where the correction leaves nothing."""
        return 1.0 if self.of_m2 == M2 else max(count - self._correction(where, options), 0.0)

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, x, over, options = now.call, now.views["x"], now.shapes, now.options
            weighting = weighting_of(call, options.axis)
            skips = getattr(options, "skipna", False)
            found = [now.view(name) for name in (*self.results, "count")]
            dropped: list[Any] = [v if v is None else v.with_axes(over.dropped) for v in found]
            mean, second, count = dropped
            # An array of the caller's has m2 itself; what `Moments` make of roots, they know.
            is_own = self.of_m2 == M2 and options.out[1] is None
            if x.size:
                reduce_moments(
                    call,
                    over.axes,
                    mean,
                    None,
                    second,
                    count,
                    M2_OR_ROOT if is_own else self.of_m2,
                    self._correction(call.where, options),
                    skips,
                    weighting=weighting,
                )
            else:
                divisor = self._divisor(call.where, each_of(x, over), options)
                fill(call, mean, math.nan)
                fill(call, second, 0 / divisor if divisor else math.nan)
                if count is not None:
                    fill(call, count, 0.0)
            return now.results()

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        options, where = entry.bind(args, kwargs), entry.where
        dy, (out,) = options.dy, options.out
        if not isinstance(dy, tuple | list) or len(dy) != 2:
            raise TypeError(
                f"{where}: dy must be a tuple of two gradients, got {validate.describe(dy)}"
            )
        gradients = {f"dy[{i}]": 0.0 if part is None else part for i, part in enumerate(dy)}
        skips = getattr(options, "skipna", False)
        arrays = arrays_with_weights(where, options, x=options.x, **gradients)
        with Call(where, options.stream, ROLES, INTEGERS, **arrays) as call:
            x = call.views["x"]
            over = self._shapes(call, options)
            each = each_of(x, over)
            weighting = weighting_of(call, options.axis)
            divisor = self._divisor(where, each, options)
            scale = 2 / divisor if divisor else math.inf
            dmean, dsecond = (gradient_over(call, name, over) for name in gradients)
            dx, made = call.output("out", out, "x", in_place=not (skips or weighting.given))
            given = {name: call.views[name] for name in gradients if name in call.arrays}
            validate.apart(where, "out", dx, given)
            if x.size and weighting.given:
                slope, mean = weighted_slopes(call, over.axes, MEAN_SLOPE, 0.0, skips, weighting)
                weighted_gradient(
                    call, dmean, slope, dx, weighting, skips, accumulate=options.accumulate
                )
                if dy[1] is not None:
                    slope = self._slope_of_second(call, over, options, weighting)
                    weighted_gradient(
                        call, dsecond, slope, dx, weighting, skips, mean=mean, accumulate=True
                    )
            elif x.size and skips:  # two terms, whose factors are arrays
                run = partial(call.run, "statistic_backward", x=x, dx=dx, skips=True)
                share = slope_over(call, over.axes, MEAN_SLOPE, 0.0, True)
                mean, low, _ = slopes_over(call, over.axes, skips=True)
                twice = call.repeated(2.0, share)
                run(dy=dmean, slope=share, accumulate=options.accumulate)
                run(dy=dsecond, slope=twice, mean=mean, low=low, accumulate=True)
            elif x.size:
                mean, low, _ = slopes_over(call, over.axes)
                call.run(
                    "moments_backward",
                    x=x,
                    dmean=dmean,
                    dsecond=dsecond,
                    mean=mean,
                    low=low,
                    dx=dx,
                    share=1 / each,
                    scale=0.0 if dy[1] is None else scale,
                    accumulate=options.accumulate,
                )
            return call.result(out, made)

    def _slope_of_second(self, call: Call, over: Over, options: Any, weighting: Weighting) -> View:
        """What the gradient of the second result is multiplied by, as it repeats over x."""
        x = call.views["x"]
        if self.of_m2 == VARIANCE:
            correction, skips = self._correction(call.where, options), False
            slope, _ = weighted_slopes(
                call, over.axes, VARIANCE_SLOPE, correction, skips, weighting
            )
            return slope
        kept = _axes.reduced(x.shape, over.axes, keepdims=True)
        slope = call.temporary("x", kept, validate.DOUBLE)  # as the mean lies
        fill(call, slope, 2.0)
        return slope.broadcast_to(x.shape)


def fill(call: Call, y: View, value: float) -> None:
    call.run("broadcast", x=call.repeated(value, y), y=y, accumulate=False)


def gradient_over(call: Call, name: str, over: Over) -> View:
    """A gradient as it repeats over x."""
    gradient, x = call.views[name], call.views["x"]
    if name not in call.arrays:  # a number
        return gradient
    validate.same_dtype(call.where, name, gradient, "x", x)
    _axes.has_shape(call.where, name, gradient, over.shape)
    return over.spread(gradient, x)


def slopes_over(
    call: Call,
    axes: tuple[int, ...],
    of_m2: int | None = None,
    correction: float = 0.0,
    skips: bool = False,
) -> tuple[View, View | None, View | None]:
    """The mean of x, computed anew and hardly rounded, as it repeats over x: two parts of a sum.

    And, where it is wanted, what a gradient is multiplied by.
    """
    x = call.views["x"]
    kept = _axes.reduced(x.shape, axes, keepdims=True)
    # Of 16-bit data a low part of their own dtype would leave the mean 17 bits or 22.
    is_narrow = x.itemsize < 4
    dtype = validate.DOUBLE if is_narrow else None
    mean = call.temporary("x", kept, dtype)
    low = None if is_narrow else call.temporary("x", kept)
    slope = None if of_m2 is None else call.temporary("x", kept, dtype)
    reduce_moments(call, axes, mean, low, slope, None, of_m2 or M2, correction, skips)
    low, slope = (None if v is None else v.broadcast_to(x.shape) for v in (low, slope))
    return mean.broadcast_to(x.shape), low, slope


def slope_over(
    call: Call, axes: tuple[int, ...], of_m2: int, correction: float, skips: bool
) -> View:
    """The factor of a gradient, as it repeats over x, where no mean is needed."""
    x = call.views["x"]
    kept = _axes.reduced(x.shape, axes, keepdims=True)
    slope = call.temporary("x", kept, validate.DOUBLE if x.itemsize < 4 else None)
    reduce_moments(call, axes, None, None, slope, None, of_m2, correction, skips)
    return slope.broadcast_to(x.shape)


def weighted_slopes(
    call: Call,
    axes: tuple[int, ...],
    of_m2: int,
    correction: float,
    skips: bool,
    weighting: Weighting,
) -> tuple[View, View]:
    """The factor of a gradient, and the mean, in double, as they repeat over x."""
    x = call.views["x"]
    kept = _axes.reduced(x.shape, axes, keepdims=True)
    slope, mean = (call.temporary("x", kept, validate.DOUBLE) for _ in range(2))
    reduce_moments(
        call, axes, mean, None, slope, None, of_m2, correction, skips, weighting=weighting
    )
    return slope.broadcast_to(x.shape), mean.broadcast_to(x.shape)


class MeanVar(AxisMoments[P, R]):
    """Mean and variance, in x's dtype."""

    results = ("mean", "var")
    saves = ("x", "weights", "where")
    dtype = None
    of_m2 = VARIANCE

    def _correction(self, where: str, options: Any) -> float:
        return validate.number(where, "correction", options.correction)

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
            weights or a mask, of four of float64).
        out : array, optional
            Where to write dx; it may be x itself, but with weights or a mask, and share no memory
            with a gradient.

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


class MomentsOp(AxisMoments[P, R]):
    """`Moments`, in float64."""

    results = ("mean", "m2")
    saves = ("x", "weights", "where")
    dtype = validate.DOUBLE
    of_m2 = M2

    def result_of(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> Moments:
        (mean, m2, *count), shape = arrays, self.shape_of(named)
        over = _axes.axes(self._where(), named.get("axis"), len(shape))
        each: Any = math.prod([shape[a] for a in over])  # torch.compile traces no generator
        return Moments.of_checked(count[0] if count else each, mean, m2)

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        options = self._options(named)
        if options.skipna or options.weights is not None or options.where is not None:
            raise TypeError(
                f"{self._where()}: skipna must be False, and weights and where None, where torch "
                f"traces the call, whose count would be an array"
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
        axis: Axes = None,
        *,
        skipna: bool = False,
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
            weights or a mask, of three of float64).
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
