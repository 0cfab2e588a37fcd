"""Sums and moments: over any axes, of the elements or of their squares; mean and variance.

Every dtype is summed in double, and 16-bit data after a few additions in float32. The order is the
same for any layout, threads and instruction set; see `src/cpu/reductions/kernels.h` for its error
bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from .. import _cpu
from .._cpu import View
from ..interop import validate
from .bounds import MomentBounds
from .engine import axes as _axes
from .engine.axes import Over, over_axes
from .engine.entry import DOUBLE, TOLD, Arg, Output, untyped
from .engine.execute import Execution
from .engine.op import (
    Kernels,
    Model,
    P,
    R,
    Traits,
    declared,
    float32_under_autocast,
    records,
)
from .engine.reductions import (
    INTEGERS,
    SUM_BOUNDS,
    TEXTS,
    AxisSum,
    PlainSum,
    fill,
    is_weighted,
    over_x,
    reduce_moments,
    spread_gradient,
    weighted_gradient,
)
from .engine.served import CachedOp
from .engine.weighting import SAVED, by_groups, places_of
from .moments import FIELDS, Moments
from .types import A, Array, ArrayOrNumber, Axes, DType, Kwargs, Out, Outs, Sliced, Stream

#: The reference of moments.
VARIANCES = """T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances", Stanford University, STAN-CS-79-773 (1979)"""

_cpu.register_result_type(Moments, FIELDS)

#: Names for what kernels make of m2, and for the gradient's factor, unless it is a number.
_OF_M2 = {"sum": "total", "mean": "nothing", "var": "variance", "std": "deviation", "m2": "m2"}
_SLOPES = {"mean": "mean slope", "var": "variance slope", "std": "deviation slope"}
_STEADY = {"sum": 1.0, "m2": 2.0}

#: Statistics of the distances from the mean; the others need x alone.
_SPREADS = ("m2", "var", "std")


class StatisticsOp(CachedOp[P, R]):
    """Statistics over axes: `results` are "sum", "mean", "var", "std", "m2", or two of them."""

    # Their derivation is in src/cpu/reductions/kernels.h.
    bounds = MomentBounds(
        2.0**-46, m2=2.0**-33, m2_double=2.0**-44, far=2.0**-51, merged=2, sums=SUM_BOUNDS
    )
    traits = Traits(integers=INTEGERS)
    skips = False  # elements that are NaN are left out; for a call, `skipna` says so
    summed: int | None = None  # the number of the term that it sums, or averages
    warning: str | None = None  # NumPy's warning of too few elements
    args = records(
        dy=Arg(validate.OF_RESULT, "shape", may_be_out=False),
        where=Arg(shape="whole"),
    )
    kernels = Kernels(names={"dmean": "dy[0]", "dsecond": "dy[1]"}, numbers={"initial": -0.0})

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

    def _of_m2(self, now: Execution) -> str:
        """Name what the kernels make of m2."""
        return _OF_M2[self.results[-1]]

    def _skips(self, now: Execution) -> bool:
        return bool(getattr(now.options, "skipna", self.skips))

    def _each(self, now: Execution) -> float:
        """Return the number of elements of a mean; a sum is divided by 1."""
        lengths = [now.views["x"].shape[axis] for axis in now.shapes.axes]
        return 1.0 if "sum" in self.results else float(math.prod(lengths))

    def _of_nothing(
        self, now: Execution, made: Mapping[str, View | None], correction: float
    ) -> None:
        """Fill the results for no elements: NaN or 0, also for a variance if correction < 0."""
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
        """Tell whether a gradient of a tuple is None, which is 0."""
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
            spread_gradient(now, "m2", **both)
            return
        found = self._computed(now, "m2")
        now.run("moments_backward", **found, share=1 / each, scale=scale)

    def _run_both_counted(self, now: Execution) -> None:
        """Compute both for elements that count more than once, or not at all.

        With two passes, 16-bit dx would be rounded twice.
        """
        dy, dsecond = (over_x(now, now.seen(name)) for name in now.entry.parts)
        of_mean = self._computed(now, "mean", is_mean=False)["slope"]
        to = of_mean
        for axis in now.shapes.axes:  # one number per result
            dy, to = dy.sliced(axis, 0, 1, 1), to.sliced(axis, 0, 1, 1)
        product: Any = {"x": to, "dy": dy, "slope": to, "weights": None, "where": None}
        weighted_gradient(now, to, **product, accumulate=False)
        found = self._computed(now, self.results[1])
        given = {"dy": dsecond, "of_mean": of_mean, "skips": self._skips(now)}
        weighted_gradient(now, now.view("dx"), **found, **given)

    def _add_gradient(self, now: Execution, of: str, dy: View, accumulate: bool) -> None:
        """Add the gradient by way of one result: a multiple of dy, or of dy (x - mean)."""
        x, skips, weighted = now.views["x"], self._skips(now), is_weighted(now)
        is_number = of in _STEADY or (of == "mean" and not skips and not weighted)
        is_far = of in _SPREADS
        is_found = is_far or not is_number
        is_other = self._is_other(now)
        if is_found and of in _SLOPES and now.call.is_on_gpu and not is_other:
            one: Any = {"correction": getattr(now.options, "correction", 0.0), "skips": skips}
            spread_gradient(now, _SLOPES[of], dy=dy, accumulate=accumulate, **one)
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
        """Tell whether the native functions of the gradient are those for weights."""
        return is_weighted(now) or self._is_other(now)

    def _is_other(self, now: Execution) -> bool:
        """Tell whether gradients have another dtype than x, which results with `dtype` have."""
        dtype = now.views["x"].dtype
        return any(now.views[name].dtype != dtype for name in now.entry.parts or ("dy",))

    def _hardly_rounded(self, now: Execution) -> View:
        """Make a view of the dtype that factors of a gradient have.

        For 16-bit data, a low part of the same dtype would leave the mean 17 or 22 bits.
        """
        x: View = now.views["x"]
        is_wide = self._takes_weights(now) or x.itemsize < 4
        return x.of_dtype(validate.DOUBLE) if is_wide else x

    def _computed(self, now: Execution, of: str, is_mean: bool = True) -> dict[str, View]:
        """Compute again what a gradient needs of x, over x's shape.

        This is the factor of dy, if that depends on x, and the mean in two parts.
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
        reduce_moments(now, results, _SLOPES.get(of, "m2"), correction, self._skips(now))
        return {name: over_x(now, view) for name, view in made.items()}


class PairOp(StatisticsOp[P, R]):
    """Mean and variance, or mean and m2, and backward by the gradients of both."""

    family = "reductions"
    results: tuple[str, ...] = ("mean", "var")

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function)
        self.saves = ("x", *(name for name in SAVED if name in call.parameters))
        dtype = DOUBLE if self.traits.reads_whole else TOLD
        made = (*self.results, "count", "squares")
        self.outs = {name: Output(shape="shape", dtype=dtype) for name in made}
        self._enter_points()

    def _texts(self) -> str:
        return TEXTS.format(data="x", called="moments", nothing="", reference=VARIANCES)

    def _gives(self) -> str:
        return f"dx, from a tuple of the gradients of {' and '.join(self.results)}"

    def _takes_weights(self, now: Execution) -> bool:
        is_narrow = now.views["x"].itemsize < 4
        return super()._takes_weights(now) or (is_narrow and self._skips(now))

    def backward(
        self,
        dy: tuple[ArrayOrNumber | None, ArrayOrNumber | None],
        x: A,
        /,
        *saved: Any,
        **options: Unpack[Kwargs[A]],
    ) -> A:
        """Compute the gradient with respect to x.

        With n elements per mean, ``dx = dmean / n + 2 * dvar * (x - mean) / (n - correction)`` for
        `mean_var`, and ``dx = dmean / n + 2 * dm2 * (x - mean)`` for `moments`. In m2 = sum((x -
        mean)**2) and in var the mean depends on x, too, but that adds nothing, because the
        distances from the mean sum to 0. With weights w, n is their sum, and dx is multiplied by w;
        it is 0 where an element does not count. Weights have no gradient here (`average` has one).

        Parameters
        ----------
        dy : tuple of two arrays, floats or None
            The gradients with respect to the results, (dmean, dvar) for `mean_var` and (dmean, dm2)
            for `moments`, of their shape and of x's dtype; None stands for 0.
        x : array
            What `forward` saved. Its mean is computed again and used unrounded, which takes memory
            for two arrays of the mean's shape: for 16-bit data one of float64; with weights or a
            mask, and for 16-bit data with `skipna`, three of float64.
        out : array, optional
            Where to write dx. It may be x itself, except with weights, a mask, `skipna` or `dtype`
            of `mean_var`, and must not share memory with a gradient.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u times the magnitudes of
        its two terms. The error of x - mean adds 2**-46 of the mean of abs(x), and of the largest
        abs(x) for types narrower than float64, times 2 abs(dvar) / (n - correction), for `moments`
        times 2 abs(dm2). One rounding to x's dtype follows.
        """


class MomentsOp(PairOp[P, R]):
    """`Moments`, in float64."""

    results = ("mean", "m2")
    traits = Traits(reads_whole=True, integers=INTEGERS)

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        """Add a count where it is an array, and `squares` where m2 is the caller's array.

        `Moments` hold m2 or its root, and compute m2 by arithmetic, which Numba's arrays lack.
        """
        found = super().outputs_of(entry, options)
        if entry == "backward":
            return found
        is_apart = options.out and options.out[1] is not None and hasattr(options.x, "__mul__")
        return (*found, *["count"] * _counts(options), *["squares"] * bool(is_apart))

    def _of_m2(self, now: Execution) -> str:
        return "m2 or root" if hasattr(now.options.x, "__mul__") else "m2"

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
        """Tell whether the count is a number."""
        return not _counts(self._options(named))

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        if not self.has_operator(named):
            raise TypeError(
                f"{self._where()}: skipna must be False, and weights, where and by None, when "
                f"torch traces the call, because the count would be an array"
            )
        return super().models(named)


def _counts(options: Any) -> bool:
    """Tell whether elements do not all count exactly once, for one result."""
    return options.skipna or any(getattr(options, name) is not None for name in SAVED)


class SquareSum(AxisSum[P, R]):
    """A sum of squares over axes, whose gradient needs x and may come in the same call."""

    family = "reductions"
    term = _cpu.TERMS.index("square")
    kernels = Kernels(
        {"backward": "sum_backward"}, numbers={**AxisSum.kernels.numbers, "term": term}
    )
    outs = records(
        y=Output(shape="shape", dtype=TOLD),
        value=Output(shape="shape"),
        grad=Output(in_place=True),
    )

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function)
        self._over = over_axes
        self.saves = ("x", *(name for name in SAVED if name in call.parameters))
        both = self._entry("value_and_grad", untyped(self.value_and_grad), ("value", "grad"))
        self._enter_points(value_and_grad=both)

    def backward(self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[Kwargs[A]]) -> A:
        """Compute the gradient with respect to x.

        ``dx = 2 * x * dy``, with dy repeated along the axes that were summed over, because each
        element adds its square to only one element of the sum. Elements that were left out or that
        have no group have a gradient of 0.

        Returns
        -------
        array
            The result, of x's shape, dtype and framework; for integers it is float64.

        Notes
        -----
        The gradient is rounded once to float32 or float64, and then to x's dtype.
        """

    def _run_backward(self, now: Execution) -> None:
        if not is_weighted(now) and now.views["dy"].dtype == now.views["x"].dtype:
            now.run("sum_backward")
        elif now.views["x"].size:
            dy = over_x(now, now.seen("dy"))
            weighted_gradient(now, now.view("dx"), dy=dy, term=self.term)

    def _shapes(self, call: Any, options: Any, entry: str = "call") -> Over:
        if entry != "value_and_grad":
            return super()._shapes(call, options, entry)
        return Over((), (), (), call.views["x"].shape)

    def value_and_grad(self, x: A, /, out: Outs[A] = None, *, stream: Stream = None) -> tuple[A, A]:
        """Return the sum of the squares of all of x and its gradient; on the CPU, in one pass.

        These are ``value = np.sum(x**2)`` and ``grad = 2 * x``, which `backward` gives for dy = 1.

        Parameters
        ----------
        x : array
            As for the call.
        out : tuple of two arrays or None, optional
            Where to write the value, of shape (), and the gradient, of x's shape, both of x's
            dtype; None allocates one. The gradient's may be x itself.

        Returns
        -------
        value : array
            The result of calling the op on x without an axis.
        grad : array
            The gradient, of x's shape, dtype and framework; for integers it is float64.

        Notes
        -----
        The value has the bits of the op's result, and the gradient has the bits of `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> value, grad = fa.sum_squares.value_and_grad(np.array([1.0, 2.0, 3.0]))
        >>> print(value, grad)
        14.0 [2. 4. 6.]
        """

    def _run_value_and_grad(self, now: Execution) -> None:
        now.run("square_value_and_grad", y=now.view("value"))


@float32_under_autocast("cuda")
@declared(PlainSum, over_axes)
def sum(
    x: Sliced[A],
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    initial: float | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum over axes.

    ``y = np.sum(x, axis, keepdims=keepdims)``, accumulated in double.

    See Also
    --------
    sum_squares : The sum of the squares.
    mean_var : Mean and variance.
    bias_grad : The sum over every axis but one.
    unbroadcast : The sum down to a shape.

    Notes
    -----
    For up to 2**40 terms, the result is at most 0.5 ULP plus 2**-46 (float16 and bfloat16: 2**-21)
    times the sum of abs(x) from the true sum. Terms are summed in double; up to eight 16-bit terms
    are first added in float32. Blocks of 2048 terms are added with compensation, and the
    sum is rounded once. 2**28 ones in bfloat16 sum to 2**28, and ``[3e38, 3e38, -3e38]`` in
    bfloat16 or float32 sums to 3e38. Infinities and NaN propagate as in a plain sum.

    Terms are added up in the order of the axes, or in memory's order if memory holds the reduced
    axes in another order, as in a transposed array. Apart from that, the bits depend only on the
    values and on the reduced lengths. They are the same for any number of threads, on AVX2 and
    AVX-512, alone and in any batch, for any address of x and any strides. (On a GPU, the strides of
    several reduced axes and the memory layout of the result may matter.)

    `sum.forward` saves ``(shape, where, by, x_dtype)``, with the shape of x, and its dtype if
    `dtype` is given. `sum.backward` gives dx, which is dy repeated along the reduced axes.

    Examples
    --------
    >>> fa.sum(np.ones((2, 3), np.float32), axis=0)
    array([2., 2., 2.], dtype=float32)
    >>> fa.sum(np.array([[3e38], [3e38], [-3e38]], np.float32), axis=0)
    array([3.e+38], dtype=float32)
    >>> fa.sum(np.array([[1.0, np.nan], [2.0, 3.0]]), axis=1, where=[[True, False], [True, True]])
    array([1., 5.])
    >>> fa.sum(np.array([1.0, 2.0, 4.0, 8.0]), by=[0, 2, 0, -1], groups=3)
    array([5., 0., 2.])
    >>> fa.sum(np.full(3, 3e4, np.float16), dtype=np.float32, initial=0.5)
    np.float32(90000.5)
    >>> y, saved = fa.sum.forward(np.ones((2, 3)), axis=0)
    >>> fa.sum.backward(np.array([1.0, 2.0, 3.0]), *saved, axis=0)
    array([[1., 2., 3.],
           [1., 2., 3.]])
    """


@declared(SquareSum)
def sum_squares(
    x: Sliced[A],
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Sum of squares over axes.

    ``y = np.sum(x**2, axis, keepdims=keepdims)``, squared and accumulated in double.

    See Also
    --------
    sum : The sum of the elements themselves.
    moments : The sum of the squared distances from the mean.

    Notes
    -----
    For up to 2**40 terms, the result is at most 0.5 ULP plus 2**-46 (float16 and bfloat16: 2**-21)
    times the true sum from the true sum. Squares of float16, bfloat16 and float32 are exact;
    squares of float64 are rounded, overflow from 1.3e154 on and vanish below 1.6e-162. Terms are
    added in the order of `fastact.sum`, and the bits are just as independent of threads,
    instruction set and batch.

    A mask takes memory for an array of x's shape and dtype.

    `sum_squares.forward` saves ``(x, where, by)``; `sum_squares.backward` gives dx = 2 x dy, with
    dy repeated along the reduced axes. `sum_squares.value_and_grad` gives the sum of the squares of
    all of x, and 2 x, in one pass.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> fa.sum_squares(x, axis=1)
    array([ 5., 25.])
    >>> fa.sum_squares(x, axis=1, where=x > 1)
    array([ 4., 25.])
    >>> y, saved = fa.sum_squares.forward(x, axis=0)
    >>> fa.sum_squares.backward(np.array([1.0, 0.5]), *saved, axis=0)
    array([[2., 2.],
           [6., 4.]])
    >>> value, grad = fa.sum_squares.value_and_grad(x)
    >>> print(value)
    30.0
    """


@declared(PairOp)
def mean_var(
    x: Sliced[A],
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    skipna: bool = False,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Outs[A] = None,
    stream: Stream = None,
) -> tuple[A, A]:
    """Mean and variance over axes, in one read of x.

    ``mean = np.mean(x, axis)`` and ``var = np.var(x, axis, ddof=correction)``, which is the sum of
    the squared distances from the mean over n - correction, with n elements per mean.

    Parameters
    ----------
    out : tuple of two arrays or None, optional
        Where to write mean and variance, which must not share memory with x or with each other;
        None allocates one.

    Returns
    -------
    mean : array
        The mean, of x's framework and of its dtype or the given `dtype`; float64 for integers.
    var : array
        The variance, of the same shape, dtype and framework.

    See Also
    --------
    moments : Mean and m2 in float64, which merge with others.
    sum : The sum of the elements.

    Notes
    -----
    Both are computed in double and rounded once. The mean has an error of at most 0.5 ULP and
    2**-46 of the mean of abs(x), and also of the largest abs(x) for types narrower than float64.
    The variance has an error of at most 0.5 ULP and a relative error of 2**-33 (float64: 2**-44)
    plus 2**-51 abs(mean) / std, also for data far from 0 and near the ends of the dtype's range.
    For equal values it is 0, and it is never negative.

    Infinities, NaN and no elements give what NumPy gives; with `skipna` they give what `np.nanvar`
    gives. A variance that exceeds the largest float64 is infinite. Terms are added up in the order
    of `fastact.sum`, with its promise of the same bits. A weight that is negative or not finite
    gives NaN and a RuntimeWarning.

    Examples
    --------
    >>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
    >>> fa.mean_var(x, axis=1, correction=1)
    (array([2., 4.]), array([2., 0.]))
    >>> fa.mean_var(np.float32([1e4, 1e4 + 1]))
    (np.float32(10000.5), np.float32(0.25))
    >>> fa.mean_var(x, axis=1, weights=np.array([3.0, 1.0]), where=x > 1)
    (array([3., 4.]), array([0., 0.]))
    >>> (mean, var), saved = fa.mean_var.forward(x, axis=1)
    >>> fa.mean_var.backward((None, np.ones(2)), *saved, axis=1)
    array([[-1.,  1.],
           [ 0.,  0.]])
    """


@declared(MomentsOp)
def moments(
    x: Array,
    /,
    axis: Axes = None,
    *,
    weights: Array | None = None,
    skipna: bool = False,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Outs[Array] = None,
    stream: Stream = None,
) -> Moments:
    """Mean and m2 over axes, in one read of x, as `Moments`, which merge with others.

    ``mean = np.mean(x, axis)`` and ``m2 = n * np.var(x, axis)``, which is the sum of the squared
    distances from the mean, with n elements per mean.

    Parameters
    ----------
    out : tuple of two arrays or None, optional
        Where to write mean and m2, both of float64, which must not share memory with x or with each
        other; None allocates one. An array for m2 takes memory for another one, in which `Moments`
        hold an m2 that float64 cannot.

    Returns
    -------
    Moments
        The count, and mean and m2 in float64, of x's framework; for no elements they are 0, NaN and
        0. With `skipna`, `weights`, `where` or `by` the count is a float64 array of the mean's
        shape; with `weights` it is their sum.

    See Also
    --------
    Moments : The class of the result.
    mean_var : Mean and variance, in x's dtype.

    Notes
    -----
    Mean and m2 are computed and returned in double. The mean has an error of at most 2**-53 of
    itself and 2**-46 of the mean of abs(x), and also of the largest abs(x) for types narrower than
    float64. m2 has a relative error of at most 2**-33 (float64: 2**-44) plus 2**-51 abs(mean) /
    std. For merged moments the bounds are at most twice that, whatever the split; the same split
    gives the same bits.

    Infinities, NaN and no elements give what NumPy gives. An m2 that exceeds the largest float64 is
    infinite, but `Moments.std` is still right. Terms are added up in the order of `fastact.sum`,
    with its promise of the same bits.

    Weights are frequencies: the moments are as if each element of x were repeated that often, and
    they merge with others as usual. A weight that is negative or not finite gives NaN and a
    RuntimeWarning.

    Examples
    --------
    >>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
    >>> fa.moments(x, axis=1)
    Moments(count=2, mean=array([2., 4.]), m2=array([2., 0.]))
    >>> fa.moments(x, axis=1, weights=np.array([3.0, 1.0]))
    Moments(count=array([4., 4.]), mean=array([1.5, 4. ]), m2=array([3., 0.]))
    >>> m, saved = fa.moments.forward(x, axis=1)
    >>> fa.moments.backward((1.0, None), *saved, axis=1)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
