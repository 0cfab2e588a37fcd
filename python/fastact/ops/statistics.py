"""Statistics: over any axes, of all elements or of those that count.

They are NumPy's functions of these names, but the bits do not depend on the threads, no memory is
allocated that grows with x, and values far from 0 lose no digits.
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
{kind.accuracy} It is computed in double and rounded once. {infinite} propagate as in NumPy.

[own]

{same_bits}Terms are added up in the order of `fastact.sum`, with its promise of the same bits.
{no_warning}

{weighted}
"""

_FREQUENCIES = """Weights are frequencies: the result is as if each element of x were repeated that
often, and n is the sum of the weights. If they say how reliable elements are, so that their scale
has no meaning, ``correction=np.sum(weights**2) / np.sum(weights)`` makes the variance unbiased. The
sum of the weights has a relative error of 2**-46, which matters if a correction is nearly as large
as the sum."""

_TOO_FEW = "For at most `correction` elements it is {nan}, with a RuntimeWarning"


class Kind(NamedTuple):
    """The words on a statistic, and NumPy's warning of too few elements."""

    called: str
    accuracy: str
    nothing: str
    weighted: str = ""
    warning: str | None = None


_KINDS = {
    "sum": Kind(
        "sum",
        """The result is at most 0.5 ULP plus 2**-46 (float16 and bfloat16: 2**-21) times the sum of
        the abs(x) that count from the true sum.""",
        "For no elements{or_nan} it is 0",
    ),
    "mean": Kind(
        "mean",
        """The result is at most 0.5 ULP plus 2**-46 (float16 and bfloat16: 2**-21) times the mean
        of the abs(x) that count from the true mean.""",
        "For no elements{or_nan} it is NaN, with a RuntimeWarning",
        """With weights it is ``sum(weights * x) / sum(weights)``, and the bound has the weighted
        mean of abs(x).""",
        "Mean of empty slice",
    ),
    "var": Kind(
        "variance",
        """The result has an error of at most 0.5 ULP and a relative error of 2**-33 (float64:
        2**-44) plus 2**-51 abs(mean) / std, also for data far from 0. For equal values it is 0, and
        it is never negative.""",
        _TOO_FEW,
        _FREQUENCIES,
        "Degrees of freedom <= 0 for slice.",
    ),
    "std": Kind(
        "standard deviation",
        """The result has an error of at most 0.5 ULP and a relative error of 2**-34 (float64:
        2**-45) plus 2**-52 abs(mean) / std, also for data far from 0. For equal values it is 0.""",
        _TOO_FEW,
        _FREQUENCIES,
        "Degrees of freedom <= 0 for slice.",
    ),
}


class AxisStatistic(StatisticsOp[P, R]):
    """A sum, mean, variance or standard deviation over some axes, of x's dtype.

    of : the kind, "sum", "mean", "var" or "std".
    term : what a sum adds up, by its number.
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
        nan, or_nan = "NaN" if skips else "infinite or NaN", ", or only NaN," if skips else ""
        nothing = kind.nothing.format(nan=nan, or_nan=or_nan)
        without_nan = (
            f"Without NaN, `fastact.{self.name.removeprefix('nan')}` gives the same bits. "
        )
        negative = "A weight that is negative or not finite gives NaN and a RuntimeWarning."
        is_weighted = "weights" in self.__signature__.parameters
        is_spread = self.of in ("var", "std")
        reference = VARIANCES if is_spread else SUMS
        return TEXTS.format(
            data="x", called=kind.called, nothing=nothing, reference=reference
        ) + _TEXTS.format(
            kind=kind,
            other=self.of if skips else f"nan{self.of}",
            elements="The same over all elements" if skips else "The same without NaN",
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
        """Compute the gradient with respect to x.

        With n elements that count, a sum has ``dx = dy``, a mean ``dx = dy / n``, a variance
        ``dx = 2 * dy * (x - mean) / (n - correction)``, and a standard deviation
        ``dx = dy * (x - mean) / ((n - correction) * std)``, or 0 if std is 0. The mean depends on
        x, too, but that adds nothing, because the distances from the mean sum to 0. Skipped
        elements have a gradient of 0. With weights, n is their sum, and dx is multiplied by them.
        Weights have no gradient here (`average` has one).

        Parameters
        ----------
        x : array
            What `forward` saved. Its moments are computed again, which takes memory for up to three
            arrays of the statistic's shape, in float64 for 16-bit data, weights and masks.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx has an error of at most 6 u of itself, plus the mean's
        error times the factor of x - mean. One rounding to x's dtype follows. With weights, n has
        the error that the op's notes state.
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
        """Compute the gradients with respect to x and to the weights.

        With weights w of sum W and the average y, ``dx = dy * w / W`` and
        ``dweights = dy * (x - y) / W``, summed over the axes along which the weights repeat. Both
        are 0 where an element is masked.

        Parameters
        ----------
        x, weights : array
            What `forward` saved. The average is computed again, which takes memory for two float64
            arrays of its shape, and for one of x's shape if the weights repeat.

        Returns
        -------
        dweights : array or None
            The gradient with respect to the weights, of their shape and dtype; None without
            weights, and for integers.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), dx and dweights have an error of at most 6 u of
        themselves, and dweights also that of y times the factor of x - y. One rounding to their
        dtype follows. If the weights repeat, dweights is summed in the order of `fastact.sum`.
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
        If True, also return the sum of the weights, as np.average does; without weights it is the
        number of elements. A call that torch or JAX differentiates cannot return it.

    Returns
    -------
    array
        The average, of x's framework and of its dtype or the given `dtype`. If all weights are 0,
        or for no elements, it is NaN, with a RuntimeWarning.
    sum_of_weights : array
        The sum of the weights, of the average's shape, dtype and framework, if `returned` is True.

    See Also
    --------
    mean : The same, without a gradient for the weights.

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
