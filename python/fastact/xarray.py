"""Statistics of labelled arrays: over dimensions by their names, with labels and attributes kept.

Element-wise ops need nothing of this: given a DataArray or a Dataset they return one. What is here
takes the same, and is lazy where its data are dask's. Besides `mean`, `var`, `std`, `mean_var` and
`weighted` the module has every op of `fastact.ops` that is one statistic over axes, under its name,
with the op's own options by keyword::

    import fastact.xarray as fx

    fx.var(temperature, "time", correction=1)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, TypeAlias

import xarray as xr

from .interop import foreign
from .ops.op import ops

__all__ = ["Weighted", "mean", "mean_var", "std", "var", "weighted"]

Dims: TypeAlias = "Hashable | Iterable[Hashable] | None"

_STATISTICS = {"mean", "var", "std", "sum"}


def mean(obj: Any, dim: Dims = None, *, keep_attrs: bool | None = None) -> Any:
    """The mean over dimensions; by default over all of them.

    Parameters
    ----------
    obj : DataArray, Dataset or Variable
        Of numbers. Of a Dataset each variable is reduced over those of the dimensions that it has,
        and kept as it is if it has none of them.
    dim : str or iterable of str, optional
        The dimensions to reduce.
    keep_attrs : bool, optional
        As xarray's own functions take it.

    Returns
    -------
    DataArray, Dataset or Variable
        With the other dimensions, and their labels. Of a dask array it is lazy.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> x = xr.DataArray(np.arange(6.0).reshape(2, 3), {"row": ["a", "b"]}, ["row", "column"])
    >>> fx.mean(x, "column").sel(row="b").item()
    4.0
    """
    return _reduced("mean", _of_mean_var(0), obj, dim, keep_attrs)


def var(
    obj: Any, dim: Dims = None, *, correction: float = 0, keep_attrs: bool | None = None
) -> Any:
    """The variance over dimensions; as `mean` takes them.

    correction : what is subtracted from the number of elements, as xarray's `ddof`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> fx.var(xr.DataArray(np.array([1.0, 3.0])), correction=1).item()
    2.0
    """
    return _reduced("var", _of_mean_var(1), obj, dim, keep_attrs, correction=correction)


def std(
    obj: Any, dim: Dims = None, *, correction: float = 0, keep_attrs: bool | None = None
) -> Any:
    """The standard deviation over dimensions; as `var`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> fx.std(xr.DataArray(np.array([1.0, 3.0]))).item()
    1.0
    """
    return _reduced("std", _root_of_var, obj, dim, keep_attrs, correction=correction)


def mean_var(
    obj: Any, dim: Dims = None, *, correction: float = 0, keep_attrs: bool | None = None
) -> tuple[Any, Any]:
    """Mean and variance over dimensions; of a DataArray in one read of it.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> [part.item() for part in fx.mean_var(xr.DataArray(np.array([1.0, 3.0])))]
    [2.0, 1.0]
    """
    if isinstance(obj, xr.Dataset):
        return (
            mean(obj, dim, keep_attrs=keep_attrs),
            var(obj, dim, correction=correction, keep_attrs=keep_attrs),
        )
    both: tuple[Any, Any] = _reduced(
        "mean_var", ops["mean_var"], obj, dim, keep_attrs, results=2, correction=correction
    )
    return both


class Weighted:
    """Statistics in which each element counts by its weight: what `weighted` returns."""

    def __init__(self, obj: Any, weights: Any) -> None:
        where = "fastact.xarray.weighted"
        _check_object(where, obj, (xr.DataArray, xr.Dataset))
        _check_object(where, weights, (xr.DataArray,), "weights")
        self.obj, self.weights = obj, weights

    def mean(self, dim: Dims = None, *, skipna: bool = True, keep_attrs: bool | None = None) -> Any:
        """The weighted mean; as `fastact.xarray.mean`. skipna : leave NaN out."""
        return self._reduced("mean", dim, skipna, keep_attrs)

    def var(self, dim: Dims = None, *, skipna: bool = True, keep_attrs: bool | None = None) -> Any:
        """The weighted variance, over the sum of the weights."""
        return self._reduced("var", dim, skipna, keep_attrs)

    def std(self, dim: Dims = None, *, skipna: bool = True, keep_attrs: bool | None = None) -> Any:
        """The square root of `var`."""
        return self._reduced("std", dim, skipna, keep_attrs)

    def _reduced(self, name: str, dim: Dims, skipna: bool, keep_attrs: bool | None) -> Any:
        op = ops[f"nan{name}" if skipna else name]
        return _reduced(f"weighted.{name}", op, self.obj, dim, keep_attrs, weights=self.weights)


def weighted(obj: Any, weights: Any) -> Weighted:
    """The object, to be reduced with weights, as xarray's own `weighted`.

    Parameters
    ----------
    obj : DataArray or Dataset
        As `mean` takes it.
    weights : DataArray
        Not negative. Along dimensions that it lacks it repeats, without a copy, and so does a
        variable that lacks some of its own.

    Examples
    --------
    >>> import numpy as np, xarray as xr, fastact.xarray as fx
    >>> x = xr.DataArray(np.array([[1.0, 2.0], [4.0, np.nan]]), dims=["row", "column"])
    >>> fx.weighted(x, xr.DataArray(np.array([1.0, 2.0]), dims="row")).mean("row").to_numpy()
    array([3., 2.])
    """
    return Weighted(obj, weights)


def __getattr__(name: str) -> Any:
    op = ops.get(name)
    if op is None or not set(op.results) <= _STATISTICS or len(op.results) > 1:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def reduce(
        obj: Any, dim: Dims = None, *, keep_attrs: bool | None = None, **options: Any
    ) -> Any:
        return _reduced(name, op, obj, dim, keep_attrs, **options)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"`fastact.{name}` over dimensions, which `mean` takes; options by keyword."
    return reduce


def _of_mean_var(which: int) -> Callable[..., Any]:
    return lambda x, axis, **options: ops["mean_var"](x, axis, **options)[which]


def _root_of_var(x: Any, axis: tuple[int, ...], **options: Any) -> Any:
    return ops["mean_var"](x, axis, **options)[1] ** 0.5


def _reduced(
    name: str,
    function: Callable[..., Any],
    obj: Any,
    dim: Dims,
    keep_attrs: bool | None,
    results: int = 1,
    weights: Any = None,
    **options: Any,
) -> Any:
    """A function of an array and its axes, over dimensions; with weights, of those too."""
    where = f"fastact.xarray.{name}"
    _check_object(where, obj)
    over = tuple(obj.dims) if dim is None or dim is ... else _names(dim)
    for one in over:
        if one not in obj.dims:
            has = ", ".join(map(repr, obj.dims))
            raise ValueError(f"{where}: dim must be of {has}, got {foreign.describe(one)}")
    if isinstance(obj, xr.Dataset):
        reduce = partial(
            _reduced_variable,
            where,
            function,
            over,
            weights=weights,
            keep_attrs=keep_attrs,
            options=options,
        )
        return obj.map(reduce, keep_attrs=keep_attrs)
    return _applied(function, obj, over, weights, keep_attrs, results, options)


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


def _names(dim: Any) -> tuple[Hashable, ...]:
    return (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)


def _reduced_variable(
    where: str,
    function: Callable[..., Any],
    over: tuple[Hashable, ...],
    variable: Any,
    *,
    weights: Any,
    keep_attrs: bool | None,
    options: dict[str, Any],
) -> Any:
    """Of a Dataset, which has dimensions that the variable lacks."""
    dims = {*variable.dims, *(() if weights is None else weights.dims)}
    own = tuple(one for one in over if one in dims)
    if not own:
        return variable
    try:
        return _applied(function, variable, own, weights, keep_attrs, 1, options)
    except TypeError as error:
        raise TypeError(f"{where}: {variable.name!r} of the Dataset: {error}") from None


def _applied(
    function: Callable[..., Any],
    obj: Any,
    over: tuple[Hashable, ...],
    weights: Any,
    keep_attrs: bool | None,
    results: int,
    options: dict[str, Any],
) -> Any:
    """Over the last axes, to which `apply_ufunc` moves these dimensions without a copy."""
    arrays = [obj]
    if weights is not None:
        function = partial(_of_weights, function)
        arrays = [_repeated(obj, weights, weights.dims), _repeated(weights, obj, over)]
    return xr.apply_ufunc(
        function,
        *arrays,
        input_core_dims=[over] * len(arrays),
        output_core_dims=[()] * results,
        dask="allowed",  # the ops know dask's arrays
        keep_attrs=keep_attrs,
        kwargs={"axis": tuple(range(-len(over), 0)), **options},
    )


def _repeated(array: Any, like: Any, dims: Iterable[Hashable]) -> Any:
    """The array, along those of the dimensions that it lacks as long as another one: a view."""
    return array.expand_dims({one: like.sizes[one] for one in dims if one not in array.dims})


def _of_weights(function: Callable[..., Any], x: Any, weights: Any, **options: Any) -> Any:
    return function(x, weights=weights[(None,) * (x.ndim - weights.ndim)], **options)
