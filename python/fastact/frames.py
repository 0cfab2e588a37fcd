"""Columns of pandas and polars: a Series, an index or an array of theirs in place of an array.

This module imports neither library. Sums and statistics take a column as their data, because their
result has no rows. Arguments about each element (weights, a mask, labels of groups, targets) may be
columns beside any data; a categorical stands for its codes. All pandas columns in a call must have
the same index, so that rows that belong together stay together.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from .interop import foreign, handlers

_MOST = 2**63 - 1  # the largest label

#: The numbers that stand for missing values, by argument; None refuses missing values.
_MISSING = {"weights": math.nan, "by": -1, "target": -1, "where": None, "mask": None}


def _is_column(value: Any) -> bool:
    cls = type(value)
    return cls.__module__.startswith(("pandas", "polars")) and len(getattr(value, "shape", ())) == 1


def _columns(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Find the columns of a call, and the numbers for their missing values, by name."""
    if not any(map(_is_column, (*args, *kwargs.values()))):
        return {}
    entry = op.entry_points["call"]
    missing: dict[str, Any] = {**_MISSING}
    if "where" in op.args and entry.option("axis", args, kwargs) != ():
        missing[entry.first] = math.nan
    named = {**dict(zip(entry.leading, args, strict=False)), **kwargs}
    return {n: (v, missing[n]) for n, v in named.items() if n in missing and _is_column(v)}


def _call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    entry, columns = op.entry_points["call"], _columns(op, args, kwargs)
    indexes = {n: v.index for n, (v, _) in columns.items() if hasattr(type(v), "index")}
    for name, index in indexes.items():
        first = next(iter(indexes))
        if not index.equals(indexes[first]):
            raise ValueError(
                f"{entry.where}: {name} must have the index that {first} has, as rows are paired "
                f"by position; use {name}.reindex({first}.index) or {name}.to_numpy()"
            )
    plain = {name: _plain(entry.where, name, *column) for name, column in columns.items()}
    args = [plain.get(n, v) for n, v in zip_longest(entry.leading[: len(args)], args)]
    return op(*args, **{name: plain.get(name, value) for name, value in kwargs.items()})


def _plain(where: str, name: str, column: Any, missing: Any) -> Any:
    """Convert a column to NumPy's array."""
    is_polars, is_label = hasattr(column, "null_count"), missing == -1
    has_missing = bool(column.null_count() if is_polars else column.isna().any())
    if has_missing and missing is None:
        way, came = "fill_null" if is_polars else "fillna", foreign.describe(column)
        raise ValueError(
            f"{where}: {name} must have no missing values, got {came}; use {name}.{way}(False)"
        )
    if is_polars:
        if is_label and type(column.dtype).__name__ == "Enum":
            column = column.to_physical()
        if has_missing and type(column.dtype).__name__ == "Boolean":
            column = column.cast(int)
        if is_label and has_missing and column.dtype.is_integer():
            if (column.max() or 0) > _MOST:
                return column.fill_null(0).to_numpy()  # which is refused
            column = column.cast(int).fill_null(-1)
        return column.to_numpy()  # missing numbers become NaN
    codes = getattr(getattr(column, "array", column), "codes", None)
    if codes is not None and is_label:  # a categorical has -1 where values are missing
        return np.asarray(codes)
    dtype = getattr(column.dtype, "numpy_dtype", None)  # only nullable types have it
    if dtype is None or dtype.kind not in "biuf":
        return column.to_numpy()
    if is_label and has_missing and dtype.kind == "u" and column.fillna(0).max() > _MOST:
        return column.fillna(0).to_numpy(dtype)  # which is refused
    if has_missing and dtype.kind != "f":
        dtype = np.dtype(np.int64 if is_label else np.float64)
    return column.to_numpy(dtype, na_value=missing) if has_missing else column.to_numpy(dtype)


def as_ufunc(ufunc: Any) -> Any:
    """Return an op as polars calls a ufunc: with the dtype of the output, which is given, too."""
    called: Any = lambda *inputs, dtype=None, **kwargs: ufunc(*inputs, **kwargs)  # noqa: E731
    called.nout, called.types, called.signature = ufunc.nout, ufunc.types, ufunc.signature
    return called


handlers.register(handlers.Handler(lambda *call: bool(_columns(*call)), _call), first=True)
