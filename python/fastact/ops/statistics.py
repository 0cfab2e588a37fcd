"""Statistics: over any axes, of all elements or of those that count.

What NumPy calls by these names: the bits do not depend on the threads, nothing is allocated that
grows with x, and values far from 0 lose no digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from . import reductions
from .engine.entry import TOLD, Output
from .engine.execute import Execution
from .engine.op import P, R, Traits, called_as, declared, records
from .engine.reductions import (
    IDENTITY,
    INTEGERS,
    SUMS,
    TEXTS,
    VALID,
    add_up,
    fill,
    is_weighted,
    over_x,
    spread_gradient,
    weighted_gradient,
)
from .engine.weighting import SAVED
from .reductions import VARIANCES, StatisticsOp
from .types import A, Array, ArrayOrNumber, Axes, DType, Kwargs, Out, Sliced, Stream

#: Further words that the docstrings of all statistics share.
_TEXTS = """

See Also
--------
{other} : {elements}.
mean_var : Mean and variance in one read.
moments : Mean and m2 in float64, which merge with others.

Notes
-----
{kind.accuracy} Computed in double and rounded once. {infinite} propagate as they do in NumPy.

[own]

{same_bits}Terms are added up in the order of `fastact.sum`, with its promise of the same bits.
{no_warning}

{weighted}
"""

_FREQUENCIES = """Weights are frequencies: the result is as if each element of x were repeated so
often, and n is the sum of the weights. Where they say how reliable elements are, and their scale
has no meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased.
Their sum has an error of 2**-46 of itself, which shows where a correction takes nearly all of
it."""

_TOO_FEW = "Of no more than `correction` elements it is {nan}, and a RuntimeWarning says so"


class Kind(NamedTuple):
    """What is said of a statistic: in words, and (warning) by NumPy of too few elements."""

    called: str
    accuracy: str
    nothing: str
    weighted: str = ""
    warning: str | None = None


_KINDS = {
    "sum": Kind(
        "sum",
        """At most 0.5 ULP of the result plus 2**-46, for float16 and bfloat16 2**-21, times the sum
        of the abs(x) that count from the true sum.""",
        "Of no elements{or_nan} it is 0",
    ),
    "mean": Kind(
        "mean",
        """At most 0.5 ULP of the result plus 2**-46, for float16 and bfloat16 2**-21, times the
        mean of the abs(x) that count from the true mean.""",
        "Of no elements{or_nan} it is NaN, and a RuntimeWarning says so",
        """With weights it is ``sum(weights * x) / sum(weights)``, and the bound is of the mean of
        the abs(x) as they are weighted.""",
        "Mean of empty slice",
    ),
    "var": Kind(
        "variance",
        """At most 0.5 ULP, a share of 2**-33 of itself (float64: 2**-44) and of 2**-51 of abs(mean)
        / std from the true variance, also for data far from 0. Of equal values it is 0, and it is
        never negative.""",
        _TOO_FEW,
        _FREQUENCIES,
        "Degrees of freedom <= 0 for slice.",
    ),
    "std": Kind(
        "standard deviation",
        """At most 0.5 ULP, a share of 2**-34 of itself (float64: 2**-45) and of 2**-52 of abs(mean)
        / std from the true standard deviation, also for data far from 0. Of equal values it is
        0.""",
        _TOO_FEW,
        _FREQUENCIES,
        "Degrees of freedom <= 0 for slice.",
    ),
}


class AxisStatistic(StatisticsOp[P, R]):
    """A sum, mean, variance or standard deviation over some axes, of x's dtype.

    of : which of them: "sum", "mean", "var" or "std".
    term : of a sum, what is summed, as a sum's own.
    """

    family = "statistics"
    traits = Traits(reads_whole=True, integers=INTEGERS)

    def __init__(self, function: Callable[P, R], of: str, *, skips: bool = False) -> None:
        call = self._declare(function)
        self.of, self.skips, self.warning = of, skips, _KINDS[of].warning
        self.term = (VALID if skips else IDENTITY) if of == "sum" else None
        self.summed = IDENTITY if of == "mean" and not skips else self.term
        self.results = (of,)
        self.saves = ("x", *(name for name in SAVED if name in call.parameters))
        made = Output(shape="shape", dtype=TOLD)
        self.outs = {**self.outs, **dict.fromkeys((of, "count"), made)}
        self._enter_points(front=self.differentiated, but=("returned", "initial"))

    def _texts(self) -> str:
        kind, skips = _KINDS[self.of], self.skips
        nan, or_nan = "NaN" if skips else "infinite or NaN", ", or of NaN alone," if skips else ""
        nothing = kind.nothing.format(nan=nan, or_nan=or_nan)
        without_nan = (
            f"Without NaN, `fastact.{self.name.removeprefix('nan')}` gives the same bits. "
        )
        negative = (
            "A weight that is negative or not finite makes NaN, and a RuntimeWarning says so."
        )
        is_weighted = "weights" in self.__signature__.parameters
        is_spread = self.of in ("var", "std")
        reference = VARIANCES if is_spread else SUMS
        return TEXTS.format(
            data="x", called=kind.called, nothing=nothing, reference=reference
        ) + _TEXTS.format(
            kind=kind,
            other=self.of if skips else f"nan{self.of}",
            elements="Of all elements" if skips else "Of the elements that are not NaN",
            infinite="Infinities" if skips else "Infinities and NaN",
            same_bits=without_nan if skips and self.of != "mean" else "",
            no_warning="On a GPU there is no warning." if kind.warning else "",
            weighted=f"{kind.weighted} {negative}" if is_weighted else "",
        )

    def _gives(self) -> str:
        return "dx, which is 0 where x is NaN" if self.skips else super()._gives()

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        found = super().outputs_of(entry, options)
        return (*found, "count") if getattr(options, "returned", False) else found

    def backward(self, dy: ArrayOrNumber, /, *saved: Any, **options: Unpack[Kwargs[Any]]) -> Any:
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

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u of itself, and, for x -
        mean, the mean's error times its factor; then one rounding to x's dtype. With weights, n has
        the error that the op's notes tell.
        """


class Average(AxisStatistic[P, R]):
    """A mean whose weights have a gradient."""

    gradients = ("dx", "dweights")
    outs = records(dx=Output())
    # The sum of the weights has no gradient.
    traits = AxisStatistic.traits._replace(unrecorded=("returned",))

    def __init__(self, function: Callable[P, R]) -> None:
        super().__init__(function, "mean")

    def _takes_weights(self, now: Execution) -> bool:
        return True

    def backward(self, dy: ArrayOrNumber, /, *saved: Any, **options: Unpack[Kwargs[Any]]) -> Any:
        """The gradients with respect to x and to the weights.

        With weights w of sum W and the average y, ``dx = dy * w / W`` and
        ``dweights = dy * (x - y) / W``, added up over what the weights repeat along; 0 where an
        element is masked.

        Parameters
        ----------
        x, weights : array
            What `forward` saved. The average is computed anew: for that, memory of two arrays of
            its shape and float64 is taken, and where the weights repeat, of one of x's shape.

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
            also: Any = {"dweights": each, "accumulate_dweights": adds}
            spread_gradient(now, "mean slope", dy=dy, **also)
        else:
            given = {"dy": dy, **self._computed(now, "mean")}
            if dx is not None:
                weighted_gradient(now, dx, **{**given, "mean": None})
            if each is not None:
                weighted_gradient(now, each, **given, of_weights=True, accumulate=adds)
        if repeats:
            add_up(now.call, each, dweights, repeats, accumulate)


@declared(AxisStatistic, "mean")
def mean(
    x: Sliced[A],
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Mean over axes.

    ``y = np.mean(x, axis)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.mean(np.array([[1.0, 3.0], [4.0, 4.0]]), axis=1)
    array([2., 4.])
    >>> y, saved = fa.mean.forward(np.array([1.0, 3.0]))
    >>> fa.mean.backward(1.0, *saved)
    array([0.5, 0.5])
    """


@declared(Average)
def average(
    x: Sliced[A],
    /,
    axis: Axes = None,
    weights: Array | None = None,
    *,
    dtype: DType = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    returned: bool = False,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Weighted mean over axes.

    ``y = np.average(x, axis, weights)``, accumulated in double, without a product of x's size.

    Parameters
    ----------
    returned : bool, default False
        Return the sum of the weights, too, as np.average does: the number of elements without any.
        A call that torch's or JAX's gradients record must not ask for it.

    Returns
    -------
    array
        The average, of x's framework and dtype, or the one that `dtype` names. Where all weights
        are 0 it is NaN, and a RuntimeWarning says so, as for no elements.
    sum_of_weights : array
        Where `returned` is True, of the average's shape, dtype and framework.

    See Also
    --------
    mean : The same; weights have no gradient there.

    Examples
    --------
    >>> x, weights = np.array([[1.0, 5.0], [2.0, 2.0]]), np.array([3.0, 1.0])
    >>> fa.average(x, 1, weights)
    array([2., 2.])
    >>> fa.average(x, axis=1, weights=weights, where=[True, False], returned=True)
    (array([1., 2.]), array([3., 3.]))
    >>> y, saved = fa.average.forward(x, axis=1, weights=weights)
    >>> fa.average.backward(np.ones(2), *saved, axis=1)[0]
    array([[0.75, 0.25],
           [0.75, 0.25]])
    """


@declared(AxisStatistic, "var")
def var(
    x: Sliced[A],
    /,
    axis: Axes = None,
    *,
    dtype: DType = None,
    correction: float = 0,
    ddof: float | None = None,
    weights: Array | None = None,
    where: ArrayOrNumber | None = None,
    by: Array | None = None,
    groups: int | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Variance over axes.

    ``y = np.var(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.var(np.array([[1.0, 3.0], [4.0, 4.0]]), axis=1, correction=1)
    array([2., 0.])
    >>> fa.var(np.array([[1.0, 3.0]]), axis=1, ddof=1)
    array([2.])
    >>> y, saved = fa.var.forward(np.array([1.0, 3.0]))
    >>> fa.var.backward(1.0, *saved)
    array([-1.,  1.])
    """


@declared(AxisStatistic, "std")
@called_as(var)
def std() -> None:
    """Standard deviation over axes.

    ``y = np.std(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.std(np.array([[1.0, 3.0], [4.0, 4.0]]), axis=1)
    array([1., 0.])
    >>> fa.std(np.array([[1.0, 4.0, 7.0]]), axis=1, ddof=1)
    array([3.])
    >>> y, saved = fa.std.forward(np.array([1.0, 3.0]))
    >>> fa.std.backward(1.0, *saved)
    array([-0.5,  0.5])
    """


@declared(AxisStatistic, "sum", skips=True)
@called_as(reductions.sum)
def nansum() -> None:
    """Sum over axes of the elements that are not NaN.

    ``y = np.nansum(x, axis)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.nansum(np.array([[1.0, np.nan], [4.0, 4.0]]), axis=1)
    array([1., 8.])
    >>> y, saved = fa.nansum.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nansum.backward(1.0, *saved)
    array([1., 0., 1.])
    """


@declared(AxisStatistic, "mean", skips=True)
@called_as(mean)
def nanmean() -> None:
    """Mean over axes of the elements that are not NaN.

    ``y = np.nanmean(x, axis)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.nanmean(np.array([[1.0, np.nan], [4.0, 6.0]]), axis=1)
    array([1., 5.])
    >>> y, saved = fa.nanmean.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nanmean.backward(1.0, *saved)
    array([0.5, 0. , 0.5])
    """


@declared(AxisStatistic, "var", skips=True)
@called_as(var)
def nanvar() -> None:
    """Variance over axes of the elements that are not NaN.

    ``y = np.nanvar(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.nanvar(np.array([[1.0, np.nan, 3.0], [4.0, 4.0, 4.0]]), axis=1)
    array([1., 0.])
    >>> fa.nanvar(np.array([[1.0, np.nan, 3.0]]), axis=1, ddof=1)
    array([2.])
    >>> y, saved = fa.nanvar.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nanvar.backward(1.0, *saved)
    array([-1.,  0.,  1.])
    """


@declared(AxisStatistic, "std", skips=True)
@called_as(std)
def nanstd() -> None:
    """Standard deviation over axes of the elements that are not NaN.

    ``y = np.nanstd(x, axis, ddof=correction)``, accumulated in double, in one read of x.

    Examples
    --------
    >>> fa.nanstd(np.array([[1.0, np.nan, 3.0], [4.0, 4.0, 4.0]]), axis=1)
    array([1., 0.])
    >>> fa.nanstd(np.array([[1.0, 4.0, np.nan, 7.0]]), axis=1, ddof=1)
    array([3.])
    >>> y, saved = fa.nanstd.forward(np.array([1.0, np.nan, 3.0]))
    >>> fa.nanstd.backward(1.0, *saved)
    array([-0.5,  0. ,  0.5])
    """
