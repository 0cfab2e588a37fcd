"""What the benchmarks of every family share: sizes, dtypes, ops by name, arrays.

asv runs the benchmarks of today against the package of older commits. They use the public API, and
of the rest only the oracle and the maker of calls: so the few lines on ULP and on taking turns are
here too, not only in `fastact.check.ulp` and `fastact.bench.turns`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastact as fa

with contextlib.suppress(ImportError):
    import ml_dtypes  # noqa: F401  makes "bfloat16" a name that NumPy knows

# The cost of a call; in the cache of one core; in the shared cache; in memory.
SIZES = (64, 50_000, 1_000_000, 16_000_000)
DTYPES = ("float16", "bfloat16", "float32", "float64")
DIRECTIONS = ("forward", "backward")

Call = Callable[..., Any]

ROUNDS = 41
SAMPLE_SECONDS = 1e-3


def oracle() -> Any:
    """The module of the formulas, wherever the commit has it."""
    try:
        return import_module("fastact.check.reference")
    except ModuleNotFoundError:
        return import_module("fastact._reference")


def names(family: str) -> list[str]:
    """Names of the ops of a family."""
    return [name for name, op in fa.ops.items() if op.family == family]


def op_named(name: str) -> Any:
    """An op by its name; asv leaves out what an older commit does not have yet."""
    try:
        return fa.ops[name]
    except KeyError:
        raise NotImplementedError(f"this version has no {name}") from None


def dtype_named(name: str) -> np.dtype[Any]:
    """A dtype by its name; asv leaves out bfloat16 where ml_dtypes is not installed."""
    try:
        return np.dtype(name)
    except TypeError:
        raise NotImplementedError(f"{name} needs ml_dtypes") from None


def maker_of_calls() -> Any:
    """The module that makes calls; asv leaves out commits that lack it."""
    try:
        return import_module("fastact.measure.cases")
    except ModuleNotFoundError:
        raise NotImplementedError("this version has no maker of calls") from None


class Maker:
    """A maker of arrays for the calls, each of its own numbers."""

    def __init__(self) -> None:
        self.seed = 0

    def random(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Make an array of normal numbers."""
        self.seed += 1
        return normal(math.prod(shape), np.dtype(dtype), self.seed).reshape(shape)

    def integers(self, shape: tuple[int, ...], end: int) -> NDArray[Any]:
        """Make an array of integers from 0 to below `end`."""
        return np.random.default_rng(self.seed).integers(0, end, shape)


def call_of(
    name: str,
    direction: str,
    shape: tuple[int, ...],
    dtype: str,
    options: Mapping[str, Any],
    optional: Collection[str] = (),
) -> Call:
    """A call of an op, or of its backward, with `out=`, on data of a shape.

    optional : arrays that may be left out, and are given.
    """
    op, entry = op_named(name), "call" if direction == "forward" else "backward"
    dtype_named(dtype)
    cases, make = maker_of_calls(), Maker()
    data = (shape, dtype, options, make)
    named = {**options, **cases.arguments(op, "call", *data, optional)}
    incoming = cases.arguments(op, entry, *data) if entry == "backward" else {}
    call = cases.bound(op, entry, named, incoming)
    return with_out(call, call())


def with_out(call: Call, made: Any) -> Call:
    """The call, writing to arrays like those that it has made; None stands for none."""
    out = tuple(None if y is None else np.zeros(np.shape(y), y.dtype) for y in arrays_of(made))
    return partial(call, out=out if len(out) > 1 else out[0])


def arrays_of(made: Any) -> tuple[Any, ...]:
    """The arrays of a result."""
    if hasattr(made, "m2"):  # Moments
        return made.mean, made.m2
    return made if isinstance(made, tuple) else (made,)


def normal(size: int, dtype: np.dtype[Any], seed: int) -> NDArray[Any]:
    """Normally distributed values, made without a temporary that grows with the size.

    A large temporary would hide what the benchmarked call allocates from the peak of memory.
    """
    block = np.random.default_rng(seed).standard_normal(1 << 16, dtype=np.float32).astype(dtype)
    values = np.empty(size, dtype)
    for begin in range(0, size, block.size):
        part = values[begin : begin + block.size]
        part[...] = block[: part.size]
    return values


def dense_float32() -> NDArray[np.float32]:
    """Some four million finite float32 numbers: the same share of each sign and exponent."""
    every = np.arange(0, 1 << 32, 1021, dtype=np.uint32).view(np.float32)
    return every[np.isfinite(every)]


def worst_ulp(
    result: NDArray[np.float32], exact: NDArray[np.float64], allowed: float = 0.0
) -> float:
    """Largest error in float32 units in the last place among the absolute errors not allowed."""
    error = np.abs(result - exact)
    exponent = np.frexp(exact)[1]  # exact = mantissa in [0.5, 1) times 2**exponent
    ulp = np.ldexp(1.0, np.maximum(exponent, -125) - 24)  # from -126 on, the spacing stays the same
    return round(float(np.max(error / ulp, where=error > allowed, initial=0.0)), 3)


def copying(array: NDArray[Any]) -> Call:
    """A copy of an array by NumPy, on one thread: our own would be another one at each commit."""
    source = np.ascontiguousarray(array).view(np.uint8)  # NumPy copies bfloat16 one by one
    return partial(np.copyto, np.zeros_like(source), source)


def ratio(call: Callable[[], object], other: Callable[[], object]) -> float:
    """Median time of `call` over `other`'s; they take turns, so that noise hits both."""
    calls = (call, other)
    for c in calls:
        c()  # the first call of all pays for pages, threads and caches
    times = [max(1, round(SAMPLE_SECONDS / seconds(c, 1))) for c in calls]
    rounds = [[seconds(c, n) for c, n in zip(calls, times, strict=True)] for _ in range(ROUNDS)]
    ours, others = (float(median(times)) for times in zip(*rounds, strict=True))
    return round(ours / others, 3)


def seconds(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, over a number of them."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times
