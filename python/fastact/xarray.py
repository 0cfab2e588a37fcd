"""Statistics of labelled arrays over named dimensions, which keep labels and attributes.

Element-wise ops do not need this module: for a DataArray or a Dataset they return one. Functions
here take the same objects, and are lazy if the data are dask's. Besides `mean`, `var`, `std`,
`mean_var`, `sum`, `sum_squares`, `weighted` and `groupby`, the module has every op of `fastact.ops`
that is one statistic over axes, under its name, with the op's own options by keyword::

    import fastact.xarray as fx

    fx.var(temperature, "time", ddof=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from inspect import signature
from typing import Any, TypeAlias

import numpy as np

from .waiting import installed

with installed("xarray", "xarray"):
    import xarray as xr

from .interop import foreign, validate
from .masked import quietly
from .ops.engine.entry import one_correction
from .ops.engine.op import ops

__all__ = [
    *("GroupBy", "Weighted", "groupby", "mean", "mean_var", "std", "sum", "sum_squares", "var"),
    "weighted",
]

Dims: TypeAlias = "Hashable | Iterable[Hashable] | None"

_STATISTICS = {"mean", "var", "std", "sum"}


def mean(
    obj: Any, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: bool | None = None
) -> Any:
    """Compute the mean over dimensions, by default over all of them.

    Parameters
    ----------
    obj : DataArray, Dataset or Variable
        The object, which holds numbers. Each variable of a Dataset is reduced over those of the
        dimensions that it has, and kept unchanged if it has none of them.
    dim : str or iterable of str, optional
        The dimensions to reduce, each named once.
    skipna : bool, optional
        Whether to leave NaN out, as for xarray's own functions; None does so, too.
    keep_attrs : bool, optional
        Whether to keep attributes, as for xarray's own functions.

    Returns
    -------
    DataArray, Dataset or Variable
        The mean, with the other dimensions and their labels. For a dask array it is lazy.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> x = xr.DataArray(np.arange(6.0).reshape(2, 3), {"row": ["a", "b"]}, ["row", "column"])
    >>> fx.mean(x, "column").sel(row="b").item()
    4.0
    """
    return _reduced("mean", obj, dim, skipna, keep_attrs)


def var(
    obj: Any,
    dim: Dims = None,
    *,
    correction: float = 0,
    ddof: float | None = None,
    skipna: bool | None = None,
    keep_attrs: bool | None = None,
) -> Any:
    """Compute the variance over dimensions, with the arguments of `mean`.

    correction : the number that is subtracted from the count of elements; xarray calls it `ddof`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> fx.var(xr.DataArray(np.array([1.0, 3.0, np.nan])), ddof=1).item()
    2.0
    """
    correction = one_correction("fastact.xarray.var", correction, ddof)
    return _reduced("var", obj, dim, skipna, keep_attrs, correction=correction)


def std(
    obj: Any,
    dim: Dims = None,
    *,
    correction: float = 0,
    ddof: float | None = None,
    skipna: bool | None = None,
    keep_attrs: bool | None = None,
) -> Any:
    """Compute the standard deviation over dimensions, with the arguments of `var`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> fx.std(xr.DataArray(np.array([1.0, 3.0]))).item()
    1.0
    """
    correction = one_correction("fastact.xarray.std", correction, ddof)
    return _reduced("std", obj, dim, skipna, keep_attrs, correction=correction)


def mean_var(
    obj: Any,
    dim: Dims = None,
    *,
    correction: float = 0,
    ddof: float | None = None,
    skipna: bool | None = None,
    keep_attrs: bool | None = None,
) -> tuple[Any, Any]:
    """Compute mean and variance over dimensions, in one read of a DataArray.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> [part.item() for part in fx.mean_var(xr.DataArray(np.array([1.0, 3.0])))]
    [2.0, 1.0]
    """
    options: Any = {"skipna": skipna, "keep_attrs": keep_attrs}
    correction = one_correction("fastact.xarray.mean_var", correction, ddof)
    if isinstance(obj, xr.Dataset):
        return mean(obj, dim, **options), var(obj, dim, correction=correction, **options)
    both: tuple[Any, Any] = _reduced("mean_var", obj, dim, correction=correction, **options)
    return both


def sum(
    obj: Any, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: bool | None = None
) -> Any:
    """Compute the sum over dimensions, with the arguments of `mean`; it is 0 for no elements.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> fx.sum(xr.DataArray(np.array([1.0, np.nan, 3.0]))).item()
    4.0
    """
    return _reduced("sum", obj, dim, skipna, keep_attrs)


def sum_squares(
    obj: Any, dim: Dims = None, *, skipna: bool | None = None, keep_attrs: bool | None = None
) -> Any:
    """Compute the sum of the squares over dimensions, with the arguments of `sum`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> fx.sum_squares(xr.DataArray(np.array([1.0, np.nan, 3.0]))).item()
    10.0
    """
    return _reduced("sum_squares", obj, dim, skipna, keep_attrs)


def _statistic(name: str, text: str, like: Callable[..., Any] = mean) -> Callable[..., Any]:
    """Make a method that reduces by a statistic, with the arguments of the module's function."""
    takes = signature(like)

    def method(self: Any, *args: Any, **options: Any) -> Any:
        given = takes.bind(self, *args, **options).arguments
        del given["obj"]
        return self._reduced(name, **given)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = text
    method.__signature__ = takes  # type: ignore[attr-defined]
    return method


class Weighted:
    """Statistics in which each element counts by its weight, which `weighted` returns.

    As in xarray, `dim` may be a dimension of the weights only, labels that only one of both has are
    left out, and the result has xarray's order of dimensions. skipna : leave NaN out, the default.
    """

    def __init__(self, obj: Any, weights: Any) -> None:
        where = "fastact.xarray.weighted"
        _check_object(where, obj, (xr.DataArray, xr.Dataset))
        _check_object(where, weights, (xr.DataArray,), "weights")
        self._own = obj.weighted(weights)  # which refuses weights that are missing
        self.obj, self.weights = obj, self._own.weights

    mean = _statistic("mean", "The weighted mean, or NaN if the weights sum to 0.")
    var = _statistic("var", "The weighted variance, over the sum of the weights.")
    std = _statistic("std", "The square root of `var`.")
    sum = _statistic("sum", "The sum of each element times its weight.")
    sum_of_squares = _statistic(
        "sum_of_squares",
        "The sum of each squared distance from the weighted mean times its weight.",
    )

    def groupby(self, group: Any = None, **groupers: Any) -> GroupBy:
        """Group as `groupby` does, for mean, var and std; negative weights give NaN."""
        return GroupBy(self.obj, group, groupers, self)

    def sum_of_weights(self, dim: Dims = None, *, keep_attrs: bool | None = None) -> Any:
        """Return xarray's sum of the weights of elements that are not NaN; a sum of 0 is NaN."""
        return self._own.sum_of_weights(None if dim is ... else dim, keep_attrs=keep_attrs)

    def _reduced(
        self, name: str, dim: Dims = None, skipna: bool | None = None, keep_attrs: Any = None
    ) -> Any:
        where, dims = f"fastact.xarray.weighted.{name}", (*self.obj.dims, *self.weights.dims)
        over = _over(where, dim, tuple(dict.fromkeys(dims)), once=False)
        function = partial(_weighted, name, _skips(where, skipna))
        reduce = partial(_weighted_variable, function, over, self.weights)
        return _by_variable(where, self.obj, reduce, keep_attrs)


#: A DataArray's name in the Dataset that is made of it, which no coordinate has.
_ARRAY = "<the array>"


def _by_variable(
    where: str, obj: Any, function: Callable[[Any], Any], keep_attrs: bool | None
) -> Any:
    """Apply a function to each variable of a Dataset, or to a DataArray."""

    def each(variable: Any) -> Any:
        try:
            return function(variable)
        except TypeError as error:
            named = "" if variable.name == _ARRAY else f"{variable.name!r} of the Dataset: "
            raise TypeError(f"{where}: {named}{error}") from None

    if isinstance(obj, xr.Dataset):
        return obj.map(each, keep_attrs=keep_attrs)
    found = obj.to_dataset(name=_ARRAY).map(each, keep_attrs=keep_attrs)
    return found[_ARRAY].rename(obj.name)


def _weighted(name: str, skips: bool, x: Any, weights: Any, over: tuple[Hashable, ...]) -> Any:
    """Compute a statistic of a variable and its weights, over dimensions that both have."""
    is_sum = name.startswith("sum")
    if not (is_sum or _has_negative(weights)):
        return _applied(partial(_of_weights, _op(name, skips)), [x, weights], over, False)
    y, count, mean, m2 = _moments(skips, x, weights, over)
    if name == "sum_of_squares":
        y = m2
        if all(x.sizes[one] for one in over):  # else no mean is there, and no distance, or NaN
            y = m2.where(count != 0, 0.0 if skips else np.nan)
    elif not is_sum:
        count = count.where(count != 0)  # a lazy division by 0 would warn
        y = (mean if name == "mean" else m2 / count).where(count.notnull())
    return (y.where(y >= 0) ** 0.5 if name == "std" else y).astype(_dtype(x))


def _dtype(x: Any) -> Any:
    """Give the results' dtype; integers are computed as float64."""
    return np.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype.newbyteorder("=")


def _moments(skips: bool, x: Any, weights: Any, over: tuple[Hashable, ...]) -> Any:
    """Sum, count, mean and m2; elements of negative weight are taken away, by Chan's formula."""
    total, count, mean, m2 = _moments_of_sign(skips, x, weights, over, 1)
    if not _has_negative(weights):
        return total, count, mean, m2
    total_b, count_b, mean_b, m2_b = _moments_of_sign(skips, x, weights, over, -1)
    both, delta = count - count_b, mean_b - mean
    share = -count_b / both.where(both != 0)
    mean_of_both = mean + delta * share
    m2_of_both = m2 - m2_b + delta**2 * (count * share)
    one, other = count_b == 0, count == 0
    return (
        total - total_b,
        both,
        xr.where(one, mean, xr.where(other, mean_b, mean_of_both)),
        xr.where(one, m2, xr.where(other, -m2_b, m2_of_both)),
    )


def _moments_of_sign(
    skips: bool, x: Any, weights: Any, over: tuple[Hashable, ...], sign: int
) -> Any:
    """Compute the moments of the elements whose weight has this sign."""

    def moments(x: Any, **options: Any) -> tuple[Any, Any, Any]:
        m = ops["moments"](x, skipna=skips, **options)
        return m.count, m.mean, m.m2

    if _has_negative(weights):
        weights = (sign * weights).clip(min=0)
    count, mean, m2 = _applied(partial(_of_weights, moments), [x, weights], over, False, results=3)
    return (mean * count).where(count != 0, 0.0), count, mean, m2


def _has_negative(weights: Any) -> bool:
    """Tell whether weights have a negative one; the values of lazy weights are not known."""
    return weights.chunks is None and weights.dtype.kind in "if" and bool((weights < 0).any())


def weighted(obj: Any, weights: Any) -> Weighted:
    """Prepare an object for statistics with weights, like xarray's own `weighted`.

    Parameters
    ----------
    obj : DataArray or Dataset
        The object, as for `mean`.
    weights : DataArray
        The weights. They repeat along dimensions that they lack, without a copy, and so do
        variables that lack some of theirs. An element with weight 0 does not count, whatever its
        value. Negative weights subtract their elements, with a second read; in a dask array they
        give NaN.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> x = xr.DataArray(np.array([[1.0, 2.0], [4.0, np.nan]]), dims=["row", "column"])
    >>> fx.weighted(x, xr.DataArray(np.array([1.0, 2.0]), dims="row")).mean("row").to_numpy()
    array([3., 2.])
    """
    return Weighted(obj, weights)


class GroupBy:
    """Statistics of groups, which `groupby` returns.

    dim : the dimensions to reduce; by default those along which groups differ. If labels have
    several dimensions, some may stay; if all stay, the members of a group are not combined, as in
    xarray. skipna : leave NaN out, the default.
    """

    def __init__(self, obj: Any, group: Any, groupers: Any, weighted: Any = None) -> None:
        _check_object("fastact.xarray.groupby", obj, (xr.DataArray, xr.Dataset))
        own = obj.groupby(group, **groupers)
        self.obj, self._labels, self._groupers = obj, own.encoded.codes.variable, own.groupers
        self._weighted = weighted

    mean = _statistic("mean", "The mean of each group, or NaN if it has no elements.")
    var = _statistic("var", "The variance of each group; correction is xarray's `ddof`.", var)
    std = _statistic("std", "The square root of `var`.", std)
    sum = _statistic("sum", "The sum of each group, or NaN if it has no members, as in xarray.")
    sum_squares = _statistic("sum_squares", "The sum of the squares of each group, like `sum`.")

    def count(self, dim: Dims = None, *, keep_attrs: bool | None = None) -> Any:
        """Count the elements of each group that are not NaN."""
        return self._reduced("count", dim, True, keep_attrs)

    def _reduced(
        self,
        name: str,
        dim: Dims = None,
        skipna: bool | None = None,
        keep_attrs: bool | None = None,
        **options: Any,
    ) -> Any:
        where, weighted = f"fastact.xarray.groupby.{name}", self._weighted
        if weighted is not None and name not in ("mean", "var", "std"):
            raise TypeError(f"{where}: weighted groups have only mean, var and std")
        op = _op(name, _skips(where, skipna))
        own = self._labels.dims
        over = own if dim is None else _over(where, dim, (*dict.fromkeys((*self.obj.dims, *own)),))
        if keep_attrs is None:  # as xarray's own
            keep_attrs = xr.get_options()["keep_attrs"] is not False
        if not set(over) & set(own):
            if weighted is None:
                return _reduced(name, self.obj, over, skipna, keep_attrs, **options)
            return weighted._reduced(name, over, skipna, keep_attrs, **options)
        reduce = partial(self._of_variable, partial(op, **options), over)
        found = _by_variable(where, self.obj, reduce, keep_attrs)
        return found.assign_coords(self._coords())

    def _of_variable(self, op: Callable[..., Any], over: tuple[Hashable, ...], x: Any) -> Any:
        """Reduce one variable by groups, whose dimensions replace those that they run along."""
        labels, weights = self._labels, []
        if self._weighted is not None:
            x, by = xr.align(x, self._weighted.weights, join="exact", copy=False)
            x, weights = _repeated(x, by, by.dims), [by]
        elif x.name != _ARRAY and not set(labels.dims) & set(x.dims):
            return _reduced_variable(partial(quietly, op), over, False, x)
        if x.chunks is None and any(one.chunks is not None for one in (labels, *weights)):
            x = x.chunk()
        x = _repeated(x, labels, labels.dims)
        own = tuple(one for one in over if one in x.dims)
        labels = labels.set_dims({**dict.fromkeys(own, 1), **labels.sizes})
        weights = [_repeated(by, x, own) for by in weights]
        groups = {one.name: len(one) for one in self._groupers}
        found = xr.apply_ufunc(
            partial(_of_groups, op, tuple(groups.values())),
            *(x, labels, *weights),
            input_core_dims=[own] * (2 + len(weights)),
            output_core_dims=[tuple(groups)],
            exclude_dims=set(own),  # a result may have one of them, of another length
            dask="allowed",
            keep_attrs=False,
            kwargs={"axis": tuple(range(-len(own), 0))},
        )
        along = {one: [g.name for g in self._groupers if g.group.dims == (one,)] for one in own}
        dims = [name for one in x.dims for name in along.get(one, [one])]
        return found.transpose(*dict.fromkeys((*dims, *groups)))

    def _coords(self) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for one in self._groupers:
            index = one.full_index
            if index.nlevels > 1:
                found.update(xr.Coordinates.from_pandas_multiindex(index, one.name))
            elif one.group.name in self.obj.coords or one.group.name not in self.obj.dims:
                found[one.name] = (one.name, index, one.codes.attrs)
        return found


def _of_groups(
    op: Callable[..., Any],
    groups: tuple[int, ...],
    x: Any,
    labels: Any,
    *weights: Any,
    axis: tuple[int, ...],
) -> Any:
    """Apply an op by groups; members are counted, because the sum of an empty group is NaN."""
    by = {"axis": axis, "by": labels, "groups": math.prod(groups)}
    y = _of_weights(op, x, *weights, **by) if weights else quietly(op, x, **by)
    members = ops["sum"](labels >= 0, **by)
    y = np.where(members > 0, y, 0 if y.dtype.kind == "i" else y.dtype.type(math.nan))
    return y.reshape(*y.shape[:-1], *groups)


def groupby(obj: Any, group: Any = None, **groupers: Any) -> GroupBy:
    """Prepare an object for statistics of groups, like xarray's own `groupby`.

    Parameters
    ----------
    obj : DataArray or Dataset
        The object, as for `mean`. A Dataset's variable without a dimension of the groups is reduced
        as by `mean`, over the other dimensions in `dim`, and is not repeated by group.
    group : str, DataArray or list of str, optional
        The labels, as for xarray's own `groupby`, which finds them.
    **groupers : Grouper
        Groupers of `xarray.groupers`, for bins, seasons or resampling.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> x = xr.DataArray(np.array([1.0, 2.0, 5.0]), {"month": ("time", [1, 2, 1])}, ["time"])
    >>> fx.groupby(x, "month").mean().sel(month=1).item()
    3.0
    >>> weights = xr.DataArray(np.array([1.0, 1.0, 3.0]), dims="time")
    >>> fx.weighted(x, weights).groupby("month").mean().sel(month=1).item()
    4.0
    """
    return GroupBy(obj, group, groupers)


def __getattr__(name: str) -> Any:
    op = ops.get(name)
    if op is None or not set(op.results) <= _STATISTICS or len(op.results) > 1:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def reduce(
        obj: Any, dim: Dims = None, *, keep_attrs: bool | None = None, **options: Any
    ) -> Any:
        return _reduced(name, obj, dim, False, keep_attrs, **options)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"`fastact.{name}` over dimensions, as for `mean`, with options by keyword."
    return reduce


def _op(name: str, skips: bool) -> Any:
    """Find the op of this name, or a function in its place that leaves NaN out."""
    if name == "count":
        return lambda x, **options: ops["sum"](x == x, **options).astype(np.int64)
    if skips and name == "mean_var":
        return partial(ops[name], skipna=True)
    if skips and name == "sum_squares":
        return lambda x, axis, **by: ops[name](x, axis, where=x == x, **by)
    return ops[f"nan{name}" if skips else name]


def _skips(where: str, skipna: bool | None) -> bool:
    """Tell whether NaN is left out, which is the default."""
    return skipna is None or validate.flag(where, "skipna", skipna)


def _reduced(
    name: str,
    obj: Any,
    dim: Dims,
    skipna: bool | None,
    keep_attrs: bool | None,
    **options: Any,
) -> Any:
    where = f"fastact.xarray.{name}"
    _check_object(where, obj)
    over = _over(where, dim, tuple(obj.dims), once=not isinstance(obj, xr.Dataset))
    reduce = partial(quietly, _op(name, _skips(where, skipna)), **options)
    if isinstance(obj, xr.Dataset):
        of_variable = partial(_reduced_variable, reduce, over, keep_attrs)
        return _by_variable(where, obj, of_variable, keep_attrs)
    return _applied(reduce, [obj], over, keep_attrs, 1 + (name == "mean_var"))


def _over(
    where: str, dim: Dims, dims: tuple[Hashable, ...], *, once: bool = True
) -> tuple[Hashable, ...]:
    """Find the dimensions that `dim` names among the existing ones.

    once : whether to refuse repetitions; xarray allows them for a Dataset and with weights.
    """
    if dim is None or dim is ...:
        named = dims
    else:
        named = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    over = tuple(dict.fromkeys(named))
    if once and len(over) < len(named):
        given = foreign.describe(dim)
        raise ValueError(f"{where}: dim must name each dimension once, got {given}")
    for one in over:
        if one not in dims:
            has = ", ".join(map(repr, dims))
            raise ValueError(f"{where}: dim must be of {has}, got {foreign.describe(one)}")
    return over


def _check_object(
    where: str,
    obj: Any,
    kinds: tuple[type, ...] = (xr.DataArray, xr.Dataset, xr.Variable),
    name: str = "obj",
) -> None:
    if not isinstance(obj, kinds):
        *others, last = (f"a {kind.__name__}" for kind in kinds)
        allowed = " or ".join([", ".join(others), last] if others else [last])
        raise TypeError(f"{where}: {name} must be {allowed}, got {foreign.describe(obj)}")


def _reduced_variable(
    function: Callable[..., Any], over: tuple[Hashable, ...], keep_attrs: bool | None, variable: Any
) -> Any:
    """Reduce a variable of a Dataset, which has dimensions that the variable lacks."""
    own = tuple(one for one in over if one in variable.dims)
    return _applied(function, [variable], own, keep_attrs) if own else variable


def _weighted_variable(
    function: Callable[..., Any],
    over: tuple[Hashable, ...],
    weights: Any,
    variable: Any,
) -> Any:
    """Reduce a variable and its weights, aligned as xarray's `dot` aligns them."""
    join = "exact" if xr.get_options()["arithmetic_join"] == "exact" else "inner"
    x, weights = xr.align(variable, weights, join=join, copy=False)
    dims = [one for one in dict.fromkeys((*x.dims, *weights.dims)) if one not in over]
    if weights.chunks is not None and x.chunks is None:  # as xarray's own, the result is lazy
        x = x.chunk()
    x = _repeated(x, weights, weights.dims)
    own = tuple(one for one in over if one in x.dims)
    return function(x, _repeated(weights, x, own), own).transpose(*dims)


def _applied(
    function: Callable[..., Any],
    arrays: list[Any],
    over: tuple[Hashable, ...],
    keep_attrs: bool | None,
    results: int = 1,
) -> Any:
    """Reduce the last axes, to which `apply_ufunc` moves these dimensions without a copy."""
    return xr.apply_ufunc(
        function,
        *arrays,
        input_core_dims=[over] * len(arrays),
        output_core_dims=[()] * results,
        dask="allowed",  # the ops know dask's arrays
        keep_attrs=keep_attrs,
        kwargs={"axis": tuple(range(-len(over), 0))},
    )


def _repeated(array: Any, like: Any, dims: Iterable[Hashable]) -> Any:
    """Return a view of the array with another one's lengths along dimensions that it lacks."""
    return array.expand_dims({one: like.sizes[one] for one in dims if one not in array.dims})


def _of_weights(function: Callable[..., Any], x: Any, weights: Any, **options: Any) -> Any:
    weights = weights[(None,) * (x.ndim - weights.ndim)]
    return quietly(function, x, weights=weights, **options)
