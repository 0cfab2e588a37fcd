"""The bridge to dask: ops on chunked arrays, computed when dask computes.

It need not be imported: an op that is given a dask array loads it. Element-wise ops use NumPy's
protocol for ufuncs. A statistic takes `Moments` of each chunk, and a sum takes the chunk's total in
float64. These merge in a tree whose shape depends only on the chunks, so the bits do not depend on
which task was first. If chunks hold whole rows, a norm of rows is computed chunk by chunk;
`layer_norm` of parts of rows uses such moments.

A task has one thread, because dask computes as many tasks at a time as there are cores. When a
graph is made, `dask.config` may set another number under "fastact.threads-per-task".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np

from .waiting import installed

with installed("dask.array", "dask"):
    import dask.array as da
    from dask import config

from .interop import foreign, validate
from .masked import quietly
from .ops.activations import Parameters
from .ops.engine import axes as _axes
from .ops.engine.entry import with_parameters
from .ops.engine.fused import activation_op
from .ops.engine.op import arrays_of, ops
from .ops.engine.weighting import SAVED, check_mask, placed, places_of, untold
from .ops.moments import Moments, of_enough
from .ops.norms import NormOp
from .ops.types import ActivationLike, Axes
from .runtime.threads import num_threads

__all__ = ["layer_norm", "mean_var", "moments"]

THREADS = "fastact.threads-per-task"

#: Each result as a function of the moments of all elements, by its name.
_OF_MOMENTS: Mapping[str, Callable[[Moments, float], Any]] = {
    "mean": lambda m, correction: m.mean,
    "m2": lambda m, correction: m.squares,
    "var": lambda m, correction: m.var(correction),
    "std": lambda m, correction: m.std(correction),
    "count": lambda m, correction: np.zeros_like(m.mean) + m.count,
}


# --- tasks ----------------------------------------------------------------------------------------


class Task:
    """A function for dask's tasks, in which fastact uses at most this number of threads."""

    def __init__(self, function: Callable[..., Any], threads: int) -> None:
        self.function, self.threads = function, threads

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with num_threads(self.threads):
            return self.function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Look up the attributes of a ufunc, and its name."""
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return getattr(self.function, name)


def as_ufunc(function: Callable[..., Any]) -> Task:
    """Wrap a function, or an op of dask's element-wise functions, for dask's tasks."""
    return Task(function, config.get(THREADS, 1))


# --- calls of ops ---------------------------------------------------------------------------------


def serves(op: Any) -> bool:
    """Tell whether an op that is not element-wise is computed on dask arrays."""
    return _chunked(op) is not None


def _chunked(op: Any) -> Callable[[Any, SimpleNamespace, dict[str, Any]], Any] | None:
    """Find the function that computes an op on chunks, or None."""
    if isinstance(op, NormOp):
        call = op.entry_points["call"]
        is_plain = (call.arrays, op.results) == (("x",), ("y",))
        return _norm if is_plain and "axis" in call.defaults else None
    is_statistic = op.family in ("reductions", "statistics")
    return _reduced if is_statistic and (_is_sum(op) or {*op.results} <= {*_OF_MOMENTS}) else None


def call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the op's result, with chunks that are yet to be computed."""
    entry = op.entry_points["call"]
    activation = None
    if "activation" in entry.defaults:
        activation = activation_op(entry.where, entry.option("activation", args, kwargs))
    named = entry if activation is None else with_parameters(entry, activation)
    options = named.bind(args, kwargs)
    given = {name: getattr(options, name) for name in named.defaults}
    if any(out is not None for out in options.out):
        raise TypeError(f"{entry.where}: out must be None for a dask array, which is not written")
    if options.stream is not None:
        raise ValueError(f"{entry.where}: stream must be None for arrays on the CPU")
    del given["out"], given["stream"]
    _check(entry.where, "x", options.x)
    function: Any = _chunked(op)
    return function(op, options, given)


def _check(where: str, name: str, x: Any) -> None:
    """Refuse dask arrays whose chunks are not NumPy's or have unknown sizes."""
    if not isinstance(x, da.Array):
        raise TypeError(
            f"{where}: {name} must be a dask array, as the others are, got {foreign.describe(x)}"
        )
    if type(x._meta) is not np.ndarray:
        raise TypeError(
            f"{where}: {name} must have chunks that are plain arrays, got "
            f"{foreign.name_of(type(x._meta))}"
        )
    if any(math.isnan(length) for chunks in x.chunks for length in chunks):
        raise ValueError(
            f"{where}: {name} must have chunks of known sizes, got shape {x.shape}; use "
            f"{name}.compute_chunk_sizes()"
        )


# --- sums and statistics --------------------------------------------------------------------------


def _is_sum(op: Any) -> bool:
    return getattr(op, "term", None) is not None


def _reduced(op: Any, options: SimpleNamespace, given: dict[str, Any]) -> Any:
    """Compute sums from the chunks' totals in float64, and others from merged moments."""
    x, over = options.x, _axes.axes(f"fastact.{op.name}", options.axis, options.x.ndim)
    if given.get("by") is not None and given.get("groups") is None:
        raise untold(f"fastact.{op.name}")
    operands, sample = _operands(op, x, options, given)
    finished = partial(_finished, over=over, keepdims=options.keepdims)
    if _is_sum(op):
        function = partial(_sum_of_chunk, op=op, axis=over, groups=given.get("groups"))
        added = _merged(function, _add, x, operands, over, "totals", given.get("groups"))
        rounded = partial(_rounded, to=sample[0].dtype, initial=given.get("initial"))
        return finished(added, rounded, sample[0].dtype, name=op.name)
    taken = ops["moments"].entry_points["call"].defaults.keys() - {"axis", "keepdims"}
    told = {n: v for n, v in given.items() if n in taken} | ({"skipna": True} if op.skips else {})
    merged = _merged_moments(x, over, told, operands)
    skips = bool(told.get("skipna"))
    function = partial(_of_moments, correction=given.get("correction", 0), skips=skips)

    def of_merged(name: str, dtype: Any) -> Any:
        return finished(merged, partial(function, name=name, to=dtype), dtype, name=name)

    names = [*op.results, "count"]  # the last of an average that returns it
    results = [of_merged(name, part.dtype) for name, part in zip(names, sample, strict=False)]
    if "m2" not in op.results:
        return tuple(results) if len(results) > 1 else results[0]
    count: Any = math.prod(x.shape[axis] for axis in over)
    if skips or operands:
        count = of_merged("count", np.float64)
    return Moments.of_checked(count, *results)


def _sum_of_chunk(
    x: Any, *, op: Any, axis: tuple[int, ...], groups: int | None, **given: Any
) -> Any:
    """Compute a chunk's total; given : a mask and labels of groups, if there are some."""
    if groups is not None:
        return np.expand_dims(op(x.astype(np.float64), axis, groups=groups, **given), axis)
    counted = np.where(given["where"], x, x.dtype.type(0)) if given else x
    return op(counted, axis, dtype=np.float64, keepdims=True)


def _add(totals: list[Any]) -> Any:
    return ops["sum"](np.stack(totals), 0)


def _rounded(y: Any, to: Any, initial: float | None) -> Any:
    with np.errstate(all="ignore"):
        return (y if initial is None else y + initial).astype(to)


def _operands(
    op: Any, x: Any, options: SimpleNamespace, given: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Take weights, mask and labels out of what was given, in x's chunks, and try the op.

    Its results for one element, or none, have the dtypes and raise the errors of the whole call.
    """
    where = f"fastact.{op.name}"
    operands = {
        name: _beside(where, name, given.pop(name), x, options.axis)
        for name in SAVED
        if given.get(name) is not None
    }
    arrays = {"x": x, **operands}  # 1, but label 0, which each number of groups has but 0
    shape = (int(given.get("groups") != 0),) * x.ndim
    one = {name: np.full(shape, name != "by", a.dtype) for name, a in arrays.items()}
    with np.errstate(all="ignore"):
        return operands, arrays_of(quietly(op, one.pop("x"), **given, **one))


def _array(where: str, name: str, value: Any) -> Any:
    """Return an array beside x: dask's, or NumPy's made from anything plain."""
    if isinstance(value, da.Array):
        _check(where, name, value)
        return value
    foreign.plain(where, name, value)
    return np.asarray(value)


def _beside(where: str, name: str, value: Any, x: Any, axis: Any) -> Any:
    """Repeat an array over x, in x's chunks; all but a mask may have only the reduced axes."""
    value = _array(where, name, value)
    shape = tuple(value.shape)
    if name == "where":
        check_mask(where, str(value.dtype), shape, x.shape)
    else:
        value = placed(da.asarray(value), places_of(where, axis, shape, x.shape, name))
    return da.broadcast_to(value, x.shape).rechunk(x.chunks)


def _merged_moments(
    x: Any, over: tuple[int, ...], told: Mapping[str, Any], operands: Mapping[str, Any]
) -> Any:
    """Make a dask array whose blocks are `Moments`, one for all chunks along the axes `over`."""
    function = partial(_moments_of_chunk, axis=over, **told)
    groups = told.get("groups")
    return _merged(function, Moments.merge_many, x, operands, over, "moments", groups)


def _moments_of_chunk(x: Any, *, axis: tuple[int, ...], **given: Any) -> Any:
    if given.get("by") is None:
        return ops["moments"](x, axis, keepdims=True, **given)
    m = ops["moments"](x, axis, **given)
    return Moments.of_checked(*(np.expand_dims(a, axis) for a in (m.count, m.mean, m.squares)))


def _merged(
    function: Callable[..., Any],
    merge: Callable[[list[Any]], Any],
    x: Any,
    operands: Mapping[str, Any],
    over: tuple[int, ...],
    name: str,
    groups: int | None,
) -> Any:
    """Apply a function to each chunk of x and its operands by name, and merge in a tree.

    The result has length 1 and one block along the axes `over`; groups, if there are some, are one
    more axis at the end.
    """
    index = tuple(range(x.ndim))
    behind = {} if groups is None else {x.ndim: groups}
    of_chunks = da.blockwise(
        as_ufunc(partial(_of_chunk, function, tuple(operands))),
        (*index, *behind),
        *(part for array in (x, *operands.values()) for part in (array, index)),
        adjust_chunks={axis: lambda length: 1 for axis in over},
        new_axes=behind,
        dtype=np.float64,
        meta=np.empty((0,) * (x.ndim + len(behind))),
        token=f"fastact-{name}",
    )
    return da.reduction(
        of_chunks,
        _same,
        partial(_merge, merge),
        axis=over,
        keepdims=True,
        concatenate=False,
        dtype=np.float64,
        meta=np.empty((0,) * of_chunks.ndim),
        name=f"fastact-{name}",
    )


def _of_chunk(function: Callable[..., Any], names: Sequence[str], x: Any, *operands: Any) -> Any:
    return function(x, **dict(zip(names, operands, strict=True)))


def _same(part: Any, axis: Any, keepdims: bool) -> Any:
    return part


def _merge(merge: Callable[[list[Any]], Any], parts: Any, axis: Any, keepdims: bool) -> Any:
    """Merge the items of nested lists, in the order of the chunks."""
    return merge(list(_flat(parts)))


def _flat(parts: Any) -> Iterator[Any]:
    if isinstance(parts, list):
        for part in parts:
            yield from _flat(part)
    else:
        yield parts


def _finished(
    merged: Any,
    function: Callable[..., Any],
    dtype: Any,
    over: tuple[int, ...],
    keepdims: bool,
    name: str,
) -> Any:
    """Apply a function to each merged block, and drop the axes `over` unless they stay.

    A result without axes is a NumPy scalar, as in dask's own reductions.
    """
    index = tuple(range(merged.ndim))
    left = index if keepdims else _axes.others(over, merged.ndim)
    return da.blockwise(
        partial(_of_block, function, dropped=() if keepdims else over),
        left,
        merged,
        index,
        dtype=dtype,
        meta=np.empty((0,) * len(left), dtype),
        token=f"fastact-{name}",
    )


def _of_block(function: Callable[..., Any], merged: Any, *, dropped: tuple[int, ...]) -> Any:
    """Finish a block; merged: nested in as many lists of one item as axes are dropped."""
    (block,) = _flat(merged)
    return function(block).squeeze(dropped)[()]


def _of_moments(
    m: Moments, *, name: str, to: Any = np.float64, correction: float = 0.0, skips: bool = False
) -> Any:
    with np.errstate(all="ignore"):
        y = _OF_MOMENTS[name](m, correction)
        if skips and name in ("var", "std"):
            y = of_enough(m, y, correction)
        return np.asarray(y).astype(to)


# --- norms of rows --------------------------------------------------------------------------------


def _norm(op: Any, options: SimpleNamespace, given: dict[str, Any]) -> Any:
    """Compute the norm of each chunk, by its own statistics or those of whole rows."""
    x, where = options.x, f"fastact.{op.name}"
    over = _axes.axes(where, options.axis, x.ndim)
    both = {name: given.pop(name, None) for name in ("weight", "bias")}
    parameters = {name: value for name, value in both.items() if value is not None}
    shape, chunks = tuple(x.shape[a] for a in over), tuple(x.chunks[a] for a in over)
    for name, value in parameters.items():
        value = _array(where, name, value)
        if tuple(value.shape) != shape:
            raise ValueError(f"{where}: {name} must have shape {shape}, got {tuple(value.shape)}")
        parameters[name] = da.asarray(value).rechunk(chunks)
    ones = {n: np.ones((1,) * len(over), v.dtype) for n, v in parameters.items()}
    # Errors are raised now; and the dtype differs from x's for integers and swapped bytes.
    dtype = op(np.ones((1,) * x.ndim, x.dtype), **ones, **given).dtype
    index = tuple(range(x.ndim))
    operands = {name: (value, over) for name, value in parameters.items()}
    if all(len(c) == 1 for c in chunks):
        function = partial(op, **given)
    elif "bias" in op.entry_points["call"].defaults:  # it subtracts a mean
        eps = validate.epsilon(where, "eps", options.eps)
        merged = _merged_moments(x, over, {}, {})
        for name in ("mean", "var"):
            of = partial(_of_moments, name=name)
            operands[name] = _finished(merged, of, np.float64, over, True, name), index
        known = {n: v for n, v in given.items() if n not in ("axis", "eps")}
        function = partial(_norm_of_part, over=over, eps=eps, dtype=dtype, options=known)
    else:
        raise ValueError(
            f"{where}: x must have one chunk along axis {options.axis}, got {x.numblocks} chunks; "
            f"use x.rechunk"
        )
    return da.blockwise(
        as_ufunc(partial(_of_chunk, function, tuple(operands))),
        index,
        *(x, index),
        *(part for pair in operands.values() for part in pair),
        dtype=dtype,
        meta=np.empty((0,) * x.ndim, dtype),
        concatenate=True,
        token=f"fastact-{op.name}",
    )


def _norm_of_part(
    x: Any,
    *,
    over: tuple[int, ...],
    eps: float,
    dtype: Any,
    options: Mapping[str, Any],
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
) -> Any:
    """Normalise a part of rows by known statistics; each row is a channel of `norm_apply`."""
    rest = _axes.others(over, x.ndim)
    order = (*rest, *over)
    rows, columns = (math.prod(x.shape[a] for a in axes) for axes in (rest, over))
    flat = x.transpose(order).reshape(rows, columns)
    # 16-bit data is rounded once, at the end.
    flat = flat.astype(np.float32 if dtype.itemsize < 4 else dtype, copy=False)
    y = ops["norm_apply"](flat, mean.reshape(-1), 1 / np.sqrt(var + eps).reshape(-1), axis=0)
    if weight is not None:
        y *= weight.reshape(-1).astype(y.dtype)
    bias = np.zeros(columns) if bias is None else bias.reshape(-1)
    ops["bias_act"](y, bias.astype(y.dtype), axis=1, **options, out=y)
    made = y.astype(dtype).reshape([x.shape[a] for a in order])
    return made.transpose(np.argsort(order))


# --- by name --------------------------------------------------------------------------------------


def _named(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, da.Array):
        raise TypeError(
            f"fastact.dask.{name}: x must be a dask array, got {foreign.describe(x)}; use "
            f"fastact.{name}"
        )
    return call(ops[name], (x, *args), kwargs)


def moments(x: Any, /, axis: Axes = None, *, keepdims: bool = False, **options: Any) -> Moments:
    """Compute ``fastact.moments`` of a dask array, as `Moments` whose arrays are dask's.

    ``dask.compute(m)`` turns them into NumPy's, and ``m.var()`` is another dask array.

    Examples
    --------
    >>> import dask, dask.array as da, fastact.dask
    >>> m = fastact.dask.moments(da.arange(12.0, chunks=5))
    >>> dask.compute(m)[0]
    Moments(count=12, mean=np.float64(5.5), m2=np.float64(143.0))
    """
    found: Moments = _named("moments", x, axis, keepdims=keepdims, **options)
    return found


def mean_var(
    x: Any, /, axis: Axes = None, *, correction: float = 0, keepdims: bool = False
) -> tuple[Any, Any]:
    """Compute ``fastact.mean_var`` of a dask array.

    Examples
    --------
    >>> import dask, dask.array as da, fastact.dask
    >>> dask.compute(*fastact.dask.mean_var(da.arange(12.0, chunks=5)))
    (np.float64(5.5), np.float64(11.9166...))
    """
    found: tuple[Any, Any] = _named("mean_var", x, axis, correction=correction, keepdims=keepdims)
    return found


def layer_norm(
    x: Any,
    /,
    weight: Any = None,
    bias: Any = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    **parameters: Unpack[Parameters],
) -> Any:
    """Compute ``fastact.layer_norm`` of a dask array, with chunks of any shape.

    If chunks hold whole rows, the result has that op's bits. Otherwise rows are normalised by
    merged moments, and rounded twice more in the dtype that x is computed in: after the norm, and
    after the weight.

    Examples
    --------
    >>> import dask.array as da, fastact.dask
    >>> x = da.from_array([[1.0, 3.0], [4.0, 8.0]], chunks=1)
    >>> fastact.dask.layer_norm(x, eps=0.0).compute()
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    return _named(
        "layer_norm", x, weight, bias, axis=axis, eps=eps, activation=activation, **parameters
    )
